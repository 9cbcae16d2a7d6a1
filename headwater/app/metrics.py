"""The metrics of a running deployment: rates, loads, latencies and backlogs of the last seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headwater.adapt.compliance import sink_units
from headwater.adapt.window import ChannelRates, HostRates, LinkRates, OperatorRates, UnitRates, window
from headwater.app.stores import existing
from headwater.control.records import Sample

NOW = 60.0
"""Seconds over which rates and loads are computed."""
MOMENTS = 40
"""Maximum number of moments in a course."""


@dataclass(frozen=True)
class Moment:
    """A period, by its end: rows/s read from sources, and p95 latency (s) at sinks."""

    at: float
    rows_per_s: float
    latency_s: float | None


@dataclass(frozen=True, kw_only=True)
class OperatorMetrics:
    """An operator; where it runs for several locations, also its input from each ``location``."""

    operator: str
    location: str | None
    rows_in_per_s: float | None
    rows_out_per_s: float | None
    selectivity: float | None


@dataclass(frozen=True, kw_only=True)
class UnitMetrics:
    """A unit: rows and processor time per second and per row, batches, state, lag and latency (s)."""

    unit: str
    zone: str
    status: str
    rows_in_per_s: float
    rows_out_per_s: float
    selectivity: float | None
    cpu: float | None
    cpu_s_per_row: float | None
    batch_s: float | None
    busy: float | None
    state_rows: int
    state_bytes: int
    lag: int | None
    latency_p50_s: float | None
    latency_p95_s: float | None
    oldest_s: float | None
    operators: tuple[OperatorMetrics, ...]


@dataclass(frozen=True, kw_only=True)
class HostMetrics:
    """A host: its cores, and those that Spark, the agent and other processes use; memory in bytes."""

    host: str
    zone: str
    cores: float
    spark: float
    agent: float
    others: float
    load: float
    memory: int | None
    memory_free: int | None


@dataclass(frozen=True, kw_only=True)
class LinkMetrics:
    """A link: bytes/s written for it and received over it, its capacity and delay, whether it is up."""

    link: str
    bytes_per_s: float
    came_bytes_per_s: float | None
    capacity_bytes_per_s: float | None
    delay_s: float | None
    up: bool | None
    since_s: float | None


@dataclass(frozen=True, kw_only=True)
class ChannelMetrics:
    """A channel: its write rate, and its unread rows."""

    channel: str
    rows_per_s: float
    bytes_per_s: float
    unread: int
    unread_bytes: int


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """A deployment's metrics over the last ``NOW`` seconds, and their course over the requested period.

    ``since`` and ``until`` (seconds since 1970) are None where too few samples are known.
    """

    since: float | None
    until: float | None
    units: tuple[UnitMetrics, ...]
    hosts: tuple[HostMetrics, ...]
    links: tuple[LinkMetrics, ...]
    channels: tuple[ChannelMetrics, ...]
    course: tuple[Moment, ...]


def metrics_of(name: str, since_s: float, store_url: str | None = None) -> Metrics:
    """Return the metrics of a deployment's last seconds, from the controller's samples."""
    with existing(store_url) as store:
        store.deployment(name)
        plan, samples = store.active_plan(name), store.samples(name, since=time.time() - since_s)
    sinks = sink_units(plan) if plan else ()
    seen = window(samples, NOW)
    return Metrics(
        since=seen.since if seen else None,
        until=seen.until if seen else None,
        units=tuple(map(_unit, seen.units.values())) if seen else (),
        hosts=tuple(map(_host, seen.hosts.values())) if seen else (),
        links=tuple(map(_link, seen.links.values())) if seen else (),
        channels=tuple(map(_channel, seen.channels.values())) if seen else (),
        course=tuple(_course(samples, sinks)),
    )


def _course(samples: Sequence[Sample], sinks: Sequence[str]) -> Iterator[Moment]:
    """Merge samples into few moments, with the worst latency of each."""
    each = max(1, math.ceil((len(samples) - 1) / MOMENTS))
    for n in range(0, len(samples) - 1, each):
        part = samples[n : n + each + 1]
        found = window(part)
        if found is not None:
            read = sum(u.rows_in for u in found.units.values() if u.now.lag is None)
            ends = (u for s in part[1:] for u in s.progress.units if u.unit in sinks)
            worst = max((u.latency.p95 for u in ends if u.latency), default=None)
            yield Moment(found.until, read, worst)


def _unit(unit: UnitRates) -> UnitMetrics:
    now, latency = unit.now, unit.now.latency
    return UnitMetrics(
        unit=now.unit,
        zone=now.zone,
        status=now.status,
        rows_in_per_s=unit.rows_in,
        rows_out_per_s=unit.rows_out,
        selectivity=_share(unit.rows_out, unit.rows_in),
        cpu=unit.cpu,
        cpu_s_per_row=_share(unit.cpu, unit.rows_in),
        batch_s=unit.batch_s,
        busy=unit.busy,
        state_rows=now.state_rows,
        state_bytes=now.state_bytes,
        lag=now.unread,
        latency_p50_s=latency.p50 if latency else None,
        latency_p95_s=latency.p95 if latency else None,
        oldest_s=now.oldest_s,
        operators=tuple(m for name, rates in unit.operators.items() for m in _operator(unit, name, rates)),
    )


def _operator(unit: UnitRates, name: str, rates: OperatorRates) -> Iterator[OperatorMetrics]:
    """Return an operator, and its input from each location where it runs for several."""
    yield OperatorMetrics(
        operator=name,
        location=None,
        rows_in_per_s=rates.rows_in,
        rows_out_per_s=rates.rows_out,
        selectivity=_share(rates.rows_out, rates.rows_in),
    )
    places = {place: rate for (one, place), rate in unit.taken.items() if one == name and place is not None}
    for place, rate in places.items() if len(places) > 1 else ():
        yield OperatorMetrics(operator=name, location=place, rows_in_per_s=rate, rows_out_per_s=None, selectivity=None)


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _host(host: HostRates) -> HostMetrics:
    return HostMetrics(
        host=host.now.host,
        zone=host.now.zone,
        cores=host.cores,
        spark=host.spark,
        agent=host.agent,
        others=host.others,
        load=host.load,
        memory=host.now.memory,
        memory_free=host.now.memory_free,
    )


def _link(link: LinkRates) -> LinkMetrics:
    now = link.now
    return LinkMetrics(
        link=now.link,
        bytes_per_s=link.bytes,
        came_bytes_per_s=now.bytes_per_s,
        capacity_bytes_per_s=now.capacity,
        delay_s=now.delay_s,
        up=now.up,
        since_s=now.since_s,
    )


def _channel(channel: ChannelRates) -> ChannelMetrics:
    return ChannelMetrics(
        channel=channel.now.channel,
        rows_per_s=channel.rows,
        bytes_per_s=channel.bytes,
        unread=channel.now.unread,
        unread_bytes=channel.now.unread_bytes,
    )
