"""What hosts and links have left while operators are put one after the other. Pure.

Strategies put operators in the deployment sequence; each takes its work, memory and bandwidth away, so that
constraints 11 to 13 hold for all together. Times keep a host's whole cpu, as eq. 7 does.
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
    """How much is taken of what; of what is not in it, nothing."""

    def __missing__(self, key: _K) -> float:
        return 0.0


@dataclass(frozen=True, eq=False)
class Coming:
    """What comes to an operator from those upstream that have their place.

    ``far``: for each zone, seconds until all is there, hosts' own LAN access there apart; ∞ where it cannot
    be. It does not hold for the hosts ``beside`` which the operator would get something without any network.
    """

    far: Floats
    flows: tuple[StreamFlow, ...]
    beside: tuple[int, ...]
    bandwidth: float


class _Host(NamedTuple):
    """What is looked up of a host again and again, as plain numbers."""

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
        """Give ``service_time``."""
        what = self._operators[operator]
        if what.host is not None or not what.cpu:
            return 0.0
        return mm1(self._host(host).cpu / what.cpu, self._rates[operator])

    def placement(self) -> Placement:
        """Give the placement once every operator has its place."""
        return tuple(self.placed[o] for o in range(len(self.problem.application)))

    def coming(self, operator: int) -> Coming:
        """Tell what comes to an operator from where."""
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
        """Give the seconds of an event over a host's LAN access, either way."""
        of = self._host(host)
        return of.latency + (mm1(of.bandwidth / flow.bits, flow.rate) if flow.bits else 0.0)

    def allowed(self, operator: int, host: int) -> bool:
        """Tell whether an operator may run on a host, by itself and with those it belongs together with."""
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
        """Give the level that an operator's group is in; None where none of it is placed or it has none."""
        group = self.problem.group_of.get(operator)
        if group is None:
            return None
        placed = (self.placed[o] for o in self.problem.together[group] if o in self.placed)
        host = next(placed, None)
        return None if host is None else self.problem.level_of(host)

    def has_room(self, operator: int, host: int) -> bool:
        """Tell whether a host's cpu (eq. 9, 11) and memory (eq. 12) suffice."""
        if self._operators[operator].host is not None:
            return True
        application, of = self.problem.application, self._host(host)
        return (
            self.work[host] + application.work[operator] <= of.cpu_free
            and self.memory[host] + application.room[operator] <= of.memory_free
            and self._service(operator, host) < math.inf
        )

    def cost(self, operator: int, host: int) -> float:
        """Give service time and transfers from upstream (Algorithm 2); ∞ where a constraint is not met."""
        of = self._host(host)
        if not self.allowed(operator, host) or not self.has_room(operator, host):
            return math.inf
        coming = self.coming(operator)
        if host in coming.beside:
            transfers = self._beside(operator, host)
        elif self.receives[host] + coming.bandwidth > of.bandwidth:
            return math.inf
        else:
            near = 0.0
            for flow in coming.flows:
                near += self._access(host, flow)
            transfers = float(coming.far[of.zone]) + near
        return transfers + self._service(operator, host)

    def _beside(self, operator: int, host: int) -> float:
        """Give the transfers from upstream to a host on which some of it runs; ∞ without room for them."""
        if len(self.coming(operator).beside) == 1:
            return 0.0  # all of it runs here
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
        """Tell whether an operator may be put on a host: zone, cpu, memory, ways to its neighbours."""
        return self.allowed(operator, host) and self.has_room(operator, host) and self.is_joined(operator, host)

    def is_joined(self, operator: int, host: int) -> bool:
        """Tell whether streams between a host and the operator's neighbours have ways, and room on them."""
        around = self._around(operator, host)
        if not around:
            return True
        network = self.problem.network
        sends, receives, links = Taken[int](), Taken[int](), Taken[Link]()
        for lower, upper, flow in around:
            route = network.route(flow.zone, self._host(upper).zone)
            if route is None:
                return False
            bandwidth = flow.rate * flow.bits
            sends[lower] += bandwidth
            receives[upper] += bandwidth
            narrowest = min(self._host(lower).bandwidth, self._host(upper).bandwidth)
            for link in route:
                links[link] += bandwidth
                narrowest = min(narrowest, network.capacity(link))
            # A queue that is just full grows for ever (eq. 10).
            if bandwidth and bandwidth >= narrowest:
                return False
        return (
            all(self._sends[h] + more <= self._host(h).bandwidth for h, more in sends.items())
            and all(self.receives[h] + more <= self._host(h).bandwidth for h, more in receives.items())
            and all(self._links[link] + more <= network.available(link) for link, more in links.items())
        )

    def _around(self, operator: int, host: int) -> list[tuple[int, int, StreamFlow]]:
        """List the streams between an operator on a host and its neighbours on others."""
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
        """List the hosts that anything is taken of, and [host, what] work/s, bytes, bits/s."""
        count = len(self._rows)
        return self._touched[:count], self._amounts[:count]

    def _touch(self, host: int) -> None:
        """Bring what is taken of a host up to date in the arrays."""
        row = self._rows.setdefault(host, len(self._rows))
        if row == len(self._touched):
            self._touched = np.resize(self._touched, 2 * row)
            self._amounts = np.resize(self._amounts, (2 * row, 3))
        self._touched[row] = host
        self._amounts[row] = self.work[host], self.memory[host], self.receives[host]

    def spread(self, taken: Mapping[int, float]) -> Floats:
        """Give what is taken as an array with a number for each host."""
        found = np.zeros(len(self.problem.hosts))
        for host, amount in taken.items():
            found[host] = amount
        return found

    def put(self, operator: int, host: int) -> None:
        """Give an operator its place, and take from the host and the links what it needs."""
        self._add(operator, host, 1.0)
        self.placed[operator] = host

    def take_back(self, operator: int) -> None:
        """Undo ``put``."""
        self._add(operator, self.placed.pop(operator), -1.0)

    def put_all(self, operators: Sequence[int], hosts: Sequence[int]) -> bool:
        """Put each operator on its host; put none where one does not fit."""
        for number, (operator, host) in enumerate(zip(operators, hosts, strict=True)):
            if not self.meets(operator, host):
                self.take_all_back(operators[:number])
                return False
            self.put(operator, host)
        return True

    def take_all_back(self, operators: Sequence[int]) -> None:
        """Undo ``put`` of operators."""
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
