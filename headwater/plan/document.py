"""A plan as a document: what is stored, sent to zones and compared, from which the plan is built again.

A plan follows from dataflow, continuum and deployment; beside these the document only holds what
a plan inherits from the one before it: under which names its state is stored, and its epochs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from headwater.continuum import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.errors import DeploymentError
from headwater.plan.build import build
from headwater.plan.model import Deployment, DeploymentPlan

FORMAT = 1
_NOTHING: Mapping[str, str] = {}
_NO_EPOCHS: Mapping[str, int] = {}


class _Document(BaseModel):
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


def to_document(plan: DeploymentPlan) -> dict[str, Any]:
    """Give a plan as JSON-able data; ``from_document`` gives an equal plan back."""
    return {
        "plan": FORMAT,
        "dataflow": plan.dataflow.to_data(),
        "continuum": plan.continuum.to_data(),
        "layers": dict(plan.deployment.layers),
        "cuts": sorted(list(c) for c in plan.deployment.cuts),
        "spread": plan.deployment.spread,
        # Left out where empty: such plans keep the names that they had before there was this.
        **({"at": {x: dict(own) for x, own in at.items()}} if (at := plan.deployment.at) else {}),
        **({"shared": True} if plan.deployment.shared else {}),
        "tags": dict(plan.tags),
        "unit_tags": {u.id: u.tag for u in plan.units},
        "epochs": {u.id: u.epoch for u in plan.units},
        "channel_tags": {c.place: c.tag for c in plan.channels},
    }


def from_document(data: object) -> DeploymentPlan:
    """Build the plan of a document, or raise a HeadwaterError that says what is wrong with it.

    Nothing in it is executed; functions it carries stay pickled.
    """
    try:
        document = _Document.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise DeploymentError(
            f"not a plan: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            hint="it was damaged, or made by another version of Headwater: plan again",
        ) from error
    if document.plan != FORMAT:
        raise DeploymentError(f"a plan of format {document.plan}", hint=f"this version reads format {FORMAT}")
    cuts = frozenset((edge[0], edge[1]) for edge in document.cuts if len(edge) == 2)
    fresh = build(
        Dataflow.from_data(document.dataflow),
        Continuum.from_data(document.continuum),
        Deployment(document.layers, cuts, document.spread, document.at, document.shared),
    )
    return inherit(
        fresh,
        tags=document.tags,
        unit_tags=document.unit_tags,
        epochs=document.epochs,
        channel_tags=document.channel_tags,
    )


@dataclass(frozen=True)
class Outline:
    """What a document tells at once, without building its plan: the units by id, and the continuum's data."""

    units: tuple[str, ...]
    continuum: Mapping[str, Any]
    operators: tuple[str, ...]


def outline(data: Mapping[str, Any]) -> Outline:
    """Read the outline of a stored document, which was checked when it was made."""
    operators = tuple(data["layers"])
    return Outline(tuple(data["unit_tags"]), data["continuum"], operators)


def inherit(
    plan: DeploymentPlan,
    *,
    tags: Mapping[str, str] = _NOTHING,
    unit_tags: Mapping[str, str] = _NOTHING,
    epochs: Mapping[str, int] = _NO_EPOCHS,
    channel_tags: Mapping[str, str] = _NOTHING,
) -> DeploymentPlan:
    """Give a plan the stored names and epochs of what it goes on from; others keep their own.

    ``tags`` are by operator, and name its channels as well where ``channel_tags``, by place, do not;
    ``unit_tags`` and ``epochs`` are by the unit's id.
    """
    return replace(
        plan,
        tags={**plan.tags, **{k: v for k, v in tags.items() if k in plan.tags}},
        units=tuple(
            replace(u, tag=unit_tags.get(u.id, u.tag), epoch=epochs.get(u.id, u.epoch)) for u in plan.units
        ),
        channels=tuple(
            replace(c, tag=channel_tags.get(c.place) or tags.get(c.operator) or c.tag) for c in plan.channels
        ),
    )


def plan_id(plan: DeploymentPlan) -> str:
    """Name a plan by its content, stored names and epochs included."""
    return digest(to_document(plan))


def digest(document: Mapping[str, Any]) -> str:
    """Name a document by its content."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
