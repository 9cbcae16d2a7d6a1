"""What a placement uses of shared resources, weighted by how scarce they are: the cost of TSOO. Pure.

"Adaptive scheduling of continuous operators for IoT edge analytics" (TSOO-H, aTSOO-H), eq. 7 to 14 and 24 to
30. Clouds count as without limit and cost nothing but the bandwidth to reach them. The computational resource
is memory, as there; network delay in the cost is a link's latency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from headwater.placement.cost import Usage, usage_of
from headwater.placement.network import Link
from headwater.placement.problem import Placement, Problem


@dataclass(frozen=True)
class Weights:
    """How much computing and network count in RU: w_c and w_n of eq. 30."""

    compute: float = 0.5
    network: float = 0.5


@dataclass(frozen=True)
class ResourceUsage:
    """The cost of a placement, each part normalised, and the bandwidth it takes into clouds (B, bits/s)."""

    compute: float
    """CRU, eq. 28."""
    network: float
    """NRU, eq. 29."""
    total: float
    """RU, eq. 30."""
    bandwidth: float
    """B, eq. 26."""


def weight(most: float, available: float, requested: float) -> float:
    """Give the usage ratio of a resource once the request is met: W of eq. 7; 0 of what has no limit.

    >>> weight(10.0, 8.0, 3.0)
    0.5
    """
    return 0.0 if math.isinf(most) else (most - available + requested) / most


def resource_usage(problem: Problem, placement: Placement, weights: Weights | None = None) -> ResourceUsage:
    """Give the cost of a placement (eq. 24 to 30), and B."""
    weights = weights or Weights()
    used = usage_of(problem, placement)
    compute, network = _compute(problem, used), _network(problem, used)
    return ResourceUsage(
        compute,
        network,
        weights.compute * compute + weights.network * network,
        math.fsum(bits for link, bits in used.links.items() if _into_cloud(problem, link)),
    )


def _compute(problem: Problem, used: Usage) -> float:
    """CRU: memory taken × W, over all there is outside of clouds (eq. 24, 28)."""
    hosts = problem.hosts
    outside = ~problem.topology.cloud[hosts.zone] & np.isfinite(hosts.memory)
    most = float(hosts.memory[outside].sum())
    terms = (
        taken * weight(float(hosts.memory[host]), float(hosts.memory_free[host]), taken)
        for host, taken in used.memory.items()
        if not problem.in_cloud(host)
    )
    return math.fsum(terms) / most if most else 0.0


def _network(problem: Problem, used: Usage) -> float:
    """NRU: bandwidth taken × W × delay as a share of the longest, over all there is (eq. 25, 29)."""
    network = problem.network
    limited = [link for link in links_of(problem) if not math.isinf(network.capacity(link))]
    most = math.fsum(network.capacity(link) for link in limited)
    longest = max((network.latency(link) for link in limited), default=0.0)
    if not most or not longest:
        return 0.0
    terms = (
        bits
        * weight(network.capacity(link), network.available(link), bits)
        * (network.latency(link) / longest)
        for link, bits in used.links.items()
    )
    return math.fsum(terms) / most


def links_of(problem: Problem) -> Iterable[Link]:
    """List a tree's links between neighbouring zones; of other networks, those from any zone to a cloud."""
    network = problem.network
    clouds = np.flatnonzero(problem.topology.cloud).tolist()
    found: dict[Link, None] = {}
    for zone in range(network.zones):
        for cloud in clouds:
            found |= dict.fromkeys(network.route(zone, cloud) or ())
    return found


def _into_cloud(problem: Problem, link: Link) -> bool:
    cloud = problem.topology.cloud
    return bool(cloud[link[1]]) and not bool(cloud[link[0]])
