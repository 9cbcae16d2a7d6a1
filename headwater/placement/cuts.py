"""The cuts of each source's stream between zones: the choices of a scheduler over a tree. Pure.

The operators that only one source leads to are that source's *branch*. It can be placed independently, except
for the capacity of hosts and links. A choice of a branch is a host for each of its operators such that data goes
up only: with two levels this is a cut with all before it below and all behind it above.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from headwater.core.errors import PlacementError
from headwater.placement.problem import Problem

_MOST_CELLS = 4_000_000
"""Choices × operators of a branch."""


@dataclass(frozen=True)
class TreeBranch:
    """A source and its exclusive operators, upstream first, and the choices of their hosts."""

    source: int
    operators: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]
    """For each choice a host for each operator."""


def branches(problem: Problem, *, most: int = 100_000) -> tuple[TreeBranch, ...]:
    """Return each source's branch. Every operator needs a list of allowed hosts.

    Raises PlacementError if a branch has no choice, or more than ``most``, or its table would be too large.
    """
    application = problem.application
    fed: list[set[int]] = [set() for _ in application.operators]
    for o in application.order:
        up = application.upstream[o]
        fed[o] = set.union(*(fed[u] for u in up)) if up else {o}
    found = []
    for source in application.sources:
        own = tuple(o for o in application.order if fed[o] == {source})
        limit = min(most, _MOST_CELLS // len(own))
        choices = tuple(islice(_choices(problem, own), limit + 1))
        if len(choices) > limit:
            name = application.operators[source].name
            raise PlacementError(
                f"there are more than {limit:,} ways to cut the operators fed by '{name}'",
                hint="cut at fewer places: fewer layers, or fewer parallel branches of operators",
            )
        if not choices:
            raise PlacementError(
                f"the operators fed by '{application.operators[source].name}' can run nowhere: data goes up only",
                hint="check the operators' requirements, and which layers have such hosts",
            )
        found.append(TreeBranch(source, own, choices))
    return tuple(found)


def trunks(problem: Problem, inside: Iterable[int], *, most: int = 1_000) -> tuple[dict[int, int], ...]:
    """Return the ways to place the operators that several sources lead to, which are in no branch.

    Raises PlacementError if there are more than ``most``.
    """
    branched = set(inside)
    rest = tuple(o for o in problem.application.order if o not in branched)
    found = tuple(islice(_choices(problem, rest), most + 1))
    if len(found) > most:
        raise PlacementError(
            f"there are more than {most:,} ways to place the operators behind several sources",
            hint="fix the layer of some of them with to_layer",
        )
    return tuple(dict(zip(rest, hosts, strict=True)) for hosts in found)


def hosts_of(problem: Problem, operator: int) -> tuple[int, ...]:
    """Return the hosts on which an operator may run; raise PlacementError if it has no list."""
    what = problem.application.operators[operator]
    if what.host is not None:
        return (what.host,)
    if what.hosts is None:
        raise PlacementError(f"operator '{what.name}' has no list of hosts")
    return tuple(sorted(what.hosts))


def _choices(problem: Problem, operators: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the ways to place operators, upstream first, on their hosts; data must have a route.

    No recursion: there may be thousands of operators.
    """
    application, network = problem.application, problem.network
    placed: dict[int, int] = {}

    def hosts(operator: int) -> Iterator[int]:
        above = [problem.zone_of(placed[u]) for u in application.upstream[operator] if u in placed]
        for host in hosts_of(problem, operator):
            zone = problem.zone_of(host)
            if all(network.route(lower, zone) is not None for lower in above):
                yield host

    if not operators:
        yield ()
        return
    levels = [hosts(operators[0])]
    while levels:
        operator = operators[len(levels) - 1]
        host = next(levels[-1], None)
        if host is None:
            levels.pop()
            placed.pop(operator, None)
            continue
        placed[operator] = host
        if len(levels) == len(operators):
            yield tuple(placed[o] for o in operators)
        else:
            levels.append(hosts(operators[len(levels)]))
