"""What the store gives: rows as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headwater.adapt.promise import Mode
from headwater.control.lifecycle import Goal, Phase
from headwater.metrics import Progress
from headwater.plan.steps import CanarySettings, Step

StepState = Literal["todo", "begun", "done", "dropped"]
Outcome = Literal["done", "rolled back", "failed", "refused", "superseded"]
DecisionState = Literal[
    "nothing", "proposed", "rejected", "expired", "wanted", "watched", "kept", "undone", "failed"
]
"""There was nothing better; a person is asked; said no; is not wanted any more; the plan is wanted; it is in
force and judged; it was good; it was worse and undone; it could not be carried out."""
OPEN: frozenset[DecisionState] = frozenset({"proposed", "wanted", "watched"})
"""States of decisions of which more is to be heard."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """One wish of an entrance: a version of what is wanted of a deployment."""

    deployment: str
    version: int
    goal: Goal
    plan: str | None
    reset_state: frozenset[str] = frozenset()
    canary: CanarySettings | None = None
    at: float = 0.0

    @property
    def generation(self) -> int:
        """Number this plan among all of the deployment; a roll-back may take the number behind it."""
        return 2 * self.version - 1


@dataclass(frozen=True, kw_only=True)
class DeploymentRecord:
    """Where a deployment stands. ``base`` is the plan whose names and epochs hold."""

    name: str
    version: int
    """Of the newest wish."""
    dealt: int
    """The newest version that was brought to an end, good or bad."""
    phase: Phase
    base: str | None
    message: str
    updated: float


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of a deployment, under way or ended."""

    id: int
    deployment: str
    version: int
    goal: Goal
    plan: str | None
    before: str | None
    """The plan that ran when it began."""
    phase: Phase
    outcome: Outcome | None
    message: str
    baseline: Progress | None
    begun: float
    ended: float | None

    def to_data(self) -> dict[str, Any]:
        """Give the change as JSON-able data."""
        names = ("id", "version", "goal", "plan", "phase", "outcome", "message", "begun", "ended")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class JournalEntry:
    """A step of a change, and how far it is."""

    number: int
    step: Step
    state: StepState
    note: str = ""
    begun: float | None = None
    ended: float | None = None
    """When it was first tried and when it was done, in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something worth telling, in the order in which it happened."""

    id: int
    deployment: str
    at: float
    text: str


@dataclass(frozen=True, kw_only=True)
class ReportRecord:
    """What a node last said of a deployment, and why it cannot be asked now."""

    node: str
    at: float
    progress: Progress | None
    error: str | None = None


def whole(reports: Iterable[ReportRecord]) -> Progress:
    """Put together what nodes said."""
    return Progress(seconds=0.0).joined(*(r.progress for r in reports if r.progress is not None))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What all zones said of a deployment at a time (seconds since 1970)."""

    at: float
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A decision on a deployment that was made on what was measured.

    ``trigger``: the limit, ``forecast ...``, ``gain`` or ``undo``; ``why``: in a sentence. ``plan``: what it
    is for, ``before``: what was in force; ``version``: of the wish that it led to. ``data``: the promise, the
    measurements, the alternatives with what was predicted of each. ``after``: what was measured when it was
    judged, with the verdict. Both are JSON-able.
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

    def to_data(self) -> dict[str, Any]:
        """Give the decision as JSON-able data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Who acts on the store: ``holder`` is unique, ``label`` is for people; ``term`` counts the takings.

    ``seconds``: after which another may take it that has seen no heartbeat meanwhile.
    """

    holder: str
    label: str
    term: int
    seconds: float
