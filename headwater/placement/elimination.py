"""Minimum of a sum of tables over few variables each: bucket elimination (Dechter 1999). Pure.

A graph of operators is narrow: eliminating them one by one needs tables over only two or three of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from headwater.placement.problem import Ints
from headwater.placement.queueing import Floats

Factor = tuple[tuple[int, ...], Floats]
"""Variables, and a cost for each combination of their values, one axis per variable."""


@dataclass(frozen=True, eq=False)
class Eliminated:
    """Result of an elimination: gives the least cost of any prefix of ``order``.

    ``order``: later variables' tables are over earlier ones only. ``tables``: for each variable the variables of its
    table, itself first, and the table: the least that all later variables in ``order`` can add. ``least``: the same
    without the variable itself, 0 where that is infinite. ``bound``: the overall minimum.
    """

    order: tuple[int, ...]
    tables: Mapping[int, Factor]
    least: Mapping[int, Floats]
    bound: float

    @property
    def entries(self) -> int:
        """Number of entries of all tables."""
        return sum(table.size for _, table in self.tables.values())

    def increments(self, variable: int, values: Mapping[int, int | Ints]) -> Floats:
        """Return the increase of the bound by each value of a variable, given earlier variables' values.

        With arrays of values, one for each of several prefixes: [prefix, value].
        """
        scope, table = self.tables[variable]
        given = tuple(values[v] for v in scope[1:])
        column: Floats = np.moveaxis(table, 0, -1)[given]
        increments: Floats = column - self.least[variable][given][..., None]
        return increments

    def solution(self) -> dict[int, int]:
        """Return the value of each variable in a solution of least cost."""
        values: dict[int, int] = {}
        for variable in self.order:
            values[variable] = int(np.argmin(self.increments(variable, values)))
        return values


def eliminate(sizes: Mapping[int, int], factors: Sequence[Factor], most: int) -> Eliminated | None:
    """Eliminate all variables; None if a table would have more than ``most`` entries.

    ``sizes``: for each variable its number of values.
    """
    order = _order(sizes, [scope for scope, _ in factors], most)
    if order is None:
        return None
    remaining = dict(enumerate(factors))
    near: dict[int, list[int]] = {variable: [] for variable in order}
    for number, (scope, _) in remaining.items():
        for v in scope:
            near[v].append(number)
    tables: dict[int, Factor] = {}
    least: dict[int, Floats] = {}
    bound = 0.0
    for variable in order:
        mine = [remaining.pop(number) for number in near.pop(variable) if number in remaining]
        scope = (variable, *sorted({v for s, _ in mine for v in s} - {variable}))
        # Small ones first: the sum grows large only once.
        mine.sort(key=lambda f: f[1].size)
        table = np.zeros([sizes[variable]] + [1] * (len(scope) - 1))
        for factor in mine:
            table = table + _aligned(factor, scope)
        tables[variable] = scope, table
        smallest = table.min(axis=0)
        least[variable] = np.where(smallest < math.inf, smallest, 0.0)
        if len(scope) > 1:
            number = len(factors) + len(tables)
            remaining[number] = scope[1:], smallest
            for v in scope[1:]:
                near[v].append(number)
        else:
            bound += float(smallest)
    return Eliminated(tuple(reversed(order)), tables, least, bound)


def _aligned(factor: Factor, scope: tuple[int, ...]) -> Floats:
    """Reorder a factor's axes to a scope, with length 1 for missing variables."""
    variables, table = factor
    axes = [variables.index(v) for v in scope if v in variables]
    shape = [table.shape[variables.index(v)] if v in variables else 1 for v in scope]
    return table.transpose(axes).reshape(shape)


def _order(sizes: Mapping[int, int], scopes: Sequence[tuple[int, ...]], most: int) -> tuple[int, ...] | None:
    """Choose the order greedily: the variable with the smallest table first."""
    near: dict[int, set[int]] = {v: set() for v in sizes}
    for scope in scopes:
        for v in scope:
            near[v].update(u for u in scope if u != v)
    found: list[int] = []
    entries = {v: _entries(v, near, sizes) for v in near}
    waiting = [(size, v) for v, size in entries.items()]
    heapify(waiting)
    while near:
        size, variable = heappop(waiting)
        if entries.get(variable) != size:
            continue  # its table has changed since
        if entries.pop(variable) > most:
            return None
        around = near.pop(variable)
        for v in around:
            near[v] |= around
            near[v] -= {v, variable}
        for v in around:
            entries[v] = _entries(v, near, sizes)
            heappush(waiting, (entries[v], v))
        found.append(variable)
    return tuple(found)


def _entries(variable: int, near: Mapping[int, set[int]], sizes: Mapping[int, int]) -> int:
    return sizes[variable] * math.prod(sizes[v] for v in near[variable])
