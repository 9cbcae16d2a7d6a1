"""Random small placement problems of every kind, their optimum by exhaustive search, and strategies' answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from headwater.placement.cost import evaluate, shortages
from headwater.placement.network import Mesh, Network, Tree
from headwater.placement.problem import Application, Hosts, PlacedOperator, Placement, Problem, Topology
from headwater.placement.routed import DirectedLink, Routed
from headwater.placement.solve import solve
from headwater.placement.why import Unplaceable
from headwater.testing.generate import series_parallel


def mixed(seed: int, *, operators: int = 5, hosts: int = 8, zones: int = 4, tight: bool = False) -> Problem:
    """Draw hosts of different strength, some of them loaded; a mesh or a tree; links of different bandwidths."""
    drawn = np.random.default_rng(seed)
    tree = seed % 3 == 0
    network = _tree(drawn, zones) if tree else _mesh(drawn, zones, uniform=seed % 3 == 1)
    zone = np.sort(np.append(np.arange(zones), drawn.integers(zones, size=hosts - zones))).astype(np.int32)
    cpu = drawn.choice([100.0, 150.0, 400.0], hosts)
    memory = drawn.choice([50.0, 100.0, 1000.0], hosts)
    loaded = drawn.random(hosts) < 0.3
    cloud = np.arange(zones) >= (zones - 1 if tree else zones - max(1, zones // 3))
    central = cloud[zone]
    topology = Topology(
        Hosts(
            cpu=cpu,
            memory=memory,
            zone=zone,
            lan_latency=np.where(central, 0.0, np.round(drawn.uniform(0.001, 0.01, hosts), 3)),
            lan_bandwidth=np.where(central, np.inf, drawn.choice([3000.0, 8000.0], hosts)),
            cpu_used=np.where(loaded, cpu * 0.6, 0.0),
            memory_used=np.where(loaded, memory * 0.5, 0.0),
        ),
        network,
        cloud,
    )
    return Problem(topology, _application(drawn, operators, topology, tree=tree, tight=tight))


def routed(seed: int, *, operators: int = 5, tight: bool = False) -> Problem:
    """Draw AELS's own topology: edges below two clouds, ways up and down, links between sites and between clouds.

    Sources are at edges, sinks in clouds and at edges: actuators, to which rows go down. Some links lead one way only.
    """
    drawn = np.random.default_rng(seed)
    given = mixed(3 * seed + 1, operators=operators, hosts=6, zones=4, tight=tight)
    pairs = [(0, 2), (1, 3), (2, 3)] + [(0, 1)] * int(drawn.random() < 0.5) + [(0, 3)] * int(drawn.random() < 0.3)
    links: dict[tuple[int, int], DirectedLink] = {}
    for lower, upper in pairs:
        for link in ((lower, upper), (upper, lower)):
            bandwidth = float(drawn.choice([2_000.0, 20_000.0]))
            used = float(drawn.choice([0.0, 0.3])) * bandwidth
            latency = float(drawn.uniform(0.01, 0.09))
            if link[0] < link[1] or drawn.random() < 0.8:
                links[link] = DirectedLink(latency=latency, bandwidth=bandwidth, used=used)
    topology = replace(given.topology, network=Routed(4, links), cloud=np.arange(4) >= 2)
    return replace(given, topology=topology)


def _mesh(drawn: np.random.Generator, zones: int, *, uniform: bool) -> Network:
    seconds = np.triu(drawn.uniform(0.05, 0.09, (zones, zones)), 1)
    bandwidth = np.array(20_000.0) if uniform else drawn.choice([2_000.0, 20_000.0], (zones, zones))
    return Mesh(seconds + seconds.T, bandwidth)


def _tree(drawn: np.random.Generator, zones: int) -> Network:
    """Draw a tree: the last zone is the root; half of the others are its children, the rest are below those."""
    middle = max(1, (zones - 1) // 2)
    low = zones - 1 - middle
    parents = [low + int(drawn.integers(middle)) for _ in range(low)] + [zones - 1] * middle + [-1]
    return Tree(
        np.array(parents, dtype=np.int32),
        drawn.uniform(0.01, 0.09, zones),
        drawn.choice([2_000.0, 20_000.0], zones),
    )


def _application(drawn: np.random.Generator, count: int, topology: Topology, *, tree: bool, tight: bool) -> Application:
    graph = series_parallel(count, seed=int(drawn.integers(1_000_000)))
    readers = {o: sum(u == o for u, _ in graph) for o in range(count)}
    sources = {u for u, _ in graph} - {v for _, v in graph}
    low = np.flatnonzero(~topology.cloud[topology.hosts.zone])
    root = np.flatnonzero(topology.cloud[topology.hosts.zone])
    operators = []
    for o in range(count):
        pinned = None
        if o in sources:
            pinned = int(drawn.choice(low))
        elif not readers[o]:
            pinned = int(drawn.choice(root if tree or drawn.random() < 0.5 else low))
        operators.append(
            PlacedOperator(
                name=f"o{o}",
                cpu=0.0 if pinned is not None else float(drawn.uniform(1, 12 if tight else 4)),
                memory=float(drawn.uniform(1, 60 if tight else 20)),
                selectivity=float(drawn.uniform(0.3, 1.2)),
                size_ratio=float(drawn.uniform(0.3, 1.0)),
                window=float(drawn.choice([0.0, 3.0])),
                rate=10.0 if pinned is not None else 0.0,
                size=float(drawn.uniform(1, 20)),
                host=pinned,
            )
        )
    return Application(tuple(operators), {(u, v): 1.0 / readers[u] for u, v in graph})


def every(problem: Problem) -> Iterator[Placement]:
    """Yield all placements, valid and invalid."""
    choices = [range(len(problem.hosts)) if o.host is None else (o.host,) for o in problem.application.operators]
    yield from product(*choices)


def best(problem: Problem) -> float:
    """Return the least AL of all valid placements; ∞ if there is none."""
    found = [
        latency
        for p in every(problem)
        if (latency := evaluate(problem, p).latency) < math.inf and not shortages(problem, p)
    ]
    return min(found, default=math.inf)


def grouped(seed: int, *, hosts: int, size: int = 2) -> Problem:
    """Draw a chain of one or two groups between pinned sources and a sink, with some hosts on each of two levels."""
    drawn = np.random.default_rng(seed)
    given = mixed(seed, operators=3, hosts=2 * hosts + 2, zones=4, tight=seed % 2 == 0)
    level = np.array([0, 0, 1, 1], dtype=np.int32)
    topology = replace(given.topology, level=level)
    zone_level = level[topology.hosts.zone]
    at = [np.flatnonzero(zone_level == n) for n in (0, 1)]
    operators, streams, groups = [], {}, []
    before: list[int] = []
    for _ in range(size):
        operators.append(
            PlacedOperator(name=f"source {len(operators)}", rate=4.0, size=8.0, host=int(drawn.choice(at[0])))
        )
        before.append(len(operators) - 1)
    for step in range(1 + seed % 2 if size == 2 else 1):
        now = []
        for place in range(size):
            of_levels = [drawn.choice(among, min(len(among), hosts), replace=False).tolist() for among in at]
            cpu, memory = float(drawn.choice([5.0, 20.0])), float(drawn.choice([10.0, 60.0]))
            operators.append(
                PlacedOperator(
                    name=f"o{step} at {place}",
                    cpu=cpu,
                    memory=memory,
                    selectivity=0.5,
                    hosts=frozenset(host for among in of_levels for host in among),
                )
            )
            streams[before[place], len(operators) - 1] = 1.0
            now.append(len(operators) - 1)
        groups.append(tuple(now))
        before = now
    operators.append(PlacedOperator(name="sink", host=int(drawn.choice(at[1]))))
    streams |= {(o, len(operators) - 1): 1.0 for o in before}
    return Problem(topology, Application(tuple(operators), streams), together=tuple(groups))


def answer(problem: Problem, strategy: str, **options: object) -> Placement | None:
    """Return the placement of a strategy; None if it finds none."""
    try:
        return solve(problem, strategy, **options).placement
    except Unplaceable:
        return None
