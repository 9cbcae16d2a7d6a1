"""Which limit or capacity a scheduler lacks where no selection of cuts keeps all of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from headwater.placement.cost import ROUNDING, Shortage
from headwater.placement.exact import Exactness, tsoo_exact
from headwater.placement.situation import FOR_EVER, Situation

_HALVINGS = 8
"""Steps by which the least sufficient multiple of a capacity is narrowed down."""
_ANY = Exactness(price=0.0, stay=False)


def lacking(situation: Situation) -> Shortage | None:
    """Return a limit that no selection meets, with the least value that can be met.

    None if that is not certain: a longer search might find a selection. Of memory and links, the one of which the
    least multiple would be enough.
    """
    table, numbers, limits = situation.table, situation.numbers, situation.limits
    for b, branch in enumerate(table.branches):
        if not numbers.allowed[b].any():
            name = table.problem.application.operators[branch.source].name
            whole = Shortage("memory or bandwidth", f"every cut of the operators fed by '{name}'", 1, 0, "cuts")
            return _room(situation) or whole
    least = numbers.trunk_cloud + float(
        np.where(numbers.allowed, numbers.into_cloud, np.inf).min(axis=1, initial=np.inf).sum()
    )
    if least > limits.max_bandwidth:
        return Shortage("max_bandwidth", "links into clouds", least, limits.max_bandwidth, "bits/s")

    def is_possible(seconds: float) -> bool:
        of = (table.shape, numbers, situation.space)
        return bool(situation.loops.is_possible(*of, seconds, limits.max_bandwidth))

    if not is_possible(math.inf):
        whole = Shortage("memory or bandwidth", "hosts and links shared by several locations", 1, 0, "cuts")
        return _room(situation) or whole
    if is_possible(limits.most_seconds):
        return None
    # By halves to a percent: no selection is quicker than this.
    low, high = limits.most_seconds, 2 * limits.most_seconds
    while not is_possible(high):
        low, high = high, 2 * high
        if high > FOR_EVER:
            return Shortage("max_latency", "the slowest path from a source", math.inf, limits.max_latency, "s")
    while high - low > 0.01 * low:
        middle = (low + high) / 2
        low, high = (low, middle) if is_possible(middle) else (middle, high)
    return Shortage("max_latency", "the slowest path from a source", low, limits.max_latency, "s")


def _room(situation: Situation) -> Shortage | None:
    """Return the shortage of a host or a link whose least multiple makes a selection possible."""
    found = [short for kind in ("memory", "links") if (short := _least(situation, kind)) is not None]
    return min(found, key=_ratio, default=None)


def _ratio(short: Shortage) -> float:
    return short.needed / short.available if short.available > 0 else math.inf


def _least(situation: Situation, kind: str) -> Shortage | None:
    """Return what is missing at the least multiple of all memory, or of all links."""
    worst = _missing(situation, kind, math.inf)
    low = 1.0
    for _ in range(_HALVINGS):
        if worst is None or math.isinf(high := _ratio(worst)) or high <= low * 1.01:
            break
        middle = math.sqrt(low * high)
        other = _missing(situation, kind, middle)
        low, worst = (middle, worst) if other is None or _ratio(other) > high else (low, other)
    return worst


def _missing(situation: Situation, kind: str, times: float) -> Shortage | None:
    """Return the largest shortage of a selection that is possible with a multiple of a capacity; None: none is."""
    table = situation.table
    problem = table.problem
    if kind == "memory":
        memory = problem.hosts.memory
        wide = np.full_like(memory, math.inf) if math.isinf(times) else memory * times
        topology = replace(problem.topology, hosts=replace(problem.hosts, memory=wide))
    else:
        topology = replace(problem.topology, network=problem.network.widened(None, times))
    relaxed = replace(situation, table=replace(table, problem=replace(problem, topology=topology)))
    selection = tsoo_exact(replace(relaxed, limits=replace(situation.limits, max_latency=math.inf)), _ANY).selection
    if not relaxed.measure(selection).fits:
        return None
    taken = table.taken(situation.load, table.placement(selection))
    over = _hosts(situation, taken.memory) if kind == "memory" else _links(situation, taken.links)
    return max(over, key=_ratio, default=None)


def _hosts(situation: Situation, taken: np.typing.NDArray[np.float64]) -> Iterator[Shortage]:
    hosts = situation.table.problem.hosts
    for host in np.flatnonzero(taken > hosts.memory * (1 + ROUNDING)).tolist():
        yield Shortage("memory", hosts.name(host), float(taken[host]), float(hosts.memory[host]), "bytes", host)


def _links(situation: Situation, taken: np.typing.NDArray[np.float64]) -> Iterator[Shortage]:
    network = situation.table.network
    for zone in np.flatnonzero(taken > network.bandwidth * (1 + ROUNDING)).tolist():
        upper = int(network.parents[zone])
        where = situation.table.problem.topology.link_name((zone, upper))
        amounts = float(taken[zone]), float(network.bandwidth[zone])
        yield Shortage("bandwidth", where, *amounts, "bits/s", None, (zone, upper))
