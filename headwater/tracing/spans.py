"""Spans of this process, sent by OTLP where a collector is configured; otherwise nothing is imported or done.

``OTEL_EXPORTER_OTLP_ENDPOINT`` names the collector; it and the other variables of OpenTelemetry's SDK are read by that
SDK, which the extra ``otel`` brings.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from headwater.tracing.context import TraceContext

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SHARE_ENV = "OTEL_TRACES_SAMPLER_ARG"
SHARE = 0.01
"""Share of batches of sources with which a trace begins, unless the variable gives another one."""

Attributes = Mapping[str, str | int | float | bool]
_LOG = logging.getLogger(__name__)
_CURRENT: ContextVar[TraceContext | None] = ContextVar("current span", default=None)


@dataclass(frozen=True, kw_only=True)
class TraceSpan:
    """A span that has ended; times in seconds since 1970. ``error``: why it failed."""

    name: str
    context: TraceContext
    parent: TraceContext | None = None
    begun: float
    ended: float
    kind: Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"] = "INTERNAL"
    attributes: Attributes = field(default_factory=dict)
    links: tuple[TraceContext, ...] = ()
    error: str | None = None


class _Collector:
    """Sends spans in the background, by OpenTelemetry's SDK."""

    def __init__(self, about: Mapping[str, str]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._resource = Resource.create(dict(about))
        self._processor = BatchSpanProcessor(OTLPSpanExporter())

    def send(self, span: TraceSpan) -> None:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import Link, SpanKind
        from opentelemetry.trace.status import Status, StatusCode

        told = ReadableSpan(
            name=span.name,
            context=_sdk_context(span.context),
            parent=None if span.parent is None else _sdk_context(span.parent),
            resource=self._resource,
            attributes=dict(span.attributes),
            links=[Link(_sdk_context(link)) for link in span.links],
            kind=SpanKind[span.kind],
            status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=round(span.begun * 1e9),
            end_time=round(max(span.begun, span.ended) * 1e9),
            instrumentation_scope=InstrumentationScope("headwater"),
        )
        self._processor.on_end(told)

    def close(self) -> None:
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def _sdk_context(context: TraceContext) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int(context.trace, 16), int(context.span, 16), is_remote=False, trace_flags=flags)


_collector: _Collector | None = None


def begin_tracing(service: str, **about: str) -> None:
    """Send this process's spans from now on, where a collector is configured. ``about``: what the process is."""
    global _collector
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return
    try:
        _collector = _Collector({"service.name": service, **about})
    except ImportError as error:
        _LOG.warning("no traces are sent: %s; pip install 'headwater[otel]'", error)


def end_tracing() -> None:
    """Send the spans that wait, and stop."""
    global _collector
    collector, _collector = _collector, None
    if collector is not None:
        collector.close()


def is_tracing() -> bool:
    """Return whether spans are sent."""
    return _collector is not None


def sampled_share() -> float:
    """Return the share of batches of sources with which a trace begins: 0 where no spans are sent."""
    if _collector is None:
        return 0.0
    try:
        return min(1.0, max(0.0, float(os.environ.get(SHARE_ENV, SHARE))))
    except ValueError:
        return SHARE


def send(span: TraceSpan) -> None:
    """Send a span, where spans are sent."""
    if _collector is not None:
        _collector.send(span)


@contextmanager
def inside(context: TraceContext | None) -> Iterator[None]:
    """Make a span the parent of calls that are made inside; None changes nothing."""
    if context is None or _collector is None:
        yield
        return
    token = _CURRENT.set(context)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def call(
    name: str,
    kind: Literal["SERVER", "CLIENT"],
    attributes: Attributes,
    *,
    parent: TraceContext | None = None,
) -> Iterator[TraceContext | None]:
    """Send a span of a call that is made inside; yield its context, None where there is no parent.

    ``parent``: that of a call that has come; by default the span that this is inside of.
    """
    parent = parent or _CURRENT.get()
    if parent is None or _collector is None:
        yield None
        return
    context, begun, error = TraceContext(parent.trace, secrets.token_hex(8)), time.time(), None
    try:
        with inside(context):
            yield context
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}".partition("\n")[0]
        raise
    finally:
        send(
            TraceSpan(
                name=name,
                context=context,
                parent=parent,
                begun=begun,
                ended=time.time(),
                kind=kind,
                attributes=attributes,
                error=error,
            )
        )
