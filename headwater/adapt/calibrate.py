"""Fit the model's parameters to measurements. Pure.

It learns from windows without a change. Operators' rows in and out are measured directly. The cost of a batch and
of a row is fitted by least squares to the units' cores and batch times, with a pull towards the previous values,
so parameters that a measurement does not determine stay unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from pydantic import computed_field

from headwater.adapt.model import Costs, Facts, HostKey, Predicted, host_of, predict, rows_of, stateful_of
from headwater.adapt.rewritten import as_running, as_written, narrowed, rewriting_of
from headwater.adapt.window import Window
from headwater.core.jsonform import Unbounded
from headwater.dataflow.sources import Source
from headwater.placement.queueing import Floats
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.profile import Known, OperatorProfile, Profile

_WEIGHT = 0.5
"""Weight of a new measurement against the known value."""
_LEAST_ROWS = 20.0
"""Minimum rows in a window for a share or a size."""
_KEPT = 120
"""Number of observations to which costs are fitted."""
_FADES, _FADED = 0.93, 0.02
"""Decay of an observation's weight per window, and the weight below which it is dropped."""
_PULL = 0.15
"""Weight of the previous values against one observation of a whole core."""
_SHORTEST, _LONGEST = 0.3, 3.0
"""Bounds of the latency factor; a larger deviation has another cause."""
_MOST, _LEAST = 50.0, 0.02
"""Bounds of costs relative to the profile."""
_UNLIKE = 2.0
"""Bound of one unit's batch cost relative to the usual cost of units."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A unit in one window: cores and seconds of a batch, and the variables that explain them.

    ``work``: for each operator the cores that its rows take by the profile. ``speed``: the share of its host not
    used by others.
    """

    unit: str
    cpu: float
    batch_s: float
    batches: float
    stateful: int
    speed: float
    work: Mapping[str, float]
    weight: float = 1.0
    """Weight; it decreases with newer observations, because code gets faster while Java warms up."""

    @property
    def alike(self) -> tuple[Any, ...]:
        """Key of equivalent observations; only the newest of them is kept."""
        return self.unit, *(round(math.log(max(w, 1e-6)) / math.log(1.3)) for w in self.work.values())


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Knowledge of a deployment: measured profile, costs, and the observations they were fitted to.

    ``profile`` is that of the dataflow that ran, whose rewriting is named by ``rewriting``; ``written``: that of the
    dataflow as it was written, where it was rewritten.
    """

    profile: Profile
    costs: Costs = field(default_factory=Costs)
    seen: tuple[Observation, ...] = ()
    written: Profile | None = None
    rewriting: str = ""

    def of(self, plan: DeploymentPlan) -> Learned:
        """Return what is known of a plan's dataflow, also where another rewriting of it ran before."""
        name = rewriting_of(plan)
        if name == self.rewriting or self.written is None:
            return replace(self, profile=narrowed(self.profile, plan.dataflow), rewriting=name)
        return replace(self, profile=as_running(plan, self.written), rewriting=name)


def learn(before: Learned, plan: DeploymentPlan, seen: Window) -> Learned:
    """Update the profile and the costs with a window."""
    before = before.of(plan)
    profile = _measured(before.profile, plan, seen)
    if plan.written is not None:
        before = replace(before, written=as_written(plan, profile, before.written))
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
    found = replace(before, profile=profile, costs=costs, seen=kept)
    return replace(found, costs=replace(costs, latency=_stretched(found, plan, seen)))


def _stretched(learned: Learned, plan: DeploymentPlan, seen: Window) -> float:
    """Return the factor on waiting times that brings predictions close to the measured latency."""
    predicted = predict(plan, facts_of(learned, plan, seen))
    pairs = compared(plan, predicted, seen)["latency"]
    factors = [c.measured / c.predicted for c in pairs if 0 < c.predicted < math.inf and c.measured > 0]
    if not factors:
        return learned.costs.latency
    now = learned.costs.latency * float(np.median(factors))
    return float(np.clip(_mixed(learned.costs.latency, now, known=True), _SHORTEST, _LONGEST))


def facts_of(learned: Learned, plan: DeploymentPlan, seen: Window) -> Facts:
    """Return the facts for predictions: learned values, and the state of hosts and links."""
    learned = learned.of(plan)
    rates = {**learned.profile.rates, **seen.rates(plan)}
    capacity, delay = {}, {}
    for name, link in seen.links.items():
        if link.now.capacity is not None:
            capacity[name] = link.now.capacity
        if link.now.delay_s is not None:
            delay[name] = link.now.delay_s
    return Facts(
        profile=narrowed(learned.profile.model_copy(update={"rates": rates}), plan.dataflow),
        written=learned.written,
        costs=learned.costs,
        others=_others(plan, seen),
        cores={key: h.cores for key, h in seen.hosts.items()},
        capacity=capacity,
        delay=delay,
        trigger=seen.trigger,
    )


def _others(plan: DeploymentPlan, seen: Window) -> dict[HostKey, float]:
    """Return the cores of each host that are not used by the plan's units, inside their Spark too."""
    own: dict[HostKey, float] = {}
    for unit in plan.units:
        if unit.id in seen.units:
            host = host_of(plan, unit)
            key = (host.zone, host.name)
            own[key] = own.get(key, 0.0) + seen.units[unit.id].cpu
    return {key: h.others + h.agent + max(0.0, h.spark - own.get(key, 0.0)) for key, h in seen.hosts.items()}


# ---------------------------------------------------------------- operators


def _measured(profile: Profile, plan: DeploymentPlan, seen: Window) -> Profile:
    """Update a profile with measured values: selectivities, bytes of rows, state."""
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


# ---------------------------------------------------------------- batch costs


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
    """Return the measured rows/s into an operator, or the default."""
    found = operators.get(name)
    return otherwise if found is None or found.rows_in is None else float(found.rows_in)


def _fitted(costs: Costs, plan: DeploymentPlan, observed: Sequence[Observation], kept: Sequence[Observation]) -> Costs:
    """Fit cores first, then batch times with the fitted row costs."""
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
        # An error in the row costs must not appear as batch costs; and batch costs of a unit that no longer runs
        # may date from before Java was warm.
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
    """Solve least squares; each unknown is pulled to its previous value, relative to that value."""
    scale = np.maximum(np.abs(believed), 1e-3)
    of = table * scale
    left = of.T @ of + _PULL**2 * np.eye(len(believed))
    change = np.linalg.solve(left, of.T @ (values - table @ believed))
    found: Floats = np.asarray(believed + scale * change, dtype=np.float64)
    return found


# ---------------------------------------------------------------- accuracy


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A predicted and a measured value: seconds, shares of a host's cores, bytes/s."""

    what: str
    predicted: Unbounded
    measured: Unbounded

    @computed_field  # type: ignore[prop-decorator]
    @property
    def error(self) -> Unbounded:
        """The relative difference to the measured value."""
        return abs(self.predicted - self.measured) / max(abs(self.measured), 1e-9)


def compared(plan: DeploymentPlan, predicted: Predicted, seen: Window) -> dict[str, tuple[Compared, ...]]:
    """Compare a prediction with a window: latency at units' outputs, load of hosts, bytes over links."""
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
