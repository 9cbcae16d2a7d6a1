"""All cuts of all branches as arrays of numbers, for schedulers that decide repeatedly. Pure.

A ``CutTable`` evaluates graph and network once: the choices, and the hosts, links and processes of each. ``at``
fills in the changing numbers, the sources' rates and the usage by others, with a few array operations. The
operators behind several sources are the *trunk*, whose place is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from headwater.core.errors import PlacementError
from headwater.placement.cost import ROUNDING
from headwater.placement.cutnumbers import CutLoad, CutShape, Numbers, Takes, Trunk, Ways
from headwater.placement.cuts import TreeBranch
from headwater.placement.network import Link, Tree
from headwater.placement.problem import Bools, Ints, Placement, Problem, Stream
from headwater.placement.queueing import Floats
from headwater.placement.response import rest_of
from headwater.placement.usage import Weights, prices


@dataclass(frozen=True, eq=False)
class CutTable:
    """A problem over a tree of zones as tables; ``trunk``: the hosts of operators in no branch.

    Raises PlacementError if the zones are not a tree.
    """

    problem: Problem
    branches: tuple[TreeBranch, ...]
    trunk: Mapping[int, int]
    weights: Weights = field(default_factory=Weights)

    def __post_init__(self) -> None:
        if not isinstance(self.problem.network, Tree):
            raise PlacementError("schedulers need a tree of zones, and this network is not a tree")

    # ------------------------------------------------------------ choices and placements

    def placement(self, selection: Ints) -> Placement:
        """Return the placement of a selection."""
        placed = dict(self.trunk)
        for branch, choice in zip(self.branches, selection.tolist(), strict=True):
            placed |= zip(branch.operators, branch.choices[choice], strict=True)
        operators = self.problem.application.operators
        return tuple(placed[o] if what.host is None else what.host for o, what in enumerate(operators))

    def selection(self, placement: Placement) -> Ints | None:
        """Return the selection of a placement; None if there is none."""
        found = []
        for branch, numbers in zip(self.branches, self._numbers, strict=True):
            found.append(numbers.get(tuple(placement[o] for o in branch.operators), -1))
        if -1 in found or any(placement[o] != host for o, host in self.trunk.items()):
            return None
        return np.array(found, dtype=np.int64)

    @cached_property
    def _numbers(self) -> tuple[Mapping[tuple[int, ...], int], ...]:
        return tuple({hosts: c for c, hosts in enumerate(branch.choices)} for branch in self.branches)

    @cached_property
    def hosts(self) -> Ints:
        """[b, c, i]: the host of each operator; −1 is padding."""
        width = max((len(branch.operators) for branch in self.branches), default=0)
        most = max((len(branch.choices) for branch in self.branches), default=0)
        found = np.full((len(self.branches), most, width), -1, dtype=np.int64)
        for b, branch in enumerate(self.branches):
            found[b, : len(branch.choices), : len(branch.operators)] = branch.choices
        return found

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The trunk, upstream first."""
        inside = {o for branch in self.branches for o in branch.operators}
        return tuple(o for o in self.problem.application.order if o not in inside)

    def _node_host(self, node: int) -> int:
        pinned = self.problem.application.operators[node].host
        return self.trunk[node] if pinned is None else pinned

    # ------------------------------------------------------------ constant numbers

    @cached_property
    def shape(self) -> CutShape:
        """All constant numbers."""
        application, width = self.problem.application, self.hosts.shape[2]
        nodes = {o: width + n for n, o in enumerate(self.nodes)}
        streams = max(map(len, self._streams), default=0)
        rows = (len(self.branches), streams)
        edge_from, edge_to = np.full(rows, -1, dtype=np.int64), np.full(rows, -1, dtype=np.int64)
        for b, branch in enumerate(self.branches):
            inside = {o: i for i, o in enumerate(branch.operators)}
            for k, (u, v) in enumerate(self._streams[b]):
                edge_from[b, k] = inside[u]
                edge_to[b, k] = inside.get(v, nodes.get(v, -1))
        whats = [application.operators[o] for o, _ in self._processes]
        trunk = [
            -1 if application.operators[o].host is not None else self._process_of(o, self.trunk[o]) for o in self.nodes
        ]
        key, zone = self._keys
        return CutShape(
            choices=np.array([len(branch.choices) for branch in self.branches], dtype=np.int64),
            operators=np.array([len(branch.operators) for branch in self.branches], dtype=np.int64),
            edges=np.array([len(own) for own in self._streams], dtype=np.int64),
            process=self._process,
            edge_from=edge_from,
            edge_to=edge_to,
            way=self._way,
            key=key,
            zone=zone,
            process_host=np.array([host for _, host in self._processes], dtype=np.int64),
            span=np.array([what.span for what in whats]),
            slide=np.array([what.slide for what in whats]),
            window=np.array([what.window for what in whats]),
            shared=self._users > 1,
            trunk_process=np.array(trunk, dtype=np.int64),
            trunk_from=np.array([nodes[u] - width for u, _ in self._trunk_streams], dtype=np.int64),
            trunk_to=np.array([nodes[v] - width for _, v in self._trunk_streams], dtype=np.int64),
            width=width,
            keys=int(key.max(initial=-1)) + 1,
        )

    @cached_property
    def _streams(self) -> tuple[tuple[Stream, ...], ...]:
        """Streams out of each branch's operators, nearest to sinks first."""
        found = []
        for branch in self.branches:
            place = {o: i for i, o in enumerate(branch.operators)}
            own = [stream for stream in self.problem.application.streams if stream[0] in place]
            found.append(tuple(sorted(own, key=lambda stream: -place[stream[0]])))
        return tuple(found)

    @cached_property
    def _trunk_streams(self) -> tuple[Stream, ...]:
        place = {o: n for n, o in enumerate(self.nodes)}
        own = [stream for stream in self.problem.application.streams if stream[0] in place]
        return tuple(sorted(own, key=lambda stream: -place[stream[0]]))

    @cached_property
    def _processes(self) -> tuple[tuple[int, int], ...]:
        """One operator of each process, and its host."""
        return tuple(self._process_numbers[1])

    @cached_property
    def _process(self) -> Ints:
        return self._process_numbers[0]

    def _process_of(self, operator: int, host: int) -> int:
        return self._process_numbers[2][self._logical(operator), host]

    def _logical(self, operator: int) -> str:
        what = self.problem.application.operators[operator]
        return what.logical or what.name

    @cached_property
    def _process_numbers(self) -> tuple[Ints, list[tuple[int, int]], dict[tuple[str, int], int]]:
        numbers: dict[tuple[str, int], int] = {}
        one: list[tuple[int, int]] = []

        def number(operator: int, host: int) -> int:
            process = self._logical(operator), host
            if process not in numbers:
                numbers[process] = len(one)
                one.append((operator, host))
            return numbers[process]

        operators = self.problem.application.operators
        found = np.full(self.hosts.shape, -1, dtype=np.int64)
        for b, branch in enumerate(self.branches):
            for i, o in enumerate(branch.operators):
                if operators[o].host is None:
                    for c, hosts in enumerate(branch.choices):
                        found[b, c, i] = number(o, hosts[i])
        for o, host in self.trunk.items():
            if operators[o].host is None:
                number(o, host)
        return found, one, numbers

    @cached_property
    def _users(self) -> Ints:
        """[host]: how many branches can use it; the trunk counts as many."""
        found = np.zeros(len(self.problem.hosts), dtype=np.int64)
        for b, branch in enumerate(self.branches):
            free = self._process[b, : len(branch.choices)] >= 0
            found[np.unique(self.hosts[b, : len(branch.choices)][free])] += 1
        found[[h for o, h in self.trunk.items() if self.problem.application.operators[o].host is None]] += 2
        return found

    @cached_property
    def _routes(
        self,
    ) -> tuple[Ints, tuple[tuple[int, int, int, int], ...], tuple[tuple[Link, ...] | None, ...]]:
        """Return [b, c, k], the index of a way; for each way branch, stream, hosts; and its route."""
        streams = max(map(len, self._streams), default=0)
        found = np.full((*self.hosts.shape[:2], streams), -1, dtype=np.int64)
        numbers: dict[tuple[int, int, int, int], int] = {}
        for b, branch in enumerate(self.branches):
            place = {o: i for i, o in enumerate(branch.operators)}
            for k, (u, v) in enumerate(self._streams[b]):
                for c, hosts in enumerate(branch.choices):
                    upper = hosts[place[v]] if v in place else self._node_host(v)
                    way = b, k, hosts[place[u]], upper
                    found[b, c, k] = numbers.setdefault(way, len(numbers))
        zone_of, route = self.problem.zone_of, self.problem.network.route
        return found, tuple(numbers), tuple(route(zone_of(w[2]), zone_of(w[3])) for w in numbers)

    @cached_property
    def _way(self) -> Ints:
        return self._routes[0]

    @cached_property
    def _keys(self) -> tuple[Ints, Ints]:
        """Number the streams that leave a zone open to several branches, and return their destinations.

        Rows of several locations that were merged in a zone are in one channel and stay together.
        """
        zones = self.problem.hosts.zone
        names: dict[tuple[str, str, int], set[int]] = {}
        seen: list[tuple[int, int, int, tuple[str, str, int], int]] = []
        for b, branch in enumerate(self.branches):
            place = {o: i for i, o in enumerate(branch.operators)}
            for k, (u, v) in enumerate(self._streams[b]):
                for c, hosts in enumerate(branch.choices):
                    name = self._logical(u), self._logical(v), int(zones[hosts[place[u]]])
                    names.setdefault(name, set()).add(b)
                    to = hosts[place[v]] if v in place else self._node_host(v)
                    seen.append((b, c, k, name, int(zones[to])))
        together = [name for name, users in names.items() if len(users) > 1]
        goes_to: dict[tuple[str, str, int], set[int]] = {}
        for *_, name, zone in seen:
            goes_to.setdefault(name, set()).add(zone)
        numbers = {name: n for n, name in enumerate(n for n in together if len(goes_to[n]) > 1)}
        key, found = (
            np.full(self._way.shape, -1, dtype=np.int64),
            np.full(self._way.shape, -1, dtype=np.int64),
        )
        for b, c, k, name, zone in seen:
            if name in numbers:
                key[b, c, k], found[b, c, k] = numbers[name], zone
        return key, found

    # ------------------------------------------------------------ changing numbers

    @cached_property
    def _per_event(self) -> tuple[Floats, Floats, Floats]:
        """[operator, source]: events in, bytes in and bytes out for an event of each source (eq. 1 to 6)."""
        application = self.problem.application
        rows = (len(application), len(application.sources))
        events, came, gone = np.zeros(rows), np.zeros(rows), np.zeros(rows)
        number = {source: n for n, source in enumerate(application.sources)}
        for o in application.order:
            what = application.operators[o]
            if o in number:
                events[o, number[o]], came[o, number[o]], gone[o, number[o]] = 1.0, what.size, what.size
                continue
            for u in application.upstream[o]:
                selectivity = application.operators[u].selectivity if u not in number else 1.0
                events[o] += application.streams[u, o] * selectivity * events[u]
                came[o] += application.streams[u, o] * gone[u]
            given = what.selectivity * events[o]
            gone[o] = given * what.size if what.size else came[o] * what.selectivity * what.size_ratio
        return events, came, gone

    @cached_property
    def _source_of(self) -> Ints:
        """[b]: its source's number."""
        number = {source: n for n, source in enumerate(self.problem.application.sources)}
        return np.array([number[branch.source] for branch in self.branches], dtype=np.int64)

    @cached_property
    def _branch_ways(self) -> Ways:
        operators, (_, _, gone) = self.problem.application.operators, self._per_event
        rows = []
        for (b, k, lower, upper), route in zip(self._routes[1], self._routes[2], strict=True):
            u, v = self._streams[b][k]
            share = self.problem.application.streams[u, v]
            bits = gone[u, self._source_of[b]] * share * 8
            span = operators[u].span or operators[v].span
            size = float(self.problem.application.size_out[u]) * 8
            once, grows = (0.0, span * bits) if span else (size, 0.0)
            rows.append((b, self._propagation(lower, upper, route), once, grows, route or ()))
        return Ways.of(rows, self.problem.network.zones)

    def _propagation(self, lower: int, upper: int, route: tuple[Link, ...] | None) -> float:
        if route is None:
            return math.inf
        lan = self.problem.hosts.lan_latency
        access = 0.0 if lower == upper else float(lan[lower]) + float(lan[upper])
        return access + sum(self.problem.network.latency(link) for link in route)

    @cached_property
    def _trunk_ways(self) -> tuple[tuple[float, tuple[Link, ...]], ...]:
        """For each stream of the trunk its propagation delay and its route."""
        zone_of, route = self.problem.zone_of, self.problem.network.route
        ends = [(self._node_host(u), self._node_host(v)) for u, v in self._trunk_streams]
        routes = [route(zone_of(lower), zone_of(upper)) for lower, upper in ends]
        return tuple((self._propagation(*e, r), r or ()) for e, r in zip(ends, routes, strict=True))

    @cached_property
    def shared_hosts(self) -> Ints:
        """Hosts of finite memory that several branches can use."""
        return np.flatnonzero((self._users > 1) & np.isfinite(self.problem.hosts.memory))

    @cached_property
    def shared_links(self) -> Ints:
        """Links of finite bandwidth, by the lower zone, that several branches can use."""
        users = np.zeros(self.problem.network.zones, dtype=np.int64)
        for b in range(len(self.branches)):
            own = {z for w, route in zip(*self._routes[1:], strict=True) if w[0] == b for z, _ in route or ()}
            users[list(own)] += 1
        users[[z for _, route in self._trunk_ways for z, _ in route]] += 2
        return np.flatnonzero((users > 1) & np.isfinite(self.network.bandwidth))

    @property
    def network(self) -> Tree:
        """The problem's network, which is a tree."""
        network = self.problem.network
        assert isinstance(network, Tree)
        return network

    @cached_property
    def _of_hosts(self) -> Takes:
        operators, (events, came, _) = self.problem.application.operators, self._per_event
        rows: dict[tuple[int, int, int], tuple[float, float]] = {}
        for b, branch in enumerate(self.branches):
            of = self._source_of[b]
            for i, o in enumerate(branch.operators):
                what = operators[o]
                if what.host is not None:
                    continue
                size = came[o, of] / events[o, of] if events[o, of] else 0.0
                fixed = what.memory + what.overhead * what.window * size
                grows = what.overhead * what.span * came[o, of]
                for c, hosts in enumerate(branch.choices):
                    before = rows.get((b, c, hosts[i]), (0.0, 0.0))
                    rows[b, c, hosts[i]] = before[0] + fixed, before[1] + grows
        return Takes.of(rows, self.hosts.shape[1], self.shared_hosts)

    @cached_property
    def _of_links(self) -> Takes:
        streams, (_, _, gone) = self.problem.application.streams, self._per_event
        ways = [
            (tuple(z for z, _ in route or ()), gone[u, self._source_of[b]] * streams[u, v] * 8)
            for (b, k, *_), route in zip(*self._routes[1:], strict=True)
            for u, v in (self._streams[b][k],)
        ]
        rows: dict[tuple[int, int, int], tuple[float, float]] = {}
        for b, branch in enumerate(self.branches):
            for c in range(len(branch.choices)):
                for way in self._way[b, c, : len(self._streams[b])].tolist():
                    for zone in ways[way][0]:
                        rows[b, c, zone] = 0.0, rows.get((b, c, zone), (0.0, 0.0))[1] + ways[way][1]
        return Takes.of(rows, self.hosts.shape[1], self.shared_links)

    @cached_property
    def _has_way(self) -> Bools:
        """[b, c]: whether all its streams have a route."""
        there = np.array([route is not None for route in self._routes[2]] + [True])
        routed = there[self._way].all(axis=2)
        return np.logical_and(routed, np.arange(routed.shape[1]) < self.shape.choices[:, None])

    @cached_property
    def _prices(self) -> tuple[Floats, Floats, Floats, Floats]:
        """RU per bytes × bytes by host and per bits × bits by link, NRU likewise; and the links into a cloud."""
        parents, cloud = self.network.parents, self.problem.topology.cloud
        memory, _ = prices(self.problem, self.weights)
        _, links = prices(self.problem, Weights(1.0, 1.0))
        nru = np.array([links.get((z, int(p)), 0.0) for z, p in enumerate(parents)])
        return memory, self.weights.network * nru, nru, (cloud[parents] & ~cloud & (parents >= 0)).astype(np.float64)

    @cached_property
    def _branch_events(self) -> tuple[Floats, Floats]:
        """[b, i]: events in per event of the source, and work per event in."""
        events, operators = self._per_event[0], self.problem.application.operators
        count, cpu = np.zeros(self.hosts.shape[::2]), np.zeros(self.hosts.shape[::2])
        for b, branch in enumerate(self.branches):
            for i, o in enumerate(branch.operators):
                count[b, i], cpu[b, i] = events[o, self._source_of[b]], operators[o].cpu
        return count, cpu

    def at(self, load: CutLoad, *, keep_links: bool = True) -> Numbers:
        """Fill in the changing numbers; ``keep_links``: links' bandwidth is a limit, not only a cause of delay."""
        hosts, network = self.problem.hosts, self.network
        rates = np.array([load.rates[source] for source in self.problem.application.sources])
        own = rates[self._source_of]
        shape = self.hosts.shape[:2]
        cells = shape[0] * shape[1]
        memory_price, link_price, nru_price, leads_up = self._prices
        trunk = self._trunk_at(rates)
        memory_left = hosts.memory - load.memory - trunk.memory
        link_left = network.bandwidth - load.links - trunk.bits
        on_hosts, on_links = self._of_hosts, self._of_links
        memory = on_hosts.fixed + on_hosts.grows * own[on_hosts.branch]
        bits = on_links.grows * own[on_links.branch]
        beside = load.memory + 2 * trunk.memory
        cost = on_hosts.summed(memory * (memory + beside[on_hosts.where]) * memory_price[on_hosts.where], cells)
        beside = load.links + 2 * trunk.bits
        usage = bits * (bits + beside[on_links.where])
        cost += on_links.summed(usage * link_price[on_links.where], cells)
        nru = on_links.summed(usage * nru_price[on_links.where], cells)
        over = on_hosts.summed(memory > memory_left[on_hosts.where] * (1 + ROUNDING), cells)
        if keep_links:
            over += on_links.summed(bits > link_left[on_links.where] * (1 + ROUNDING), cells)
        rest = rest_of(network.bandwidth, network.bandwidth - load.links)
        slow = np.divide(1.0, rest, out=np.zeros(len(rest)), where=np.isfinite(rest))
        count, cpu = self._branch_events
        arrived = count * own[:, None]
        return Numbers(
            allowed=self._has_way & (over == 0).reshape(shape),
            work=arrived * cpu,
            rate=arrived,
            memory=on_hosts.filled(memory, cells, len(self.shared_hosts)).reshape(*shape, -1),
            bits=on_links.filled(bits, cells, len(self.shared_links)).reshape(*shape, -1),
            into_cloud=on_links.summed(bits * leads_up[on_links.where], cells).reshape(shape),
            cost=cost.reshape(shape),
            network=nru.reshape(shape),
            delay=self._branch_ways.delays(own[self._branch_ways.branch], slow),
            memory_price=memory_price[self.shared_hosts],
            link_price=link_price[self.shared_links],
            memory_free=memory_left[self.shared_hosts],
            link_free=link_left[self.shared_links] if keep_links else np.full(len(self.shared_links), np.inf),
            cpu=hosts.cpu,
            others=load.processes.astype(np.int64),
            trunk_work=trunk.work,
            trunk_rate=trunk.rate,
            trunk_delay=np.array([p + b * sum(slow[z] for z in way) for p, b, way in trunk.ways]),
            trunk_cost=float((trunk.memory * (trunk.memory + load.memory) * memory_price).sum())
            + float((trunk.bits * (trunk.bits + load.links) * link_price).sum()),
            trunk_cloud=float(trunk.bits @ leads_up),
        )

    def taken(self, load: CutLoad, placement: Placement) -> CutLoad:
        """Return the usage that others have to consider when a placement runs at a load.

        Raises PlacementError if no selection makes the placement.
        """
        selection = self.selection(placement)
        if selection is None:
            raise PlacementError("the placement is not in the table")
        rates = np.array([load.rates[source] for source in self.problem.application.sources])
        own, trunk = rates[self._source_of], self._trunk_at(rates)
        cells = np.arange(len(selection)) * self.hosts.shape[1] + selection
        memory, links = load.memory + trunk.memory, load.links + trunk.bits
        for of, found in ((self._of_hosts, memory), (self._of_links, links)):
            chosen = np.isin(of.cell, cells)
            amounts = of.fixed[chosen] + of.grows[chosen] * own[of.branch[chosen]]
            np.add.at(found, of.where[chosen], amounts)
        running = np.concatenate(
            (self._process[np.arange(len(selection)), selection].ravel(), self.shape.trunk_process)
        )
        processes = load.processes.astype(np.int64)
        np.add.at(processes, self.shape.process_host[np.unique(running[running >= 0])], 1)
        return CutLoad(rates=load.rates, memory=memory, processes=processes, links=links)

    def memory_below(self, load: CutLoad, b: int, choice: int) -> float:
        """Return the bytes that a choice takes of hosts outside of clouds."""
        of, cell = self._of_hosts, b * self.hosts.shape[1] + choice
        outside = ~self.problem.topology.cloud[self.problem.hosts.zone[of.where]]
        rate = load.rates[self.branches[b].source]
        amounts = of.fixed + of.grows * rate
        return float(amounts[(of.cell == cell) & outside].sum())

    def _trunk_at(self, rates: Floats) -> Trunk:
        """Return the usage by the trunk at some rates."""
        operators, (events, came, gone) = self.problem.application.operators, self._per_event
        memory, bits = np.zeros(len(self.problem.hosts)), np.zeros(self.problem.network.zones)
        work, arrived = np.zeros(len(self.nodes)), np.zeros(len(self.nodes))
        for n, o in enumerate(self.nodes):
            if (what := operators[o]).host is None:
                arrived[n] = events[o] @ rates
                came_in = float(came[o] @ rates)
                size = came_in / arrived[n] if arrived[n] else 0.0
                work[n] = arrived[n] * what.cpu
                memory[self.trunk[o]] += what.memory + what.overhead * (what.window * size + what.span * came_in)
        ways = []
        for (u, v), (propagation, route) in zip(self._trunk_streams, self._trunk_ways, strict=True):
            flow = float(gone[u] @ rates) * self.problem.application.streams[u, v] * 8
            for zone, _ in route:
                bits[zone] += flow
            given = float(events[u] @ rates) * operators[u].selectivity
            span = operators[u].span or operators[v].span
            once = span * flow if span else float(gone[u] @ rates) * 8 / given if given else 0.0
            ways.append((propagation, once, tuple(zone for zone, _ in route)))
        return Trunk(memory, bits, work, arrived, tuple(ways))
