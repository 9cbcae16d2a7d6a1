"""Strategies that place one operator after the other: the AELS family and its baselines. Pure.

Each takes any ``Search``: ``Scan`` follows the paper's listing, ``Indexed`` gives the same result in a time that
hardly grows with the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from headwater.placement.placing import Placing
from headwater.placement.problem import Bools, Placement, Problem
from headwater.placement.queueing import Floats
from headwater.placement.search import Search
from headwater.placement.why import unplaceable

Searching = Callable[[Placing], Search]
_Choice = Callable[[Search, int], int | None]


def cloud_only(problem: Problem, searching: Searching) -> Placement:
    """Place every operator on the cheapest host of a cloud."""
    cloud = problem.topology.cloud
    return _one_by_one(problem, searching, lambda search, o: search.cheapest(o, cloud))


def aels(problem: Problem, searching: Searching, *, edge_first: bool = False) -> Placement:
    """Place every operator where service and transfers from upstream take least time (section 4.3.1).

    ``edge_first``: use a cloud only if no edge host fits, as in the authors' simulator.
    """
    if edge_first:
        return _one_by_one(problem, searching, _edge_first)
    return _one_by_one(problem, searching, lambda search, o: search.cheapest(o))


def aels_rp(problem: Problem, searching: Searching) -> Placement:
    """Place operators by region patterns (section 4.3.2).

    Operators that lead to a sink at the edge go to an edge host as in AELS, or to a cloud if none fits; the others
    go to the cloud nearest to their sink.
    """

    def choose(search: Search, operator: int) -> int | None:
        if _leads_to_edge(problem, operator):
            return _edge_first(search, operator)
        return _cloud_of_sink(search, operator)

    return _one_by_one(problem, searching, choose)


def aels_rp_la(problem: Problem, searching: Searching) -> Placement:
    """Place operators by region patterns on a few hosts chosen by latency (section 4.3.3)."""

    def choose(search: Search, operator: int) -> int | None:
        to_edge = _leads_to_edge(problem, operator)
        if not to_edge and (host := _cloud_of_sink(search, operator)) is not None:
            return host
        costs = {host: search.placing.cost(operator, host) for host in _listed(search, operator)}
        fitting = [host for host, cost in costs.items() if cost < math.inf]
        preferred = [host for host in fitting if problem.in_cloud(host) != to_edge]
        if fitting:
            return min(preferred or fitting, key=lambda host: (costs[host], host))
        return search.cheapest(operator, problem.topology.cloud)

    return _one_by_one(problem, searching, choose)


GREEDY: dict[str, Callable[..., Placement]] = {
    "cloud_only": cloud_only,
    "aels": aels,
    "aels_rp": aels_rp,
    "aels_rp_la": aels_rp_la,
}


def _one_by_one(problem: Problem, searching: Searching, choose: _Choice) -> Placement:
    """Place operators in the deployment sequence; raise Unplaceable if one finds no host.

    An operator limited to hosts outside of clouds takes the cheapest of them where the strategy would choose a
    cloud.
    """
    placing = Placing(problem)
    search = searching(placing)
    for operator in problem.application.order:
        what = problem.application.operators[operator]
        host = what.fixed
        if host is None:
            host = choose(search, operator)
        elif not placing.meets(operator, host):
            host = None
        if host is None and what.hosts is not None and not any(map(problem.in_cloud, what.hosts)):
            host = search.cheapest(operator)
        if host is None:
            raise unplaceable(placing, operator)
        placing.put(operator, host)
    return placing.placement()


def _edge_first(search: Search, operator: int) -> int | None:
    cloud = search.placing.problem.topology.cloud
    found = search.cheapest(operator, ~cloud)
    return search.cheapest(operator, cloud) if found is None else found


def _leads_to_edge(problem: Problem, operator: int) -> bool:
    """Return whether an operator is in the edge region: it shares a path with a sink at the edge.

    A sink that is not pinned counts as a cloud sink.
    """
    sinks = (problem.application.operators[sink].fixed for sink in problem.reached[operator])
    return any(host is not None and not problem.in_cloud(host) for host in sinks)


def _cloud_of_sink(search: Search, operator: int) -> int | None:
    """Return the cloud host of the operator's sink, else a host that fits in the cloud nearest to it."""
    problem = search.placing.problem
    for sink in sorted(problem.reached[operator]):
        host = problem.application.operators[sink].fixed
        if host is None or not problem.in_cloud(host):
            continue
        if search.placing.cost(operator, host) < math.inf:
            return host
        latency = problem.network.latencies_from(problem.zone_of(host))
        clouds = np.flatnonzero(problem.topology.cloud)
        for zone in clouds[np.argsort(latency[clouds], kind="stable")]:
            if (found := search.nearest(operator, int(zone))) is not None:
                return found
        return None
    return search.cheapest(operator, problem.topology.cloud)


def _listed(search: Search, operator: int) -> Iterable[int]:
    """Return the hosts of the three schemes: in situ, in transit, at the sinks."""
    placing = search.placing
    problem, cloud = placing.problem, placing.problem.topology.cloud
    listed: dict[int, None] = {}
    nearest: dict[int, int | None] = {}

    def add(host: int | None) -> None:
        if host is not None:
            listed[host] = None

    def add_near(zone: int | None) -> None:
        if zone is not None:
            if zone not in nearest:
                nearest[zone] = search.nearest(operator, zone)
            add(nearest[zone])

    known: set[int] = set()
    for u in problem.application.upstream[operator]:
        host = placing.placed[u]
        zone = problem.zone_of(host)
        add(host)
        if zone in known:  # the hosts near it are the same as for the upstream operator before
            continue
        known.add(zone)
        if not problem.in_cloud(host):
            add_near(zone)
        latency = problem.network.latencies_from(zone)
        for others in (~cloud, cloud):
            add_near(_least(latency, others, zone))
    for sink in sorted(problem.reached[operator]):
        at = problem.application.operators[sink].fixed
        if at is None:
            continue
        add(at)
        zone = problem.zone_of(at)
        if problem.in_cloud(at):
            add_near(_least(problem.network.latencies_from(zone), cloud, zone))
        else:
            add_near(zone)
    return listed


def _least(latency: Floats, zones: Bools, but: int) -> int | None:
    """Return the zone of least latency among some, except one."""
    of = np.where(zones, latency, np.inf)
    of[but] = np.inf
    found = int(np.argmin(of))
    return found if of[found] < np.inf else None
