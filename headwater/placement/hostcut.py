"""The least traffic out of a host, or into it, whichever operators run there: a bound by minimum cuts. Pure.

An operator on a host with pinned operators may filter what these send, but takes processor and memory there. The
bound is that of Lagrange: capacities have prices, the least of traffic and prices is a minimum cut between the host's
pinned operators and those that cannot run on it, and prices rise where a cut exceeds a capacity. So has the traffic the
other way, for which the host has the same access.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, MutableMapping, Set
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from headwater.placement.cost import ROUNDING
from headwater.placement.problem import Problem, Stream
from headwater.placement.queueing import Floats

_MANY = 1_000
"""Operators above which only streams from or to operators that cannot run on the host count."""
PRICES = 25
"""Prices that are tried."""
_LAST = 3
"""Prices of which the greatest gain is what the following ones are expected to gain."""
_UNIT = 10**9
"""Multiple by which the edges of a cut become whole numbers; they are rounded down, so that the bound holds."""
_SHARED = ("cpu", "memory")
"""Capacities that the operators of a host share; each operator needs the processing rate for itself."""
_INSIDE, _OUTSIDE = -1, -2
"""Nodes of a cut: the operators that are pinned to the host, and those that cannot run on it."""

Prices = MutableMapping[str, float]
"""Of a host's capacities: where a search for a bound begins, and ends."""

_Edges = Mapping[Stream, float]
"""Edges of a cut, and what each takes if it leads out of the host."""


@dataclass(frozen=True, eq=False)
class HostCut:
    """A host and the operators that it could run.

    ``streams``: bits/s of each stream, in the direction of the traffic: turned round for the traffic into the host.
    """

    problem: Problem
    host: int
    streams: Mapping[Stream, float]

    @cached_property
    def pinned(self) -> frozenset[int]:
        """The operators that are pinned to the host."""
        return frozenset(o for o, what in enumerate(self.problem.application.operators) if what.host == self.host)

    @cached_property
    def possible(self) -> frozenset[int]:
        """The operators that the host could run if it ran no others but the pinned ones."""
        return self.pinned | {o for o in self.problem.application.free if self._has_room(o)}

    def _has_room(self, operator: int) -> bool:
        what = self.problem.application.operators[operator]
        if what.hosts is not None and self.host not in what.hosts:
            return False
        return all(
            needs[operator] <= there[self.host] * (1 + ROUNDING) for _, there, _, needs in capacities(self.problem)
        )

    def at_least(self, enough: float, prices: Prices | None = None, tries: int = PRICES) -> float:
        """Return a lower bound of the traffic, bits/s; a search for a higher one ends above ``enough``.

        ``prices``: those of a problem with the same operators and other capacities; they are replaced. ``tries``: how
        many are tried.
        """
        bound = sum(bits for (u, v), bits in self.streams.items() if u in self.pinned and v not in self.possible)
        if bound > enough or len(self.possible) > _MANY or not enough > 0:
            return bound
        prices = {} if prices is None else prices
        traffic, uses = self._cut_by(self.streams, enough), self._uses()
        gains = deque([math.inf], maxlen=_LAST)
        for left in reversed(range(tries)):
            least, inside = _least(traffic, uses, prices)
            gains.append(least * enough - bound)
            bound = max(bound, least * enough)
            over = {name: _across(use, inside) - 1 for name, use in uses.items()}
            has_room = all(x <= 0 for x in over.values())
            if bound > enough or (has_room and _across(traffic, inside) <= 1) or bound + left * max(gains) < enough:
                break
            step = (max(1.05, 1.1 * bound / enough) - least) / (sum(x * x for x in over.values()) or 1.0)
            prices.update({name: max(0.0, prices.get(name, 0.0) + step * x) for name, x in over.items()})
        return bound

    def _uses(self) -> dict[str, _Edges]:
        """Return, of processor, of memory and of the traffic the other way, the share that each cut edge takes."""
        shared = (
            (name, float(all_[self.host]), needs)
            for name, all_, _, needs in capacities(self.problem)
            if name in _SHARED
        )
        found: dict[str, _Edges] = {
            name: {(o, _OUTSIDE): needs[o] / there for o in self.possible - self.pinned}
            for name, there, needs in shared
            if 0 < there < math.inf
        }
        access = float(self.problem.hosts.lan_bandwidth[self.host])
        if 0 < access < math.inf:
            found["back"] = self._cut_by({(v, u): bits for (u, v), bits in self.streams.items()}, access)
        return found

    def _cut_by(self, streams: Mapping[Stream, float], unit: float) -> _Edges:
        """Return the streams that can leave the operators on the host, in multiples of a unit."""
        found: defaultdict[Stream, float] = defaultdict(float)
        for (u, v), bits in streams.items():
            ends = self._node(u), self._node(v)
            if ends[0] != ends[1] and ends[0] != _OUTSIDE and ends[1] != _INSIDE:
                found[ends] += bits / unit
        return found

    def _node(self, operator: int) -> int:
        if operator in self.pinned:
            return _INSIDE
        return operator if operator in self.possible else _OUTSIDE


def capacities(problem: Problem) -> Iterator[tuple[str, Floats, str, list[float]]]:
    """Yield each capacity of hosts: its constraint, the amount of each host, its unit, the need of each operator."""
    hosts, application = problem.hosts, problem.application
    yield "processing rate", hosts.cpu, "events/s", application.work
    yield "cpu", hosts.cpu_free, "work/s", application.work
    yield "memory", hosts.memory_free, "bytes", application.room


def _across(edges: _Edges, inside: Set[int]) -> float:
    """Return the sum of the edges out of a set of nodes."""
    return sum(share for (u, v), share in edges.items() if u in inside and v not in inside)


def _least(traffic: _Edges, uses: Mapping[str, _Edges], prices: Prices) -> tuple[float, Set[int]]:
    """Return the least of traffic and prices, less the prices of whole capacities, and the nodes on the host."""
    edges: defaultdict[Stream, int] = defaultdict(int)
    paid = {name: prices.get(name, 0.0) for name in uses}
    for price, each in ((1.0, traffic), *((paid[name], use) for name, use in uses.items())):
        for ends, share in each.items():
            edges[ends] += int(price * share * _UNIT)
    graph = nx.DiGraph()
    graph.add_nodes_from((_INSIDE, _OUTSIDE))
    graph.add_edges_from((u, v, {"capacity": most}) for (u, v), most in edges.items() if most)
    cut, (inside, _) = nx.minimum_cut(graph, _INSIDE, _OUTSIDE, flow_func=boykov_kolmogorov)
    return cut / _UNIT - math.fsum(paid.values()), inside
