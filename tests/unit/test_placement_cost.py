"""The costs of a placement, computed by hand; shortages are found in any placement."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from headwater.core.errors import PlacementError
from headwater.placement.cost import evaluate, service_time, shortages, transfer_time
from headwater.placement.network import Mesh, StreamFlow, Tree
from headwater.placement.problem import Application, Hosts, PlacedOperator, Problem, Topology
from tests.unit.placements import mixed

#          0 and 1 in zone 0, 2 in zone 1, 3 in zone 2, a cloud
HOSTS = Hosts(
    cpu=np.array([100.0, 200.0, 100.0, 1000.0]),
    memory=np.array([100.0, 100.0, 100.0, 1e6]),
    zone=np.array([0, 0, 1, 2], dtype=np.int32),
    lan_latency=np.array([0.001, 0.002, 0.003, 0.0]),
    lan_bandwidth=np.array([1000.0, 1000.0, 500.0, np.inf]),
    names=("a", "b", "c", "vm"),
)
WAN = np.array([[0.0, 0.05, 0.07], [0.05, 0.0, 0.06], [0.07, 0.06, 0.0]])
TOPOLOGY = Topology(HOSTS, Mesh(WAN, np.array(2000.0)), np.array([False, False, True]))
SOURCE = PlacedOperator(name="source", rate=10.0, size=4.0, host=0)
#           source -> work -> left, right -> sink
WORK = PlacedOperator(name="work", cpu=5.0, memory=20.0, selectivity=0.5, size_ratio=2.0, window=4.0)
LEFT = PlacedOperator(name="left", cpu=10.0, memory=30.0)
RIGHT = PlacedOperator(name="right", cpu=4.0, memory=30.0, selectivity=0.5, size_ratio=0.5)
SINK = PlacedOperator(name="sink", host=2)
STREAMS = {(0, 1): 1.0, (1, 2): 0.4, (1, 3): 0.6, (2, 4): 1.0, (3, 4): 1.0}
PROBLEM = Problem(TOPOLOGY, Application((SOURCE, WORK, LEFT, RIGHT, SINK), STREAMS))


def test_rates_and_sizes_follow_the_streams() -> None:
    application = PROBLEM.application
    assert application.rate_in.tolist() == pytest.approx([10, 10, 2, 3, 3.5])  # eq. 1 to 3
    assert application.rate_out.tolist() == pytest.approx([10, 5, 2, 1.5, 3.5])
    assert application.size_out[1:4].tolist() == pytest.approx([8, 8, 4])  # eq. 6
    assert application.size_in[4] == pytest.approx((2 * 8 + 1.5 * 4) / 3.5)  # eq. 5, by rates


def test_an_operators_time_is_that_of_its_queue() -> None:
    assert service_time(PROBLEM, 1, 0) == pytest.approx(1 / (100 / 5 - 10))  # eq. 7
    assert service_time(PROBLEM, 1, 3) == pytest.approx(1 / (1000 / 5 - 10))
    assert service_time(PROBLEM, 0, 0) == 0.0  # pinned
    assert Problem(TOPOLOGY, PROBLEM.application).application.waiting == pytest.approx(2 * 4 / 10)


def test_a_streams_time_is_summed_hop_by_hop() -> None:
    out = 1 / (1000 / 32 - 10)
    assert transfer_time(PROBLEM, (0, 1), 0, 0) == 0.0
    assert transfer_time(PROBLEM, (0, 1), 0, 1) == pytest.approx(0.001 + 0.002 + 2 * out)
    wan = 0.05 + 1 / (2000 / 32 - 10)
    assert transfer_time(PROBLEM, (0, 1), 0, 2) == pytest.approx(0.001 + out + wan + 0.003 + 1 / (500 / 32 - 10))
    # A cloud has no LAN to cross.
    assert transfer_time(PROBLEM, (0, 1), 0, 3) == pytest.approx(0.001 + out + 0.07 + 1 / (2000 / 32 - 10))


def test_paths_are_counted_as_if_they_were_listed() -> None:
    for seed in range(30):
        problem = mixed(seed, operators=9)
        application = problem.application
        paths = [path for source in application.sources for path in _paths_from(application.downstream, (source,))]
        placed = tuple(seed % len(problem.hosts) for _ in application.operators)
        cost = evaluate(problem, placed)
        listed = math.fsum(
            sum(cost.service[o] for o in path) + sum(cost.transfer[stream] for stream in pairwise(path))
            for path in paths
        )
        assert cost.latency == pytest.approx(listed)
        assert max(application.paths) <= len(paths)


def _paths_from(downstream: tuple[tuple[int, ...], ...], path: tuple[int, ...]) -> list[tuple[int, ...]]:
    if not downstream[path[-1]]:
        return [path]
    return [found for d in downstream[path[-1]] for found in _paths_from(downstream, (*path, d))]


def test_what_fits_has_no_shortage() -> None:
    assert shortages(PROBLEM, (0, 0, 3, 0, 2)) == []


def found(problem: Problem, *placement: int) -> list[str]:
    return [f"{s.constraint} at {s.where}" for s in shortages(problem, placement)]


def with_work(**changed: float) -> Problem:
    operators = (SOURCE, replace(WORK, **changed), LEFT, RIGHT, SINK)
    return Problem(TOPOLOGY, Application(operators, STREAMS))


def test_every_constraint_is_checked() -> None:
    assert found(with_work(cpu=10.0), 0, 0, 3, 3, 2)[0].startswith("processing rate at operator 'work'")
    assert "cpu at b" in found(with_work(cpu=19.0), 0, 1, 1, 3, 2)
    assert found(with_work(memory=70.0), 0, 0, 0, 3, 2) == ["memory at a"]
    assert found(with_work(window=30.0), 0, 0, 3, 3, 2) == ["memory at a"]  # 20 + 30 events of 4 bytes
    assert found(with_work(size_ratio=7.0), 0, 0, 3, 3, 2) == [
        "bandwidth at LAN out of a",
        "bandwidth at LAN into c",
    ]
    assert found(with_work(size_ratio=13.0), 0, 3, 3, 3, 2)[0].startswith("transfer rate")
    assert found(PROBLEM, 1, 0, 3, 0, 2)[0].startswith("pinned host at operator 'source'")
    assert found(PROBLEM, 0, 7, 3, 0, 2) == ["one host at operator 'work'"]
    assert found(PROBLEM, 0, 0) == ["one host at all"]
    only = replace(WORK, hosts=frozenset({1}))
    allowed = Problem(TOPOLOGY, Application((SOURCE, only, LEFT, RIGHT, SINK), STREAMS))
    assert found(allowed, 0, 0, 3, 0, 2)[0].startswith("allowed host")


def test_what_others_take_is_not_there() -> None:
    hosts = replace(HOSTS, cpu_used=np.array([60.0, 0.0, 0.0, 0.0]), memory_used=np.array([0.0, 90.0, 0.0, 0.0]))
    problem = Problem(replace(TOPOLOGY, hosts=hosts), PROBLEM.application)
    (cpu,) = shortages(problem, (0, 0, 3, 3, 2))
    assert (cpu.constraint, cpu.needed, cpu.available) == ("cpu", 50.0, 40.0)
    assert "50 work/s needed, 40 available" in str(cpu)
    assert found(problem, 0, 1, 3, 3, 2) == ["memory at b"]


def test_links_are_shared_by_all_streams_that_cross_them() -> None:
    narrow = Problem(replace(TOPOLOGY, network=Mesh(WAN, np.array(330.0))), PROBLEM.application)
    assert found(narrow, 0, 0, 3, 2, 2) == []  # 5 events/s of 64 bits, part to the cloud
    assert found(narrow, 0, 0, 2, 2, 2) == []
    assert found(
        Problem(replace(TOPOLOGY, network=Mesh(WAN, np.array(300.0))), PROBLEM.application), 0, 0, 2, 2, 2
    ) == ["bandwidth at link from zone 0 to zone 1"]


def test_in_a_tree_data_only_goes_up() -> None:
    tree = Tree(np.array([2, 2, -1]), np.array([0.05, 0.06, 0.0]), np.array([1000.0, 1000.0, 0.0]))
    problem = Problem(replace(TOPOLOGY, network=tree), PROBLEM.application)
    assert tree.route(0, 2) == ((0, 2),)
    assert tree.route(2, 0) is None and tree.route(0, 1) is None
    assert transfer_time(problem, (0, 1), 0, 2) == math.inf
    assert np.isinf(tree.latencies_from(2)).tolist() == [True, True, False]
    assert tree.latencies_to(2).tolist() == [0.05, 0.06, 0.0]
    assert "transfer rate" in found(problem, 0, 0, 2, 3, 2)[0]
    flows = [StreamFlow(0, 10.0, 32.0), StreamFlow(1, 10.0, 32.0)]
    assert np.isfinite(tree.arrivals(flows, {})).tolist() == [False, False, True]
    assert np.isinf(tree.arrivals(flows, {(1, 2): 700.0})).all()


def test_a_mesh_has_room_for_all_flows_of_a_zone_or_for_none() -> None:
    mesh = Mesh(WAN, np.array(600.0))
    two = [StreamFlow(0, 10.0, 32.0), StreamFlow(0, 10.0, 32.0)]
    assert np.isfinite(mesh.arrivals(two[:1], {})).all()
    assert np.isfinite(mesh.arrivals(two, {})).tolist() == [True, False, False]
    assert np.isfinite(mesh.arrivals(two[:1], {(0, 1): 300.0})).tolist() == [True, False, True]


def test_what_is_no_application_is_refused() -> None:
    with pytest.raises(PlacementError, match="cycle"):
        Application((SOURCE, WORK, LEFT), {(0, 1): 1.0, (1, 2): 1.0, (2, 1): 1.0})
    with pytest.raises(PlacementError, match="operator 9"):
        Application((SOURCE,), {(0, 9): 1.0})
