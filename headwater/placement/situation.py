"""Input of a scheduler: a table with current numbers, the limits, the running placement. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headwater.placement.cost import ROUNDING
from headwater.placement.cutloops import Space, space
from headwater.placement.cutnumbers import CutLoad, Numbers
from headwater.placement.cutsearch import Loops, loops
from headwater.placement.cuttable import CutTable
from headwater.placement.problem import Ints
from headwater.placement.queueing import Floats

FOR_EVER = 1e6
"""Seconds; a longer time counts as infinite."""
_MANY = 2_000
"""Choices of all branches from which compilation pays off for one decision."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a placement (eq. 31 to 33), in addition to the hosts' memory.

    ``max_latency``: Tmax, s. ``max_bandwidth``: Bmax, bits/s into clouds; ``min_bandwidth``: TRCS's Bmin (the paper's).
    ``links``: whether links' bandwidth is a limit; else full links only add delay, as in the paper.
    ``confidence``: the probability with which ``tsoo_robust`` keeps the limits.
    """

    max_latency: float = math.inf
    max_bandwidth: float = math.inf
    min_bandwidth: float = 50 * 8e6
    links: bool = True
    confidence: float = 0.9

    @property
    def most_seconds(self) -> float:
        """Tmax, capped: a queue that grows without limit violates every limit."""
        return min(self.max_latency, FOR_EVER)


@dataclass(frozen=True)
class Measured:
    """A selection's RU, B (bits/s), T for each branch (s), and whether hosts and links have room for it."""

    cost: float
    bandwidth: float
    times: Floats
    fits: bool

    @property
    def worst(self) -> float:
        """T of eq. 15."""
        return float(self.times.max(initial=0.0))


@dataclass(frozen=True)
class ScheduleDecision:
    """The choice of a scheduler.

    ``kept``: whether it is within all limits. ``bound``: a lower bound of the cost, ∞ if no selection is within
    the limits; None: unknown. ``steps``: of the search. ``chance``: the probability that the limits are kept; None:
    unknown.
    """

    selection: Ints
    measured: Measured
    kept: bool
    bound: float | None = None
    steps: int = 0
    chance: float | None = None


@dataclass(frozen=True, eq=False)
class Situation:
    """Input of a decision; ``current``: the running selection, None: none runs.

    ``compiled``: whether loops are machine code; None: if it pays off. ``possible``: equally probable loads that may
    come instead of ``load``, the forecast; without any the load is known.
    """

    table: CutTable
    load: CutLoad
    limits: Limits
    current: Ints | None = None
    compiled: bool | None = None
    possible: tuple[CutLoad, ...] = ()

    @cached_property
    def numbers(self) -> Numbers:
        """The current numbers."""
        return self.table.at(self.load, keep_links=self.limits.links)

    @cached_property
    def loops(self) -> Loops:
        many = int(self.table.shape.choices.sum()) >= _MANY
        return loops(many if self.compiled is None else self.compiled)

    @cached_property
    def space(self) -> Space:
        """Working memory of the loops, with the parts that do not depend on a selection."""
        found = space(self.table.shape, self.numbers)
        self.loops.find_lone(self.table.shape, self.numbers, found)
        return found

    def measure(self, selection: Ints) -> Measured:
        """Return the measures of a selection."""
        times = np.zeros(len(selection))
        cost, bandwidth, fits = self.loops.measure(self.table.shape, self.numbers, self.space, selection, times)
        return Measured(float(cost), float(bandwidth), times, bool(fits))

    def keeps(self, measured: Measured) -> bool:
        """Return whether all limits are met."""
        return measured.fits and self.is_narrow(measured) and self.is_quick(measured)

    def is_narrow(self, measured: Measured) -> bool:
        """Return whether B is within its limit."""
        return measured.bandwidth <= self.limits.max_bandwidth * (1 + ROUNDING)

    def is_quick(self, measured: Measured) -> bool:
        """Return whether T is within its limit."""
        return measured.worst <= self.limits.most_seconds * (1 + ROUNDING)

    def decided(self, selection: Ints, *, bound: float | None = None, steps: int = 0) -> ScheduleDecision:
        """Return the decision for a selection."""
        measured = self.measure(selection)
        return ScheduleDecision(selection, measured, self.keeps(measured), bound, steps)

    @cached_property
    def moved(self) -> Ints:
        """[b, c]: the number of operators that a choice moves (section 4.1)."""
        hosts = self.table.hosts
        if self.current is None:
            return np.zeros(hosts.shape[:2], dtype=np.int64)
        now = hosts[np.arange(len(self.current)), self.current]
        found: Ints = (hosts != now[:, None]).sum(axis=2)
        return found

    @cached_property
    def all_up(self) -> Ints:
        """All operators as far up as allowed: in the cloud."""
        return np.array([self._extreme(b, up=True) for b in range(len(self.table.branches))], dtype=np.int64)

    @cached_property
    def all_down(self) -> Ints:
        """All operators as far down as allowed, and as hosts have room for each branch by itself."""
        return np.array([self._extreme(b, up=False) for b in range(len(self.table.branches))], dtype=np.int64)

    def _extreme(self, b: int, *, up: bool) -> int:
        heights = self.heights[b].sum(axis=1)
        allowed = np.flatnonzero(self.numbers.allowed[b])
        among = allowed if len(allowed) else np.arange(self.table.shape.choices[b])
        return int(among[np.argmax(heights[among]) if up else np.argmin(heights[among])])

    @cached_property
    def heights(self) -> Mapping[int, Ints]:
        """For each branch [c, i]: the height of an operator in the tree; the root is the highest."""
        table = self.table
        tree, zones = table.network, table.problem.hosts.zone
        depth = np.array([len(tree.above(z)) for z in range(tree.zones)])
        return {
            b: -depth[zones[table.hosts[b, : len(branch.choices), : len(branch.operators)]]]
            for b, branch in enumerate(table.branches)
        }
