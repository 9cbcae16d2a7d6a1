"""Simulate a placement event by event, to validate the model's queues. Pure: drawn by a seed.

Every event passes stations, each a server with one queue, first come, first served: hosts' cpu, hosts' LAN
access out and in, links. The model (eq. 7 and 8) gives each operator a host of its own and each stream links
of its own, Poisson arrivals and exponential service; ``shared``, ``steady`` and ``fixed`` are deviations
from that.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from headwater.placement.compiled import compiled
from headwater.placement.problem import Ints, Placement, Problem, Stream
from headwater.placement.queueing import Floats


@dataclass(frozen=True, kw_only=True)
class QueueWorld:
    """Deviations from the model's assumptions.

    ``shared``: operators of a host share its cpu, streams of a link the link. ``steady``: sources send events
    at equal intervals. ``fixed``: all events of a kind take equally long. ``windows``: operators
    with a window get its events together, once the last has come.
    """

    shared: bool = False
    steady: bool = False
    fixed: bool = False
    windows: bool = False


@dataclass(frozen=True)
class QueueResult:
    """Simulated times; means in s.

    ``latency``: AL (eq. 18) of these times, without windows. ``service`` and ``transfer``: for each operator
    and stream, NaN where no event came. ``holding``: for each operator, the time in its window.
    ``arrival``: for each sink, the time from a source to it. ``events``: number of events of all sources.
    """

    latency: float
    service: Floats
    transfer: Mapping[Stream, float]
    holding: Floats
    arrival: Mapping[int, float]
    events: int


def simulate(
    problem: Problem,
    placement: Placement,
    *,
    seconds: float,
    seed: int = 0,
    world: QueueWorld | None = None,
    warm_up: float = 0.2,
    compile_loop: bool = True,
) -> QueueResult:
    """Simulate the given seconds; the first share of the events, ``warm_up``, is not counted."""
    world = world or QueueWorld()
    application = problem.application
    given = _given(problem, placement, world)
    loop = _loop(compile_loop)
    served, moved, held, came, events = loop(
        seconds, seconds * warm_up, seed, world.steady, world.fixed, world.windows, *given
    )
    with np.errstate(invalid="ignore"):
        service, transfers = served[:, 0] / served[:, 1], moved[:, 0] / moved[:, 1]
        holding, arrival = held[:, 0] / held[:, 1], came[:, 0] / came[:, 1]
    transfer = dict(zip(application.streams, transfers.tolist(), strict=True))
    terms = [p * s for p, s in zip(application.paths, service.tolist(), strict=True) if not math.isnan(s)]
    terms += [application.paths_over[e] * t for e, t in transfer.items() if not math.isnan(t)]
    sinks = {o: float(arrival[o]) for o in application.sinks}
    return QueueResult(math.fsum(terms), service, transfer, holding, sinks, int(events))


class _Stations:
    """Numbers of servers, assigned by key."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def number(self, *what: Hashable) -> int:
        return self._known.setdefault(what, len(self._known))

    def __len__(self) -> int:
        return len(self._known)


def _given(problem: Problem, placement: Placement, world: QueueWorld) -> tuple[Any, ...]:
    """Turn a placement into arrays: for each operator its server, for each stream its hops."""
    application, hosts, network = problem.application, problem.hosts, problem.network
    stations = _Stations()
    cpus, works = [], []
    for o, (what, host) in enumerate(zip(application.operators, placement, strict=True)):
        cpus.append(stations.number("cpu", host if world.shared else -o - 1))
        works.append(0.0 if what.host is not None else what.cpu / float(hosts.cpu[host]))
    hops: list[tuple[int, float, float]] = []
    starts = [0]
    for number, (u, v) in enumerate(application.streams):
        lower, upper = placement[u], placement[v]
        if lower != upper:
            flow = application.flow((u, v), problem.zone_of(lower))
            own = None if world.shared else number
            links = network.route(flow.zone, problem.zone_of(upper)) or ()
            for way, host in (("out", lower), ("in", upper)):
                here = stations.number(way, host, own)
                hop = (here, flow.bits / float(hosts.lan_bandwidth[host]), float(hosts.lan_latency[host]))
                hops.append(hop)
                if way == "out":
                    hops += [
                        (
                            stations.number("link", link, own),
                            flow.bits / network.capacity(link),
                            network.latency(link),
                        )
                        for link in links
                    ]
        starts.append(len(hops))
    numbers = {stream: n for n, stream in enumerate(application.streams)}
    outs = [[numbers[o, d] for d in application.downstream[o]] for o in range(len(application))]
    return (
        np.array([w.rate if not application.upstream[o] else 0.0 for o, w in enumerate(application.operators)]),
        np.array(cpus, dtype=np.int64),
        np.array(works),
        np.array([w.selectivity if application.upstream[o] else 1.0 for o, w in enumerate(application.operators)]),
        np.array([math.ceil(w.window) for w in application.operators], dtype=np.int64),
        np.array([0, *np.cumsum([len(o) for o in outs])], dtype=np.int64),
        np.array([n for out in outs for n in out], dtype=np.int64),
        np.array(list(application.streams.values())),
        np.array([v for _, v in application.streams], dtype=np.int64),
        np.array(starts, dtype=np.int64),
        np.array([h[0] for h in hops], dtype=np.int64),
        np.array([h[1] for h in hops]),
        np.array([h[2] for h in hops]),
        len(stations),
    )


def _run(
    seconds: float,
    counted_from: float,
    seed: int,
    steady: bool,
    fixed: bool,
    windows: bool,
    rates: Floats,
    cpus: Ints,
    works: Floats,
    selectivity: Floats,
    window: Ints,
    out_starts: Ints,
    outs: Ints,
    shares: Floats,
    targets: Ints,
    hop_starts: Ints,
    hop_stations: Ints,
    hop_times: Floats,
    hop_latencies: Floats,
    stations: int,
) -> tuple[Floats, Floats, Floats, Floats, int]:
    """Move events from station to station in the order of time.

    An entry of the heap is (time, number, operator or −1−stream, hop, arrival at the station, time of creation).
    Hop −1 is a source's own next event. The end of service is known when an event joins a queue, so that one
    entry per station is enough.
    """
    np.random.seed(seed)
    operators, streams = len(rates), len(targets)
    served, moved = np.zeros((operators, 2)), np.zeros((streams, 2))
    held, came = np.zeros((operators, 2)), np.zeros((operators, 2))
    free_at = np.zeros(stations)
    most = 1
    for o in range(operators):
        most = max(most, window[o])
    waits_since, waits_ingested = np.zeros((operators, most)), np.zeros((operators, most))
    waiting = np.zeros(operators, dtype=np.int64)
    number, events = 0, 0
    heap = [(0.0, 0, 0, 0, 0.0, 0.0)]
    heap.pop()
    for o in range(operators):
        if rates[o] > 0:
            number += 1
            first = np.random.random() / rates[o] if steady else np.random.exponential(1.0 / rates[o])
            heapq.heappush(heap, (first, number, o, -1, first, first))
    while len(heap) > 0:
        now, _, at, hop, since, ingested = heapq.heappop(heap)
        ready = 0
        if at < 0:  # in transit over a stream
            stream = -1 - at
            if hop < hop_starts[stream + 1]:
                station = hop_stations[hop]
                mean = hop_times[hop]
                spent = mean if fixed or mean == 0.0 else np.random.exponential(mean)
                free_at[station] = max(now, free_at[station]) + spent
                number += 1
                then = free_at[station] + hop_latencies[hop]
                heapq.heappush(heap, (then, number, at, hop + 1, since, ingested))
                continue
            if now >= counted_from:
                moved[stream, 0] += now - since
                moved[stream, 1] += 1
            o = targets[stream]
            if out_starts[o] == out_starts[o + 1] and now >= counted_from:
                came[o, 0] += now - ingested
                came[o, 1] += 1
            number += 1
            heapq.heappush(heap, (now, number, o, 0, now, ingested))
            continue
        o = at
        if hop == -1:
            events += 1
            then = now + (1.0 / rates[o] if steady else np.random.exponential(1.0 / rates[o]))
            if then < seconds:
                number += 1
                heapq.heappush(heap, (then, number, o, -1, then, then))
            ready = 1
            waits_since[o, 0], waits_ingested[o, 0] = now, ingested
        elif hop == 0:
            waits_since[o, waiting[o]], waits_ingested[o, waiting[o]] = now, ingested
            waiting[o] += 1
            if not windows or waiting[o] >= window[o]:
                ready, waiting[o] = waiting[o], 0
        for r in range(ready):
            if now >= counted_from and windows and window[o] > 0:
                held[o, 0] += now - waits_since[o, r]
                held[o, 1] += 1
            mean = works[o]
            done = now
            if mean > 0.0:
                spent = mean if fixed else np.random.exponential(mean)
                free_at[cpus[o]] = max(now, free_at[cpus[o]]) + spent
                done = free_at[cpus[o]]
            if now >= counted_from:
                served[o, 0] += done - now
                served[o, 1] += 1
            number += 1
            heapq.heappush(heap, (done, number, o, 1, done, waits_ingested[o, r]))
        if hop != 1:
            continue
        # Served: emit events by the selectivity, each to one reader, or to every reader its share.
        copies = int(selectivity[o])
        if np.random.random() < selectivity[o] - copies:
            copies += 1
        total = 0.0
        for n in range(out_starts[o], out_starts[o + 1]):
            total += shares[outs[n]]
        for _ in range(copies):
            drawn = np.random.random()
            for n in range(out_starts[o], out_starts[o + 1]):
                taken = drawn < shares[outs[n]] if total <= 1.000001 else np.random.random() < shares[outs[n]]
                drawn -= shares[outs[n]]
                if taken:
                    number += 1
                    stream = outs[n]
                    heapq.heappush(heap, (now, number, -1 - stream, hop_starts[stream], now, ingested))
                    if total <= 1.000001:
                        break
    return served, moved, held, came, events


@cache
def _loop(compile_it: bool) -> Callable[..., tuple[Floats, Floats, Floats, Floats, int]]:
    return compiled(_run) if compile_it else _run
