"""Upgrades of plan documents in older formats: one function from each format to the next.

An old document without units is planned again, and the result is compared with the names, epochs and channels in
the document. A document that does not fit is refused, never taken for another plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from headwater.continuum.model import Continuum, Host, strongest
from headwater.core.errors import DeploymentError, HeadwaterError
from headwater.core.jsonform import problem
from headwater.core.requirement import Capabilities
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build, in_layers
from headwater.plan.document import FORMAT, inherit, to_document
from headwater.plan.model import Channel, DeploymentPlan, Part, Unit
from headwater.plan.spread import spread_column

Document = Mapping[str, Any]


def upgraded(document: Document) -> Document:
    """Upgrade a plan's document; raise DeploymentError, with what to do, if it cannot be upgraded."""
    while (found := document.get("plan")) != FORMAT:
        if found not in _UPGRADES:
            raise DeploymentError(
                f"the plan has format {found}; this version reads formats up to {FORMAT}",
                hint="use the version of Headwater that made it",
            )
        document = _UPGRADES[found](document)
    return document


class _Format1(BaseModel):
    """Dataflow, continuum and layers, from which every reader built the plan."""

    model_config = ConfigDict(extra="forbid", strict=True)

    plan: int
    dataflow: dict[str, Any]
    continuum: dict[str, Any]
    layers: dict[str, str]
    cuts: list[list[str]]
    spread: bool
    at: dict[str, dict[str, str]] = {}
    shared: bool = False
    tags: dict[str, str]
    unit_tags: dict[str, str]
    epochs: dict[str, int]
    channel_tags: dict[str, str] = {}


def _from_1(document: Document) -> Document:
    try:
        old = _Format1.model_validate(document)
    except ValidationError as error:
        raise DeploymentError(f"not a plan: {problem(error)}", hint="it is damaged") from error
    flow, continuum = Dataflow.from_data(old.dataflow), Continuum.from_data(old.continuum)
    try:
        cuts = frozenset((edge[0], edge[1]) for edge in old.cuts)
        deployment = in_layers(flow, continuum, old.layers, at=old.at, cuts=cuts)
        plan = build(flow, continuum, deployment, pooled=old.shared)
    except HeadwaterError as error:
        raise _refused(flow.name, str(error)) from error
    if old.spread:
        plan = _in_parts(plan, old.unit_tags)
    ids, places = {u.id for u in plan.units}, {c.place for c in plan.channels}
    strange = ids ^ old.unit_tags.keys() | (places ^ old.channel_tags.keys() if old.channel_tags else set())
    if strange:
        raise _refused(flow.name, f"{', '.join(sorted(strange)[:3])} would differ from the stored plan")
    return to_document(
        inherit(
            plan,
            tags=old.tags,
            unit_tags=old.unit_tags,
            epochs=old.epochs,
            channel_tags=old.channel_tags,
        )
    )


def _refused(name: str, why: str) -> DeploymentError:
    return DeploymentError(
        f"its plan is of an older version and cannot be upgraded: {why}",
        where=f"deployment '{name}'",
        hint="with the version that made it, let it finish its input (headwater stop NAME --finish) or "
        "forget it, and apply it again with this one",
    )


# ---------------------------------------------- format 1: in one zone a Spark for each kind of hosts


def _in_parts(plan: DeploymentPlan, known: Mapping[str, str]) -> DeploymentPlan:
    """Divide units into the parts of the document; in the plan they are whole."""
    shares = {unit.id: _shares(plan, unit, known) for unit in plan.units}

    def parts(id_: str) -> tuple[Unit, ...]:
        return shares[id_]

    channels: list[Channel] = []
    for channel in plan.channels:
        routes = {p.id: way for r, way in channel.routes.items() for p in parts(r)}
        channels += [replace(channel, producer=p.id, part=p.part, routes=routes) for p in parts(channel.producer)]
    units = tuple(p for u in plan.units for p in parts(u.id))
    return replace(plan, units=units, channels=tuple(channels))


def _shares(plan: DeploymentPlan, unit: Unit, known: Mapping[str, str]) -> tuple[Unit, ...]:
    """Return the parts of a unit, one for each kind of hosts; or the unit on the strongest kind alone."""
    hosts = [h for h in plan.continuum.zone(unit.zone).hosts if h.name in unit.hosts]
    kinds: dict[Capabilities, list[Host]] = {}
    for host in hosts:
        kinds.setdefault(host.capabilities, []).append(host)
    if len(kinds) < 2:
        return (unit,)
    column = spread_column(plan.dataflow, unit.operators)
    if column is None or unit.id in known:
        best = kinds[strongest(hosts).capabilities]
        return (replace(unit, hosts=tuple(h.name for h in best)),)
    return tuple(
        replace(unit, hosts=tuple(h.name for h in own), part=Part(index, len(kinds), column))
        for index, own in enumerate(kinds.values())
    )


_UPGRADES: Mapping[Any, Callable[[Document], Document]] = {1: _from_1}
