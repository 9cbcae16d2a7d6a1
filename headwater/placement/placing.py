"""Remaining capacity of hosts and links while operators are placed one after the other. Pure.

Strategies place operators in the deployment sequence; each one's work, memory and bandwidth are subtracted, so
constraints 11 to 13 hold for all together. Times use a host's whole cpu, as eq. 7 does.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from headwater.placement.network import Link, StreamFlow, time_over
from headwater.placement.problem import Ints, Placement, Problem
from headwater.placement.queueing import Floats, mm1

_K = TypeVar("_K", bound=Hashable)


class Taken(dict[_K, float]):
    """Amounts taken by key; 0 for a missing key."""

    def __missing__(self, key: _K) -> float:
        return 0.0


@dataclass(frozen=True, eq=False)
class Coming:
    """The streams into an operator from placed upstream operators.

    ``far``: for each zone, seconds until all have arrived, without hosts' own LAN access; ∞ if impossible. It does
    not hold for the hosts ``local``, on which a stream needs no network.
    """

    far: Floats
    flows: tuple[StreamFlow, ...]
    local: tuple[int, ...]
    bandwidth: float


class _Host(NamedTuple):
    """Frequently used values of a host, as plain numbers."""

    zone: int
    latency: float
    bandwidth: float
    cpu: float
    cpu_free: float
    memory_free: float


class Placing:
    """A placement that grows."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._operators = problem.application.operators
        self._rates = problem.application.rates
        self.placed: dict[int, int] = {}
        self.work = Taken[int]()
        self.memory = Taken[int]()
        self.receives = Taken[int]()
        self._sends = Taken[int]()
        self._links = Taken[Link]()
        self._coming: tuple[int, Coming] | None = None
        self._seen: dict[int, _Host] = {}
        self._rows: dict[int, int] = {}
        self._touched = np.zeros(64, dtype=np.int32)
        self._amounts = np.zeros((64, 3))

    def _host(self, host: int) -> _Host:
        found = self._seen.get(host)
        if found is None:
            hosts = self.problem.hosts
            numbers = (hosts.lan_latency, hosts.lan_bandwidth, hosts.cpu, hosts.cpu_free, hosts.memory_free)
            found = _Host(int(hosts.zone[host]), *(float(field[host]) for field in numbers))
            self._seen[host] = found
        return found

    def _service(self, operator: int, host: int) -> float:
        """Return ``service_time``, cached."""
        what = self._operators[operator]
        if what.host is not None or not what.cpu:
            return 0.0
        return mm1(self._host(host).cpu / what.cpu, self._rates[operator])

    def placement(self) -> Placement:
        """Return the placement once every operator is placed."""
        return tuple(self.placed[o] for o in range(len(self.problem.application)))

    def coming(self, operator: int) -> Coming:
        """Return the streams into an operator."""
        if self._coming is None or self._coming[0] != operator:
            self._coming = operator, self._find_coming(operator)
        return self._coming[1]

    def _find_coming(self, operator: int) -> Coming:
        application = self.problem.application
        flows, out, total, need = [], 0.0, 0.0, Taken[int]()
        for u in application.upstream[operator]:
            if (host := self.placed.get(u)) is None:
                continue
            flow = application.flow((u, operator), self._host(host).zone)
            flows.append(flow)
            bandwidth = flow.rate * flow.bits
            need[host] += bandwidth
            total += bandwidth
            out += self._access(host, flow)
        far = self.problem.network.arrivals(flows, self._links)
        far += out
        for host, more in need.items():
            if self._sends[host] + more > self._host(host).bandwidth:
                far[:] = math.inf
        return Coming(far, tuple(flows), tuple(need), total)

    def _access(self, host: int, flow: StreamFlow) -> float:
        """Return the seconds of an event over a host's LAN access, in either direction."""
        of = self._host(host)
        return of.latency + (mm1(of.bandwidth / flow.bits, flow.rate) if flow.bits else 0.0)

    def allowed(self, operator: int, host: int) -> bool:
        """Return whether an operator may run on a host, by itself and with its group."""
        hosts = self._operators[operator].hosts
        if hosts is None:
            return True
        problem = self.problem
        if host not in hosts:
            return False
        group = problem.group_of.get(operator)
        if group is None:
            return True
        level, decided = problem.level_of(host), self.level(operator)
        return (group, level) not in problem.banned and decided in (None, level)

    def level(self, operator: int) -> int | None:
        """Return the level of an operator's group; None if it has no group, or none of it is placed."""
        group = self.problem.group_of.get(operator)
        if group is None:
            return None
        placed = (self.placed[o] for o in self.problem.together[group] if o in self.placed)
        host = next(placed, None)
        return None if host is None else self.problem.level_of(host)

    def has_room(self, operator: int, host: int) -> bool:
        """Return whether a host's cpu (eq. 9, 11) and memory (eq. 12) suffice."""
        if self._operators[operator].host is not None:
            return True
        application, of = self.problem.application, self._host(host)
        return (
            self.work[host] + application.work[operator] <= of.cpu_free
            and self.memory[host] + application.room[operator] <= of.memory_free
            and self._service(operator, host) < math.inf
        )

    def cost(self, operator: int, host: int) -> float:
        """Return service time and transfers from upstream (Algorithm 2); ∞ if a constraint is violated."""
        of = self._host(host)
        if not self.allowed(operator, host) or not self.has_room(operator, host):
            return math.inf
        coming = self.coming(operator)
        if host in coming.local:
            transfers = self._local_cost(operator, host)
        elif self.receives[host] + coming.bandwidth > of.bandwidth:
            return math.inf
        else:
            near = 0.0
            for flow in coming.flows:
                near += self._access(host, flow)
            transfers = float(coming.far[of.zone]) + near
        return transfers + self._service(operator, host)

    def _local_cost(self, operator: int, host: int) -> float:
        """Return the transfers to a host that runs some of the upstream operators; ∞ without room for them."""
        if len(self.coming(operator).local) == 1:
            return 0.0  # all upstream operators run here
        if not self.is_joined(operator, host):
            return math.inf
        application, network = self.problem.application, self.problem.network
        seconds = 0.0
        for u in application.upstream[operator]:
            if (other := self.placed.get(u, host)) != host:
                flow = application.flow((u, operator), self._host(other).zone)
                route = network.route(flow.zone, self._host(host).zone) or ()
                seconds += self._access(other, flow) + time_over(network, route, flow)
                seconds += self._access(host, flow)
        return seconds

    def meets(self, operator: int, host: int) -> bool:
        """Return whether an operator can be placed on a host: zone, cpu, memory, routes to its neighbours."""
        return self.allowed(operator, host) and self.has_room(operator, host) and self.is_joined(operator, host)

    def is_joined(self, operator: int, host: int) -> bool:
        """Return whether streams between a host and the operator's neighbours have routes with enough bandwidth."""
        around = self._around(operator, host)
        if not around:
            return True
        network = self.problem.network
        sends, receives, links = Taken[int](), Taken[int](), Taken[Link]()
        for lower, upper, flow in around:
            below, above = self._host(lower), self._host(upper)
            route = network.route(flow.zone, above.zone)
            if route is None:
                return False
            bandwidth = flow.rate * flow.bits
            sends[lower] += bandwidth
            receives[upper] += bandwidth
            # Checked stream by stream: with hundreds of them, most hosts are full after a few.
            if self._sends[lower] + sends[lower] > below.bandwidth:
                return False
            if self.receives[upper] + receives[upper] > above.bandwidth:
                return False
            narrowest = min(below.bandwidth, above.bandwidth)
            for link in route:
                links[link] += bandwidth
                narrowest = min(narrowest, network.capacity(link))
            # A queue at full load grows without limit (eq. 10).
            if bandwidth and bandwidth >= narrowest:
                return False
        return all(self._links[link] + more <= network.available(link) for link, more in links.items())

    def _around(self, operator: int, host: int) -> list[tuple[int, int, StreamFlow]]:
        """Return the streams between an operator on a host and its neighbours on others."""
        application, found = self.problem.application, []
        for u in application.upstream[operator]:
            if (other := self.placed.get(u, host)) != host:
                flow = application.flow((u, operator), self._host(other).zone)
                found.append((other, host, flow))
        for d in application.downstream[operator]:
            if (other := self.placed.get(d, host)) != host:
                flow = application.flow((operator, d), self._host(host).zone)
                found.append((host, other, flow))
        return found

    def taken(self) -> tuple[Ints, Floats]:
        """Return the hosts in use, and [host, resource] work/s, bytes, bits/s."""
        count = len(self._rows)
        return self._touched[:count], self._amounts[:count]

    def _touch(self, host: int) -> None:
        """Update the arrays with the usage of a host."""
        row = self._rows.setdefault(host, len(self._rows))
        if row == len(self._touched):
            self._touched = np.resize(self._touched, 2 * row)
            self._amounts = np.resize(self._amounts, (2 * row, 3))
        self._touched[row] = host
        self._amounts[row] = self.work[host], self.memory[host], self.receives[host]

    def spread(self, taken: Mapping[int, float]) -> Floats:
        """Return usage as an array with one number per host."""
        found = np.zeros(len(self.problem.hosts))
        for host, amount in taken.items():
            found[host] = amount
        return found

    def put(self, operator: int, host: int) -> None:
        """Place an operator, and take its needs from the host and the links."""
        self._add(operator, host, 1.0)
        self.placed[operator] = host

    def take_back(self, operator: int) -> None:
        """Undo ``put``."""
        self._add(operator, self.placed.pop(operator), -1.0)

    def put_all(self, operators: Sequence[int], hosts: Sequence[int]) -> bool:
        """Place each operator on its host; place none if one does not fit."""
        for number, (operator, host) in enumerate(zip(operators, hosts, strict=True)):
            if not self.meets(operator, host):
                self.take_all_back(operators[:number])
                return False
            self.put(operator, host)
        return True

    def take_all_back(self, operators: Sequence[int]) -> None:
        """Undo ``put`` of several operators."""
        for operator in operators:
            self.take_back(operator)

    def _add(self, operator: int, host: int, times: float) -> None:
        application = self.problem.application
        self._coming = None
        if application.operators[operator].host is None:
            self.work[host] += times * application.work[operator]
            self.memory[host] += times * application.room[operator]
        self._touch(host)
        for lower, upper, flow in self._around(operator, host):
            self._sends[lower] += times * flow.bandwidth
            self.receives[upper] += times * flow.bandwidth
            self._touch(upper)
            for link in self.problem.network.route(flow.zone, self._host(upper).zone) or ():
                self._links[link] += times * flow.bandwidth
