"""The placement of least AL, with a proof: elimination for the bound, a search within capacities. Pure.

Elimination gives the least AL there could be if hosts and links had room for everything, and for any start
of a placement the least that its rest must add. A depth-first search with these as bounds puts operators one
by one and keeps to constraints 9 to 13. Hosts that it does not look at have stand-ins that are at least as
good: as long as none of these could lead to less, what is found is the optimum over all hosts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headwater.placement.cost import transfer_time
from headwater.placement.elimination import Eliminated, Factor, eliminate
from headwater.placement.places import Places, places
from headwater.placement.placing import Placing
from headwater.placement.problem import Ints, Placement, Problem, Stream
from headwater.placement.queueing import Floats

_CLOSE = 1e-9
"""Relative; what is nearer than this to a bound has reached it."""


@dataclass(frozen=True)
class Found:
    """The best placement that was found, and the least AL (s) that any could have.

    ``exhausted``: the search came to its end, so that ``bound`` is not loose for want of time. ``nodes``: how
    many it took.
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


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How far the search goes. ``entries``: of the largest table; ``nodes``: of one search; ``rounds``: how
    often it is begun again with more hosts; ``clouds``: how many near each pinned operator are looked at."""

    entries: int = 4_000_000
    nodes: int = 4_000
    rounds: int = 6
    clouds: int = 1


def optimal(problem: Problem, effort: Effort | None = None) -> Found | None:
    """Find the placement of least AL; None where tables get too large for it."""
    effort = effort or Effort()
    zones = dict.fromkeys(_zones(problem, effort.clouds), 1)
    found: Found | None = None
    nodes = 0
    for turn in range(effort.rounds):
        among = places(problem, zones, rests=turn > 0)
        tables = _Tables.of(problem, among, effort.entries)
        if tables is None:
            break
        search = _Search(tables, effort.nodes, math.inf if found is None else found.latency)
        search.run()
        nodes += search.nodes
        placement = search.best or (None if found is None else found.placement)
        # Without stand-ins for all, only what elimination gives holds for all hosts.
        bound = search.bound if turn > 0 else tables.bound
        bound = min(search.least, max(bound, 0.0 if found is None else found.bound))
        found = Found(placement, search.least, bound, search.exhausted, nodes)
        if found.proven or (turn > 0 and not search.exhausted):
            break
        for zone in search.lacking():
            zones[zone] = zones.get(zone, 0) + 1
    return found


def _zones(problem: Problem, clouds: int) -> list[int]:
    """List the zones of what is pinned, those on the ways between them, and the clouds nearest to them."""
    network, application = problem.network, problem.application
    anchors: dict[int, None] = {}
    for operator in application.operators:
        if operator.host is not None:
            anchors[problem.zone_of(operator.host)] = None
        elif operator.zones is not None and len(operator.zones) == 1:
            anchors |= dict.fromkeys(operator.zones)
    found = dict.fromkeys(anchors)
    every_cloud = np.flatnonzero(problem.topology.cloud)
    for zone in anchors:
        latency = network.latencies_from(zone)[every_cloud]
        near = every_cloud[np.argsort(latency, kind="stable")[:clouds]] if len(latency) else every_cloud
        for upper in (*anchors, *near.tolist()):
            route = network.route(zone, upper)
            found |= dict.fromkeys(z for link in route or () for z in link)
    return list(found)


@dataclass(frozen=True, eq=False)
class _Tables:
    """An elimination, and what its variables' values are: ``domains`` has places for each free operator."""

    problem: Problem
    among: Places
    domains: Mapping[int, Ints]
    eliminated: Eliminated
    bound: float

    @classmethod
    def of(cls, problem: Problem, among: Places, entries: int) -> _Tables | None:
        application = problem.application
        pinned = {o: w.host for o, w in enumerate(application.operators) if w.host is not None}
        costs = {o: application.paths[o] * among.service(o) for o in application.free}
        pairs: dict[Stream, Floats] = {}
        always = 0.0
        for u, v in application.streams:
            paths = application.paths_over[u, v]
            if u in pinned and v in pinned:
                always += paths * transfer_time(problem, (u, v), pinned[u], pinned[v])
            elif u in pinned:
                costs[v] = costs[v] + paths * among.transfer((u, v))[among.number(pinned[u])]
            elif v in pinned:
                costs[u] = costs[u] + paths * among.transfer((u, v))[:, among.number(pinned[v])]
            else:
                pairs[u, v] = paths * among.transfer((u, v))
        domains = {o: np.flatnonzero(np.isfinite(cost)).astype(np.int32) for o, cost in costs.items()}
        if not all(len(domain) for domain in domains.values()):
            domains = {o: domain if len(domain) else np.zeros(1, np.int32) for o, domain in domains.items()}
        factors: list[Factor] = [((o,), cost[domains[o]]) for o, cost in costs.items()]
        factors += [((u, v), table[np.ix_(domains[u], domains[v])]) for (u, v), table in pairs.items()]
        sizes = {o: len(domain) for o, domain in domains.items()}
        eliminated = eliminate(sizes, factors, entries)
        if eliminated is None:
            return None
        return cls(problem, among, domains, eliminated, eliminated.bound + always)


class _Search:
    """Depth first through the tables; what is on a stand-in is no placement, but bounds what could be.

    ``least``: AL of ``best``, or what was known before. ``nodes``: values tried.
    """

    def __init__(self, tables: _Tables, nodes: int, known: float) -> None:
        self.tables = tables
        self.best: Placement | None = None
        self.least = known
        self.nodes = 0
        self._most = nodes
        self._placing = Placing(tables.problem)
        self._values: dict[int, int] = {}
        self._relaxed = math.inf
        """The least cost of a leaf with stand-ins."""
        self._stood_in: dict[int, int] = {}
        """The places of that leaf."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing was left out for want of time."""
        return self.nodes <= self._most

    @property
    def bound(self) -> float:
        """The least that any placement can have, if there are stand-ins for all hosts left out."""
        return min(self.least, self._relaxed) if self.exhausted else self.tables.bound

    def run(self) -> None:
        """Search."""
        for operator, what in enumerate(self.tables.problem.application.operators):
            if what.host is not None:
                if not self._placing.meets(operator, what.host):
                    return
                self._placing.put(operator, what.host)
        self._go_on(0, self.tables.bound, real=True)

    def _go_on(self, depth: int, cost: float, *, real: bool) -> None:
        eliminated = self.tables.eliminated
        if depth == len(eliminated.order):
            self._arrive(cost, real=real)
            return
        operator = eliminated.order[depth]
        increments = eliminated.increments(operator, self._values)
        domain, hosts = self.tables.domains[operator], self.tables.among.host
        for value in np.argsort(increments, kind="stable").tolist():
            then = cost + float(increments[value])
            if not then < (self.least if real else min(self.least, self._relaxed)):
                break
            host = int(hosts[domain[value]])
            if host < 0 and not then < self._relaxed:
                continue
            self.nodes += 1
            if not self.exhausted:
                return
            if host >= 0 and not self._placing.meets(operator, host):
                continue
            self._values[operator] = value
            if host >= 0:
                self._placing.put(operator, host)
            self._go_on(depth + 1, then, real=real and host >= 0)
            if host >= 0:
                self._placing.take_back(operator)
            del self._values[operator]
            if not self.exhausted:
                return

    def _arrive(self, cost: float, *, real: bool) -> None:
        if real:
            self.best, self.least = self._placing.placement(), cost
        else:
            self._relaxed = cost
            self._stood_in = {o: int(self.tables.domains[o][v]) for o, v in self._values.items()}

    def lacking(self) -> list[int]:
        """Name the zones of which more hosts would have to be looked at to find less or prove more."""
        among = self.tables.among
        found: dict[int, None] = {}
        for operator, place in self._stood_in.items():
            if among.host[place] >= 0:
                continue
            slot = int(among.slot[place])
            if slot < len(among.zones):
                found[among.zones[slot]] = None
            elif (zone := self._nearest_other(operator)) is not None:
                found[zone] = None
        return list(found)

    def _nearest_other(self, operator: int) -> int | None:
        """Find the zone, of those not looked at, that is nearest to an operator's neighbours."""
        among, problem = self.tables.among, self.tables.problem
        application, network = problem.application, problem.network
        total = np.zeros(network.zones)
        for u in application.upstream[operator]:
            if (zone := self._zone(u)) is not None:
                total += application.paths_over[u, operator] * network.latencies_from(zone)
        for d in application.downstream[operator]:
            if (zone := self._zone(d)) is not None:
                total += application.paths_over[operator, d] * network.latencies_to(zone)
        total[list(among.zones)] = math.inf
        nearest = int(np.argmin(total))
        return nearest if total[nearest] < math.inf else None

    def _zone(self, operator: int) -> int | None:
        """Give the zone of an operator in the leaf with stand-ins."""
        host = self.tables.problem.application.operators[operator].host
        if host is not None:
            return self.tables.problem.zone_of(host)
        slot = int(self.tables.among.slot[self._stood_in[operator]])
        return self.tables.among.zones[slot] if slot < len(self.tables.among.zones) else None
