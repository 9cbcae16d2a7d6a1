"""Rates, loads and latency of a deployment in a span of time, from samples of its counters. Pure.

Counters of a unit's run restart with it, those of a host with its agent: a counter below its previous value counts
from 0. Rates are per second of wall time, loads in cores, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

from headwater.core.metrics import ChannelProgress, HostProgress, LinkProgress, Progress, UnitProgress, as_sent
from headwater.dataflow.sources import Source
from headwater.plan.model import DeploymentPlan

TRIGGER = 0.5
"""Default seconds from one batch to the next."""
_IDLE = 2.5
"""Seconds without a batch and without lag after which a unit counts as idle."""


class Observed(Protocol):
    """The reports of all zones at one time (seconds since 1970)."""

    @property
    def at(self) -> float: ...

    @property
    def progress(self) -> Progress: ...


@dataclass(frozen=True, kw_only=True)
class OperatorRates:
    """Rows/s of an operator in a unit; None if not counted."""

    rows_in: float | None
    rows_out: float | None


@dataclass(frozen=True, kw_only=True)
class UnitRates:
    """A unit: ``batch_s`` is the mean duration of its batches, ``busy`` the share of time spent on them.

    ``cpu``: cores. ``taken``: rows/s into each operator and, for a source read at several locations, the location.
    ``now``: the newest part of it.
    """

    rows_in: float
    rows_out: float
    batches: float
    batch_s: float | None
    busy: float
    cpu: float
    operators: Mapping[str, OperatorRates]
    taken: Mapping[tuple[str, str | None], float]
    steady: bool
    """Whether it ran all the time, without a restart."""
    now: UnitProgress


@dataclass(frozen=True, kw_only=True)
class HostRates:
    """A host in cores: available ones, and the use by Spark, the agent and everything else."""

    cores: float
    spark: float
    agent: float
    others: float
    now: HostProgress

    @property
    def load(self) -> float:
        """The used share of its cores."""
        return (self.spark + self.agent + self.others) / self.cores


@dataclass(frozen=True, kw_only=True)
class ChannelRates:
    """Rows/s and bytes/s written to a channel; the bytes as they cross links, if it crosses any."""

    rows: float
    bytes: float
    now: ChannelProgress

    @property
    def row_bytes(self) -> float | None:
        """Bytes of a row as it crosses links, or is stored, averaged since the start."""
        return as_sent(self.now.bytes, self.now.sent_share) / self.now.rows if self.now.rows else None


@dataclass(frozen=True, kw_only=True)
class LinkRates:
    """Rows/s and bytes/s written for transfer over a link; the bytes as they cross it."""

    rows: float
    bytes: float
    now: LinkProgress


@dataclass(frozen=True)
class Window:
    """Measurements between two times."""

    since: float
    until: float
    units: Mapping[str, UnitRates]
    hosts: Mapping[tuple[str, str], HostRates]
    """By zone and name."""
    channels: Mapping[str, ChannelRates]
    links: Mapping[str, LinkRates]

    @property
    def seconds(self) -> float:
        return self.until - self.since

    def rates(self, plan: DeploymentPlan) -> dict[str, dict[str, float]]:
        """Return the rows/s of each source by location; ``*`` stands for all if it is read once for them."""
        found: dict[str, dict[str, float]] = {}
        for unit in plan.units:
            if unit.id not in self.units:
                continue
            for (name, location), rate in self.units[unit.id].taken.items():
                if name not in plan.dataflow:
                    continue  # of an older plan
                source = plan.dataflow[name]
                if not isinstance(source, Source):
                    continue
                place = location or (unit.locations[0] if source.per_location else "*")
                own = found.setdefault(name, {})
                own[place] = own.get(place, 0.0) + rate
        return found

    def latency(self, units: Iterable[str]) -> tuple[float | None, float | None]:
        """Return p50 and p95 of the slowest of some units; None without output."""
        known = [u.now.latency for id_ in units if (u := self.units.get(id_)) and u.now.latency]
        if not known:
            return None, None
        return max(x.p50 for x in known), max(x.p95 for x in known)

    def oldest(self) -> float:
        """Return the age of the oldest waiting row, 0 if there is none."""
        at_units = [u.now.oldest_s or 0.0 for u in self.units.values()]
        return max([*at_units, *(c.now.oldest_s or 0.0 for c in self.channels.values())], default=0.0)

    @property
    def trigger(self) -> float:
        """Return the seconds from one batch to the next, as set for the units."""
        return max((u.now.trigger_s or TRIGGER for u in self.units.values()), default=TRIGGER)


def window(samples: Sequence[Observed], seconds: float | None = None) -> Window | None:
    """Return the window of the newest ``seconds`` of samples (oldest first), or of all; None for fewer than two."""
    every = samples
    if samples and seconds is not None:
        first = samples[-1].at - seconds
        older = [n for n, s in enumerate(samples) if s.at <= first]
        samples = samples[older[-1] if older else 0 :]
    if len(samples) < 2 or samples[-1].at <= samples[0].at:
        return None
    begun, ended = samples[0].at, samples[-1].at
    span = ended - begun
    units = _series(samples, lambda p: p.units, lambda u: u.unit)
    before = _series(every, lambda p: p.units, lambda u: u.unit)
    hosts = _series(samples, lambda p: p.hosts, lambda h: (h.zone, h.host))
    channels = _series(samples, lambda p: p.channels, lambda c: c.channel)
    links = _series(samples, lambda p: p.links, lambda x: x.link)
    return Window(
        begun,
        ended,
        {
            id_: _unit(seen, span, _came(before[id_], ended, span), whole=len(seen) == len(samples))
            for id_, seen in units.items()
        },
        {id_: _host(seen) for id_, seen in hosts.items()},
        {
            id_: ChannelRates(
                rows=_grown(c.rows for c in seen) / span,
                bytes=as_sent(_grown(c.bytes for c in seen) / span, seen[-1].sent_share),
                now=seen[-1],
            )
            for id_, seen in channels.items()
        },
        {
            id_: LinkRates(
                rows=_grown(x.rows for x in seen) / span,
                bytes=as_sent(_grown(x.bytes for x in seen) / span, seen[-1].sent_share),
                now=seen[-1],
            )
            for id_, seen in links.items()
        },
    )


_T = TypeVar("_T")
_K = TypeVar("_K")


def _series(
    samples: Sequence[Observed], of: Callable[[Progress], Iterable[_T]], key: Callable[[_T], _K]
) -> dict[_K, list[_T]]:
    """Return, for each thing in the last sample, its values from sample to sample."""
    found: dict[_K, list[_T]] = {key(one): [] for one in of(samples[-1].progress)}
    for sample in samples:
        for one in of(sample.progress):
            if key(one) in found:
                found[key(one)].append(one)
    return found


def _grown(counts: Iterable[float]) -> float:
    """Return the growth of a counter, across restarts."""
    return sum(b - a if b >= a else b for a, b in pairwise(counts))


def _came(seen: Sequence[UnitProgress], until: float, span: float) -> dict[tuple[str, str | None], float]:
    """Return the rows/s into each operator in about ``span`` seconds.

    A batch takes the rows since the previous one began, and reports them when it ends: rows are counted between the
    starts of two batches of one run. Returns nothing until there are two.
    """
    last = seen[-1]
    own = [u for u in seen if u.run == last.run and u.began is not None]
    begins = sorted({u.began for u in own if u.began is not None})
    if last.began is None or len(begins) < 2:
        return {}
    idle = until - last.began > max(_IDLE, 2 * (begins[-1] - begins[-2])) and last.oldest_s is None
    end = until if idle else last.began
    first = max((b for b in begins if b <= end - 0.99 * span), default=begins[0])
    start = next(u for u in own if u.began == first)
    counts = {(o.operator, o.location): o.rows_in for o in start.operators}
    found: dict[tuple[str, str | None], float] = {}
    for o in last.operators:
        counted = counts.get((o.operator, o.location))
        if counted is not None and o.rows_in is not None:
            found[o.operator, o.location] = max(0, o.rows_in - counted) / (end - first)
    return found


def _unit(
    seen: Sequence[UnitProgress], span: float, came: Mapping[tuple[str, str | None], float], *, whole: bool
) -> UnitRates:
    batches = _grown(u.batches for u in seen)
    busy = _grown(u.busy_s for u in seen)
    operators: dict[str, list[tuple[int | None, int | None]]] = {}
    taken: dict[tuple[str, str | None], list[int]] = {}
    for one in seen:
        both: dict[str, tuple[int | None, int | None]] = {}
        for o in one.operators:
            before = both.get(o.operator, (0, 0))
            both[o.operator] = _plus(before[0], o.rows_in), _plus(before[1], o.rows_out)
            if o.rows_in is not None:
                taken.setdefault((o.operator, o.location), []).append(o.rows_in)
        for id_, counts in both.items():
            operators.setdefault(id_, []).append(counts)
    return UnitRates(
        rows_in=_grown(u.rows_in for u in seen) / span,
        rows_out=_grown(u.rows_out for u in seen) / span,
        batches=batches / span,
        batch_s=busy / batches if batches else None,
        busy=busy / span,
        cpu=_grown(u.cpu_s for u in seen) / span,
        operators={
            id_: OperatorRates(
                rows_in=_rate([a for a, _ in counts], span), rows_out=_rate([b for _, b in counts], span)
            )
            for id_, counts in operators.items()
        },
        taken={**{key: _grown(counts) / span for key, counts in taken.items()}, **came},
        steady=whole and len({u.run for u in seen}) == 1 and all(u.status == "running" for u in seen),
        now=seen[-1],
    )


def _plus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _rate(counts: Sequence[int | None], span: float) -> float | None:
    """Return a counter's rate; None if it is not reported. Before its first batch, a run has no counter."""
    return None if counts[-1] is None else _grown(c or 0 for c in counts) / span


def _host(seen: Sequence[HostProgress]) -> HostRates:
    """Return a host's rates by the agent's own clock: its samples may be of another age than ours."""
    span = max(_grown(h.seconds for h in seen), 1e-9)
    return HostRates(
        cores=max(seen[-1].cores, 1e-9),
        spark=_grown(h.cpu_s for h in seen) / span,
        agent=_grown(h.agent_s for h in seen) / span,
        others=_grown(h.others_s for h in seen) / span,
        now=seen[-1],
    )
