"""The ways in which a dataflow can join a pool, and the cheapest of them. Pure.

Running filters, projections and aggregates may serve it (``contain``), or it has its own; a stream from the middle of
a running unit may be another output of that query, or be cut there and read by a separate query.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headwater.adapt.model import Facts, predict
from headwater.adapt.rewritten import narrowed
from headwater.continuum.model import Continuum
from headwater.core.errors import ErrorList
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build
from headwater.plan.deployment import Deployment, Edge
from headwater.plan.diff import diff
from headwater.plan.model import DeploymentPlan
from headwater.reuse.contain import Contained
from headwater.reuse.pool import Pool

FRAGMENTED = 0.3
"""Share of avoidable queries above which a pool is defragmented automatically."""

_LESS: Mapping[str, Contained] = {
    "windows of its own": "groups",
    "aggregates of its own": "rows",
    "filters and projections of its own": "nothing",
}
"""How a dataflow joins a pool when running operators serve less of it."""


@dataclass(frozen=True)
class Way:
    """A possible pool, its plan, and in words its difference from the others."""

    how: str
    pool: Pool
    plan: DeploymentPlan


def ways(
    pool: Pool,
    dataflow: Dataflow,
    owner: str,
    continuum: Continuum,
    running: DeploymentPlan | None,
    *,
    used: Iterable[str] = (),
    own_windows: bool = False,
) -> tuple[Way, ...]:
    """Return the ways in which a dataflow can join a pool; without measurements the first one is best.

    A dataflow of the pool is replaced by this version of it. ``own_windows``: no window is computed from shorter ones
    of others. Ways that the running units cannot take are left out, unless there is no other.
    """
    used = frozenset(used)

    def with_it(contained: Contained, apart: frozenset[str] = frozenset()) -> Pool:
        if dataflow.name in pool:
            after = pool.update(dataflow, used=used, contained=contained, apart=apart)
        else:
            after = pool.submit(dataflow, owner, used=used, contained=contained, apart=apart)
        more = _extended(after, continuum, running) - apart
        return with_it(contained, apart | more) if more else after

    joined = [("", with_it("groups" if own_windows else "windows"))]
    for how, contained in _LESS.items():
        less = with_it(contained)
        if less.dataflow.keys != joined[-1][1].dataflow.keys:
            joined.append((how, less))
    found = []
    for how, after in joined:
        after.check()
        plan = put_together(after, continuum, running)
        found.append(Way(how or "outputs of running queries", after, plan))
        taps = _taps(plan, running)
        if taps:
            deployment = replace(plan.deployment, cuts=plan.deployment.cuts | taps)
            words = f"{how}, separate queries" if how else "separate queries"
            found.append(Way(words, after, build(after.dataflow, continuum, deployment, pooled=True)))
    return tuple(way for way in found if _follows(running, way.plan)) or tuple(found)


def put_together(pool: Pool, continuum: Continuum, running: DeploymentPlan | None) -> DeploymentPlan:
    """Plan a pool so that running units keep their cuts, unless that needs too many queries.

    New operators are cut off where a running unit cannot take them: no state but a scan's begins beside other state.
    """
    plan = build(pool.dataflow, continuum, pool.deployment(continuum, running), pooled=True)
    if not _follows(running, plan):
        plan = _cut_off(plan, running) or plan
    less = whole(pool, continuum, running)
    fragmented = len(plan.units) - len(less.units) >= FRAGMENTED * len(plan.units)
    return less if fragmented and _follows(running, less) else plan


def _extended(pool: Pool, continuum: Continuum, running: DeploymentPlan | None) -> frozenset[str]:
    """Return the running operators that would get rows of another location in a zone where they run already.

    Such rows begin at the start of their source, and may be too late for the event time that the zone has reached.
    """
    if running is None:
        return frozenset()
    before, after = running.deployment.placement, pool.deployment(continuum, running).placement

    def zone(operator: str, location: str) -> str:
        return continuum.host(after[operator, location][0]).zone

    found = set()
    for id_ in before:
        there = {zone(id_, x) for x in after.of(id_) if x in before.of(id_)}
        if any(zone(id_, x) in there for x in after.of(id_) if x not in before.of(id_)):
            found.add(id_)
    return frozenset(found)


def _follows(running: DeploymentPlan | None, plan: DeploymentPlan) -> bool:
    """Return whether a plan can take the place of the running one."""
    try:
        diff(running, plan)
    except ErrorList:
        return False
    return True


def _cut_off(plan: DeploymentPlan, running: DeploymentPlan | None) -> DeploymentPlan | None:
    """Return a plan with units of their own for the new operators; None if there is none that can follow."""
    deployment = replace(plan.deployment, cuts=plan.deployment.cuts | _taps(plan, running))
    apart = build(plan.dataflow, plan.continuum, deployment, pooled=True)
    return apart if _follows(running, apart) else None


def whole(pool: Pool, continuum: Continuum, running: DeploymentPlan | None) -> DeploymentPlan:
    """Plan a pool in as few queries as its layers allow."""
    uncut: Deployment = replace(pool.deployment(continuum, running), cuts=frozenset())
    return build(pool.dataflow, continuum, uncut, pooled=True)


def costs(found: Sequence[Way], facts: Facts | None) -> dict[str, float]:
    """Predict the cores of each way; empty without facts."""
    if facts is None:
        return {}
    return {way.how: sum(_load(way, facts).values()) for way in found}


def cheapest(found: Sequence[Way], facts: Facts | None) -> Way:
    """Return the way that overloads hosts least, among these the one of fewest cores; without facts the first."""
    if facts is None or len(found) == 1:
        return found[0]

    def cost(way: Way) -> tuple[float, float]:
        load = _load(way, facts)
        over = sum(max(0.0, cores - facts.cores.get(host, cores)) for host, cores in load.items())
        return round(over, 3), round(sum(load.values()), 3)

    return min(found, key=cost)


def _load(way: Way, facts: Facts) -> Mapping[tuple[str, str], float]:
    """Predict the cores of each host; an update ends operators that are among the facts."""
    known = replace(facts, profile=narrowed(facts.profile, way.plan.dataflow))
    return predict(way.plan, known).load


def _taps(plan: DeploymentPlan, running: DeploymentPlan | None) -> frozenset[Edge]:
    """Return the edges within units from running to new operators."""
    if running is None:
        return frozenset()
    flow, there = plan.dataflow, {o for unit in running.units for o in unit.operators}
    return frozenset(
        (parent, id_)
        for unit in plan.units
        for id_ in unit.operators
        if id_ not in there
        for parent in flow[id_].inputs
        if parent in there and parent in unit.operators
    )
