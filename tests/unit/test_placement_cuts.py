"""The ways to cut a source's branch between levels."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.errors import PlacementError
from headwater.placement import Application, Hosts, Operator, Problem, Topology
from headwater.placement.cuts import branches, shared
from headwater.placement.network import Tree


def diamond(before: int, branch_lengths: tuple[int, ...], behind: int) -> list[tuple[int, int]]:
    """A chain, parallel branches, a chain; operators are numbered from 0 upwards."""
    edges = [(n, n + 1) for n in range(before - 1)]
    fork, size = before - 1, before
    ends = []
    for length in branch_lengths:
        at = fork
        for _ in range(length):
            edges.append((at, size))
            at, size = size, size + 1
        ends.append(at)
    edges += [(end, size) for end in ends]
    return edges + [(n, n + 1) for n in range(size, size + behind - 1)]


def problem(graph: list[tuple[int, int]], fogs: int, levels: int = 2) -> Problem:
    """An instance of the graph for each fog node, with a source there; a sink in the cloud."""
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
        operators.append(Operator(name=f"s{j}", rate=10.0, size=10.0, host=j))
        operators += [
            Operator(name=f"o{o}.{j}", logical=f"o{o}", hosts=frozenset({j, *above})) for o in range(count)
        ]
        streams |= {(base, base + 1): 1.0} | {(base + 1 + u, base + 1 + v): 1.0 for u, v in graph}
    sink = len(operators)
    operators.append(Operator(name="sink", host=zones - 1))
    streams |= {(j * (count + 1) + count, sink): 1.0 for j in range(fogs)}
    levels_of = np.array([0] * fogs + list(range(1, levels)))
    cloud = np.arange(zones) == zones - 1
    return Problem(Topology(hosts, network, cloud, levels_of), Application(tuple(operators), streams))


def test_cuts_are_the_sets_with_all_before_them() -> None:
    two = problem(diamond(2, (2, 2), 3), fogs=3)
    assert [len(b.choices) for b in branches(two)] == [14, 14, 14]  # 9 operators
    three = problem(diamond(3, (2, 2, 2), 2), fogs=2)
    assert [len(b.choices) for b in branches(three)] == [32, 32]  # 11 operators
    assert all(len(b.operators) == 9 for b in branches(two))
    assert shared(two) == ()


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
    operators = (*application.operators, Operator(name="join", hosts=frozenset({2})))
    streams = {(u, joined if v == sink else v): 1.0 for u, v in application.streams}
    streams[joined, sink] = 1.0
    both = Problem(found.topology, Application(operators, streams))
    assert shared(both) == (joined,)


def test_too_many_ways_are_refused() -> None:
    with pytest.raises(PlacementError, match="more than 10 ways"):
        branches(problem(diamond(2, (2, 2), 3), fogs=1), most=10)
