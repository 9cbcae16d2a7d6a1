"""Placements that fill the best hosts one after the other. Pure.

Where links are slow, all operators belong onto one host. If none has room for all, a search by single moves ends far
from the optimum: the first operators that move cost more than they save. These placements put all onto the best host by
its cost without capacities, and what it has no room for onto the next ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from headwater.placement.placing import Placing
from headwater.placement.problem import Placement, Problem
from headwater.placement.queueing import Floats, mm1_of

_CLOUDS, _ZONES, _OF_ZONE = 8, 4, 3
"""Clouds and zones of any kind that are nearest to the pinned operators, and hosts of each."""
_BEST = 3
"""Hosts that are filled first, each in two orders."""


def filled(problem: Problem) -> Iterator[Placement]:
    """Yield placements within all constraints, a few at most; none where operators are placed in groups."""
    if problem.together:
        return
    hosts, costs = _candidates(problem)
    order = problem.application.order
    for best in np.argsort(costs, kind="stable")[:_BEST].tolist():
        away = problem.network.latencies_from(problem.zone_of(hosts[best]))
        others = sorted(range(len(hosts)), key=lambda n: (n != best, away[problem.zone_of(hosts[n])], costs[n]))
        for operators in (order, order[::-1]):
            if (found := _fill(problem, operators, [hosts[n] for n in others])) is not None:
                yield found


def _fill(problem: Problem, operators: Sequence[int], hosts: Sequence[int]) -> Placement | None:
    """Place operators in an order, each on the first host with room for it; None if there is none."""
    placing = Placing(problem)
    for operator, what in enumerate(problem.application.operators):
        if what.host is not None:
            placing.put(operator, what.host)
    for operator in operators:
        if operator in placing.placed:
            continue
        host = next((h for h in hosts if placing.meets(operator, h)), None)
        if host is None:
            return None
        placing.put(operator, host)
    return placing.placement()


def _candidates(problem: Problem) -> tuple[list[int], list[float]]:
    """Return strong hosts near the pinned operators, and AL with all free operators on each, without capacities."""
    application, every = problem.application, problem.hosts
    transfers = _transfers(problem)
    near = np.argsort(transfers, kind="stable")
    near = near[np.isfinite(transfers[near])]
    clouds = near[problem.topology.cloud[near]]
    hosts: list[int] = []
    for zone in dict.fromkeys((*clouds[:_CLOUDS].tolist(), *near[:_ZONES].tolist())):
        inside = np.flatnonzero(every.zone == zone)
        hosts += inside[np.argsort(-every.cpu_free[inside], kind="stable")[:_OF_ZONE]].tolist()
    costs = transfers[every.zone[hosts]] if hosts else np.zeros(0)
    for operator in application.free:
        if (cpu := application.operators[operator].cpu) > 0:
            served = mm1_of(every.cpu[hosts] / cpu, float(application.rate_in[operator]))
            costs = costs + application.paths[operator] * served
    return hosts, costs.tolist()


def _transfers(problem: Problem) -> Floats:
    """Return the latency between all pinned operators and free neighbours in each zone; ∞ without a route."""
    application, network = problem.application, problem.network
    total: Floats = np.zeros(network.zones)
    for (u, v), paths in application.paths_over.items():
        one, other = application.operators[u].host, application.operators[v].host
        if one is not None and other is None:
            total += paths * network.latencies_from(problem.zone_of(one))
        elif one is None and other is not None:
            total += paths * network.latencies_to(problem.zone_of(other))
    return np.where(np.isnan(total), math.inf, total)
