"""Units that take over an operator's state for locations that end in the same change. Pure.

A location ends for an operator where units of the running plan run it for the location, and none of the wanted plan
does. Its open windows, and rows of it that channels still hold, belong to exactly one heir.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from headwater.plan.model import DeploymentPlan, Unit


class Heirs:
    """For each operator, the locations that end, and the units of the wanted plan that take them over."""

    def __init__(self, running: DeploymentPlan, wanted: DeploymentPlan) -> None:
        self._old = running
        self._new = wanted
        before, after = _locations_of(running), _locations_of(wanted)
        self._ended = {o: before[o] - after[o] for o in before.keys() & after.keys() if before[o] - after[o]}
        self._kept = {c.id for c in running.channels} & {c.id for c in wanted.channels}
        self._zones = {z.name for z in running.continuum.zones}
        self._heirs: dict[tuple[str, str], tuple[Unit, ...]] = {}

    def of(self, operator: str, location: str) -> tuple[Unit, ...]:
        """Return the heirs of an operator's location: the parts of one unit; () where it does not end."""
        if location not in self._ended.get(operator, ()):
            return ()
        if (operator, location) not in self._heirs:
            self._heirs[operator, location] = self._found(operator, location)
        return self._heirs[operator, location]

    def left_to(self, unit: Unit, operators: Iterable[str]) -> tuple[str, ...]:
        """Return the ended locations of which a unit of the wanted plan takes over any of these operators."""
        ended = ((o, x) for o in operators for x in sorted(self._ended.get(o, ())))
        return tuple(dict.fromkeys(x for o, x in ended if unit in self.of(o, x)))

    def _found(self, operator: str, location: str) -> tuple[Unit, ...]:
        former = [v for v in self._old.serving((location,)) if operator in v.operators]
        holders = [u for u in self._new.units if operator in u.operators]
        same = {v.id for v in former}
        above = [u for u in holders if self._is_above(u, location)]
        near = [u for u in holders if self._takes_over(u, former)]
        among = [u for u in holders if u.id in same] or [u for u in near if u in above] or near or above
        return tuple(u for u in among if (u.zone, u.locations) == (among[0].zone, among[0].locations))

    def _is_above(self, unit: Unit, location: str) -> bool:
        """Return whether the rows of a location passed a unit's zone, or could have."""
        return unit.zone in self._zones and location in self._old.continuum.covered(unit.zone)

    def _takes_over(self, unit: Unit, former: Iterable[Unit]) -> bool:
        """Return whether a unit continues another location of former units, or a channel that these have read."""
        read = {c.id for c in self._new.inputs(unit)} & self._kept
        return any(
            not read.isdisjoint(c.id for c in self._old.inputs(v)) or not set(unit.locations).isdisjoint(v.locations)
            for v in former
        )


def _locations_of(plan: DeploymentPlan) -> Mapping[str, set[str]]:
    """Return the locations for which each operator runs."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for unit in plan.units:
        for operator in unit.operators:
            found[operator].update(unit.locations)
    return found
