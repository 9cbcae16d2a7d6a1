"""The nodes on which each operator takes the rows of each location, and checks of them. Pure.

Data moves up the tree of zones, and down to the zones of a location where rows name their location. All rows of an
operator together may go to any zone. Other rows of two locations that were merged stay together: from then on they are
in one query or one channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headwater.continuum.model import Continuum
from headwater.core.errors import ContinuumError, ErrorList, HeadwaterError, PlacementError, suggestion
from headwater.core.place import zone_named
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import Operator, ToLocations
from headwater.dataflow.sinks import Sink
from headwater.plan.deployment import HostNames, Placement


@dataclass(frozen=True)
class NodeGroup:
    """The nodes of a zone that run an operator together, its rows partitioned by key."""

    zone: str
    layer: str
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return self.zone if self.nodes == (self.zone,) else f"{', '.join(self.nodes)} ({self.zone})"


NodeGroups = Mapping[str, Mapping[str, NodeGroup]]
"""For each operator and location, the nodes."""


def locations_of(dataflow: Dataflow, continuum: Continuum) -> tuple[str, ...]:
    """Return the locations of a dataflow: its own, or all of the continuum; raise ErrorList of those not covered."""
    locations = dataflow.locations or continuum.locations
    where = f"dataflow '{dataflow.name}'"
    known = set(continuum.locations)
    problems = [
        PlacementError(
            f"no zone covers location {x}",
            where=where,
            hint=suggestion(x, continuum.locations, "there are"),
        )
        for x in locations
        if x not in known
    ]
    if not locations:
        problems.append(
            PlacementError(
                "neither the dataflow nor the continuum names a location",
                where=where,
                hint="give zones of the lowest layer their 'locations'",
            )
        )
    if problems:
        raise ErrorList(problems)
    return locations


def groups_of(dataflow: Dataflow, continuum: Continuum, placement: Placement, *, partial: bool = False) -> NodeGroups:
    """Return the nodes of each operator and location; raise ErrorList with a reason for each impossible one.

    ``partial``: an operator may take the rows of some locations only, those at which it is placed.
    """
    locations = locations_of(dataflow, continuum)
    groups, problems = _found(dataflow, continuum, placement, locations, partial=partial)
    if not problems and partial:
        problems = _unfed(dataflow, groups)
    if not problems:
        problems = _direction_problems(dataflow, continuum, groups, locations)
        problems += _source_problems(dataflow, groups)
    if not problems:
        problems = _replication_problems(dataflow, groups)
        problems += _whole_input_problems(dataflow, groups)
        problems += _parted(dataflow, continuum, groups)
    if problems:
        raise ErrorList(problems)
    return groups


def distinct(groups: NodeGroups, operator: str) -> tuple[NodeGroup, ...]:
    """Return the node groups in which an operator runs, in the order of locations."""
    return tuple(dict.fromkeys(groups[operator].values()))


def _found(
    dataflow: Dataflow, continuum: Continuum, placement: Placement, locations: tuple[str, ...], *, partial: bool
) -> tuple[NodeGroups, list[HeadwaterError]]:
    """Look up hosts, and return an error for each operator and location without valid hosts."""
    problems = _unknown(dataflow, placement, locations)
    known: dict[HostNames, NodeGroup] = {}
    covered: dict[str, frozenset[str]] = {}
    groups: dict[str, dict[str, NodeGroup]] = {id_: {} for id_ in dataflow.order}
    for id_ in dataflow.order:
        wrong: dict[HostNames, str] = {}
        foreign: dict[HostNames, str] = {}
        for location in locations:
            if (id_, location) not in placement:
                if partial and placement.of(id_):
                    continue
                problems.append(
                    PlacementError(f"is placed on no host for location {location}", where=dataflow[id_].where)
                )
                continue
            hosts = placement[id_, location]
            try:
                group = known[hosts] if hosts in known else known.setdefault(hosts, _group(continuum, hosts))
            except (ContinuumError, PlacementError) as error:
                wrong[hosts] = error.what
                continue
            if group.zone not in covered:
                covered[group.zone] = frozenset(continuum.covered(group.zone))
            if location not in covered[group.zone]:
                foreign[hosts] = f"zone {group.zone} does not cover location {location}"
            groups[id_][location] = group
        if len({group.zone for group in groups[id_].values()}) > 1:
            wrong |= foreign  # a zone takes the rows of other locations only with all rows
        problems += [
            PlacementError(
                f"cannot run on {', '.join(hosts) or 'no host'}: {what}",
                where=dataflow[id_].where,
                hint="place it on hosts of one zone that covers the location, or all of it in one zone",
            )
            for hosts, what in wrong.items()
        ]
        if not wrong:
            problems += _unmet(dataflow, continuum, id_, set(placement.of(id_).values()))
    return groups, problems


def _group(continuum: Continuum, hosts: HostNames) -> NodeGroup:
    zones = dict.fromkeys(continuum.host(host).zone for host in hosts)
    if len(zones) != 1:
        raise PlacementError(f"they are in several zones: {', '.join(zones)}" if zones else "none is named")
    (zone,) = zones
    nodes = dict.fromkeys(continuum.node_of(host).name for host in hosts)
    return NodeGroup(zone, continuum.zone(zone).layer, tuple(nodes))


def _unknown(dataflow: Dataflow, placement: Placement, locations: tuple[str, ...]) -> list[HeadwaterError]:
    where, known = f"dataflow '{dataflow.name}'", set(locations)
    problems: list[HeadwaterError] = []
    for operator in placement:
        if operator not in dataflow:
            hint = suggestion(operator, dataflow.order, "its operators are")
            problems.append(
                PlacementError(f"the placement names unknown operator '{operator}'", where=where, hint=hint)
            )
        for location in placement.of(operator).keys() - known:
            hint = suggestion(location, locations, "its locations are")
            problems.append(
                PlacementError(
                    f"'{operator}' is placed at unknown location {location}",
                    where=where,
                    hint=hint,
                )
            )
    return problems


def _unmet(dataflow: Dataflow, continuum: Continuum, id_: str, placed: Iterable[HostNames]) -> list[HeadwaterError]:
    """Return an error for each host that does not meet the requirements of an operator placed on it."""
    requirement = dataflow[id_].requires
    if not requirement:
        return []
    reasons = {
        name: reason
        for name in sorted({name for hosts in placed for name in hosts})
        if (reason := requirement.unmet(continuum.host(name).capabilities))
    }
    return [
        PlacementError(
            f"requires {requirement.text}, and host {name} does not meet it ({', '.join(reason)})",
            where=dataflow[id_].where,
            hint="place it on another host, or loosen .require(...)",
        )
        for name, reason in reasons.items()
    ]


def _unfed(dataflow: Dataflow, groups: NodeGroups) -> list[HeadwaterError]:
    """Return an error for each operator with a location at which its input does not run."""
    return [
        PlacementError(
            f"takes the rows of {', '.join(lacking)}, where its input '{parent}' does not run",
            where=dataflow[id_].where,
            hint=f"place '{parent}' there, too",
        )
        for id_ in dataflow.order
        for parent in dataflow[id_].inputs
        if (lacking := [x for x in groups[id_] if x not in groups[parent]])
    ]


def _direction_problems(
    dataflow: Dataflow, continuum: Continuum, groups: NodeGroups, locations: tuple[str, ...]
) -> list[HeadwaterError]:
    problems: list[HeadwaterError] = []
    for id_ in dataflow.order:
        for parent in dataflow[id_].inputs:
            if divides(dataflow, id_, parent) or _takes_all(dataflow[id_], continuum, groups[id_]):
                continue
            wrong: dict[tuple[str, str], list[str]] = {}
            for location in groups[id_]:
                low, high = groups[id_][location].layer, groups[parent][location].layer
                if low != high and continuum.layer_index(low) < continuum.layer_index(high):
                    wrong.setdefault((low, high), []).append(location)
            for (low, high), found in wrong.items():
                at = "" if len(found) == len(locations) else f" at {', '.join(found)}"
                problems.append(
                    PlacementError(
                        f"runs in layer {low}{at}, below its input '{parent}' in layer {high}, "
                        "whose rows do not name their location",
                        where=dataflow[id_].where,
                        hint=f"write to_layer('{low}', location_as='site') for a copy of each row at every location, "
                        f"or to_layer('{low}', by='COLUMN') with the column that names it; or to_zone('ZONE') for all "
                        f"rows in one zone; or put '{id_}' in {high} or higher, or '{parent}' lower",
                    )
                )
    return problems


def _takes_all(operator: Operator, continuum: Continuum, groups: Mapping[str, NodeGroup]) -> bool:
    """Return whether an operator takes the rows of all its locations in one zone because it was put there by name."""
    zones = {group.zone for group in groups.values()}
    if len(zones) != 1:
        return False
    (zone,) = zones
    return zone_named(operator.layer) == zone or not groups.keys() <= set(continuum.covered(zone))


def divides(dataflow: Dataflow, id_: str, parent: str) -> bool:
    """Return whether an operator can take the rows of single locations from a stream that has those of several."""
    return isinstance(dataflow[id_], ToLocations) or bool(dataflow.types[parent].located_by)


def _whole_input_problems(dataflow: Dataflow, groups: NodeGroups) -> list[HeadwaterError]:
    """Refuse to give rows to locations from several places: rows of one would not reach the locations of another."""
    problems: list[HeadwaterError] = []
    for id_ in dataflow.order:
        if not isinstance(dataflow[id_], ToLocations):
            continue
        (parent,) = dataflow[id_].inputs
        if len(found := distinct(groups, parent)) > 1:
            problems.append(
                PlacementError(
                    f"gives rows to locations, but its input '{parent}' runs {_in(found)}: rows of one would not reach "
                    "the locations of another",
                    where=dataflow[id_].where,
                    hint=f"run '{parent}' in a layer where one zone sees all rows: put to_layer before it",
                )
            )
    return problems


def _source_problems(dataflow: Dataflow, groups: NodeGroups) -> list[HeadwaterError]:
    return [
        PlacementError(
            f"the same input would be read {_in(found)}",
            where=source.where,
            hint="put {location} into its path or topic, or read it in a layer that has one zone",
        )
        for source in dataflow.sources
        if not source.per_location and len(found := distinct(groups, source.id)) > 1
    ]


def _in(found: Iterable[NodeGroup]) -> str:
    groups = list(found)
    if all(g.nodes == (g.zone,) for g in groups):
        return f"in {len(groups)} zones: {', '.join(map(str, groups))}"
    return f"in {len(groups)} places: {'; '.join(map(str, groups))}"


def _replication_problems(dataflow: Dataflow, groups: NodeGroups) -> list[HeadwaterError]:
    """Refuse to run an operator separately for locations between which rows of one key could meet.

    This keeps results independent of the placement.
    """
    problems: list[HeadwaterError] = []
    for id_ in dataflow.order:
        operator, found = dataflow[id_], distinct(groups, id_)
        keys = operator.partition_keys()
        if keys is None or len(found) < 2:
            continue
        located = frozenset.intersection(*(dataflow.types[i].located_by for i in operator.inputs))
        if not {k.lower() for k in keys} & {c.lower() for c in located}:
            layers = ", ".join(dict.fromkeys(group.layer for group in found))
            hint = (
                f"add the location column to its keys ({', '.join(sorted(located))})"
                if located
                else "read the source with location_as='location' and add it to the keys"
            ) + f", or run it in a layer where one zone sees all rows (not {layers})"
            by = f"the keys ({', '.join(keys)}) do" if keys else "it has no keys, which does"
            why = f"{by} not tell the location apart"
            if isinstance(operator, Sink):
                why = "each zone numbers its own batches, and its function knows them by number"
                hint = f"run it in a layer where one zone sees all rows (not {layers})"
            problems.append(
                PlacementError(f"runs {_in(found).replace(': ', ' (', 1)}), but {why}", where=operator.where, hint=hint)
            )
    return problems


def _parted(dataflow: Dataflow, continuum: Continuum, groups: NodeGroups) -> list[HeadwaterError]:
    """Refuse to separate locations whose rows were merged before, except on a way down by rows that name them."""
    problems: list[HeadwaterError] = []
    for id_ in dataflow.order:
        for parent in dict.fromkeys(dataflow[id_].inputs):
            if isinstance(dataflow[id_], ToLocations):
                continue
            together: dict[NodeGroup, list[str]] = {}
            for location, group in groups[parent].items():
                together.setdefault(group, []).append(location)
            for group, locations in together.items():
                apart: dict[NodeGroup, list[str]] = {}
                left = [x for x in locations if x not in groups[id_]]
                for location in locations:
                    if location in groups[id_]:
                        apart.setdefault(groups[id_][location], []).append(location)
                if apart and left and not divides(dataflow, id_, parent):
                    problems.append(
                        PlacementError(
                            f"takes none of the rows of {', '.join(left)}, which do not name their location, and its "
                            f"input '{parent}' has them merged with others in {_named(group)}",
                            where=dataflow[id_].where,
                            hint="read the source with location_as='location'",
                        )
                    )
                above = {group.zone, *(zone.name for zone in continuum.ancestors(group.zone))}
                down = any(g.zone not in above for g in apart)
                if len(apart) > 1 and not (down and divides(dataflow, id_, parent)):
                    ways = [f"{g} ({', '.join(own)})" for g, own in apart.items()]
                    problems.append(
                        PlacementError(
                            f"would run in {' and '.join(ways)}, but its input '{parent}' has the "
                            f"rows of {', '.join(locations)} merged in {_named(group)}",
                            where=dataflow[id_].where,
                            hint=f"put '{id_}' in one layer for {', '.join(locations)}",
                        )
                    )
    return problems


def _named(group: NodeGroup) -> str:
    return f"zone {group}" if group.nodes == (group.zone,) else str(group)
