"""Edits of a deployment that people make by name: move an operator, fuse units, split one. Pure.

Each gives another deployment, from which a plan is built and compared with the running one like any
other. Units are named with or without their zone: a cut holds in all zones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches

from headwater.dataflow.graph import Dataflow
from headwater.dataflow.sources import Source
from headwater.errors import PlacementError
from headwater.plan.build import build
from headwater.plan.model import Deployment, DeploymentPlan, Edge


def move(plan: DeploymentPlan, operator: str, layer: str) -> Deployment:
    """Put an operator into another layer, and those along that data could not reach or leave it otherwise.

    Upwards all that comes after it goes along, downwards all that comes before it. Raise PlacementError
    where that would take a source along: what it reads is where it is.
    """
    flow, continuum = plan.dataflow, plan.continuum
    _known("operator", operator, flow.order)
    _known("layer", layer, [known.name for known in continuum.layers])
    height, layers = continuum.layer_index, dict(plan.deployment.layers)
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
    return replace(plan.deployment, layers={**layers, **dict.fromkeys(moved, layer)})


def split(plan: DeploymentPlan, unit: str, after: str) -> Deployment:
    """Cut a unit behind one of its operators."""
    operators = _operators(plan, unit)
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
    one, other = _operators(plan, first), _operators(plan, second)
    between = _edges(flow, one, other) or _edges(flow, other, one)
    if not between:
        raise PlacementError(
            f"no data goes from {first} to {second}, nor back",
            where="fuse",
            hint="name two units of which one reads the other",
        )
    deployment = replace(plan.deployment, cuts=plan.deployment.cuts - between)
    found = {deployment.layers[i] for i in (*one, *other)}
    if layer is None and len(found) > 1:
        raise PlacementError(
            f"{first} is in layer {deployment.layers[one[0]]}, {second} in {deployment.layers[other[0]]}",
            where="fuse",
            hint=f"say where they are to run: --to {' or --to '.join(sorted(found))}",
        )
    for id_ in (*one, *other):
        if layer is not None and deployment.layers[id_] != layer:
            deployment = move(replace(plan, deployment=deployment), id_, layer)
    fused = build(flow, plan.continuum, deployment)
    apart = [(a, b) for a, b in between if not any({a, b} <= set(u.operators) for u in fused.units)]
    if apart:
        raise PlacementError(
            f"{first} and {second} cannot be one query",
            where=flow[apart[0][1]].where,
            hint="a unit needs one host that meets all its requirements, and outputs that one pass over its "
            "input can serve",
        )
    return deployment


def _operators(plan: DeploymentPlan, unit: str) -> tuple[str, ...]:
    names = {name: u.operators for u in plan.units for name in (u.id, u.name, f"{u.name}@{u.zone}")}
    _known("unit", unit, names)
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
    there = list(names)
    if name not in there:
        near = get_close_matches(name, there, 1)
        raise PlacementError(
            f"no {what} is called '{name}'",
            where="edit",
            hint=f"did you mean '{near[0]}'?" if near else f"there are {', '.join(sorted(set(there)))}",
        )
