"""Seeded problems like those of TSOO's evaluation: fog nodes under a cloud, two applications. Pure.

"Adaptive scheduling of continuous operators for IoT edge analytics", section 6.2. Where the text contradicts
itself or is silent: in table 6 the fog's CPU and RAM are swapped; a megabyte costs a million instructions, so
that memory (eq. 3) and CPU (eq. 19) are one demand; figure 7's graphs are a diamond of two branches (9
operators) and one of three (11); windows do not overlap; the slowest device decides on the delay to the fog.
"""

from __future__ import annotations

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
