"""What routes answer: values in the JSON form that ``--json`` has, too.

The type of a value describes it for OpenAPI; here are those that only REST has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Response

from headwater.app.client import ChangeOutline
from headwater.control.lifecycle import Phase
from headwater.control.sharing import Role
from headwater.core.jsonform import dump_json
from headwater.plan.port import Replayed


def answered(value: object, status: int = 200, *, headers: Mapping[str, str] | None = None) -> Response:
    """Answer a value; it comes from ourselves, and is not checked once more."""
    return Response(dump_json(value), status, headers, media_type="application/json")


@dataclass(frozen=True, kw_only=True)
class Health:
    """Whether the store can be read, and whether a controller acts on it."""

    status: str
    store: bool
    controller: bool


@dataclass(frozen=True, kw_only=True)
class Version:
    """What answers."""

    name: str
    version: str
    api: str


@dataclass(frozen=True, kw_only=True)
class Me:
    """Whose token it is, and what may be done with it; on trial nobody's, and all."""

    name: str | None
    role: Role
    on_trial: bool


@dataclass(frozen=True, kw_only=True)
class DeploymentSummary:
    """Where a deployment stands."""

    name: str
    phase: Phase
    version: int
    observed_version: int
    plan: str | None
    message: str
    updated: float


@dataclass(frozen=True, kw_only=True)
class Stored(ChangeOutline):
    """What a desired state changes. ``wanted``: the version to follow; null where nothing was stored."""

    deployment: str
    stored: bool
    wanted: int | None


@dataclass(frozen=True, kw_only=True)
class WantedVersion:
    """The version that is wanted from now on."""

    deployment: str
    wanted: int


@dataclass(frozen=True, kw_only=True)
class DeadLetters:
    """Records that did not fit, at most a thousand of each zone; and zones that could not be asked."""

    letters: tuple[Mapping[str, Any], ...]
    unreached: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ReplayAnswer:
    """What came of each letter, in the order asked for; and zones that could not be asked."""

    letters: tuple[Replayed, ...]
    unreached: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ContinuumAnswer:
    """Zones, in the form of the continuum's file."""

    name: str
    layers: tuple[str, ...]
    zones: Mapping[str, Mapping[str, Any]]
