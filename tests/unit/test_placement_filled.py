"""Placements that fill hosts keep all constraints, and lead to a good one where no host has room for all operators."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.placement import solve
from headwater.placement.cost import evaluate, shortages
from headwater.placement.filled import filled
from headwater.placement.problem import Problem
from headwater.testing import generate


def drawn(seed: int, operators: int, sizes: tuple[int, int, int], units: str) -> Problem:
    graph = generate.series_parallel(operators, seed=seed, sources=1 + seed % 4, sinks=1 + seed % 3)
    return generate.problem(graph, sizes, seed=seed, units=units)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(8, 40),
    st.sampled_from([(3, 3, 4), (10, 10, 9), (20, 5, 5)]),
    st.sampled_from(["paper", "phys", "sim"]),
)
def test_filled_placements_keep_all_constraints(
    seed: int, operators: int, sizes: tuple[int, int, int], units: str
) -> None:
    problem = drawn(seed, operators, sizes, units)
    found = list(filled(problem))
    assert len(found) <= 6
    for placement in found:
        assert not shortages(problem, placement)
    assert found == list(filled(problem))


def test_the_first_host_has_as_many_as_fit_and_the_others_the_rest() -> None:
    problem = drawn(203, 35, (10, 10, 9), "paper")
    best = min(filled(problem), key=lambda one: evaluate(problem, one).latency)
    counts = sorted((best.count(host) for host in set(best)), reverse=True)
    assert counts[0] > 20 and counts[1] > 1, "no host has room for all"


@pytest.mark.parametrize("sizes", [(10, 10, 9), (10, 10, 100)])
def test_operators_that_fit_on_no_host_together_are_placed_well(sizes: tuple[int, int, int]) -> None:
    found = solve(drawn(203, 35, sizes, "paper"), "optimal")
    assert found.evaluation.latency < 3.62, "without filled hosts 5.34 and 3.946 s were found"
    assert found.bound is not None and found.bound > 2.9
