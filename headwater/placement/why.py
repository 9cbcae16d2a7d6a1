"""Explain why an operator finds no host: the violated constraint, its place, the missing amount. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headwater.core.errors import PlacementError
from headwater.placement.cost import Shortage
from headwater.placement.placing import Placing
from headwater.placement.queueing import Floats

_SHOWN = 3
"""Shortages that a message lists."""


class Unplaceable(PlacementError):
    """No placement was found.

    ``operator``: the one without a host. ``shortages``: the missing capacity. ``also``: other missing capacities, each
    of which would be enough instead. ``tie``: the operator's group, and the level of the operators of the group placed
    before it. ``certain``: no placement exists, so none needs to be searched for.
    """

    def __init__(
        self,
        operator: str,
        shortages: list[Shortage],
        tie: tuple[int, int] | None = None,
        *,
        also: Sequence[str] = (),
    ) -> None:
        said = "; ".join(map(str, shortages[:_SHOWN])) or "its inputs have no route to any host that fits"
        said += f"; and {len(shortages) - _SHOWN} more" if len(shortages) > _SHOWN else ""
        said += "".join(f"; or {other}" for other in also)
        super().__init__(
            f"no host for operator '{operator}': {said}",
            hint="add capacity there, lower the rate, or allow the operator on other hosts",
        )
        self.operator = operator
        self.shortages = shortages
        self.also = tuple(also)
        self.tie = tie
        self.certain = False


def unplaceable(placing: Placing, operator: int) -> Unplaceable:
    """Explain by the host that comes nearest to an operator's needs."""
    problem = placing.problem
    application, hosts = problem.application, problem.hosts
    what, coming = application.operators[operator], placing.coming(operator)
    count = len(hosts)
    level = placing.level(operator)
    tie = None if level is None else (problem.group_of[operator], level)
    candidates = np.ones(count, dtype=np.bool_)
    if what.hosts is not None:
        candidates &= np.isin(np.arange(count), [h for h in what.hosts if placing.allowed(operator, h)])
    if what.host is not None:
        candidates &= np.arange(count) == what.host
    if not candidates.any():
        return Unplaceable(what.name, [Shortage("allowed host", "its allowed hosts", 1, 0, "hosts")], tie)
    rate = float(application.rate_in[operator])
    served = hosts.cpu / what.cpu if what.cpu else np.full(count, np.inf)
    lacks = [
        ("processing rate", np.full(count, rate), served, "events/s"),
        ("cpu", placing.spread(placing.work) + application.work[operator], hosts.cpu_free, "work/s"),
        (
            "memory",
            placing.spread(placing.memory) + application.room[operator],
            hosts.memory_free,
            "bytes",
        ),
        (
            "bandwidth, LAN access",
            placing.spread(placing.receives) + coming.bandwidth,
            hosts.lan_bandwidth,
            "bits/s",
        ),
    ]
    ratios = [np.where(candidates, _ratio(needed, there), np.inf) for _, needed, there, _ in lacks]
    reachable = np.isfinite(coming.far[hosts.zone])
    if (candidates & reachable).any():
        ratios = [np.where(reachable, ratio, np.inf) for ratio in ratios]
    nearest = int(np.argmin(np.maximum.reduce(ratios)))
    short = [
        Shortage(constraint, hosts.name(nearest), float(needed[nearest]), float(there[nearest]), unit)
        for constraint, needed, there, unit in lacks
        if needed[nearest] > there[nearest]
    ]
    if not reachable[nearest]:
        needed = coming.bandwidth
        short.append(Shortage("bandwidth", f"the route to {hosts.name(nearest)}", needed, 0, "bits/s"))
    return Unplaceable(what.name, short, tie)


def _ratio(needed: Floats, there: Floats) -> Floats:
    ratio = np.divide(needed, there, out=np.full(len(needed), math.inf), where=there > 0)
    return np.where(needed > 0, ratio, 0.0)
