"""Strategies: searches with and without an index agree; the optimum is exact; failures state the reason."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from headwater.core.errors import PlacementError
from headwater.placement import STRATEGIES, Application, PlacedOperator, Problem, solve
from headwater.placement.cost import evaluate, shortages
from headwater.placement.elimination import eliminate
from headwater.placement.index import _BLOCK, Indexed, _find, _loop
from headwater.placement.optimal import Effort, optimal
from headwater.placement.placing import Placing
from headwater.placement.search import HostScan
from headwater.placement.solve import choose
from headwater.placement.tcep import MergedOperators, Sorted, tcep
from headwater.placement.why import Unplaceable
from headwater.testing import generate as g
from tests.unit.placements import answer, best, grouped, mixed


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_index_finds_what_a_scan_finds(strategy: str) -> None:
    placed = 0
    for seed in range(60):
        problem = mixed(seed, operators=7, hosts=24, zones=6, tight=seed % 2 == 0)
        plain = answer(problem, strategy, plain=True)
        assert answer(problem, strategy) == plain, seed
        placed += plain is not None
    assert placed > 15


def test_so_it_does_in_the_variants_of_the_authors_code() -> None:
    differ = 0
    for seed in range(40):
        problem = mixed(seed, operators=7, hosts=24, zones=6)
        edge_first = answer(problem, "aels", edge_first=True)
        assert edge_first == answer(problem, "aels", edge_first=True, plain=True)
        differ += edge_first != answer(problem, "aels")
    assert differ


def test_tcep_as_in_the_authors_code_forgets_bandwidth() -> None:
    wrong = 0
    for seed in range(40):
        problem = mixed(seed, operators=7, hosts=24, zones=6)
        for ranking in (MergedOperators(problem.topology), Sorted(problem.topology)):
            try:
                found = tcep(problem, ranking, checked=False)
            except Unplaceable:
                continue
            short = shortages(problem, found)
            assert all("transfer rate" in s.constraint or "bandwidth" in s.constraint for s in short)
            wrong += bool(short)
    assert wrong > 5


@pytest.mark.parametrize("units", ["phys", "paper", "sim"])
def test_so_it_does_in_the_papers_networks(units: str) -> None:
    problem = g.problem(g.series_parallel(30, seed=5, sources=3, sinks=6), (20, 20, 40), seed=3, units=units)
    for strategy in ("cloud_only", "tcep", "aels", "aels_rp", "aels_rp_la"):
        assert answer(problem, strategy) == answer(problem, strategy, plain=True), strategy


def test_a_full_zone_is_searched_beyond_its_first_blocks() -> None:
    problem = g.problem(g.series_parallel(12, seed=1), (1, 1, 4 * _BLOCK), seed=2, units="paper")
    hosts = problem.hosts
    near = hosts.lan_latency < np.quantile(hosts.lan_latency, 0.9)
    full = replace(hosts, cpu_used=np.where(near, hosts.cpu, 0.0))
    loaded = Problem(replace(problem.topology, hosts=full), problem.application)
    for strategy in ("aels", "aels_rp_la"):
        found = answer(loaded, strategy)
        assert found == answer(loaded, strategy, plain=True)
        assert found != answer(problem, strategy)


def test_compiled_loops_find_the_same() -> None:
    pytest.importorskip("numba")
    problem = mixed(7, operators=7, hosts=24, zones=6)
    for operator in problem.application.order:
        placing = Placing(problem)
        search = Indexed(placing)
        for o in problem.application.order:
            if o == operator:
                break
            placing.put(o, problem.application.operators[o].host or search.cheapest(o) or 0)
        plain = search.cheapest(operator)
        assert search._find is _find
        search._find = _loop(True)
        assert search.cheapest(operator) == plain == HostScan(placing).cheapest(operator)


@pytest.mark.parametrize("seeds", [80, pytest.param(300, marks=pytest.mark.long)])
def test_the_optimum_is_that_of_trying_everything(seeds: int) -> None:
    """Compare in small networks with tight hosts and links."""
    proven = infeasible = 0
    for seed in range(seeds):
        problem = mixed(seed, operators=4 + seed % 2, hosts=6, tight=seed % 2 == 0)
        least = best(problem)
        found = optimal(problem, Effort(rounds=12))
        assert found is not None
        if least == math.inf:
            assert found.placement is None
            infeasible += 1
            continue
        assert found.placement is not None
        assert found.bound <= least * (1 + 1e-9) <= found.latency * (1 + 2e-9)
        assert found.latency == pytest.approx(evaluate(problem, found.placement).latency)
        if found.proven:
            assert found.latency == pytest.approx(least)
        proven += found.proven
    assert proven + infeasible == seeds
    assert infeasible


@pytest.mark.parametrize("seeds", [40, pytest.param(150, marks=pytest.mark.long)])
def test_so_it_is_where_operators_list_their_hosts(seeds: int) -> None:
    """Listed hosts may be weaker than others of their zone, and far from everything that is pinned."""
    infeasible = 0
    for seed in range(seeds):
        problem = listed(mixed(seed, operators=4 + seed % 2, hosts=8, tight=seed % 2 == 0), seed)
        least = best(problem)
        found = optimal(problem, Effort(rounds=12))
        assert found is not None
        assert found.impossible == (least == math.inf)
        if found.impossible:
            infeasible += 1
            continue
        assert found.placement is not None and found.proven, seed
        assert not shortages(problem, found.placement)
        assert evaluate(problem, found.placement).latency == pytest.approx(found.latency)
        assert found.latency == pytest.approx(least)
    assert infeasible


def listed(problem: Problem, seed: int) -> Problem:
    """Let operators run on drawn hosts only."""
    drawn = np.random.default_rng(seed)
    operators = list(problem.application.operators)
    every = np.arange(len(problem.hosts))
    for o in problem.application.free:
        if drawn.random() < 0.6:
            among = drawn.choice(every, size=int(drawn.integers(1, 5)), replace=False)
            operators[o] = replace(operators[o], hosts=frozenset(among.tolist()))
    return replace(problem, application=Application(tuple(operators), problem.application.streams))


@pytest.mark.parametrize("seeds", [20, pytest.param(80, marks=pytest.mark.long)])
def test_so_it_is_for_groups_with_several_hosts_on_a_level(seeds: int) -> None:
    """Operators of a group may run on any of their hosts of a level, if all are on one level."""
    infeasible = 0
    for seed in range(seeds):
        problem = grouped(seed, hosts=2)
        least = best(problem)
        found = optimal(problem)
        assert found is not None and found.impossible == (least == math.inf)
        if found.impossible:
            infeasible += 1
            continue
        assert found.placement is not None and found.proven, seed
        assert not shortages(problem, found.placement)
        assert found.latency == pytest.approx(least)
    assert infeasible


def test_of_large_groups_no_bound_is_claimed() -> None:
    placed = 0
    for seed in range(10):
        problem = grouped(seed, hosts=6, size=3)  # 216 choices on a level
        if (least := best(problem)) == math.inf:
            continue
        placed += 1
        found = solve(problem, "optimal")
        assert found.bound is None or found.bound <= least * (1 + 1e-9)
        for strategy in sorted(STRATEGIES.keys() - {"cloud_only"}):
            assert found.evaluation.latency <= solve(problem, strategy).evaluation.latency * (1 + 1e-9), strategy
    assert placed > 4


def test_of_long_lists_the_bound_holds() -> None:
    """Of a list that is longer than the candidates, the rest has stand-ins."""
    proven = 0
    for seed in range(20):
        problem = mixed(seed, operators=5, hosts=400, zones=8)
        few = np.random.default_rng(seed).choice(400, size=200, replace=False).tolist()
        operators = tuple(
            replace(o, hosts=frozenset(few)) if o.host is None else o for o in problem.application.operators
        )
        problem = replace(problem, application=Application(operators, problem.application.streams))
        answer = solve(problem, "optimal")
        assert answer.bound is not None and set(answer.placement[o] for o in problem.application.free) <= set(few)
        proven += answer.gap == 0
        for strategy in sorted(STRATEGIES):
            if (found := solve(problem, strategy).evaluation.latency) < answer.evaluation.latency * (1 - 1e-9):
                raise AssertionError((seed, strategy, found, answer.evaluation.latency))
            assert answer.bound <= found * (1 + 1e-9), (seed, strategy)
    assert proven > 12


def test_no_strategy_is_below_the_bound() -> None:
    for seed in range(6):
        problem = g.problem(g.series_parallel(14, seed=seed), (5, 6, 20), seed=seed, units=("phys", "paper")[seed % 2])
        least = solve(problem, "optimal")
        assert least.bound is not None and least.gap is not None
        for strategy in STRATEGIES:
            if (found := answer(problem, strategy)) is not None:
                assert least.bound <= evaluate(problem, found).latency * (1 + 1e-9)
                assert least.evaluation.latency <= evaluate(problem, found).latency * (1 + 1e-9) or least.gap > 0


def test_hosts_not_looked_at_are_bounded_by_those_that_stand_in() -> None:
    """Check that bound and optimum are those of a search over every host of every zone."""
    for seed in range(12):
        problem = mixed(seed, operators=5, hosts=40, zones=8, tight=True)
        found = optimal(problem, Effort(work=1))
        wide = optimal(problem, Effort(work=10**9, rounds=20, clouds=8))
        assert found is not None and wide is not None
        assert found.bound <= wide.latency * (1 + 1e-9)
        assert wide.bound <= found.latency * (1 + 1e-9)


def test_local_search_only_betters() -> None:
    better = 0
    for seed in range(20):
        problem = g.problem(g.series_parallel(20, seed=seed, sources=2, sinks=5), (4, 8, 10), seed=seed, units="paper")
        start = answer(problem, "aels_rp_la")
        if start is None:
            continue
        found = solve(problem, "local_search").evaluation.latency
        before = evaluate(problem, start).latency
        assert found <= before * (1 + 1e-9)
        better += found < before * 0.99
    assert better > 5


def test_elimination_gives_the_least_sum() -> None:
    drawn = np.random.default_rng(4)
    sizes = {n: 2 + n % 3 for n in range(6)}
    edges = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 3)]
    factors = [(edge, drawn.random([sizes[v] for v in edge])) for edge in edges]
    factors += [((n,), drawn.random(sizes[n])) for n in sizes]
    every = np.stack(np.meshgrid(*(np.arange(s) for s in sizes.values()), indexing="ij"), -1).reshape(-1, 6)
    sums = [sum(table[tuple(x[list(scope)])] for scope, table in factors) for x in every]
    found = eliminate(sizes, factors, 1000)
    assert found is not None
    assert found.bound == pytest.approx(min(sums))
    cost, values = found.bound, {}
    for variable in found.order:
        more = found.increments(variable, values)
        values[variable] = int(np.argmin(more))
        cost += float(more.min())
    assert cost == pytest.approx(min(sums))
    assert [values[n] for n in range(6)] == every[int(np.argmin(sums))].tolist()
    assert eliminate(sizes, factors, 10) is None


def test_too_large_tables_are_said_and_bettered_step_by_step() -> None:
    problem = g.problem(g.series_parallel(20, seed=3), (4, 8, 10), seed=3)
    small = solve(problem, "optimal", effort=Effort(entries=10))
    assert small.bound is None
    assert "exceed 10 entries" in small.notes[0]
    assert small.evaluation.latency == solve(problem, "local_search").evaluation.latency


def test_what_cannot_be_placed_is_explained() -> None:
    problem = mixed(1, operators=5, hosts=8)
    heavy = list(problem.application.operators)
    at = problem.application.free[0]
    heavy[at] = replace(heavy[at], memory=2000.0)
    impossible = Problem(problem.topology, Application(tuple(heavy), problem.application.streams))
    for strategy in STRATEGIES:
        with pytest.raises(Unplaceable, match=rf"operator '{heavy[at].name}'.*memory") as raised:
            solve(impossible, strategy)
        short = next(s for s in raised.value.shortages if s.constraint == "memory")
        assert short.needed > 2000.0 > short.available
    nowhere = [replace(o, hosts=frozenset()) if n == at else o for n, o in enumerate(heavy)]
    with pytest.raises(Unplaceable, match="allowed host"):
        solve(Problem(problem.topology, Application(tuple(nowhere), problem.application.streams)), "aels")
    with pytest.raises(PlacementError, match="did you mean 'optimal'"):
        solve(problem, "optimum")


def test_regions_keep_what_leads_to_the_edge_at_the_edge() -> None:
    for seed in range(5):
        problem = g.problem(g.series_parallel(16, seed=seed), (4, 8, 10), seed=seed)
        operators, placed = problem.application.operators, solve(problem, "aels_rp").placement
        for o in problem.application.free:
            to_edge = any(not problem.in_cloud(operators[s].host or 0) for s in problem.reached[o])
            assert problem.in_cloud(placed[o]) != to_edge
        assert all(
            problem.in_cloud(h)
            for o, h in enumerate(solve(problem, "cloud_only").placement)
            if operators[o].host is None
        )


def test_networks_are_those_of_table_3() -> None:
    totals = [sites * devices + clouds for clouds, sites, devices in g.TABLE_3]
    assert totals[:15] == [
        110,
        200,
        600,
        1010,
        1010,
        1100,
        1100,
        1500,
        1500,
        5010,
        5010,
        5100,
        5100,
        5500,
        5500,
    ]
    assert totals[15:24] == [10_010, 10_100, 10_500, 50_010, 50_010, 50_100, 50_100, 50_500, 50_500]
    assert totals[24:] == [250_010, 250_100, 250_500]
    clouds, sites, devices = g.TABLE_3[5]
    drawn = g.network(sites, devices, clouds, seed=4)
    again = g.network(sites, devices, clouds, seed=4)
    assert len(drawn.hosts) == 1100
    assert drawn.cloud.sum() == 100
    assert (drawn.hosts.lan_latency == again.hosts.lan_latency).all()
    assert drawn.network.latency((3, 7)) == drawn.network.latency((7, 3)) == again.network.latency((3, 7))
    assert 65e-3 <= drawn.network.latency((3, 7)) <= 85e-3
    assert set(drawn.hosts.cpu) == {4.74e9, 5.02e9, 304.51e9}


def test_applications_are_drawn_by_table_4() -> None:
    problem = g.problem(g.series_parallel(50, seed=2), (10, 10, 10), seed=1)
    application = problem.application
    assert len(application) == 50
    for o in application.free:
        what = application.operators[o]
        assert 1e3 <= what.cpu <= 1e4 and 100 <= what.memory <= 7500
        assert 0.1 <= what.selectivity <= 1 and 0.1 <= what.size_ratio <= 1
    pinned = [application.operators[o].host for o in (*application.sources, *application.sinks)]
    assert None not in pinned
    assert sum(problem.in_cloud(h) for h in pinned if h is not None) == 1
    for source in application.sources:
        assert application.rate_out[source] * application.size_out[source] * 8 <= 80e6
    same = g.problem(g.series_parallel(50, seed=2), (10, 10, 10), seed=1)
    assert same.application.operators == application.operators


def test_graphs_are_read_and_wrong_ones_refused() -> None:
    assert g.read_graph('{"vertices": 3, "edges": [[0, 1], [1, 2], [0, 1]]}') == ((0, 1), (1, 2))
    for text in (
        "",
        "[]",
        '{"vertices": 2}',
        '{"vertices": "many", "edges": []}',
        '{"vertices": 2, "edges": [[0]]}',
    ):
        with pytest.raises(PlacementError, match="the text is not a graph"):
            g.read_graph(text)
    with pytest.raises(PlacementError, match="vertex 5"):
        g.read_graph('{"vertices": 3, "edges": [[0, 5]]}')
    with pytest.raises(PlacementError, match="unknown preset"):
        g.preset("real")


def test_series_parallel_graphs_have_the_sources_and_sinks_asked_for() -> None:
    for size in (2, 3, 10, 50):
        for sources, sinks in ((1, 1), (3, 4)):
            count = size + sources + sinks - 2
            graph = g.series_parallel(count, seed=size, sources=sources, sinks=sinks)
            assert len({o for edge in graph for o in edge}) == count
            operators = tuple(PlacedOperator(name=str(n)) for n in range(count))
            application = Application(operators, dict.fromkeys(graph, 1.0))
            assert (len(application.sources), len(application.sinks)) == (sources, sinks)
    with pytest.raises(PlacementError, match="too few"):
        g.series_parallel(4, seed=1, sources=3, sinks=2)


def test_answers_hold() -> None:
    for seed in range(10):
        problem = mixed(seed, operators=6, hosts=12)
        for strategy in STRATEGIES:
            if (found := answer(problem, strategy)) is not None:
                assert shortages(problem, found) == []


@pytest.mark.parametrize("units", ["phys", "paper", "sim"])
def test_the_optimum_is_never_worse_than_any_other_strategy(units: str) -> None:
    unproven = 0
    for seed in range(8):
        graph = g.series_parallel(20 + seed, seed=seed, sources=3, sinks=4)
        problem = g.problem(graph, (20, 20, 20), seed=seed, units=units)
        # A search that is cut short proves nothing, and must still keep up with the others.
        for effort in (Effort(), Effort(nodes=1, rounds=1, work=1)):
            least = solve(problem, "optimal", effort=effort)
            unproven += least.gap != 0.0
            for strategy in sorted(STRATEGIES.keys() - {"optimal"}):
                try:
                    other = solve(problem, strategy).evaluation.latency
                except Unplaceable:
                    continue
                assert least.evaluation.latency <= other * (1 + 1e-9), (seed, strategy)
            assert least.bound is not None and least.bound <= least.evaluation.latency * (1 + 1e-9)
    assert unproven or units == "phys", "the case is drawn"


def test_thousands_of_operators_are_placed_with_a_proof() -> None:
    count = 6_000
    operators = (
        PlacedOperator(name="source", rate=10.0, size=100.0, host=0),
        *(PlacedOperator(name=f"o{n}", cpu=10.0, selectivity=1.0) for n in range(count)),
        PlacedOperator(name="sink", host=11),
    )
    chain = Application(operators, {(n, n + 1): 1.0 for n in range(count + 1)})
    problem = Problem(g.network(2, 5, 2, seed=1), chain)
    found = solve(problem, "optimal")
    assert found.gap == 0.0 and len(found.placement) == count + 2


def test_tcep_falls_back_to_a_cloud() -> None:
    """Check it where the strongest host is outside of clouds and full."""
    fell = 0
    for seed in range(40):
        problem = mixed(seed, operators=7, hosts=24, zones=6)
        hosts, cloud = problem.hosts, problem.topology.cloud[problem.hosts.zone]
        strong = int(np.flatnonzero(~cloud)[0])
        stronger = replace(hosts, cpu=np.where(np.arange(24) == strong, 900.0, hosts.cpu), cpu_used=None)
        full = replace(stronger, memory_used=np.where(cloud, 0.0, hosts.memory))
        tight = Problem(replace(problem.topology, hosts=full), problem.application)
        try:
            found = choose(tight, "tcep").placement
        except Unplaceable as error:
            assert error.shortages, seed
            continue
        fell += 1
        assert all(cloud[found[o]] for o in tight.application.free), seed
    assert fell > 10
