"""Capacities that every placement needs: a problem without them has none, and no search is needed. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import MutableMapping

import numpy as np

from headwater.placement.cost import ROUNDING, Shortage
from headwater.placement.hostcut import PRICES, HostCut, Prices, capacities
from headwater.placement.problem import Problem
from headwater.placement.why import Unplaceable

HostPrices = MutableMapping[tuple[str, int], Prices]
"""By direction and host."""


def hopeless(problem: Problem, prices: HostPrices | None = None, tries: int = PRICES) -> Unplaceable | None:
    """Return the error of a problem that lacks such a capacity; None if none is known to be lacking.

    ``prices``: those found for problems with the same operators and other capacities, which make this one quicker;
    ``tries``: how many are tried for each host.
    """
    return _lacking_everywhere(problem) or _overfull_access(problem, {} if prices is None else prices, tries)


def _lacking_everywhere(problem: Problem) -> Unplaceable | None:
    """Return the error of the operator that needs most of a capacity, if no host has it free.

    Operators that may only run on some hosts do not count: more allowed hosts may be enough for them.
    """
    application = problem.application
    free = [o for o in application.free if application.operators[o].hosts is None]
    for constraint, there, unit, needs in capacities(problem):
        largest = float(there.max(initial=0.0))
        o = max(free, key=needs.__getitem__, default=None)
        if o is None or needs[o] <= largest * (1 + ROUNDING):
            continue
        host = int(np.argmax(there))
        amounts = (needs[o], largest)
        if constraint == "processing rate":
            amounts = (float(application.rate_in[o]), largest / application.operators[o].cpu)
        return _certain(problem, o, Shortage(constraint, problem.hosts.name(host), *amounts, unit, host))
    return None


def _overfull_access(problem: Problem, prices: HostPrices, tries: int) -> Unplaceable | None:
    """Return the error of a host whose LAN access is too narrow for its pinned operators, whatever else it runs."""
    application, hosts = problem.application, problem.hosts
    sent = {(u, v): application.flow((u, v), 0).bandwidth for u, v in application.streams}
    for way, streams in (("LAN out of", sent), ("LAN into", {(v, u): bits for (u, v), bits in sent.items()})):
        alone: defaultdict[int, float] = defaultdict(float)  # of each host, if it runs its pinned operators only
        first: dict[int, int] = {}
        for (u, v), bits in streams.items():
            host = application.operators[u].host
            if host is not None and application.operators[v].host != host:
                alone[host] += bits
                first.setdefault(host, u)
        for host, bits in alone.items():
            there = float(hosts.lan_bandwidth[host])
            most = there * (1 + ROUNDING)
            if bits <= most:
                continue
            needed = HostCut(problem, host, streams).at_least(most, prices.setdefault((way, host), {}), tries)
            if needed > most:
                short = Shortage("bandwidth", f"{way} {hosts.name(host)}", needed, there, "bits/s", host)
                return _certain(problem, first[host], short)
    return None


def _certain(problem: Problem, operator: int, short: Shortage) -> Unplaceable:
    error = Unplaceable(problem.application.operators[operator].name, [short])
    error.certain = True
    return error
