"""Local search: moves until none is left that helps, and costs that several searches share."""

from __future__ import annotations

import pytest

from headwater.placement.cost import evaluate, shortages
from headwater.placement.index import Indexed
from headwater.placement.local import MoveCosts, local_search
from headwater.placement.placing import Placing
from headwater.placement.problem import Placement, Problem
from headwater.placement.solve import choose
from headwater.placement.why import Unplaceable
from headwater.testing import generate as g


def drawn(seed: int) -> Problem:
    graph = g.series_parallel(12 + seed, seed=seed, sources=1 + seed % 4, sinks=1 + seed % 3)
    return g.problem(graph, (10, 10, 9), seed=seed, units=("paper", "phys", "sim")[seed % 3])


def starts(problem: Problem) -> list[Placement]:
    found = []
    for name in ("cloud_only", "aels", "aels_rp", "tcep"):
        try:
            placement = choose(problem, name).placement
        except Unplaceable:
            continue
        if not shortages(problem, placement):
            found.append(placement)
    return found


def searched(problem: Problem, start: Placement, costs: MoveCosts | None = None) -> Placement:
    return local_search(problem, start, Indexed(Placing(problem)), costs=costs)


@pytest.mark.parametrize("seed", range(24))
def test_it_ends_where_no_move_helps(seed: int) -> None:
    problem = drawn(seed)
    for start in starts(problem):
        found = searched(problem, start)
        assert searched(problem, found) == found
        assert evaluate(problem, found).latency <= evaluate(problem, start).latency


@pytest.mark.parametrize("seed", range(24))
def test_shared_costs_change_nothing(seed: int) -> None:
    problem = drawn(seed)
    shared = MoveCosts(problem)
    for start in starts(problem):
        assert searched(problem, start, shared) == searched(problem, start)
