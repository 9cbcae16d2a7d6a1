"""Capacities that every placement needs: a problem without them has none, and no search is needed. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from headwater.placement.cost import ROUNDING, Shortage
from headwater.placement.problem import Problem
from headwater.placement.queueing import Floats
from headwater.placement.why import Unplaceable


def lacking_everywhere(problem: Problem) -> Unplaceable | None:
    """Return the error of the operator that needs most of a capacity, if no host has it free.

    Operators that may only run on some hosts do not count: more allowed hosts may be enough for them.
    """
    application = problem.application
    free = [o for o in application.free if application.operators[o].hosts is None]
    for constraint, there, unit in _capacities(problem):
        largest = float(there.max(initial=0.0))
        needs = {o: _needs(problem, o)[constraint] for o in free}
        o = max(needs, key=lambda o: needs[o], default=0)
        if needs.get(o, 0.0) <= largest * (1 + ROUNDING):
            continue
        host = int(np.argmax(there))
        amounts = (needs[o], largest)
        if constraint == "processing rate":
            amounts = (float(application.rate_in[o]), largest / application.operators[o].cpu)
        return _certain(problem, o, Shortage(constraint, problem.hosts.name(host), *amounts, unit, host))
    return None


def overfull_access(problem: Problem) -> Unplaceable | None:
    """Return the error of a host whose LAN access cannot carry what its pinned operators send or receive.

    Only streams count whose other end can be on no account on that host.
    """
    application, hosts = problem.application, problem.hosts
    sends: defaultdict[int, float] = defaultdict(float)
    receives: defaultdict[int, float] = defaultdict(float)
    first: dict[int, int] = {}
    for u, v in application.streams:
        bandwidth = application.flow((u, v), 0).bandwidth
        for at, other, amounts in ((u, v, sends), (v, u, receives)):
            host = application.operators[at].host
            if host is not None and not _can_run(problem, other, host):
                amounts[host] += bandwidth
                first.setdefault(host, at)
    for amounts, way in ((sends, "LAN out of"), (receives, "LAN into")):
        for host, needed in amounts.items():
            there = float(hosts.lan_bandwidth[host])
            if needed > there * (1 + ROUNDING):
                short = Shortage("bandwidth", f"{way} {hosts.name(host)}", needed, there, "bits/s", host)
                return _certain(problem, first[host], short)
    return None


def _certain(problem: Problem, operator: int, short: Shortage) -> Unplaceable:
    error = Unplaceable(problem.application.operators[operator].name, [short])
    error.certain = True
    return error


def _can_run(problem: Problem, operator: int, host: int) -> bool:
    """Return whether a host could run an operator if it ran nothing else."""
    what = problem.application.operators[operator]
    if what.host is not None:
        return what.host == host
    if what.hosts is not None and host not in what.hosts:
        return False
    needs = _needs(problem, operator)
    return all(needs[name] <= there[host] * (1 + ROUNDING) for name, there, _ in _capacities(problem))


def _needs(problem: Problem, operator: int) -> dict[str, float]:
    application = problem.application
    work, room = float(application.work[operator]), float(application.room[operator])
    return {"processing rate": work, "cpu": work, "memory": room}


def _capacities(problem: Problem) -> Iterator[tuple[str, Floats, str]]:
    """Yield each capacity of hosts by its constraint, with one number per host, and its unit."""
    hosts = problem.hosts
    yield "processing rate", hosts.cpu, "events/s"
    yield "cpu", hosts.cpu_free, "work/s"
    yield "memory", hosts.memory_free, "bytes"
