"""Schedulers by name: from a situation to a decision. Pure.

Entry point for one problem: ``decide``. A caller that decides repeatedly keeps the ``CutTable`` and makes a
``Situation`` of it every time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headwater.core.errors import PlacementError, suggestion
from headwater.placement.baselines import fc_interplay, fog_only, trcs
from headwater.placement.cutnumbers import CutLoad
from headwater.placement.cuts import branches, trunks
from headwater.placement.cuttable import CutTable
from headwater.placement.exact import Exactness, tsoo_exact
from headwater.placement.problem import Placement, Problem, moved
from headwater.placement.robust import tsoo_robust
from headwater.placement.situation import Limits, ScheduleDecision, Situation
from headwater.placement.tsoo import atsoo_h, tsoo_h
from headwater.placement.usage import Weights

Schedule = Callable[[Situation], ScheduleDecision]
SCHEDULERS: Mapping[str, Schedule] = {
    "tsoo_exact": tsoo_exact,
    "tsoo_robust": tsoo_robust,
    "atsoo_h": atsoo_h,
    "tsoo_h": tsoo_h,
    "trcs": trcs,
    "fog_only": fog_only,
    "fc_interplay": fc_interplay,
}


@dataclass(frozen=True)
class Scheduled:
    """A decision for a problem, with its placement."""

    placement: Placement
    decision: ScheduleDecision
    situation: Situation


def scheduler(name: str) -> Schedule:
    """Return a scheduler by name; raise PlacementError if it is unknown."""
    if name not in SCHEDULERS:
        raise PlacementError(
            f"unknown scheduler '{name}'",
            hint=suggestion(name, SCHEDULERS, "the schedulers are"),
        )
    return SCHEDULERS[name]


def tables(problem: Problem, weights: Weights | None = None) -> tuple[CutTable, ...]:
    """Return the tables of a problem, one for each placement of the trunk."""
    found = branches(problem)
    inside = {o for branch in found for o in branch.operators}
    given = weights or Weights()
    return tuple(CutTable(problem, found, trunk, given) for trunk in trunks(problem, inside))


def decide(
    problem: Problem,
    by: str | Schedule,
    limits: Limits,
    *,
    current: Placement | None = None,
    weights: Weights | None = None,
    load: CutLoad | None = None,
    among: tuple[CutTable, ...] = (),
    compiled: bool | None = None,
    possible: tuple[CutLoad, ...] = (),
) -> Scheduled:
    """Schedule a problem; choose the placement of the trunk with the best decision.

    A change of the trunk also costs ``Exactness.price``. ``by``: a scheduler or its name. ``load``: the current
    numbers, default the problem's. ``among``: the problem's ``tables``, if known. ``compiled`` and
    ``possible``: as in ``Situation``.
    """
    schedule = scheduler(by) if isinstance(by, str) else by
    best: Scheduled | None = None
    for table in among or tables(problem, weights):
        selection = None if current is None else table.selection(current)
        situation = Situation(table, load or CutLoad.of(problem), limits, selection, compiled, possible)
        decision = schedule(situation)
        found = Scheduled(table.placement(decision.selection), decision, situation)
        if best is None or _badness(found, current) < _badness(best, current):
            best = found
    if best is None:
        raise PlacementError("the operators behind several sources can run nowhere")
    return best


def _badness(found: Scheduled, current: Placement | None) -> tuple[float, ...]:
    """Return a sort key; a decision within all limits is ranked by its cost and its changes."""
    decision, measured = found.decision, found.decision.measured
    lacks = 0.0 if decision.kept or decision.chance is None else 1 - decision.chance
    late = 0.0 if decision.kept else measured.worst
    cost = measured.cost * (1 + Exactness.price * moved(current, found.placement))
    return lacks, not measured.fits, not found.situation.is_narrow(measured), not decision.kept, late, cost
