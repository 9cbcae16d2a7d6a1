"""A network of any directed links: several clouds, ways down, links between sites. Pure.

A continuum with ways down is one, and so is the WAN of AELS where not every zone has a link to every other. Data takes
the route of least latency, unless routes are given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush

import numpy as np

from headwater.placement.network import Link, StreamFlow, time_over
from headwater.placement.queueing import Floats, mm1


@dataclass(frozen=True, kw_only=True)
class DirectedLink:
    """Seconds and bits/s of a link in one direction; ``used``: bandwidth that others use."""

    latency: float
    bandwidth: float = math.inf
    used: float = 0.0


@dataclass(frozen=True, eq=False)
class Routed:
    """Zones, numbered from 0 to ``zones`` − 1, and their links; of equally quick routes, the one with fewest links.

    ``given``: the route from zone to zone, None if there is none; by default that of least latency.
    """

    zones: int
    links: Mapping[Link, DirectedLink]
    given: Callable[[int, int], tuple[Link, ...] | None] | None = None
    _ways: dict[int, tuple[Floats, Mapping[int, Link]]] = field(default_factory=dict, repr=False)
    """From each zone: the latency to each other, and the last link of the route to it."""

    @cached_property
    def _out(self) -> Mapping[int, tuple[tuple[int, float], ...]]:
        found: dict[int, list[tuple[int, float]]] = {}
        for (lower, upper), link in self.links.items():
            found.setdefault(lower, []).append((upper, link.latency))
        return {zone: tuple(sorted(near)) for zone, near in found.items()}

    def _from(self, zone: int) -> tuple[Floats, Mapping[int, Link]]:
        """Return the latencies and last links of the routes from a zone (Dijkstra)."""
        if zone not in self._ways:
            seconds, last = np.full(self.zones, math.inf), dict[int, Link]()
            best = {zone: (0.0, 0)}
            todo = [(0.0, 0, zone)]
            while todo:
                latency, count, at = heappop(todo)
                if (latency, count) > best[at]:
                    continue
                seconds[at] = latency
                for other, more in self._out.get(at, ()):
                    then = latency + more, count + 1
                    if other not in best or then < best[other]:
                        best[other], last[other] = then, (at, other)
                        heappush(todo, (*then, other))
            self._ways[zone] = seconds, last
        return self._ways[zone]

    def route(self, lower: int, upper: int) -> tuple[Link, ...] | None:
        if lower == upper:
            return ()
        if self.given is not None:
            return self.given(lower, upper)
        _, last = self._from(lower)
        found: list[Link] = []
        while upper != lower:
            link = last.get(upper)
            if link is None:
                return None
            found.append(link)
            upper = link[0]
        return tuple(reversed(found))

    def capacity(self, link: Link) -> float:
        return self.links[link].bandwidth

    def available(self, link: Link) -> float:
        return self.links[link].bandwidth - self.links[link].used

    def widened(self, link: Link | None, times: float) -> Routed:
        links = {
            one: replace(what, bandwidth=what.bandwidth * times) if link in (None, one) else what
            for one, what in self.links.items()
        }
        return Routed(self.zones, links, self.given)

    def latency(self, link: Link) -> float:
        return self.links[link].latency

    def latencies_from(self, zone: int) -> Floats:
        return self._from(zone)[0] if self.given is None else np.array([self._over(zone, x) for x in range(self.zones)])

    def latencies_to(self, zone: int) -> Floats:
        if self.given is not None:
            return np.array([self._over(lower, zone) for lower in range(self.zones)])
        return np.array([self._from(lower)[0][zone] for lower in range(self.zones)])

    def _over(self, lower: int, upper: int) -> float:
        route = self.route(lower, upper)
        return math.inf if route is None else sum(self.latency(link) for link in route)

    def queues(self, zones: Sequence[int], flow: StreamFlow) -> Floats | float:
        found = np.full((len(zones), len(zones)), math.inf)
        for n, lower in enumerate(zones):
            for m, upper in enumerate(zones):
                if (route := self.route(lower, upper)) is not None:
                    found[n, m] = sum(mm1(self.capacity(link) / flow.bits, flow.rate) for link in route)
        return found

    def arrivals(self, flows: Sequence[StreamFlow], used: Mapping[Link, float]) -> Floats:
        total = np.zeros(self.zones)
        for zone in range(self.zones) if flows else ():
            need: dict[Link, float] = {}
            for flow in flows:
                route = self.route(flow.zone, zone)
                if route is None:
                    total[zone] = math.inf
                    break
                total[zone] += time_over(self, route, flow)
                for link in route:
                    need[link] = need.get(link, 0.0) + flow.bandwidth
            if any(used.get(link, 0.0) + more > self.available(link) for link, more in need.items()):
                total[zone] = math.inf
        return total
