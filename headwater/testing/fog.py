"""Seeded problems like those of TSOO's evaluation: fog nodes under a cloud, two applications. Pure.

"Adaptive scheduling of continuous operators for IoT edge analytics", section 6.2. Where the text contradicts
itself or is silent: in table 6 the fog's CPU and RAM are swapped; a megabyte costs a million instructions, so
that memory (eq. 3) and CPU (eq. 19) are one demand; figure 7's graphs are a diamond of two branches (9
operators) and one of three (11); windows do not overlap; the slowest device decides on the delay to the fog.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headwater.placement.network import Tree
from headwater.placement.problem import Application, Hosts, PlacedOperator, Problem, Stream, Topology
from headwater.placement.queueing import Floats

DEVICE_BYTES = 6_000.0
"""Bytes/s of a device, which sends one event a second."""
DEVICES = tuple(round(n) for n in np.linspace(5_000, 75_000, 11))
"""The eleven numbers of devices, M1 to M11."""
Cloud = Literal["aws", "vm"]
Split = Literal["spacing", "norm"]
Course = Literal["walk", "day", "burst"]


@dataclass(frozen=True, kw_only=True)
class FogApplication:
    """A graph, its share of the devices, and ranges of selectivity and cost (c of eq. 3)."""

    name: str
    graph: tuple[Stream, ...]
    share: float
    selectivity: tuple[float, float]
    cost: tuple[float, float]

    @property
    def operators(self) -> int:
        """Number of operators."""
        return 1 + max(v for _, v in self.graph)


def diamond(before: int, branches: Sequence[int], behind: int) -> tuple[Stream, ...]:
    """Return a chain of operators that forks into branches of the given lengths and joins into a chain again."""
    edges = [(n, n + 1) for n in range(before - 1)]
    size, ends = before, []
    for length in branches:
        at = before - 1
        for _ in range(length):
            edges.append((at, size))
            at, size = size, size + 1
        ends.append(at)
    edges += [(end, size) for end in ends]
    return (*edges, *((n, n + 1) for n in range(size, size + behind - 1)))


APP_1 = FogApplication(name="App-1", graph=diamond(2, (2, 2), 3), share=0.55, selectivity=(0.4, 1.0), cost=(1.0, 1.8))
APP_2 = FogApplication(
    name="App-2", graph=diamond(3, (2, 2, 2), 2), share=0.45, selectivity=(0.8, 1.2), cost=(1.0, 1.9)
)


def fog(*, seed: int, nodes: int = 10, cloud: Cloud = "aws") -> Topology:
    """Draw fog nodes, each with an area of devices below and a cloud above all (table 6).

    Zones and hosts are areas, then fog nodes, then the cloud. ``vm``: the cloud is as strong as a fog node,
    as in section 7.2; ``aws``: 35,900 MIPS. Its memory has no limit (section 4.1).
    """
    drawn = np.random.default_rng(seed)
    mips = drawn.uniform(2_400, 8_150, nodes)
    central = 35_900.0 if cloud == "aws" else float(drawn.uniform(2_400, 8_150))
    count = 2 * nodes + 1
    areas, fogs = range(nodes), range(nodes, 2 * nodes)
    hosts = Hosts(
        cpu=np.concatenate((np.ones(nodes), mips * 1e6, [central * 1e6])),
        memory=np.concatenate((np.zeros(nodes), drawn.uniform(1e9, 4e9, nodes), [np.inf])),
        zone=np.arange(count, dtype=np.int32),
        lan_latency=np.zeros(count),
        lan_bandwidth=np.full(count, np.inf),
        names=[
            *(f"area {j}" for j in areas),
            *(f"fog {j}" for j in areas),
            "cloud",
        ],
    )
    network = Tree(
        np.array([*fogs, *(count - 1 for _ in fogs), -1]),
        np.concatenate((np.full(nodes, 0.1), drawn.uniform(0.1, 0.3, nodes), [0.0])),
        np.concatenate((np.full(nodes, np.inf), drawn.uniform(100e6, 250e6, nodes), [np.inf])),
    )
    return Topology(hosts, network, np.arange(count) == count - 1, np.repeat([0, 1, 2], [nodes, nodes, 1]))


def devices(total: int, *, seed: int, areas: int = 10, split: Split = "spacing") -> Floats:
    """Distribute devices over areas: by sorted uniform draws, or by uniform draws scaled to the total."""
    drawn = np.random.default_rng(seed)
    if split == "norm":
        parts = drawn.random(areas)
        normed: Floats = total * parts / parts.sum()
        return normed
    ends = np.sort(drawn.uniform(0, total, areas - 1))
    return np.diff(ends, prepend=0.0, append=total)


def application(of: FogApplication, counts: Sequence[float] | Floats, *, seed: int, span: float = 0.5) -> Application:
    """Make an application's instances for areas with the given numbers of devices.

    ``seed`` draws selectivities and costs, the same in all areas. ``span``: every operator's window (s). A
    fork sends each event to one branch.
    """
    drawn = np.random.default_rng(seed)
    selectivity = drawn.uniform(*of.selectivity, of.operators)
    cost = drawn.uniform(*of.cost, of.operators)
    forks = {o: sum(u == o for u, _ in of.graph) for o in range(of.operators)}
    nodes, each = len(counts), of.operators + 1
    operators: list[PlacedOperator] = []
    streams: dict[Stream, float] = {}
    for j, number in enumerate(counts):
        base = j * each
        operators.append(PlacedOperator(name=f"S{j}", rate=float(number) * of.share, size=DEVICE_BYTES, host=j))
        operators += [
            PlacedOperator(
                name=f"O{o}.{j}",
                logical=f"{of.name}.O{o}",
                # A megabyte costs a million instructions, times c.
                cpu=DEVICE_BYTES * float(cost[o]),
                overhead=float(cost[o]),
                selectivity=float(selectivity[o]),
                span=span,
                hosts=frozenset({nodes + j, 2 * nodes}),
            )
            for o in range(of.operators)
        ]
        streams[base, base + 1] = 1.0
        streams |= {(base + 1 + u, base + 1 + v): 1.0 / forks[u] for u, v in of.graph}
        streams[base + of.operators, nodes * each] = 1.0
    operators.append(PlacedOperator(name="sink", host=2 * nodes))
    return Application(tuple(operators), streams)


def problem(
    of: FogApplication,
    total: int,
    *,
    seed: int,
    span: float = 0.5,
    cloud: Cloud = "aws",
    split: Split = "spacing",
) -> Problem:
    """Draw a whole problem for a number of devices."""
    topology = fog(seed=seed, cloud=cloud)
    counts = devices(total, seed=seed + 1, split=split)
    return Problem(topology, application(of, counts, seed=seed + 2, span=span))


def three_layers(seed: int, *, most_memory: float = 4e6, locations: int = 3) -> Problem:
    """Draw pairs of edges below sites below a cloud; sites' hosts and links are shared; a window joins all rows."""
    drawn = np.random.default_rng(seed)
    sites = -(-locations // 2)
    zones = locations + sites + 1
    cloud = zones - 1
    parents = [*(locations + j // 2 for j in range(locations)), *([cloud] * sites), -1]
    memory = np.append(drawn.uniform(0.3 * most_memory, most_memory, zones - 1), np.inf)
    hosts = Hosts(
        cpu=np.concatenate((drawn.uniform(1e9, 2e9, locations), drawn.uniform(2e9, 4e9, sites), [8e9])),
        memory=memory,
        memory_used=np.append(0.1 * memory[:-1], 0.0),
        zone=np.arange(zones, dtype=np.int32),
        lan_latency=np.full(zones, 0.001),
        lan_bandwidth=np.full(zones, np.inf),
    )
    network = Tree(
        np.array(parents),
        np.append(drawn.uniform(0.01, 0.2, zones - 1), 0.0),
        np.append(drawn.uniform(20e6, 60e6, zones - 1), np.inf),
    )
    levels = np.array([0] * locations + [1] * sites + [2])
    operators: list[PlacedOperator] = []
    streams: dict[Stream, float] = {}
    selectivity, cost = drawn.uniform(0.3, 1.0, 3), drawn.uniform(1.0, 2.0, 3)
    for j in range(locations):
        base = len(operators)
        above = frozenset({j, parents[j], cloud})
        operators.append(PlacedOperator(name=f"s{j}", rate=float(drawn.uniform(100, 1500)), size=1000.0, host=j))
        operators += [
            PlacedOperator(
                name=f"o{k}.{j}",
                logical=f"o{k}",
                cpu=2e5 * float(cost[k]),
                memory=1e4,
                overhead=float(cost[k]),
                selectivity=float(selectivity[k]),
                span=0.5,
                hosts=above,
            )
            for k in range(3)
        ]
        streams |= {(base + k, base + k + 1): 1.0 for k in range(3)}
        streams[base + 3, 4 * locations] = 1.0
    whole = PlacedOperator(name="all", cpu=1e4, span=1.0, selectivity=0.01, size=50.0, hosts=frozenset({cloud}))
    operators += [whole, PlacedOperator(name="sink", host=cloud)]
    streams[4 * locations, 4 * locations + 1] = 1.0
    topology = Topology(hosts, network, np.arange(zones) == cloud, levels)
    return Problem(topology, Application(tuple(operators), streams))


def course(kind: Course, steps: int, sources: int, *, seed: int) -> Floats:
    """Draw rates over time, [step, source], as multiples of a usual rate.

    ``walk``: changes that add up and fade, of all sources and of each; ``day``: a wave of 24 steps with noise;
    ``burst``: most steps alike, at times a source sends twice as much and then settles.
    """
    drawn = np.random.default_rng(seed)
    if kind == "walk":
        common, own = _fading(drawn, 0.2, (steps, 1)), _fading(drawn, 0.15, (steps, sources))
        walked: Floats = np.exp(common + own)
        return walked
    if kind == "day":
        phase = drawn.uniform(0, 2 * np.pi) + drawn.normal(0, 0.2, sources)
        wave = 1 + 0.7 * np.sin(2 * np.pi * np.arange(steps)[:, None] / 24 + phase)
        waved: Floats = wave * np.exp(drawn.normal(0, 0.15, (steps, sources)))
        return waved
    found: Floats = 0.7 * np.exp(drawn.normal(0, 0.1, (steps, sources)))
    begins = drawn.random((steps, sources)) < 0.06
    for after, factor in enumerate((1.9, 1.3, 1.3)):
        found[after:][begins[: steps - after]] *= factor
    return found


def _fading(drawn: np.random.Generator, spread: float, shape: tuple[int, int]) -> Floats:
    """Draw a series that keeps nine tenths of itself at each step."""
    found = np.zeros(shape)
    found[0] = drawn.normal(0, spread / math.sqrt(1 - 0.9**2), shape[1])
    for step in range(1, shape[0]):
        found[step] = 0.9 * found[step - 1] + drawn.normal(0, spread, shape[1])
    return found
