"""What hosts and links have left while operators are put one after the other. Pure.

Strategies put operators in the deployment sequence; each takes its work, memory and bandwidth away, so that
constraints 11 to 13 hold for all together. Times keep a host's whole cpu, as eq. 7 does.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from headwater.placement.cost import service_time
from headwater.placement.network import Flow, Link, time_over
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
    flows: tuple[Flow, ...]
    beside: tuple[int, ...]
    bandwidth: float


class Placing:
    """A placement that grows."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.placed: dict[int, int] = {}
        self.work = Taken[int]()
        self.memory = Taken[int]()
        self.receives = Taken[int]()
        self._sends = Taken[int]()
        self._links = Taken[Link]()
        self._coming: tuple[int, Coming] | None = None
        self._rows: dict[int, int] = {}
        self._touched = np.zeros(64, dtype=np.int32)
        self._amounts = np.zeros((64, 3))

    def placement(self) -> Placement:
        """Give the placement once every operator has its place."""
        return tuple(self.placed[o] for o in range(len(self.problem.application)))

    def coming(self, operator: int) -> Coming:
        """Tell what comes to an operator from where."""
        if self._coming is None or self._coming[0] != operator:
            self._coming = operator, self._find_coming(operator)
        return self._coming[1]

    def _find_coming(self, operator: int) -> Coming:
        application, hosts = self.problem.application, self.problem.hosts
        flows, out, need = [], 0.0, Taken[int]()
        for u in application.upstream[operator]:
            if (host := self.placed.get(u)) is None:
                continue
            flow = application.flow((u, operator), self.problem.zone_of(host))
            flows.append(flow)
            need[host] += flow.bandwidth
            out += self._access(host, flow)
        far = self.problem.network.arrivals(flows, self._links)
        far += out
        if any(self._sends[host] + more > hosts.lan_bandwidth[host] for host, more in need.items()):
            far[:] = math.inf
        return Coming(far, tuple(flows), tuple(need), sum(flow.bandwidth for flow in flows))

    def _access(self, host: int, flow: Flow) -> float:
        """Give the seconds of an event over a host's LAN access, either way."""
        hosts = self.problem.hosts
        queue = mm1(float(hosts.lan_bandwidth[host]) / flow.bits, flow.rate) if flow.bits else 0.0
        return float(hosts.lan_latency[host]) + queue

    def allowed(self, operator: int, host: int) -> bool:
        """Tell whether an operator may run on a host, by itself and with those it belongs together with."""
        problem = self.problem
        hosts = problem.application.operators[operator].hosts
        if hosts is not None and host not in hosts:
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
        application, hosts = self.problem.application, self.problem.hosts
        if application.operators[operator].host is not None:
            return True
        return (
            self.work[host] + application.work[operator] <= float(hosts.cpu_free[host])
            and self.memory[host] + application.room[operator] <= float(hosts.memory_free[host])
            and service_time(self.problem, operator, host) < math.inf
        )

    def cost(self, operator: int, host: int) -> float:
        """Give service time and transfers from upstream (Algorithm 2); ∞ where a constraint is not met."""
        zone = self.problem.zone_of(host)
        if not self.allowed(operator, host) or not self.has_room(operator, host):
            return math.inf
        coming = self.coming(operator)
        if host in coming.beside:
            transfers = self._beside(operator, host)
        elif self.receives[host] + coming.bandwidth > float(self.problem.hosts.lan_bandwidth[host]):
            return math.inf
        else:
            near = 0.0
            for flow in coming.flows:
                near += self._access(host, flow)
            transfers = float(coming.far[zone]) + near
        return transfers + service_time(self.problem, operator, host)

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
                flow = application.flow((u, operator), self.problem.zone_of(other))
                route = network.route(flow.zone, self.problem.zone_of(host)) or ()
                seconds += self._access(other, flow) + time_over(network, route, flow)
                seconds += self._access(host, flow)
        return seconds

    def meets(self, operator: int, host: int) -> bool:
        """Tell whether an operator may be put on a host: zone, cpu, memory, ways to its neighbours."""
        return (
            self.allowed(operator, host) and self.has_room(operator, host) and self.is_joined(operator, host)
        )

    def is_joined(self, operator: int, host: int) -> bool:
        """Tell whether streams between a host and the operator's neighbours have ways, and room on them."""
        hosts, network = self.problem.hosts, self.problem.network
        sends, receives, links = Taken[int](), Taken[int](), Taken[Link]()
        for lower, upper, flow in self._around(operator, host):
            route = network.route(flow.zone, self.problem.zone_of(upper))
            if route is None:
                return False
            sends[lower] += flow.bandwidth
            receives[upper] += flow.bandwidth
            for link in route:
                links[link] += flow.bandwidth
            # A queue that is just full grows for ever (eq. 10).
            if flow.bandwidth and any(
                flow.bandwidth >= room
                for room in (
                    hosts.lan_bandwidth[lower],
                    hosts.lan_bandwidth[upper],
                    *map(network.capacity, route),
                )
            ):
                return False
        bandwidth = hosts.lan_bandwidth
        return (
            all(self._sends[h] + more <= bandwidth[h] for h, more in sends.items())
            and all(self.receives[h] + more <= bandwidth[h] for h, more in receives.items())
            and all(self._links[link] + more <= network.available(link) for link, more in links.items())
        )

    def _around(self, operator: int, host: int) -> list[tuple[int, int, Flow]]:
        """List the streams between an operator on a host and its neighbours on others."""
        application, found = self.problem.application, []
        for u in application.upstream[operator]:
            if (other := self.placed.get(u, host)) != host:
                flow = application.flow((u, operator), self.problem.zone_of(other))
                found.append((other, host, flow))
        for d in application.downstream[operator]:
            if (other := self.placed.get(d, host)) != host:
                flow = application.flow((operator, d), self.problem.zone_of(host))
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
            for link in self.problem.network.route(flow.zone, self.problem.zone_of(upper)) or ():
                self._links[link] += times * flow.bandwidth
