"""Simulated queues: they confirm the model's times where its assumptions hold, else those of queueing theory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headwater.placement import Application, Hosts, PlacedOperator, Problem, Topology, solve
from headwater.placement.network import Mesh
from headwater.testing import generate
from headwater.testing.queues import QueueWorld, simulate

RATE, CPU = 80.0, 100.0  # load 0.8


def one_operator(*more: PlacedOperator, window: float = 0.0) -> Problem:
    """Return a source, operators of work 1 on one host, and a sink on another."""
    hosts = Hosts(
        cpu=np.array([CPU, CPU]),
        memory=np.array([1e9, 1e9]),
        zone=np.array([0, 1], dtype=np.int32),
        lan_latency=np.array([0.001, 0.0]),
        lan_bandwidth=np.array([100_000.0, np.inf]),
    )
    network = Mesh(np.array([[0.0, 0.05], [0.05, 0.0]]), np.array(50_000.0))
    operators = (
        PlacedOperator(name="source", rate=RATE, size=50.0, host=0),
        PlacedOperator(name="work", cpu=1.0, window=window),
        *more,
        PlacedOperator(name="sink", host=1),
    )
    streams = {(n, n + 1): 1.0 for n in range(len(operators) - 1)}
    return Problem(Topology(hosts, network, np.array([False, True])), Application(operators, streams))


@pytest.mark.long
def test_queues_are_as_the_model_says_where_its_assumptions_hold() -> None:
    problem = one_operator()
    seen = simulate(problem, (0, 0, 1), seconds=1500, seed=3)
    assert seen.events == pytest.approx(RATE * 1500, rel=0.02)
    assert seen.service[1] == pytest.approx(1 / (CPU - RATE), rel=0.1)  # M/M/1
    expected = 0.001 + 1 / (100_000 / 400 - RATE) + 0.05 + 1 / (50_000 / 400 - RATE)
    assert seen.transfer[1, 2] == pytest.approx(expected, rel=0.03)
    assert seen.arrival[2] == pytest.approx(1 / (CPU - RATE) + expected, rel=0.05)
    model = solve(problem, "aels")
    assert model.placement[1] == 0 or model.evaluation.latency < seen.latency


def test_fixed_service_waits_half_as_long() -> None:
    seen = simulate(one_operator(), (0, 0, 1), seconds=1500, seed=4, world=QueueWorld(fixed=True))
    load = RATE / CPU
    assert seen.service[1] == pytest.approx(1 / CPU * (1 + load / (2 * (1 - load))), rel=0.1)  # M/D/1
    steady = simulate(one_operator(), (0, 0, 1), seconds=200, seed=4, world=QueueWorld(fixed=True, steady=True))
    assert steady.service[1] == pytest.approx(1 / CPU, rel=1e-6)  # D/D/1: no queue


def test_a_shared_host_is_slower_than_the_model() -> None:
    light = PlacedOperator(name="after", cpu=0.2)
    problem = one_operator(light)
    own = simulate(problem, (0, 0, 0, 1), seconds=600, seed=5)
    shared = simulate(problem, (0, 0, 0, 1), seconds=600, seed=5, world=QueueWorld(shared=True))
    assert own.service[2] == pytest.approx(1 / (CPU / 0.2 - RATE), rel=0.05)
    assert shared.service[2] > 10 * own.service[2]


def test_windows_hold_half_of_what_the_model_adds() -> None:
    problem = one_operator(window=10)
    seen = simulate(problem, (0, 0, 1), seconds=600, seed=6, world=QueueWorld(windows=True))
    assert problem.application.waiting == pytest.approx(10 / RATE)  # eq. 7
    assert seen.holding[1] == pytest.approx(9 / (2 * RATE), rel=0.05)
    # The events of a window arrive together: they wait for each other.
    alone = simulate(problem, (0, 0, 1), seconds=600, seed=6)
    assert seen.service[1] > 1.2 * alone.service[1]


def test_selectivity_and_shares_are_those_of_the_problem() -> None:
    problem = generate.problem(generate.series_parallel(10, seed=3, sinks=3), (2, 3, 5), seed=2)
    placement = solve(problem, "aels").placement
    seen = simulate(problem, placement, seconds=3, seed=1)
    assert seen.latency == pytest.approx(solve(problem, "aels").evaluation.latency, rel=0.01)
    replicated = Application(problem.application.operators, dict.fromkeys(problem.application.streams, 1.0))
    busier = simulate(replace(problem, application=replicated), placement, seconds=3, seed=1)
    assert busier.events == pytest.approx(seen.events, rel=0.1)
    assert np.nansum(busier.service) > np.nansum(seen.service)


def test_a_seed_gives_the_same_again() -> None:
    runs = [simulate(one_operator(), (0, 0, 1), seconds=20, seed=s, compile_loop=False) for s in (1, 1, 2)]
    assert runs[0].latency == runs[1].latency != runs[2].latency
