"""Networks of any directed links: routes against another algorithm, and every strategy against trying everything."""

from __future__ import annotations

import math
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from headwater.placement import STRATEGIES, solve
from headwater.placement.cost import evaluate, shortages
from headwater.placement.network import StreamFlow
from headwater.placement.optimal import Effort, optimal
from headwater.placement.routed import DirectedLink, Routed
from headwater.placement.why import Unplaceable
from tests.unit.placements import best, routed


def test_routes_are_the_quickest_over_links_that_lead_there() -> None:
    drawn = np.random.default_rng(3)
    for _ in range(20):
        zones = int(drawn.integers(2, 9))
        links = {
            (a, b): DirectedLink(latency=float(drawn.uniform(0.01, 0.1)))
            for a in range(zones)
            for b in range(zones)
            if a != b and drawn.random() < 0.35
        }
        network, graph = Routed(zones, links), nx.DiGraph()
        graph.add_nodes_from(range(zones))
        graph.add_weighted_edges_from((a, b, link.latency) for (a, b), link in links.items())
        for a in range(zones):
            seconds = nx.single_source_dijkstra_path_length(graph, a)
            for b in range(zones):
                route = network.route(a, b)
                assert (route is None) == (b not in seconds)
                assert network.latencies_from(a)[b] == network.latencies_to(b)[a]
                assert network.latencies_from(a)[b] == pytest.approx(seconds.get(b, math.inf))
                if route:
                    assert route[0][0] == a and route[-1][1] == b
                    assert all(one[1] == other[0] for one, other in pairwise(route))
                    assert sum(links[link].latency for link in route) == pytest.approx(seconds[b])


def test_a_shared_link_has_room_for_all_flows_or_none() -> None:
    links = {(0, 1): DirectedLink(latency=0.1, bandwidth=100.0, used=20.0), (1, 2): DirectedLink(latency=0.1)}
    network = Routed(3, links)
    one = StreamFlow(0, 4.0, 10.0)
    assert np.isfinite(network.arrivals([one, one], {})).tolist() == [True, True, True]
    assert np.isfinite(network.arrivals([one, one], {(0, 1): 1.0})).tolist() == [True, False, False]
    assert np.isfinite(network.widened((0, 1), 2.0).arrivals([one, one], {(0, 1): 1.0})).all()
    assert np.isinf(network.arrivals([StreamFlow(1, 1.0, 1.0)], {})).tolist() == [True, False, False]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_place_over_several_clouds_and_ways_down(strategy: str) -> None:
    placed = down = 0
    for seed in range(40):
        problem = routed(seed, tight=seed % 2 == 0)
        try:
            found = solve(problem, strategy)
        except Unplaceable:
            assert strategy == "cloud_only" or best(problem) == math.inf, seed
            continue
        assert shortages(problem, found.placement) == []
        assert solve(problem, strategy, plain=True).placement == found.placement
        placed += 1
        zones = [problem.zone_of(host) for host in found.placement]
        cloud = problem.topology.cloud
        down += any(cloud[zones[u]] and not cloud[zones[v]] for u, v in problem.application.streams)
    assert placed > 10 and down


def test_the_optimum_is_that_of_trying_everything() -> None:
    for seed in range(60):
        problem = routed(seed, operators=4 + seed % 2, tight=seed % 2 == 0)
        least = best(problem)
        found = optimal(problem, Effort(rounds=12))
        assert found is not None
        if least == math.inf:
            assert found.placement is None
            continue
        assert found.placement is not None
        assert found.bound <= least * (1 + 1e-9) <= found.latency * (1 + 2e-9)
        assert found.latency == pytest.approx(evaluate(problem, found.placement).latency)
        assert found.latency == pytest.approx(least)
