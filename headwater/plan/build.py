"""From dataflow and continuum to a plan: layers, zones, cuts, units, hosts. Pure.

Model: FlowUnits, section III. Contiguous operators that a zone runs for the same locations form a unit;
the job's locations decide which zones get an instance of it; requirements decide the hosts inside a zone;
data moves only up the tree of zones.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headwater.continuum import Continuum, Host
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import Watermark
from headwater.dataflow.sinks import Sink
from headwater.dataflow.sources import Source
from headwater.errors import ErrorList, HeadwaterError, PlacementError, suggestion
from headwater.plan.model import Channel, Deployment, DeploymentPlan, Part, Unit
from headwater.plan.onepass import outputs_of
from headwater.plan.pieces import pieces
from headwater.plan.spread import kinds, spread_column, strongest
from headwater.plan.zones import Zones, distinct, zones_of
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
            problems.append(
                PlacementError(
                    f"there is no layer '{wanted}'",
                    where=operator.where,
                    hint=suggestion(wanted, known, "the layers are"),
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
    problems: list[HeadwaterError] = []
    runs = _runs(dataflow, continuum, deployment, zones_of(dataflow, continuum, deployment))
    units: dict[tuple[int, int], Unit] = {}
    for number, run in enumerate(runs):
        group, zone = run.operators, run.zone
        outputs = outputs_of(dataflow, group)
        hosts = continuum.eligible_hosts(zone, Requirement.all_of(dataflow[i].requires for i in group))
        if not hosts:
            problems += _host_problems(dataflow, continuum, group, zone)
        for index, (part, chosen) in enumerate(_parts(dataflow, deployment, group, hosts)):
            units[number, index] = Unit(
                name=outputs[0],
                zone=zone,
                layer=continuum.zone(zone).layer,
                operators=group,
                outputs=outputs,
                locations=run.locations,
                hosts=tuple(h.name for h in chosen),
                key=(key := _unit_key(dataflow, group)),
                tag=tag_of(key),
                part=part,
            )
    if problems:
        raise ErrorList(problems)
    channels = _channels(dataflow, continuum, runs, units)
    return DeploymentPlan(
        dataflow,
        continuum,
        deployment,
        tuple(units.values()),
        channels,
        {id_: tag_of(key) for id_, key in dataflow.keys.items()},
        _warnings(dataflow, continuum, channels),
    )


@dataclass(frozen=True)
class _Run:
    """A piece of the dataflow in one zone, for the locations whose rows it takes there.

    Zones of one layer that run the same operators are cut alike: ``group`` numbers what they have in common.
    """

    operators: tuple[str, ...]
    zone: str
    locations: tuple[str, ...]
    group: int


def _runs(dataflow: Dataflow, continuum: Continuum, deployment: Deployment, zones: Zones) -> tuple[_Run, ...]:
    """Cut what each zone runs into pieces; whoever feeds comes first."""
    there: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for id_ in dataflow.order:
        for zone in distinct(zones, id_):
            locations = tuple(x for x, found in zones[id_].items() if found == zone)
            there.setdefault((zone, locations), []).append(id_)
    alike: dict[tuple[str, tuple[str, ...]], list[tuple[str, tuple[str, ...]]]] = {}
    for (zone, locations), operators in there.items():
        layer = continuum.zone(zone).layer
        alike.setdefault((layer, tuple(operators)), []).append((zone, locations))
    # A watermark stays with its input: it is only a mark.
    cuts = {(p, c) for p, c in deployment.cuts if c in dataflow and not isinstance(dataflow[c], Watermark)}
    groups = [
        (group, places)
        for (_, operators), places in alike.items()
        for group in pieces(dataflow, cuts, partial(_one_host, dataflow, continuum, places), operators)
    ]
    runs = [
        _Run(group, zone, locations, number)
        for number, (group, places) in enumerate(groups)
        for zone, locations in places
    ]
    return _in_order(dataflow, runs)


def _in_order(dataflow: Dataflow, runs: Sequence[_Run]) -> tuple[_Run, ...]:
    """Sort runs topologically: by their first operators, and those of a group one after another."""
    place = {id_: n for n, id_ in enumerate(dataflow.order)}
    takers = _takers(runs)
    feeds = [_readers(dataflow, takers, run, run.operators) for run in runs]
    waiting = Counter(n for readers in feeds for n in readers)
    ready = [n for n in range(len(runs)) if not waiting[n]]
    found: list[_Run] = []
    while ready:
        last = found[-1].group if found else None
        n = min(ready, key=lambda n: (runs[n].group != last, place[runs[n].operators[0]], n))
        ready.remove(n)
        found.append(runs[n])
        waiting.subtract(feeds[n])
        ready += [m for m in feeds[n] if not waiting[m]]
    return tuple(found)


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


def _one_host(
    dataflow: Dataflow,
    continuum: Continuum,
    places: Iterable[tuple[str, tuple[str, ...]]],
    group: tuple[str, ...],
) -> bool:
    """Tell whether in each zone some host meets the requirements of the whole group."""
    requirement = Requirement.all_of(dataflow[i].requires for i in group)
    return all(continuum.eligible_hosts(zone, requirement) for zone, _ in places)


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


def tag_of(key: str) -> str:
    """Shorten a key to what is put into names of files."""
    return key[:8]


def _unit_key(dataflow: Dataflow, group: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(sorted(dataflow.keys[i] for i in group)).encode()).hexdigest()


def _takers(runs: Sequence[_Run]) -> Mapping[tuple[str, str], int]:
    """Number, for each operator and location, the run that takes its rows."""
    return {(id_, x): n for n, run in enumerate(runs) for id_ in run.operators for x in run.locations}


def _readers(
    dataflow: Dataflow, takers: Mapping[tuple[str, str], int], run: _Run, outputs: Iterable[str]
) -> set[int]:
    """Number the runs that read outputs of a run."""
    consumers = {c for id_ in outputs for c in dataflow.consumers[id_] if c not in run.operators}
    # Its locations stay together: whoever takes the rows of one takes those of all.
    return {takers[c, run.locations[0]] for c in consumers}


def _channels(
    dataflow: Dataflow,
    continuum: Continuum,
    runs: Sequence[_Run],
    units: Mapping[tuple[int, int], Unit],
) -> tuple[Channel, ...]:
    takers = _takers(runs)
    channels: list[Channel] = []
    for (number, _), unit in units.items():
        for id_ in unit.outputs:
            if isinstance(dataflow[id_], Sink):
                continue
            readers = _readers(dataflow, takers, runs[number], [id_])
            reading = [u for (n, _), u in units.items() if n in readers]
            routes = {u.id: continuum.links_up(unit.zone, u.zone) for u in reading}
            event_time = dataflow.types[id_].event_time
            tag = tag_of(dataflow.keys[id_])
            broker = _broker(continuum, unit.zone, [u.zone for u in reading])
            channels.append(Channel(id_, unit.zone, tag, unit.id, routes, event_time, unit.part, broker))
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
