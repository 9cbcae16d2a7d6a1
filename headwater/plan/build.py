"""Build a plan from dataflow and continuum: layers, hosts, cuts, units, channels. Pure.

Model: FlowUnits, section III. Contiguous operators on the same hosts for the same locations form a unit; the
job's locations decide which zones get an instance of it; requirements decide the hosts inside a zone. Data moves up
the tree of zones, down where rows name their location, and over any links to a zone that the dataflow names.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headwater.continuum.model import Continuum, Zone, strongest
from headwater.core.errors import ErrorList, HeadwaterError, PlacementError, suggestion
from headwater.core.place import place_of_zone, zone_named
from headwater.core.requirement import Requirement
from headwater.core.text import closest
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import Select, ToLocations, Watermark
from headwater.dataflow.sinks import Sink
from headwater.dataflow.sources import Source
from headwater.plan.deployment import Deployment, Edge, HostNames, Placement, layers_of
from headwater.plan.model import Channel, DeploymentPlan, Part, Unit
from headwater.plan.nodes import NodeGroup, NodeGroups, groups_of, locations_of
from headwater.plan.onepass import outputs_of
from headwater.plan.pieces import connected, pieces
from headwater.plan.realtime import refused_operators
from headwater.plan.spread import spread_column
from headwater.plan.zoned import zones_by_name

_UNNAMED = re.compile(r"select(-\d+)?|.+\.columns(-\d+)?")


def marked_layers(dataflow: Dataflow, continuum: Continuum) -> dict[str, str]:
    """Return each operator's place as marked by ``to_layer`` or ``to_zone``: a layer, or ``zone NAME``.

    An operator without a mark has the highest place of its inputs. Raises ErrorList with a reason per operator.
    """
    layers: dict[str, str] = {}
    problems: list[HeadwaterError] = []
    for id_ in dataflow.order:
        operator = dataflow[id_]
        inherited = dict.fromkeys(layers[i] for i in operator.inputs)
        highest = max(inherited, key=continuum.height, default=continuum.layers[0].name)
        layers[id_] = operator.layer or highest
        if operator.layer is None:
            # Layers meet in the highest; a zone by name is left for no other place without a mark.
            level = [x for x in inherited if zone_named(x) or continuum.height(x) == continuum.height(highest)]
            if set(level) != {highest} and inherited:
                problems.append(
                    PlacementError(
                        f"has inputs in {' and in '.join(dict.fromkeys([*level, highest]))}, and no mark of its own",
                        where=operator.where,
                        hint="put to_zone or to_layer with one place behind both inputs",
                    )
                )
        elif (problem := _unknown_place(operator.layer, continuum, operator.where)) is not None:
            problems.append(problem)
            layers[id_] = highest
    if problems:
        raise ErrorList(problems)
    return layers


def _unknown_place(place: str, continuum: Continuum, where: str) -> PlacementError | None:
    """Return an error if a marked place is not in the continuum."""
    zones, layers = [zone.name for zone in continuum.zones], [layer.name for layer in continuum.layers]
    if (zone := zone_named(place)) is not None:
        if zone in zones:
            return None
        hint = f"for the layer, write to_layer('{zone}')" if zone in layers else None
        hint = hint or closest(zone, zones) or f"the zones are {', '.join(zones[:20])}"
        return PlacementError(f"there is no zone '{zone}'", where=where, hint=hint)
    if place in layers:
        return None
    hint = f"for the zone, write to_zone('{place}')" if place in zones else None
    return PlacementError(
        f"there is no layer '{place}'", where=where, hint=hint or suggestion(place, layers, "the layers are")
    )


def annotated(dataflow: Dataflow, continuum: Continuum) -> Deployment:
    """Place operators as marked in the dataflow, without further cuts."""
    return in_layers(dataflow, continuum, marked_layers(dataflow, continuum))


def one_unit(dataflow: Dataflow, continuum: Continuum) -> Deployment:
    """Place all operators, sources too, in the root zone: ship all data to the cloud."""
    return in_layers(dataflow, continuum, dict.fromkeys(dataflow.order, place_of_zone(continuum.root.name)))


def unit_per_operator(dataflow: Dataflow, continuum: Continuum) -> Deployment:
    """Place operators in the marked layers and cut every edge."""
    edges = frozenset((parent, id_) for id_ in dataflow.order for parent in dataflow[id_].inputs)
    return in_layers(dataflow, continuum, marked_layers(dataflow, continuum), cuts=edges)


def in_layers(
    dataflow: Dataflow,
    continuum: Continuum,
    layers: Mapping[str, str],
    *,
    at: Mapping[str, Mapping[str, str]] | None = None,
    cuts: frozenset[Edge] = frozenset(),
    only: Mapping[str, Collection[str]] | None = None,
) -> Deployment:
    """Place each operator in the zone of its place, on all hosts that meet its requirements.

    ``layers``: the places, as of ``marked_layers``. ``at`` gives others for a location; ``only`` the locations of
    operators that take the rows of some. Of hosts with agents of their own, all run the units that can be divided by
    key, and only the strongest runs other units.
    Raises ErrorList with a reason per operator and zone.
    """
    locations = locations_of(dataflow, continuum)
    problems = _unknown_layers(dataflow, continuum, layers, at or {}, locations)
    if problems:
        raise ErrorList(problems)
    found: dict[str, dict[str, HostNames]] = {id_: {} for id_ in dataflow.order}
    first: dict[tuple[str, str], str] = {}
    covering: dict[tuple[str, str], Zone | None] = {}
    eligible: dict[tuple[str, Requirement], HostNames] = {}
    lacking: dict[tuple[str, str], None] = {}
    for id_ in dataflow.order:
        requirement = dataflow[id_].requires
        for location in locations:
            if only is not None and location not in only.get(id_, locations):
                continue
            layer = (at or {}).get(location, {}).get(id_) or layers[id_]
            if (layer, location) not in covering:
                covering[layer, location] = continuum.zone_at(layer, location)
                first[layer, location] = id_
            zone = covering[layer, location]
            if zone is None:
                continue
            key = (zone.name, requirement)
            if key not in eligible:
                eligible[key] = tuple(h.name for h in zone.hosts if requirement.holds(h.capabilities))
            if not eligible[key]:
                lacking[zone.name, id_] = None
            found[id_][location] = eligible[key]
    problems += [
        PlacementError(
            f"no zone of layer {layer} covers location {location}",
            where=dataflow[first[layer, location]].where,
            hint=f"add the location to a zone of layer {layer}, or drop it from the dataflow's locations",
        )
        for (layer, location), zone in covering.items()
        if zone is None
    ]
    problems += [_no_host(dataflow, continuum, id_, zone) for zone, id_ in lacking]
    if problems:
        raise ErrorList(problems)
    return _shared_out(dataflow, continuum, Deployment(cuts, Placement(found)), partial=only is not None)


def _unknown_layers(
    dataflow: Dataflow,
    continuum: Continuum,
    layers: Mapping[str, str],
    at: Mapping[str, Mapping[str, str]],
    locations: tuple[str, ...],
) -> list[HeadwaterError]:
    """Return an error for each unknown location, operator or layer in the layers by location."""
    where, known = f"dataflow '{dataflow.name}'", [layer.name for layer in continuum.layers]
    problems: list[HeadwaterError] = []

    def strange(what: str, name: str, there: Iterable[str], or_else: str) -> None:
        problems.append(PlacementError(what, where=where, hint=suggestion(name, there, or_else)))

    for location, own in at.items():
        if location not in locations:
            text = f"has other layers at unknown location {location}"
            strange(text, location, locations, "its locations are")
        for operator, layer in own.items():
            if operator not in dataflow:
                text = f"operator '{operator}', placed in layer {layer} at {location}, is unknown"
                strange(text, operator, dataflow.order, "its operators are")
            if layer not in known and zone_named(layer) is None:
                text = f"layer '{layer}', given to '{operator}' at {location}, is unknown"
                strange(text, layer, known, "the layers are")
    return problems


def _no_host(dataflow: Dataflow, continuum: Continuum, id_: str, zone: str) -> PlacementError:
    requirement = dataflow[id_].requires
    reasons = [f"{host.name}: {', '.join(requirement.unmet(host.capabilities))}" for host in continuum.zone(zone).hosts]
    return PlacementError(
        f"no host of zone {zone} meets {requirement.text} ({'; '.join(reasons)})",
        where=dataflow[id_].where,
        hint=f"add a host with these capabilities to {zone}, or loosen .require(...)",
    )


def _shared_out(dataflow: Dataflow, continuum: Continuum, deployment: Deployment, *, partial: bool) -> Deployment:
    """Place on the strongest host each operator that several hosts with agents of their own cannot share out."""
    if all(len(zone.nodes) == 1 for zone in continuum.zones):
        return deployment
    groups = groups_of(dataflow, continuum, deployment.placement, partial=partial)
    changed: dict[str, dict[str, HostNames]] = {}
    for run in _runs(dataflow, continuum, deployment, groups):
        if len(run.group.nodes) == 1 or spread_column(dataflow, run.operators) is not None:
            continue
        hosts = [continuum.node(node).host for node in run.group.nodes]
        for part in connected(dataflow, run.operators):  # operators that only read the same stream may be apart
            if spread_column(dataflow, part) is None:
                for id_ in part:
                    own = changed.setdefault(id_, {})
                    own |= dict.fromkeys(run.locations, (strongest(hosts).name,))
    return replace(deployment, placement=deployment.placement.replaced(changed))


def build(
    dataflow: Dataflow,
    continuum: Continuum,
    deployment: Deployment | None = None,
    *,
    pooled: bool = False,
) -> DeploymentPlan:
    """Build the plan of a deployment, or raise ErrorList with a reason per operator and zone.

    ``pooled``: it merges several dataflows, whose operators may take the rows of some locations only.
    """
    deployment = deployment or annotated(dataflow, continuum)
    groups = groups_of(dataflow, continuum, deployment.placement, partial=pooled)
    runs = _runs(dataflow, continuum, deployment, groups)
    problems: list[HeadwaterError] = []
    units: list[list[Unit]] = []
    alike: dict[int, tuple[tuple[str, ...], str]] = {}
    for run in runs:
        if run.number not in alike:
            alike[run.number] = outputs_of(run.flow, run.operators), _unit_key(dataflow, run.operators)
            problems += refused_operators(dataflow, run.operators)
        outputs, key = alike[run.number]
        column = None
        if len(run.group.nodes) > 1:
            column = spread_column(dataflow, run.operators)
            if column is None:
                problems.append(_not_to_be_shared(dataflow, run))
        units.append(
            [
                Unit(
                    name=_unit_name(dataflow, run.operators, outputs[0]),
                    node=node,
                    zone=run.group.zone,
                    layer=run.group.layer,
                    operators=run.operators,
                    outputs=outputs,
                    locations=run.locations,
                    hosts=_hosts(continuum, deployment, run, node),
                    key=key,
                    tag=tag_of(key),
                    part=None if column is None else Part(index, len(run.group.nodes), column),
                )
                for index, node in enumerate(run.group.nodes)
            ]
        )
    if problems:
        raise ErrorList(problems)
    tags = {id_: tag_of(key) for id_, key in single_keys(dataflow).items()}
    channels = _channels(dataflow, continuum, deployment, runs, units, tags)
    every = tuple(unit for parts in units for unit in parts)
    return DeploymentPlan(
        dataflow,
        continuum,
        deployment,
        every,
        channels,
        tags,
        _warnings(dataflow, continuum, every, channels),
        pooled,
    )


def _unit_name(dataflow: Dataflow, operators: tuple[str, ...], output: str) -> str:
    """Return the name of the output, or of the operator before it if the output is a select without a name."""
    id_ = output
    while isinstance(dataflow[id_], Select) and _UNNAMED.fullmatch(id_):
        id_ = dataflow[id_].inputs[0]
        if id_ not in operators:
            return output
    return id_


def _not_to_be_shared(dataflow: Dataflow, run: _Run) -> PlacementError:
    return PlacementError(
        f"cannot be shared out over {', '.join(run.group.nodes)}: no column of its input goes unchanged into "
        "a key of every operator with state",
        where=dataflow[run.operators[0]].where,
        hint="place it on one host, or cut it from its source and from operators with other keys",
    )


def _hosts(continuum: Continuum, deployment: Deployment, run: _Run, node: str) -> HostNames:
    """Return the hosts of a node on which all operators of a run are placed."""
    there = {host.name for host in continuum.node(node).hosts}
    found = [deployment.placement[id_, run.locations[0]] for id_ in run.operators]
    return tuple(h for h in found[0] if h in there and all(h in own for own in found[1:]))


@dataclass(frozen=True)
class _Run:
    """A piece of the dataflow on the nodes of one group, for the locations whose rows it takes there.

    ``flow``: the operators placed at these locations; others read nothing from it. Groups of one layer that run the
    same operators for the same ``flow`` are cut alike and share a ``number``.
    """

    flow: Dataflow
    operators: tuple[str, ...]
    group: NodeGroup
    locations: tuple[str, ...]
    number: int


def _runs(dataflow: Dataflow, continuum: Continuum, deployment: Deployment, groups: NodeGroups) -> tuple[_Run, ...]:
    """Cut the operators of each group of nodes into pieces, upstream pieces first."""
    there: dict[tuple[NodeGroup, tuple[str, ...]], list[str]] = {}
    for id_ in dataflow.order:
        together: dict[NodeGroup, list[str]] = {}
        for location, group in groups[id_].items():
            together.setdefault(group, []).append(location)
        for group, own in together.items():
            there.setdefault((group, tuple(own)), []).append(id_)
    alike: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[tuple[NodeGroup, tuple[str, ...]]]] = {}
    for (group, locations), operators in there.items():
        here = tuple(o for o in dataflow.order if not groups[o].keys().isdisjoint(locations))
        alike.setdefault((group.layer, here, tuple(operators)), []).append((group, locations))
    # A watermark stays with its input: it only marks the stream.
    cuts = {(p, c) for p, c in deployment.cuts if c in dataflow and not isinstance(dataflow[c], Watermark)}
    flows = {here: _only(dataflow, here) for _, here, _ in alike}
    numbered = []
    for (_, here, inside), places in alike.items():
        hosts = {i: tuple(deployment.placement[i, x[0]] for _, x in places) for i in inside}
        found = pieces(flows[here], cuts, hosts.__getitem__, inside)
        numbered += [(flows[here], piece, places) for piece in found]
    runs = [
        _Run(flow, piece, group, locations, number)
        for number, (flow, piece, places) in enumerate(numbered)
        for group, locations in places
    ]
    return _in_order(dataflow, runs)


def _only(dataflow: Dataflow, operators: tuple[str, ...]) -> Dataflow:
    """Return the part of a dataflow that runs for some locations: all of it, but in a pool of several locations."""
    if len(operators) == len(dataflow.order):
        return dataflow
    return replace(dataflow, operators=tuple(map(dataflow.__getitem__, operators)))


def _in_order(dataflow: Dataflow, runs: Sequence[_Run]) -> tuple[_Run, ...]:
    """Sort runs topologically, by their first operators; runs that are cut alike are adjacent.

    No run waits for itself, also where data goes down and up again: a piece with an output that leaves it and an
    operator that reads another piece behind it has two outputs that one pass cannot serve, and was cut.
    """
    place = {id_: n for n, id_ in enumerate(dataflow.order)}
    takers = _takers(runs)
    feeds = [_readers(dataflow, takers, run, run.operators) for run in runs]
    waiting = Counter(n for readers in feeds for n in readers)
    ready: list[tuple[int, int]] = []
    alike: dict[int, list[tuple[int, int]]] = {}

    def begin(n: int) -> None:
        entry = place[runs[n].operators[0]], n
        heapq.heappush(ready, entry)
        heapq.heappush(alike.setdefault(runs[n].number, []), entry)

    for n in range(len(runs)):
        if not waiting[n]:
            begin(n)
    found: list[_Run] = []
    done: set[int] = set()
    while len(found) < len(runs):
        near = alike.get(found[-1].number) if found else None
        _, n = heapq.heappop(near or ready)
        if n in done:
            continue
        done.add(n)
        found.append(runs[n])
        for m in feeds[n]:
            waiting[m] -= 1
            if not waiting[m]:
                begin(m)
    return tuple(found)


def tag_of(key: str) -> str:
    """Return the short form of a key used in file names."""
    return key[:8]


def single_keys(dataflow: Dataflow) -> dict[str, str]:
    """Return a key of its own for each operator: that of its content, numbered where others have equal content."""
    found: dict[str, str] = {}
    count: Counter[str] = Counter()
    for id_ in dataflow.order:
        key = dataflow.keys[id_]
        count[key] += 1
        found[id_] = key if count[key] == 1 else hashlib.sha256(f"{key} {count[key]}".encode()).hexdigest()
    return found


def _unit_key(dataflow: Dataflow, group: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(sorted(dataflow.keys[i] for i in group)).encode()).hexdigest()


def _takers(runs: Sequence[_Run]) -> Mapping[tuple[str, str], int]:
    """Return, for each operator and location, the number of the run that takes its rows."""
    return {(id_, x): n for n, run in enumerate(runs) for id_ in run.operators for x in run.locations}


def _readers(dataflow: Dataflow, takers: Mapping[tuple[str, str], int], run: _Run, outputs: Iterable[str]) -> set[int]:
    """Return the numbers of the runs that read outputs of a run."""
    consumers = {c for id_ in outputs for c in dataflow.consumers[id_] if c not in run.operators}
    return {takers[c, x] for c in consumers for x in run.locations if (c, x) in takers}


def _channels(
    dataflow: Dataflow,
    continuum: Continuum,
    deployment: Deployment,
    runs: Sequence[_Run],
    units: Sequence[Sequence[Unit]],
    tags: Mapping[str, str],
) -> tuple[Channel, ...]:
    takers = _takers(runs)
    channels: list[Channel] = []
    named = _named_zones(dataflow, continuum, deployment)

    def links(one: str, other: str) -> tuple[str, ...]:
        return tuple(link.name for link in continuum.links_between(one, other, named=named))

    for run, parts in zip(runs, units, strict=True):
        for unit in parts:
            for id_ in unit.outputs:
                if isinstance(dataflow[id_], Sink):
                    continue
                readers = sorted(_readers(dataflow, takers, run, [id_]))
                reading = [u for n in readers for u in units[n]]
                routes = {u.id: links(unit.zone, u.zone) for u in reading}
                event_time = dataflow.types[id_].event_time
                broker = _broker(continuum, unit.zone, {u.zone: routes[u.id] for u in reading})
                located = _located(dataflow, run, id_, reading)
                channels.append(
                    Channel(
                        id_, unit.node, unit.zone, tags[id_], unit.id, routes, event_time, unit.part, broker, located
                    )
                )
    return tuple(channels)


def _named_zones(dataflow: Dataflow, continuum: Continuum, deployment: Deployment) -> frozenset[str]:
    """Return the zones by name, where other links than those of the trees matter."""
    if not continuum.cross_links:
        return frozenset()
    layers, others = layers_of(deployment.placement, continuum, dataflow.order)
    return frozenset(zones_by_name(dataflow, [layers, *others.values()]).values())


def _located(dataflow: Dataflow, run: _Run, id_: str, readers: Iterable[Unit]) -> dict[str, str]:
    """Return, for the readers of an operator's stream that take only the rows of their locations, its column."""
    columns = sorted(dataflow.types[id_].located_by)
    own = set(run.locations)
    return {
        unit.id: columns[0]
        for unit in readers
        if len(own.intersection(unit.locations)) < len(own)
        and not all(isinstance(dataflow[c], ToLocations) for c in dataflow.consumers[id_] if c in unit.operators)
    }


def _broker(continuum: Continuum, zone: str, readers: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return the zone whose broker holds a channel: the nearest on the path to its lowest reader above.

    A broker further up would be far from both ends; one further down would have the rows of one zone's readers only.
    None if there is none, or if none is wanted. ``readers``: by their zone, the links to it.
    """
    if continuum.zone(zone).channels == "filelog":
        return None
    above = {zone, *(z.name for z in continuum.ancestors(zone))}
    ways = [
        # Over one link there is no zone between.
        continuum.path_up(zone, reader) if len(links) != 1 else (continuum.zone(zone), continuum.zone(reader))
        for reader, links in readers.items()
        if reader in above
    ]
    way = min(ways, key=len, default=(continuum.zone(zone),))
    return next((z.name for z in way if z.broker is not None), None)


def _warnings(
    dataflow: Dataflow, continuum: Continuum, units: Iterable[Unit], channels: tuple[Channel, ...]
) -> tuple[str, ...]:
    """Return warnings about a valid plan that may behave unexpectedly."""
    warnings: list[str] = []
    places = {unit.id: unit.locations for unit in units}
    by_location = _by_location(dataflow)
    read: dict[tuple[str, str], list[str]] = {}
    for channel in channels:
        own = places[channel.producer] if channel.operator in by_location else (channel.node,)
        for consumer in channel.consumers:
            read.setdefault((consumer, channel.operator), []).extend(own)
    for (consumer, id_), merged in sorted(read.items()):
        if len(set(merged)) > 1 and dataflow.types[id_].event_time is None and _watermark_after(dataflow, id_):
            warnings.append(
                f"{consumer} reads '{id_}' of {', '.join(dict.fromkeys(merged))} before its event time is declared: "
                "rows of one of them may be too late for their windows because those of another are ahead. "
                "Declare with_watermark before the layers change, or the stream is cut."
            )
    if continuum.clear_text:
        warnings.append(
            f"clear text at {', '.join(continuum.clear_text)}: whoever reads the network reads their rows and tokens, "
            "and may use them. Remove --insecure from these agents, and grpc+tcp:// from their addresses."
        )
    return (*warnings, *_broker_warnings(continuum, channels))


def _broker_warnings(continuum: Continuum, channels: tuple[Channel, ...]) -> list[str]:
    """Return a warning for each zone that cannot write while a link is down, or lacks the wanted channel kind."""
    warnings: list[str] = []
    for channel in channels:
        zone = channel.zone
        if channel.broker is not None and channel.broker != zone:
            direct = f"{zone}-{channel.broker}"
            way = [direct] if direct in channel.links else [x.name for x in continuum.links_up(zone, channel.broker)]
            links = " or ".join(way)
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


def _by_location(dataflow: Dataflow) -> set[str]:
    """Return the operators whose streams have rows of sources that are read at each location by itself."""
    found: set[str] = set()
    for id_ in dataflow.order:
        operator = dataflow[id_]
        if (isinstance(operator, Source) and operator.per_location) or found & set(operator.inputs):
            found.add(id_)
    return found


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
