"""Improve a placement step by step: move operators, alone or with others of their host. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from headwater.placement.cost import service_time, transfer_time
from headwater.placement.placing import Placing
from headwater.placement.problem import Placement, Problem, Stream
from headwater.placement.search import Search
from headwater.placement.tables import choices_of

_MOST_TOGETHER = 64
"""Operators that are moved together at most: to find larger groups again and again would take long."""
_MOST_MOVES = 20_000
_MOST_COSTS = 200_000
"""Costs of streams that are kept."""


def local_search(
    problem: Problem, start: Placement, search: Search, *, passes: int = 20, costs: MoveCosts | None = None
) -> Placement:
    """Move operators of a valid placement while this reduces AL; at most ``passes`` rounds.

    ``search`` is over an empty placement and receives the operators of ``start``; ``costs``: of the problem's former
    searches.
    """
    placing, costs = search.placing, costs or MoveCosts(problem)
    for operator in problem.application.order:
        placing.put(operator, start[operator])
    tried, last = 0, math.inf
    for _ in range(passes):
        moved = False
        for place, group, hosts in _moves(problem, search, costs):
            if place > last and not moved:
                break  # all others were tried since the last move
            tried += 1
            if _move(problem, placing, group, hosts, costs):
                moved, last = True, place
        if not moved or tried > _MOST_MOVES:
            break
    return placing.placement()


class MoveCosts:
    """The costs of operators and streams at the hosts that moves try, and the nearest cloud of each zone.

    Each is computed once, also for several searches of one problem.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._clouds = np.flatnonzero(problem.topology.cloud)
        self._nearest: dict[int, int | None] = {}
        self._services: dict[tuple[int, int], float] = {}
        self._transfers: dict[tuple[Stream, int, int], float] = {}

    def nearest_cloud(self, zone: int) -> int | None:
        """Return the zone of the cloud nearest to a zone; None where no cloud can be reached."""
        if zone not in self._nearest:
            latency = self._problem.network.latencies_from(zone)[self._clouds]
            reached = len(latency) and latency.min() < math.inf
            self._nearest[zone] = int(self._clouds[np.argmin(latency)]) if reached else None
        return self._nearest[zone]

    def of(self, at: Mapping[int, int], group: Sequence[int], streams: Iterable[Stream]) -> float:
        """Return the part of AL that depends on operators; ``at``: the hosts of them and of their neighbours."""
        terms = [self._service(o, at[o]) for o in group]
        terms += [self._transfer(stream, at[stream[0]], at[stream[1]]) for stream in streams]
        return math.fsum(terms)

    def _service(self, operator: int, host: int) -> float:
        key = operator, host
        if (found := self._services.get(key)) is None:
            paths = self._problem.application.paths[operator]
            found = self._services[key] = paths * service_time(self._problem, operator, host)
        return found

    def _transfer(self, stream: Stream, lower: int, upper: int) -> float:
        key = stream, lower, upper
        if (found := self._transfers.get(key)) is None:
            if len(self._transfers) >= _MOST_COSTS:
                self._transfers.clear()
            paths = self._problem.application.paths_over[stream]
            found = self._transfers[key] = paths * transfer_time(self._problem, stream, lower, upper)
        return found


def _moves(
    problem: Problem, search: Search, costs: MoveCosts
) -> Iterator[tuple[int, tuple[int, ...], list[tuple[int, ...]]]]:
    """Yield the place in the order, operators to move, and their candidate hosts, at the current state.

    The operators are a group of the problem, else a free one, alone and with those connected with it on its host.
    """
    for place, group in enumerate(problem.together):
        yield place, group, choices_of(problem, group)
    for place, operator in enumerate(problem.application.free, len(problem.together)):
        if operator in problem.group_of:
            continue
        for group in dict.fromkeys(((operator,), _together(problem, search.placing, operator))):
            yield place, group, [(host,) * len(group) for host in _hosts(problem, search, costs, group)]


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


def _move(
    problem: Problem, placing: Placing, group: Sequence[int], choices: Iterable[Sequence[int]], costs: MoveCosts
) -> bool:
    """Put operators where they cost least; return whether they moved."""
    old = [placing.placed[o] for o in group]
    streams = _streams(problem, group)
    at = {o: placing.placed[o] for stream in streams for o in stream} | dict(zip(group, old, strict=True))
    best, least = old, costs.of(at, group, streams) * (1 - 1e-12)
    placing.take_all_back(group)
    for hosts in choices:
        if list(hosts) == old:
            continue
        at.update(zip(group, hosts, strict=True))
        cost = costs.of(at, group, streams)
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


def _hosts(problem: Problem, search: Search, costs: MoveCosts, group: Sequence[int]) -> Iterable[int]:
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
        if (cloud := costs.nearest_cloud(zone)) is not None:
            zones[cloud] = None
    for zone in zones:
        if (near := search.nearest(group[0], zone)) is not None:
            found[near] = None
    return found
