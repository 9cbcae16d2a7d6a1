"""Beam searches: bounds hold and placements are valid beside trying everything, at any width and any prices."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from headwater.placement import STRATEGIES, Application, Hosts, PlacedOperator, Problem, Topology, solve
from headwater.placement.beam import beam
from headwater.placement.cost import evaluate, shortages
from headwater.placement.network import Mesh
from headwater.placement.optimal import Effort, optimal
from headwater.placement.places import Places, places
from headwater.placement.prices import priced_tables
from headwater.placement.tables import tables_of_groups, tables_over
from headwater.testing import generate as g
from tests.unit.placements import answer, best, grouped, mixed

ENTRIES = 10**6


def crowded(seed: int) -> Problem:
    """Draw operators of which a host has room for a few only."""
    problem = mixed(seed, operators=5 + seed % 2, hosts=5, zones=3)
    return with_free_cpu(problem, 0.08 + 0.06 * (seed % 4))


def with_free_cpu(problem: Problem, share: float) -> Problem:
    """Let others use all but a share of every host's cpu."""
    hosts = replace(problem.hosts, cpu_used=problem.hosts.cpu * (1 - share))
    return replace(problem, topology=replace(problem.topology, hosts=hosts))


def with_wide_links(problem: Problem) -> Problem:
    """Leave cpu and memory as the only capacities."""
    topology = problem.topology
    hosts = replace(topology.hosts, lan_bandwidth=np.full(len(topology.hosts), math.inf))
    return replace(problem, topology=replace(topology, hosts=hosts, network=topology.network.widened(None, 1e9)))


def every_host(problem: Problem) -> Places:
    """Return all hosts as places, without stand-ins."""
    found = places(problem, dict.fromkeys(range(problem.network.zones), 9))
    assert sorted(found.host.tolist()) == list(range(len(problem.hosts)))
    return found


@pytest.mark.parametrize("seeds", [60, pytest.param(600, marks=pytest.mark.long)])
def test_of_a_beam_the_bound_holds_and_a_wide_one_finds_the_optimum(seeds: int) -> None:
    cut = raised = found = 0
    for seed in range(seeds):
        problem = crowded(seed)
        least, among = best(problem), every_host(problem)
        drawn = np.random.default_rng(seed)
        for prices in (None, drawn.choice([0.0, 1e-4, 1e-3], len(among))):
            made = tables_over(problem, among, ENTRIES, prices)
            assert made is not None
            tables = made[0]
            assert tables.bound <= least * (1 + 1e-9)
            for width in (1, 2, 5, 10_000):
                one = beam(tables, width, math.inf)
                assert one is not None and not one.relaxed
                assert one.bound <= least * (1 + 1e-9), (seed, width)
                raised += one.complete and one.bound > tables.bound * (1 + 1e-9) and math.isfinite(least)
                cut += not one.complete
                if one.placement is not None:
                    found += 1
                    assert not shortages(problem, one.placement)
                    assert evaluate(problem, one.placement).latency == pytest.approx(one.latency)
                    assert one.latency >= least * (1 - 1e-9)
            assert one.complete
            if one.placement is not None and one.latency <= one.bound * (1 + 1e-9):
                assert one.latency == pytest.approx(least)
                # Nothing is below the optimum, so a search for less finds nothing, and says so.
                less = beam(tables, 10_000, least * (1 - 1e-9))
                assert less is not None and less.placement is None and less.bound == least * (1 - 1e-9)
    assert cut > seeds and raised > seeds // 2 and found > seeds


@pytest.mark.parametrize("seeds", [40, pytest.param(400, marks=pytest.mark.long)])
def test_prices_raise_the_bound_up_to_the_optimum_only(seeds: int) -> None:
    higher = 0
    for seed in range(seeds):
        problem = crowded(seed)
        least, among = best(problem), every_host(problem)
        plain = tables_over(problem, among, ENTRIES)
        prices: dict[int, float] = {}
        known = least if math.isfinite(least) else 10.0
        for _ in range(3):  # each run begins with the prices of the last
            priced = priced_tables(problem, among, ENTRIES, known, prices)
            assert plain is not None and priced is not None
            assert plain[0].bound * (1 - 1e-9) <= priced[0].bound
            assert priced[0].bound <= least * (1 + 1e-9), seed
        higher += priced[0].bound > plain[0].bound * (1 + 1e-9)
    assert higher > seeds // 4


def test_operators_of_a_group_take_of_a_host_together() -> None:
    cut = placed = 0
    for seed in range(40):
        problem = with_wide_links(with_free_cpu(grouped(seed, hosts=2), 0.15 + 0.1 * (seed % 3)))
        least, tables = best(problem), tables_of_groups(problem, ENTRIES)
        assert tables is not None and tables.whole
        for width in (1, 3):
            one = beam(tables, width, math.inf)
            assert one is not None and one.bound <= least * (1 + 1e-9), seed
            cut += not one.complete
            assert one.placement is None or one.latency >= least * (1 - 1e-9)
        one = beam(tables, 10_000, math.inf)
        assert one is not None and one.complete and one.bound == pytest.approx(least), seed
        assert one.latency == one.bound and (one.placement is None) == math.isinf(least)
        placed += math.isfinite(least)
    assert 5 < placed < 35 and cut


def test_where_only_hosts_are_full_a_wide_beam_is_exact() -> None:
    infeasible = 0
    for seed in range(40):
        problem = with_wide_links(crowded(seed))
        least, among = best(problem), every_host(problem)
        for prices in (None, np.random.default_rng(seed).choice([0.0, 1e-3], len(among))):
            made = tables_over(problem, among, ENTRIES, prices)
            assert made is not None
            one = beam(made[0], 10_000, math.inf)
            assert one is not None and one.complete and one.bound == pytest.approx(least), seed
            assert one.latency == one.bound and (one.placement is None) == math.isinf(least)
        infeasible += math.isinf(least)
    assert 0 < infeasible < 30


def test_a_host_that_is_exactly_full_has_room() -> None:
    """Sum 0.1, 0.2 and 0.3 in every order: some sums are above 0.6 by rounding."""
    for order in permutations((0.1, 0.2, 0.3)):
        hosts = Hosts(
            cpu=np.array([1.0, 0.6]),
            memory=np.array([1.0, 1.0]),
            zone=np.zeros(2, np.int32),
            lan_latency=np.array([0.0, 0.0]),
            lan_bandwidth=np.array([np.inf, np.inf]),
        )
        topology = Topology(hosts, Mesh(np.zeros((1, 1)), np.array(np.inf)), np.array([False]))
        inner = [PlacedOperator(name=f"o{cpu}", cpu=cpu, hosts=frozenset({1})) for cpu in order]
        operators = (PlacedOperator(name="source", rate=1.0, host=0), *inner, PlacedOperator(name="sink", host=0))
        problem = Problem(topology, Application(operators, {(n, n + 1): 1.0 for n in range(4)}))
        made = tables_over(problem, every_host(problem), ENTRIES)
        assert made is not None
        one = beam(made[0], 10, math.inf)
        assert one is not None and one.placement == (0, 1, 1, 1, 0) and one.complete
        assert one.bound == pytest.approx(best(problem))


@pytest.mark.parametrize("seeds", [60, pytest.param(600, marks=pytest.mark.long)])
def test_where_the_search_in_depth_does_not_end_the_optimum_is_still_that_of_trying_everything(
    seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.placement.optimal._EACH", 0)
    proven = impossible = 0
    for seed in range(seeds):
        problem = crowded(seed)
        least = best(problem)
        for effort in (Effort(nodes=1), Effort(nodes=1, width=1, work=1)):
            found = optimal(problem, effort)
            assert found is not None and found.bound <= least * (1 + 1e-9) <= found.latency * (1 + 2e-9), seed
            if found.placement is not None:
                assert evaluate(problem, found.placement).latency == pytest.approx(found.latency)
                assert not shortages(problem, found.placement)
            assert not found.impossible or math.isinf(least)
            impossible += found.impossible
            proven += found.placement is not None and found.proven
    assert proven > seeds // 2 and impossible


@pytest.mark.parametrize(("operators", "seed", "devices"), [(25, 211, 9), (35, 222, 9), (25, 333, 100), (35, 510, 9)])
def test_graphs_of_which_all_operators_want_one_host_are_bounded(operators: int, seed: int, devices: int) -> None:
    """Draw graphs of which the elimination's bound, which knows no capacities, is far below the optimum."""
    graph = g.series_parallel(operators, seed=seed, sources=1 + seed % 4, sinks=1 + seed % 3)
    problem = g.problem(graph, (10, 10, devices), seed=seed, units="paper")
    if seed == 510:
        problem = with_free_cpu(problem, 0.5)
    found = solve(problem, "optimal")
    assert found.gap is not None and found.gap <= 0.05
    longer = optimal(problem, Effort(nodes=20_000, width=70_000, work=10_000, rounds=20))
    assert longer is not None
    assert found.bound is not None and found.bound <= longer.latency * (1 + 1e-9)
    assert longer.bound <= found.evaluation.latency * (1 + 1e-9)


def test_no_strategy_is_below_the_bound_where_hosts_are_crowded() -> None:
    competing = 0
    for seed in range(500, 510):
        graph = g.series_parallel(25, seed=seed, sources=1 + seed % 4, sinks=1 + seed % 3)
        problem = with_free_cpu(g.problem(graph, (10, 10, 9), seed=seed, units="paper"), 0.5)
        found = solve(problem, "optimal")
        assert found.bound is not None
        competing += found.gap != 0
        for strategy in sorted(STRATEGIES.keys() - {"optimal"}):
            if (placement := answer(problem, strategy)) is None:
                continue
            other = evaluate(problem, placement).latency
            assert found.bound <= other * (1 + 1e-9) and found.evaluation.latency <= other * (1 + 1e-9)
    assert competing


@pytest.mark.parametrize("most", [1, 1000])
def test_groups_that_are_numbered_anew_are_the_same(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where their numbers would not fit into an integer."""
    problem = g.problem(g.series_parallel(60, seed=206, sources=3, sinks=3), (10, 10, 9), seed=206, units="paper")
    usual = solve(problem, "optimal")
    monkeypatch.setattr("headwater.placement.beam._MOST_GROUPS", most)
    again = solve(problem, "optimal")
    assert (again.placement, again.bound) == (usual.placement, usual.bound)
