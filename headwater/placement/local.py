"""Improve a placement step by step: move operators, alone or with others of their host. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    placing, clouds = search.placing, _NearestClouds(problem)
    for operator in problem.application.order:
        placing.put(operator, start[operator])
    tried = 0
    for _ in range(passes):
        moved = [_move(problem, placing, group, hosts) for group, hosts in _moves(problem, search, clouds)]
        tried += len(moved)
        if not any(moved) or tried > _MOST_MOVES:
            break
    return placing.placement()


class _NearestClouds:
    """The cloud nearest to each zone, looked up once."""

    def __init__(self, problem: Problem) -> None:
        self._network = problem.network
        self._clouds = np.flatnonzero(problem.topology.cloud)
        self._found: dict[int, int | None] = {}

    def __call__(self, zone: int) -> int | None:
        """Return the zone of the cloud; None where no cloud can be reached."""
        if zone not in self._found:
            latency = self._network.latencies_from(zone)[self._clouds]
            reached = len(latency) and latency.min() < math.inf
            self._found[zone] = int(self._clouds[np.argmin(latency)]) if reached else None
        return self._found[zone]


def _moves(
    problem: Problem, search: Search, clouds: _NearestClouds
) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """Yield groups of operators to move, and the candidate hosts of each, at the current state.

    A group is one of the problem's, else a free operator, or connected operators of one host.
    """
    for group in problem.together:
        yield group, choices_of(problem, group)
    for operator in problem.application.free:
        if operator in problem.group_of:
            continue
        for group in dict.fromkeys(((operator,), _together(problem, search.placing, operator))):
            yield group, [(host,) * len(group) for host in _hosts(problem, search, clouds, group)]


def _together(problem: Problem, placing: Placing, operator: int) -> tuple[int, ...]:
    """Return an operator and those connected with it on its host; itself only if one precedes it or too many are."""
    application, host = problem.application, placing.placed[operator]
    found, todo = {operator}, [operator]
    while todo:
        at = todo.pop()
        for other in (*application.upstream[at], *application.downstream[at]):
            free = application.operators[other].host is None and other not in problem.group_of
            if free and other not in found and placing.placed[other] == host:
                if other < operator or len(found) == _MOST_TOGETHER:
                    return (operator,)
                found.add(other)
                todo.append(other)
    return tuple(o for o in application.order if o in found)


def _move(problem: Problem, placing: Placing, group: Sequence[int], choices: Iterable[Sequence[int]]) -> bool:
    """Put operators where they cost least; return whether they moved."""
    old = [placing.placed[o] for o in group]
    streams = _streams(problem, group)
    at = {o: placing.placed[o] for stream in streams for o in stream} | dict(zip(group, old, strict=True))
    best, least = old, _cost(problem, at, group, streams) * (1 - 1e-12)
    placing.take_all_back(group)
    for hosts in choices:
        if list(hosts) == old:
            continue
        at.update(zip(group, hosts, strict=True))
        cost = _cost(problem, at, group, streams)
        if cost < least and placing.put_all(group, hosts):
            best, least = list(hosts), cost
            placing.take_all_back(group)
    for operator, host in zip(group, best, strict=True):
        placing.put(operator, host)
    return best != old


def _streams(problem: Problem, group: Sequence[int]) -> set[tuple[int, int]]:
    """Return the streams to and from operators."""
    application = problem.application
    before = {(u, o) for o in group for u in application.upstream[o]}
    return before | {(o, d) for o in group for d in application.downstream[o]}


def _cost(problem: Problem, at: Mapping[int, int], group: Sequence[int], streams: Iterable[tuple[int, int]]) -> float:
    """Return the part of AL that depends on the operators; ``at``: the hosts of them and of their neighbours."""
    application = problem.application
    terms = [application.paths[o] * service_time(problem, o, at[o]) for o in group]
    terms += [application.paths_over[u, v] * transfer_time(problem, (u, v), at[u], at[v]) for u, v in streams]
    return math.fsum(terms)


def _hosts(problem: Problem, search: Search, clouds: _NearestClouds, group: Sequence[int]) -> Iterable[int]:
    """Return candidate hosts: of neighbours, next to them, next to the sinks, in the nearest clouds."""
    application, placing = problem.application, search.placing
    neighbours = {
        other
        for o in group
        for other in (*application.upstream[o], *application.downstream[o], *problem.reached[o])
        if other in placing.placed
    }
    found = dict.fromkeys(placing.placed[o] for o in sorted(neighbours))
    zones = dict.fromkeys(problem.zone_of(host) for host in found)
    for zone in tuple(zones):
        if (cloud := clouds(zone)) is not None:
            zones[cloud] = None
    for zone in zones:
        if (near := search.nearest(group[0], zone)) is not None:
            found[near] = None
    return found
