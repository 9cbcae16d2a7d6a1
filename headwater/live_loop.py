"""The use cases of a deployment that is watched: its promise, its metrics, decisions on it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from headwater import live
from headwater.adapt.calibrate import Compared, Learned, facts_of
from headwater.adapt.calibrate import compared as held_against
from headwater.adapt.keeping import sink_units
from headwater.adapt.model import predict
from headwater.adapt.promise import Promise
from headwater.adapt.window import (
    ChannelRates,
    HostRates,
    LinkRates,
    OperatorRates,
    UnitRates,
    Window,
    window,
)
from headwater.control.records import Decision, DecisionState, Event, Sample
from headwater.control.store import Store
from headwater.live import existing, store_place
from headwater.plan.model import DeploymentPlan
from headwater.profile import Profile

NOW = 60.0
"""Seconds over which rates and loads are shown."""
MOMENTS = 40
"""Stretches at most that a course is shown in."""


def promise(name: str, place: str | None = None) -> Promise | None:
    """Give what is promised of a deployment."""
    with existing(place) as store:
        store.deployment(name)
        return store.promise(name)


def set_promise(name: str, promise: Promise, place: str | None = None) -> None:
    """Promise something of a deployment, which has to be there."""
    with existing(place) as reader:
        reader.deployment(name)
    with closing(Store(store_place(place))) as store:
        store.set_promise(name, promise)


@dataclass(frozen=True)
class Moment:
    """A stretch of time, by its end: rows/s that were read from sources, latency (p95, s) at sinks."""

    at: float
    rows_per_s: float
    latency_s: float | None


@dataclass(frozen=True)
class Metrics:
    """What a deployment did: ``seen`` over the last ``NOW`` seconds, None where too little is known."""

    seen: Window | None
    course: tuple[Moment, ...]

    def to_data(self) -> dict[str, Any]:
        """Give the metrics as JSON-able data: rows and bytes per second, times in seconds, loads in cores."""
        seen = self.seen
        return {
            "since": seen and seen.since,
            "until": seen and seen.until,
            "units": [_unit(u) for u in seen.units.values()] if seen else [],
            "hosts": [_host(h) for h in seen.hosts.values()] if seen else [],
            "links": [_link(x) for x in seen.links.values()] if seen else [],
            "channels": [_channel(c) for c in seen.channels.values()] if seen else [],
            "course": [asdict(moment) for moment in self.course],
        }


def metrics(name: str, since_s: float, place: str | None = None) -> Metrics:
    """Give what a deployment did in the last seconds, by the samples that the controller keeps."""
    with existing(place) as store:
        store.deployment(name)
        plan, samples = store.base(name), store.samples(name, since=time.time() - since_s)
    sinks = sink_units(plan) if plan else ()
    return Metrics(window(samples, NOW), tuple(_course(samples, sinks)))


def _course(samples: Sequence[Sample], sinks: Sequence[str]) -> Iterator[Moment]:
    """Put samples together into few stretches, with the worst latency of each."""
    each = max(1, math.ceil((len(samples) - 1) / MOMENTS))
    for n in range(0, len(samples) - 1, each):
        part = samples[n : n + each + 1]
        found = window(part)
        if found is not None:
            read = sum(u.rows_in for u in found.units.values() if u.now.lag is None)
            ends = (u for s in part[1:] for u in s.progress.units if u.unit in sinks)
            worst = max((u.latency.p95 for u in ends if u.latency), default=None)
            yield Moment(found.until, read, worst)


def _unit(unit: UnitRates) -> dict[str, Any]:
    now, latency = unit.now, unit.now.latency
    return {
        "unit": now.unit,
        "zone": now.zone,
        "status": now.status,
        "rows_in_per_s": unit.rows_in,
        "rows_out_per_s": unit.rows_out,
        "selectivity": _share(unit.rows_out, unit.rows_in),
        "cpu": unit.cpu,
        "cpu_s_per_row": _share(unit.cpu, unit.rows_in),
        "batch_s": unit.batch_s,
        "busy": unit.busy,
        "state_rows": now.state_rows,
        "state_bytes": now.state_bytes,
        "lag": now.lag,
        "latency_p50_s": latency and latency.p50,
        "latency_p95_s": latency and latency.p95,
        "oldest_s": now.oldest_s,
        "operators": [row for name, rates in unit.operators.items() for row in _operator(unit, name, rates)],
    }


def _operator(unit: UnitRates, name: str, rates: OperatorRates) -> Iterator[dict[str, Any]]:
    """Give an operator, and what it takes from each location where it is read at several."""
    yield {
        "operator": name,
        "location": None,
        "rows_in_per_s": rates.rows_in,
        "rows_out_per_s": rates.rows_out,
        "selectivity": _share(rates.rows_out, rates.rows_in),
    }
    places = {place: rate for (one, place), rate in unit.taken.items() if one == name and place is not None}
    if len(places) > 1:
        unknown = {"rows_out_per_s": None, "selectivity": None}
        for place, rate in places.items():
            yield {"operator": name, "location": place, "rows_in_per_s": rate, **unknown}


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _host(host: HostRates) -> dict[str, Any]:
    return {
        "host": host.now.host,
        "zone": host.now.zone,
        "cores": host.cores,
        "spark": host.spark,
        "agent": host.agent,
        "others": host.others,
        "load": host.load,
        "memory": host.now.memory,
        "memory_free": host.now.memory_free,
    }


def _link(link: LinkRates) -> dict[str, Any]:
    now = link.now
    return {
        "link": now.link,
        "bytes_per_s": link.bytes,
        "came_bytes_per_s": now.bytes_per_s,
        "capacity_bytes_per_s": now.capacity,
        "delay_s": now.delay_s,
        "up": now.up,
        "since_s": now.since_s,
    }


def _channel(channel: ChannelRates) -> dict[str, Any]:
    return {
        "channel": channel.now.channel,
        "rows_per_s": channel.rows,
        "bytes_per_s": channel.bytes,
        "unread": channel.now.unread,
        "unread_bytes": channel.now.unread_bytes,
    }


def decisions(
    name: str | None = None,
    place: str | None = None,
    *,
    limit: int = 100,
    states: frozenset[DecisionState] | None = None,
) -> tuple[Decision, ...]:
    """Give the newest decisions on one deployment, or on all, the oldest first."""
    with existing(place) as store:
        if name is not None:
            store.deployment(name)
        return store.decisions(name, limit=limit, states=states)


def decision(number: int, place: str | None = None) -> Decision:
    """Give a decision."""
    with existing(place) as store:
        return store.decision(number)


def proposed(number: int, place: str | None = None) -> DeploymentPlan:
    """Give the plan that a decision proposes; raise DeploymentError where it cannot be wanted any more."""
    with existing(place) as store:
        return store.plan(store.proposed(number))


def approve(number: int, place: str | None = None) -> int:
    """Store what a decision proposes as what is wanted, and give its version.

    Raises DeploymentError where it is not proposed, or where something else runs or is wanted by now.
    """
    with existing(place) as reader:
        reader.decision(number)
    with closing(Store(store_place(place))) as store:
        return store.want_decided(None, number)


def reject(number: int, place: str | None = None) -> None:
    """Turn down what a decision proposes."""
    with existing(place) as reader:
        reader.decision(number)
    with closing(Store(store_place(place))) as store:
        store.settle_decision(None, number, "rejected")


def told(
    after: int | None, name: str | None = None, place: str | None = None, *, limit: int = 100
) -> tuple[int, tuple[Event, ...]]:
    """Give the first events after a number, of one deployment or all, and the number to go on with.

    Without a number nothing is told but where to go on: with what happens next.
    """
    with existing(place) as store:
        if after is None:
            return store.last_told(), ()
        found = store.told(after=after, name=name, limit=limit)
    return (found[-1].id if found else after), found


def compared(name: str, place: str | None = None) -> Mapping[str, tuple[Compared, ...]]:
    """Hold what the model says of a deployment now against what was measured in the last seconds.

    By ``latency`` (s, half of the rows, at units' ends), ``load`` (shares of hosts) and ``bytes`` (per
    second, over links); empty while too little was seen.
    """
    with existing(place) as store:
        store.deployment(name)
        kept, profile = store.learned(name), store.profile(name)
        plan = store.base(name)
        seen = window(store.samples(name, since=time.time() - live.RECENT))
    if plan is None or seen is None:
        return {"latency": (), "load": (), "bytes": ()}
    learned = Learned.from_data(kept) if kept else Learned(profile=profile or Profile(dataflow=name))
    return held_against(plan, predict(plan, facts_of(learned, plan, seen)), seen)
