"""TCEP as in the AELS paper: the middle of a ranking of hosts by free cpu. Pure.

As in the authors' simulator: operators by increasing cpu need; a binary search from the middle of the ranking for
the least host that fits, above the place of the previous one. If there is none, the operator runs in a cloud, as the
paper says: on the cloud host with the most free cpu that fits. One that may run in no cloud takes such a host of its
own.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np

from headwater.placement.placing import Placing
from headwater.placement.problem import Ints, Placement, Problem, Topology
from headwater.placement.why import unplaceable


class Ranking(Protocol):
    """Hosts by free cpu, least first; equal ones by number."""

    def host(self, place: int) -> int:
        """Return the host at a place."""

    def change(self, host: int, cpu: float) -> None:
        """Update the rank of a host."""


class Sorted:
    """Sorts all hosts again after every change."""

    def __init__(self, topology: Topology) -> None:
        self._free = topology.hosts.cpu_free.copy()
        self._order = np.argsort(self._free, kind="stable")

    def host(self, place: int) -> int:
        return int(self._order[place])

    def change(self, host: int, cpu: float) -> None:
        self._free[host] = cpu
        self._order = np.argsort(self._free, kind="stable")


class MergedOperators:
    """Sorts hosts once for a topology, and keeps changed hosts separately."""

    def __init__(self, topology: Topology) -> None:
        self._order, self._free = topology.by_cpu
        self._cpu = topology.hosts.cpu_free
        self._gone: list[int] = []
        """Places of changed hosts in the full order; increasing."""
        self._changed: list[tuple[float, int, int]] = []
        """Cpu, number and place in the full order of changed hosts, least first."""
        self._ranks: list[int] = []

    def host(self, place: int) -> int:
        before = bisect.bisect_left(self._ranks, place)
        if before < len(self._ranks) and self._ranks[before] == place:
            return self._changed[before][1]
        place -= before
        for gone in self._gone:
            if gone <= place:
                place += 1
        return int(self._order[place])

    def change(self, host: int, cpu: float) -> None:
        old = next((c for c in self._changed if c[1] == host), None)
        if old is None:
            bisect.insort(self._gone, self._place(float(self._cpu[host]), host))
        else:
            self._changed.remove(old)
        bisect.insort(self._changed, (cpu, host, self._place(cpu, host)))
        places = (place for _, _, place in self._changed)
        self._ranks = [place - bisect.bisect_left(self._gone, place) + n for n, place in enumerate(places)]

    def _place(self, cpu: float, host: int) -> int:
        """Return the place in the full order of a host with that cpu."""
        lowest, highest = (int(self._free.searchsorted(cpu, side)) for side in ("left", "right"))
        return lowest + int(self._order[lowest:highest].searchsorted(host))


def tcep(problem: Problem, ranking: Ranking, *, checked: bool = True) -> Placement:
    """Place by TCEP. ``checked``: also check bandwidth, which the simulator omits."""
    application, hosts = problem.application, problem.hosts
    placing = Placing(problem)
    for operator, what in enumerate(application.operators):
        if what.fixed is not None:
            placing.put(operator, what.fixed)
    enough = placing.meets if checked else placing.has_room
    lowest = 0
    free = [o for o in application.free if o not in placing.placed]
    for operator in sorted(free, key=lambda o: (application.operators[o].cpu, o)):
        place = _found(partial(_will_do, enough, ranking, operator), lowest, len(hosts))
        if place is not None:
            lowest = place + 1
        host = _in_cloud(placing, enough, operator) if place is None else ranking.host(place)
        if host is None:
            raise unplaceable(placing, operator)
        placing.put(operator, host)
        ranking.change(host, float(hosts.cpu_free[host]) - placing.work[host])
    return placing.placement()


def _in_cloud(placing: Placing, enough: Callable[[int, int], bool], operator: int) -> int | None:
    """Return the cloud host with the most free cpu that fits; of an operator's own hosts if none is in a cloud."""
    problem, listed = placing.problem, placing.problem.application.operators[operator].hosts
    cloud = problem.topology.cloud[problem.hosts.zone]
    among: Ints = np.flatnonzero(cloud) if listed is None else np.array(sorted(listed), dtype=np.int64)
    if listed is not None and cloud[among].any():
        among = among[cloud[among]]
    free = problem.hosts.cpu_free[among] - [placing.work[host] for host in among.tolist()]
    return next((h for h in among[np.lexsort((-among, -free))].tolist() if enough(operator, h)), None)


def _will_do(enough: Callable[[int, int], bool], ranking: Ranking, operator: int, place: int) -> bool:
    return enough(operator, ranking.host(place))


def _found(will_do: Callable[[int], bool], lowest: int, count: int) -> int | None:
    """Search from the middle of the places from ``lowest`` on, down to the first that does not fit."""
    highest = count - 1
    place = (lowest + highest) // 2
    while place < count and will_do(place):
        highest = place - 1
        if highest < lowest:
            return place
        place = (lowest + highest) // 2
    return place + 1 if place < count - 1 and will_do(place + 1) else None
