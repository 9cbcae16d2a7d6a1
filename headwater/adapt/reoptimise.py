"""Other rewritings of a running dataflow, chosen by measured figures; and the work that one saves. Pure.

The optimiser that rewrote the dataflow at first runs again: on the dataflow as it was written, with all rules that its
deployment allows, and on the running one, with the rules that leave state as it is. Where the first would lose state,
the second can still reorder and move filters and drop columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from headwater.adapt.model import Facts, Predicted, row_factors
from headwater.adapt.rewritten import as_written, origin_of
from headwater.core.errors import HeadwaterError
from headwater.dataflow import operators as ops
from headwater.dataflow import stateful
from headwater.dataflow.graph import Dataflow
from headwater.placement.exact import Exactness
from headwater.plan.build import build, marked_layers
from headwater.plan.deployment import Deployment, Placement, layers_of
from headwater.plan.model import DeploymentPlan
from headwater.plan.optimise import Optimised, optimise
from headwater.plan.profile import Profile
from headwater.plan.written import Written
from headwater.rewrite.rule import RewriteRule
from headwater.rewrite.rules import rules_without

LEAST_BYTES = 1_000.0
"""Bytes/s over all links: no rewriting is changed for less."""
LEAST_CORES = 0.01
"""Cores: no rewriting is changed for less."""
_LEAST = 1e-6
"""Share of the bytes by which predictions of equal dataflows may differ."""

Saved = Literal["bytes", "load"]


@dataclass(frozen=True, kw_only=True)
class OtherRewriting:
    """A plan of another rewriting, and its profile, in which costs are as measured.

    ``rules``: the rules of it that are not applied now, and those of the present one that no longer are, in words.
    ``why_not``: why it cannot replace the running one; '' if it can.
    """

    name: str
    plan: DeploymentPlan
    profile: Profile
    rules: tuple[str, ...]
    why_not: str = ""

    def facts(self, facts: Facts) -> Facts:
        """Return the facts to predict it by: its profile has the learned factors on costs already."""
        return replace(facts, profile=self.profile, costs=replace(facts.costs, row={}))


def saves(now: Predicted, then: Predicted, *, gain: float, moved: int) -> Saved | None:
    """Return what a rewriting saves against the running one; None if too little to pay for the change.

    It has to save the share ``gain``, and the price of each operator whose unit restarts (``moved``), of the bytes
    over links; or of the load of rows, without more bytes. Therefore figures that vary by less than that share never
    lead to one change and then to its reverse.
    """
    price = 1 + Exactness.price * moved
    before, after = sum(now.links.values()), sum(then.links.values())
    if before - after * price >= max(gain * before, LEAST_BYTES):
        return "bytes"
    if after > before * (1 + _LEAST):
        return None
    return "load" if now.cores - then.cores * price >= max(gain * now.cores, LEAST_CORES) else None


def other_rewritings(plan: DeploymentPlan, facts: Facts) -> Iterator[OtherRewriting]:
    """Yield the rewritings that the optimiser chooses now, where they differ from the running one."""
    if plan.written is None or plan.pooled:
        return
    rules = rules_without(plan.written.without_rules)
    known: list[DeploymentPlan] = [plan]
    for found in (_of_written(plan, plan.written, facts, rules), _of_running(plan, plan.written, facts, rules)):
        for placed in () if found is None else _placed(plan, found):
            if all(_differ(placed.plan, other) for other in known):
                known.append(placed.plan)
                yield placed


def _differ(one: DeploymentPlan, other: DeploymentPlan) -> bool:
    return one.dataflow != other.dataflow or one.deployment != other.deployment


# ---------------------------------------------------------------- the two ways to rewrite


@dataclass(frozen=True)
class _Found:
    """A result of the optimiser; ``layers``: those of operators that no rule moves."""

    optimised: Optimised
    written: Written
    layers: Mapping[str, str]
    running: Profile
    """That of the running dataflow, at measured costs."""

    @property
    def profile(self) -> Profile:
        """The optimiser's profile."""
        assert self.optimised.profile is not None, "a known profile gives one"
        return self.optimised.profile


def _of_written(plan: DeploymentPlan, written: Written, facts: Facts, rules: tuple[RewriteRule, ...]) -> _Found | None:
    """Rewrite the dataflow as it was written."""
    factors: dict[str, float] = {}
    for id_, factor in row_factors(plan, facts).items():
        factors.setdefault(origin_of(written, id_), factor)
    profile = _at_cost(as_written(plan, facts.profile, facts.written), factors)
    try:
        optimised = optimise(written.dataflow, plan.continuum, profile, rules)
    except HeadwaterError:
        return None
    layers, _ = layers_of(optimised.deployment.placement, plan.continuum, optimised.dataflow.order)
    if not optimised.rewriting.placed:
        layers = marked_layers(written.dataflow, plan.continuum)
    running = _at_cost(facts.profile, row_factors(plan, facts))
    return _Found(optimised, optimised.written(written.dataflow, written.without_rules), layers, running)


def _of_running(plan: DeploymentPlan, written: Written, facts: Facts, rules: tuple[RewriteRule, ...]) -> _Found | None:
    """Rewrite the running dataflow further, without rules that would change state; operators stay in their layers."""
    flow = plan.dataflow
    bound = replace(flow, operators=tuple(replace(o, layer=plan.layers[o.id]) for o in flow.operators))
    keeping = tuple(rule for rule in rules if not rule.makes_state)
    running = _at_cost(facts.profile, row_factors(plan, facts))
    try:
        optimised = optimise(bound, plan.continuum, running, keeping)
    except HeadwaterError:
        return None
    marks = {o.id: o.layer for o in flow.operators}
    made = optimised.dataflow
    made = replace(made, operators=tuple(replace(o, layer=marks.get(o.id, o.layer)) for o in made.operators))
    further = {id_: written.origins.get(origin, origin) for id_, origin in optimised.origins.items()}
    applied = optimised.written(written.dataflow, written.without_rules)
    before = tuple(rule for rule in written.rules if rule not in applied.rules)
    kept = replace(applied, rules=(*before, *applied.rules), origins={**written.origins, **further})
    return _Found(replace(optimised, dataflow=made), kept, plan.layers, running)


def _at_cost(profile: Profile, factors: Mapping[str, float]) -> Profile:
    """Return the profile with the learned factors on the costs of rows."""
    operators = {
        id_: own.model_copy(update={"cpu_s": own.cpu_s * factors.get(id_, 1.0)})
        for id_, own in profile.operators.items()
    }
    return profile.model_copy(update={"operators": operators})


# ---------------------------------------------------------------- plans of them


def _placed(plan: DeploymentPlan, found: _Found) -> Iterator[OtherRewriting]:
    """Yield plans of a rewritten dataflow: operators stay on their hosts unless a rule moves them.

    A dataflow without marks is also placed as the optimiser chooses.
    """
    flow, chosen = found.optimised.dataflow, found.optimised.deployment.placement
    if _same(flow, plan.dataflow):
        return
    layers, _ = layers_of(chosen, plan.continuum, flow.order)
    now = plan.deployment.placement
    stay = {id_: now.of(id_) for id_ in flow.order if id_ in plan.dataflow and layers[id_] == found.layers.get(id_)}
    placements = [Placement({id_: stay.get(id_) or chosen.of(id_) for id_ in flow.order})]
    placements += [chosen] if found.optimised.rewriting.placed else []
    edges = {(above, id_) for id_ in flow.order for above in flow[id_].inputs}
    for placement in placements:
        try:
            made = build(flow, plan.continuum, Deployment(cuts=plan.deployment.cuts & edges, placement=placement))
        except HeadwaterError:
            continue
        rules = _changed(plan.written.rules if plan.written else (), found.written.rules)
        yield OtherRewriting(
            name=f"rewritten: {rules[0]}",
            plan=replace(made, written=found.written),
            profile=_measured(plan, found, flow),
            rules=rules,
            why_not=unsafe(plan, made, found.written),
        )


def _measured(plan: DeploymentPlan, found: _Found, flow: Dataflow) -> Profile:
    """Return the profile of a rewritten dataflow; that of operators which run now is the measured one."""

    def work(operator: ops.Operator) -> ops.Operator:
        return replace(operator, inputs=(), layer=None)

    known = found.running.operators
    alike = [o.id for o in flow.operators if o.id in known and work(plan.dataflow[o.id]) == work(o)]
    return found.profile.model_copy(
        update={"operators": {**found.profile.operators, **{id_: known[id_] for id_ in alike}}}
    )


def _same(one: Dataflow, other: Dataflow) -> bool:
    """Return whether two dataflows compute the same in the same order; marks and the order in the file do not count."""
    a, b = ({o.id: replace(o, layer=None) for o in flow.operators} for flow in (one, other))
    return a == b


def _changed(now: tuple[str, ...], then: tuple[str, ...]) -> tuple[str, ...]:
    new = tuple(rule for rule in dict.fromkeys(then) if rule not in now)
    gone = tuple(f"no longer {rule}" for rule in dict.fromkeys(now) if rule not in then)
    return (*new, *gone) or ("the same rules in another order",)


def unsafe(plan: DeploymentPlan, made: DeploymentPlan, written: Written) -> str:
    """Return why the plan of a rewritten dataflow cannot continue the running one; '' if it can.

    State holds rows and groups of before the change, and so do channels that both plans have. A filter behind them that
    moves before them would no longer drop these. Duplicates are an exception: their state is never output.
    """
    assert plan.written is not None
    kept = {c.place: c.operator for c in plan.channels}
    channels = dict.fromkeys(c.operator for c in made.channels if c.place in kept)
    holding = [o.id for o in plan.dataflow.operators if o.stateful and not isinstance(o, stateful.Dedup)]
    for id_ in (*channels, *holding):
        if id_ not in made.dataflow:
            continue
        before = _filters(plan.dataflow, id_, plan.written)
        for filter_, origin in _filters(made.dataflow, id_, written).items():
            if filter_ not in before and (not origin or origin not in before.values()):
                what = "state" if id_ in holding else "channel"
                return f"'{filter_}' would move before '{id_}', whose {what} holds rows that it has to drop"
    return ""


def _filters(flow: Dataflow, id_: str, written: Written) -> Mapping[str, str]:
    """Return the filters before an operator, and the filter of the written dataflow from which each comes."""
    found: dict[str, str] = {}
    todo, seen = list(flow[id_].inputs), set[str]()
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            todo += flow[at].inputs
            if isinstance(flow[at], ops.Where):
                found[at] = origin_of(written, at)
    return found
