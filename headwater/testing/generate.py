"""Seeded problems like the paper's: Table 3's networks, Table 4's operators, graphs read or drawn. Pure.

Tables 3 and 4 do not fit together as printed, so there are presets. ``phys``, the default, restores the
factor 1000 that the hosts' MIPS have lost and lets no source fill its LAN; ``paper`` takes both as printed,
so that half of the operators fit no edge host; ``sim`` has the values of the authors' simulator.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from headwater.core.errors import PlacementError
from headwater.placement.network import Mesh
from headwater.placement.problem import Application, Hosts, PlacedOperator, Problem, Stream, Topology


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Parameters of drawn networks and operators; ranges are [least, most] of uniform draws."""

    edge_cpu: tuple[float, float]
    """Instructions/s of an RPi2 and an RPi3; every other host is one of the latter."""
    cloud_cpu: float
    source_bandwidth: float
    """Bits/s that a source gives at most; draws above are drawn again."""
    edge_memory: float = 1e9
    cloud_memory: float = 1e12
    lan_latency: tuple[float, float] = (0.015e-3, 0.8e-3)
    lan_bandwidth: float = 100e6
    wan_latency: tuple[float, float] = (65e-3, 85e-3)
    wan_bandwidth: float = 1e9
    cpu: tuple[float, float] = (1_000.0, 10_000.0)
    memory: tuple[float, float] = (100.0, 7_500.0)
    selectivity: tuple[float, float] = (0.1, 1.0)
    size_ratio: tuple[float, float] = (0.1, 1.0)
    size: tuple[float, float] = (100.0, 2_500.0)
    rate: tuple[float, float] = (1_000.0, 10_000.0)
    window: tuple[float, float] = (1.0, 100.0)
    stateful: float = 0.2
    """Share of operators that have a window."""
    replicate: bool = False
    """Whether an operator sends every event to all its readers (as the simulator does), or to one."""


PRESETS: Mapping[str, Preset] = {
    "phys": Preset(edge_cpu=(4.74e9, 5.02e9), cloud_cpu=304.51e9, source_bandwidth=80e6),
    "paper": Preset(edge_cpu=(4.74e6, 5.02e6), cloud_cpu=304.51e6, source_bandwidth=80e6),
    "sim": Preset(edge_cpu=(4.744e6, 4.744e6), cloud_cpu=3_045.1e6, source_bandwidth=80e6),
}

TABLE_3: tuple[tuple[int, int, int], ...] = (
    *((10, 10, 10), (100, 10, 10), (500, 10, 10), (10, 10, 100), (10, 100, 10), (100, 10, 100)),
    *((100, 100, 10), (500, 10, 100), (500, 100, 10), (10, 10, 500), (10, 500, 10), (100, 10, 500)),
    *((100, 500, 10), (500, 10, 500), (500, 500, 10)),
    *((10, 100, 100), (100, 100, 100), (500, 100, 100), (10, 100, 500), (10, 500, 100)),
    *((100, 100, 500), (100, 500, 100), (500, 100, 500), (500, 500, 100)),
    *((10, 500, 500), (100, 500, 500), (500, 500, 500)),
)
"""Clouds, edge sites, hosts of a site: the regular, large and extra-large networks."""


def preset(name: str) -> Preset:
    """Find a preset; raise PlacementError where there is none of this name."""
    if name not in PRESETS:
        raise PlacementError(f"unknown preset '{name}'", hint=f"the presets are {', '.join(PRESETS)}")
    return PRESETS[name]


def network(sites: int, devices: int, clouds: int, *, seed: int, units: str = "phys") -> Topology:
    """Draw a network: ``sites`` of ``devices`` hosts each, and ``clouds`` of one host.

    Hosts of sites come first, site by site; zones are sites, then clouds. Every pair of zones has a WAN
    latency of its own, the same both ways.
    """
    numbers, drawn = preset(units), np.random.default_rng(seed)
    edge, zones = sites * devices, sites + clouds
    at_edge = np.arange(edge + clouds) < edge
    kinds = np.array((*numbers.edge_cpu, numbers.cloud_cpu))
    kind = np.where(at_edge, np.arange(edge + clouds) % 2, 2)
    lan = np.zeros(edge + clouds)
    lan[:edge] = drawn.uniform(*numbers.lan_latency, edge)
    wan = np.triu(drawn.uniform(*numbers.wan_latency, (zones, zones)), 1)
    hosts = Hosts(
        cpu=kinds[kind],
        memory=np.where(at_edge, numbers.edge_memory, numbers.cloud_memory),
        zone=np.concatenate(
            (np.repeat(np.arange(sites), devices), np.arange(sites, zones)),
            dtype=np.int32,
            casting="same_kind",
        ),
        lan_latency=lan,
        lan_bandwidth=np.where(at_edge, numbers.lan_bandwidth, np.inf),
    )
    return Topology(hosts, Mesh(wan + wan.T, np.array(numbers.wan_bandwidth)), np.arange(zones) >= sites)


def read_graph(text: str) -> tuple[Stream, ...]:
    """Read a graph from JSON: ``{"vertices": n, "edges": [[from, to], ...]}``, vertices numbered from 0."""
    try:
        data = json.loads(text)
        size, edges = int(data["vertices"]), [(int(u), int(v)) for u, v in data["edges"]]
    except (ValueError, TypeError, KeyError) as error:
        raise PlacementError(
            f"the text is not a graph: {type(error).__name__}: {error}",
            hint='write {"vertices": n, "edges": [[from, to], ...]}',
        ) from error
    named = {o for edge in edges for o in edge}
    if outside := sorted(o for o in named if not 0 <= o < size):
        raise PlacementError(f"an edge names vertex {outside[0]}, but there are {size}")
    return tuple(dict.fromkeys(edges))


def series_parallel(operators: int, *, seed: int, sources: int = 1, sinks: int = 1) -> tuple[Stream, ...]:
    """Draw a graph by splitting streams, in series and in parallel; then attach more sources and sinks."""
    inner = operators - (sources - 1) - (sinks - 1)
    if inner < 2 or sources < 1 or sinks < 1:
        raise PlacementError(f"{operators} operators are too few for {sources} sources and {sinks} sinks")
    drawn = np.random.default_rng(seed)
    edges: list[Stream] = [(0, 1)]
    size = 2
    while size < inner:
        at = int(drawn.integers(len(edges)))
        u, v = edges[at]
        if drawn.random() < 0.6 or size + 1 == inner:
            edges[at : at + 1] = [(u, size), (size, v)]
            size += 1
        else:
            edges[at : at + 1] = [(u, size), (size, v), (u, size + 1), (size + 1, v)]
            size += 2
    between = np.arange(2, inner) if inner > 2 else np.array([1])
    for source in range(inner, inner + sources - 1):
        edges.append((source, int(drawn.choice(between))))
    between = np.arange(2, inner) if inner > 2 else np.array([0])
    for sink in range(inner + sources - 1, operators):
        edges.append((int(drawn.choice(between)), sink))
    return tuple(edges)


def application(graph: Iterable[Stream], topology: Topology, *, seed: int, units: str = "phys") -> Application:
    """Draw operators by Table 4 for a graph; sources and sinks are pinned to hosts of sites.

    The sink at the end of the longest path is in a cloud: the critical one. Vertices without an
    edge are left out.
    """
    numbers, drawn = preset(units), np.random.default_rng(seed)
    edges = tuple(graph)
    vertices = sorted({o for edge in edges for o in edge})
    number = {vertex: o for o, vertex in enumerate(vertices)}
    readers: dict[int, list[int]] = {o: [] for o in range(len(vertices))}
    inputs: dict[int, list[int]] = {o: [] for o in range(len(vertices))}
    for u, v in edges:
        readers[number[u]].append(number[v])
        inputs[number[v]].append(number[u])
    operators = tuple(_source(numbers, drawn, o) if not inputs[o] else _operator(numbers, drawn, o) for o in readers)
    streams = {(u, v): 1.0 if numbers.replicate else 1.0 / len(readers[u]) for u in readers for v in readers[u]}
    unpinned = Application(operators, streams)
    critical = _critical(unpinned)
    at_edge = np.flatnonzero(~topology.cloud[topology.hosts.zone])
    in_cloud = np.flatnonzero(topology.cloud[topology.hosts.zone])
    pinned = list(operators)
    for o in (*unpinned.sources, *unpinned.sinks):
        hosts = in_cloud if o == critical else at_edge
        pinned[o] = replace(pinned[o], host=int(drawn.choice(hosts)), cpu=0.0, window=0.0)
    return Application(tuple(pinned), streams)


def problem(
    graph: Iterable[Stream],
    size: tuple[int, int, int],
    *,
    seed: int,
    units: str = "phys",
    of: Topology | None = None,
) -> Problem:
    """Draw a whole problem; ``size``: clouds, sites and hosts of a site, as in ``TABLE_3``.

    ``of`` is an existing network to use instead of a drawn one.
    """
    clouds, sites, devices = size
    topology = of or network(sites, devices, clouds, seed=seed, units=units)
    return Problem(topology, application(graph, topology, seed=seed + 1_000_003, units=units))


def _source(numbers: Preset, drawn: np.random.Generator, number: int) -> PlacedOperator:
    while True:
        rate, size = float(drawn.uniform(*numbers.rate)), float(drawn.uniform(*numbers.size))
        if rate * size * 8 <= numbers.source_bandwidth:
            return PlacedOperator(name=f"o{number}", rate=rate, size=size)


def _operator(numbers: Preset, drawn: np.random.Generator, number: int) -> PlacedOperator:
    window = float(drawn.uniform(*numbers.window))
    return PlacedOperator(
        name=f"o{number}",
        cpu=float(drawn.uniform(*numbers.cpu)),
        memory=float(drawn.uniform(*numbers.memory)),
        selectivity=float(drawn.uniform(*numbers.selectivity)),
        size_ratio=float(drawn.uniform(*numbers.size_ratio)),
        window=window if drawn.random() < numbers.stateful else 0.0,
    )


def _critical(application: Application) -> int:
    """Find the sink at the end of the longest path."""
    depth = [0] * len(application)
    for o in application.order:
        depth[o] = max((depth[u] + 1 for u in application.upstream[o]), default=0)
    return max(application.sinks, key=lambda o: (depth[o], -o))
