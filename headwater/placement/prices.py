"""Prices of hosts' cpu in the tables, for a higher bound where operators compete for hosts. Pure.

Lagrange multipliers of constraint 11: AL plus the price of the work on each host, less the price of its whole cpu, is
at most AL for placements within capacities. So its minimum without capacities is a lower bound for any prices;
subgradient steps of Polyak's length raise it (Fisher 1981).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping

import numpy as np

from headwater.placement.places import Places
from headwater.placement.problem import Ints, Problem
from headwater.placement.queueing import Floats
from headwater.placement.tables import Tables, tables_over

STEPS = 4
_TARGET = 0.3
"""Part of the distance between bound and known AL that a step aims at: the optimum is somewhere between."""


def priced_tables(
    problem: Problem, among: Places, entries: int, known: float, prices: MutableMapping[int, float]
) -> tuple[Tables, Mapping[int, Ints]] | None:
    """Return the tables with the greatest bound found; None as ``tables_over``.

    ``known``: AL of a placement, s, or ∞. ``prices``: by host, in s for each unit of work/s; they are replaced.
    """
    real = (among.host >= 0) & (among.cpu_free > 0)
    free = np.where(real, among.cpu_free, 1.0)
    price = np.array([prices.get(host, 0.0) for host in among.host.tolist()]) * real
    best: tuple[Tables, Mapping[int, Ints]] | None = None
    for _ in range(STEPS):
        made = tables_over(problem, among, entries, price)
        if made is None:
            return None
        tables, domains = made
        if best is None or tables.bound > best[0].bound:
            best = made
            prices.update(zip(among.host[real].tolist(), price[real].tolist(), strict=True))
        over = np.where(real, _used(problem, tables, domains, len(among)) / free - 1.0, 0.0)
        over[(over < 0) & (price == 0)] = 0.0
        if tables.bound >= known or not over.any():
            break
        distance = known - best[0].bound if math.isfinite(known) else best[0].bound
        step = (best[0].bound + _TARGET * distance - tables.bound) / float(over @ over)
        price = np.maximum(0.0, price + step * over / free)
    return best


def _used(problem: Problem, tables: Tables, domains: Mapping[int, Ints], places: int) -> Floats:
    """Return the work on each place in the solution of least cost, in work/s."""
    used = np.zeros(places)
    for operator, value in tables.eliminated.solution().items():
        used[domains[operator][value]] += problem.application.work[operator]
    return used
