"""A beam search through cost tables, within the cpu and memory of hosts: placements, and a bound. Pure.

All partial placements of the same operators are looked at together. One is left out if another has the same hosts for
all operators on which later costs depend, costs no more, and takes no more of any host; of the rest, the cheapest
``width`` are kept. The cheapest of those left out for want of width, and the cheapest complete one, bound the AL of all
placements. Links and LAN access are only checked at the end, so the bound holds for any.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headwater.placement.cost import ROUNDING, shortages
from headwater.placement.problem import Ints, Placement
from headwater.placement.queueing import Floats
from headwater.placement.tables import Tables

_MOST_HOSTS, _MOST_VALUES = 200, 50_000
"""Hosts that may become full, and values of all variables, above which there is no search."""
_ENTRIES = 1_000_000
"""Of the costs that are looked at together."""
_SPARE = 4
"""Multiple of the width up to which dominated partial placements are looked for."""
_MOST_GROUPS = 1 << 62
"""Number of groups above which they are numbered anew: more do not fit into an integer."""
_RIVALS = 8
"""Cheaper partial placements with the same hosts of which one may dominate."""
_TRIED = 50
"""Complete placements that are checked against all constraints."""


@dataclass(frozen=True)
class Beam:
    """Result of a beam search.

    ``placement``: the cheapest one that was found within all constraints, of AL ``latency`` (s); None if there is none
    below the value known before. ``bound``: no placement has less. ``complete``: none was left out for want of width.
    ``relaxed``: the values of the cheapest solution with stand-ins below it. ``seen``: number of partial placements.
    """

    placement: Placement | None
    latency: float
    bound: float
    complete: bool
    relaxed: Mapping[int, int]
    seen: int


@dataclass(frozen=True, eq=False)
class _Needs:
    """What each value of a variable takes, of hosts that may become full.

    ``hosts``: [value, operator] the host's row in the capacities; the last row is never full. ``amounts``:
    [value, operator, resource] what all operators of the variable take of that host.
    """

    hosts: Ints
    amounts: Floats


@dataclass(frozen=True, eq=False)
class _Partial:
    """Partial placements, the cheapest first.

    [n, variable] values, [n] costs and the charges in them, [n, host, resource] what is taken.
    """

    values: Ints
    costs: Floats
    charges: Floats
    taken: Floats

    def __getitem__(self, chosen: Ints | slice) -> _Partial:
        return _Partial(self.values[chosen], self.costs[chosen], self.charges[chosen], self.taken[chosen])


def beam(tables: Tables, width: int, known: float) -> Beam | None:
    """Search for placements of less than ``known`` (s); None if there are too many hosts."""
    order = tables.eliminated.order
    if sum(len(tables.choices[variable]) for variable in order) > _MOST_VALUES:
        return None
    free, needs = _capacities(tables)
    if len(free) > _MOST_HOSTS:
        return None
    column = {variable: n for n, variable in enumerate(order)}
    last = _last_uses(tables, column)
    charged = np.array([-tables.credit])
    partial = _Partial(np.zeros((1, 0), np.int64), np.array([tables.bound]), charged, np.zeros((1, *free.shape)))
    left, seen = math.inf, 0
    for depth, variable in enumerate(order):
        most = min(width, _ENTRIES // len(tables.choices[variable]))
        left, partial = _least_of_rest(partial.costs, most, left), partial[:most]
        costs = partial.costs[:, None] + _increments(tables, variable, partial.values, column)
        row, value = np.nonzero(costs < known)
        costs = costs[row, value]
        fits = _fitting(partial, needs[variable], row, value, free)
        fits = fits[np.argsort(costs[fits], kind="stable")]
        seen += len(fits)
        left, fits = _least_of_rest(costs[fits], _SPARE * width, left), fits[: _SPARE * width]
        extended = _extended(
            partial, needs[variable], tables.charges.get(variable), row[fits], value[fits], costs[fits]
        )
        partial = extended[_undominated(extended, [n for n in range(depth + 1) if last[n] > depth])]
    return _result(tables, partial, known, left, seen)


def _result(tables: Tables, complete: _Partial, known: float, left: float, seen: int) -> Beam:
    """Check complete placements against all constraints, the cheapest first."""
    order, problem = tables.eliminated.order, tables.problem
    placement, latency = None, known
    relaxed: dict[int, int] = {}
    fixed = {o: what.host for o, what in enumerate(problem.application.operators) if what.host is not None}
    costs = complete.costs - complete.charges
    for n in np.argsort(costs, kind="stable")[:_TRIED].tolist():
        if not costs[n] < known:  # charges may have hidden it
            break
        values = dict(zip(order, complete.values[n].tolist(), strict=True))
        hosts = dict(fixed)
        for variable, value in values.items():
            hosts.update(zip(tables.members[variable], tables.choices[variable][value], strict=True))
        if min(hosts.values()) < 0:
            relaxed = relaxed or values
            continue
        found = tuple(hosts[o] for o in range(len(problem.application)))
        if not shortages(problem, found):
            placement, latency = found, float(costs[n])
            break
    bound = min(known, left, float(costs.min(initial=math.inf)))
    return Beam(placement, latency, bound, math.isinf(left), relaxed, seen)


def _capacities(tables: Tables) -> tuple[Floats, Mapping[int, _Needs]]:
    """Return [host, resource] the capacities of hosts that may become full, and what values take of them."""
    problem, order = tables.problem, tables.eliminated.order
    operators = problem.application.operators
    need = np.column_stack((problem.application.work, problem.application.room))
    need[[what.host is not None for what in operators]] = 0.0
    most: dict[int, Floats] = {}
    for variable in order:
        for o, hosts in zip(tables.members[variable], zip(*tables.choices[variable], strict=True), strict=True):
            for host in set(hosts):
                most[host] = most.get(host, 0.0) + need[o]
    has = problem.hosts
    rows: dict[int, int] = {}
    free: list[tuple[float, float]] = []
    for host, amounts in most.items():
        there = float(has.cpu_free[host]), float(has.memory_free[host])
        if host >= 0 and (amounts > there).any():
            rows[host] = len(free)
            free.append(there)
    free.append((math.inf, math.inf))
    # A sum may exceed a host that is exactly full by rounding; ``shortages`` allows that, too.
    return np.array(free) * (1 + ROUNDING), {variable: _needs(tables, variable, rows, need) for variable in order}


def _needs(tables: Tables, variable: int, rows: Mapping[int, int], need: Floats) -> _Needs:
    members = tables.members[variable]
    at = np.array([[rows.get(host, len(rows)) for host in hosts] for hosts in tables.choices[variable]])
    each = need[list(members)]
    # Operators of one variable on the same host take of it together.
    amounts = ((at[:, :, None] == at[:, None, :])[..., None] * each).sum(axis=2)
    return _Needs(at, amounts)


def _last_uses(tables: Tables, column: Mapping[int, int]) -> list[int]:
    """Return for each variable the last one whose costs depend on it."""
    found = list(range(len(column)))
    for variable, n in column.items():
        for other in tables.eliminated.tables[variable][0][1:]:
            found[column[other]] = max(found[column[other]], n)
    return found


def _increments(tables: Tables, variable: int, values: Ints, column: Mapping[int, int]) -> Floats:
    """Return the increase of the bound by each value of a variable, for each partial placement."""
    scope, _ = tables.eliminated.tables[variable]
    return tables.eliminated.increments(variable, {v: values[:, column[v]] for v in scope[1:]})


def _fitting(partial: _Partial, needs: _Needs, row: Ints, value: Ints, free: Floats) -> Ints:
    """Return which of the values fit to the partial placements in ``row``."""
    at = needs.hosts[value]
    there = partial.taken[row[:, None], at] + needs.amounts[value]
    return np.flatnonzero((there <= free[at]).all(axis=(1, 2)))


def _extended(
    partial: _Partial, needs: _Needs, charge: Floats | None, row: Ints, value: Ints, costs: Floats
) -> _Partial:
    """Return the partial placements in ``row`` with a further value each."""
    at, rows = needs.hosts[value], np.arange(len(row))[:, None]
    taken = partial.taken[row]
    # Not +=: a host that occurs twice in a value has the sum of both in each amount.
    taken[rows, at] = taken[rows, at] + needs.amounts[value]
    taken[:, -1] = 0.0
    charges = partial.charges[row] + (0.0 if charge is None else charge[value])
    return _Partial(np.column_stack((partial.values[row], value)), costs, charges, taken)


def _least_of_rest(costs: Floats, width: int, left: float) -> float:
    """Return the least cost of all left out so far, if only the cheapest are kept."""
    return left if len(costs) <= width else min(left, float(costs[width]))


def _undominated(partial: _Partial, open_columns: Sequence[int]) -> Ints:
    """Return those that no other one with the same values of the open variables is known to dominate."""
    group, groups = np.zeros(len(partial.costs), np.int64), 1
    for n in open_columns:
        of = partial.values[:, n]
        size = int(of.max(initial=0)) + 1
        if groups * size > _MOST_GROUPS:
            group = np.unique(group, return_inverse=True)[1]
            groups = len(group)
        group, groups = group * size + of, groups * size
    order = np.lexsort((partial.costs - partial.charges, group))
    group, taken = group[order], partial.taken[order]
    kept = np.ones(len(order), np.bool_)
    for ahead in range(1, min(_RIVALS, len(order) - 1) + 1):
        kept[ahead:] &= (group[ahead:] != group[:-ahead]) | (taken[ahead:] < taken[:-ahead]).any(axis=(1, 2))
    found: Ints = np.sort(order[kept])
    return found
