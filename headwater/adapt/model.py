"""Performance of a plan at given rates, with units that process rows in batches: latency, loads, bytes. Pure.

A unit starts a batch every ``trigger``, or at the next trigger after the previous batch has ended. A row waits for
the next batch, half a period on average, and is output when that batch ends; a row that waits for event time is
output one batch later. A batch takes a fixed time, more with state, plus its rows' work, all stretched by the
other load of its host (processor sharing: S / (1 − ρ)). Times in seconds, work in core seconds, sizes in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headwater.continuum.model import Host
from headwater.dataflow.operators import Operator
from headwater.dataflow.sinks import Sink
from headwater.dataflow.sources import Source
from headwater.dataflow.stateful import Aggregate, CountWindow, Join, Scan, updates
from headwater.plan.model import Channel, DeploymentPlan, Unit
from headwater.plan.onepass import one_pass
from headwater.plan.profile import Known, Profile
from headwater.plan.realtime import real_time_of

HostKey = tuple[str, str]
"""Zone and name of a host."""
_ROUNDS = 30
_FULL = 0.98
"""Load of a host beyond which batches take for ever."""
_AT_ONCE = 0.01
"""Seconds of a row through a unit in real-time mode: 9 ms were measured (benchmarks.realtime)."""
_TAIL = 1.645
"""Standard deviations from mean to 95th percentile of a sum of many waits."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of batches apart from their rows, as learned so far; the defaults are of one slow core.

    ``batch_s``: seconds of a batch without rows; ``state_s``: extra for each stateful operator. ``batch_cpu`` and
    ``state_cpu``: the same in core seconds. ``hop_s``: from a commit until a reader elsewhere can see it, without the
    link's own time. ``row``: for each operator the factor on its cost in the profile. ``own``: measured seconds of a
    batch without rows, by the computation of the unit; ``own_cpu``: the same in core seconds, for recent units.
    ``latency``: the factor on all waits.
    """

    batch_s: float = 0.25
    state_s: float = 0.1
    batch_cpu: float = 0.15
    state_cpu: float = 0.08
    hop_s: float = 0.1
    row: Mapping[str, float] = field(default_factory=dict)
    own: Mapping[str, float] = field(default_factory=dict)
    own_cpu: Mapping[str, float] = field(default_factory=dict)
    latency: float = 1.0

    def fixed(self, plan: DeploymentPlan, unit: Unit) -> float:
        """Return the seconds of a unit's batch without rows."""
        return self.own.get(unit.key, self.batch_s + self.state_s * stateful_of(plan, unit))

    def fixed_cpu(self, plan: DeploymentPlan, unit: Unit) -> float:
        """Return the core seconds of a unit's batch without rows."""
        return self.own_cpu.get(unit.key, self.batch_cpu + self.state_cpu * stateful_of(plan, unit))


def stateful_of(plan: DeploymentPlan, unit: Unit) -> int:
    """Count a unit's stateful operators as Spark does: merged scans are one."""
    count = sum(plan.dataflow[o].stateful for o in unit.operators)
    served = one_pass(plan.dataflow, unit.operators, unit.outputs)
    return count - max(0, len(served.scans) - 1) if served is not None else count


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Input of a prediction.

    ``profile``: operators' costs and selectivities, and the sources' rates; ``written``: those of a rewritten dataflow
    as it was written, as far as they were known before. ``others``: cores of a host used by
    others; ``cores``: available cores, if measured. ``capacity`` (bytes/s) and ``delay`` of links: measured, else
    from the continuum; ``taken``: bytes/s of other dataflows.
    """

    profile: Profile
    costs: Costs = field(default_factory=Costs)
    others: Mapping[HostKey, float] = field(default_factory=dict)
    cores: Mapping[HostKey, float] = field(default_factory=dict)
    capacity: Mapping[str, float] = field(default_factory=dict)
    delay: Mapping[str, float] = field(default_factory=dict)
    taken: Mapping[str, float] = field(default_factory=dict)
    trigger: float = 0.5
    written: Profile | None = None


@dataclass(frozen=True, kw_only=True)
class UnitPrediction:
    """Prediction for a unit: rows/s in, seconds between two batches and of one, cores used."""

    rows_in: float
    period: float
    batch_s: float
    cpu: float


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Prediction for a plan. ``latency``: p50 and p95 at the slowest sink; ∞ if a part does not keep up.

    ``load``: the used share of each host's cores, others' use included. ``work``: the part of it for rows and others;
    the rest, the fixed cost of batches, shrinks as batches get longer. ``links``: bytes/s by name.
    ``bandwidth``: bytes/s into the top layer. ``cores``: used by the rows of all units. ``reaches``: (p50, p95) at
    each unit's output.
    """

    p50: float
    p95: float
    units: Mapping[str, UnitPrediction]
    load: Mapping[HostKey, float]
    work: Mapping[HostKey, float]
    links: Mapping[str, float]
    bandwidth: float
    cores: float
    reaches: Mapping[str, tuple[float, float]]


def host_of(plan: DeploymentPlan, unit: Unit) -> Host:
    """Return the representative host of the node that runs a unit."""
    return plan.continuum.node(unit.node).host


def waits_for_time(operator: Operator) -> bool:
    """Return whether an operator outputs rows only after event time has passed them."""
    match operator:
        case Aggregate() | Scan() | CountWindow():
            return not updates(operator)
        case Join():
            return operator.how != "inner"
    return False


def predict(plan: DeploymentPlan, facts: Facts) -> Predicted:
    """Predict the performance of a plan."""
    return _Prediction(plan, facts).predicted()


def rows_of(plan: DeploymentPlan, known: Known) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
    """Return the rows/s into each operator of a unit, and of each channel, in steady state."""
    taken: dict[tuple[str, str], float] = {}
    channels: dict[str, float] = {}
    for unit in plan.units:
        given: dict[str, float] = {}
        read: dict[str, float] = {}
        for channel in plan.inputs(unit):
            rows = channels[channel.id] * _share_of(plan, unit, channel)
            read[channel.operator] = read.get(channel.operator, 0.0) + rows
        share = 1.0 if unit.part is None else 1.0 / unit.part.count
        for id_ in unit.operators:
            operator = plan.dataflow[id_]
            if isinstance(operator, Source):
                places: Sequence[str | None] = unit.locations if operator.per_location else (None,)
                rows = sum(known.rate(operator, place) for place in places)
                taken[unit.id, id_] = given[id_] = rows
                continue
            rows = sum(given[i] if i in given else read.get(i, 0.0) * share for i in operator.inputs)
            taken[unit.id, id_] = rows
            given[id_] = rows * known.operator(id_).selectivity
        for channel in plan.outputs(unit):
            channels[channel.id] = given[channel.operator]
    return taken, channels


def row_factors(plan: DeploymentPlan, facts: Facts) -> dict[str, float]:
    """Return by operator the factor on its cost of rows: for all of a unit the mean, weighted by their work.

    Only the processor time of a whole unit is measured. Where the rows of its operators grow alike, the fit cannot tell
    which of them costs more; the profile can.
    """
    known = Known(plan.dataflow, facts.profile)
    taken, _ = rows_of(plan, known)
    sums: dict[str, tuple[float, float]] = {}
    for unit in plan.units:
        cost = {id_: known.operator(id_).cpu_s for id_ in unit.operators}
        work = {id_: taken[unit.id, id_] * one for id_, one in cost.items()}
        work = work if any(work.values()) else cost  # without rows, as if each took one
        whole = math.fsum(work.values())
        fitted = math.fsum(amount * facts.costs.row.get(id_, 1.0) for id_, amount in work.items())
        for id_, amount in work.items():
            before, weight = sums.get(id_, (0.0, 0.0))
            sums[id_] = before + amount * (fitted / whole if whole else 1.0), weight + amount
    return {id_: amount / weight if weight else facts.costs.row.get(id_, 1.0) for id_, (amount, weight) in sums.items()}


def _share_of(plan: DeploymentPlan, unit: Unit, channel: Channel) -> float:
    """Return the share of a channel's rows that a reader takes, if those of all locations are equally many."""
    if unit.id not in channel.located:
        return 1.0
    written = plan.unit(channel.producer).locations
    return len(set(written) & set(unit.locations)) / len(written)


class _Prediction:
    """Intermediate results of one prediction."""

    def __init__(self, plan: DeploymentPlan, facts: Facts) -> None:
        self._plan, self._facts = plan, facts
        self._known = Known(plan.dataflow, facts.profile)
        self._taken, self._channels = rows_of(plan, self._known)
        self._hosts = {u.id: host_of(plan, u) for u in plan.units}

    def predicted(self) -> Predicted:
        units = self._batches()
        load: dict[HostKey, float] = {}
        for unit in self._plan.units:
            host = self._hosts[unit.id]
            key = (host.zone, host.name)
            load.setdefault(key, self._facts.others.get(key, 0.0) / self._cores(host))
            load[key] += units[unit.id].cpu / self._cores(host)
        work = {(h.zone, h.name): self._row_work(h) / self._cores(h) for h in self._hosts.values()}
        links = self._links()
        reaches = self._reaches(units, links)
        ends = [
            reaches[u.id] for u in self._plan.units if any(isinstance(self._plan.dataflow[o], Sink) for o in u.outputs)
        ]
        top = self._plan.continuum.layers[-1].name
        into_top = {
            x.name
            for x in self._plan.continuum.links
            if self._plan.continuum.zone(x.upper).layer == top and self._plan.continuum.zone(x.lower).layer != top
        }
        return Predicted(
            p50=max((p50 for p50, _ in ends), default=0.0),
            p95=max((p95 for _, p95 in ends), default=0.0),
            units=units,
            load=load,
            work=work,
            links=links,
            bandwidth=sum(bytes_ for name, bytes_ in links.items() if name in into_top),
            cores=math.fsum(self.work(u) for u in self._plan.units),
            reaches=reaches,
        )

    def _cores(self, host: Host) -> float:
        measured = self._facts.cores.get((host.zone, host.name))
        if measured is not None:
            return measured
        said = host.capabilities.get("n_cpu", 1)
        return max(1.0, float(said)) if isinstance(said, (int, float)) else 1.0

    # ------------------------------------------------------------ batches

    def work(self, unit: Unit) -> float:
        """Return the core seconds per second of a unit's rows."""
        factors = self._facts.costs.row
        return sum(
            self._taken[unit.id, id_] * self._known.operator(id_).cpu_s * factors.get(id_, 1.0)
            for id_ in unit.operators
        )

    def _batches(self) -> dict[str, UnitPrediction]:
        """Solve for periods and loads together: each unit is slowed down by the others of its host."""
        costs, trigger, units = self._facts.costs, self._facts.trigger, self._plan.units
        numbers = range(len(units))
        hosts = [self._hosts[u.id] for u in units]
        keys = [(h.zone, h.name) for h in hosts]
        cores = [self._cores(h) for h in hosts]
        others = [self._facts.others.get(key, 0.0) for key in keys]
        work = [self.work(u) for u in units]
        fixed = [costs.fixed(self._plan, u) for u in units]
        fixed_cpu = [costs.fixed_cpu(self._plan, u) for u in units]
        lasting = [real_time_of(self._plan.dataflow, u.operators) for u in units]
        period = [lasts or max(trigger, x) for lasts, x in zip(lasting, fixed, strict=True)]
        cpu, batch = list(work), list(fixed)
        for _ in range(_ROUNDS):
            before = list(period)
            cpu = [work[n] + fixed_cpu[n] / period[n] for n in numbers]
            taken = dict.fromkeys(keys, 0.0)
            for n in numbers:
                taken[keys[n]] += cpu[n]
            for n in numbers:
                if lasting[n]:
                    continue
                beside = others[n] + taken[keys[n]] - cpu[n]
                speed = max(1.0 - _FULL, 1.0 - beside / cores[n])
                batch[n] = (fixed[n] + work[n] / cores[n] * period[n]) / speed
                beats = max(1, math.ceil(min(batch[n], 1e6) / trigger - 1e-9))
                # Half a step each time: the rounding to triggers would else make it oscillate.
                period[n] = (period[n] + beats * trigger) / 2
            if all(abs(a - b) < 1e-3 * b for a, b in zip(before, period, strict=True)):
                break
        return {
            u.id: UnitPrediction(
                rows_in=sum(self._taken[u.id, o] for o in _entrances(self._plan, u)),
                period=0.0 if lasting[n] else period[n],
                batch_s=_AT_ONCE if lasting[n] else batch[n],
                cpu=cpu[n],
            )
            for n, u in enumerate(units)
        }

    def _keeps_up(self, unit: Unit) -> bool:
        """Return whether a unit's host can process all rows, however few batches remain possible."""
        host = self._hosts[unit.id]
        return self._row_work(host) < _FULL * self._cores(host)

    def _row_work(self, host: Host) -> float:
        """Return the cores of a host used by rows, and by others."""
        rows = sum(self.work(u) for u in self._plan.units if self._hosts[u.id] is host)
        return rows + self._facts.others.get((host.zone, host.name), 0.0)

    # ------------------------------------------------------------ paths

    def _links(self) -> dict[str, float]:
        found = dict(self._facts.taken)
        for channel in self._plan.channels:
            for link in channel.links:
                found[link] = found.get(link, 0.0) + self._bytes(channel)
        return found

    def _bytes(self, channel: Channel) -> float:
        return self._channels[channel.id] * self._known.bytes_out(channel.operator)

    def _reaches(
        self, units: Mapping[str, UnitPrediction], links: Mapping[str, float]
    ) -> dict[str, tuple[float, float]]:
        """Sum up waits along the slowest path to each unit's output: means and variances, then p50 and p95."""
        found: dict[str, tuple[float, float, float]] = {}  # mean, variance, most
        for unit in self._plan.units:
            own = units[unit.id]
            late = any(waits_for_time(self._plan.dataflow[o]) for o in unit.operators)
            before = [
                _after(found[c.producer], *self._over(c, links, units[c.producer].period))
                for c in self._plan.inputs(unit)
            ]
            mean, variance, most = max(before, default=(0.0, 0.0, 0.0))
            if not self._keeps_up(unit):
                mean = most = math.inf
            extra = own.period if late else 0.0
            found[unit.id] = (
                mean + own.period / 2 + own.batch_s + extra,
                variance + own.period**2 / 12,
                most + own.period + own.batch_s + extra,
            )
        times = self._facts.costs.latency
        return {id_: (m * times, min(most, m + _TAIL * math.sqrt(v)) * times) for id_, (m, v, most) in found.items()}

    def _over(self, channel: Channel, links: Mapping[str, float], period: float) -> tuple[float, float]:
        """Return the mean seconds of a batch's rows over a channel's links, and the maximum."""
        if not channel.links:
            return 0.0, 0.0
        seconds = self._facts.costs.hop_s
        for link in map(self._plan.continuum.link, channel.links):
            declared = math.inf if link.bandwidth is None else link.bandwidth / 8
            capacity = self._facts.capacity.get(link.name, declared)
            if links[link.name] >= _FULL * capacity:
                return math.inf, math.inf
            share = 1.0 - (links[link.name] - self._bytes(channel)) / capacity
            seconds += self._facts.delay.get(link.name, link.latency)
            seconds += self._bytes(channel) * period / (capacity * share)
        return seconds, seconds


def _after(before: tuple[float, float, float], mean: float, most: float) -> tuple[float, float, float]:
    return before[0] + mean, before[1], before[2] + most


def _entrances(plan: DeploymentPlan, unit: Unit) -> list[str]:
    """Return the operators through which rows enter a unit."""
    return [
        id_
        for id_ in unit.operators
        if isinstance(plan.dataflow[id_], Source) or any(i not in unit.operators for i in plan.dataflow[id_].inputs)
    ]
