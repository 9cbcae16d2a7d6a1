"""Choose the rewriting together with cuts and hosts: by the cost of a placement strategy, within its limits. Pure.

``optimise`` saves bytes over links and then load. That can cost time: a partial aggregate on a slow host takes longer
than its rows on a fast link, or leaves no memory there for others. So rules that were applied are left out again where
the strategy's placement costs less without them: of a few, every set is tried, of many, each rule and all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations

from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError
from headwater.core.quantity import format_duration
from headwater.dataflow.graph import Dataflow
from headwater.plan.deployment import layers_of
from headwater.plan.optimise import Optimised, RuleUse, optimise
from headwater.plan.place import PlacementRequest, place
from headwater.plan.prediction import Prediction
from headwater.plan.profile import Known, Profile
from headwater.plan.setting import Setting
from headwater.rewrite.rule import RewriteRule

_FEW = 4
"""Applied rules of which every set is left out for a trial."""
_LEAST = 1e-3
"""Share of the cost that is saved, at least, where a rule that saves bytes is left out."""


def setting_of(optimised: Optimised, continuum: Continuum) -> Setting:
    """Return the setting in which a rewritten dataflow is placed."""
    flow = optimised.dataflow
    layers, _ = layers_of(optimised.deployment.placement, continuum, flow.order)
    return Setting(flow, continuum, layers, Known(flow, optimised.profile))


def optimise_placed(
    dataflow: Dataflow,
    continuum: Continuum,
    profile: Profile | None,
    rules: tuple[RewriteRule, ...],
    request: PlacementRequest,
) -> Optimised:
    """Rewrite a dataflow by the rules with which the requested strategy finds the placement of least cost.

    The cost is RU, within the limits, for a scheduler, and AL, in seconds, for any other strategy. Rules that are
    left out are among ``Rewriting.rules``, with the cost with them and without, or as useless. Raises the errors of
    the marks, and PlacementError where the strategy finds no placement, rewritten or not.
    """
    rewriter = _Rewriter(dataflow, continuum, profile, request)
    best = rewriter.choice(rules)
    told: dict[str, RuleUse] = {}
    costly: set[str] = set()
    while True:
        applied = {use.rule: use for use in reversed(best.optimised.rewriting.rules) if use.applied}
        tried = {
            names: rewriter.choice(tuple(r for r in best.rules if r.name not in names)) for names in _sets(applied)
        }
        better = [names for names, choice in tried.items() if choice.is_better(best)]
        if not better:
            break
        least = min((tried[names] for names in better), key=lambda choice: choice.order)
        as_good = [names for names in better if not least.costs_less(tried[names])]
        names = min(as_good, key=lambda n: (len(n), tried[n].order))
        what = f"the placement by '{request.strategy}' makes no use of it"
        if tried[names].costs_less(best):
            what = f"strategy '{request.strategy}' has {best.figure} with it, and {tried[names].figure} without"
            costly |= set(names)
        for name in names:
            told[name] = RuleUse(rule=name, operator=applied[name].operator, applied=False, what=what)
        best = tried[names]
    if best.error is not None:
        raise best.error
    rewriting = replace(best.optimised.rewriting, rules=(*best.optimised.rewriting.rules, *told.values()))
    return replace(best.optimised, rewriting=rewriting, left_out=frozenset(costly))


def _sets(rules: Iterable[str]) -> list[tuple[str, ...]]:
    """Return sets of rules to leave out: all of a few; of many each one, and all together."""
    names = tuple(rules)
    sizes = range(1, len(names) + 1) if len(names) <= _FEW else sorted({1, len(names)})
    return [among for size in sizes for among in combinations(names, size)]


@dataclass(frozen=True, kw_only=True)
class _PlacedRewriting:
    """A rewriting by some rules, and the prediction of the strategy's placement; ``error``: it finds none."""

    rules: tuple[RewriteRule, ...]
    optimised: Optimised
    prediction: Prediction | None = None
    error: HeadwaterError | None = None

    @property
    def cost(self) -> float:
        """RU of a scheduler's placement; AL of others."""
        if self.prediction is None:
            return math.inf
        check = self.prediction.limit_check
        return self.prediction.latency if check is None else check.cost

    @property
    def breaks_limits(self) -> bool:
        """Whether limits of a scheduler are broken."""
        check = None if self.prediction is None else self.prediction.limit_check
        return check is not None and not check.kept

    @property
    def order(self) -> tuple[bool, bool, float, float]:
        """Its place among others: placed, within the limits, at least cost, with the fewest bytes over links."""
        return self.error is not None, self.breaks_limits, self.cost, self._bytes_per_s

    @property
    def _bytes_per_s(self) -> float:
        return math.fsum(x.bytes_per_s for x in self.prediction.links.values()) if self.prediction else math.inf

    def costs_less(self, other: _PlacedRewriting) -> bool:
        """Return whether it is placed, or within the limits, where the other is not, or costs less by a share."""
        if self.order[:2] != other.order[:2]:
            return self.order[:2] < other.order[:2]
        return self.cost < other.cost * (1 - _LEAST)

    def is_better(self, other: _PlacedRewriting) -> bool:
        """Return whether it costs less than the other, or as much, with no more bytes: then the rules are useless."""
        as_good = all(one <= two for one, two in zip(self.order, other.order, strict=True))
        return as_good or self.costs_less(other)

    @property
    def figure(self) -> str:
        """Its cost, in words."""
        if self.prediction is None:
            return "no placement"
        check = self.prediction.limit_check
        cost = f"AL {format_duration(self.cost)}" if check is None else f"RU {self.cost:.3g}"
        return f"{cost} and broken limits" if self.breaks_limits else cost


@dataclass(frozen=True)
class _Rewriter:
    """Rewrite one dataflow by some rules, and place it as requested."""

    dataflow: Dataflow
    continuum: Continuum
    profile: Profile | None
    request: PlacementRequest

    def choice(self, rules: tuple[RewriteRule, ...]) -> _PlacedRewriting:
        optimised = optimise(self.dataflow, self.continuum, self.profile, rules)
        try:
            _, prediction = place(setting_of(optimised, self.continuum), self.request)
        except HeadwaterError as error:
            return _PlacedRewriting(rules=rules, optimised=optimised, error=error)
        return _PlacedRewriting(rules=rules, optimised=optimised, prediction=prediction)
