"""Order the steps that end a deployment, and units by their place: writers before readers. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from headwater.plan.content import is_stateful
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.steps import Finish, Forget, Incarnation, Plans, Step, Stop, UnitStatus, UnitStatuses

Placed = tuple[Incarnation, UnitStatus]


def by_place(entries: Iterable[tuple[DeploymentPlan, Incarnation, UnitStatus]]) -> list[Placed]:
    """Sort incarnations by layer, zone and place in their plan: writers before readers."""
    placed = [(place_of(plan, plan.unit(key[0])), key, s) for plan, key, s in entries]
    return [(key, s) for _, key, s in sorted(placed, key=lambda p: p[0])]


def place_of(plan: DeploymentPlan, unit: Unit) -> tuple[int, str, int]:
    return plan.heights[unit.id], unit.zone, plan.position(unit.id)


def stopping(unit_statuses: UnitStatuses, plans: Plans, *, forget: bool = False) -> tuple[Step, ...]:
    """Order the steps that stop all units, sources first; ``forget`` also deletes their data."""
    order = by_place([(plans[s.plan], key, s) for key, s in unit_statuses.items()])
    steps: list[Step] = [
        Stop(
            plan=s.plan,
            unit=unit,
            why="the deployment is stopped",
            state="kept" if not forget and _keeps(plans[s.plan], unit) else "none",
            for_good=True,
        )
        for (unit, _, _), s in order
        if s.runs
    ]
    if forget:
        steps += [
            Forget(plan=s.plan, unit=unit, why="the deployment is deleted") for (unit, _, _), s in reversed(order)
        ]
    return tuple(steps)


def finishing(unit_statuses: UnitStatuses, plans: Plans) -> tuple[Step, ...]:
    """Order the steps that let all units finish their input and end, sources first."""
    order = by_place([(plans[s.plan], key, s) for key, s in unit_statuses.items() if s.runs])
    return tuple(Finish(plan=s.plan, unit=unit) for (unit, _, _), s in order)


def _keeps(plan: DeploymentPlan, unit: str) -> bool:
    return is_stateful(plan.dataflow, plan.unit(unit))
