"""A collector of OpenTelemetry: an HTTP server that decodes the spans that it is sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headwater.tracing.spans import ENDPOINTS, SHARE_ENV


@dataclass(frozen=True)
class Received:
    """A span as it came; ids are hexadecimal, times in seconds."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    begun: float
    ended: float
    kind: int
    error: str
    attributes: dict[str, Any]
    links: tuple[str, ...]


class Collector:
    """All spans that were received."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[Received] = []

    def take(self, body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {a.key: a.value.string_value for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                found = [_received(about["service.name"], span) for span in scope.spans]
                with self._lock:
                    self._spans += found

    @property
    def spans(self) -> list[Received]:
        with self._lock:
            return list(self._spans)


def _received(service: str, span: Any) -> Received:
    return Received(
        service=service,
        name=span.name,
        trace=span.trace_id.hex(),
        span=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        begun=span.start_time_unix_nano / 1e9,
        ended=span.end_time_unix_nano / 1e9,
        kind=span.kind,
        error=span.status.message if span.status.code == 2 else "",
        attributes={a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes},
        links=tuple(link.span_id.hex() for link in span.links),
    )


@contextmanager
def collecting() -> Iterator[tuple[Collector, dict[str, str]]]:
    """Yield a collector, and the environment of processes that send it all traces at once."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector, {ENDPOINTS[0]: url, SHARE_ENV: "1", "OTEL_BSP_SCHEDULE_DELAY": "200"}
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
