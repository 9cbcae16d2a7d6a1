"""From dataflow and continuum to a plan: layers, zones, cuts, units, hosts. Pure.

Model: FlowUnits, section III. Contiguous operators of one layer form a unit; the job's locations
decide which zones get an instance of it; requirements decide the hosts inside a zone; data moves
only up the tree of zones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from headwater.continuum import Continuum, Host
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import Watermark
from headwater.dataflow.sinks import Sink
from headwater.dataflow.sources import Source
from headwater.errors import ErrorList, HeadwaterError, PlacementError
from headwater.plan.model import Channel, Deployment, DeploymentPlan, Edge, Part, Unit
from headwater.plan.pieces import outputs_of, pieces
from headwater.plan.spread import kinds, spread_column, strongest
from headwater.requirement import Requirement


def annotated(dataflow: Dataflow, continuum: Continuum) -> Deployment:
    """Take each operator's layer from the dataflow's own ``to_layer`` marks."""
    layers: dict[str, str] = {}
    problems: list[HeadwaterError] = []
    for id_ in dataflow.order:
        operator = dataflow[id_]
        inherited = [layers[i] for i in operator.inputs if i in layers]
        lowest = max(inherited, key=continuum.layer_index, default=continuum.layers[0].name)
        wanted = operator.layer or lowest
        known = [layer.name for layer in continuum.layers]
        if wanted not in known:
            near = get_close_matches(wanted, known, 1)
            problems.append(
                PlacementError(
                    f"there is no layer '{wanted}'",
                    where=operator.where,
                    hint=f"did you mean '{near[0]}'?" if near else f"the layers are {', '.join(known)}",
                )
            )
            wanted = lowest
        layers[id_] = wanted
    if problems:
        raise ErrorList(problems)
    return Deployment(layers)


def one_unit(dataflow: Dataflow, continuum: Continuum) -> Deployment:
    """Everything in the root zone, sources too: what shipping all data to the cloud would be."""
    return Deployment(dict.fromkeys(dataflow.order, continuum.root.layer))


def unit_per_operator(dataflow: Dataflow, continuum: Continuum) -> Deployment:
    """The annotated layers, with every edge cut."""
    edges = frozenset((parent, id_) for id_ in dataflow.order for parent in dataflow[id_].inputs)
    return Deployment(annotated(dataflow, continuum).layers, edges)


def build(dataflow: Dataflow, continuum: Continuum, deployment: Deployment | None = None) -> DeploymentPlan:
    """Carry a deployment out on paper, or raise ErrorList with a reason per operator and zone."""
    deployment = deployment or annotated(dataflow, continuum)
    layers = deployment.layers
    problems = _direction_problems(dataflow, continuum, layers)
    zones, zone_problems = _zones(dataflow, continuum, layers)
    problems += zone_problems
    if not problems:
        problems = _replication_problems(dataflow, layers, zones)
    if problems:
        raise ErrorList(problems)

    groups = pieces(
        dataflow, _cuts(dataflow, deployment), lambda group: _one_host(dataflow, continuum, group, zones)
    )
    member: dict[str, int] = {id_: n for n, group in enumerate(groups) for id_ in group}
    units: dict[tuple[int, str, int], Unit] = {}
    for number, group in enumerate(groups):
        outputs = outputs_of(dataflow, group)
        requirement = Requirement.all_of(dataflow[i].requires for i in group)
        for zone in zones[group[0]]:
            hosts = continuum.eligible_hosts(zone, requirement)
            if not hosts:
                problems += _host_problems(dataflow, continuum, group, zone)
            for index, (part, chosen) in enumerate(_parts(dataflow, deployment, group, hosts)):
                units[number, zone, index] = Unit(
                    name=outputs[0],
                    zone=zone,
                    layer=layers[group[0]],
                    operators=group,
                    outputs=outputs,
                    locations=_covered(dataflow, continuum, zone),
                    hosts=tuple(h.name for h in chosen),
                    key=(key := _unit_key(dataflow, group)),
                    tag=tag_of(key),
                    part=part,
                )
    if problems:
        raise ErrorList(problems)
    channels = _channels(dataflow, continuum, member, units)
    return DeploymentPlan(
        dataflow,
        continuum,
        deployment,
        tuple(units.values()),
        channels,
        {id_: tag_of(key) for id_, key in dataflow.keys.items()},
        _warnings(dataflow, continuum, channels),
    )


def _parts(
    dataflow: Dataflow, deployment: Deployment, group: tuple[str, ...], hosts: tuple[Host, ...]
) -> list[tuple[Part | None, tuple[Host, ...]]]:
    """Share a unit out over the kinds of hosts that may run it, or choose one kind."""
    found = kinds(hosts)
    if not deployment.spread or len(found) < 2:
        return [(None, hosts)]
    column = spread_column(dataflow, group)
    if column is None:
        best = strongest(hosts)
        return [(None, next(k for k in found if best in k))]
    return [(Part(index, len(found), column), kind) for index, kind in enumerate(found)]


def _direction_problems(
    dataflow: Dataflow, continuum: Continuum, layers: Mapping[str, str]
) -> list[HeadwaterError]:
    return [
        PlacementError(
            f"runs in layer {layers[id_]}, below its input '{parent}' in layer {layers[parent]}",
            where=dataflow[id_].where,
            hint=f"data moves up: put '{id_}' in {layers[parent]} or higher, or '{parent}' lower",
        )
        for id_ in dataflow.order
        for parent in dataflow[id_].inputs
        if continuum.layer_index(layers[id_]) < continuum.layer_index(layers[parent])
    ]


def _locations(dataflow: Dataflow, continuum: Continuum) -> tuple[str, ...]:
    return dataflow.locations or continuum.locations


def _zones(
    dataflow: Dataflow, continuum: Continuum, layers: Mapping[str, str]
) -> tuple[dict[str, tuple[str, ...]], list[HeadwaterError]]:
    """Give the zones in which each operator has an instance."""
    problems: list[HeadwaterError] = []
    for location in _locations(dataflow, continuum):
        if location not in continuum.locations:
            near = get_close_matches(location, continuum.locations, 1)
            problems.append(
                PlacementError(
                    f"no zone covers location {location}",
                    where=f"dataflow '{dataflow.name}'",
                    hint=f"did you mean {near[0]}?"
                    if near
                    else f"there are {', '.join(continuum.locations)}",
                )
            )
    if not _locations(dataflow, continuum):
        problems.append(
            PlacementError(
                "neither the dataflow nor the continuum names a location",
                where=f"dataflow '{dataflow.name}'",
                hint="give zones of the lowest layer their 'locations'",
            )
        )
    if problems:
        return {}, problems
    by_layer: dict[str, tuple[str, ...]] = {}
    for layer in dict.fromkeys(layers[id_] for id_ in dataflow.order):
        covering = {x: continuum.covering(layer, x) for x in _locations(dataflow, continuum)}
        first = next(id_ for id_ in dataflow.order if layers[id_] == layer)
        problems += [
            PlacementError(
                f"no zone of layer {layer} covers location {location}",
                where=dataflow[first].where,
                hint=f"add the location to a zone of layer {layer}, or drop it from the dataflow's locations",
            )
            for location, zone in covering.items()
            if zone is None
        ]
        by_layer[layer] = tuple(dict.fromkeys(z.name for z in covering.values() if z is not None))
    zones = {id_: by_layer[layers[id_]] for id_ in dataflow.order}
    for source in dataflow.sources:
        if not source.per_location and len(zones[source.id]) > 1:
            problems.append(
                PlacementError(
                    f"the same input would be read in {len(zones[source.id])} zones: "
                    f"{', '.join(zones[source.id])}",
                    where=source.where,
                    hint="put {location} into its path, or read it in a layer that has one zone",
                )
            )
    return zones, problems


def _replication_problems(
    dataflow: Dataflow, layers: Mapping[str, str], zones: Mapping[str, tuple[str, ...]]
) -> list[HeadwaterError]:
    """Refuse to run an operator in several zones where rows of one key could meet only in one.

    This is what keeps results the same wherever operators are placed.
    """
    problems: list[HeadwaterError] = []
    for id_ in dataflow.order:
        operator = dataflow[id_]
        keys = operator.partition_keys()
        if keys is None or len(zones[id_]) < 2:
            continue
        located = frozenset.intersection(*(dataflow.types[i].located_by for i in operator.inputs))
        if not {k.lower() for k in keys} & {c.lower() for c in located}:
            by = f"the keys ({', '.join(keys)}) do" if keys else "it has no keys, which does"
            problems.append(
                PlacementError(
                    f"runs in {len(zones[id_])} zones ({', '.join(zones[id_])}), "
                    f"but {by} not tell the location apart",
                    where=operator.where,
                    hint=(
                        f"add the location column to its keys ({', '.join(sorted(located))})"
                        if located
                        else "read the source with location_as='location' and add it to the keys"
                    )
                    + f", or run it in a layer where one zone sees all rows (not {layers[id_]})",
                )
            )
    return problems


def _cuts(dataflow: Dataflow, deployment: Deployment) -> set[Edge]:
    """Edges between layers, and those asked for. A watermark stays with its input: it is only a mark."""
    edges = {(p, id_) for id_ in dataflow.order for p in dataflow[id_].inputs}
    layers = deployment.layers
    return {
        (p, c)
        for p, c in edges
        if layers[p] != layers[c] or ((p, c) in deployment.cuts and not isinstance(dataflow[c], Watermark))
    }


def _one_host(
    dataflow: Dataflow, continuum: Continuum, group: Iterable[str], zones: Mapping[str, tuple[str, ...]]
) -> bool:
    """Tell whether in each zone some host meets the requirements of the whole group."""
    members = tuple(group)
    requirement = Requirement.all_of(dataflow[i].requires for i in members)
    return all(continuum.eligible_hosts(zone, requirement) for zone in zones[members[0]])


def _host_problems(
    dataflow: Dataflow, continuum: Continuum, group: tuple[str, ...], zone: str
) -> list[HeadwaterError]:
    problems: list[HeadwaterError] = []
    for id_ in group:
        requirement = dataflow[id_].requires
        if requirement and not continuum.eligible_hosts(zone, requirement):
            reasons = [
                f"{host.name}: {', '.join(requirement.unmet(host.capabilities))}"
                for host in continuum.zone(zone).hosts
            ]
            problems.append(
                PlacementError(
                    f"no host of zone {zone} meets {requirement.text} ({'; '.join(reasons)})",
                    where=dataflow[id_].where,
                    hint=f"add a host with these capabilities to {zone}, or loosen .require(...)",
                )
            )
    return problems


def _covered(dataflow: Dataflow, continuum: Continuum, zone: str) -> tuple[str, ...]:
    layer = continuum.zone(zone).layer
    found = []
    for location in _locations(dataflow, continuum):
        covering = continuum.covering(layer, location)
        if covering is not None and covering.name == zone:
            found.append(location)
    return tuple(found)


def tag_of(key: str) -> str:
    """Shorten a key to what is put into names of files."""
    return key[:8]


def _unit_key(dataflow: Dataflow, group: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(sorted(dataflow.keys[i] for i in group)).encode()).hexdigest()


def _channels(
    dataflow: Dataflow,
    continuum: Continuum,
    member: Mapping[str, int],
    units: Mapping[tuple[int, str, int], Unit],
) -> tuple[Channel, ...]:
    channels: list[Channel] = []
    for (number, zone, _), unit in units.items():
        for id_ in unit.outputs:
            if isinstance(dataflow[id_], Sink):
                continue
            readers = {member[c] for c in dataflow.consumers[id_]} - {number}
            routes = {}
            for (other, upper, _), consumer in units.items():
                if other in readers and _feeds(continuum, unit, consumer):
                    routes[consumer.id] = continuum.links_up(zone, upper)
            event_time = dataflow.types[id_].event_time
            tag = tag_of(dataflow.keys[id_])
            broker = _broker(continuum, zone, [units[m].zone for m in units if units[m].id in routes])
            channels.append(Channel(id_, zone, tag, unit.id, routes, event_time, unit.part, broker))
    return tuple(channels)


def _broker(continuum: Continuum, zone: str, readers: Iterable[str]) -> str | None:
    """Name the zone whose broker holds a channel: the nearest on the way to its lowest reader.

    Further up it would be away from both ends. None where there is none, or it is not wanted.
    """
    if continuum.zone(zone).channels == "filelog":
        return None
    ways = [continuum.path_up(zone, reader) for reader in readers]
    way = min(ways, key=len, default=(continuum.zone(zone),))
    return next((z.name for z in way if z.broker is not None), None)


def _feeds(continuum: Continuum, lower: Unit, upper: Unit) -> bool:
    """Tell whether data of ``lower`` goes to ``upper``: its own zone, or the one above it on the tree."""
    return upper.zone == lower.zone or upper.zone in {z.name for z in continuum.ancestors(lower.zone)}


def _warnings(dataflow: Dataflow, continuum: Continuum, channels: tuple[Channel, ...]) -> tuple[str, ...]:
    """Say what will run but may surprise."""
    warnings: list[str] = []
    merged = {
        (consumer, c.operator)
        for c in channels
        for consumer in c.consumers
        if sum(d.operator == c.operator and consumer in d.consumers for d in channels) > 1
    }
    for consumer, id_ in sorted(merged):
        if dataflow.types[id_].event_time is None and _watermark_after(dataflow, id_):
            warnings.append(
                f"{consumer} reads '{id_}' from several zones before its event time is declared: "
                "rows of a slow zone may come too late for their windows. "
                "Declare with_watermark before the layers change."
            )
    return (*warnings, *_broker_warnings(continuum, channels))


def _broker_warnings(continuum: Continuum, channels: tuple[Channel, ...]) -> list[str]:
    """Say which zones cannot write while a link is down, and which do not get the kind they want."""
    warnings: list[str] = []
    for channel in channels:
        zone = channel.zone
        if channel.broker is not None and channel.broker != zone:
            links = " or ".join(link.name for link in continuum.links_up(zone, channel.broker))
            warnings.append(
                f"{zone} stops writing '{channel.operator}' while link {links} is down: its channel is "
                f"with the broker of {channel.broker}. Give {zone} a broker of its own, or channels: filelog."
            )
        elif channel.broker is None and continuum.zone(zone).channels == "kafka":
            warnings.append(
                f"'{channel.operator}' of {zone} is a filelog although {zone} wants channels: kafka: "
                f"no zone on the way to its reader has a broker. Give {zone} one."
            )
    return warnings


def _watermark_after(dataflow: Dataflow, id_: str) -> bool:
    todo, seen = [id_], set()
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        if isinstance(dataflow[current], Watermark):
            return True
        todo += [c for c in dataflow.consumers[current] if not isinstance(dataflow[c], Source)]
    return False
