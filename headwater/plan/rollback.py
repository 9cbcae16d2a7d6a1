"""Rollback of a failed change: the earlier plan, with new epochs. Pure."""

from __future__ import annotations

from headwater.plan.content import is_stateful
from headwater.plan.diff import ChannelChange, PlanDiff, State, UnitChange
from headwater.plan.document import inherit
from headwater.plan.model import DeploymentPlan
from headwater.plan.steps import UnitStatuses, incarnation

WHY = "the change is rolled back"


def touched(before: DeploymentPlan, failed: DeploymentPlan, unit_statuses: UnitStatuses) -> frozenset[str]:
    """Return the units of both plans that the failed one may have restarted."""
    former = {u.id: incarnation(u) for u in before.units}
    return frozenset(
        u.id
        for u in failed.units
        if former.get(u.id, incarnation(u)) != incarnation(u)
        and (now := unit_statuses.get(incarnation(u))) is not None
        and not now.ahead
        and not ((ran := unit_statuses.get(former[u.id])) and ran.runs)
    )


def way_back(before: DeploymentPlan, failed: DeploymentPlan, unit_statuses: UnitStatuses) -> PlanDiff:
    """Return the difference to the earlier plan; units that were replaced meanwhile are replaced once more."""
    restarted = touched(before, failed, unit_statuses)
    epochs = {u.id: failed.unit(u.id).epoch + 1 if u.id in restarted else u.epoch for u in before.units}
    wanted = inherit(before, epochs=epochs)
    known = {u.id for u in before.units}
    units = []
    for unit in before.units:
        state: State = "kept" if is_stateful(before.dataflow, unit) else "none"
        if unit.id in restarted:
            units.append(UnitChange(unit=unit.id, action="replace", state=state, reason=WHY))
        else:
            units.append(UnitChange(unit=unit.id, action="unchanged", state=state))
    units += [UnitChange(unit=u.id, action="stop", state="none", reason=WHY) for u in failed.units if u.id not in known]
    ids, others = {c.id for c in wanted.channels}, {c.id for c in failed.channels}
    channels = [ChannelChange(channel=c, action="continues" if c in others else "begins") for c in sorted(ids)]
    channels += [ChannelChange(channel=c, action="ends") for c in sorted(others - ids)]
    return PlanDiff(running=failed, wanted=wanted, units=tuple(units), channels=tuple(channels))


def stranded(before: DeploymentPlan, failed: DeploymentPlan, unit_statuses: UnitStatuses) -> tuple[str, ...]:
    """Return the channels whose rows would be lost by a rollback.

    A replaced unit writes them in a form that only units not yet replaced could read.
    """
    restarted = touched(before, failed, unit_statuses)
    ran = {u.id for u in before.units}
    old = {c.id for c in before.channels}
    return tuple(
        c.id
        for c in failed.channels
        if c.id not in old and c.producer in restarted and any(r in ran and r not in restarted for r in c.consumers)
    )
