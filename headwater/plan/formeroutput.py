"""Settle output of other runs in a plan's sinks, before its units start. Pure."""

from __future__ import annotations

from headwater.dataflow.sinks import Sink
from headwater.plan.diff import PlanDiff
from headwater.plan.document import plan_id
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.steps import FormerOutput, FormerOutputChoice, Plans, Step, UnitStatuses


def settle_former_output(
    diff: PlanDiff, unit_statuses: UnitStatuses, plans: Plans, choice: FormerOutputChoice
) -> list[Step]:
    """Settle the output in sinks to which no unit of the deployment writes: it is of other runs.

    Rows that a pool wrote for a dataflow that has left it are of another run, too.
    """
    plan, active = diff.wanted, diff.running
    units = [(plans[s.plan], plans[s.plan].unit(key[0])) for key, s in unit_statuses.items() if not s.ahead]
    units += [(active, unit) for unit in active.units] if active is not None else []
    written = {sink.target for owner, unit in units for sink in _lasting_sinks(owner, unit)}
    found: list[Step] = []
    for unit in plan.units:
        if new := tuple(sink.id for sink in _lasting_sinks(plan, unit) if sink.target not in written):
            found.append(FormerOutput(plan=plan_id(plan), unit=unit.id, choice=choice, sinks=new))
    return found


def _lasting_sinks(plan: DeploymentPlan, unit: Unit) -> list[Sink]:
    found = (plan.dataflow[id_] for id_ in unit.outputs)
    return [operator for operator in found if isinstance(operator, Sink) and operator.target is not None]
