"""The placement of least AL, with a proof: elimination for the bound, a search within capacities. Pure.

Elimination gives the least AL without capacities, and for any prefix of a placement the least that its rest must
add. A depth-first search with these bounds places operators one by one under constraints 9 to 13. Hosts outside
of the search are represented by stand-ins that are at least as good: if no stand-in can lead to less, the
result is the optimum over all hosts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headwater.placement.beam import beam
from headwater.placement.places import Places, from_lists, places
from headwater.placement.placing import Placing
from headwater.placement.prices import priced_tables
from headwater.placement.problem import Placement, Problem
from headwater.placement.queueing import Floats
from headwater.placement.tables import Tables, tables_of_groups, tables_over

_EACH = 4
"""Values that a search in depth tries at least, of each operator: enough to find a placement."""
_LEAST_WIDTH = 20
_NARROW = 2
"""Part of the width with which prices are not needed."""
_CLOSE = 1e-9
"""Relative; a value within this distance of a bound has reached it."""


@dataclass(frozen=True)
class Found:
    """The best placement found, and a lower bound of AL (s).

    ``exhausted``: the search was complete, so ``bound`` is not loose for lack of time. ``nodes``: number of visited
    nodes.
    """

    placement: Placement | None
    latency: float
    bound: float
    exhausted: bool
    nodes: int

    @property
    def proven(self) -> bool:
        """Whether no placement has less."""
        return self.latency <= self.bound * (1 + _CLOSE)

    @property
    def impossible(self) -> bool:
        """Whether no placement keeps all constraints: the search was complete, and all hosts took part in it."""
        return self.placement is None and self.exhausted and math.isinf(self.bound)


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Effort of the search.

    ``entries``: of the largest table; ``nodes``: of one search in depth; ``width``: of one in breadth, summed over
    operators, 0 for none; ``clouds``: number of clouds near each pinned operator. Without proof the search restarts
    with more hosts, up to ``rounds`` times, or until all tables and searches have had ``work`` entries and steps;
    beyond that while no placement is found, up to ``most`` times.
    """

    entries: int = 4_000_000
    nodes: int = 200
    width: int = 7_000
    work: int = 300_000
    rounds: int = 12
    most: int = 20
    clouds: int = 1


def _none() -> tuple[Placement, float] | None:
    return None


def optimal(
    problem: Problem, effort: Effort | None = None, other: Callable[[], tuple[Placement, float] | None] = _none
) -> Found | None:
    """Return the placement of least AL; None if the tables are too large.

    ``other``: returns another placement and its AL; it is asked where the first search finds none, or the searches do
    not end without prices.
    """
    effort = effort or Effort()
    if problem.together:
        return _of_groups(problem, effort)
    listed = from_lists(problem)
    zones = dict.fromkeys(_zones(problem, effort.clouds, listed), 1)
    found: Found | None = None
    prices: dict[int, float] | None = None
    nodes = work = 0
    for turn in range(max(effort.rounds, effort.most)):
        among = places(problem, zones, listed, rests=turn > 0)
        known = (None, math.inf) if found is None else (found.placement, found.latency)
        if prices is None:
            made = tables_over(problem, among, effort.entries)
        else:
            made = priced_tables(problem, among, effort.entries, known[1], prices)
        if made is None:
            break
        tables, domains = made
        outcome = _searched(tables, effort, known, other if turn == 0 else _none)
        nodes += outcome.nodes
        if prices is None and not outcome.complete and effort.width:
            prices = {}
            if (one := other()) is not None and one[1] < outcome.latency:
                outcome = replace(outcome, placement=one[0], latency=one[1])
        # Without stand-ins for all, only the bound of the elimination holds for all hosts.
        bound = outcome.bound if turn > 0 else tables.bound
        bound = min(outcome.latency, max(bound, 0.0 if found is None else found.bound))
        found = Found(outcome.placement, outcome.latency, bound, outcome.complete, nodes)
        work += tables.eliminated.entries + outcome.nodes
        spent = turn + 1 >= effort.rounds or (turn > 0 and work > effort.work)
        lacking = _lacking(problem, among, {o: int(domains[o][v]) for o, v in outcome.relaxed.items()})
        if found.proven or (found.placement is not None and spent) or (turn > 0 and not lacking):
            break
        for zone in lacking:
            zones[zone] = zones.get(zone, 0) + 1
    return found


@dataclass(frozen=True)
class _Outcome:
    """Of a search through tables.

    ``bound``: of placements on their hosts and stand-ins. ``complete``: it is not loose for lack of time. ``relaxed``:
    the values of the best solution with stand-ins.
    """

    placement: Placement | None
    latency: float
    bound: float
    complete: bool
    relaxed: Mapping[int, int]
    nodes: int


def _searched(
    tables: Tables,
    effort: Effort,
    known: tuple[Placement | None, float],
    other: Callable[[], tuple[Placement, float] | None] = _none,
) -> _Outcome:
    """Search in depth, which knows no prices, and in breadth if that does not end in time."""
    if tables.charges:
        return _wide(tables, effort, _Outcome(*known, tables.bound, False, tables.eliminated.solution(), 0))
    search = _Search(tables, max(effort.nodes, _EACH * len(tables.problem.application)), known[1])
    search.run()
    placement, least = search.best or known[0], search.least
    if placement is None and (found := other()) is not None:
        placement, least = found
    deep = _Outcome(placement, least, search.bound, search.exhausted, search.relaxed, search.nodes)
    return deep if deep.complete or not effort.width else _wide(tables, effort, deep)


def _wide(tables: Tables, effort: Effort, before: _Outcome) -> _Outcome:
    """Search in breadth."""
    width = max(_LEAST_WIDTH, effort.width // len(tables.problem.application))
    found = beam(tables, width if tables.charges else width // _NARROW, before.latency)
    if found is None:
        return before
    return _Outcome(
        found.placement or before.placement,
        found.latency,
        max(before.bound, found.bound),
        found.complete,
        found.relaxed or before.relaxed,
        before.nodes + found.seen,
    )


def _of_groups(problem: Problem, effort: Effort) -> Found | None:
    """Return the best of the choices: groups list their hosts, so no stand-ins are needed."""
    tables = tables_of_groups(problem, effort.entries)
    if tables is None:
        return None
    outcome = _searched(tables, effort, (None, math.inf))
    bound = outcome.bound if tables.whole else 0.0  # without all choices nothing is known of the others
    return Found(outcome.placement, outcome.latency, bound, outcome.complete, outcome.nodes)


def _zones(problem: Problem, clouds: int, listed: Sequence[int]) -> list[int]:
    """Return the zones of pinned operators and of listed hosts, those on routes, and the clouds nearest to them."""
    network, application = problem.network, problem.application
    anchors: dict[int, None] = {}
    for operator in application.operators:
        if operator.fixed is not None:
            anchors[problem.zone_of(operator.fixed)] = None
    found = dict.fromkeys(anchors)
    every_cloud = np.flatnonzero(problem.topology.cloud)
    for zone in anchors:
        latency = network.latencies_from(zone)[every_cloud]
        near = every_cloud[np.argsort(latency, kind="stable")[:clouds]] if len(latency) else every_cloud
        for upper in (*anchors, *near.tolist()):
            route = network.route(zone, upper)
            found |= dict.fromkeys(z for link in route or () for z in link)
    return list(found | dict.fromkeys(map(problem.zone_of, listed)))


@dataclass(frozen=True, eq=False)
class _Level:
    """One variable of the search: the cost so far, what each value adds, and the values that are left to try."""

    variable: int
    cost: float
    real: bool
    increments: Floats
    values: Iterator[int]


class _Search:
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


def _lacking(problem: Problem, among: Places, at: Mapping[int, int]) -> list[int]:
    """Return the zones in which more hosts are needed to find less or prove more.

    ``at``: the place of each operator in the best solution with stand-ins.
    """
    found: dict[int, None] = {}
    for operator, place in at.items():
        if among.host[place] >= 0:
            continue
        slot = int(among.slot[place])
        zone = among.zones[slot] if slot < len(among.zones) else _nearest_other(problem, among, at, operator)
        if zone is not None:
            found[zone] = None
    return list(found)


def _nearest_other(problem: Problem, among: Places, at: Mapping[int, int], operator: int) -> int | None:
    """Return the omitted zone that is nearest to an operator's neighbours."""
    application, network = problem.application, problem.network

    def zone_of(other: int) -> int | None:
        host = application.operators[other].host
        if host is not None:
            return problem.zone_of(host)
        slot = int(among.slot[at[other]])
        return among.zones[slot] if slot < len(among.zones) else None

    total = np.zeros(network.zones)
    for u in application.upstream[operator]:
        if (zone := zone_of(u)) is not None:
            total += application.paths_over[u, operator] * network.latencies_from(zone)
    for d in application.downstream[operator]:
        if (zone := zone_of(d)) is not None:
            total += application.paths_over[operator, d] * network.latencies_to(zone)
    total[list(among.zones)] = math.inf
    nearest = int(np.argmin(total))
    return nearest if total[nearest] < math.inf else None
