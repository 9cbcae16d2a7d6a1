"""Improve a placement step by step: move operators, alone or with others of their host. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from headwater.placement.cost import service_time, transfer_time
from headwater.placement.placing import Placing
from headwater.placement.problem import Placement, Problem
from headwater.placement.search import Search
from headwater.placement.tables import choices_of

_MOST_TOGETHER = 64
"""Operators that are moved together at most: to find larger groups again and again would take long."""
_MOST_MOVES = 20_000


def local_search(problem: Problem, start: Placement, search: Search, *, passes: int = 20) -> Placement:
    """Move operators of a valid placement while this reduces AL; at most ``passes`` rounds.

    ``search`` is over an empty placement and receives the operators of ``start``.
    """
    placing = search.placing
    for operator in problem.application.order:
        placing.put(operator, start[operator])
    tried = 0
    for _ in range(passes):
        moved = [_move(problem, placing, group, hosts) for group, hosts in _moves(problem, search)]
        tried += len(moved)
        if not any(moved) or tried > _MOST_MOVES:
            break
    return placing.placement()


def _moves(problem: Problem, search: Search) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """Yield groups of operators to move, and the candidate hosts of each, at the current state.

    A group is one of the problem's, else a free operator, or connected operators of one host.
    """
    for group in problem.together:
        yield group, choices_of(problem, group)
    for operator in problem.application.free:
        if operator in problem.group_of:
            continue
        for group in dict.fromkeys(((operator,), _together(problem, search.placing, operator))):
            if operator == min(group):
                yield group, [(host,) * len(group) for host in _hosts(problem, search, group)]


def _together(problem: Problem, placing: Placing, operator: int) -> tuple[int, ...]:
    application, host = problem.application, placing.placed[operator]
    found, todo = {operator}, [operator]
    while todo:
        at = todo.pop()
        for other in (*application.upstream[at], *application.downstream[at]):
            free = application.operators[other].host is None and other not in problem.group_of
            if free and other not in found and placing.placed[other] == host:
                found.add(other)
                todo.append(other)
                if len(found) > _MOST_TOGETHER:
                    return (operator,)
    return tuple(o for o in application.order if o in found)


def _move(problem: Problem, placing: Placing, group: Sequence[int], choices: Iterable[Sequence[int]]) -> bool:
    """Put operators where they cost least; return whether they moved."""
    old = [placing.placed[o] for o in group]
    best, least = old, _cost(problem, placing, group) * (1 - 1e-12)
    placing.take_all_back(group)
    for hosts in choices:
        if list(hosts) != old and placing.put_all(group, hosts):
            cost = _cost(problem, placing, group)
            if cost < least:
                best, least = list(hosts), cost
            placing.take_all_back(group)
    for operator, host in zip(group, best, strict=True):
        placing.put(operator, host)
    return best != old


def _cost(problem: Problem, placing: Placing, group: Sequence[int]) -> float:
    """Return the part of AL that depends on the operators."""
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
    terms += [application.paths_over[u, v] * transfer_time(problem, (u, v), placed[u], placed[v]) for u, v in streams]
    return math.fsum(terms)


def _hosts(problem: Problem, search: Search, group: Sequence[int]) -> Iterable[int]:
    """Return candidate hosts: of neighbours, next to them, next to the sinks, in the nearest clouds."""
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
