"""Find hosts for an operator, by a full scan or by an index, with identical results. Pure.

``HostScan`` is the reference. Among hosts of equal cost, or of equal LAN latency, the lowest number wins.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from headwater.placement.placing import Placing
from headwater.placement.problem import Bools
from headwater.placement.queueing import Floats, mm1_of


class Search(Protocol):
    """Finds hosts for the next operator of a placement."""

    placing: Placing

    def cheapest(self, operator: int, zones: Bools | None = None) -> int | None:
        """Return the host of least cost, in some zones or all; None if none meets the constraints."""

    def nearest(self, operator: int, zone: int) -> int | None:
        """Return a zone's host of least LAN latency that meets the constraints."""


class HostScan:
    """Looks at every host."""

    def __init__(self, placing: Placing) -> None:
        self.placing = placing

    def cheapest(self, operator: int, zones: Bools | None = None) -> int | None:
        cost = self._costs(operator)
        if zones is not None:
            cost[~zones[self.placing.problem.hosts.zone]] = math.inf
        best = int(np.argmin(cost))
        return best if cost[best] < math.inf else None

    def nearest(self, operator: int, zone: int) -> int | None:
        hosts = self.placing.problem.hosts
        fit = np.isfinite(self._costs(operator)) & (hosts.zone == zone)
        found = np.flatnonzero(fit)
        return int(found[np.argmin(hosts.lan_latency[found])]) if len(found) else None

    def _costs(self, operator: int) -> Floats:
        placing, hosts = self.placing, self.placing.problem.hosts
        application = placing.problem.application
        what, coming = application.operators[operator], placing.coming(operator)
        if what.hosts is not None:
            found = np.full(len(hosts), math.inf)
            for host in what.hosts:
                found[host] = placing.cost(operator, host)
            return found
        near = np.zeros(len(hosts))
        for flow in coming.flows:
            queue = mm1_of(hosts.lan_bandwidth / flow.bits, flow.rate) if flow.bits else 0.0
            near += hosts.lan_latency + queue
        cost = coming.far[hosts.zone] + near
        if what.cpu:
            cost += mm1_of(hosts.cpu / what.cpu, float(application.rate_in[operator]))
        for taken, more, free in (
            (placing.work, application.work[operator], hosts.cpu_free),
            (placing.memory, application.room[operator], hosts.memory_free),
            (placing.receives, coming.bandwidth, hosts.lan_bandwidth),
        ):
            cost[placing.spread(taken) + more > free] = math.inf
        for host in coming.local:
            cost[host] = placing.cost(operator, host)
        return cost
