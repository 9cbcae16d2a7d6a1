"""Fit what the model assumes to what was measured. Pure.

Two things are learned from windows in which nothing was changed. What operators take and give is measured for
itself. What a batch and a row cost is fitted by least squares to the units' cores and batch times, drawn
towards what was believed before: what a measurement says nothing about stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from pydantic import computed_field

from headwater.adapt.model import Costs, Facts, HostKey, Predicted, host_of, predict, rows_of, stateful_of
from headwater.adapt.window import Window
from headwater.core.jsonform import Unbounded
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.sources import Source
from headwater.placement.queueing import Floats
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.profile import Known, OperatorProfile, Profile

_WEIGHT = 0.5
"""Of a new measurement beside what was known."""
_LEAST_ROWS = 20.0
"""Rows in a window below which a share or a size says nothing."""
_KEPT = 120
"""Observations that costs are fitted to."""
_FADES, _FADED = 0.93, 0.02
"""What is left of an observation's weight after each window, and below which it is forgotten."""
_PULL = 0.15
"""How much what was believed counts beside one observation of a whole core."""
_SHORTEST, _LONGEST = 0.3, 3.0
"""By what waits may be multiplied; what differs by more has another cause."""
_MOST, _LEAST = 50.0, 0.02
"""By how much costs may differ from the profile."""
_UNLIKE = 2.0
"""By how much one unit's batches may cost more, or less, than units' batches usually do."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A unit in one window: cores and seconds of a batch, and what they are to be explained by.

    ``work``: for each operator the cores that its rows take by the profile. ``speed``: the share of its host
    that others left to it.
    """

    unit: str
    cpu: float
    batch_s: float
    batches: float
    stateful: int
    speed: float
    work: Mapping[str, float]
    weight: float = 1.0
    """How much it counts: less with every newer one, for what code costs changes while Java warms up."""

    @property
    def alike(self) -> tuple[Any, ...]:
        """What is equal for observations that tell the same: the newest of them is enough."""
        return self.unit, *(round(math.log(max(w, 1e-6)) / math.log(1.3)) for w in self.work.values())


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What is known of a deployment by now: the profile as measured, costs, and what they were fitted to."""

    profile: Profile
    costs: Costs = field(default_factory=Costs)
    seen: tuple[Observation, ...] = ()


def learn(before: Learned, plan: DeploymentPlan, seen: Window) -> Learned:
    """Take a window in: what operators give, what batches and rows cost."""
    profile = _measured(narrowed(before.profile, plan.dataflow), plan, seen)
    facts = facts_of(replace(before, profile=profile), plan, seen)
    observed = [
        o for unit in plan.units if unit.id in seen.units and (o := _observation(plan, unit, seen, facts)) is not None
    ]
    if not observed:
        return replace(before, profile=profile)
    older = (replace(o, weight=o.weight * _FADES) for o in before.seen)
    fresh = {o.alike: o for o in (*older, *observed) if o.weight > _FADED}
    kept = tuple(fresh.values())[-_KEPT:]
    costs = _fitted(before.costs, plan, observed, kept)
    found = Learned(profile=profile, costs=costs, seen=kept)
    return replace(found, costs=replace(costs, latency=_stretched(found, plan, seen)))


def _stretched(learned: Learned, plan: DeploymentPlan, seen: Window) -> float:
    """Give by what waits are to be multiplied, so that predictions come near to what was measured."""
    predicted = predict(plan, facts_of(learned, plan, seen))
    pairs = compared(plan, predicted, seen)["latency"]
    factors = [c.measured / c.predicted for c in pairs if 0 < c.predicted < math.inf and c.measured > 0]
    if not factors:
        return learned.costs.latency
    now = learned.costs.latency * float(np.median(factors))
    return float(np.clip(_mixed(learned.costs.latency, now, known=True), _SHORTEST, _LONGEST))


def facts_of(learned: Learned, plan: DeploymentPlan, seen: Window) -> Facts:
    """Give what predictions stand on now: what was learned, and the state of hosts and links."""
    rates = {**learned.profile.rates, **seen.rates(plan)}
    capacity, delay = {}, {}
    for name, link in seen.links.items():
        if link.now.capacity is not None:
            capacity[name] = link.now.capacity
        if link.now.delay_s is not None:
            delay[name] = link.now.delay_s
    return Facts(
        profile=narrowed(learned.profile.model_copy(update={"rates": rates}), plan.dataflow),
        costs=learned.costs,
        others=_others(plan, seen),
        cores={key: h.cores for key, h in seen.hosts.items()},
        capacity=capacity,
        delay=delay,
        trigger=seen.trigger,
    )


def narrowed(profile: Profile, flow: Dataflow) -> Profile:
    """Leave out what was learned of operators that are no more."""
    return profile.model_copy(
        update={
            "operators": {o: p for o, p in profile.operators.items() if o in flow},
            "rates": {o: r for o, r in profile.rates.items() if o in flow},
        }
    )


def _others(plan: DeploymentPlan, seen: Window) -> dict[HostKey, float]:
    """Give the cores of each host that are taken by others than the plan's units, in their Spark too."""
    own: dict[HostKey, float] = {}
    for unit in plan.units:
        if unit.id in seen.units:
            host = host_of(plan, unit)
            key = (host.zone, host.name)
            own[key] = own.get(key, 0.0) + seen.units[unit.id].cpu
    return {key: h.others + h.agent + max(0.0, h.spark - own.get(key, 0.0)) for key, h in seen.hosts.items()}


# ---------------------------------------------------------------- what operators give


def _measured(profile: Profile, plan: DeploymentPlan, seen: Window) -> Profile:
    """Mix what was counted into a profile: selectivities, bytes of rows, state."""
    operators = dict(profile.operators)

    def known(name: str) -> OperatorProfile:
        return operators.get(name) or OperatorProfile()

    for name in plan.dataflow.order:
        if isinstance(plan.dataflow[name], Source):
            continue
        pairs = [
            (o.rows_in, o.rows_out)
            for u in seen.units.values()
            if (o := u.operators.get(name)) and o.rows_in is not None and o.rows_out is not None
        ]
        rows_in = sum(a for a, _ in pairs) * seen.seconds
        if rows_in >= _LEAST_ROWS:
            share = sum(b for _, b in pairs) * seen.seconds / rows_in
            operators[name] = known(name).model_copy(
                update={"selectivity": _mixed(known(name).selectivity, share, name in operators)}
            )
    for channel in plan.channels:
        found = seen.channels.get(channel.id)
        if found and found.now.rows >= _LEAST_ROWS and found.row_bytes:
            name = channel.operator
            operators[name] = known(name).model_copy(update={"bytes_out": found.row_bytes})
    for unit in plan.units:
        holds = [o for o in unit.operators if plan.dataflow[o].stateful]
        rates = seen.units.get(unit.id)
        if rates and len(holds) == 1 and rates.now.state_bytes:
            name = holds[0]
            operators[name] = known(name).model_copy(update={"state_bytes": float(rates.now.state_bytes)})
    return profile.model_copy(update={"operators": operators})


def _mixed(before: float, now: float, known: bool) -> float:
    return before + _WEIGHT * (now - before) if known else now


# ---------------------------------------------------------------- what batches cost


def _observation(plan: DeploymentPlan, unit: Unit, seen: Window, facts: Facts) -> Observation | None:
    rates = seen.units[unit.id]
    if not rates.steady or rates.batch_s is None or rates.batches <= 0:
        return None
    known = Known(plan.dataflow, facts.profile)
    taken, _ = rows_of(plan, known)
    host = host_of(plan, unit)
    key = (host.zone, host.name)
    if key not in seen.hosts:
        return None
    beside = seen.hosts[key].others + seen.hosts[key].agent + max(0.0, seen.hosts[key].spark - rates.cpu)
    return Observation(
        unit=unit.key,
        cpu=rates.cpu,
        batch_s=rates.batch_s,
        batches=rates.batches,
        stateful=stateful_of(plan, unit),
        speed=max(0.05, 1.0 - beside / seen.hosts[key].cores),
        work={o: _counted(rates.operators, o, taken[unit.id, o]) * known.operator(o).cpu_s for o in unit.operators},
    )


def _counted(operators: Mapping[str, Any], name: str, otherwise: float) -> float:
    """Give the rows/s that an operator took, where they were counted."""
    found = operators.get(name)
    return otherwise if found is None or found.rows_in is None else float(found.rows_in)


def _fitted(costs: Costs, plan: DeploymentPlan, observed: Sequence[Observation], kept: Sequence[Observation]) -> Costs:
    """Fit cores first, then batch times by what rows cost then."""
    names = sorted({name for o in kept for name in o.work})
    believed = [costs.batch_cpu, costs.state_cpu, *(costs.row.get(n, 1.0) for n in names)]
    table = np.array([[o.batches, o.batches * o.stateful, *(o.work.get(n, 0.0) for n in names)] for o in kept])
    weights = np.sqrt([o.weight for o in kept])
    cpu = np.array([o.cpu for o in kept])
    found = _ridge(table * weights[:, None], cpu * weights, np.array(believed))
    row = {n: float(np.clip(x, _LEAST, _MOST)) for n, x in zip(names, found[2:], strict=True)}
    batch_cpu, state_cpu = max(0.005, float(found[0])), max(0.0, float(found[1]))
    own, own_cpu = dict(costs.own), dict[str, float]()
    for one in observed:
        work = sum(w * row.get(n, 1.0) for n, w in one.work.items()) / one.batches
        fixed = max(0.02, one.batch_s * one.speed - work)
        own[one.unit] = _mixed(own.get(one.unit, fixed), fixed, one.unit in own)
        # What rows cost otherwise than believed is not to pass for what batches cost; and what they cost a
        # unit that does not run now may have been before Java was warm.
        usual = batch_cpu + state_cpu * one.stateful
        cores = float(np.clip(one.cpu / one.batches - work, usual / _UNLIKE, usual * _UNLIKE))
        own_cpu[one.unit] = _mixed(costs.own_cpu.get(one.unit, cores), cores, one.unit in costs.own_cpu)
    stateful = {o.unit: o.stateful for o in kept}
    told = [u for u in own if u in stateful]
    fixed_table = np.array([[1.0, stateful[u]] for u in told])
    base = _ridge(fixed_table, np.array([own[u] for u in told]), np.array([costs.batch_s, costs.state_s]))
    return replace(
        costs,
        batch_cpu=batch_cpu,
        state_cpu=state_cpu,
        batch_s=max(0.02, float(base[0])),
        state_s=max(0.0, float(base[1])),
        row={**costs.row, **row},
        own=own,
        own_cpu=own_cpu,
    )


def _ridge(table: Floats, values: Floats, believed: Floats) -> Floats:
    """Solve least squares, each unknown drawn to what is believed of it in shares of that."""
    scale = np.maximum(np.abs(believed), 1e-3)
    of = table * scale
    left = of.T @ of + _PULL**2 * np.eye(len(believed))
    change = np.linalg.solve(left, of.T @ (values - table @ believed))
    found: Floats = np.asarray(believed + scale * change, dtype=np.float64)
    return found


# ---------------------------------------------------------------- how good it is


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What was predicted and what was measured: seconds, shares of a host's cores, bytes/s."""

    what: str
    predicted: Unbounded
    measured: Unbounded

    @computed_field  # type: ignore[prop-decorator]
    @property
    def error(self) -> Unbounded:
        """The difference as a share of what was measured."""
        return abs(self.predicted - self.measured) / max(abs(self.measured), 1e-9)


def compared(plan: DeploymentPlan, predicted: Predicted, seen: Window) -> dict[str, tuple[Compared, ...]]:
    """Hold a prediction against a window: latency at units' ends, load of hosts, bytes over links."""
    latency = [
        Compared(what=id_, predicted=predicted.reaches[id_][0], measured=u.now.latency.p50)
        for id_, u in seen.units.items()
        if id_ in predicted.reaches and u.now.latency is not None
    ]
    load = [
        Compared(what=f"{host} ({zone})", predicted=share, measured=seen.hosts[zone, host].load)
        for (zone, host), share in predicted.load.items()
        if (zone, host) in seen.hosts
    ]
    bytes_ = [
        Compared(what=name, predicted=amount, measured=seen.links[name].bytes)
        for name, amount in predicted.links.items()
        if name in seen.links and seen.links[name].bytes > 0
    ]
    return {"latency": tuple(latency), "load": tuple(load), "bytes": tuple(bytes_)}
