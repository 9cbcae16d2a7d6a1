"""Response time from source to sink, on hosts that share their cpu among processes: TSOO's T. Pure.

"Adaptive scheduling of continuous operators for IoT edge analytics" (TSOO-H, aTSOO-H), eq. 15 to 23 and 27.
A host's cpu is shared equally among its processes (eq. 20, whose min() has no effect as printed). Windows of time
arrive at equal intervals: D/M/1; windows of a count arrive as their events do, with constant service: M/D/1;
operators without window process single events: M/M/1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headwater.placement.problem import Placement, Problem, Stream
from headwater.placement.queueing import Floats, dm1, md1, mm1

LEAST_BANDWIDTH = 0.02
"""Share of a link that is available even if others use all of it: no link is full for ever."""


@dataclass(frozen=True)
class Response:
    """Seconds. ``worst``: T of eq. 15. ``by_source``: L of eq. 16, the slowest path from each source.

    ``latency``: for each operator; ``delay``: for each stream.
    """

    worst: float
    by_source: Mapping[int, float]
    latency: tuple[float, ...]
    delay: Mapping[Stream, float]


def response(problem: Problem, placement: Placement) -> Response:
    """Return the response times of a placement (eq. 15 to 23); ∞ if a queue grows without limit."""
    application = problem.application
    latency = operator_latencies(problem, placement)
    delay = {(u, v): network_delay(problem, (u, v), placement) for u, v in application.streams}
    onward = [0.0] * len(application)
    for o in reversed(application.order):
        behind = [delay[o, d] + onward[d] for d in application.downstream[o]]
        onward[o] = latency[o] + max(behind, default=0.0)
    by_source = {source: onward[source] for source in application.sources}
    return Response(max(by_source.values(), default=0.0), by_source, latency, delay)


def operator_latencies(problem: Problem, placement: Placement) -> tuple[float, ...]:
    """Return the time in each operator and its queue (eq. 19 to 23); 0 if pinned.

    Instances of one operator on one host are one process, with the work and events of all.
    """
    application, hosts = problem.application, problem.hosts
    work: dict[tuple[str, int], float] = {}
    rate: dict[tuple[str, int], float] = {}
    names = [what.logical or what.name for what in application.operators]
    for o, host in enumerate(placement):
        if application.operators[o].host is None:
            process = names[o], host
            work[process] = work.get(process, 0.0) + application.work[o]
            rate[process] = rate.get(process, 0.0) + float(application.rate_in[o])
    processes: dict[int, int] = {}
    for _, host in work:
        processes[host] = processes.get(host, 0) + 1
    found = []
    for o, host in enumerate(placement):
        what, process = application.operators[o], (names[o], host)
        if what.host is not None:
            found.append(0.0)
            continue
        others = 0 if hosts.processes is None else int(hosts.processes[host])
        cpu = float(hosts.cpu[host]) / max(1, processes[host] + others)
        found.append(process_latency(cpu, work[process], rate[process], what.span, what.slide, what.window))
    return tuple(found)


def process_latency(cpu: float, work: float, rate: float, span: float, slide: float, window: float) -> float:
    """Return the time in a process with ``work`` per second at ``rate`` events/s (eq. 19 to 23)."""
    if work <= 0:
        return 0.0
    if span > 0:
        return dm1(cpu / (work * span), slide if slide > 0 else span)
    if window > 0:
        return md1(cpu / (work / rate * window), rate / window)
    return mm1(cpu / (work / rate), rate)


def network_delay(problem: Problem, stream: Stream, placement: Placement) -> float:
    """Return propagation and transmission over each link of the route (eq. 17, 18); ∞: no route.

    The unit of transmission is the output of the producer's window, or else the input of the consumer's window;
    without windows it is an event.
    """
    application, network = problem.application, problem.network
    u, v = stream
    if placement[u] == placement[v]:
        return 0.0
    flow = application.flow(stream, problem.zone_of(placement[u]))
    route = network.route(flow.zone, problem.zone_of(placement[v]))
    if route is None:
        return math.inf
    span = application.operators[u].span or application.operators[v].span
    bits = span * flow.bandwidth if span else flow.bits
    seconds = float(problem.hosts.lan_latency[placement[u]]) + float(problem.hosts.lan_latency[placement[v]])
    for link in route:
        rest = float(rest_of(network.capacity(link), network.available(link)))
        seconds += network.latency(link) + (bits / rest if math.isfinite(rest) else 0.0)
    return seconds


def rest_of(most: Floats | float, available: Floats | float) -> Floats:
    """Return the bandwidth of links that data can rely on."""
    found: Floats = np.maximum(available, LEAST_BANDWIDTH * np.asarray(most))
    return found
