"""Loops over cut tables: the cost of a selection, and the search for the best one within limits. Pure.

The search is depth-first branch and bound. At every step it removes choices that cannot be part of a better
selection: with the certain load they already exceed a limit, or cost too much. Certain are the processes, bytes
and bits common to all remaining choices of a branch; queues only grow with more load, so times with these alone
are lower bounds. B has a Lagrange multiplier in the bound of the cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from headwater.placement import queueing, response
from headwater.placement.compiled import compiled
from headwater.placement.cost import ROUNDING
from headwater.placement.cutloops import (
    Space,
    add,
    begin,
    cost_of,
    find_latencies,
    find_lone,
    find_times,
    measure,
)
from headwater.placement.cutnumbers import CutShape, Numbers
from headwater.placement.problem import Bools, Ints
from headwater.placement.queueing import Floats


def _find_certain(shape: CutShape, numbers: Numbers, room: Space, alive: Bools) -> None:
    """Compute the common part of each branch's remaining choices: processes, least bytes and bits."""
    begin(shape, numbers, room)
    room.memory[:] = 0.0
    room.bits[:] = 0.0
    room.goes_to[:] = -1
    for b in range(len(shape.choices)):
        first = -1
        for c in range(shape.choices[b]):
            if not alive[b, c]:
                continue
            if first < 0:
                first = c
                for i in range(shape.operators[b]):
                    room.common[b, i] = shape.process[b, c, i]
                room.least_memory[b] = numbers.memory[b, c]
                room.least_bits[b] = numbers.bits[b, c]
                continue
            for i in range(shape.operators[b]):
                if room.common[b, i] != shape.process[b, c, i]:
                    room.common[b, i] = -1
            for n in range(len(room.memory)):
                room.least_memory[b, n] = min(room.least_memory[b, n], numbers.memory[b, c, n])
            for n in range(len(room.bits)):
                room.least_bits[b, n] = min(room.least_bits[b, n], numbers.bits[b, c, n])
        add(shape, room, room.common[b], numbers.work[b], numbers.rate[b])
        for n in range(len(room.memory)):
            room.memory[n] += room.least_memory[b, n]
        for n in range(len(room.bits)):
            room.bits[n] += room.least_bits[b, n]
        if shape.keys == 0:
            continue
        for k in range(shape.edges[b]):
            key, zone = shape.key[b, first, k], shape.zone[b, first, k]
            for c in range(first + 1, shape.choices[b]):
                if alive[b, c] and (shape.key[b, c, k] != key or shape.zone[b, c, k] != zone):
                    key = -1
            if key >= 0:
                room.goes_to[key] = zone


def _breaks(shape: CutShape, numbers: Numbers, room: Space, b: int, c: int) -> bool:
    """Return whether a choice has no room beside the certain load, or separates merged rows."""
    for n in range(len(room.memory)):
        beside = room.memory[n] - room.least_memory[b, n]
        if beside + numbers.memory[b, c, n] > numbers.memory_free[n] * (1 + ROUNDING):
            return True
    for n in range(len(room.bits)):
        beside = room.bits[n] - room.least_bits[b, n]
        if beside + numbers.bits[b, c, n] > numbers.link_free[n] * (1 + ROUNDING):
            return True
    if shape.keys > 0:
        for k in range(shape.edges[b]):
            key = shape.key[b, c, k]
            if key >= 0 and room.goes_to[key] >= 0 and room.goes_to[key] != shape.zone[b, c, k]:
                return True
    return False


def _strike(
    shape: CutShape,
    numbers: Numbers,
    room: Space,
    alive: Bools,
    own: Floats,
    multiplier: float,
    most_seconds: float,
    most_cloud: float,
    best: float,
) -> float:
    """Remove choices until nothing changes; return the least remaining cost, ∞ if there is none."""
    count, least = len(shape.choices), room.bounds
    nothing = np.zeros(0, dtype=np.int64)
    coupled = len(room.memory) + len(room.bits) + shape.keys > 0
    while True:
        _find_certain(shape, numbers, room, alive)
        find_latencies(shape, numbers, room)
        room.joined[:] = -1.0
        bound = numbers.trunk_cost
        if multiplier > 0.0:  # at 0 the limit may be infinite
            bound -= multiplier * (most_cloud - numbers.trunk_cloud)
        certain_cloud = numbers.trunk_cloud
        for b in range(count):
            least[b] = math.inf
            low = math.inf
            for c in range(shape.choices[b]):
                if alive[b, c]:
                    price = own[b, c] + multiplier * numbers.into_cloud[b, c]
                    for n in range(len(room.memory)):
                        beside = room.memory[n] - room.least_memory[b, n]
                        price += numbers.memory[b, c, n] * beside * numbers.memory_price[n]
                    for n in range(len(room.bits)):
                        beside = room.bits[n] - room.least_bits[b, n]
                        price += numbers.bits[b, c, n] * beside * numbers.link_price[n]
                    room.price[b, c] = price
                    least[b] = min(least[b], price)
                    low = min(low, numbers.into_cloud[b, c])
            bound += least[b]
            certain_cloud += low
        if not bound < best:
            return math.inf
        find_times(shape, numbers, room, alive, nothing)
        changed = False
        for b in range(count):
            low, left = math.inf, 0
            for c in range(shape.choices[b]):
                if alive[b, c]:
                    low = min(low, numbers.into_cloud[b, c])
            for c in range(shape.choices[b]):
                if not alive[b, c]:
                    continue
                if (
                    room.time[b, c] > most_seconds * (1 + ROUNDING)
                    or bound - least[b] + room.price[b, c] >= best
                    or certain_cloud - low + numbers.into_cloud[b, c] > most_cloud * (1 + ROUNDING)
                    or (coupled and _breaks(shape, numbers, room, b, c))
                ):
                    alive[b, c] = False
                    changed = True
                else:
                    left += 1
            if left == 0:
                return math.inf
        if not changed:
            return float(bound)


def _multiplier(shape: CutShape, numbers: Numbers, alive: Bools, own: Floats, most_cloud: float) -> float:
    """Return the price of B with the highest bound; 0 if the cheapest choices meet the limit."""
    if math.isinf(most_cloud):
        return 0.0
    low, high = 0.0, 0.0
    for turn in range(60):
        price = high if turn < 20 else (low + high) / 2
        into = numbers.trunk_cloud
        dearest = 0.0
        for b in range(len(shape.choices)):
            least, taken = math.inf, 0.0
            for c in range(shape.choices[b]):
                if alive[b, c]:
                    cost = own[b, c] + price * numbers.into_cloud[b, c]
                    if cost < least:
                        least, taken = cost, numbers.into_cloud[b, c]
                    dearest = max(dearest, own[b, c])
            into += taken
        if turn < 20:
            if into <= most_cloud:
                if turn == 0:
                    return 0.0
                continue
            low = high
            high = max(high * 4, dearest / max(most_cloud, 1.0) * 1e-3)
        elif into > most_cloud:
            low = price
        else:
            high = price
        if high - low <= 1e-6 * high:
            break
    return high


def _search(
    shape: CutShape,
    numbers: Numbers,
    room: Space,
    own: Floats,
    most_seconds: float,
    most_cloud: float,
    steps: int,
    most_steps: int,
) -> tuple[Ints, float, float, int]:
    """Return the selection of least cost, its cost, a lower bound, and the number of steps.

    ``own``: [b, c] cost. The search ends after ``steps`` if it found a selection, after ``most_steps`` if not.
    """
    count, most = numbers.allowed.shape
    found, cheapest = np.full(count, -1, dtype=np.int64), np.zeros(count, dtype=np.int64)
    times = np.zeros(count)
    alive = np.zeros((count + 2, count, most), dtype=np.bool_)
    alive[0] = numbers.allowed
    at = np.zeros(count + 2, dtype=np.int64)
    bounds, leasts = np.zeros(count + 2), np.zeros(count + 2)
    prices = np.zeros((count + 2, most))
    multiplier = _multiplier(shape, numbers, alive[0], own, most_cloud)
    best, taken, depth, fresh = math.inf, 0, 0, True
    root = math.inf
    limits = (most_seconds * (1 + ROUNDING), most_cloud * (1 + ROUNDING))
    while depth >= 0:
        if fresh:
            taken += 1
            fresh = False
            bound = _strike(shape, numbers, room, alive[depth], own, multiplier, most_seconds, most_cloud, best)
            if depth == 0:
                root = bound
            if bound == math.inf:
                depth -= 1
                continue
            b, fewest = -1, most + 1
            for other in range(count):
                left, chosen = 0, -1
                for c in range(shape.choices[other]):
                    if alive[depth, other, c]:
                        left += 1
                        if chosen < 0 or room.price[other, c] < room.price[other, chosen]:
                            chosen = c
                cheapest[other] = chosen
                if 1 < left < fewest:
                    b, fewest = other, left
            at[depth], bounds[depth] = b, bound
            if b >= 0:
                leasts[depth] = room.bounds[b]
                prices[depth] = room.price[b]
            # The cheapest remaining choices: they may meet the limits, and else give bounds.
            _, cloud, fits = measure(shape, numbers, room, cheapest, times)
            keeps = fits and cloud <= limits[1] and times.max() <= limits[0]
            if not keeps and depth == 0:
                keeps = _ease(shape, numbers, room, alive[0], own, multiplier, limits, cheapest, times)
            if keeps:
                cost = cost_of(numbers, room, own, cheapest)
                if cost < best:
                    best = cost
                    found[:] = cheapest
            if b < 0:
                depth -= 1
                continue
        if taken >= most_steps or (taken >= steps and best < math.inf):
            return found, best, root, taken
        b, c = at[depth], -1
        for other in range(shape.choices[b]):
            if alive[depth, b, other] and (c < 0 or prices[depth, other] < prices[depth, c]):
                c = other
        if c < 0 or bounds[depth] - leasts[depth] + prices[depth, c] >= best * (1 - ROUNDING):
            depth -= 1
            continue
        alive[depth, b, c] = False
        alive[depth + 1] = alive[depth]
        alive[depth + 1, b] = False
        alive[depth + 1, b, c] = True
        depth, fresh = depth + 1, True
    return found, best, best, taken


def _ease(
    shape: CutShape,
    numbers: Numbers,
    room: Space,
    alive: Bools,
    own: Floats,
    multiplier: float,
    limits: tuple[float, float],
    selection: Ints,
    times: Floats,
) -> bool:
    """Search a selection within the limits, with the lowest sufficient price on shared cpu."""
    dearest, heaviest = 0.0, 0.0
    for b in range(len(shape.choices)):
        for c in range(shape.choices[b]):
            if alive[b, c]:
                dearest = max(dearest, own[b, c])
                heaviest = max(heaviest, room.burden[b, c])
    if heaviest == 0.0:
        return False
    price, step, kept = 1e-4 * dearest / heaviest, 8.0, False
    trial = selection.copy()
    for _ in range(24):
        for b in range(len(shape.choices)):
            least = math.inf
            for c in range(shape.choices[b]):
                if alive[b, c]:
                    cost = own[b, c] + multiplier * numbers.into_cloud[b, c] + price * room.burden[b, c]
                    if cost < least:
                        least = cost
                        trial[b] = c
        _, cloud, fits = measure(shape, numbers, room, trial, times)
        if fits and cloud <= limits[1] and times.max() <= limits[0]:
            selection[:] = trial
            kept = True
            price /= step
            step = math.sqrt(step)
        elif kept:
            price *= step
            step = math.sqrt(step)
        else:
            price *= step
        if step < 1.05:
            break
    if kept:
        _better(shape, numbers, room, alive, own, limits, selection, times)
    return kept


def _better(
    shape: CutShape,
    numbers: Numbers,
    room: Space,
    alive: Bools,
    own: Floats,
    limits: tuple[float, float],
    selection: Ints,
    times: Floats,
) -> None:
    """Improve one branch's choice after another to the cheapest within the limits."""
    for _ in range(2):
        changed = False
        for b in range(len(shape.choices)):
            before = selection[b]
            best, least = before, cost_of(numbers, room, own, selection)
            for c in range(shape.choices[b]):
                if not alive[b, c] or c == before or own[b, c] >= own[b, before]:
                    continue
                selection[b] = c
                cost = cost_of(numbers, room, own, selection)
                if cost < least:
                    _, cloud, fits = measure(shape, numbers, room, selection, times)
                    if fits and cloud <= limits[1] and times.max() <= limits[0]:
                        best, least = c, cost
            selection[b] = best
            changed = changed or best != before
        if not changed:
            return


def _is_possible(shape: CutShape, numbers: Numbers, room: Space, most_seconds: float, most_cloud: float) -> bool:
    """Return whether a quick check leaves it possible that a selection meets the limits."""
    alive = numbers.allowed.copy()
    left = _strike(shape, numbers, room, alive, numbers.cost, 0.0, most_seconds, most_cloud, math.inf)
    return left < math.inf


class Loops(NamedTuple):
    """The loops, compiled or not."""

    find_lone: Callable[[CutShape, Numbers, Space], None]
    measure: Callable[[CutShape, Numbers, Space, Ints, Floats], tuple[float, float, bool]]
    search: Callable[..., tuple[Ints, float, float, int]]
    is_possible: Callable[[CutShape, Numbers, Space, float, float], bool]


_PARTS: tuple[Callable[..., Any], ...] = (
    *(queueing.dm1, queueing._root, queueing.md1, queueing.mm1, response.process_latency),
    *(begin, add, find_latencies, find_times, _find_certain, _breaks, _strike, _multiplier),
    *(measure, cost_of, _ease, _better),
)


@cache
def loops(compile_them: bool) -> Loops:
    """Return the loops; the first compilation on a machine takes seconds."""
    if not compile_them:
        return Loops(find_lone, measure, _search, _is_possible)
    return Loops(*(compiled(loop, _PARTS) for loop in (find_lone, measure, _search, _is_possible)))  # type: ignore[arg-type]
