"""Why a problem has no placement: the smallest change of one constraint with which it has one. Pure.

The host at which a strategy failed says little: an operator may lack memory there only because a link leaves no other
host. So the constraints are dropped one class at a time; where that makes a placement possible, the class is tightened
again as far as it goes, and what that placement exceeds is what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headwater.placement.cost import Shortage, shortages
from headwater.placement.index import Index
from headwater.placement.necessary import HostPrices, hopeless
from headwater.placement.network import Link
from headwater.placement.problem import Application, Hosts, Ints, Placement, Problem, Stream
from headwater.placement.queueing import Floats
from headwater.placement.why import Unplaceable

Find = Callable[[Problem, HostPrices, bool], Placement | None]
"""Returns a placement that meets all constraints, or None; ``True``: only if it is found at once."""

_HALVINGS = 3
"""Steps by which the least sufficient multiple of a capacity is narrowed down."""
_LIST = 2.0
"""Multiple of a capacity that counts as much as another allowed host or level."""
_MANY = 500
"""Hosts above which only the nearest and the strongest are looked at."""
_FRONTS, _STRONGEST = 2, 8
_MOST_SINGLE = 12
"""Overloaded links that are widened one by one."""
_MOST_ALONE = 4
"""Hosts that are tried alone."""
_CLOSE = 1.01
"""Factor within which a multiple counts as the least, before the first search for a smaller one."""
_ABOVE = 1.1
"""The same after it: a search takes long."""
_BOUNDS = 5
"""Steps by which a bound of the least multiple is narrowed down, without a search."""
_SLACK = 1 + 1e-6
_FEWEST, _WORK = 12, 4_000
"""Least number of searches, and of placed operators in all of them."""


@dataclass(frozen=True)
class Relaxation:
    """A change of one class of constraints that makes a placement possible.

    ``times``: the multiple of the capacities that it takes. ``placement``: one that is possible then, and
    ``missing``: what it exceeds.
    """

    kind: str
    times: float
    placement: Placement
    missing: tuple[Shortage, ...]


@dataclass
class _Searches:
    """Searches for placements, of which the last ones find nothing.

    ``left``: how many there still are. ``prices``: those found so far, which later searches begin with.
    """

    find: Find
    left: int
    prices: HostPrices = field(default_factory=dict)

    def placement(self, problem: Problem, *, at_once: bool = False) -> Placement | None:
        """Return a placement that meets all constraints, or None; ``at_once``: without a long search."""
        self.left -= 1
        return self.find(problem, self.prices, at_once) if self.left >= 0 else None

    def is_hopeless(self, problem: Problem) -> bool:
        """Return whether there is certainly none."""
        return hopeless(problem, self.prices) is not None


@dataclass(frozen=True)
class _Kind:
    """A class of constraints: how its capacities are multiplied, and the names of its shortages."""

    name: str
    multiplied: Callable[[Problem, float, int | None], Problem]
    constraints: tuple[str, ...]
    places: tuple[str, ...] = ("",)
    """How the places of its shortages begin."""

    def widened(self, problem: Problem, times: float, host: int | None = None) -> Problem:
        """Return the problem with a multiple of these capacities, of all hosts or of one."""
        return self.multiplied(problem, times, host)

    def missing(self, problem: Problem, placement: Placement) -> tuple[Shortage, ...]:
        """Return what a placement exceeds of this class."""
        found = [s for s in shortages(problem, placement) if s.constraint in self.constraints]
        found = [s for s in found if s.where.startswith(self.places)]
        # A stream over a full link has no transfer rate either: the link says more.
        wide = [s for s in found if s.constraint == "bandwidth"]
        return tuple(sorted(wide or found, key=lambda s: -_ratio(s)))


def explained(problem: Problem, error: Unplaceable, find: Find) -> Unplaceable:
    """Return an error that names the smallest sufficient relaxation, and others that would also do.

    Returns the given one if no change of capacities, allowed hosts and levels makes a placement possible.
    """
    small, of = _reduced(problem)
    searches = _Searches(find, max(_FEWEST, _WORK // len(problem.application)))
    found = sorted(_relaxations(small, searches), key=lambda one: one.times)
    if not found:
        several = _several(small, searches)
        return error if several is None else Unplaceable(_operator(small, several), list(several.missing))
    best, *others = found
    missing = [s if s.host is None else replace(s, host=int(of[s.host])) for s in best.missing]
    return Unplaceable(_operator(small, best), missing, also=[str(one.missing[0]) for one in others])


def _relaxations(problem: Problem, searches: _Searches) -> Iterator[Relaxation]:
    """Yield the classes of constraints each of which suffices alone."""
    kinds = [(kind, searches.placement(kind.widened(problem, math.inf))) for kind in _capacities(problem)]
    lists = list(_lists(problem, searches))
    for kind, placement in kinds:
        if placement is None or not kind.missing(problem, placement):
            continue
        if kind.name == "bandwidth":
            yield from _narrowest(problem, kind, placement, searches)
        else:
            yield _least(problem, kind, placement, searches)
    yield from lists


# ------------------------------------------------------------ capacities


def _capacities(problem: Problem) -> tuple[_Kind, ...]:
    return (
        _Kind("cpu", _more_cpu, ("cpu", "processing rate")),
        _Kind("memory", _more_memory, ("memory",)),
        _Kind("bandwidth", _wider, ("bandwidth", "transfer rate")),
    )


def _more_cpu(problem: Problem, times: float, host: int | None) -> Problem:
    return _on(problem, replace(problem.hosts, cpu=_times(problem.hosts.cpu, times, host)))


def _more_memory(problem: Problem, times: float, host: int | None) -> Problem:
    return _on(problem, replace(problem.hosts, memory=_times(problem.hosts.memory, times, host)))


def _wider(problem: Problem, times: float, host: int | None) -> Problem:
    lan_bandwidth = _times(problem.hosts.lan_bandwidth, times, host)
    wide = _on(problem, replace(problem.hosts, lan_bandwidth=lan_bandwidth))
    network = problem.network if host is not None else problem.network.widened(None, times)
    return replace(wide, topology=replace(wide.topology, network=network))


def _times(capacity: Floats, times: float, host: int | None) -> Floats:
    wide = np.full_like(capacity, math.inf) if math.isinf(times) else capacity * times
    return wide if host is None else np.where(np.arange(len(capacity)) == host, wide, capacity)


def _on(problem: Problem, hosts: Hosts) -> Problem:
    return replace(problem, topology=replace(problem.topology, hosts=hosts))


def _least(problem: Problem, kind: _Kind, placement: Placement, searches: _Searches) -> Relaxation:
    """Tighten a class again, as long as a placement is found."""
    high = _needed(kind.missing(problem, placement))
    low = _bound(problem, kind, high, searches)
    for turn in range(_HALVINGS):
        if math.isinf(high) or high <= low * (_ABOVE if turn else _CLOSE):
            break
        # The first placement often has the least already.
        middle = high / _CLOSE if turn == 0 else math.sqrt(low * high)
        other = searches.placement(kind.widened(problem, middle))
        missing = () if other is None else kind.missing(problem, other)
        if other is None or not missing:
            low = middle
        else:
            placement, high = other, min(middle, _needed(missing))
    missing = kind.missing(problem, placement)
    # One host may be enough; others were only used since they had become larger, too.
    for short in missing[:_MOST_ALONE] if len(missing) > 1 else ():
        alone = None if short.host is None else searches.placement(kind.widened(problem, high, short.host))
        if alone is not None and (fewer := kind.missing(problem, alone)) and len(fewer) < len(missing):
            placement, missing = alone, fewer
            break
    return Relaxation(kind.name, high, placement, missing)


def _bound(problem: Problem, kind: _Kind, high: float, searches: _Searches) -> float:
    """Return a multiple with which no placement is possible, near the least for which that is not known."""
    low = 1.0
    for _ in range(_BOUNDS if math.isfinite(high) else 0):
        if high <= low * _ABOVE:
            break
        middle = math.sqrt(low * high)
        if searches.is_hopeless(kind.widened(problem, middle)):
            low = middle
        else:
            high = middle
    return low


def _needed(missing: Sequence[Shortage]) -> float:
    return max(map(_ratio, missing), default=1.0) * _SLACK


def _ratio(short: Shortage) -> float:
    return short.needed / short.available if short.available > 0 else math.inf


def _narrowest(problem: Problem, every: _Kind, placement: Placement, searches: _Searches) -> Iterator[Relaxation]:
    """Yield each single host's access or link whose bandwidth suffices alone, else all that are needed.

    Once one is known, others are not searched for long: they are only told in addition.
    """
    places = dict.fromkeys((s.host, s.link) for s in every.missing(problem, placement))
    places |= dict.fromkeys((what.host, None) for what in problem.application.operators)
    found = False
    for kind in [_single(problem, *place) for place in places if place != (None, None)][:_MOST_SINGLE]:
        alone = searches.placement(kind.widened(problem, math.inf), at_once=found)
        if alone is not None and kind.missing(problem, alone):
            found = True
            yield _least(problem, kind, alone, searches)
    if not found:
        yield _least(problem, every, placement, searches)


def _single(problem: Problem, host: int | None, link: Link | None) -> _Kind:
    """Return the class of the access of one host to its LAN, or of one link."""
    if link is not None:

        def widened(of: Problem, times: float, _: int | None) -> Problem:
            return replace(of, topology=replace(of.topology, network=of.network.widened(link, times)))

        return _Kind("link", widened, ("bandwidth",), (problem.topology.link_name(link),))

    def more(of: Problem, times: float, _: int | None) -> Problem:
        return _wider(of, times, host)

    name = problem.hosts.name(host or 0)
    return _Kind("LAN", more, ("bandwidth",), (f"LAN out of {name}", f"LAN into {name}"))


# ------------------------------------------------------------ allowed hosts and levels


def _lists(problem: Problem, searches: _Searches) -> Iterator[Relaxation]:
    """Yield the operators that could run elsewhere, and the groups that could run on several levels."""
    application = problem.application
    listed = [o for o in application.order if _is_limited(application, o)]
    everywhere = replace(problem, application=_free(application, listed), together=(), banned=frozenset())
    if (listed or problem.together) and searches.placement(everywhere) is None:
        return
    for o in listed:
        relaxed = replace(problem, application=_free(application, [o]))
        if o in problem.group_of:
            groups = tuple(tuple(x for x in g if x != o) for g in problem.together)
            relaxed = replace(relaxed, together=tuple(g for g in groups if len(g) > 1), banned=frozenset())
        placement = searches.placement(relaxed)
        if placement is not None:
            missing = [s for s in shortages(problem, placement) if s.constraint in ("allowed host", "one level")]
            if missing:
                yield Relaxation("allowed host", _LIST, placement, tuple(missing))
    if problem.together:
        placement = searches.placement(replace(problem, together=(), banned=frozenset()))
        if placement is not None:
            missing = [s for s in shortages(problem, placement) if s.constraint == "one level"]
            if missing:
                yield Relaxation("one level", _LIST, placement, tuple(missing))


def _is_limited(application: Application, operator: int) -> bool:
    """Return whether an operator lists its hosts, and is neither a source nor a sink."""
    inside = bool(application.upstream[operator]) and bool(application.downstream[operator])
    what = application.operators[operator]
    return inside and what.host is None and what.hosts is not None


def _free(application: Application, operators: Sequence[int]) -> Application:
    among = set(operators)
    changed = tuple(replace(o, hosts=None) if n in among else o for n, o in enumerate(application.operators))
    return Application(changed, application.streams)


# ------------------------------------------------------------ several classes at once


def _several(problem: Problem, searches: _Searches) -> Relaxation | None:
    """Return the classes of capacities that suffice together: those that cannot be tightened again."""
    kinds = list(_capacities(problem))

    def found(among: Sequence[_Kind]) -> Placement | None:
        relaxed = problem
        for kind in among:
            relaxed = kind.widened(relaxed, math.inf)
        return searches.placement(relaxed)

    placement = found(kinds)
    if placement is None:
        return None
    for kind in tuple(kinds):
        rest = [other for other in kinds if other is not kind]
        if (without := found(rest)) is not None:
            kinds, placement = rest, without
    missing = tuple(s for kind in kinds for s in kind.missing(problem, placement)[:1])
    return Relaxation("several", math.inf, placement, missing)


# ------------------------------------------------------------ the operator, and a smaller problem


def _operator(problem: Problem, of: Relaxation) -> str:
    """Return the operator that needs most of what is missing first."""
    application, short = problem.application, of.missing[0]
    if short.operator is not None:
        return application.operators[short.operator].name
    needs: Mapping[int, float]
    if short.constraint in ("cpu", "memory"):
        each = application.work if short.constraint == "cpu" else application.room
        needs = {o: each[o] for o in application.free if of.placement[o] == short.host}
    else:
        needs = {
            u: application.flow((u, v), 0).bandwidth
            for u, v in application.streams
            if of.placement[u] != of.placement[v] and _uses(problem, of.placement, (u, v), short)
        }
    most = max(needs, key=lambda o: (needs[o], -o), default=0)
    return application.operators[most].name


def _uses(problem: Problem, placement: Placement, stream: Stream, short: Shortage) -> bool:
    """Return whether a stream takes of the bandwidth that is missing."""
    u, v = (placement[o] for o in stream)
    if short.host is not None:
        return short.host in (u, v)
    route = problem.network.route(problem.zone_of(u), problem.zone_of(v))
    return short.link is None or short.link in (route or ())


def _reduced(problem: Problem) -> tuple[Problem, Ints]:
    """Return a problem with few of many hosts, and their numbers.

    What makes a placement possible there does so with all hosts, too.
    """
    hosts, application = problem.hosts, problem.application
    if len(hosts) <= _MANY or any(o.hosts is not None for o in application.operators):
        return problem, np.arange(len(hosts))
    pinned = {o.host for o in application.operators if o.host is not None}
    kept = set(pinned)
    index = Index.of(problem.topology)
    clouds = np.flatnonzero(problem.topology.cloud)
    for zone in {problem.zone_of(h) for h in pinned} | set(clouds[:_STRONGEST].tolist()):
        kept |= set(index.front(zone, _FRONTS).hosts)
    for capacity in (hosts.cpu_free, hosts.memory_free, hosts.lan_bandwidth):
        kept |= set(np.argsort(-capacity, kind="stable")[:_STRONGEST].tolist())
    numbers = np.array(sorted(kept))
    at = {int(h): n for n, h in enumerate(numbers)}

    def some(field: Floats | None) -> Floats | None:
        return None if field is None else field[numbers]

    few = Hosts(
        cpu=hosts.cpu[numbers],
        memory=hosts.memory[numbers],
        zone=hosts.zone[numbers],
        lan_latency=hosts.lan_latency[numbers],
        lan_bandwidth=hosts.lan_bandwidth[numbers],
        cpu_used=some(hosts.cpu_used),
        memory_used=some(hosts.memory_used),
        processes=None if hosts.processes is None else hosts.processes[numbers],
        names=[hosts.name(int(h)) for h in numbers],
    )
    operators = tuple(o if o.host is None else replace(o, host=at[o.host]) for o in application.operators)
    topology = replace(problem.topology, hosts=few)
    return Problem(topology, Application(operators, application.streams)), numbers
