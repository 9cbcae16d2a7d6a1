"""Better a placement step by step: operators move, alone or with others of their host, as it helps. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from headwater.placement.cost import service_time, transfer_time
from headwater.placement.placing import Placing
from headwater.placement.problem import Placement, Problem
from headwater.placement.search import Search


def local_search(problem: Problem, start: Placement, search: Search, *, passes: int = 20) -> Placement:
    """Move operators of a placement that holds, as long as this helps; at most ``passes`` times round.

    ``search`` is over a placement without operators; it gets those of ``start``.
    """
    placing = search.placing
    for operator in problem.application.order:
        placing.put(operator, start[operator])
    for _ in range(passes):
        moved = [_move(problem, search, group) for group in _groups(problem, placing)]
        if not any(moved):
            break
    return placing.placement()


def _groups(problem: Problem, placing: Placing) -> Iterable[tuple[int, ...]]:
    """Give each free operator, and those of a host that streams join; as they are when it is their turn."""
    for operator in problem.application.free:
        yield (operator,)
        together = _together(problem, placing, operator)
        if len(together) > 1 and operator == min(together):
            yield together


def _together(problem: Problem, placing: Placing, operator: int) -> tuple[int, ...]:
    application, host = problem.application, placing.placed[operator]
    found, todo = {operator}, [operator]
    while todo:
        at = todo.pop()
        for other in (*application.upstream[at], *application.downstream[at]):
            free = application.operators[other].host is None
            if free and other not in found and placing.placed[other] == host:
                found.add(other)
                todo.append(other)
    return tuple(o for o in application.order if o in found)


def _move(problem: Problem, search: Search, group: Sequence[int]) -> bool:
    """Put operators where they cost least; tell whether that is elsewhere."""
    placing = search.placing
    old = placing.placed[group[0]]
    best, least = old, _cost(problem, placing, group) * (1 - 1e-12)
    for operator in group:
        placing.take_back(operator)
    for host in _hosts(problem, search, group):
        if host != old and _put_all(placing, group, host):
            cost = _cost(problem, placing, group)
            if cost < least:
                best, least = host, cost
            for operator in group:
                placing.take_back(operator)
    for operator in group:
        placing.put(operator, best)
    return best != old


def _put_all(placing: Placing, group: Sequence[int], host: int) -> bool:
    """Put operators on a host; put none where not all fit."""
    for number, operator in enumerate(group):
        if not placing.meets(operator, host):
            for done in group[:number]:
                placing.take_back(done)
            return False
        placing.put(operator, host)
    return True


def _cost(problem: Problem, placing: Placing, group: Sequence[int]) -> float:
    """Give the part of AL that operators have a share in."""
    application, placed = problem.application, placing.placed
    streams = {
        stream
        for o in group
        for stream in (
            *((u, o) for u in application.upstream[o]),
            *((o, d) for d in application.downstream[o]),
        )
    }
    terms = [application.paths[o] * service_time(problem, o, placed[o]) for o in group]
    terms += [
        application.paths_over[u, v] * transfer_time(problem, (u, v), placed[u], placed[v])
        for u, v in streams
    ]
    return math.fsum(terms)


def _hosts(problem: Problem, search: Search, group: Sequence[int]) -> Iterable[int]:
    """List hosts worth trying: of neighbours, next to them, next to the sinks, in the nearest clouds."""
    application, placing = problem.application, search.placing
    neighbours = {
        other
        for o in group
        for other in (*application.upstream[o], *application.downstream[o], *problem.reached[o])
        if other in placing.placed
    }
    found = dict.fromkeys(placing.placed[o] for o in sorted(neighbours))
    clouds = np.flatnonzero(problem.topology.cloud)
    zones = dict.fromkeys(problem.zone_of(host) for host in found)
    for zone in tuple(zones):
        latency = problem.network.latencies_from(zone)[clouds]
        if len(clouds) and latency.min() < math.inf:
            zones[int(clouds[np.argmin(latency)])] = None
    for zone in zones:
        if (near := search.nearest(group[0], zone)) is not None:
            found[near] = None
    return found
