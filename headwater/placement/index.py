"""An index of hosts by zone and LAN latency, so that a search looks at few of a million hosts. Pure.

Hosts of a zone are sorted by LAN latency, in blocks that know the largest free capacities of their hosts. A
search visits zones with a short enough route, in them blocks that have room, in these hosts until the LAN
latency alone costs too much. It is exact for hosts of any kind and load; the usage of the current placement is
looked up for the few hosts concerned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from headwater.placement.compiled import compiled
from headwater.placement.placing import Coming, Placing
from headwater.placement.problem import Bools, Ints, Topology
from headwater.placement.queueing import Floats

_BLOCK = 256
_COMPARED, _WIDEST = 4096, 6
"""Hosts compared to find the front of a zone, and the largest size of a front."""
_MANY = 20_000
"""Hosts from which compilation pays off."""
_known: WeakKeyDictionary[Topology, Index] = WeakKeyDictionary()


@dataclass(frozen=True)
class Front:
    """Hosts of a zone that no nearer host dominates.

    ``complete``: whether it contains all such hosts. ``rest``: the least LAN latency and the most LAN bandwidth, cpu,
    free cpu and free memory of any other host of the zone; None: there is none.
    """

    hosts: tuple[int, ...]
    complete: bool
    rest: tuple[float, ...] | None


@dataclass(frozen=True, eq=False)
class Index:
    """Hosts sorted by zone, LAN latency and number, and the maxima of their blocks.

    ``blocks``: for each zone the start of its blocks, and the end of the last. ``starts``: the same for blocks and
    hosts.
    """

    host: Ints
    lan_latency: Floats
    lan_bandwidth: Floats
    cpu: Floats
    cpu_free: Floats
    memory_free: Floats
    blocks: Ints
    starts: Ints
    most: Floats
    """[block, what]: cpu, cpu_free, memory_free, lan_bandwidth."""
    every_zone: Bools

    @cached_property
    def best(self) -> tuple[float, ...]:
        """The best value of all hosts in each respect, as in ``Front.rest``."""
        return self._best(np.arange(len(self.host)))

    @cached_property
    def filled(self) -> Ints:
        """The zones that have hosts."""
        return np.flatnonzero(np.diff(self.blocks))

    @cached_property
    def _fronts(self) -> dict[tuple[int, int], Front]:
        return {}

    def count(self, zone: int) -> int:
        """Return the number of hosts of a zone."""
        start, end = self._reach(zone)
        return end - start

    def front(self, zone: int, depth: int) -> Front:
        """Return a zone's hosts that no other dominates; at ``depth`` n, after removal of n earlier fronts."""
        if (zone, depth) not in self._fronts:
            self._fronts[zone, depth] = self._find_front(zone, depth)
        return self._fronts[zone, depth]

    def _find_front(self, zone: int, depth: int) -> Front:
        start, end = self._reach(zone)
        left, found, complete = np.arange(start, end), [], True
        for layer in range(depth):
            front, beaten = self._unbeaten(left[:_COMPARED])
            found += front
            if layer == 0:
                complete = beaten and (len(left) <= _COMPARED or self._beat(front, left[_COMPARED:]))
            left = np.setdiff1d(left, front, assume_unique=True)
        rest = self._best(left) if len(left) else None
        return Front(tuple(int(h) for h in self.host[found]), complete, rest)

    def _reach(self, zone: int) -> tuple[int, int]:
        return int(self.starts[self.blocks[zone]]), int(self.starts[self.blocks[zone + 1]])

    def _unbeaten(self, among: Ints) -> tuple[list[int], bool]:
        """Return the hosts that no nearer one dominates, and whether these are all."""
        front: list[int] = []
        while len(among) and len(front) < _WIDEST:
            front.append(int(among[0]))
            among = among[~self._is_beaten(front[-1], among)]
        return front, not len(among)

    def _is_beaten(self, by: int, hosts: Ints) -> Bools:
        """Mark the hosts, none of them nearer, that one host dominates."""
        fields = (self.cpu, self.cpu_free, self.memory_free, self.lan_bandwidth)
        found: Bools = np.logical_and.reduce([field[hosts] <= field[by] for field in fields])
        return found

    def _beat(self, front: list[int], hosts: Ints) -> bool:
        return bool(np.logical_or.reduce([self._is_beaten(f, hosts) for f in front]).all())

    def _best(self, among: Ints) -> tuple[float, ...]:
        fields = (self.lan_bandwidth, self.cpu, self.cpu_free, self.memory_free)
        return (float(self.lan_latency[among].min()), *(float(f[among].max()) for f in fields))

    @cached_property
    def fields(self) -> tuple[Any, ...]:
        """All arrays of the search loop."""
        ordered = (self.host, self.lan_latency, self.lan_bandwidth, self.cpu, self.cpu_free, self.memory_free)
        return (*ordered, self.blocks, self.starts, self.most)

    @classmethod
    def of(cls, topology: Topology) -> Index:
        """Return a topology's index, built once."""
        if topology not in _known:
            _known[topology] = cls._made(topology)
        return _known[topology]

    @classmethod
    def _made(cls, topology: Topology) -> Index:
        hosts = topology.hosts
        order = np.lexsort((hosts.lan_latency, hosts.zone)).astype(np.int32)
        begins = np.searchsorted(hosts.zone[order], np.arange(topology.network.zones + 1))
        per_zone = -(-np.diff(begins) // _BLOCK)
        blocks = np.concatenate(([0], np.cumsum(per_zone)))
        inside = np.arange(blocks[-1]) - np.repeat(blocks[:-1], per_zone)
        starts = np.append(np.repeat(begins[:-1], per_zone) + inside * _BLOCK, len(hosts))
        ordered = [field[order] for field in (hosts.cpu, hosts.cpu_free, hosts.memory_free, hosts.lan_bandwidth)]
        most = np.column_stack([np.maximum.reduceat(field, starts[:-1]) for field in ordered])
        cpu, cpu_free, memory_free, lan_bandwidth = ordered
        return cls(
            host=order,
            lan_latency=hosts.lan_latency[order],
            lan_bandwidth=lan_bandwidth,
            cpu=cpu,
            cpu_free=cpu_free,
            memory_free=memory_free,
            blocks=blocks.astype(np.int32),
            starts=starts.astype(np.int32),
            most=most,
            every_zone=np.ones(topology.network.zones, dtype=np.bool_),
        )


class Indexed:
    """Looks at few hosts; returns the same as ``HostScan``."""

    def __init__(self, placing: Placing) -> None:
        self.placing = placing
        self._index = Index.of(placing.problem.topology)
        self._find = _loop(len(placing.problem.hosts) >= _MANY)
        self._last: tuple[Coming, tuple[Any, ...]] | None = None

    def cheapest(self, operator: int, zones: Bools | None = None) -> int | None:
        placing = self.placing
        listed = placing.problem.application.operators[operator].hosts
        best, least = -1, math.inf
        for host in placing.coming(operator).local if listed is None else listed:
            if zones is None or zones[placing.problem.zone_of(host)]:
                cost = placing.cost(operator, host)
                if cost < least or (cost == least < math.inf and host < best):
                    best, least = host, cost
        if listed is None:
            allowed = self._index.every_zone if zones is None else zones
            best = int(self._find(False, allowed, self._index.filled, best, least, *self._given(operator)))
        return best if best >= 0 else None

    def nearest(self, operator: int, zone: int) -> int | None:
        placing = self.placing
        listed = placing.problem.application.operators[operator].hosts
        latency = placing.problem.hosts.lan_latency
        looked_at = [
            (float(latency[host]), host)
            for host in (placing.coming(operator).local if listed is None else listed)
            if placing.problem.zone_of(host) == zone and placing.cost(operator, host) < math.inf
        ]
        least, best = min(looked_at, default=(math.inf, -1))
        if listed is None:
            only = np.array([zone], dtype=np.int64)
            best = int(self._find(True, self._index.every_zone, only, best, least, *self._given(operator)))
        return best if best >= 0 else None

    def _given(self, operator: int) -> tuple[Any, ...]:
        """Return the loop's arguments: arriving streams, needs, hosts, and the usage of the placement."""
        placing, index = self.placing, self._index
        application, coming = placing.problem.application, placing.coming(operator)
        if self._last is not None and self._last[0] is coming:
            return self._last[1]
        what = application.operators[operator]
        given = (
            coming.far,
            np.array([flow.rate for flow in coming.flows], dtype=np.float64),
            np.array([flow.bits for flow in coming.flows], dtype=np.float64),
            float(coming.bandwidth),
            what.cpu,
            float(application.rate_in[operator]),
            application.work[operator],
            application.room[operator],
            *index.fields,
            np.array(coming.local, dtype=np.int32),
            *placing.taken(),
        )
        self._last = coming, given
        return given


def _find(
    by_latency: bool,
    zones: Bools,
    among: Ints,
    best: int,
    least: float,
    far: Floats,
    rates: Floats,
    bits: Floats,
    bandwidth: float,
    cpu_needed: float,
    rate: float,
    work: float,
    room: float,
    host: Ints,
    lan_latency: Floats,
    lan_bandwidth: Floats,
    cpu: Floats,
    cpu_free: Floats,
    memory_free: Floats,
    blocks: Ints,
    starts: Ints,
    most: Floats,
    beside: Ints,
    touched: Ints,
    taken: Floats,
) -> int:
    """Return the host of least cost (or LAN latency) if it is better than ``best``, else ``best``.

    ``zones``: whether each may be used. ``among``: the zones to look at. ``least`` is the cost of ``best``. Bounds sum
    the same terms in the same order as costs, each term no greater: with rounding they stay below, so no better host is
    missed.
    """
    first, shortest = -1, math.inf
    for z in among:
        if zones[z] and far[z] < shortest:
            first, shortest = z, far[z]
    if first < 0:
        return best
    # The nearest zone first: its hosts rule most others out.
    for turn in range(-1, len(among)):
        z = first if turn < 0 else among[turn]
        if (turn >= 0 and z == first) or not zones[z] or far[z] == math.inf or (far[z] > least and not by_latency):
            continue
        for b in range(blocks[z], blocks[z + 1]):
            if most[b, 1] < work or most[b, 2] < room or most[b, 3] < bandwidth:
                continue
            soonest = 0.0
            if cpu_needed > 0:
                spare = most[b, 0] / cpu_needed - rate
                if spare <= 0:
                    continue
                soonest = 1.0 / spare
            for i in range(starts[b], starts[b + 1]):
                latency = lan_latency[i]
                near = 0.0
                for _ in range(len(rates)):
                    near += latency
                if (latency if by_latency else far[z] + near + soonest) > least:
                    break
                if work > cpu_free[i] or room > memory_free[i] or bandwidth > lan_bandwidth[i]:
                    continue
                near = 0.0
                for f in range(len(rates)):
                    queue = 0.0
                    if bits[f] > 0:
                        spare = lan_bandwidth[i] / bits[f] - rates[f]
                        queue = 1.0 / spare if spare > 0 else math.inf
                    near += latency + queue
                cost = far[z] + near
                if cpu_needed > 0:
                    spare = cpu[i] / cpu_needed - rate
                    cost += 1.0 / spare if spare > 0 else math.inf
                if cost == math.inf:
                    continue
                if by_latency:
                    cost = latency
                if cost < least or (cost == least and host[i] < best):
                    fits = True
                    for t in range(len(beside)):
                        if beside[t] == host[i]:
                            fits = False  # its cost differs, and is known
                    for t in range(len(touched)):
                        if touched[t] == host[i]:
                            fits = fits and (
                                taken[t, 0] + work <= cpu_free[i]
                                and taken[t, 1] + room <= memory_free[i]
                                and taken[t, 2] + bandwidth <= lan_bandwidth[i]
                            )
                            break
                    if fits:
                        best, least = host[i], cost
    return best


@cache
def _loop(compile_it: bool) -> Callable[..., int]:
    return compiled(_find) if compile_it else _find
