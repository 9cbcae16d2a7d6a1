"""Keep locations together whose rows are merged: the operators behind take them in one place. Pure.

Operators may be in different layers for different locations. A location that comes into a zone, or moves to another
one, meets locations there whose operators were moved: their rows are merged in one unit, and cannot be parted again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headwater.continuum.model import Continuum
from headwater.core.place import zone_named
from headwater.dataflow.graph import Dataflow
from headwater.plan.deployment import Edge, Placement

Places = dict[str, dict[str, str]]
"""By location, the place of each operator."""


def together(
    flow: Dataflow,
    continuum: Continuum,
    places: Mapping[str, Mapping[str, str]],
    *,
    only: Mapping[str, Collection[str]],
    free: Collection[Edge],
    running: Placement,
) -> Places:
    """Return places that part no locations whose rows are merged.

    Where these differ, the highest place of a running operator counts, or of all if it runs at none of them. ``only``:
    the locations of operators that take the rows of some. Over ``free`` edges rows may be parted.
    """
    found = {x: dict(own) for x, own in places.items()}
    for id_ in flow.order:
        here = [x for x in found if x in only.get(id_, found)]
        inputs = [p for p in dict.fromkeys(flow[id_].inputs) if (p, id_) not in free]
        for group in _merged(continuum, found, here, inputs):
            own = {found[x][id_] for x in group}
            if len(own) == 1 or any(zone_named(place) is not None for place in own):
                continue
            known = {found[x][id_] for x in group if (id_, x) in running} or own
            highest = max(known, key=continuum.height)
            for x in group:
                found[x][id_] = highest
        for x in here:
            found[x][id_] = max((found[x][id_], *(found[x][p] for p in inputs)), key=continuum.height)
    return found


def _merged(continuum: Continuum, places: Places, here: list[str], inputs: list[str]) -> list[set[str]]:
    """Return the locations whose rows some input has in one zone."""
    found: list[set[str]] = []
    for parent in inputs:
        by_zone: dict[str, set[str]] = {}
        for x in here:
            if (zone := continuum.zone_at(places[x][parent], x)) is not None:
                by_zone.setdefault(zone.name, set()).add(x)
        for group in by_zone.values():
            joined = [one for one in found if one & group]
            found = [one for one in found if not one & group] + [group.union(*joined)]
    return found
