"""Use of shared resources by a placement, weighted by their scarcity: the cost of TSOO. Pure.

"Adaptive scheduling of continuous operators for IoT edge analytics" (TSOO-H, aTSOO-H), eq. 7 to 14 and 24 to
30. Clouds are unlimited and cost only the bandwidth to reach them. The computational resource is memory, as in
the paper; network delay in the cost is a link's latency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from headwater.placement.cost import Usage, usage_of
from headwater.placement.network import Link
from headwater.placement.problem import Placement, Problem
from headwater.placement.queueing import Floats


@dataclass(frozen=True)
class Weights:
    """Weights of computing and network in RU: w_c and w_n of eq. 30."""

    compute: float = 0.5
    network: float = 0.5


@dataclass(frozen=True)
class ResourceUsage:
    """The cost of a placement, each part normalised, and its bandwidth into clouds (B, bits/s)."""

    compute: float
    """CRU, eq. 28."""
    network: float
    """NRU, eq. 29."""
    total: float
    """RU, eq. 30."""
    bandwidth: float
    """B, eq. 26."""


def weight(most: float, available: float, requested: float) -> float:
    """Return the usage ratio of a resource once the request is met: W of eq. 7; 0 if unlimited.

    >>> weight(10.0, 8.0, 3.0)
    0.5
    """
    return 0.0 if math.isinf(most) else (most - available + requested) / most


def resource_usage(problem: Problem, placement: Placement, weights: Weights | None = None) -> ResourceUsage:
    """Return the cost of a placement (eq. 24 to 30), and B."""
    weights = weights or Weights()
    used = usage_of(problem, placement)
    compute, network = _compute(problem, used), _network(problem, used)
    return ResourceUsage(
        compute,
        network,
        weights.compute * compute + weights.network * network,
        math.fsum(bits for link, bits in used.links.items() if _into_cloud(problem, link)),
    )


def prices(problem: Problem, weights: Weights) -> tuple[Floats, Mapping[Link, float]]:
    """Return the increase of RU for a byte × a byte of each host, and for a bit/s × a bit/s of each link.

    The cost of a usage is usage × W (eq. 24, 25): usage × (others' + usage) × this price. A link's price includes
    its delay as a share of the longest (eq. 29). Unlimited resources cost nothing.
    """
    hosts, network = problem.hosts, problem.network
    outside = ~problem.topology.cloud[hosts.zone] & np.isfinite(hosts.memory) & (hosts.memory > 0)
    most = float(hosts.memory[outside].sum())
    memory = np.zeros(len(hosts))
    if most:
        memory[outside] = weights.compute / (hosts.memory[outside] * most)
    limited = [link for link in links_of(problem) if not math.isinf(network.capacity(link))]
    total = math.fsum(network.capacity(link) for link in limited)
    longest = max((network.latency(link) for link in limited), default=0.0)
    if not total or not longest:
        return memory, {}
    scale = weights.network / (longest * total)
    return memory, {link: scale * network.latency(link) / network.capacity(link) for link in limited}


def _compute(problem: Problem, used: Usage) -> float:
    """CRU (eq. 24, 28)."""
    hosts, (price, _) = problem.hosts, prices(problem, Weights(1.0, 1.0))
    each = price * np.where(price > 0, hosts.memory, 0.0)  # of a byte × W
    terms = (
        taken * weight(float(hosts.memory[host]), float(hosts.memory_free[host]), taken) * float(each[host])
        for host, taken in used.memory.items()
        if price[host]
    )
    return math.fsum(terms)


def _network(problem: Problem, used: Usage) -> float:
    """NRU (eq. 25, 29)."""
    network, (_, price) = problem.network, prices(problem, Weights(1.0, 1.0))
    each = {link: of * network.capacity(link) for link, of in price.items()}  # of a bit/s × W
    terms = (
        bits * weight(network.capacity(link), network.available(link), bits) * each[link]
        for link, bits in used.links.items()
        if link in each
    )
    return math.fsum(terms)


def links_of(problem: Problem) -> Iterable[Link]:
    """Return a tree's links between neighbouring zones; of other networks, the links from any zone to a cloud."""
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
