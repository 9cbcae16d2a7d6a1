"""Responses of routes: values in the JSON form of ``--json``.

A value's type describes it for OpenAPI; this module holds those that only REST has.
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
    """Return a response with a value; its own type guarantees the schema, so it is not validated again."""
    return Response(dump_json(value), status, headers, media_type="application/json")


@dataclass(frozen=True, kw_only=True)
class Health:
    """Whether the store can be read, and whether a controller acts on it."""

    status: str
    store: bool
    controller: bool


@dataclass(frozen=True, kw_only=True)
class Version:
    """Name and version of the server."""

    name: str
    version: str
    api: str


@dataclass(frozen=True, kw_only=True)
class Me:
    """The token's owner and role; in trial mode nobody and all rights."""

    name: str | None
    role: Role
    on_trial: bool


@dataclass(frozen=True, kw_only=True)
class DeploymentSummary:
    """A deployment's phase and version."""

    name: str
    phase: Phase
    version: int
    observed_version: int
    plan: str | None
    message: str
    updated: float


@dataclass(frozen=True, kw_only=True)
class Stored(ChangeOutline):
    """The changes of a desired state. ``wanted``: the version to follow; null where nothing was stored."""

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
    """Dead letters, at most a thousand of each zone; and the unreachable zones."""

    letters: tuple[Mapping[str, Any], ...]
    unreached: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ReplayAnswer:
    """The outcome of each dead letter, in the order of the request; and the unreachable zones."""

    letters: tuple[Replayed, ...]
    unreached: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ContinuumAnswer:
    """Zones, in the form of the continuum's file."""

    name: str
    layers: tuple[str, ...]
    zones: Mapping[str, Mapping[str, Any]]
