"""Edits of a deployment by name: move an operator, fuse units, split one, spread one over hosts. Pure.

Each edit is a value and returns another deployment, from which a plan is built and compared with the running
one as usual. Units are named with or without their node, or by one of their operators: a cut applies everywhere. A
move may be limited to one location.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from headwater.core.errors import HeadwaterError, PlacementError, suggestion
from headwater.core.place import place_of_zone, zone_named
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import ToLocations, Watermark
from headwater.dataflow.sources import Source
from headwater.plan.build import build, in_layers
from headwater.plan.deployment import Deployment, Edge, HostNames
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.nodes import divides, groups_of
from headwater.plan.pieces import why_apart


@dataclass(frozen=True, kw_only=True)
class Move:
    """Put an operator, or those of a unit, into another layer or onto a host, for all locations or for one; or into
    a zone, for all."""

    operator: str
    to: str
    at: str | None = None


@dataclass(frozen=True, kw_only=True)
class Split:
    """Cut a unit after one of its operators."""

    unit: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Fuse:
    """Merge two neighbouring units; ``to``: the layer in which to run them, if they are in two."""

    first: str
    second: str
    to: str | None = None


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Run a unit on these hosts of its zone; several hosts share its rows out by key."""

    unit: str
    over: HostNames


Edit = Move | Split | Fuse | Spread


def edited(plan: DeploymentPlan, edit: Edit) -> Deployment:
    """Return the deployment after an edit of a plan; raise PlacementError if the edit is not possible."""
    match edit:
        case Move():
            return move(plan, edit.operator, edit.to, location=edit.at)
        case Split():
            return split(plan, edit.unit, edit.after)
        case Fuse():
            return fuse(plan, edit.first, edit.second, layer=edit.to)
        case Spread():
            return spread(plan, edit.unit, edit.over)


def move(plan: DeploymentPlan, operator: str, to: str, *, location: str | None = None) -> Deployment:
    """Put an operator into another layer, onto a host or into a zone, with the neighbours that must follow.

    Upwards, the operators after it follow, downwards those before it, except over a way down the tree. A zone that does
    not cover its locations takes all its rows; operators after it that several zones run follow. The name of a unit
    stands for its operators except sources, with its node for its locations only. ``location`` limits the move to the
    rows of one location. Raises PlacementError if a source would have to move: its data stays where it is.
    """
    flow, continuum = plan.dataflow, plan.continuum
    if operator not in flow.order and operator in _unit_names(plan):
        return _move_unit(plan, operator, to, location)
    _known("operator or unit", operator, (*flow.order, *_unit_names(plan)))
    layers = [known.name for known in continuum.layers]
    hosts = {} if to in layers else {host.name: host for host in continuum.hosts}
    zones = [zone.name for zone in continuum.zones]
    _known("layer, host or zone", zone_named(to) or to, (*layers, *hosts, *zones))
    if location is not None:
        _known("location", location, plan.locations)
    placed = plan.deployment.placement.of(operator)
    moving = [x for x in plan.locations if x in placed and location in (None, x)]
    if not moving:
        raise PlacementError(
            f"'{operator}' takes no rows of {location}",
            where=flow[operator].where,
            hint=f"its locations are {', '.join(x for x in plan.locations if x in placed)}",
        )
    covered = set(continuum.covered(hosts[to].zone)) if to in hosts else set()
    together = zone_named(plan.layers[operator]) is not None
    whole = covered.isdisjoint(moving) or (together and not covered.issuperset(moving))
    if to not in layers and (zone := zone_named(to) or to) in zones and whole:
        return _into_zone(plan, operator, zone, location)
    layer = to if to in layers else continuum.zone(hosts[to].zone).layer
    deployment = _in_layer(plan, operator, layer, moving)
    if to in layers:
        return deployment
    there = [x for x in moving if x in covered]
    if not there:
        raise PlacementError(
            f"host {to} is in zone {hosts[to].zone}, which covers none of {', '.join(moving)}",
            where=flow[operator].where,
            hint=f"name a host of a zone above its source, or the zone for all rows: --to {hosts[to].zone}",
        )
    return replace(deployment, placement=deployment.placement.replaced({operator: dict.fromkeys(there, (to,))}))


def _into_zone(plan: DeploymentPlan, operator: str, zone: str, location: str | None) -> Deployment:
    """Put an operator into a zone for all locations, with those after it that cannot divide its rows."""
    if location is not None:
        raise PlacementError(
            f"zone {zone} does not cover {location}: it takes the rows of all locations together, or of none",
            where=plan.dataflow[operator].where,
            hint="leave out --at",
        )
    placed = plan.deployment.placement.of(operator)
    return _in_layer(plan, operator, place_of_zone(zone), [x for x in plan.locations if x in placed])


def _move_unit(plan: DeploymentPlan, name: str, to: str, location: str | None) -> Deployment:
    unit, deployment = _unit(plan, name), plan.deployment
    everywhere = name == unit.name or set(unit.locations) == set(plan.locations)
    for id_ in unit.operators:
        if not isinstance(plan.dataflow[id_], Source):
            for one in [location] if location is not None or everywhere else unit.locations:
                deployment = move(replace(plan, deployment=deployment), id_, to, location=one)
    return deployment


def _in_layer(plan: DeploymentPlan, operator: str, layer: str, moving: Iterable[str]) -> Deployment:
    flow = plan.dataflow
    at = {x: {id_: plan.layer(id_, x) for id_ in flow.order} for x in plan.locations}
    along: dict[str, list[str]] = {}
    for location in moving:
        moved = _moved(plan, at[location], operator, layer)
        at[location] = {**at[location], **dict.fromkeys(moved, layer)}
        for id_ in moved:
            along.setdefault(id_, []).append(location)
    if not along:
        return plan.deployment
    usual = {id_: at[plan.locations[0]][id_] for id_ in flow.order}
    now = plan.deployment.placement
    only = {id_: now.of(id_).keys() for id_ in flow.order} if plan.pooled else None
    target = in_layers(flow, plan.continuum, usual, at=at, cuts=plan.deployment.cuts, only=only).placement
    changed = {id_: {x: target[id_, x] for x in found if x in now.of(id_)} for id_, found in along.items()}
    return replace(plan.deployment, placement=now.replaced(changed))


def _moved(plan: DeploymentPlan, layers: Mapping[str, str], operator: str, layer: str) -> list[str]:
    """Return the operators of one location that a move takes along.

    Operators that read a stream from above keep doing so, and those in a zone by name stay there: beyond them nothing
    follows.
    """
    flow, height = plan.dataflow, plan.continuum.height
    upwards = height(layer) > height(layers[operator])
    if zone_named(layer) is not None:
        followers = {c for c in _after(flow, operator, lambda p, c: _must_follow(plan, p, c, layer)) if c != operator}
        return [id_ for id_ in flow.order if id_ == operator or id_ in followers]

    def goes_up(parent: str, id_: str) -> bool:
        if any(zone_named(layers[o]) is not None for o in (parent, id_) if o != operator):
            return False
        # What gives rows to locations may go below its input, which is to see all rows.
        return height(layers[parent]) <= height(layers[id_]) and (upwards or not isinstance(flow[id_], ToLocations))

    along = {operator} | (_after(flow, operator, goes_up) if upwards else _before(flow, operator, goes_up))
    moved = [
        id_
        for id_ in flow.order
        if (id_ in along and (height(layers[id_]) < height(layer) if upwards else height(layers[id_]) > height(layer)))
        or (id_ == operator and zone_named(layers[id_]) is not None)
    ]
    for id_ in moved:
        if isinstance(flow[id_], Source) and id_ != operator:
            raise PlacementError(
                f"'{operator}' cannot move to layer {layer}: '{id_}' is read in layer {layers[id_]}",
                where=flow[operator].where,
                hint=f"if its data can be read there, move it first: headwater move {id_} --to {layer}",
            )
    return moved


def _must_follow(plan: DeploymentPlan, parent: str, id_: str, place: str) -> bool:
    """Return whether an operator cannot stay when a zone takes all rows of its input."""
    placed, height = plan.deployment.placement.of(id_), plan.continuum.height
    if divides(plan.dataflow, id_, parent) or zone_named(plan.layers[id_]) is not None:
        return False
    zones = {plan.continuum.host(hosts[0]).zone for hosts in placed.values()}
    return len(zones) > 1 or max(height(plan.layer(id_, x)) for x in placed) < height(place)


def split(plan: DeploymentPlan, unit: str, after: str) -> Deployment:
    """Cut a unit after one of its operators."""
    operators = _unit(plan, unit).operators
    _known("operator of the unit", after, operators)
    edges = {(after, c) for c in plan.dataflow.consumers[after] if c in operators}
    if not edges:
        raise PlacementError(
            f"'{after}' is the last operator of {unit}: there is nothing after it to cut off",
            where=plan.dataflow[after].where,
            hint=f"split after one of {', '.join(i for i in operators if i != after)}",
        )
    marks = sorted(c for _, c in edges if isinstance(plan.dataflow[c], Watermark))
    if len(marks) == len(edges):
        raise PlacementError(
            f"'{marks[0]}' only declares the event time of '{after}', and stays with it",
            where=plan.dataflow[after].where,
            hint=f"split after '{marks[0]}'",
        )
    return replace(plan.deployment, cuts=plan.deployment.cuts | edges)


def spread(plan: DeploymentPlan, unit: str, over: HostNames) -> Deployment:
    """Run a unit on some hosts of its zone; raise PlacementError if they cannot share its rows out."""
    one, continuum = _unit(plan, unit), plan.continuum
    there = [host.name for host in continuum.zone(one.zone).hosts]
    for host in over:
        _known(f"host of zone {one.zone}", host, there)
    if not over or len(set(over)) < len(over):
        raise PlacementError(
            f"the hosts of {unit} must be at least one, each named once",
            where="spread",
            hint=f"the hosts of zone {one.zone} are {', '.join(there)}",
        )
    ordered = tuple(host for host in there if host in over)
    changed = {id_: dict.fromkeys(one.locations, ordered) for id_ in one.operators}
    deployment = replace(plan.deployment, placement=plan.deployment.placement.replaced(changed))
    build(plan.dataflow, continuum, deployment, pooled=plan.pooled)
    return deployment


def fuse(plan: DeploymentPlan, first: str, second: str, *, layer: str | None = None) -> Deployment:
    """Merge two neighbouring units; ``layer`` is where to run them, if they are in two layers.

    Raises PlacementError if they are not neighbours, or cannot be one query.
    """
    flow = plan.dataflow
    one, other = _unit(plan, first), _unit(plan, second)
    if one.operators == other.operators:
        raise PlacementError(
            f"{first} and {second} are in one unit: there is nothing to fuse",
            where=f"unit {one.name}",
            hint="name two units, one of which reads the other",
        )
    operators = (*one.operators, *other.operators)
    between = _edges(flow, one.operators, other.operators) or _edges(flow, other.operators, one.operators)
    if not between:
        raise PlacementError(
            f"{first} and {second} are not neighbours",
            where="fuse",
            hint="name two units, one of which reads the other",
        )
    deployment = replace(plan.deployment, cuts=plan.deployment.cuts - between)
    if layer is None and one.layer != other.layer:
        raise PlacementError(
            f"{first} is in layer {one.layer}, {second} in {other.layer}",
            where="fuse",
            hint=f"choose the layer: --to {' or --to '.join(sorted({one.layer, other.layer}))}",
        )
    places = [{u.zone for u in plan.units if u.operators == unit.operators} for unit in (one, other)]
    if layer is None and places[0].isdisjoint(places[1]):
        raise PlacementError(
            f"{first} is in zone {one.zone}, {second} in zone {other.zone}",
            where="fuse",
            hint=f"move one of them first: headwater move {other.name} --to {one.zone}",
        )
    if layer is not None:
        _check_one_layer(plan, operators)
        for id_ in operators:
            now = replace(plan, deployment=deployment)
            if now.layers[id_] != layer:
                deployment = move(now, id_, layer)
    apart, why = list(between), ""
    for candidate in _on_one_of(plan, deployment, one, other):
        fused = build(flow, plan.continuum, candidate, pooled=plan.pooled)
        there = [u for u in fused.units if u.layer == (layer or one.layer)]
        apart = [(a, b) for a, b in between if not any({a, b} <= set(u.operators) for u in there)]
        if not apart:
            return candidate
        why = why or _why_apart(fused, apart[0])
    raise PlacementError(
        f"{first} and {second} cannot be one query: {why}",
        where=flow[apart[0][1]].where,
        hint="leave them apart, or change what the condition names",
    )


def _why_apart(fused: DeploymentPlan, edge: Edge) -> str:
    """Return which condition of a common unit two neighbouring operators do not meet."""
    flow, placed = fused.dataflow, fused.deployment.placement
    producer, consumer = edge
    running = [[u for u in fused.units if id_ in u.operators] for id_ in edge]
    common = set.intersection(*({u.layer for u in units} for units in running))
    at = [sorted(x for u in units if u.layer in (common or {u.layer}) for x in u.locations) for units in running]
    if at[0] != at[1]:
        where = f" in layer {', '.join(sorted(common))}" if common else ""
        return f"'{producer}' runs{where} for {', '.join(at[0])}, '{consumer}' for {', '.join(at[1])}"
    layers = {u.layer for u in running[0]}
    beside = {i for u in fused.units if u.layer in layers and set(u.locations) <= set(at[0]) for i in u.operators}
    operators = tuple(id_ for id_ in flow.order if id_ in beside)
    return why_apart(
        flow, edge, fused.deployment.cuts, lambda id_: tuple(placed[id_, x] for x in at[0]), operators=operators
    )


def _on_one_of(plan: DeploymentPlan, deployment: Deployment, one: Unit, other: Unit) -> Iterator[Deployment]:
    """Yield the deployment unchanged, then with two units of one zone on the hosts of either."""
    yield deployment
    if one.zone != other.zone or len(plan.continuum.zone(one.zone).nodes) == 1:
        return
    for unit in (one, other):
        hosts = {x: deployment.placement[unit.operators[0], x] for x in unit.locations}
        changed = {id_: hosts for id_ in (*one.operators, *other.operators)}
        moved = replace(deployment, placement=deployment.placement.replaced(changed))
        with suppress(HeadwaterError):
            groups_of(plan.dataflow, plan.continuum, moved.placement, partial=plan.pooled)
            yield moved


def _check_one_layer(plan: DeploymentPlan, operators: Iterable[str]) -> None:
    """Refuse to move operators that are in another layer at some locations: the target is ambiguous."""
    for location, own in plan.layers_at.items():
        if found := [i for i in operators if i in own]:
            raise PlacementError(
                f"'{found[0]}' is in {own[found[0]]} at {location}, elsewhere in {plan.layers[found[0]]}",
                where="fuse",
                hint=f"move it first: headwater move {found[0]} --to LAYER for all locations, "
                f"or with --at {location} for that one",
            )


def _unit_names(plan: DeploymentPlan) -> dict[str, Unit]:
    return {name: u for u in plan.units for name in (u.id, u.name, f"{u.name}@{u.node}")}


def _unit(plan: DeploymentPlan, unit: str) -> Unit:
    """Return the unit of a name, with or without its node, or else the unit that runs the operator of this name."""
    running = {id_: u for u in plan.units for id_ in u.operators}
    names = running | _unit_names(plan)
    _known("unit or operator", unit, names)
    alike = [u for u in plan.units if unit == u.name] or [u for u in plan.units if unit in u.operators]
    if len({u.operators for u in alike}) > 1:
        ids = [f"{u.name}@{u.node}" for u in alike]
        raise PlacementError(
            f"{unit} does not have the same operators in all zones",
            where="edit",
            hint=f"name one of {', '.join(dict.fromkeys(ids))}",
        )
    return names[unit]


def _edges(flow: Dataflow, upper: Iterable[str], lower: Iterable[str]) -> frozenset[Edge]:
    inside = set(upper)
    return frozenset((p, c) for c in lower for p in flow[c].inputs if p in inside)


def _after(flow: Dataflow, operator: str, along: Callable[[str, str], bool]) -> set[str]:
    found, todo = set[str](), [operator]
    while todo:
        id_ = todo.pop()
        new = {c for c in flow.consumers[id_] if along(id_, c)} - found
        found |= new
        todo += new
    return found


def _before(flow: Dataflow, operator: str, along: Callable[[str, str], bool]) -> set[str]:
    found, todo = set[str](), [operator]
    while todo:
        id_ = todo.pop()
        new = {p for p in flow[id_].inputs if along(p, id_)} - found
        found |= new
        todo += new
    return found


def _known(what: str, name: str, names: Iterable[str]) -> None:
    there = sorted(set(names))
    if name not in there:
        raise PlacementError(
            f"no {what} is called '{name}'",
            where="edit",
            hint=suggestion(name, there, "there are"),
        )
