"""In which zone each operator takes the rows of each location, and what must not be. Pure.

Data moves only up the tree of zones. Rows of two locations that have come together stay together: they are
in one query or one channel from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headwater.continuum import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.errors import ErrorList, HeadwaterError, PlacementError, suggestion
from headwater.plan.model import Deployment

Zones = Mapping[str, Mapping[str, str]]
"""For each operator and location, the zone."""


def zones_of(dataflow: Dataflow, continuum: Continuum, deployment: Deployment) -> Zones:
    """Find the zone of each operator and location; raise ErrorList with a reason for each that has none."""
    locations = dataflow.locations or continuum.locations
    problems = _unknown(dataflow, continuum, deployment, locations)
    if problems:
        raise ErrorList(problems)
    problems = _direction_problems(dataflow, continuum, deployment, locations)
    where = f"dataflow '{dataflow.name}'"
    unknown = [x for x in locations if x not in continuum.locations]
    problems += [
        _strange(f"no zone covers location {x}", where, x, continuum.locations, "there are") for x in unknown
    ]
    if not locations:
        problems.append(
            PlacementError(
                "neither the dataflow nor the continuum names a location",
                where=where,
                hint="give zones of the lowest layer their 'locations'",
            )
        )
    zones: Zones = {}
    if locations and not unknown:
        zones, uncovered = _covering(dataflow, continuum, deployment, locations)
        problems += uncovered + _source_problems(dataflow, zones)
    if not problems:
        problems = _replication_problems(dataflow, deployment, zones)
        problems += _parted(dataflow, zones)
    if problems:
        raise ErrorList(problems)
    return zones


def distinct(zones: Zones, operator: str) -> tuple[str, ...]:
    """Name the zones in which an operator runs, in the order of locations."""
    return tuple(dict.fromkeys(zones[operator].values()))


def _strange(what: str, where: str | None, name: str, known: Iterable[str], or_else: str) -> PlacementError:
    return PlacementError(what, where=where, hint=suggestion(name, known, or_else))


def _unknown(
    dataflow: Dataflow, continuum: Continuum, deployment: Deployment, locations: tuple[str, ...]
) -> list[HeadwaterError]:
    """Say what of a deployment's layers by location speaks of nothing that is there."""
    where, layers = f"dataflow '{dataflow.name}'", [layer.name for layer in continuum.layers]
    problems: list[HeadwaterError] = []
    for location, own in deployment.at.items():
        if location not in locations:
            text = f"has other layers at {location}, which is no location of it"
            problems.append(_strange(text, where, location, locations, "its locations are"))
        for operator, layer in own.items():
            if operator not in dataflow:
                text = f"'{operator}', which is to be in {layer} at {location}, is no operator of it"
                problems.append(_strange(text, where, operator, dataflow.order, "its operators are"))
            if layer not in layers:
                text = f"there is no layer '{layer}', in which '{operator}' is to be at {location}"
                problems.append(_strange(text, where, layer, layers, "the layers are"))
    return problems


def _direction_problems(
    dataflow: Dataflow, continuum: Continuum, deployment: Deployment, locations: tuple[str, ...]
) -> list[HeadwaterError]:
    problems: list[HeadwaterError] = []
    for id_ in dataflow.order:
        for parent in dataflow[id_].inputs:
            wrong: dict[tuple[str, str], list[str]] = {}
            for location in locations:
                low, high = deployment.layer(id_, location), deployment.layer(parent, location)
                if continuum.layer_index(low) < continuum.layer_index(high):
                    wrong.setdefault((low, high), []).append(location)
            for (low, high), found in wrong.items():
                at = "" if len(found) == len(locations) else f" at {', '.join(found)}"
                problems.append(
                    PlacementError(
                        f"runs in layer {low}{at}, below its input '{parent}' in layer {high}",
                        where=dataflow[id_].where,
                        hint=f"data moves up: put '{id_}' in {high} or higher, or '{parent}' lower",
                    )
                )
    return problems


def _covering(
    dataflow: Dataflow, continuum: Continuum, deployment: Deployment, locations: tuple[str, ...]
) -> tuple[Zones, list[HeadwaterError]]:
    """Find the zones, and say which are missing."""
    zones: dict[str, dict[str, str]] = {id_: {} for id_ in dataflow.order}
    first: dict[tuple[str, str], str] = {}
    covering: dict[tuple[str, str], str | None] = {}
    for id_ in dataflow.order:
        for location in locations:
            place = deployment.layer(id_, location), location
            if place not in covering:
                zone = continuum.covering(*place)
                covering[place] = None if zone is None else zone.name
                first[place] = id_
            if (name := covering[place]) is not None:
                zones[id_][location] = name
    problems: list[HeadwaterError] = [
        PlacementError(
            f"no zone of layer {layer} covers location {location}",
            where=dataflow[first[layer, location]].where,
            hint=f"add the location to a zone of layer {layer}, or drop it from the dataflow's locations",
        )
        for (layer, location), found in covering.items()
        if found is None
    ]
    return zones, problems


def _source_problems(dataflow: Dataflow, zones: Zones) -> list[HeadwaterError]:
    return [
        PlacementError(
            f"the same input would be read in {len(found)} zones: {', '.join(found)}",
            where=source.where,
            hint="put {location} into its path, or read it in a layer that has one zone",
        )
        for source in dataflow.sources
        if not source.per_location and len(found := distinct(zones, source.id)) > 1
    ]


def _replication_problems(dataflow: Dataflow, deployment: Deployment, zones: Zones) -> list[HeadwaterError]:
    """Refuse to run an operator in several zones where rows of one key could meet only in one.

    This is what keeps results the same wherever operators are placed.
    """
    problems: list[HeadwaterError] = []
    for id_ in dataflow.order:
        operator, found = dataflow[id_], distinct(zones, id_)
        keys = operator.partition_keys()
        if keys is None or len(found) < 2:
            continue
        located = frozenset.intersection(*(dataflow.types[i].located_by for i in operator.inputs))
        if not {k.lower() for k in keys} & {c.lower() for c in located}:
            by = f"the keys ({', '.join(keys)}) do" if keys else "it has no keys, which does"
            layers = dict.fromkeys(deployment.layer(id_, location) for location in zones[id_])
            problems.append(
                PlacementError(
                    f"runs in {len(found)} zones ({', '.join(found)}), but {by} not tell the location apart",
                    where=operator.where,
                    hint=(
                        f"add the location column to its keys ({', '.join(sorted(located))})"
                        if located
                        else "read the source with location_as='location' and add it to the keys"
                    )
                    + f", or run it in a layer where one zone sees all rows (not {', '.join(layers)})",
                )
            )
    return problems


def _parted(dataflow: Dataflow, zones: Zones) -> list[HeadwaterError]:
    """Refuse to part locations whose rows have come together in one zone."""
    problems: list[HeadwaterError] = []
    for id_ in dataflow.order:
        for parent in dict.fromkeys(dataflow[id_].inputs):
            for zone in distinct(zones, parent):
                together = [x for x, z in zones[parent].items() if z == zone]
                apart = dict.fromkeys(zones[id_][x] for x in together)
                if len(apart) > 1:
                    ways = [f"{z} ({', '.join(x for x in together if zones[id_][x] == z)})" for z in apart]
                    problems.append(
                        PlacementError(
                            f"would run in {' and '.join(ways)}, but '{parent}', which it reads, has the "
                            f"rows of {', '.join(together)} together in zone {zone}",
                            where=dataflow[id_].where,
                            hint=f"put '{id_}' in one layer for {', '.join(together)}",
                        )
                    )
    return problems
