"""Loops over cut tables that compute cost and latency of a selection; can be compiled. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headwater.placement.cost import ROUNDING
from headwater.placement.cutnumbers import CutShape, Numbers
from headwater.placement.problem import Bools, Ints
from headwater.placement.queueing import Floats
from headwater.placement.response import process_latency


class Space(NamedTuple):
    """Working memory of the loops; letters as in ``CutShape`` and ``Numbers``."""

    lone: Floats
    """[b, c, i]: latency without other branches."""
    work: Floats
    """[process]: of certain or selected choices; as the three that follow."""
    rate: Floats
    certain: Bools
    latency: Floats
    running: Ints
    """[host]: processes."""
    onward: Floats
    """[i, then node]: seconds to the last sink."""
    least_memory: Floats
    """[b, s]: minimum over the remaining choices."""
    least_bits: Floats
    """[b, l]"""
    memory: Floats
    """[s]"""
    bits: Floats
    """[l]"""
    goes_to: Ints
    """[key]: the zone; −1: not certain."""
    common: Ints
    """[b, i]: the process in all remaining choices; −1: they differ."""
    price: Floats
    """[b, c]: cost, including the price of bandwidth and of certain choices of other branches."""
    joined: Floats
    """[b, process]: latency if a branch joins the certain choices; −1: not computed."""
    bounds: Floats
    """[b]: least price."""
    time: Floats
    """[b, c]"""
    burden: Floats
    """[b, c]: shares of the cpu of hosts that several branches can use."""


def space(shape: CutShape, numbers: Numbers) -> Space:
    """Allocate working memory for searches over a table."""
    branches, choices, width = shape.process.shape
    processes, nodes = len(shape.process_host), len(shape.trunk_process)
    return Space(
        lone=np.zeros((branches, choices, width)),
        work=np.zeros(processes),
        rate=np.zeros(processes),
        certain=np.zeros(processes, dtype=np.bool_),
        latency=np.zeros(processes),
        running=np.zeros(len(numbers.cpu), dtype=np.int64),
        onward=np.zeros(width + nodes),
        least_memory=np.zeros((branches, numbers.memory.shape[2])),
        least_bits=np.zeros((branches, numbers.bits.shape[2])),
        memory=np.zeros(numbers.memory.shape[2]),
        bits=np.zeros(numbers.bits.shape[2]),
        goes_to=np.zeros(shape.keys, dtype=np.int64),
        common=np.zeros((branches, width), dtype=np.int64),
        price=np.zeros((branches, choices)),
        joined=np.zeros((branches, processes)),
        bounds=np.zeros(branches),
        time=np.zeros((branches, choices)),
        burden=np.zeros((branches, choices)),
    )


def find_lone(shape: CutShape, numbers: Numbers, room: Space) -> None:
    """Compute the latency of each operator in each choice without other branches."""
    # Cached by process and number of competing processes: most choices share these.
    known = np.zeros((len(shape.process_host), shape.width + 1))
    owner = np.full(len(shape.process_host), -1, dtype=np.int64)
    competing = np.zeros(len(numbers.cpu), dtype=np.int64)
    for b in range(len(shape.choices)):
        operators = shape.operators[b]
        for c in range(shape.choices[b]):
            for i in range(operators):
                p = shape.process[b, c, i]
                if p >= 0:
                    competing[shape.process_host[p]] += 1
            burden = 0.0
            for i in range(operators):
                p = shape.process[b, c, i]
                if p < 0 or numbers.work[b, i] <= 0:
                    room.lone[b, c, i] = 0.0
                    continue
                host = shape.process_host[p]
                if shape.shared[host]:
                    burden += numbers.work[b, i] / numbers.cpu[host]
                if owner[p] != b:
                    owner[p] = b
                    known[p] = -1.0
                count = competing[host]
                if known[p, count] < 0:
                    known[p, count] = process_latency(
                        numbers.cpu[host] / (count + numbers.others[host]),
                        numbers.work[b, i],
                        numbers.rate[b, i],
                        shape.span[p],
                        shape.slide[p],
                        shape.window[p],
                    )
                room.lone[b, c, i] = known[p, count]
            room.burden[b, c] = burden
            for i in range(operators):
                p = shape.process[b, c, i]
                if p >= 0:
                    competing[shape.process_host[p]] = 0


def begin(shape: CutShape, numbers: Numbers, room: Space) -> None:
    """Reset to no branches: only the trunk is certain."""
    room.work[:] = 0.0
    room.rate[:] = 0.0
    room.certain[:] = False
    room.running[:] = 0
    add(shape, room, shape.trunk_process, numbers.trunk_work, numbers.trunk_rate)


def add(shape: CutShape, room: Space, processes: Ints, work: Floats, rate: Floats) -> None:
    """Add load to the processes that several branches can use."""
    for n in range(len(processes)):
        p = processes[n]
        if p < 0 or not shape.shared[shape.process_host[p]]:
            continue
        if not room.certain[p]:
            room.certain[p] = True
            room.running[shape.process_host[p]] += 1
        room.work[p] += work[n]
        room.rate[p] += rate[n]


def find_latencies(shape: CutShape, numbers: Numbers, room: Space) -> None:
    """Compute the latency of certain processes, and of the path through the trunk from each of its nodes."""
    for p in range(len(shape.process_host)):
        room.latency[p] = 0.0
        if room.certain[p]:
            host = shape.process_host[p]
            room.latency[p] = process_latency(
                numbers.cpu[host] / max(1, room.running[host] + numbers.others[host]),
                room.work[p],
                room.rate[p],
                shape.span[p],
                shape.slide[p],
                shape.window[p],
            )
    at, k, edges = shape.width, 0, len(shape.trunk_from)
    for n in range(len(shape.trunk_process) - 1, -1, -1):
        behind = 0.0
        while k < edges and shape.trunk_from[k] == n:
            behind = max(behind, numbers.trunk_delay[k] + room.onward[at + shape.trunk_to[k]])
            k += 1
        p = shape.trunk_process[n]
        room.onward[at + n] = behind + (room.latency[p] if p >= 0 else 0.0)


def find_times(shape: CutShape, numbers: Numbers, room: Space, alive: Bools, selection: Ints) -> None:
    """Compute the time from each branch's source to its last sink (eq. 16), for each choice of the branch.

    With a ``selection``: of all added branches, for the selected choices. Without: for choices ``alive``, a
    lower bound from the certain load of other branches and the branch's own.
    """
    lone, latency, onward, joined, common = room.lone, room.latency, room.onward, room.joined, room.common
    process, way, delay = shape.process, shape.way, numbers.delay
    edge_from, edge_to = shape.edge_from, shape.edge_to
    process_host, shared = shape.process_host, shape.shared
    alone = len(selection) == 0
    for b in range(len(shape.choices)):
        operators, edges = shape.operators[b], shape.edges[b]
        for c in range(shape.choices[b]):
            if not alive[b, c] if alone else c != selection[b]:
                continue
            k = 0
            for i in range(operators - 1, -1, -1):
                behind = 0.0
                while k < edges and edge_from[b, k] == i:
                    then = delay[way[b, c, k]] + onward[edge_to[b, k]]
                    if then > behind:
                        behind = then
                    k += 1
                p = process[b, c, i]
                if p >= 0:
                    host = process_host[p]
                    if not shared[host]:
                        behind += lone[b, c, i]
                    elif not alone or common[b, i] == p:
                        behind += latency[p]
                    else:
                        if joined[b, p] < 0:
                            competing = room.running[host] + numbers.others[host] + (0 if room.certain[p] else 1)
                            joined[b, p] = process_latency(
                                numbers.cpu[host] / max(1, competing),
                                room.work[p] + numbers.work[b, i],
                                room.rate[p] + numbers.rate[b, i],
                                shape.span[p],
                                shape.slide[p],
                                shape.window[p],
                            )
                        behind += max(joined[b, p], lone[b, c, i])
                onward[i] = behind
            room.time[b, c] = onward[0]


def measure(
    shape: CutShape, numbers: Numbers, room: Space, selection: Ints, times: Floats
) -> tuple[float, float, bool]:
    """Return RU, B and whether the hosts have room for a selection; ``times`` receives each branch's time."""
    begin(shape, numbers, room)
    cost = cost_of(numbers, room, numbers.cost, selection)
    into_cloud, fits = numbers.trunk_cloud, True
    for b in range(len(selection)):
        c = selection[b]
        fits = fits and numbers.allowed[b, c]
        into_cloud += numbers.into_cloud[b, c]
        add(shape, room, shape.process[b, c], numbers.work[b], numbers.rate[b])
    for n in range(len(room.memory)):
        fits = fits and room.memory[n] <= numbers.memory_free[n] * (1 + ROUNDING)
    for n in range(len(room.bits)):
        fits = fits and room.bits[n] <= numbers.link_free[n] * (1 + ROUNDING)
    find_latencies(shape, numbers, room)
    find_times(shape, numbers, room, numbers.allowed, selection)
    for b in range(len(selection)):
        times[b] = room.time[b, selection[b]]
    room.goes_to[:] = -1
    for b in range(len(selection)):
        for k in range(shape.edges[b]):
            key = shape.key[b, selection[b], k]
            if key >= 0:
                if room.goes_to[key] < 0:
                    room.goes_to[key] = shape.zone[b, selection[b], k]
                fits = fits and room.goes_to[key] == shape.zone[b, selection[b], k]
    return cost, into_cloud, fits


def cost_of(numbers: Numbers, room: Space, own: Floats, selection: Ints) -> float:
    """Return the cost of a selection."""
    cost = numbers.trunk_cost
    room.memory[:] = 0.0
    room.bits[:] = 0.0
    for b in range(len(selection)):
        c = selection[b]
        cost += own[b, c]
        for n in range(len(room.memory)):
            cost += 2 * numbers.memory[b, c, n] * room.memory[n] * numbers.memory_price[n]
            room.memory[n] += numbers.memory[b, c, n]
        for n in range(len(room.bits)):
            cost += 2 * numbers.bits[b, c, n] * room.bits[n] * numbers.link_price[n]
            room.bits[n] += numbers.bits[b, c, n]
    return cost
