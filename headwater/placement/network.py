"""The network between zones: latency and bandwidth of links, routes from zone to zone. Pure.

Hosts' own access to their zone's LAN is part of the hosts. Each link on a route is a queue of its own (M/M/1, as
in eq. 8) plus its latency. Seconds, bits per second; ``bits`` are those of one event.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headwater.placement.queueing import Floats, mm1, mm1_of

Link = tuple[int, int]
"""A directed link between two adjacent zones."""


class StreamFlow(NamedTuple):
    """A stream that leaves a zone: events/s of ``bits`` each."""

    zone: int
    rate: float
    bits: float

    @property
    def bandwidth(self) -> float:
        """Bits per second."""
        return self.rate * self.bits


class Network(Protocol):
    """Zones, numbered from 0, and the links between them."""

    @property
    def zones(self) -> int:
        """Number of zones."""

    def route(self, lower: int, upper: int) -> tuple[Link, ...] | None:
        """Return the links from zone to zone, none inside one; None if there is no route."""

    def capacity(self, link: Link) -> float:
        """Return a link's bandwidth."""

    def available(self, link: Link) -> float:
        """Return the bandwidth of a link that others do not use."""

    def widened(self, link: Link | None, times: float) -> Network:
        """Return the network with a multiple of a link's bandwidth; None: of every link's."""

    def latency(self, link: Link) -> float:
        """Return a link's latency."""

    def latencies_from(self, zone: int) -> Floats:
        """Return the latency from a zone to each zone; ∞ without a route."""

    def latencies_to(self, zone: int) -> Floats:
        """Return the latency from each zone to one; ∞ without a route."""

    def queues(self, zones: Sequence[int], flow: StreamFlow) -> Floats | float:
        """Return the seconds in links' queues between zones: [from, to], or one number for all pairs."""

    def arrivals(self, flows: Sequence[StreamFlow], used: Mapping[Link, float]) -> Floats:
        """Return, for each zone, the summed seconds of flows to it.

        ∞ if a flow has no route, or if the links have no room for all flows beside the bandwidth ``used``.
        """


def time_over(network: Network, links: Sequence[Link], flow: StreamFlow) -> float:
    """Return the seconds of an event over links: per link its latency and queue (eq. 8)."""
    return sum(
        network.latency(link) + mm1(network.capacity(link) / flow.bits, flow.rate)
        if flow.bits
        else network.latency(link)
        for link in links
    )


@dataclass(frozen=True, eq=False)
class Mesh:
    """Every zone has a link to every other: the paper's WAN (fig. 1).

    ``seconds`` and ``bandwidth``: [from, to]; a uniform bandwidth may be an array of no dimension.
    """

    seconds: Floats
    bandwidth: Floats

    @property
    def zones(self) -> int:
        return len(self.seconds)

    @cached_property
    def _bandwidth(self) -> Floats:
        found: Floats = np.broadcast_to(self.bandwidth, self.seconds.shape)
        return found

    @cached_property
    def _uniform(self) -> float | None:
        return float(self.bandwidth) if self.bandwidth.ndim == 0 else None

    def route(self, lower: int, upper: int) -> tuple[Link, ...] | None:
        return () if lower == upper else ((lower, upper),)

    def capacity(self, link: Link) -> float:
        return float(self._bandwidth[link]) if self._uniform is None else self._uniform

    def available(self, link: Link) -> float:
        return self.capacity(link)

    def widened(self, link: Link | None, times: float) -> Mesh:
        if link is None:
            return replace(self, bandwidth=self.bandwidth * times)
        wide = self._bandwidth.copy()
        wide[link] *= times
        return replace(self, bandwidth=wide)

    def latency(self, link: Link) -> float:
        return float(self.seconds[link])

    def latencies_from(self, zone: int) -> Floats:
        found: Floats = self.seconds[zone]
        return found

    def latencies_to(self, zone: int) -> Floats:
        found: Floats = self.seconds[:, zone]
        return found

    def queues(self, zones: Sequence[int], flow: StreamFlow) -> Floats | float:
        if self._uniform is not None:
            return mm1(self._uniform / flow.bits, flow.rate)
        found = mm1_of(self._bandwidth[np.ix_(zones, zones)] / flow.bits, flow.rate)
        np.fill_diagonal(found, 0.0)
        return found

    def arrivals(self, flows: Sequence[StreamFlow], used: Mapping[Link, float]) -> Floats:
        total: Floats | None = None
        need: dict[int, float] = {}
        for flow in flows:
            need[flow.zone] = need.get(flow.zone, 0.0) + flow.bandwidth
            row = self.seconds[flow.zone] + self._queues(flow)
            row[flow.zone] = 0.0
            total = row if total is None else np.add(total, row, out=total)
        if total is None:
            return np.zeros(self.zones)
        for zone, bandwidth in need.items():
            inside = total[zone]  # needs no link
            if self._uniform is None:
                total[self._bandwidth[zone] < bandwidth] = math.inf
            elif self._uniform < bandwidth:
                total[:] = math.inf
            for link, taken in used.items():
                if link[0] == zone and taken + bandwidth > self.capacity(link):
                    total[link[1]] = math.inf
            total[zone] = inside
        return total

    def _queues(self, flow: StreamFlow) -> Floats | float:
        if not flow.bits:
            return 0.0
        if self._uniform is not None:
            return mm1(self._uniform / flow.bits, flow.rate)
        return mm1_of(self._bandwidth[flow.zone] / flow.bits, flow.rate)


@dataclass(frozen=True, eq=False)
class Tree:
    """Each zone has a link to its parent, and data only goes up, as in a continuum.

    ``parents``: a zone's parent, −1 for the root. ``seconds`` and ``bandwidth``: of the link to it; ``used``:
    bandwidth used by others.
    """

    parents: npt.NDArray[np.signedinteger[Any]]
    seconds: Floats
    bandwidth: Floats
    used: Floats | None = None

    @property
    def zones(self) -> int:
        return len(self.parents)

    def above(self, zone: int) -> list[int]:
        """Return a zone and its ancestors, upwards."""
        found = [zone]
        while (parent := int(self.parents[found[-1]])) >= 0:
            found.append(parent)
        return found

    def route(self, lower: int, upper: int) -> tuple[Link, ...] | None:
        way = self.above(lower)
        if upper not in way:
            return None
        way = way[: way.index(upper) + 1]
        return tuple(pairwise(way))

    def capacity(self, link: Link) -> float:
        return float(self.bandwidth[link[0]])

    def available(self, link: Link) -> float:
        taken = 0.0 if self.used is None else float(self.used[link[0]])
        return self.capacity(link) - taken

    def widened(self, link: Link | None, times: float) -> Tree:
        if link is None:
            return replace(self, bandwidth=self.bandwidth * times)
        wide = self.bandwidth.copy()
        wide[link[0]] *= times
        return replace(self, bandwidth=wide)

    def latency(self, link: Link) -> float:
        return float(self.seconds[link[0]])

    def latencies_from(self, zone: int) -> Floats:
        found = np.full(self.zones, math.inf)
        way = self.above(zone)
        found[way] = np.concatenate(([0.0], np.cumsum(self.seconds[way[:-1]])))
        return found

    def latencies_to(self, zone: int) -> Floats:
        found = np.full(self.zones, math.inf)
        found[zone] = 0.0
        todo = [zone]
        while todo:
            upper = todo.pop()
            below = np.flatnonzero(self.parents == upper)
            found[below] = found[upper] + self.seconds[below]
            todo += below.tolist()
        return found

    def queues(self, zones: Sequence[int], flow: StreamFlow) -> Floats | float:
        found = np.full((len(zones), len(zones)), math.inf)
        for n, lower in enumerate(zones):
            for m, upper in enumerate(zones):
                if (route := self.route(lower, upper)) is not None:
                    waits = (mm1(self.capacity(link) / flow.bits, flow.rate) for link in route)
                    found[n, m] = sum(waits)
        return found

    def arrivals(self, flows: Sequence[StreamFlow], used: Mapping[Link, float]) -> Floats:
        total = np.full(self.zones, math.inf)
        if not flows:
            total[:] = 0.0
            return total
        shared = set.intersection(*(set(self.above(flow.zone)) for flow in flows))
        for zone in shared:
            need: dict[Link, float] = {}
            seconds = 0.0
            for flow in flows:
                links = self.route(flow.zone, zone) or ()
                seconds += time_over(self, links, flow)
                for link in links:
                    need[link] = need.get(link, 0.0) + flow.bandwidth
            if all(used.get(link, 0.0) + more <= self.available(link) for link, more in need.items()):
                total[zone] = seconds
        return total
