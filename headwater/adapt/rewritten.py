"""The profile of a dataflow as it was written, and that of its rewritten form: one from the other. Pure.

Only the rewritten dataflow runs and is measured. Another rewriting is chosen by the figures of the written one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from headwater.dataflow import operators as ops
from headwater.dataflow.graph import Dataflow
from headwater.plan.document import digest
from headwater.plan.figures import FlowFigures
from headwater.plan.model import DeploymentPlan
from headwater.plan.profile import Known, OperatorProfile, Profile, row_bytes
from headwater.plan.written import Written


def narrowed(profile: Profile, flow: Dataflow) -> Profile:
    """Return the profile without operators that no longer exist."""
    return profile.model_copy(
        update={
            "operators": {o: p for o, p in profile.operators.items() if o in flow},
            "rates": {o: r for o, r in profile.rates.items() if o in flow},
        }
    )


def rewriting_of(plan: DeploymentPlan) -> str:
    """Name a plan's rewriting: plans of one name have operators of one meaning; '' for a dataflow as it was written."""
    if plan.written is None:
        return ""
    return digest({"operators": sorted(plan.dataflow.order), "origins": dict(plan.written.origins)})[:16]


def as_running(plan: DeploymentPlan, written: Profile) -> Profile:
    """Return the profile of a plan's dataflow from that of the dataflow as it was written."""
    if plan.written is None:
        return narrowed(written, plan.dataflow)
    known = Known(plan.written.dataflow, narrowed(written, plan.written.dataflow))
    figures = FlowFigures(dataflow=plan.dataflow, continuum=plan.continuum, known=known, origins=plan.written.origins)
    found = figures.profile()
    assert found is not None, "a known profile gives one"
    return found


def as_written(plan: DeploymentPlan, running: Profile, before: Profile | None) -> Profile:
    """Return the profile of the dataflow as it was written from that of a plan's dataflow.

    ``before``: earlier knowledge of it, which stays where operators no longer run.
    """
    if plan.written is None:
        return narrowed(running, plan.dataflow)
    flow, parts = plan.written.dataflow, _parts(plan, plan.written)
    found = dict(narrowed(before, flow).operators) if before is not None else {}
    for id_ in flow.order:
        known = [(part, running.operators[part]) for part in parts[id_] if part in running.operators]
        if known:
            found[id_] = _joined(plan, flow, id_, known, _further(plan, running, id_))
    rates = {source: own for source, own in running.rates.items() if source in flow}
    return Profile(dataflow=flow.name, operators=found, rates=rates)


def origin_of(written: Written, id_: str) -> str:
    """Return the operator of the written dataflow from which a running one comes: '' if it is new."""
    found = written.origins.get(id_, id_)
    return found if found in written.dataflow else ""


def _parts(plan: DeploymentPlan, written: Written) -> Mapping[str, list[str]]:
    """By operator of the written dataflow, the running ones that do its work."""
    found: dict[str, list[str]] = {id_: [] for id_ in written.dataflow.order}
    for id_ in plan.dataflow.order:
        origin = origin_of(written, id_)
        if origin:
            found[origin].append(id_)
    return found


def _joined(
    plan: DeploymentPlan, written: Dataflow, id_: str, parts: list[tuple[str, OperatorProfile]], further: float
) -> OperatorProfile:
    """Return an operator's figures from those of its copies, which have the mean; ``further``: see ``_further``."""
    first, profile = parts[0]
    selectivity = math.fsum(p.selectivity for _, p in parts) / len(parts)
    update: dict[str, float] = {"selectivity": selectivity * further}
    if profile.bytes_out is not None:
        now, then = (row_bytes(flow.types[o].schema) for flow, o in ((plan.dataflow, first), (written, id_)))
        update["bytes_out"] = profile.bytes_out * then / now
    return profile.model_copy(update=update)


def _further(plan: DeploymentPlan, running: Profile, id_: str) -> float:
    """Return the selectivity of the operators that do another part of an operator's work, one after the other.

    These are the partial results that it merges, and what is left of a filter of which a part has moved.
    """
    assert plan.written is not None
    if id_ not in plan.dataflow:
        return 1.0
    others = [i for i in plan.dataflow[id_].inputs if getattr(plan.dataflow[i], "partial", None) is True]
    if not others and isinstance(plan.dataflow[id_], ops.Where) and not origin_of(plan.written, id_):
        others = [id_]
    return math.prod(running.operators[o].selectivity for o in others if o in running.operators)
