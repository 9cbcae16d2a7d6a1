"""The costs of shared resources and the response time of TSOO, computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from headwater.placement import Application, Hosts, PlacedOperator, Problem, Topology
from headwater.placement.network import Tree
from headwater.placement.queueing import dm1, md1, mm1
from headwater.placement.response import LEAST_BANDWIDTH, response
from headwater.placement.usage import Weights, resource_usage, weight

# Two fog nodes (zones 0, 1) below a cloud (zone 2). Each has a source and work in time windows; one sink above.
HOSTS = Hosts(
    cpu=np.array([100.0, 200.0, 1000.0]),
    memory=np.array([1000.0, 2000.0, np.inf]),
    memory_used=np.array([200.0, 0.0, 0.0]),
    zone=np.array([0, 1, 2], dtype=np.int32),
    lan_latency=np.zeros(3),
    lan_bandwidth=np.full(3, np.inf),
)
LINKS = Tree(
    np.array([2, 2, -1]),
    np.array([0.1, 0.3, 0.0]),
    np.array([8000.0, 16000.0, np.inf]),
    np.array([4000.0, 0.0, 0.0]),
)
TOPOLOGY = Topology(HOSTS, LINKS, np.array([False, False, True]), np.array([0, 0, 1]))


def work(number: int, **changed: float) -> PlacedOperator:
    settings = {"cpu": 2.0, "selectivity": 0.5, "span": 0.5, "overhead": 1.2, **changed}
    return PlacedOperator(name=f"work{number}", logical="work", **settings)


def problem(**changed: float) -> Problem:
    """Return sources 0 and 1, their work 2 and 3, and the sink 4."""
    operators = (
        PlacedOperator(name="s0", rate=10.0, size=20.0, host=0),
        PlacedOperator(name="s1", rate=20.0, size=20.0, host=1),
        work(0, **changed),
        work(1, **changed),
        PlacedOperator(name="sink", host=2),
    )
    return Problem(TOPOLOGY, Application(operators, {(0, 2): 1, (1, 3): 1, (2, 4): 1, (3, 4): 1}))


FOG, MIXED, CLOUD = (0, 1, 0, 1, 2), (0, 1, 0, 2, 2), (0, 1, 2, 2, 2)


def test_usage_is_weighted_by_scarcity() -> None:
    assert weight(1000.0, 800.0, 120.0) == pytest.approx(1 - 0.8 + 0.12)  # eq. 7
    assert weight(math.inf, math.inf, 5.0) == 0.0


def test_costs_in_the_fog() -> None:
    found = resource_usage(problem(), FOG)
    # req = D c, D = 0.5 s × rate × 20 bytes (eq. 2, 3): 120 and 240 bytes.
    cru = (120 * (1 - 0.8 + 0.12) + 240 * (240 / 2000)) / 3000  # eq. 9, 24, 28
    # Half of the events go up: 800 and 1600 bits/s; delays as shares of 0.3 s.
    nru = (800 * (1 - 0.5 + 0.1) * (0.1 / 0.3) + 1600 * 0.1) / 24000  # eq. 13, 25, 29
    assert found.compute == pytest.approx(cru)
    assert found.network == pytest.approx(nru)
    assert found.total == pytest.approx(0.5 * cru + 0.5 * nru)  # eq. 30
    assert found.bandwidth == pytest.approx(2400.0)  # eq. 26
    only = resource_usage(problem(), FOG, Weights(compute=1.0, network=0.0))
    assert only.total == pytest.approx(cru)


def test_costs_in_the_cloud_are_those_of_the_way_there() -> None:
    found = resource_usage(problem(), CLOUD)
    assert found.compute == 0.0
    assert found.bandwidth == pytest.approx(4800.0)
    assert resource_usage(problem(), MIXED).bandwidth == pytest.approx(800 + 3200)


def test_response_in_the_fog() -> None:
    found = response(problem(), FOG)
    # μ = cpu / (work/s × span): 100/(20 × 0.5) and 200/(40 × 0.5) windows/s (eq. 19); D/M/1 every 0.5 s.
    assert found.latency[2] == pytest.approx(dm1(10.0, 0.5))
    # The output of a window, 0.5 s of 800 bits/s, over the remaining 4000 bits/s (eq. 17, 18).
    assert found.delay[2, 4] == pytest.approx(0.1 + 400 / 4000)
    assert found.delay[0, 2] == 0.0
    assert found.by_source[0] == pytest.approx(dm1(10.0, 0.5) + 0.2)
    assert found.by_source[1] == pytest.approx(dm1(10.0, 0.5) + 0.3 + 800 / 16000)
    assert found.worst == max(found.by_source.values())  # eq. 15


def test_instances_on_a_host_are_one_process_and_share_it_with_others() -> None:
    both = response(problem(), CLOUD)
    assert both.latency[2] == both.latency[3] == pytest.approx(dm1(1000 / (60 * 0.5), 0.5))
    busy = replace(TOPOLOGY, hosts=replace(HOSTS, processes=np.array([0, 0, 3])))
    crowded = response(replace(problem(), topology=busy), CLOUD)
    assert crowded.latency[2] == pytest.approx(dm1(1000 / 4 / (60 * 0.5), 0.5))


def test_windows_of_a_count_and_none() -> None:
    counted = response(problem(span=0.0, window=4.0), FOG)
    assert counted.latency[2] == pytest.approx(md1(100 / (2.0 * 4), 10 / 4))
    single = response(problem(span=0.0), FOG)
    assert single.latency[2] == pytest.approx(mm1(50.0, 10.0))
    slid = response(problem(slide=0.25), FOG)
    assert slid.latency[2] == pytest.approx(dm1(10.0, 0.25))


def test_a_queue_that_grows_for_ever_has_no_time() -> None:
    assert response(problem(cpu=10.0), FOG).worst == math.inf
    assert dm1(2.0, 0.5) == math.inf and dm1(2.0, 0.4) == math.inf


def test_a_full_link_still_transmits_slowly() -> None:
    full = replace(LINKS, used=np.array([8000.0, 0.0, 0.0]))
    found = response(replace(problem(), topology=replace(TOPOLOGY, network=full)), FOG)
    assert found.delay[2, 4] == pytest.approx(0.1 + 400 / (LEAST_BANDWIDTH * 8000))


@pytest.mark.parametrize("offered", [1.0001, 1.1, 2.0, 10.0, 500.0])
def test_the_root_of_a_steady_queue_is_its_fixed_point(offered: float) -> None:
    time = dm1(offered, 1.0)
    root = 1 - 1 / (offered * time)
    assert root == pytest.approx(math.exp(-offered * (1 - root)), abs=1e-12)
    assert 0 <= root < 1
