"""The least traffic out of a host, or into it, whichever operators run there: a bound by minimum cuts. Pure.

An operator on a host with pinned operators may filter what these send, but takes processor and memory there. The
bound is that of Lagrange: capacities have prices, the least of traffic and prices is a minimum cut between the host's
pinned operators and those that cannot run on it, and prices rise where a cut exceeds a capacity.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import networkx as nx

from headwater.placement.cost import ROUNDING
from headwater.placement.problem import Problem, Stream

_MANY = 1_000
"""Operators above which only streams from or to operators that cannot run on the host count."""
_PRICES = 25
"""Prices that are tried."""
_UNIT = 10**9
"""Of capacities in a cut: whole numbers, rounded down, so that the bound holds."""
_INSIDE, _OUTSIDE = -1, -2
"""Nodes of a cut: the operators that are pinned to the host, and those that cannot run on it."""


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
        application, hosts = self.problem.application, self.problem.hosts
        what = application.operators[operator]
        if what.hosts is not None and self.host not in what.hosts:
            return False
        if not application.work[operator] <= float(hosts.cpu[self.host]) * (1 + ROUNDING):
            return False
        return all(need[operator] <= there * (1 + ROUNDING) for need, there in self._capacities)

    @cached_property
    def _capacities(self) -> tuple[tuple[Mapping[int, float], float], ...]:
        """The need of each operator, and the amount, of processor and memory."""
        application, hosts = self.problem.application, self.problem.hosts
        work, room = ({o: each[o] for o in application.free} for each in (application.work, application.room))
        return (work, float(hosts.cpu_free[self.host])), (room, float(hosts.memory_free[self.host]))

    def at_least(self, enough: float) -> float:
        """Return a lower bound of the traffic, bits/s; a search for a higher one ends above ``enough``."""
        bound = sum(bits for (u, v), bits in self.streams.items() if u in self.pinned and v not in self.possible)
        if bound > enough or len(self.possible) > _MANY or not enough > 0:
            return bound
        shares = [
            {o: need[o] / there for o in self.possible - self.pinned}
            for need, there in self._capacities
            if 0 < there < math.inf
        ]
        prices = [0.0] * len(shares)
        for _ in range(_PRICES):
            least, chosen = self._least(shares, prices, enough)
            bound = max(bound, least)
            over = [sum(share[o] for o in chosen) - 1 for share in shares]
            if bound > enough or all(x <= 0 for x in over):
                break
            step = (max(1.05 * enough, 1.1 * bound) - least) / enough / sum(x * x for x in over)
            prices = [max(0.0, price + step * x) for price, x in zip(prices, over, strict=True)]
        return bound

    def _least(self, shares: list[dict[int, float]], prices: list[float], unit: float) -> tuple[float, Collection[int]]:
        """Return the least of traffic and prices, less the price of the capacities, and the operators on the host.

        Prices are those of a whole capacity, in multiples of ``unit``.
        """
        edges: defaultdict[tuple[int, int], int] = defaultdict(int)
        for (u, v), bits in self.streams.items():
            ends = self._node(u), self._node(v)
            if ends[0] != ends[1] and ends[0] != _OUTSIDE and ends[1] != _INSIDE:
                edges[ends] += int(bits / unit * _UNIT)
        for o in self.possible - self.pinned:
            edges[o, _OUTSIDE] += int(sum(p * share[o] for p, share in zip(prices, shares, strict=True)) * _UNIT)
        graph = nx.DiGraph()
        graph.add_nodes_from((_INSIDE, _OUTSIDE))
        graph.add_edges_from((u, v, {"capacity": most}) for (u, v), most in edges.items())
        cut, (inside, _) = nx.minimum_cut(graph, _INSIDE, _OUTSIDE)
        return (cut / _UNIT - sum(prices)) * unit, inside - {_INSIDE}

    def _node(self, operator: int) -> int:
        if operator in self.pinned:
            return _INSIDE
        return operator if operator in self.possible else _OUTSIDE
