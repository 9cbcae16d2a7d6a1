"""Cost and validity of a placement: one evaluator and one check for every strategy. Pure.

AL (eq. 18) is summed by counts of paths, never path by path: an operator's time counts once for each path
through it. The waiting time of windows (second term of eq. 7) does not depend on the placement and is separate.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from headwater.placement.network import Link, time_over
from headwater.placement.problem import Placement, Problem, Stream
from headwater.placement.queueing import mm1

ROUNDING = 1e-9
"""Relative; sums of the same numbers in different orders differ by less."""


@dataclass(frozen=True)
class Usage:
    """Resources used by a placement: work/s and bytes by host, bits/s of hosts' LAN access and of links."""

    work: Mapping[int, float]
    memory: Mapping[int, float]
    sends: Mapping[int, float]
    receives: Mapping[int, float]
    links: Mapping[Link, float]


@dataclass(frozen=True)
class Evaluation:
    """Cost of a placement. ``latency`` is AL in s without the windows' ``waiting``."""

    latency: float
    waiting: float
    service: tuple[float, ...]
    """For each operator, s per event."""
    transfer: Mapping[Stream, float]
    """For each stream, s per event."""
    usage: Usage

    @property
    def total(self) -> float:
        """AL including the windows' waiting."""
        return self.latency + self.waiting


@dataclass(frozen=True)
class Shortage:
    """A violated constraint: its name, its place, the needed and the available amount.

    Constraints of AELS: processing rate (eq. 9), transfer rate (10), cpu (11), memory (12), bandwidth (13), one host
    per operator (14). ``host``, ``link``, ``operator``: numbers of what it is about, where it is about one.
    """

    constraint: str
    where: str
    needed: float
    available: float
    unit: str
    host: int | None = None
    link: Link | None = None
    operator: int | None = None

    def __str__(self) -> str:
        needed = f"{self.needed:,.6g} {self.unit} needed"
        return f"{self.constraint} at {self.where}: {needed}, {self.available:,.6g} available"


def service_time(problem: Problem, operator: int, host: int) -> float:
    """Return the first term of eq. 7, with the host's whole cpu; 0 for a pinned operator."""
    application = problem.application
    what = application.operators[operator]
    if what.host is not None or not what.cpu:
        return 0.0
    return mm1(float(problem.hosts.cpu[host]) / what.cpu, float(application.rate_in[operator]))


def transfer_time(problem: Problem, stream: Stream, lower: int, upper: int) -> float:
    """Return eq. 8 hop by hop: out over a host's LAN access, over links, in over the other's. ∞: no route."""
    if lower == upper:
        return 0.0
    hosts = problem.hosts
    flow = problem.application.flow(stream, problem.zone_of(lower))
    links = problem.network.route(flow.zone, problem.zone_of(upper))
    if links is None:
        return math.inf
    seconds = time_over(problem.network, links, flow)
    for host in (lower, upper):
        queue = mm1(float(hosts.lan_bandwidth[host]) / flow.bits, flow.rate) if flow.bits else 0.0
        seconds += float(hosts.lan_latency[host]) + queue
    return seconds


def evaluate(problem: Problem, placement: Placement) -> Evaluation:
    """Return cost and usage of a placement (eq. 7, 8, 17, 18), valid or not: see ``shortages``."""
    application = problem.application
    service = tuple(service_time(problem, o, host) for o, host in enumerate(placement))
    transfer = {(u, v): transfer_time(problem, (u, v), placement[u], placement[v]) for u, v in application.streams}
    terms = [paths * s for paths, s in zip(application.paths, service, strict=True)]
    terms += [application.paths_over[stream] * s for stream, s in transfer.items()]
    return Evaluation(math.fsum(terms), application.waiting, service, transfer, usage_of(problem, placement))


def usage_of(problem: Problem, placement: Placement) -> Usage:
    """Sum up the usage of a placement, each stream on the links that it crosses."""
    application = problem.application
    work, memory, sends, receives = (defaultdict[int, float](float) for _ in range(4))
    over: dict[Link, float] = defaultdict(float)
    for o, host in enumerate(placement):
        if application.operators[o].host is None:
            work[host] += application.work[o]
            memory[host] += application.room[o]
    for u, v in application.streams:
        lower, upper = placement[u], placement[v]
        if lower == upper:
            continue
        flow = application.flow((u, v), problem.zone_of(lower))
        sends[lower] += flow.bandwidth
        receives[upper] += flow.bandwidth
        for link in problem.network.route(flow.zone, problem.zone_of(upper)) or ():
            over[link] += flow.bandwidth
    return Usage(work, memory, sends, receives, over)


def shortages(problem: Problem, placement: Placement) -> list[Shortage]:
    """Check constraints 9 to 15 independently of the strategy; return the violated ones."""
    application, hosts = problem.application, problem.hosts
    found: list[Shortage] = []
    for o, host in enumerate(placement):
        what = application.operators[o]
        if not 0 <= host < len(hosts):
            found.append(Shortage("one host", f"operator '{what.name}'", 1, 0, "hosts"))
    if len(placement) != len(application) or found:
        return found or [Shortage("one host", "all", len(application), len(placement), "hosts")]
    for o, host in enumerate(placement):
        what = application.operators[o]
        where = f"operator '{what.name}' on {hosts.name(host)}"
        if what.host is not None and what.host != host:
            found.append(Shortage("pinned host", where, what.host, host, "(number)"))
        if what.hosts is not None and host not in what.hosts:
            found.append(Shortage("allowed host", where, 1, 0, "hosts", host, operator=o))
        if what.host is None and what.cpu:
            rate, served = float(application.rate_in[o]), float(hosts.cpu[host]) / what.cpu
            if not rate < served:
                found.append(Shortage("processing rate", where, rate, served, "events/s", host, operator=o))
    for u, v in application.streams:
        if transfer_time(problem, (u, v), placement[u], placement[v]) == math.inf:
            flow = application.flow((u, v), problem.zone_of(placement[u]))
            where = (
                f"stream '{application.operators[u].name}' to '{application.operators[v].name}', "
                f"{hosts.name(placement[u])} to {hosts.name(placement[v])}"
            )
            narrowest = _narrowest(problem, placement[u], placement[v])
            found.append(Shortage("transfer rate", where, flow.bandwidth, narrowest, "bits/s", operator=u))
    for group in problem.together:
        levels = {problem.level_of(placement[o]) for o in group}
        if len(levels) > 1:
            where = f"'{application.operators[group[0]].name}' and the rest of its group"
            found.append(Shortage("one level", where, 1, len(levels), "levels"))
    used = usage_of(problem, placement)
    for host, work in used.work.items():
        found += _over("cpu", hosts.name(host), work, float(hosts.cpu_free[host]), "work/s", host)
    for host, memory in used.memory.items():
        found += _over("memory", hosts.name(host), memory, float(hosts.memory_free[host]), "bytes", host)
    for way, by_host in (("out of", used.sends), ("into", used.receives)):
        for host, bits in by_host.items():
            where = f"LAN {way} {hosts.name(host)}"
            found += _over("bandwidth", where, bits, float(hosts.lan_bandwidth[host]), "bits/s", host)
    for link, bits in used.links.items():
        where = problem.topology.link_name(link)
        found += _over("bandwidth", where, bits, problem.network.available(link), "bits/s", None, link)
    return found


def _narrowest(problem: Problem, lower: int, upper: int) -> float:
    """Return the bandwidth of the narrowest part of a route, in bits/s; 0 without a route."""
    route = problem.network.route(problem.zone_of(lower), problem.zone_of(upper))
    if route is None:
        return 0.0
    accesses = (float(problem.hosts.lan_bandwidth[host]) for host in (lower, upper))
    return min(*accesses, *(problem.network.capacity(link) for link in route), math.inf)


def _over(
    constraint: str,
    where: str,
    needed: float,
    available: float,
    unit: str,
    host: int | None,
    link: Link | None = None,
) -> list[Shortage]:
    if needed <= available * (1 + ROUNDING):
        return []
    return [Shortage(constraint, where, needed, available, unit, host, link)]
