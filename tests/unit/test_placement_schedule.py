"""Schedulers over cut tables: tsoo_exact against exhaustive search, the others against their papers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from headwater.core.errors import PlacementError
from headwater.placement import Application, Problem, Topology
from headwater.placement.cutnumbers import CutLoad
from headwater.placement.exact import Exactness, tsoo_exact
from headwater.placement.lacking import lacking
from headwater.placement.merged import together
from headwater.placement.network import Tree
from headwater.placement.problem import Ints
from headwater.placement.response import response
from headwater.placement.schedule import SCHEDULERS, decide, scheduler, tables
from headwater.placement.situation import Limits, ScheduleDecision, Situation
from headwater.placement.tsoo import data_min_cut, least
from headwater.placement.usage import Weights, resource_usage
from headwater.testing import fog
from headwater.testing.fog import APP_1, APP_2, DEVICES, three_layers

LIMITS = Limits(max_latency=1.0, max_bandwidth=125e6 * 8, links=False)
FULL = Exactness(steps=1_000_000, most_steps=1_000_000, price=0.0)
MBIT = 1e6


def small(app: fog.FogApplication, total: int, *, seed: int, nodes: int = 3, span: float = 0.5) -> Problem:
    """Return a problem of the evaluation with fewer fog nodes, and as many devices at each."""
    topology = fog.fog(seed=seed, nodes=nodes, cloud="vm")
    counts = fog.devices(total * nodes // 10, seed=seed + 1, areas=nodes)
    return Problem(topology, fog.application(app, counts, seed=seed + 2, span=span))


def every(situation: Situation) -> Iterator[Ints]:
    for choices in itertools.product(*(range(n) for n in situation.table.shape.choices)):
        yield np.array(choices, dtype=np.int64)


def least_of_all(situation: Situation) -> float:
    """Try every selection; return the least cost within the limits, ∞ if there is none."""
    measured = (situation.measure(selection) for selection in every(situation))
    return min((m.cost for m in measured if situation.keeps(m)), default=math.inf)


@pytest.mark.parametrize("app", [APP_1, APP_2])
@pytest.mark.parametrize("total", [DEVICES[0], DEVICES[5]])
def test_a_table_measures_what_the_models_say(app: fog.FogApplication, total: int) -> None:
    problem = small(app, total, seed=4)
    (table,) = tables(problem)
    situation = Situation(table, CutLoad.of(problem), LIMITS)
    drawn = np.random.default_rng(1)
    for _ in range(5):
        selection = np.array([drawn.integers(n) for n in table.shape.choices])
        placement = table.placement(selection)
        assert table.selection(placement) is not None
        measured, usage = situation.measure(selection), resource_usage(problem, placement)
        assert (measured.cost, measured.bandwidth) == pytest.approx((usage.total, usage.bandwidth))
        assert measured.worst == pytest.approx(response(problem, placement).worst)


@pytest.mark.parametrize("seed", range(2))
def test_with_three_layers_too(seed: int) -> None:
    problem = three_layers(seed)
    weights = Weights(0.3, 0.7)
    (table,) = tables(problem, weights)
    situation = Situation(table, CutLoad.of(problem), Limits())
    for selection in itertools.islice(every(situation), 0, None, 7):
        placement = table.placement(selection)
        measured, usage = situation.measure(selection), resource_usage(problem, placement, weights)
        assert (measured.cost, measured.bandwidth) == pytest.approx((usage.total, usage.bandwidth))
        assert measured.times.tolist() == pytest.approx([*response(problem, placement).by_source.values()])


def test_a_table_takes_in_new_numbers_as_a_new_problem_would() -> None:
    problem = three_layers(3)
    (table,) = tables(problem)
    hosts, tree = problem.hosts, problem.network
    assert isinstance(tree, Tree)
    operators = list(problem.application.operators)
    for source in problem.application.sources:
        operators[source] = replace(operators[source], rate=2.5 * operators[source].rate)
    processes = np.arange(len(hosts))
    used = np.append(np.full(len(hosts) - 1, 5 * MBIT), 0.0)
    busier = replace(hosts, memory_used=0.3 * hosts.memory[:-1].min() * np.ones(len(hosts)), processes=processes)
    network = replace(tree, used=used)
    topology = Topology(busier, network, problem.topology.cloud, problem.topology.level)
    after = Problem(topology, Application(tuple(operators), problem.application.streams))
    (fresh,) = tables(after)
    for selection in itertools.islice(every(Situation(table, CutLoad.of(after), Limits())), 0, None, 11):
        one = Situation(table, CutLoad.of(after), Limits()).measure(selection)
        other = Situation(fresh, CutLoad.of(after), Limits()).measure(selection)
        assert one.fits == other.fits
        assert (one.cost, *one.times) == pytest.approx((other.cost, *other.times))


@pytest.mark.parametrize("nodes", [2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("total", [12_000, 33_000, 61_000])
@pytest.mark.parametrize("seed", range(2))
def test_the_exact_one_finds_the_least_of_all(total: int, seed: int, nodes: int) -> None:
    problem = small(APP_1, total, seed=seed, nodes=nodes)
    (table,) = tables(problem)
    for limits in (LIMITS, replace(LIMITS, max_bandwidth=8e6 * 8), replace(LIMITS, max_latency=0.6)):
        situation = Situation(table, CutLoad.of(problem), limits)
        found, least = tsoo_exact(situation, FULL), least_of_all(situation)
        assert found.kept == (least < math.inf)
        if found.kept:
            assert found.measured.cost == pytest.approx(least) and found.bound == pytest.approx(least)
        else:
            assert found.bound == math.inf


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 12))])
def test_the_exact_one_where_zones_are_shared(seed: int) -> None:
    """Memory, links and CPU of sites couple the branches; rows that met stay together."""
    problem = three_layers(seed, most_memory=2e6 if seed % 2 else 4e6)
    (table,) = tables(problem)
    found = 0
    for limits in (Limits(), Limits(max_latency=0.55), Limits(max_bandwidth=6 * MBIT, max_latency=0.9)):
        situation = Situation(table, CutLoad.of(problem), limits)
        decision, least = tsoo_exact(situation, FULL), least_of_all(situation)
        assert decision.kept == (least < math.inf)
        found += decision.kept
        if decision.kept:
            assert decision.measured.cost == pytest.approx(least)
    assert table.shape.keys > 0 and found


def test_rows_that_met_in_a_zone_stay_together() -> None:
    problem = three_layers(1, most_memory=1e9)
    (table,) = tables(problem)
    situation = Situation(table, CutLoad.of(problem), Limits(links=False))
    parted = 0
    zone = problem.hosts.zone
    for selection in every(situation):
        placement = table.placement(selection)
        # Locations 0 and 1 are below one site: rows that leave it together stay together.
        goes: dict[tuple[int, int], int] = {}
        apart = False
        for k in (1, 2):
            for j in (0, 1):
                at, to = zone[placement[4 * j + k]], zone[placement[4 * j + k + 1]]
                apart = apart or goes.setdefault((k, at), to) != to
        assert situation.measure(selection).fits == (not apart)
        parted += apart
    assert parted


def moved(situation: Situation, decision: ScheduleDecision) -> int:
    """Return the number of operators that a decision moves."""
    return int(situation.moved[np.arange(len(decision.selection)), decision.selection].sum())


def test_a_change_has_its_price() -> None:
    problem = small(APP_2, 33_000, seed=5)
    (table,) = tables(problem)
    load = CutLoad.of(problem)
    free = tsoo_exact(Situation(table, load, LIMITS), FULL)
    first = Situation(table, load, LIMITS).all_down
    moving = Situation(table, load, replace(LIMITS, max_latency=math.inf), first)
    cheap = tsoo_exact(moving, replace(FULL, price=0.0))
    dear = tsoo_exact(moving, replace(FULL, price=10.0))
    assert moved(moving, cheap) > moved(moving, dear)
    assert cheap.measured.cost < dear.measured.cost
    assert free.measured.cost >= cheap.measured.cost


def test_what_runs_stays_where_nothing_keeps_to_the_limits() -> None:
    problem = small(APP_2, 75_000, seed=5, nodes=2)
    (table,) = tables(problem)
    none = replace(LIMITS, max_latency=0.2)
    selection = np.array([3, 1])
    situation = Situation(table, CutLoad.of(problem), none, selection)
    stays, goes = tsoo_exact(situation), tsoo_exact(situation, Exactness(stay=False))
    assert stays.selection.tolist() == selection.tolist() and not stays.kept and stays.bound == math.inf
    assert not goes.kept and goes.measured.worst <= stays.measured.worst
    short = lacking(situation)
    assert short is not None and short.constraint == "max_latency"
    least = min(situation.measure(s).worst for s in every(situation) if situation.measure(s).fits)
    assert 0.2 < short.needed <= least


def test_the_binding_limit_is_named() -> None:
    problem = small(APP_2, 33_000, seed=6, nodes=2)
    (table,) = tables(problem)
    load = CutLoad.of(problem)
    few = Situation(table, load, replace(LIMITS, max_bandwidth=1.0))
    short = lacking(few)
    assert short is not None and short.constraint == "max_bandwidth"
    least = min(few.measure(s).bandwidth for s in every(few) if few.measure(s).fits)
    assert short.needed == pytest.approx(least)
    assert lacking(Situation(table, load, Limits(links=False))) is None
    assert isinstance(problem.network, Tree)
    memory, links = (np.where(np.isfinite(a), a, 0) for a in (problem.hosts.memory, problem.network.bandwidth))
    short = lacking(Situation(table, replace(load, memory=memory, links=links), Limits()))
    assert short is not None and short.constraint == "bandwidth" and short.link is not None
    assert problem.topology.cloud[short.link[1]]


def test_an_unstable_queue_is_never_within_limits() -> None:
    problem = small(APP_2, 75_000, seed=2)
    slow = replace(problem.hosts, cpu=problem.hosts.cpu / 1e4)
    problem = Problem(replace(problem.topology, hosts=slow), problem.application)
    for name in SCHEDULERS:
        for limits in (replace(LIMITS, max_latency=1e9), Limits(links=False)):
            found = decide(problem, name, limits)
            assert not found.decision.kept and found.decision.measured.worst == math.inf
    short = lacking(found.situation)
    assert short is not None and short.constraint == "max_latency" and short.needed == math.inf


def test_tsoo_is_optimal_where_the_cheapest_cuts_will_do() -> None:
    problem = small(APP_1, 12_000, seed=1, nodes=2)
    (table,) = tables(problem)
    situation = Situation(table, CutLoad.of(problem), LIMITS)
    assert scheduler("tsoo_h")(situation).measured.cost == pytest.approx(least_of_all(situation))


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("seed", range(3))
def test_what_a_scheduler_says_holds(name: str, seed: int) -> None:
    """Check that no scheduler finds less than the optimum, and that each adapts a running plan to other rates."""
    current = None
    for total in (12_000, 40_000, 26_000):
        problem = small(APP_1, total, seed=seed, nodes=2)
        (table,) = tables(problem)
        situation = Situation(table, CutLoad.of(problem), LIMITS, current)
        decision = scheduler(name)(situation)
        if decision.kept:
            assert decision.measured.cost >= least_of_all(situation) * (1 - 1e-9)
            placement = table.placement(decision.selection)
            assert response(problem, placement).worst <= LIMITS.max_latency
            assert resource_usage(problem, placement).bandwidth <= LIMITS.max_bandwidth
        current = decision.selection


def test_heuristics_keep_merged_rows_in_one_channel_over_three_layers() -> None:
    divided = 0
    for seed in range(30):
        problem = three_layers(seed, locations=4, most_memory=2e6)
        (table,) = tables(problem)
        given = Situation(table, CutLoad.of(problem), Limits(links=False))
        for of in (given.numbers.cost, given.numbers.network, given.numbers.into_cloud):
            apart = np.argmin(np.where(given.numbers.allowed, of, np.inf), axis=1)
            divided += not (together(given, apart) == apart).all()
            found = least(given, of)
            assert (together(given, found) == found).all()
        for name in SCHEDULERS:
            selection = scheduler(name)(given).selection
            assert (together(given, selection) == selection).all(), (seed, name)
    assert divided


def test_fog_only_runs_all_it_can_below_and_the_cloud_gets_the_rest() -> None:
    problem = small(APP_1, 12_000, seed=1)
    found = decide(problem, "fog_only", LIMITS)
    free = [o for o, what in enumerate(problem.application.operators) if what.host is None]
    assert not any(problem.in_cloud(found.placement[o]) for o in free)
    memory = problem.hosts.memory
    full = replace(problem.hosts, memory_used=np.where(np.isfinite(memory), memory * 0.999999, 0.0))
    crowded = Problem(replace(problem.topology, hosts=full), problem.application)
    up = decide(crowded, "fog_only", LIMITS).placement
    assert all(crowded.in_cloud(up[o]) for o in free)


def test_trcs_keeps_b_between_its_limits() -> None:
    problem = small(APP_1, 54_000, seed=3)
    (table,) = tables(problem)
    load = CutLoad.of(problem)
    whole = Situation(table, load, Limits(links=False))
    most = whole.measure(whole.all_up).bandwidth
    limits = Limits(max_bandwidth=0.7 * most, min_bandwidth=0.5 * most, links=False)
    narrowed = scheduler("trcs")(Situation(table, load, limits))
    assert narrowed.measured.bandwidth <= limits.max_bandwidth
    below = Situation(table, load, limits, whole.all_down)
    widened = scheduler("trcs")(below)
    assert below.measure(whole.all_down).bandwidth < widened.measured.bandwidth <= limits.max_bandwidth


def test_atsoo_changes_little() -> None:
    problem = small(APP_2, 26_000, seed=4)
    (table,) = tables(problem)
    running = scheduler("tsoo_h")(Situation(table, CutLoad.of(problem), LIMITS)).selection
    again = Situation(table, CutLoad.of(problem), LIMITS, running)
    assert moved(again, scheduler("atsoo_h")(again)) == 0


def test_data_min_cut_minimises_nru_and_keeps_b() -> None:
    differs = 0
    for seed in range(16):
        drawn = three_layers(seed)
        operators = [replace(o, selectivity=2.0) if o.logical == "o1" else o for o in drawn.application.operators]
        problem = Problem(drawn.topology, Application(tuple(operators), drawn.application.streams))
        (table,) = tables(problem)
        load = CutLoad.of(problem)
        given = Situation(table, load, Limits(links=False))
        found = data_min_cut(given)
        fitting = [s for s in every(given) if given.measure(s).fits]
        own = np.arange(len(found))

        def nru(selection: Ints, of: Situation = given, own: Ints = own) -> float:
            return float(of.numbers.network[own, selection].sum())

        # Hosts of a site are shared, and each stream is cut by itself.
        least_of_fitting = min(map(nru, fitting))
        assert nru(found) <= least_of_fitting * (1 + 1e-9)
        assert not given.measure(found).fits or nru(found) == pytest.approx(least_of_fitting)
        narrow = min(fitting, key=lambda s: given.measure(s).bandwidth)
        limits = Limits(links=False, max_bandwidth=given.measure(narrow).bandwidth)
        tight = Situation(table, load, limits)
        assert tight.is_narrow(tight.measure(data_min_cut(tight))), seed
        differs += nru(least(given, given.numbers.into_cloud)) > nru(found) * (1 + 1e-9)
    assert differs


def test_the_trunk_goes_where_it_is_best() -> None:
    problem = three_layers(2, locations=2)
    site, whole = 2, 8
    operators = list(problem.application.operators)
    operators[whole] = replace(operators[whole], hosts=frozenset({site, 3}))
    free = Problem(problem.topology, Application(tuple(operators), problem.application.streams))
    assert len(tables(free)) == 2
    dear = decide(free, "tsoo_exact", Limits(), weights=Weights(0.0, 1.0))
    assert dear.placement[whole] == site  # little data leaves the site
    cheap = decide(free, "tsoo_exact", Limits(), weights=Weights(1.0, 0.0))
    assert cheap.placement[whole] == 3
    assert cheap.decision.kept and dear.decision.kept
    # The running placement stays if another one would be only slightly better.
    middle = Weights(0.5, 0.5)
    best = decide(free, "tsoo_exact", Limits(), weights=middle)
    other = next(t for t in tables(free, middle) if t.trunk[whole] != best.placement[whole])
    running = list(best.placement)
    running[whole] = other.trunk[whole]
    costs = [decide(free, "tsoo_exact", Limits(), among=(t,)).decision.measured.cost for t in tables(free, middle)]
    stays = decide(free, "tsoo_exact", Limits(), weights=middle, current=tuple(running)).placement[whole]
    assert (stays == other.trunk[whole]) == (max(costs) < min(costs) * 1.01)


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEDULERS)
def test_compiled_loops_find_the_same(name: str) -> None:
    pytest.importorskip("numba")
    for total in (12_000, 40_000):
        (table,) = tables(problem := small(APP_2, total, seed=7))
        one, other = (
            scheduler(name)(Situation(table, CutLoad.of(problem), LIMITS, compiled=compiled))
            for compiled in (True, False)
        )
        assert one.selection.tolist() == other.selection.tolist()
        assert one.measured.cost == pytest.approx(other.measured.cost)


def test_wrong_names_and_networks_are_refused() -> None:
    with pytest.raises(PlacementError, match="unknown scheduler 'tsoo'") as refused:
        scheduler("tsoo")
    assert "did you mean 'tsoo_h'" in str(refused.value)
