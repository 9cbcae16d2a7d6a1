"""Rows of the store as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from headwater.adapt.slo import Mode
from headwater.control.lifecycle import Goal, Phase
from headwater.core.jsonform import Hidden
from headwater.core.metrics import Progress
from headwater.plan.steps import CanarySettings, FormerOutputChoice, Step

StepState = Literal["todo", "begun", "done", "dropped"]
Outcome = Literal["done", "rolled back", "failed", "refused", "superseded"]
DecisionState = Literal["nothing", "proposed", "rejected", "expired", "wanted", "watched", "kept", "undone", "failed"]
"""In order: no better plan found; waits for a person; a person said no; no longer wanted; stored as desired state;
active and being judged; judged good; judged worse and undone; could not be executed."""
OPEN: frozenset[DecisionState] = frozenset({"proposed", "wanted", "watched"})
"""States of decisions without an outcome yet."""


@dataclass(frozen=True, kw_only=True)
class DesiredState:
    """One version of a deployment's desired state."""

    deployment: Annotated[str, Hidden]
    version: int
    goal: Goal
    plan: str | None
    reset_state: Annotated[frozenset[str], Hidden] = frozenset()
    canary: Annotated[CanarySettings | None, Hidden] = None
    former_output: Annotated[FormerOutputChoice, Hidden] = "refuse"
    at: float = 0.0

    @property
    def generation(self) -> int:
        """Return the number of this plan in the deployment's history; its rollback may use the next number."""
        return 2 * self.version - 1


@dataclass(frozen=True, kw_only=True)
class DeploymentRecord:
    """State of a deployment. ``active_plan`` is the plan whose names and epochs hold."""

    name: str
    version: int
    """Version of the newest desired state."""
    observed_version: int
    """The newest version with an outcome, good or bad."""
    phase: Phase
    active_plan: str | None
    message: str
    updated: float


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of a deployment, under way or ended."""

    id: int
    deployment: Annotated[str, Hidden]
    version: int
    goal: Goal
    plan: str | None
    before: Annotated[str | None, Hidden]
    """The active plan when the change began."""
    phase: Phase
    outcome: Outcome | None
    message: str
    baseline: Annotated[Progress | None, Hidden]
    begun: float
    ended: float | None


@dataclass(frozen=True, kw_only=True)
class JournalEntry:
    """A step of a change and its state."""

    number: int
    step: Step
    state: StepState
    note: str = ""
    begun: float | None = None
    ended: float | None = None
    """First attempt and end of the step, in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to a deployment; ids are in order of time."""

    id: int
    deployment: str
    at: float
    text: str


@dataclass(frozen=True, kw_only=True)
class ReportRecord:
    """A node's last report of a deployment, and the error of the last poll."""

    node: str
    at: float
    progress: Progress | None
    error: str | None = None


def whole(reports: Iterable[ReportRecord]) -> Progress:
    """Join the progress of several nodes."""
    return Progress(seconds=0.0).joined(*(r.progress for r in reports if r.progress is not None))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Progress of a deployment on all nodes at a time (seconds since 1970)."""

    at: float
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A decision on a deployment, based on measurements.

    ``trigger``: the limit, ``forecast ...``, ``gain`` or ``undo``; ``why``: the reason, as a sentence. ``plan``: the
    decided plan, ``before``: the plan active at that time; ``version``: the desired state it led to. ``data``: the SLO,
    the measurements, the alternatives with their predictions. ``after``: the measurements when it was judged, and the
    verdict. Both are JSON-able.
    """

    id: int
    deployment: str
    at: float
    mode: Mode
    trigger: str
    why: str
    state: DecisionState
    plan: str | None
    before: str | None
    version: int | None
    data: Mapping[str, Any]
    after: Mapping[str, Any] | None
    updated: float


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to act on the store: ``holder`` is unique, ``label`` is for people; ``term`` counts acquisitions.

    ``seconds``: time without a heartbeat after which another controller may take it.
    """

    holder: str
    label: str
    term: int
    seconds: float
