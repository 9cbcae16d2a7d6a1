"""Edits of a deployment that people make by name: move an operator, fuse units, split one. Pure.

Each gives another deployment, from which a plan is built and compared with the running one like any
other. Units are named with or without their zone: a cut holds in all zones. A move may be for one location.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from headwater.dataflow.graph import Dataflow
from headwater.dataflow.sources import Source
from headwater.errors import PlacementError, suggestion
from headwater.plan.build import build
from headwater.plan.model import Deployment, DeploymentPlan, Edge, Unit


def move(plan: DeploymentPlan, operator: str, layer: str, *, location: str | None = None) -> Deployment:
    """Put an operator into another layer, and those along that data could not reach or leave it otherwise.

    Upwards all that comes after it goes along, downwards all that comes before it. With ``location`` only
    for the rows of that location, else for all. Raise PlacementError where that would take a source along:
    what it reads is where it is.
    """
    flow, deployment = plan.dataflow, plan.deployment
    locations = flow.locations or plan.continuum.locations
    _known("operator", operator, flow.order)
    _known("layer", layer, [known.name for known in plan.continuum.layers])
    if location is not None:
        _known("location", location, locations)
    at = {x: {id_: deployment.layer(id_, x) for id_ in flow.order} for x in locations}
    for moving in locations if location is None else (location,):
        at[moving] = _moved(plan, at[moving], operator, layer)
    layers = {}
    for id_ in flow.order:
        found = [at[x][id_] for x in locations]
        usual = deployment.layers[id_]
        layers[id_] = usual if usual in found else found[0]
    return replace(deployment, layers=layers, at=at)


def _moved(plan: DeploymentPlan, layers: Mapping[str, str], operator: str, layer: str) -> dict[str, str]:
    """Give the layers of one location after a move."""
    flow, height = plan.dataflow, plan.continuum.layer_index
    upwards = height(layer) > height(layers[operator])
    along = {operator} | (_after(flow, operator) if upwards else _before(flow, operator))
    moved = [
        id_
        for id_ in flow.order
        if id_ in along
        and (height(layers[id_]) < height(layer) if upwards else height(layers[id_]) > height(layer))
    ]
    for id_ in moved:
        if isinstance(flow[id_], Source) and id_ != operator:
            raise PlacementError(
                f"'{operator}' cannot move to layer {layer}: '{id_}' is read in layer {layers[id_]}",
                where=flow[operator].where,
                hint=f"if its data can be read there, move it first: headwater move {id_} --to {layer}",
            )
    return {**layers, **dict.fromkeys(moved, layer)}


def split(plan: DeploymentPlan, unit: str, after: str) -> Deployment:
    """Cut a unit behind one of its operators."""
    operators = _unit(plan, unit).operators
    _known("operator of the unit", after, operators)
    edges = {(after, c) for c in plan.dataflow.consumers[after] if c in operators}
    if not edges:
        raise PlacementError(
            f"'{after}' is the last operator of {unit}: there is nothing to cut off",
            where=plan.dataflow[after].where,
            hint=f"split behind one of {', '.join(i for i in operators if i != after)}",
        )
    return replace(plan.deployment, cuts=plan.deployment.cuts | edges)


def fuse(plan: DeploymentPlan, first: str, second: str, *, layer: str | None = None) -> Deployment:
    """Make two neighbouring units one; ``layer`` says where, if they are not in the same one.

    Raise PlacementError where they are no neighbours, or cannot be one query.
    """
    flow = plan.dataflow
    one, other = _unit(plan, first), _unit(plan, second)
    operators = (*one.operators, *other.operators)
    between = _edges(flow, one.operators, other.operators) or _edges(flow, other.operators, one.operators)
    if not between:
        raise PlacementError(
            f"no data goes from {first} to {second}, nor back",
            where="fuse",
            hint="name two units of which one reads the other",
        )
    deployment = replace(plan.deployment, cuts=plan.deployment.cuts - between)
    if layer is None and one.layer != other.layer:
        raise PlacementError(
            f"{first} is in layer {one.layer}, {second} in {other.layer}",
            where="fuse",
            hint=f"say where they are to run: --to {' or --to '.join(sorted({one.layer, other.layer}))}",
        )
    if layer is not None:
        _check_one_layer(deployment, operators)
    for id_ in operators:
        if layer is not None and deployment.layers[id_] != layer:
            deployment = move(replace(plan, deployment=deployment), id_, layer)
    fused = build(flow, plan.continuum, deployment)
    there = [u for u in fused.units if u.layer == (layer or one.layer)]
    apart = [(a, b) for a, b in between if not any({a, b} <= set(u.operators) for u in there)]
    if apart:
        raise PlacementError(
            f"{first} and {second} cannot be one query",
            where=flow[apart[0][1]].where,
            hint="a unit needs one host that meets all its requirements, the same locations for all its "
            "operators, and outputs that one pass over its input can serve",
        )
    return deployment


def _check_one_layer(deployment: Deployment, operators: Iterable[str]) -> None:
    """Refuse to move operators that some locations have elsewhere: which of these is meant is not said."""
    for location, own in deployment.at.items():
        if found := [i for i in operators if i in own]:
            raise PlacementError(
                f"'{found[0]}' is in layer {own[found[0]]} at {location}, elsewhere in "
                f"{deployment.layers[found[0]]}",
                where="fuse",
                hint=f"move it first: headwater move {found[0]} --to LAYER for all locations, "
                f"or with --at {location} for that one",
            )


def _unit(plan: DeploymentPlan, unit: str) -> Unit:
    names = {name: u for u in plan.units for name in (u.id, u.name, f"{u.name}@{u.zone}")}
    _known("unit", unit, names)
    alike = [u for u in plan.units if unit == u.name]
    if len({u.operators for u in alike}) > 1:
        ids = [f"{u.name}@{u.zone}" for u in alike]
        raise PlacementError(
            f"{unit} does not have the same operators in all zones",
            where="edit",
            hint=f"name one of {', '.join(dict.fromkeys(ids))}",
        )
    return names[unit]


def _edges(flow: Dataflow, upper: Iterable[str], lower: Iterable[str]) -> frozenset[Edge]:
    inside = set(upper)
    return frozenset((p, c) for c in lower for p in flow[c].inputs if p in inside)


def _after(flow: Dataflow, operator: str) -> set[str]:
    found, todo = set[str](), [operator]
    while todo:
        new = set(flow.consumers[todo.pop()]) - found
        found |= new
        todo += new
    return found


def _before(flow: Dataflow, operator: str) -> set[str]:
    found, todo = set[str](), [operator]
    while todo:
        new = set(flow[todo.pop()].inputs) - found
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
