"""The ways to cut a source's branch between levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from headwater.core.errors import PlacementError
from headwater.placement import Application, Hosts, PlacedOperator, Problem, Topology
from headwater.placement.cuts import branches, trunks
from headwater.placement.network import Tree
from headwater.placement.response import response
from headwater.placement.usage import resource_usage
from headwater.testing import fog
from headwater.testing.fog import APP_1, APP_2, DEVICES, devices, diamond


def problem(graph: Sequence[tuple[int, int]], fogs: int, levels: int = 2) -> Problem:
    """Return an instance of the graph for each fog node, with a source there; a sink in the cloud."""
    zones = fogs + levels - 1
    parents = [fogs] * fogs + [*range(fogs + 1, zones), -1]
    hosts = Hosts(
        cpu=np.full(zones, 1e9),
        memory=np.full(zones, 1e9),
        zone=np.arange(zones, dtype=np.int32),
        lan_latency=np.zeros(zones),
        lan_bandwidth=np.full(zones, np.inf),
    )
    network = Tree(np.array(parents), np.full(zones, 0.1), np.full(zones, 1e9))
    count = max(max(edge) for edge in graph) + 1
    operators, streams = [], {}
    above = range(fogs, zones)
    for j in range(fogs):
        base = len(operators)
        operators.append(PlacedOperator(name=f"s{j}", rate=10.0, size=10.0, host=j))
        operators += [
            PlacedOperator(name=f"o{o}.{j}", logical=f"o{o}", hosts=frozenset({j, *above})) for o in range(count)
        ]
        streams |= {(base, base + 1): 1.0} | {(base + 1 + u, base + 1 + v): 1.0 for u, v in graph}
    sink = len(operators)
    operators.append(PlacedOperator(name="sink", host=zones - 1))
    streams |= {(j * (count + 1) + count, sink): 1.0 for j in range(fogs)}
    levels_of = np.array([0] * fogs + list(range(1, levels)))
    cloud = np.arange(zones) == zones - 1
    return Problem(Topology(hosts, network, cloud, levels_of), Application(tuple(operators), streams))


def inside(of: Problem) -> set[int]:
    return {o for branch in branches(of) for o in branch.operators}


def test_cuts_are_the_sets_with_all_before_them() -> None:
    two = problem(diamond(2, (2, 2), 3), fogs=3)
    assert [len(b.choices) for b in branches(two)] == [14, 14, 14]  # 9 operators
    three = problem(diamond(3, (2, 2, 2), 2), fogs=2)
    assert [len(b.choices) for b in branches(three)] == [32, 32]  # 11 operators
    assert all(len(b.operators) == 1 + 9 for b in branches(two))
    assert trunks(two, inside(two)) == ({30: 3},)  # the sink


def test_no_choice_sends_data_down() -> None:
    found = problem(diamond(1, (1, 1), 1), fogs=1, levels=3)
    (branch,) = branches(found)
    assert len(set(branch.choices)) == len(branch.choices) == 20  # monotone maps of a diamond to 3 levels
    for choice in branch.choices:
        hosts = dict(zip(branch.operators, choice, strict=True))
        for u, v in found.application.streams:
            if u in hosts and v in hosts:
                assert found.network.route(hosts[u], hosts[v]) is not None


def test_what_several_sources_lead_to_is_in_no_branch() -> None:
    found = problem(diamond(1, (1,), 1), fogs=2)
    application = found.application
    joined, sink = len(application), len(application) - 1
    operators = (*application.operators, PlacedOperator(name="join", hosts=frozenset({2})))
    streams = {(u, joined if v == sink else v): 1.0 for u, v in application.streams}
    streams[joined, sink] = 1.0
    both = Problem(found.topology, Application(operators, streams))
    assert trunks(both, inside(both)) == ({joined: 2, sink: 2},)


def test_where_data_would_have_to_go_down_nothing_is_placed() -> None:
    found = problem([(0, 1)], fogs=1)
    source, first, second, sink = found.application.operators
    apart = (source, replace(first, hosts=frozenset({1})), replace(second, hosts=frozenset({0})), sink)
    with pytest.raises(PlacementError, match="can run nowhere: data goes up only"):
        branches(Problem(found.topology, Application(apart, found.application.streams)))


def test_too_many_ways_are_refused() -> None:
    with pytest.raises(PlacementError, match="more than 10 ways"):
        branches(problem(diamond(2, (2, 2), 3), fogs=1), most=10)


def test_problems_are_drawn_as_in_the_evaluation_of_tsoo() -> None:
    assert (APP_1.operators, APP_2.operators) == (9, 11)
    assert (DEVICES[0], len(DEVICES), DEVICES[-1]) == (5_000, 11, 75_000)
    for split in ("spacing", "norm"):
        counts = devices(20_000, seed=3, split=split)
        assert counts.sum() == pytest.approx(20_000) and (counts >= 0).all()
    drawn = fog.problem(APP_1, 20_000, seed=4)
    assert [len(b.choices) for b in branches(drawn)] == [14] * 10
    source = drawn.application.operators[0]
    assert drawn.application.size_out[0] == 6_000
    total = sum(drawn.application.rate_out[s] for s in drawn.application.sources)
    assert total == pytest.approx(0.55 * 20_000) and source.host == 0
    # Everything in the cloud: all data goes up, and no resource of the fog is used.
    up = tuple(o.host if o.host is not None else 20 for o in drawn.application.operators)
    found = resource_usage(drawn, up)
    assert found.compute == 0.0
    assert found.bandwidth == pytest.approx(0.55 * 20_000 * 6_000 * 8)
    # Few devices: the path up, 100 ms to the fog and 100 to 300 ms from there, and the work of some windows.
    quiet = fog.problem(APP_1, 50, seed=4)
    assert 0.2 < response(quiet, up).worst < 0.6
    assert response(drawn, up).worst > response(quiet, up).worst
