"""The candidate hosts of the optimum, and stand-ins for all others, for the bound. Pure.

Only zones near something pinned can be worth the route, and in each only hosts that no other of the zone
dominates. For the lower bound each zone has a stand-in for its other hosts, as good as the best of them in each
respect, and one stand-in for all hosts of other zones, as near to each zone as the nearest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headwater.placement.index import Index
from headwater.placement.network import StreamFlow
from headwater.placement.problem import Bools, Ints, Problem, Stream
from headwater.placement.queueing import Floats, mm1_of

_LISTED = 200
"""Candidates that operators' lists of hosts add."""


@dataclass(frozen=True, eq=False)
class Places:
    """Candidate hosts and stand-ins, numbered from 0; arrays have an entry for each.

    ``host`` is −1 for a stand-in. ``slot``: index of its zone in ``zones``; the last slot is all other zones.
    """

    problem: Problem
    zones: tuple[int, ...]
    host: Ints
    slot: Ints
    lan_latency: Floats
    lan_bandwidth: Floats
    cpu: Floats
    cpu_free: Floats
    memory_free: Floats

    def __len__(self) -> int:
        return len(self.host)

    @cached_property
    def _latency(self) -> Floats:
        """Between slots: [from, to]. To and from the last slot: of its nearest zone."""
        network, count = self.problem.network, len(self.zones)
        found, among = np.zeros((count + 1, count + 1)), np.array(self.zones, dtype=np.int64)
        others = np.ones(network.zones, dtype=np.bool_)
        others[among] = False
        there = bool(others.any())
        for n, zone in enumerate(self.zones):
            latency = network.latencies_from(zone)
            found[n, :count] = latency[among]
            found[n, count] = latency[others].min() if there else np.inf
            found[count, n] = network.latencies_to(zone)[others].min() if there else np.inf
        return found

    def service(self, operator: int) -> Floats:
        """Return an operator's service time on each place; ∞ if it does not fit even alone."""
        problem = self.problem
        application = problem.application
        what = application.operators[operator]
        seconds = np.zeros(len(self))
        if what.cpu:
            seconds = mm1_of(self.cpu / what.cpu, float(application.rate_in[operator]))
        seconds[application.work[operator] > self.cpu_free] = np.inf
        seconds[application.room[operator] > self.memory_free] = np.inf
        if what.hosts is not None:
            seconds[~self._of_list(what.hosts)] = np.inf
        return seconds

    def _of_list(self, hosts: frozenset[int]) -> Bools:
        """Return the places that are in a list of hosts, or stand in for some of it that are no candidates."""
        if hosts not in self._lists:
            listed = np.fromiter(hosts, np.int32, len(hosts))
            found = np.isin(self.host, listed)
            zones = np.unique(self.problem.hosts.zone[listed[~np.isin(listed, self.host)]])
            slot_of = {zone: slot for slot, zone in enumerate(self.zones)}
            slots = [slot_of.get(int(zone), len(self.zones)) for zone in zones]
            self._lists[hosts] = found | ((self.host < 0) & np.isin(self.slot, slots))
        return self._lists[hosts]

    @cached_property
    def _lists(self) -> dict[frozenset[int], Bools]:
        return {}

    def transfer(self, stream: Stream, lower: Ints, upper: Ints) -> Floats:
        """Return a stream's transfer time between places with these numbers: [from, to]; ∞ without a route."""
        flow = self.problem.application.flow(stream, 0)
        slots = self.slot[lower][:, None], self.slot[upper]
        seconds: Floats = self._latency[slots] + self.lan_latency[lower][:, None] + self.lan_latency[upper]
        if flow.bits:
            access = mm1_of(self.lan_bandwidth / flow.bits, flow.rate)
            seconds = seconds + access[lower][:, None] + access[upper] + self._queues(flow, slots)
        seconds[lower[:, None] == upper] = 0.0  # one host; a stand-in for several may be one with itself
        return seconds

    def _queues(self, flow: StreamFlow, slots: tuple[Ints, Ints]) -> Floats:
        """Return the seconds in links' queues between slots: [from, to]."""
        links, count = self.problem.network.queues(self.zones, flow), len(self.zones)
        if isinstance(links, float):
            return np.where(slots[0] != slots[1], links, 0.0)
        padded = np.zeros((count + 1, count + 1))
        padded[:count, :count] = links
        found: Floats = padded[slots]
        return found

    def number(self, host: int) -> int:
        """Return the place of a host."""
        return int(np.flatnonzero(self.host == host)[0])


def from_lists(problem: Problem) -> list[int]:
    """Return listed hosts that are candidates beside those of their zones: of long lists, some with quick access."""
    operators, hosts = problem.application.operators, problem.hosts
    lists = {what.hosts for what in operators if what.host is None and what.hosts is not None}
    found: dict[int, None] = {}
    for hosts_of in lists:
        among = np.fromiter(hosts_of, np.int32, len(hosts_of))
        order = np.lexsort((among, -hosts.cpu_free[among], hosts.lan_latency[among]))
        found |= dict.fromkeys(among[order[: max(1, _LISTED // len(lists))]].tolist())
    return list(found)


def places(problem: Problem, zones: Mapping[int, int], listed: Sequence[int] = (), *, rests: bool = False) -> Places:
    """Return candidate hosts of some zones: the given number of fronts for each, pinned hosts, and those ``listed``.

    ``rests``: every zone has a stand-in for its other hosts, not only where fronts omit an undominated host. The
    bound without capacities is the same either way. A list may have dominated hosts only, so it needs them too.
    """
    index, hosts = Index.of(problem.topology), problem.hosts
    operators, given = problem.application.operators, tuple(zones)
    wanted = {w.host for w in operators if w.host is not None} | set(listed)
    rests = rests or any(w.hosts is not None for w in operators)
    known: defaultdict[int, set[int]] = defaultdict(set)
    for one in wanted:
        known[problem.zone_of(one)].add(one)
    found: list[int] = []
    stand_ins: list[tuple[float, ...]] = []
    for slot, zone in enumerate(given):
        front = index.front(zone, zones[zone])
        here = [*front.hosts, *known[zone].difference(front.hosts)]
        found += here
        if front.rest is not None and (rests or not front.complete) and len(here) < index.count(zone):
            stand_ins.append((slot, *front.rest))
    if len(given) < problem.network.zones:
        stand_ins.append((len(given), *index.best))
    slot_of = {zone: slot for slot, zone in enumerate(given)}
    host = np.array(found, dtype=np.int32)
    rest = np.array(stand_ins, dtype=np.float64).reshape(-1, 6)
    fields = (hosts.lan_latency, hosts.lan_bandwidth, hosts.cpu, hosts.cpu_free, hosts.memory_free)
    joined = [np.concatenate((f[host], rest[:, n])) for n, f in enumerate(fields, start=1)]
    slots = [*(slot_of[problem.zone_of(h)] for h in found), *rest[:, 0]]
    every = np.append(host, np.full(len(rest), -1, dtype=np.int32))
    return Places(problem, given, every, np.array(slots, dtype=np.int32), *joined)
