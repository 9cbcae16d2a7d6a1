"""Cost shares of a pool: each operator's cores in equal shares among the dataflows that need it. Pure.

This is the Shapley value of the game in which a set of dataflows costs as much as all their operators: a dataflow
whose operators all run already adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import computed_field

from headwater.adapt.calibrate import Learned, facts_of
from headwater.adapt.model import Facts, predict, rows_of
from headwater.adapt.window import Window
from headwater.plan.build import annotated, build
from headwater.plan.model import DeploymentPlan
from headwater.plan.profile import Known
from headwater.reuse.pool import Pool, Submission


@dataclass(frozen=True, kw_only=True)
class Account:
    """Cost of a dataflow, in cores: its fair share, and its cost alone.

    ``operators``: number it needs; ``shared``: number of these that others need, too.
    """

    name: str
    owner: str
    operators: int
    common: int
    shared: float
    alone: float

    @computed_field  # type: ignore[prop-decorator]
    @property
    def saved(self) -> float:
        """Saving, as a share of the cost alone."""
        return 1.0 - self.shared / self.alone if self.alone > 0 else 0.0


def accounts(pool: Pool, plan: DeploymentPlan, learned: Learned, seen: Window) -> tuple[Account, ...]:
    """Divide measured cores among a pool's dataflows; ``plan`` is the pool's running plan."""
    facts = facts_of(learned, plan, seen)
    cores = by_operator(plan, facts, {u: r.cpu for u, r in seen.units.items()})
    found = []
    for one in pool.submissions:
        needed = set(one.ids.values())
        share = sum(cores.get(i, 0.0) / max(1, len(pool.users.get(i, ()))) for i in needed)
        found.append(
            Account(
                name=one.name,
                owner=one.owner,
                operators=len(needed),
                common=sum(len(pool.users.get(i, ())) > 1 for i in needed),
                shared=share,
                alone=_alone(one, plan, facts),
            )
        )
    return tuple(found)


def by_operator(plan: DeploymentPlan, facts: Facts, cpu: Mapping[str, float]) -> dict[str, float]:
    """Divide the cores of units among their operators: by their rows' work, the rest evenly."""
    known = Known(plan.dataflow, facts.profile)
    taken, _ = rows_of(plan, known)
    found: dict[str, float] = {}
    for unit in plan.units:
        work = {o: taken[unit.id, o] * known.operator(o).cpu_s * facts.costs.row.get(o, 1.0) for o in unit.operators}
        cores, rows = cpu.get(unit.id, 0.0), sum(work.values())
        scale = min(1.0, cores / rows) if rows > 0 else 0.0
        rest = max(0.0, cores - rows * scale) / len(unit.operators)
        for o in unit.operators:
            found[o] = found.get(o, 0.0) + work[o] * scale + rest
    return found


def _alone(one: Submission, running: DeploymentPlan, facts: Facts) -> float:
    """Predict the cores of a dataflow run separately, with the learned costs of shared operators."""
    flow, continuum = one.runs, running.continuum
    names = {shared: own for own, shared in one.ids.items()}
    profile = facts.profile
    known = profile.model_copy(
        update={
            "operators": {names[o]: p for o, p in profile.operators.items() if o in names},
            "rates": {names[o]: r for o, r in profile.rates.items() if o in names},
        }
    )
    row = {names[o]: factor for o, factor in facts.costs.row.items() if o in names}
    costs = replace(facts.costs, row=row)
    plan = build(flow, continuum, annotated(flow, continuum))
    alone = Facts(profile=known, costs=costs, cores=facts.cores, trigger=facts.trigger)
    return sum(u.cpu for u in predict(plan, alone).units.values())
