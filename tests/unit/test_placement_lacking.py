"""Infeasible problems are refused with the constraint that makes them so; feasible ones are placed."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from headwater.core.errors import PlacementError
from headwater.placement import STRATEGIES, Application, PlacedOperator, Problem, solve
from headwater.placement.cost import ROUNDING, Shortage, shortages
from headwater.placement.cutnumbers import CutLoad
from headwater.placement.hostcut import HostCut
from headwater.placement.lacking import lacking
from headwater.placement.optimal import Found, optimal
from headwater.placement.schedule import SCHEDULERS, scheduler, tables
from headwater.placement.situation import Limits, Situation
from headwater.placement.why import Unplaceable
from headwater.testing import fog
from headwater.testing import generate as g
from tests.unit.placements import best, mixed

KINDS = {
    "cpu": ("cpu", "processing rate"),
    "memory": ("memory",),
    "LAN": ("LAN",),
    "link": ("link from",),
    "hosts": ("allowed host",),
}


def tightened(problem: Problem, kind: str, seed: int) -> Problem:
    """Tighten one class: all hosts' cpu or memory, a source's access or its links, or an operator's hosts."""
    drawn = np.random.default_rng(seed)
    hosts, topology, share = problem.hosts, problem.topology, float(drawn.uniform(0.05, 0.6))
    source = problem.application.operators[problem.application.sources[0]].host or 0
    if kind == "hosts":
        free = problem.application.free
        operators = list(problem.application.operators)
        at = int(drawn.choice(free))
        operators[at] = replace(operators[at], hosts=frozenset({int(drawn.integers(len(hosts)))}))
        return replace(problem, application=Application(tuple(operators), problem.application.streams))
    if kind == "link":
        network = topology.network
        zone = problem.zone_of(source)
        for other in range(network.zones):
            route = network.route(zone, other)
            if route is not None and len(route) == 1:
                network = network.widened(route[0], 0.2 * share)
        return replace(problem, topology=replace(topology, network=network))
    if kind == "LAN":
        own = np.where(np.arange(len(hosts)) == source, 0.3 * share, 1.0)
        hosts = replace(hosts, lan_bandwidth=hosts.lan_bandwidth * own)
    elif kind == "cpu":
        hosts = replace(hosts, cpu=hosts.cpu * share, cpu_used=hosts.cpu_free * 0)
    else:
        hosts = replace(hosts, memory=hosts.memory * share, memory_used=hosts.memory_free * 0)
    return replace(problem, topology=replace(topology, hosts=hosts))


def widened(problem: Problem, missing: Sequence[Shortage]) -> Problem:
    """Give a problem what is said to be missing, and nothing else."""
    hosts, network = problem.hosts, problem.network
    cpu, memory, lan = hosts.cpu.copy(), hosts.memory.copy(), hosts.lan_bandwidth.copy()
    operators = list(problem.application.operators)
    for short in missing:
        more = short.needed * (1 + 1e-6)
        if short.constraint == "allowed host":
            assert short.operator is not None and short.host is not None
            hosts_of = operators[short.operator].hosts or frozenset()
            operators[short.operator] = replace(operators[short.operator], hosts=hosts_of | {short.host})
        elif short.link is not None:
            network = network.widened(short.link, more / short.available)
        else:
            assert short.host is not None
            if short.constraint == "memory":
                memory[short.host] += more - short.available
            elif short.constraint == "bandwidth":
                lan[short.host] = max(lan[short.host], more)
            elif short.constraint == "processing rate":
                cpu[short.host] = max(cpu[short.host], hosts.cpu[short.host] * more / short.available)
            else:
                cpu[short.host] = max(cpu[short.host], hosts.cpu[short.host] + more - short.available)
    hosts = replace(hosts, cpu=cpu, memory=memory, lan_bandwidth=lan)
    topology = replace(problem.topology, hosts=hosts, network=network)
    return Problem(topology, Application(tuple(operators), problem.application.streams))


def check(kind: str, seeds: range) -> int:
    refused = 0
    for seed in seeds:
        problem = mixed(seed, operators=4 + seed % 2, hosts=6)
        tight = tightened(problem, kind, seed)
        feasible = best(tight) < math.inf
        if best(problem) == math.inf:
            continue
        for strategy in sorted(STRATEGIES):
            try:
                found = solve(tight, strategy)
            except Unplaceable as error:
                if feasible:
                    assert strategy == "cloud_only", (seed, strategy, error.what)
                    continue
                refused += 1
                said = [str(short) for short in error.shortages] + list(error.also)
                assert any(name in one for name in KINDS[kind] for one in said), (seed, strategy, said)
                assert best(widened(tight, error.shortages)) < math.inf, (seed, strategy, said)
            else:
                assert feasible and shortages(tight, found.placement) == []
    return refused


@pytest.mark.parametrize("kind", KINDS)
def test_the_constraint_that_was_tightened_is_named(kind: str) -> None:
    assert check(kind, range(12)) >= 7


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_constraint_that_was_tightened_is_named_in_many_problems(kind: str) -> None:
    assert check(kind, range(100, 250)) > 50


def test_a_sources_access_is_not_blamed_on_memory() -> None:
    topology = g.network(4, 5, 2, seed=1)
    hosts = replace(topology.hosts, memory=np.where(topology.cloud[topology.hosts.zone], 1e9, 10.0))
    source = int(np.flatnonzero(~topology.cloud[hosts.zone])[0])
    operators = (
        PlacedOperator(name="source", rate=1e5, size=1000.0, host=source),
        PlacedOperator(name="sum", cpu=1.0, memory=1e6, selectivity=0.01),
        PlacedOperator(name="sink", host=int(np.flatnonzero(topology.cloud[hosts.zone])[0])),
    )
    application = Application(operators, {(0, 1): 1.0, (1, 2): 1.0})
    problem = Problem(replace(topology, hosts=hosts), application)
    for strategy in STRATEGIES:
        with pytest.raises(Unplaceable, match=r"operator 'source': bandwidth at LAN out of host 0") as said:
            solve(problem, strategy)
        (short,) = said.value.shortages
        assert short.host == source and short.needed == pytest.approx(8e8)
        assert [one.partition(" ")[0] for one in said.value.also] == ["memory"]
        assert short.available == pytest.approx(float(hosts.lan_bandwidth[source]))


def test_a_refusal_takes_few_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once one sufficient change is known, others are not searched for long; `optimal` is not tried a second time."""
    searches = []

    def counted(problem: Problem, *options: Any) -> Found | None:
        searches.append(problem)
        return optimal(problem, *options)

    monkeypatch.setattr(sys.modules["headwater.placement.solve"], "optimal", counted)
    problem = g.problem(g.series_parallel(35, seed=0, sources=3, sinks=5), (10, 10, 9), seed=0)
    application, source = problem.application, problem.application.sources[0]
    host = application.operators[source].host
    sent = sum(application.flow((u, v), 0).bandwidth for u, v in application.streams if u == source)
    access = np.where(np.arange(len(problem.hosts)) == host, 0.4 * sent, problem.hosts.lan_bandwidth)
    narrow = replace(problem, topology=replace(problem.topology, hosts=replace(problem.hosts, lan_bandwidth=access)))
    with pytest.raises(Unplaceable) as refused:
        solve(narrow, "optimal")
    assert refused.value.shortages[0].host == host and refused.value.shortages[0].constraint == "bandwidth"
    assert len(searches) <= 3


def test_an_unknown_strategy_is_named_first() -> None:
    problem = mixed(1, operators=5, hosts=6)
    none = replace(problem.hosts, memory=problem.hosts.memory * 0, memory_used=None)
    with pytest.raises(PlacementError, match="unknown strategy 'fastest'"):
        solve(replace(problem, topology=replace(problem.topology, hosts=none)), "fastest")


def test_several_constraints_are_named_together() -> None:
    problem = tightened(tightened(mixed(1, operators=5, hosts=6), "memory", 1), "LAN", 1)
    hosts = problem.hosts
    tight = replace(hosts, memory=hosts.memory * 1e-3, cpu=hosts.cpu * 1e-3, cpu_used=None, memory_used=None)
    both = replace(problem, topology=replace(problem.topology, hosts=tight))
    with pytest.raises(Unplaceable, match=r"cpu|processing rate") as said:
        solve(both, "optimal")
    assert {"memory"} < {short.constraint for short in said.value.shortages}


@pytest.mark.parametrize("kind", ["memory", "links"])
def test_schedulers_name_the_host_or_the_link_that_lacks(kind: str) -> None:
    for seed in range(6):
        drawn = fog.three_layers(seed)
        cloud = len(drawn.hosts) - 1
        operators = [
            replace(o, hosts=o.hosts - {cloud}) if o.hosts and len(o.hosts) > 1 and kind == "memory" else o
            for o in drawn.application.operators
        ]
        problem = Problem(drawn.topology, Application(tuple(operators), drawn.application.streams))
        (table, *_) = tables(problem)
        load = CutLoad.of(problem)
        capacity = problem.hosts.memory if kind == "memory" else table.network.bandwidth
        full = np.where(np.isfinite(capacity), capacity * 0.9999, 0.0)
        more = replace(load, memory=full) if kind == "memory" else replace(load, links=full)
        tight = Situation(table, more, Limits())
        for name in SCHEDULERS:
            assert not scheduler(name)(tight).kept
        short = lacking(tight)
        assert short is not None and short.needed > short.available > 0
        assert short.constraint == ("memory" if kind == "memory" else "bandwidth"), (seed, str(short))
        # As much of all of this kind is enough, without any other change.
        times = (short.needed / short.available) * (1 + 1e-6)
        hosts, network = problem.hosts, problem.network
        if kind == "memory":
            hosts = replace(hosts, memory=hosts.memory * times)
        else:
            network = network.widened(None, times)
        wide = Problem(replace(problem.topology, hosts=hosts, network=network), problem.application)
        (roomy, *_) = tables(wide)
        assert scheduler("tsoo_exact")(Situation(roomy, tight.load, Limits())).kept


def test_a_source_for_each_of_200_hosts_joins_in_one() -> None:
    topology = g.network(20, 20, 5, seed=0)
    drawn = np.random.default_rng(0)
    cloud = topology.cloud[topology.hosts.zone]
    edge = drawn.permutation(np.flatnonzero(~cloud))[:200]
    operators = [PlacedOperator(name=f"s{n}", rate=60.0, size=1000.0, host=int(h)) for n, h in enumerate(edge)]
    operators += [PlacedOperator(name="join", cpu=1000.0, memory=100.0)]
    operators += [PlacedOperator(name="sink", host=int(np.flatnonzero(cloud)[0]))]
    streams = {(n, 200): 1.0 for n in range(200)} | {(200, 201): 1.0}
    problem = Problem(topology, Application(tuple(operators), streams))
    for strategy in STRATEGIES:
        assert shortages(problem, solve(problem, strategy).placement) == []
    narrow = replace(topology.hosts, lan_bandwidth=np.where(cloud, 5e7, topology.hosts.lan_bandwidth / 5))
    tight = Problem(replace(topology, hosts=narrow), problem.application)
    with pytest.raises(Unplaceable, match="LAN into"):
        solve(tight, "optimal")


SHAPES = ("chain", "fan-in", "fan-out", "random")


def large(shape: str, count: int) -> Problem:
    """Return ``count`` operators on a small network: a chain, or sources or sinks around one operator, or any graph."""
    topology = g.network(4, 5, 2, seed=1)
    cloud = topology.cloud[topology.hosts.zone]
    edge, top = np.flatnonzero(~cloud).tolist(), int(np.flatnonzero(cloud)[0])
    if shape == "chain":
        streams = [(n, n + 1) for n in range(count - 1)]
    elif shape == "fan-in":
        streams = [(n, count - 2) for n in range(count - 2)] + [(count - 2, count - 1)]
    elif shape == "fan-out":
        streams = [(0, 1)] + [(1, n) for n in range(2, count)]
    else:
        drawn = np.random.default_rng(1)
        streams = [(int(drawn.integers(max(0, n - 50), n)), n) for n in range(1, count) for _ in range(1 + n % 2)]
    readers = dict.fromkeys(range(count), 0)
    streams = list(dict.fromkeys(streams))
    for u, _ in streams:
        readers[u] += 1
    fed = {v for _, v in streams}
    operators = []
    for n in range(count):
        if n not in fed:
            operators.append(PlacedOperator(name=f"s{n}", rate=1.0, size=10.0, host=edge[n % len(edge)]))
        elif not readers[n]:
            operators.append(PlacedOperator(name=f"t{n}", host=edge[n % len(edge)] if n % 2 else top))
        else:
            operators.append(PlacedOperator(name=f"o{n}", cpu=10.0))
    return Problem(topology, Application(tuple(operators), {(u, v): 1 / readers[u] for u, v in streams}))


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_thousands_of_operators_need_no_recursion(shape: str) -> None:
    problem = large(shape, 1_200)
    for strategy in ("aels_rp_la", "tcep", "optimal"):
        assert shortages(problem, solve(problem, strategy).placement) == []


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_ten_thousand_operators_need_no_recursion(shape: str) -> None:
    problem = large(shape, 10_000)
    for strategy in STRATEGIES:
        assert shortages(problem, solve(problem, strategy).placement) == []


@pytest.mark.parametrize("free", [2, 1_200])
def test_a_branch_of_thousands_of_operators_needs_no_recursion(free: int) -> None:
    """Check that schedulers decide where few operators have a choice, and refuse tables that would be too large."""
    drawn = fog.three_layers(1, locations=1)
    cloud = len(drawn.hosts) - 1
    count = 1_200
    operators = (
        PlacedOperator(name="source", rate=10.0, size=100.0, host=0),
        *(
            PlacedOperator(name=f"o{n}", cpu=10.0, hosts=frozenset({0, 1, cloud} if n < free else {cloud}))
            for n in range(count)
        ),
        PlacedOperator(name="sink", host=cloud),
    )
    chain = Application(operators, {(n, n + 1): 1.0 for n in range(count + 1)})
    problem = Problem(drawn.topology, chain)
    if free == count:
        with pytest.raises(PlacementError, match="ways to cut the operators fed by 'source'"):
            tables(problem)
        return
    (table,) = tables(problem)
    assert len(table.branches[0].choices) == 6
    for name in SCHEDULERS:
        assert scheduler(name)(Situation(table, CutLoad.of(problem), Limits())).kept


@pytest.mark.parametrize("sends", [True, False])
def test_no_operators_on_a_host_send_less_than_the_bound(sends: bool) -> None:
    """All sets of operators that a source's or a sink's host has room for are tried."""
    met = above = 0
    for seed in range(40):
        problem = mixed(seed, operators=8, hosts=6)
        application, hosts = problem.application, problem.hosts
        ends = application.sources if sends else application.sinks
        host = next(h for o in ends if (h := application.operators[o].host) is not None)
        bits = {(u, v): application.flow((u, v), 0).bandwidth for u, v in application.streams}
        streams = bits if sends else {(v, u): one for (u, v), one in bits.items()}
        cut = HostCut(problem, host, streams)
        least = math.inf
        for size in range(len(application.free) + 1):
            for chosen in combinations(application.free, size):
                if any(o not in cut.possible for o in chosen):
                    continue
                if sum(application.work[o] for o in chosen) > float(hosts.cpu_free[host]) * (1 + ROUNDING):
                    continue
                if sum(application.room[o] for o in chosen) > float(hosts.memory_free[host]) * (1 + ROUNDING):
                    continue
                here = cut.pinned | set(chosen)
                back = sum(one for (u, v), one in streams.items() if u not in here and v in here)
                if back > float(hosts.lan_bandwidth[host]) * (1 + ROUNDING):
                    continue
                least = min(least, sum(one for (u, v), one in streams.items() if u in here and v not in here))
        for share in (0.3, 0.9, 0.999):
            enough = max(1.0, least * share)
            bound = cut.at_least(enough)
            assert bound <= least * (1 + 1e-6), (seed, share)
            above += bound > enough
            met += 1
    assert above > met * 0.7, "the bound is of use"
