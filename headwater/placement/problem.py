"""A placement problem and its answer as values: hosts, application, allowed hosts. Pure.

Structures of arrays, so a million hosts are a few arrays; links between hosts are never created. Units: any one
unit of work for ``cpu`` (instructions, or core seconds), bytes, bits/s, seconds, events.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from headwater.core.errors import PlacementError
from headwater.placement.network import Link, Network, StreamFlow
from headwater.placement.queueing import Floats

Ints = npt.NDArray[np.signedinteger[Any]]
Bools = npt.NDArray[np.bool_]
Stream = tuple[int, int]
"""From operator to operator, by number."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Hosts:
    """Hosts, numbered from 0; each field but ``names`` is an array with one entry per host.

    ``cpu``: work/s. ``memory``: bytes. ``lan_latency`` (s) and ``lan_bandwidth`` (bits/s, each way): of a host's
    access to its zone; 0 and ∞ if negligible. ``cpu_used`` and ``memory_used``: usage by others; ``processes``:
    number of other processes.
    """

    cpu: Floats
    memory: Floats
    zone: Ints
    lan_latency: Floats
    lan_bandwidth: Floats
    cpu_used: Floats | None = None
    memory_used: Floats | None = None
    processes: Ints | None = None
    names: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.cpu)

    @cached_property
    def cpu_free(self) -> Floats:
        """The part of ``cpu`` that others do not use."""
        return self.cpu if self.cpu_used is None else self.cpu - self.cpu_used

    @cached_property
    def memory_free(self) -> Floats:
        """The part of ``memory`` that others do not use."""
        return self.memory if self.memory_used is None else self.memory - self.memory_used

    def name(self, host: int) -> str:
        """Return a host's display name."""
        return self.names[host] if self.names else f"host {host} of zone {self.zone[host]}"


@dataclass(frozen=True, eq=False)
class Topology:
    """Hosts and the network between their zones.

    ``cloud``: for each zone whether it is a cloud. ``level``: for each zone its layer, if it has one. ``names``: of
    zones, if they have any.
    """

    hosts: Hosts
    network: Network
    cloud: Bools
    level: Ints | None = None
    names: Sequence[str] = ()

    def link_name(self, link: Link) -> str:
        """Return a link's display name."""
        lower, upper = (self.names[zone] if self.names else str(zone) for zone in link)
        return f"link from zone {lower} to zone {upper}"

    @cached_property
    def by_cpu(self) -> tuple[Ints, Floats]:
        """Hosts by free cpu, least first, and the free cpu of each."""
        order = np.argsort(self.hosts.cpu_free, kind="stable").astype(np.int32)
        return order, self.hosts.cpu_free[order]


@dataclass(frozen=True, kw_only=True)
class PlacedOperator:
    """Needs and behaviour of an operator (section 3.2).

    ``cpu``: work per event. ``memory``: bytes to load it. ``selectivity`` (ψ): events out per event in.
    ``size_ratio`` (ω): bytes of an event out per byte of one in. ``window`` (ws): events. ``rate`` (events/s)
    of a source's; ``size``: bytes of an output event, 0: by ``size_ratio``. ``host``: where it is pinned; a pinned
    operator has no service time and takes nothing. ``hosts``: the allowed hosts; None: any. ``span`` and ``slide``
    (s): of a window of time, ω and β; a slide of 0 is the whole span. ``overhead``: bytes of memory per byte held
    in a window (c of TSOO's eq. 3). ``logical``: the operator of which this is the instance for some of its
    input; instances on one host are one process.
    """

    name: str
    cpu: float = 0.0
    memory: float = 0.0
    selectivity: float = 1.0
    size_ratio: float = 1.0
    window: float = 0.0
    rate: float = 0.0
    size: float = 0.0
    host: int | None = None
    hosts: frozenset[int] | None = None
    span: float = 0.0
    slide: float = 0.0
    overhead: float = 1.0
    logical: str = ""

    @property
    def fixed(self) -> int | None:
        """The only host on which it may run; None if there is a choice."""
        if self.host is None and self.hosts is not None and len(self.hosts) == 1:
            return next(iter(self.hosts))
        return self.host


@dataclass(frozen=True, eq=False)
class Application:
    """Operators and the streams between them; for each stream the probability that an event takes it (ρ).

    Raises PlacementError if streams form a cycle or name an unknown operator.
    """

    operators: tuple[PlacedOperator, ...]
    streams: Mapping[Stream, float]
    order: tuple[int, ...] = field(init=False)
    """The deployment sequence of Algorithm 1: upstream first. Its queue is first in, first out, without duplicates."""

    def __post_init__(self) -> None:
        for stream in self.streams:
            for end in stream:
                if not 0 <= end < len(self.operators):
                    raise PlacementError(f"stream {stream} names unknown operator {end}")
        object.__setattr__(self, "order", self._sequence())

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def upstream(self) -> tuple[tuple[int, ...], ...]:
        """For each operator its inputs."""
        found: list[list[int]] = [[] for _ in self.operators]
        for u, v in self.streams:
            found[v].append(u)
        return tuple(map(tuple, found))

    @cached_property
    def downstream(self) -> tuple[tuple[int, ...], ...]:
        """For each operator its readers."""
        found: list[list[int]] = [[] for _ in self.operators]
        for u, v in self.streams:
            found[u].append(v)
        return tuple(map(tuple, found))

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """Operators without inputs."""
        return tuple(o for o in range(len(self)) if not self.upstream[o])

    @cached_property
    def sinks(self) -> tuple[int, ...]:
        """Operators without readers."""
        return tuple(o for o in range(len(self)) if not self.downstream[o])

    @cached_property
    def free(self) -> tuple[int, ...]:
        """Operators that are not pinned, in the deployment sequence."""
        return tuple(o for o in self.order if self.operators[o].host is None)

    def _sequence(self) -> tuple[int, ...]:
        waits = [len(up) for up in self.upstream]
        found: list[int] = []
        ready = deque(self.sources)
        while ready:
            found.append(ready.popleft())
            for reader in self.downstream[found[-1]]:
                waits[reader] -= 1
                if not waits[reader]:
                    ready.append(reader)
        if len(found) < len(self):
            stuck = next(o for o in range(len(self)) if waits[o])
            raise PlacementError(
                f"the streams form a cycle through or before operator '{self.operators[stuck].name}'",
                hint="an application's streams lead from sources to sinks",
            )
        return tuple(found)

    @cached_property
    def _events(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Rates in and out (eq. 1 to 3), sizes in and out (eq. 4 to 6).

        Sizes of several inputs are averaged by their rates; eq. 5 as printed adds them up.
        """
        rate_in, rate_out, size_in, size_out = (np.zeros(len(self)) for _ in range(4))
        for o in self.order:
            operator = self.operators[o]
            if not self.upstream[o]:
                rate_in[o], size_in[o] = operator.rate, operator.size
                rate_out[o], size_out[o] = operator.rate, operator.size
                continue
            parts = [(rate_out[u] * self.streams[u, o], size_out[u]) for u in self.upstream[o]]
            rate_in[o] = sum(rate for rate, _ in parts)
            size_in[o] = sum(rate * size for rate, size in parts) / rate_in[o] if rate_in[o] else 0.0
            rate_out[o] = rate_in[o] * operator.selectivity
            size_out[o] = operator.size or size_in[o] * operator.size_ratio
        return rate_in, rate_out, size_in, size_out

    @property
    def rate_in(self) -> Floats:
        """λ in: events/s into each operator; for a source, out of it."""
        return self._events[0]

    @cached_property
    def rates(self) -> list[float]:
        """``rate_in`` as plain numbers."""
        return [float(rate) for rate in self.rate_in]

    @property
    def rate_out(self) -> Floats:
        """λ out: events/s out of each operator."""
        return self._events[1]

    @property
    def size_in(self) -> Floats:
        """ς in: bytes of an input event."""
        return self._events[2]

    @property
    def size_out(self) -> Floats:
        """ς out: bytes of an output event."""
        return self._events[3]

    @cached_property
    def work(self) -> list[float]:
        """Work/s that each operator needs of its host (eq. 11)."""
        return [float(r) * o.cpu for r, o in zip(self.rate_in, self.operators, strict=True)]

    @cached_property
    def room(self) -> list[float]:
        """Bytes that each operator needs of its host: itself and its window (eq. 12)."""
        return [
            o.memory + o.overhead * (o.window + o.span * float(rate)) * float(size)
            for o, rate, size in zip(self.operators, self.rate_in, self.size_in, strict=True)
        ]

    def flow(self, stream: Stream, zone: int) -> StreamFlow:
        """Return a stream as it leaves a zone: at its own rate; eq. 8 uses the reader's whole input rate."""
        rate, bits = self._flows[stream]
        return StreamFlow(zone, rate, bits)

    @cached_property
    def _flows(self) -> Mapping[Stream, tuple[float, float]]:
        return {
            (u, v): (float(self.rate_out[u]) * rho, float(self.size_out[u]) * 8) for (u, v), rho in self.streams.items()
        }

    @cached_property
    def _ways(self) -> tuple[Floats, Floats]:
        """For each operator the number of paths from a source to it, and from it to a sink."""
        to, onward = np.zeros(len(self)), np.zeros(len(self))
        for o in self.order:
            to[o] = sum(to[u] for u in self.upstream[o]) if self.upstream[o] else 1.0
        for o in reversed(self.order):
            onward[o] = sum(onward[d] for d in self.downstream[o]) if self.downstream[o] else 1.0
        return to, onward

    @cached_property
    def paths(self) -> list[float]:
        """For each operator the number of paths (eq. 16) through it."""
        to, onward = self._ways
        return [float(x) for x in to * onward]

    @cached_property
    def paths_over(self) -> Mapping[Stream, float]:
        """For each stream the number of paths over it."""
        to, onward = self._ways
        return {(u, v): float(to[u] * onward[v]) for u, v in self.streams}

    @cached_property
    def waiting(self) -> float:
        """Seconds that windows add to AL in any placement: paths × ws/λ (second term of eq. 7)."""
        windows = (
            self.paths[o] * operator.window / float(self.rate_in[o])
            for o, operator in enumerate(self.operators)
            if operator.window and self.rate_in[o]
        )
        return math.fsum(windows)


@dataclass(frozen=True, eq=False)
class Problem:
    """An application to be placed on a topology.

    ``together``: groups of operators that must be in zones of one level, such as the instances of one operator at
    several locations; each has its ``hosts`` listed. ``banned``: groups, by number, and the levels that are not
    allowed for them.
    """

    topology: Topology
    application: Application
    together: tuple[tuple[int, ...], ...] = ()
    banned: frozenset[tuple[int, int]] = frozenset()

    @property
    def hosts(self) -> Hosts:
        return self.topology.hosts

    @property
    def network(self) -> Network:
        return self.topology.network

    def zone_of(self, host: int) -> int:
        """Return a host's zone."""
        return int(self.hosts.zone[host])

    def in_cloud(self, host: int) -> bool:
        """Return whether a host is in a cloud."""
        return bool(self.topology.cloud[self.hosts.zone[host]])

    def level_of(self, host: int) -> int:
        """Return the level of a host's zone; 0 if zones have none."""
        level = self.topology.level
        return 0 if level is None else int(level[self.hosts.zone[host]])

    @cached_property
    def group_of(self) -> Mapping[int, int]:
        """For each operator in a group, the group's number."""
        return {o: number for number, group in enumerate(self.together) for o in group}

    @cached_property
    def reached(self) -> tuple[frozenset[int], ...]:
        """For each operator the sinks downstream of it."""
        application = self.application
        found: list[frozenset[int]] = [frozenset()] * len(application)
        for o in reversed(application.order):
            below = application.downstream[o]
            found[o] = frozenset((o,)) if not below else frozenset().union(*(found[d] for d in below))
        return tuple(found)


Placement = tuple[int, ...]
"""For each operator the host that runs it."""


def moved(before: Placement | None, after: Placement) -> int:
    """Count the operators that changed their host; 0 without an earlier placement."""
    return 0 if before is None else sum(a != b for a, b in zip(before, after, strict=True))
