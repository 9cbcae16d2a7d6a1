"""From a problem and a strategy's name to a checked answer. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from headwater.core.errors import HeadwaterError, PlacementError, suggestion
from headwater.placement.cost import Evaluation, evaluate, shortages
from headwater.placement.filled import filled
from headwater.placement.greedy import GREEDY
from headwater.placement.hostcut import PRICES
from headwater.placement.index import Indexed
from headwater.placement.local import MoveCosts, local_search
from headwater.placement.necessary import HostPrices, hopeless
from headwater.placement.optimal import Effort, optimal
from headwater.placement.placing import Placing
from headwater.placement.problem import Placement, Problem
from headwater.placement.relax import explained
from headwater.placement.search import HostScan
from headwater.placement.tcep import MergedOperators, Sorted, tcep
from headwater.placement.why import Unplaceable

_IMPROVED = 1
"""Placements of other strategies that are improved step by step where the optimum is not proven: ``local_search``."""
_FILLED = 2
"""Placements of ``filled`` from which ``local_search`` starts."""
_FAR = 0.2
"""Relative distance to a bound beyond which local search begins from the other placements, too."""
_NEAR = 0.05
"""Relative distance to a bound within which no other one is improved."""
_WORTH = 3.0
"""Multiple of the least AL of all placements above which local search does not begin from one."""

_STARTS = ("aels_rp_la", "aels", "cloud_only")
"""Strategies from whose placement ``local_search`` starts: the first that finds one."""
_QUICK = ("aels", "tcep")
"""Strategies that are tried before a search."""
_SHORT = Effort(nodes=2_000, width=0, rounds=5)
_SHORTER = Effort(nodes=300, width=0, rounds=2, most=2)
"""Of each of the many searches for a sufficient change."""


@dataclass(frozen=True)
class StrategyChoice:
    """Result of a strategy: a placement, perhaps a lower bound, and notes for the user."""

    placement: Placement
    bound: float | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Answer:
    """A valid placement and its cost.

    ``bound``: the least AL (s, without the windows' waiting) of any placement on any hosts; None if the strategy
    gives none. ``notes``: limitations of the search, for the user.
    """

    strategy: str
    placement: Placement
    evaluation: Evaluation
    bound: float | None = None
    notes: Sequence[str] = ()

    @property
    def gap(self) -> float | None:
        """Relative distance of AL to the bound; 0: optimal."""
        if self.bound is None:
            return None
        over = self.evaluation.latency - self.bound
        return 0.0 if over <= 1e-9 * self.evaluation.latency else over / self.bound if self.bound else math.inf


def solve(problem: Problem, strategy: str = "optimal", *, plain: bool = False, **options: Any) -> Answer:
    """Place a problem by a strategy, one of ``STRATEGIES``; every answer is checked against all constraints.

    ``plain``: look at every host instead of using the index; slower, with the same answer. Options are the
    strategy's own: ``edge_first`` of ``aels``, ``checked`` of ``tcep``, ``effort`` of ``optimal``.

    Where one of the paper's strategies over edge and cloud finds no placement, ``local_search`` does if there is one,
    and a note says so; ``cloud_only`` means what it says.

    Raises PlacementError for an unknown strategy, Unplaceable with the missing capacity if no placement is found.
    """
    _check_name(strategy)
    try:
        if (lacks := hopeless(problem)) is not None:
            raise lacks
        found = choose(problem, strategy, plain=plain, **options)
        if wrong := shortages(problem, found.placement):
            raise Unplaceable(problem.application.operators[wrong[0].operator or 0].name, wrong)
    except Unplaceable as error:
        found = _rescued(problem, strategy, plain, error)
    return Answer(strategy, found.placement, evaluate(problem, found.placement), found.bound, found.notes)


def choose(problem: Problem, strategy: str, *, plain: bool = False, **options: Any) -> StrategyChoice:
    """Run a strategy as ``solve`` does, without the check and the evaluation."""
    _check_name(strategy)
    while True:
        try:
            return STRATEGIES[strategy](problem, plain, dict(options))
        except Unplaceable as error:
            # A group did not fit into the level of its first operator: retry without that level.
            if error.tie is None or error.tie in problem.banned:
                raise
            problem = replace(problem, banned=problem.banned | {error.tie})


def _check_name(strategy: str) -> None:
    if strategy not in STRATEGIES:
        raise PlacementError(
            f"unknown strategy '{strategy}'",
            hint=suggestion(strategy, STRATEGIES, "the strategies are"),
        )


def _rescued(problem: Problem, strategy: str, plain: bool, error: Unplaceable) -> StrategyChoice:
    """Return a placement where a strategy finds none; raise Unplaceable with the smallest sufficient change."""
    # `optimal` has asked all quick strategies, and searched for as long as it is worth.
    start = None if error.certain or strategy == "optimal" else any_placement(problem)
    if start is None:
        raise explained(problem, error, partial(any_placement, effort=_SHORTER)) from None
    if strategy == "cloud_only":
        raise error
    search = (HostScan if plain else Indexed)(Placing(problem))
    note = f"{strategy} by itself finds {error.what}: this is a placement of local_search"
    return StrategyChoice(local_search(problem, start, search), notes=(note,))


def any_placement(
    problem: Problem, prices: HostPrices | None = None, at_once: bool = False, *, effort: Effort = _SHORT
) -> Placement | None:
    """Return a placement within all constraints; None if a short search finds none, or ``at_once`` no quick strategy.

    ``prices``: as in ``hopeless``.
    """
    if hopeless(problem, prices, 1 if at_once else PRICES) is not None:
        return None
    if (found := _first(problem)) is not None or at_once:
        return found
    best = optimal(problem, effort)
    if best is None or best.placement is None or shortages(problem, best.placement):
        return None
    return best.placement


def _first(problem: Problem) -> Placement | None:
    """Return the first placement within all constraints that a quick strategy finds."""
    for name in _QUICK:
        try:
            found = choose(problem, name).placement
        except Unplaceable:
            continue
        if not shortages(problem, found):
            return found
    return None


_Strategy = Callable[[Problem, bool, dict[str, Any]], StrategyChoice]


def _greedy(name: str) -> _Strategy:
    def run(problem: Problem, plain: bool, options: dict[str, Any]) -> StrategyChoice:
        return StrategyChoice(GREEDY[name](problem, HostScan if plain else Indexed, **options))

    return run


def _tcep(problem: Problem, plain: bool, options: dict[str, Any]) -> StrategyChoice:
    return StrategyChoice(tcep(problem, (Sorted if plain else MergedOperators)(problem.topology), **options))


def _local_search(problem: Problem, plain: bool, options: dict[str, Any]) -> StrategyChoice:
    search = (HostScan if plain else Indexed)(Placing(problem))
    return StrategyChoice(local_search(problem, _start(problem), search, **options))


def _start(problem: Problem) -> Placement:
    """Return the first placement that a strategy finds; if none does, raise the first error."""
    failed: list[HeadwaterError] = []
    for name in _STARTS:
        try:
            return GREEDY[name](problem, Indexed)
        except Unplaceable as error:
            failed.append(error)
    raise failed[0]


def _optimal(problem: Problem, plain: bool, options: dict[str, Any]) -> StrategyChoice:
    effort = options.pop("effort", Effort())
    others = _Others(problem, plain)
    found = optimal(problem, effort, partial(others.improved, _IMPROVED), **options)
    if found is None:
        note = (
            f"tables over its operators exceed {effort.entries:,} entries: this is the best placement of all other "
            "strategies, improved step by step, without a bound"
        )
        return StrategyChoice(others.any_improved(None), notes=(note,))
    if found.placement is not None and found.proven:
        return StrategyChoice(found.placement, found.bound)
    if found.impossible:
        raise _impossible(problem)
    placement = others.any_improved(_IMPROVED, found.placement)
    if evaluate(problem, placement).latency > found.bound * (1 + _FAR):
        placement = others.any_improved(None, placement, enough=found.bound * (1 + _NEAR))
    if evaluate(problem, placement).latency <= found.bound * (1 + 1e-9):
        return StrategyChoice(placement, found.bound)
    notes = (f"the search ended after {found.steps:,} steps without a full proof",)
    return StrategyChoice(placement, found.bound or None, notes)


def _impossible(problem: Problem) -> Unplaceable:
    """Return the error of a problem that is known to have no placement."""
    try:
        wrong = shortages(problem, choose(problem, "aels").placement)
        error = Unplaceable(problem.application.operators[wrong[0].operator or 0].name, wrong)
    except Unplaceable as found:
        error = found
    error.certain = True
    return error


class _Others:
    """Placements of the other strategies, some of which are improved step by step."""

    def __init__(self, problem: Problem, plain: bool) -> None:
        self._problem, self._plain = problem, plain
        self._failed: list[Unplaceable] = []
        self._known: dict[Placement, float] = {}
        self._tried: set[Placement] = set()
        self._costs = MoveCosts(problem)

    @cached_property
    def _starts(self) -> list[Placement]:
        """The placement from which ``local_search`` starts, then the others, the best first."""
        found: dict[str, Placement] = {}
        for name in (*GREEDY, "tcep"):
            try:
                placement = STRATEGIES[name](self._problem, self._plain, {}).placement
            except Unplaceable as error:
                self._failed.append(error)
                continue
            if not shortages(self._problem, placement):
                found[name] = placement
                self._add(placement)
        start = [found[name] for name in _STARTS if name in found][:1]
        filling = [one for one in filled(self._problem) if not shortages(self._problem, one)]
        for one in filling:
            self._add(one)
        filling.sort(key=lambda one: self._known[one])
        ranked = sorted((*found.values(), *filling[:_FILLED]), key=lambda one: self._known[one])
        near = [one for one in ranked if self._known[one] <= _WORTH * self._known[ranked[0]]]
        return list(dict.fromkeys((*start, *near)))

    def improved(self, count: int | None, enough: float = 0.0) -> tuple[Placement, float] | None:
        """Return the best placement and its AL, after the first ``count`` (None: all) are improved, if any.

        ``enough``: the AL (s) from which no more are improved.
        """
        for start in self._starts[:count]:
            if min(self._known.values()) > enough:
                self._improve(start)
        return min(self._known.items(), key=lambda one: one[1], default=None)

    def any_improved(self, count: int | None, known: Placement | None = None, enough: float = 0.0) -> Placement:
        """Return the same, also improved from a ``known`` placement. Raises the first error if there is none."""
        if known is not None:
            self._add(known)
            self._improve(known)
        found = self.improved(count, enough)
        if found is None:
            raise self._failed[0]
        return found[0]

    def _improve(self, start: Placement) -> None:
        if start not in self._tried:
            self._tried.add(start)
            search = (HostScan if self._plain else Indexed)(Placing(self._problem))
            better = local_search(self._problem, start, search, costs=self._costs)
            self._tried.add(better)
            self._add(better)

    def _add(self, placement: Placement) -> None:
        if placement not in self._known:
            self._known[placement] = evaluate(self._problem, placement).latency


STRATEGIES: dict[str, _Strategy] = {
    **{name: _greedy(name) for name in GREEDY},
    "tcep": _tcep,
    "local_search": _local_search,
    "optimal": _optimal,
}
