"""Capacities that every placement needs: a problem without them has none, and no search is needed. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from headwater.placement.cost import ROUNDING, Shortage
from headwater.placement.problem import Problem
from headwater.placement.queueing import Floats
from headwater.placement.why import Unplaceable


def hopeless(problem: Problem) -> Unplaceable | None:
    """Return the error of a problem that lacks such a capacity; None if it lacks none."""
    return _lacking_everywhere(problem) or _overfull_access(problem)


def _lacking_everywhere(problem: Problem) -> Unplaceable | None:
    """Return the error of the operator that needs most of a capacity, if no host has it free.

    Operators that may only run on some hosts do not count: more allowed hosts may be enough for them.
    """
    application = problem.application
    free = [o for o in application.free if application.operators[o].hosts is None]
    for constraint, there, unit, needs in _capacities(problem):
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


def _overfull_access(problem: Problem) -> Unplaceable | None:
    """Return the error of a host whose LAN access cannot carry what its pinned operators send or receive.

    A stream counts if the operator at its other end cannot run on that host, even alone.
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
    return all(needs[operator] <= there[host] * (1 + ROUNDING) for _, there, _, needs in _capacities(problem))


def _capacities(problem: Problem) -> Iterator[tuple[str, Floats, str, list[float]]]:
    """Yield each capacity of hosts: its constraint, the amount of each host, its unit, the need of each operator."""
    hosts, application = problem.hosts, problem.application
    yield "processing rate", hosts.cpu, "events/s", application.work
    yield "cpu", hosts.cpu_free, "work/s", application.work
    yield "memory", hosts.memory_free, "bytes", application.room
