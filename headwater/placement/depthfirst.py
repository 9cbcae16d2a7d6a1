"""A depth-first search through cost tables, within all constraints. Pure.

The tables give for any prefix of a placement the least that its rest must add. Values are tried in the order of these
bounds, under constraints 9 to 13.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headwater.placement.placing import Placing
from headwater.placement.problem import Placement
from headwater.placement.queueing import Floats
from headwater.placement.tables import Tables


@dataclass(frozen=True, eq=False)
class _Level:
    """One variable of the search: the cost so far, what each value adds, and the values that are left to try."""

    variable: int
    cost: float
    real: bool
    increments: Floats
    values: Iterator[int]


class DepthFirst:
    """Depth-first search through the tables; a solution on a stand-in is only a bound.

    ``least``: AL of ``best``, or the value known before. ``nodes``: values tried. ``relaxed``: the values of the
    best solution with stand-ins.
    """

    def __init__(self, tables: Tables, nodes: int, known: float) -> None:
        self.tables = tables
        self.best: Placement | None = None
        self.least = known
        self.nodes = 0
        self.relaxed: dict[int, int] = {}
        self._relaxed_cost = math.inf
        self._most = nodes
        self._placing = Placing(tables.problem)
        self._values: dict[int, int] = {}

    @property
    def exhausted(self) -> bool:
        """Whether the search was complete."""
        return self.nodes <= self._most

    @property
    def bound(self) -> float:
        """Lower bound of any placement, if all omitted hosts have stand-ins."""
        return min(self.least, self._relaxed_cost) if self.exhausted else self.tables.bound

    def run(self) -> None:
        """Search."""
        inside = {o for group in self.tables.members.values() for o in group}
        for operator, what in enumerate(self.tables.problem.application.operators):
            if what.host is not None and operator not in inside:
                if not self._placing.meets(operator, what.host):
                    return
                self._placing.put(operator, what.host)
        self._go_through()

    def _go_through(self) -> None:
        """Try the values of one variable after the other. No recursion: there may be thousands of variables."""
        order = self.tables.eliminated.order
        if not order:
            self._arrive(self.tables.bound, real=True)
            return
        levels = [self._level(0, self.tables.bound, real=True)]
        while levels and self.exhausted:
            level = levels[-1]
            self._undo(level)
            found = self._next_value(level)
            if found is None:
                levels.pop()
                continue
            cost, real = found
            if len(levels) == len(order):
                self._arrive(cost, real=real)
            else:
                levels.append(self._level(len(levels), cost, real=real))

    def _level(self, depth: int, cost: float, *, real: bool) -> _Level:
        variable = self.tables.eliminated.order[depth]
        increments = self.tables.eliminated.increments(variable, self._values)
        return _Level(variable, cost, real, increments, iter(np.argsort(increments, kind="stable").tolist()))

    def _undo(self, level: _Level) -> None:
        """Take back the present value of a variable, if it has one."""
        if (value := self._values.pop(level.variable, None)) is None:
            return
        if self.tables.choices[level.variable][value][0] >= 0:
            self._placing.take_all_back(self.tables.members[level.variable])

    def _next_value(self, level: _Level) -> tuple[float, bool] | None:
        """Give a variable its next value that may lead to less; return the cost, and whether all hosts are real."""
        members, choices = self.tables.members[level.variable], self.tables.choices[level.variable]
        for value in level.values:
            then = level.cost + float(level.increments[value])
            if not then < (self.least if level.real else min(self.least, self._relaxed_cost)):
                return None
            hosts = choices[value]
            stands_in = hosts[0] < 0
            if stands_in and not then < self._relaxed_cost:
                continue
            self.nodes += 1
            if not self.exhausted:
                return None
            if not stands_in and not self._placing.put_all(members, hosts):
                continue
            self._values[level.variable] = value
            return then, level.real and not stands_in
        return None

    def _arrive(self, cost: float, *, real: bool) -> None:
        if real:
            self.best, self.least = self._placing.placement(), cost
        else:
            self.relaxed, self._relaxed_cost = dict(self._values), cost
