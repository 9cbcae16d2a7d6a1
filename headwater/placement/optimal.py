"""The placement of least AL, with a proof: elimination for the bound, a search within capacities. Pure.

Elimination gives the least AL without capacities, and for any prefix of a placement the least that its rest must
add. A depth-first search with these bounds places operators one by one within all constraints. Where it does not end in
time, a beam search takes over, and where too much is left out of the beam, one with prices of cpu. Hosts outside of the
searches are represented by stand-ins that are at least as good: if no stand-in can lead to less, the result is the
optimum over all hosts; else the searches begin again with more hosts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headwater.placement.beam import beam
from headwater.placement.depthfirst import DepthFirst
from headwater.placement.places import Places, from_lists, places
from headwater.placement.prices import STEPS, priced_tables
from headwater.placement.problem import Placement, Problem
from headwater.placement.tables import Tables, tables_of_groups, tables_over

_EACH = 4
"""Values that a search in depth tries at least, of each operator: enough to find a placement."""
_DEPTH_STEP, _BEAM_STEP, _STREAM, _ENTRY = 30.0, 0.6, 50.0, 0.007
"""Microseconds of a step of a search, of a stream in tables and of an entry, as measured once: results are the same on
any machine."""
_MOST_ZONES = 16
"""Zones that one search adds for an operator."""
_LEAST_WIDTH = 20
_NARROW = 2
"""Part of the width with which prices are not needed."""
_CLOSE = 1e-9
"""Relative; a value within this distance of a bound has reached it."""


@dataclass(frozen=True)
class Found:
    """The best placement found, and a lower bound of AL (s).

    ``exhausted``: the search was complete, so ``bound`` is not loose for lack of time. ``steps``: number of partial
    placements that were looked at.
    """

    placement: Placement | None
    latency: float
    bound: float
    exhausted: bool
    steps: int

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
    with more hosts, up to ``rounds`` times, or until tables and searches have taken about ``work`` microseconds for
    each operator; beyond that while no placement is found, up to ``most`` times.
    """

    entries: int = 4_000_000
    nodes: int = 200
    width: int = 7_000
    work: int = 1_000
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
    prices: dict[int, float] = {}
    priced, steps, work = False, 0, 0.0
    for turn in range(max(effort.rounds, effort.most)):
        among = places(problem, zones, listed, rests=turn > 0)
        known = (None, math.inf) if found is None else (found.placement, found.latency)
        if priced:
            made = priced_tables(problem, among, effort.entries, known[1], prices)
        else:
            made = tables_over(problem, among, effort.entries)
        if made is None:
            break
        tables, domains = made
        outcome = _searched(tables, effort, known, other if turn == 0 else _none)
        work += outcome.work + _work_of(tables) * (STEPS if priced else 1)
        steps += outcome.steps
        if not (priced or outcome.complete) and effort.width:
            priced = True
            outcome = outcome.with_known(other())
        # Without stand-ins for all, only the bound of the elimination holds for all hosts.
        bound = outcome.bound if turn > 0 else tables.bound
        bound = min(outcome.latency, max(bound, 0.0 if found is None else found.bound))
        found = Found(outcome.placement, outcome.latency, bound, outcome.complete, steps)
        spent = turn + 1 >= effort.rounds or (turn > 0 and work > effort.work * len(problem.application))
        at = {o: int(domains[o][v]) for o, v in outcome.relaxed.items()}
        lacking = _lacking(problem, among, at, min(2**turn, _MOST_ZONES))
        if found.proven or (found.placement is not None and spent) or (turn > 0 and not lacking):
            break
        for zone in lacking:
            zones[zone] = zones.get(zone, 0) + 1
    return found


@dataclass(frozen=True)
class _Outcome:
    """Of a search through tables.

    ``bound``: of placements on their hosts and stand-ins. ``complete``: it is not loose for lack of time. ``relaxed``:
    the values of the best solution with stand-ins. ``work``: in microseconds.
    """

    placement: Placement | None
    latency: float
    bound: float
    complete: bool
    relaxed: Mapping[int, int]
    steps: int = 0
    work: float = 0.0

    def with_known(self, known: tuple[Placement, float] | None) -> _Outcome:
        """Return the same with another placement, if that is better."""
        if known is None or known[1] >= self.latency:
            return self
        return replace(self, placement=known[0], latency=known[1])


def _searched(
    tables: Tables,
    effort: Effort,
    known: tuple[Placement | None, float],
    other: Callable[[], tuple[Placement, float] | None] = _none,
) -> _Outcome:
    """Search in depth, which knows no prices, and in breadth if that does not end in time."""
    if tables.charges:
        return _wide(tables, effort, _Outcome(*known, tables.bound, False, tables.eliminated.solution()))
    search = DepthFirst(tables, max(effort.nodes, _EACH * len(tables.problem.application)), known[1])
    search.run()
    found = search.best or known[0], search.least
    work = _DEPTH_STEP * search.nodes
    deep = _Outcome(*found, search.bound, search.exhausted, search.relaxed, search.nodes, work)
    if deep.placement is None:
        deep = deep.with_known(other())
    return deep if deep.complete or not effort.width else _wide(tables, effort, deep)


def _work_of(tables: Tables) -> float:
    """Return about how long the tables take, in microseconds."""
    return _STREAM * len(tables.problem.application.streams) + _ENTRY * tables.eliminated.entries


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
        before.steps + found.seen,
        before.work + _BEAM_STEP * found.seen,
    )


def _of_groups(problem: Problem, effort: Effort) -> Found | None:
    """Return the best of the choices: groups list their hosts, so no stand-ins are needed."""
    tables = tables_of_groups(problem, effort.entries)
    if tables is None:
        return None
    outcome = _searched(tables, effort, (None, math.inf))
    bound = outcome.bound if tables.whole else 0.0  # without all choices nothing is known of the others
    return Found(outcome.placement, outcome.latency, bound, outcome.complete, outcome.steps)


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


def _lacking(problem: Problem, among: Places, at: Mapping[int, int], count: int) -> list[int]:
    """Return the zones in which more hosts are needed to find less or prove more.

    ``at``: the place of each operator in the best solution with stand-ins. ``count``: of omitted zones for each.
    """
    found: dict[int, None] = {}
    for operator, place in at.items():
        if among.host[place] >= 0:
            continue
        slot = int(among.slot[place])
        inside = slot < len(among.zones)
        found |= dict.fromkeys([among.zones[slot]] if inside else _nearest_others(problem, among, at, operator, count))
    return list(found)


def _nearest_others(problem: Problem, among: Places, at: Mapping[int, int], operator: int, count: int) -> list[int]:
    """Return the omitted zones that are nearest to an operator's neighbours."""
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
    nearest = np.argsort(total, kind="stable")[:count]
    return [int(zone) for zone in nearest if total[zone] < math.inf]
