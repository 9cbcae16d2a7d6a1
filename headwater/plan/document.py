"""The document of a plan: its stored form. Reading it validates it and never plans.

The document holds every decision of the plan (units, channels, hosts, names, epochs) and the version of the
planner that made it. ``headwater.plan.upgrade`` upgrades documents of older formats.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from headwater.continuum.model import Continuum
from headwater.core.errors import ContinuumError, DeploymentError
from headwater.core.jsonform import problem
from headwater.plan.model import DeploymentPlan, Unit

FORMAT = 2
PLANNER = 2
"""Version of the planner: another version may cut and place differently."""
_NOTHING: Mapping[str, str] = {}
_NO_EPOCHS: Mapping[str, int] = {}
_NO_UNITS: Mapping[str, Unit] = {}
_PLAN: TypeAdapter[DeploymentPlan] = TypeAdapter(DeploymentPlan)


def to_document(plan: DeploymentPlan) -> dict[str, Any]:
    """Return a plan as JSON-able data; ``from_document`` returns an equal plan."""
    return {"plan": FORMAT, "planner": PLANNER, **_PLAN.dump_python(plan, mode="json")}


def stored_parts(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return a document's continuum, and the rest, which refers to it by its content: many plans share one."""
    continuum = document["continuum"]
    return continuum, {**document, "continuum": digest(continuum)}


def from_document(data: object) -> DeploymentPlan:
    """Read the plan of a document; raise a HeadwaterError that states what is wrong.

    Executes nothing; functions in the document stay pickled.
    """
    if not isinstance(data, Mapping) or type(data.get("plan")) is not int:
        raise _wrong("it has no format")
    if data["plan"] != FORMAT:
        raise DeploymentError(
            f"the plan has format {data['plan']}; this version reads format {FORMAT}",
            hint="open its store, which upgrades it; or use the version of Headwater that made it",
        )
    try:
        plan = _PLAN.validate_python({k: v for k, v in data.items() if k not in ("plan", "planner")})
    except ValidationError as error:
        raise _wrong(problem(error)) from error
    _check(plan)
    return plan


def _wrong(what: str) -> DeploymentError:
    return DeploymentError(f"not a plan: {what}", hint="it is damaged, or of another version of Headwater: plan again")


def _check(plan: DeploymentPlan) -> None:
    """Check that the parts of a plan are consistent."""
    flow, continuum = plan.dataflow, plan.continuum
    twice = [name for names in (_ids(plan.units), _ids(plan.channels)) for name, n in names.items() if n > 1]
    if twice:
        raise _wrong(f"{twice[0]} occurs twice")
    try:
        for unit in plan.units:
            node = continuum.node(unit.node)
            strange = set(unit.hosts) - {host.name for host in node.hosts}
            if node.zone != unit.zone or continuum.zone(unit.zone).layer != unit.layer or strange:
                raise _wrong(f"unit {unit.id} is on hosts of another node")
            if unknown := [o for o in (*unit.operators, *unit.outputs) if o not in flow]:
                raise _wrong(f"unit {unit.id} has unknown operator '{unknown[0]}'")
    except ContinuumError as error:
        raise _wrong(error.what) from error
    _check_cover(plan)
    if missing := [o for o in flow.order if o not in plan.tags]:
        raise _wrong(f"'{missing[0]}' has no stored name")
    ids = {unit.id for unit in plan.units}
    for channel in plan.channels:
        if strangers := {channel.producer, *channel.routes} - ids:
            raise _wrong(f"channel {channel.id} has unknown unit {min(strangers)}")
        if channel.operator not in plan.unit(channel.producer).outputs:
            raise _wrong(f"channel {channel.id} is not an output of {channel.producer}")
    if unplaced := [o for o in flow.order if not _is_placed(plan, o)]:
        raise _wrong(f"'{unplaced[0]}' is not placed for some location")


def _is_placed(plan: DeploymentPlan, operator: str) -> bool:
    """Return whether an operator is placed at all locations, or at some of a pooled plan's."""
    placed = plan.deployment.placement.of(operator).keys()
    return bool(placed) if plan.pooled else set(plan.locations) <= placed


def _check_cover(plan: DeploymentPlan) -> None:
    """Check that each operator runs once for each of its locations, in one unit or in all parts of one."""
    found: dict[tuple[str, str], float] = {}
    for unit in plan.units:
        share = 1.0 if unit.part is None else 1.0 / unit.part.count
        for operator in unit.operators:
            for location in unit.locations:
                found[operator, location] = found.get((operator, location), 0.0) + share
    for operator in plan.dataflow.order:
        for location in plan.locations:
            wanted = 0.0 if plan.pooled and (operator, location) not in plan.deployment.placement else 1.0
            if abs(found.get((operator, location), 0.0) - wanted) > 1e-6:
                raise _wrong(f"'{operator}' does not run exactly once for location {location}")


def _ids(parts: Any) -> Counter[str]:
    return Counter(part.id for part in parts)


def inherit(
    plan: DeploymentPlan,
    *,
    tags: Mapping[str, str] = _NOTHING,
    unit_tags: Mapping[str, str] = _NOTHING,
    epochs: Mapping[str, int] = _NO_EPOCHS,
    channel_tags: Mapping[str, str] = _NOTHING,
    units: Mapping[str, Unit] = _NO_UNITS,
) -> DeploymentPlan:
    """Return the plan with inherited names and epochs; units not named keep theirs.

    ``tags`` are by operator, and also name its channels unless ``channel_tags``, by place, do;
    ``unit_tags``, ``epochs`` and ``units``, which replace others, are by the unit's id.
    """
    return replace(
        plan,
        tags={**plan.tags, **{k: v for k, v in tags.items() if k in plan.tags}},
        units=tuple(
            replace(units.get(u.id, u), tag=unit_tags.get(u.id, u.tag), epoch=epochs.get(u.id, u.epoch))
            for u in plan.units
        ),
        channels=tuple(
            replace(c, tag=channel_tags.get(c.place) or tags.get(c.operator) or c.tag) for c in plan.channels
        ),
    )


def plan_id(plan: DeploymentPlan) -> str:
    """Return the id of a plan: a hash of its content, stored names and epochs included."""
    if "_id" not in plan.__dict__:
        plan.__dict__["_id"] = digest(stored_form(plan))
    name: str = plan.__dict__["_id"]
    return name


def stored_form(plan: DeploymentPlan) -> dict[str, Any]:
    """Return a plan's document with the continuum replaced by its id."""
    rest = _PLAN.dump_python(plan, mode="json", exclude={"continuum"})
    return {"plan": FORMAT, "planner": PLANNER, **rest, "continuum": continuum_id(plan.continuum)}


def continuum_id(continuum: Continuum) -> str:
    """Return the id of a continuum: a hash of its content."""
    if "_id" not in continuum.__dict__:
        continuum.__dict__["_id"] = digest(continuum.to_data())
    name: str = continuum.__dict__["_id"]
    return name


def digest(document: Mapping[str, Any]) -> str:
    """Return the hash of a document's content."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
