"""Metrics of deployments for Prometheus, read from the store's newest reports at each scrape.

Names follow https://prometheus.io/docs/practices/naming: base units, counters end in ``_total``. Counters of a unit's
run, an operator or a host restart at zero with it, as Prometheus expects.
"""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from headwater.app.observe import counted
from headwater.app.view import Heartbeat, Status
from headwater.core.errors import HeadwaterError
from headwater.core.metrics import ChannelProgress, HostProgress, LinkProgress, UnitProgress
from headwater.serving.listening import listen, url_of
from headwater.serving.running import running
from headwater.tls.listener import ListenerTls

OPTION = "--metrics"
"""Option that turns it on."""


@contextmanager
def serving(store_url: str | None, host: str, port: int) -> Iterator[str]:
    """Serve /metrics of a store in a thread of this process, and return its address; port 0 takes a free one."""
    listening = listen(host, port, option=OPTION)
    url = url_of(listening, host)
    with serving_at(listening, store_url):
        yield f"{url}/metrics"


@contextmanager
def serving_at(
    listening: socket.socket, store_url: str | None, tls: ListenerTls | None = None
) -> Iterator[threading.Thread]:
    """Serve /metrics of a store at a socket, in a thread."""
    with running(_MetricsApp(store_url), listening, option=OPTION, tls=tls, lifespan="off", ws="none") as thread:
        yield thread


class _MetricsApp:
    """Answers each request with the metrics, one after the other: all but the first wait without a thread."""

    def __init__(self, store_url: str | None) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(StoreCollector(store_url))
        self._alone = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        asked = dict(scope["headers"])
        encoder, kind = choose_encoder(asked.get(b"accept", b"").decode("latin-1"))
        if scope["method"] not in ("GET", "HEAD"):
            status, text = HTTPStatus.METHOD_NOT_ALLOWED, b""
        else:
            async with self._alone:
                status, text = HTTPStatus.OK, await asyncio.to_thread(encoder, self._registry)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": int(status), "headers": headers})
        await send({"type": "http.response.body", "body": text})


class StoreCollector(Collector):
    """Collects the metrics of a store; while it is unreachable, only ``headwater_store_up``."""

    def __init__(self, store_url: str | None) -> None:
        self._place = store_url

    def collect(self) -> Iterator[Metric]:
        """Return all metric families."""
        families, up = _Families(), True
        try:
            for one, decided in counted(self._place):
                _deployment(families, one, decided)
        except (HeadwaterError, SQLAlchemyError):
            families, up = _Families(), False
        families.gauge("store_up", "Whether the store can be read.", up)
        yield from families.all()


class _Families:
    """Metric families by name. Unknown values are omitted; of equal samples the last one counts."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[type[CounterMetricFamily | GaugeMetricFamily], str]] = {}
        self._samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}

    def gauge(self, name: str, text: str, value: float | None, **labels: str) -> None:
        """Add a gauge."""
        self._add(GaugeMetricFamily, name, text, value, labels)

    def counter(self, name: str, text: str, value: float | None, **labels: str) -> None:
        """Add a counter; ``_total`` is appended to its name."""
        self._add(CounterMetricFamily, name, text, value, labels)

    def _add(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        text: str,
        value: float | None,
        labels: Mapping[str, str],
    ) -> None:
        self._kinds.setdefault(name, (kind, text))
        own = self._samples.setdefault(name, {})
        if value is not None:
            own[tuple(labels.items())] = float(value)

    def all(self) -> Iterator[Metric]:
        for name, (kind, text) in self._kinds.items():
            samples = self._samples[name]
            labels = [label for label, _ in next(iter(samples), ())]
            family = kind(f"headwater_{name}", text, labels=labels)
            for values, value in samples.items():
                family.add_metric([own for _, own in values], value)
            yield family


def _deployment(to: _Families, status: Status, decided: Mapping[str, int]) -> None:
    name, now = status.name, time.time()
    for zone in status.zones:
        _zone(to, name, zone, now)
    whole = status.progress
    for unit in whole.units:
        _unit(to, name, unit)
    for host in whole.hosts:
        _host(to, name, host)
    for link in whole.links:
        _link(to, name, link)
    for channel in whole.channels:
        _channel(to, name, channel)
    if status.slo is not None:
        limits = status.slo
        for of in ("max_latency", "max_bandwidth", "max_cost", "headroom"):
            value = getattr(limits, of)
            to.gauge(
                "slo_limit",
                "Limits of the SLO: seconds, bytes per second, resource usage, a share of cores.",
                value if value is not None and math.isfinite(value) else None,
                deployment=name,
                of=of,
            )
        to.gauge("slo_kept", "Whether the limits are kept now.", status.kept, deployment=name)
    for state, count in decided.items():
        to.gauge("decisions", "Decisions that are kept, by their state.", count, deployment=name, state=state)


def _zone(to: _Families, name: str, zone: Heartbeat, now: float) -> None:
    about = {"deployment": name, "zone": zone.zone}
    to.gauge("zone_report_age_seconds", "Age of a zone's last report.", max(0.0, now - zone.at), **about)
    to.gauge("zone_up", "Whether the zone is reachable.", zone.error is None, **about)


def _unit(to: _Families, name: str, unit: UnitProgress) -> None:
    about = {"deployment": name, "zone": unit.zone, "unit": unit.unit}
    to.gauge("unit_up", "Whether the unit runs.", unit.status == "running", **about)
    to.counter("unit_rows_in", "Rows that the unit read.", unit.rows_in, **about)
    to.counter("unit_rows_out", "Rows that the unit wrote.", unit.rows_out, **about)
    to.counter("dead_letters", "Malformed rows.", unit.dead_letters, **about)
    to.counter("unit_late_rows", "Rows that came too late for their window.", unit.late_rows, **about)
    to.gauge("unit_idle_inputs", "Locations and nodes that its event time does not wait for.", len(unit.idle), **about)
    to.counter("unit_batches", "Batches that were executed, in this run.", unit.batches, **about)
    to.counter("unit_busy_seconds", "Seconds that batches took, in this run.", unit.busy_s, **about)
    to.counter("unit_cpu_seconds", "Seconds of a core that batches took, in this run.", unit.cpu_s, **about)
    lag = None if unit.status == "unreachable" else unit.lag
    batch = None if unit.batch_ms is None else unit.batch_ms / 1e3
    to.gauge("unit_batch_seconds", "Median of the recent batches.", batch, **about)
    to.gauge("unit_state_rows", "Rows that it keeps as state.", unit.state_rows, **about)
    to.gauge("unit_state_bytes", "Bytes that it keeps as state.", unit.state_bytes, **about)
    to.gauge("unit_lag_rows", "Rows in its input channels that it has not read.", lag, **about)
    behind = None if unit.status == "unreachable" else unit.behind
    to.gauge("unit_topic_lag_rows", "Records of Kafka topics that its newest batch left unread.", behind, **about)
    to.gauge("unit_oldest_seconds", "Age of the oldest unread row.", unit.oldest_s, **about)
    if unit.latency is not None:
        for quantile, value in (("0.5", unit.latency.p50), ("0.95", unit.latency.p95)):
            text = "Recent time from ingestion to the commit at a sink."
            to.gauge("unit_latency_seconds", text, value, **about, quantile=quantile)
    for one in unit.operators:
        own = {**about, "operator": one.operator, "location": one.location or ""}
        to.counter("operator_rows_in", "Rows that the operator read, in this run.", one.rows_in, **own)
        to.counter("operator_rows_out", "Rows that the operator wrote, in this run.", one.rows_out, **own)


def _host(to: _Families, name: str, host: HostProgress) -> None:
    about = {"deployment": name, "host": host.host, "zone": host.zone}
    for of, value in (("spark", host.cpu_s), ("agent", host.agent_s), ("others", host.others_s)):
        text = "Seconds of a core that were used, since the zone's agent was started."
        to.counter("host_cpu_seconds", text, value, **about, of=of)
    to.gauge("host_cores", "Cores that may be used.", host.cores, **about)
    to.gauge("host_memory_bytes", "Memory.", host.memory or None, **about)
    to.gauge("host_agent_memory_bytes", "Memory of the agent.", host.agent_memory or None, **about)
    to.gauge("host_pss_bytes", "Memory of Spark and agent, shared pages divided.", host.pss, **about)
    to.gauge("host_memory_free_bytes", "Memory that is free.", host.memory_free, **about)


def _link(to: _Families, name: str, link: LinkProgress) -> None:
    about = {"deployment": name, "link": link.link}
    to.counter("link_rows", "Rows that were written to cross the link upwards.", link.rows, **about)
    to.counter("link_bytes", "Bytes that were written to cross the link upwards.", link.bytes, **about)
    to.gauge("link_up", "Whether the link's upper end reaches the lower one.", link.up, **about)
    to.gauge("link_delay_seconds", "One way: half of what a small request takes.", link.delay_s, **about)
    text = "Bytes per second received while more data was waiting."
    to.gauge("link_capacity_bytes_per_second", text, link.capacity, **about)


def _channel(to: _Families, name: str, channel: ChannelProgress) -> None:
    about = {"deployment": name, "channel": channel.channel}
    to.counter("channel_rows", "Rows that were written.", channel.rows, **about)
    to.counter("channel_bytes", "Bytes that were written.", channel.bytes, **about)
    to.gauge("channel_unread_rows", "Rows that are unread.", channel.unread, **about)
    to.gauge("channel_unread_bytes", "Bytes that are unread.", channel.unread_bytes, **about)
    to.counter("channel_dropped_rows", "Rows that were dropped when it was full.", channel.dropped, **about)
    to.counter("channel_lost_rows", "Rows that were lost to damage.", channel.lost, **about)
