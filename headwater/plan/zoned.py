"""Operators that take the rows of all locations in one zone, and rows that are divided among locations again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from headwater.continuum.model import Continuum
from headwater.core.place import zone_named
from headwater.dataflow.graph import Dataflow
from headwater.plan.deployment import Edge

Places = Mapping[str, str]
"""By operator, a layer or ``zone NAME``."""


def zones_by_name(dataflow: Dataflow, places: Iterable[Places]) -> dict[str, str]:
    """Return the zone of each operator that takes all rows in a zone: as marked, or as it runs in some of the places.

    An operator without a mark has that of its inputs, where they have one in common.
    """
    marks: dict[str, str | None] = {}
    for id_ in dataflow.order:
        above = {marks[i] for i in dataflow[id_].inputs}
        marks[id_] = dataflow[id_].layer or (above.pop() if len(above) == 1 else None)
    named = (own.items() for own in (marks, *places))
    return {id_: zone for id_, place in chain(*named) if (zone := zone_named(place)) is not None}


def divided_edges(dataflow: Dataflow, continuum: Continuum, places: Iterable[Places]) -> frozenset[Edge]:
    """Return the edges over which rows are divided among locations: down the tree, or from a zone by name."""
    locations = dataflow.locations or continuum.locations

    def divides(before: str, behind: str) -> bool:
        if zone_named(behind) is not None:
            return False
        if continuum.height(behind) < continuum.height(before):
            return True
        return zone_named(before) is not None and len({continuum.zone_at(behind, x) for x in locations}) > 1

    edges = ((parent, id_) for id_ in dataflow.order for parent in dataflow[id_].inputs)
    known = tuple(places)
    return frozenset((p, c) for p, c in edges if any(divides(own[p], own[c]) for own in known))
