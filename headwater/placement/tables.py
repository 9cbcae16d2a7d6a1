"""Cost tables over the choices of operators, ready for elimination. Pure.

A variable is an operator, or a group of operators; a value is a host for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from headwater.placement.cost import service_time, transfer_time
from headwater.placement.elimination import Eliminated, Factor, eliminate
from headwater.placement.places import Places
from headwater.placement.problem import Ints, Problem
from headwater.placement.queueing import Floats

_MOST = 64
"""Choices of a group on one level, above which only one is looked at."""


@dataclass(frozen=True, eq=False)
class Tables:
    """An elimination, with its variables and their values.

    ``members``: for each variable its operators. ``choices``: for each of its values a host for each of
    these, −1 for a stand-in. ``bound``: the least AL without capacities. ``whole``: whether the choices are all that
    there are. ``charges``: for each variable what each value costs at the prices of cpu, included in the tables; empty
    without prices. ``credit``: the price of all priced cpu, which is taken off ``bound``.
    """

    problem: Problem
    members: Mapping[int, tuple[int, ...]]
    choices: Mapping[int, Sequence[tuple[int, ...]]]
    eliminated: Eliminated
    bound: float
    whole: bool = True
    charges: Mapping[int, Floats] = field(default_factory=dict)
    credit: float = 0.0


def tables_over(
    problem: Problem, among: Places, entries: int, prices: Floats | None = None
) -> tuple[Tables, Mapping[int, Ints]] | None:
    """Return the tables of operators over places, and for each operator the place of each value.

    ``prices``: of each place's cpu, in s of AL for each unit of work/s. None if a table would have more than
    ``entries``.
    """
    application = problem.application
    pinned = {o: w.host for o, w in enumerate(application.operators) if w.host is not None}
    costs = {o: application.paths[o] * among.service(o) for o in application.free}
    place = {o: np.array([among.number(host)]) for o, host in pinned.items()}
    every, always = np.arange(len(among)), 0.0
    for u, v in application.streams:
        paths = application.paths_over[u, v]
        if u in pinned and v in pinned:
            always += paths * transfer_time(problem, (u, v), pinned[u], pinned[v])
        elif u in pinned:
            costs[v] = costs[v] + paths * among.transfer((u, v), place[u], every)[0]
        elif v in pinned:
            costs[u] = costs[u] + paths * among.transfer((u, v), every, place[v])[:, 0]
    # An operator that fits nowhere keeps one place, at infinite cost.
    domains = {o: np.flatnonzero(np.isfinite(cost)) for o, cost in costs.items()}
    domains = {o: domain if len(domain) else np.zeros(1, np.int64) for o, domain in domains.items()}
    factors: list[Factor] = [((o,), cost[domains[o]]) for o, cost in costs.items()]
    charges: dict[int, Floats] = {}
    credit = 0.0
    if prices is not None:
        charges = {o: application.work[o] * prices[domain] for o, domain in domains.items()}
        credit = float(prices @ np.where(prices > 0, among.cpu_free, 0.0))
        factors += [((o,), charge) for o, charge in charges.items()]
    factors += [
        ((u, v), application.paths_over[u, v] * among.transfer((u, v), domains[u], domains[v]))
        for u, v in application.streams
        if u in domains and v in domains
    ]
    eliminated = eliminate({o: len(domain) for o, domain in domains.items()}, factors, entries)
    if eliminated is None:
        return None
    members = {o: (o,) for o in domains}
    choices = {o: [(h,) for h in among.host[domain].tolist()] for o, domain in domains.items()}
    bound = eliminated.bound + always - credit
    return Tables(problem, members, choices, eliminated, bound, charges=charges, credit=credit), domains


def tables_of_groups(problem: Problem, entries: int) -> Tables | None:
    """Return the tables of groups over levels, and of operators with listed hosts; None as ``tables_over``."""
    application = problem.application
    members = {group[0]: group for group in problem.together}
    members |= {o: (o,) for o in range(len(application)) if o not in problem.group_of}
    variable = {o: name for name, group in members.items() for o in group}
    choices = {name: choices_of(problem, group) for name, group in members.items()}
    costs = {
        name: np.array([_service(problem, group, hosts) for hosts in choices[name]]) for name, group in members.items()
    }
    pairs: dict[tuple[int, int], Floats] = {}
    for u, v in application.streams:
        one, other = variable[u], variable[v]
        at, to = members[one].index(u), members[other].index(v)
        between = np.array(
            [
                [transfer_time(problem, (u, v), lower[at], upper[to]) for upper in choices[other]]
                for lower in choices[one]
            ]
        )
        between *= application.paths_over[u, v]
        pairs[one, other] = pairs[one, other] + between if (one, other) in pairs else between
    factors: list[Factor] = [((name,), cost) for name, cost in costs.items()]
    factors += list(pairs.items())
    eliminated = eliminate({name: len(found) for name, found in choices.items()}, factors, entries)
    if eliminated is None:
        return None
    whole = all(len(choices[group[0]]) == _count(problem, group) for group in problem.together)
    return Tables(problem, members, choices, eliminated, eliminated.bound, whole)


def _count(problem: Problem, group: tuple[int, ...]) -> int:
    """Return the number of all choices of a group."""
    return sum(math.prod(map(len, hosts)) for hosts in _by_level(problem, group))


def _by_level(problem: Problem, group: tuple[int, ...]) -> list[list[list[int]]]:
    """Return for each level on which a group can run the hosts of each of its operators there, in order."""
    listed = [sorted(problem.application.operators[o].hosts or ()) for o in group]
    levels = sorted({problem.level_of(h) for hosts in listed for h in hosts})
    found = [[[h for h in hosts if problem.level_of(h) == level] for hosts in listed] for level in levels]
    return [hosts for hosts in found if all(hosts)]


def choices_of(problem: Problem, group: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return choices of a group: a host for each operator, all of one level.

    They are all of a level, or only the first hosts, where there are too many.
    """
    if len(group) == 1:
        (what,) = (problem.application.operators[o] for o in group)
        every = range(len(problem.hosts)) if what.hosts is None else sorted(what.hosts)
        return [(what.host,)] if what.host is not None else [(host,) for host in every]
    found: list[tuple[int, ...]] = []
    for hosts in _by_level(problem, group):
        few = math.prod(map(len, hosts)) <= _MOST
        found += product(*hosts) if few else [tuple(among[0] for among in hosts)]
    return found


def _service(problem: Problem, group: tuple[int, ...], hosts: tuple[int, ...]) -> float:
    application, has = problem.application, problem.hosts
    total = 0.0
    for o, host in zip(group, hosts, strict=True):
        if application.operators[o].host is None and (
            application.work[o] > has.cpu_free[host] or application.room[o] > has.memory_free[host]
        ):
            return float("inf")
        total += application.paths[o] * service_time(problem, o, host)
    return total
