"""What is answered: the JSON forms of the command line (`--json`), described for OpenAPI.

Fields that are not described here may come, too.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from headwater.adapt.promise import Mode
from headwater.control.lifecycle import Goal, Phase
from headwater.control.records import DecisionState, Outcome, StepState
from headwater.control.sharing import Limits, Role
from headwater.metrics import ChannelProgress, HostProgress, LinkProgress, UnitProgress
from headwater.plan.diff import ChannelChange, UnitChange


class Answer(BaseModel):
    """What is answered."""

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="null")


class Health(Answer):
    """Whether the store can be read, and whether a controller acts on it."""

    status: str
    store: bool
    controller: bool


class Version(Answer):
    """What answers."""

    name: str
    version: str
    api: str


class Me(Answer):
    """Whose token it is, and what may be done with it; on trial nobody's, and all."""

    name: str | None
    role: Role
    on_trial: bool


class ChangeSeen(Answer):
    """A change of a deployment, under way or ended. Times are seconds since 1970."""

    id: int
    version: int
    goal: Goal
    plan: str | None
    phase: Phase
    outcome: Outcome | None
    message: str
    begun: float
    ended: float | None


class ChangeUnderWay(ChangeSeen):
    """The change under way, or the last one, and how many of its steps are done."""

    done: int
    steps: int


class PromiseSeen(Answer):
    """What is promised; null: no limit."""

    mode: Mode
    max_latency: float | None
    max_bandwidth: float | None
    max_cost: float | None
    headroom: float
    gain: float
    cool_down: float
    settle: float


class DecisionAnswer(Answer):
    """A decision that was made on what was measured."""

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
    data: dict[str, Any]
    after: dict[str, Any] | None
    updated: float


class ZoneHeard(Answer):
    """When a zone was last heard of, and why it cannot be asked."""

    zone: str
    at: float
    error: str | None


class StatusAnswer(Answer):
    """All there is to say of a deployment at one moment."""

    name: str
    phase: Phase
    version: int
    message: str
    controller: str | None
    change: ChangeUnderWay | None
    promise: PromiseSeen | None
    kept: bool | None
    broken: list[str]
    measured: dict[str, Any] | None
    decisions: list[DecisionAnswer]
    zones: list[ZoneHeard]
    units: list[UnitProgress]
    links: list[LinkProgress]
    channels: list[ChannelProgress]
    hosts: list[HostProgress]


class Deployed(Answer):
    """Where a deployment stands."""

    name: str
    phase: Phase
    version: int
    dealt: int
    plan: str | None
    message: str
    updated: float


class WishSeen(Answer):
    """What was wanted."""

    version: int
    goal: Goal
    plan: str | None
    at: float


class Told(Answer):
    """Something that happened."""

    at: float
    text: str


class HistoryAnswer(Answer):
    """What was wanted of a deployment, what became of it, and what happened, the oldest first."""

    wishes: list[WishSeen]
    changes: list[ChangeSeen]
    decisions: list[DecisionAnswer]
    events: list[Told]


class StepSeen(Answer):
    """A step of a change."""

    kind: str
    unit: str | None
    state: StepState
    note: str
    begun: float | None
    ended: float | None


class ExplainAnswer(ChangeSeen):
    """The change under way, or the last one: its steps in words and as they went."""

    words: list[str]
    steps: list[StepSeen]


class MetricsAnswer(Answer):
    """What a deployment did: rows and bytes per second, times in seconds, loads in cores."""

    since: float | None
    until: float | None
    units: list[dict[str, Any]]
    hosts: list[dict[str, Any]]
    links: list[dict[str, Any]]
    channels: list[dict[str, Any]]
    course: list[dict[str, Any]]


class ModelAnswer(Answer):
    """What the model says now beside what was measured: latency (s), load (shares of hosts), bytes/s."""

    latency: list[dict[str, Any]]
    load: list[dict[str, Any]]
    bytes: list[dict[str, Any]]


class PreviewAnswer(Answer):
    """What applying a plan would change, as of a version, and its steps in words."""

    version: int
    units: list[UnitChange]
    unchanged: int
    channels: list[ChannelChange]
    carried: list[dict[str, Any]]
    notes: list[str]
    steps: list[str]
    cost: dict[str, Any] | None


class PlanSeen(Answer):
    """A plan: units in zones, channels over links, and what to know about it."""

    dataflow: str
    locations: list[str]
    layers: dict[str, str]
    cuts: list[list[str]]
    units: list[dict[str, Any]]
    channels: list[dict[str, Any]]
    warnings: list[str]


class PlanAnswer(PlanSeen):
    """A plan that can be applied, what that would change, and what is foretold of it."""

    change: PreviewAnswer
    same: bool = Field(description="Whether it is in force already, and nothing is to do.")
    busy: bool = Field(description="Whether a change is under way, which it would take the place of.")
    prediction: dict[str, Any] | None = None
    strategies: dict[str, dict[str, Any]] | None = None


class Stored(PreviewAnswer):
    """What a wish changes. ``wanted``: the version to follow; null where nothing was stored."""

    deployment: str
    stored: bool
    wanted: int | None


class Wanted(Answer):
    """The version that is wanted from now on."""

    deployment: str
    wanted: int


class DeadLetters(Answer):
    """Records that did not fit, at most a thousand of each zone; and zones that could not be asked."""

    letters: list[dict[str, Any]]
    unreached: list[str]


class ReplayedSeen(Answer):
    """What came of a letter that was to be offered again."""

    id: str
    outcome: str
    target: str | None
    reason: str | None


class ReplayAnswer(Answer):
    """What came of each letter, in the order asked for; and zones that could not be asked."""

    letters: list[ReplayedSeen]
    unreached: list[str]


class JoinedAnswer(Answer):
    """What came of a wish for a pool: its version, and what of a dataflow ran already, and what did not.

    ``queries``: how many the pool had before, and how many it has with that.
    """

    pool: str
    version: int
    reused: list[str]
    new: list[str]
    queries: list[int] = Field(min_length=2, max_length=2)
    how: str
    cores: dict[str, float]


class Member(Answer):
    """A dataflow of a pool."""

    name: str
    owner: str
    operators: int
    shared: int
    sinks: dict[str, str]


class PoolAnswer(Answer):
    """A pool of dataflows that run as one."""

    pool: str
    locations: list[str]
    operators: int
    dataflows: list[Member]


class CostAnswer(Answer):
    """What a dataflow costs, in cores: its fair share, what it would take alone, what sharing saves."""

    name: str
    owner: str
    shared: float
    alone: float
    saved: float


class OwnerAnswer(Answer):
    """Somebody who comes with a token; the token itself is never told."""

    name: str
    role: Role
    guarded: bool
    limits: Limits


class ContinuumAnswer(Answer):
    """Zones, in the form of the continuum's file."""

    name: str
    layers: list[str]
    zones: dict[str, dict[str, Any]]


class WhatIfAnswer(Answer):
    """What was foretold of a deployment, as it is and as is supposed, and what would be chosen then."""

    name: str
    supposed: list[str]
    basis: str
    measured_at: float | None
    assumed: list[str]
    promise: PromiseSeen | None
    rates: dict[str, dict[str, dict[str, float]]]
    now: dict[str, Any]
    current: dict[str, Any]
    wanted: dict[str, Any] | None
    alternatives: list[dict[str, Any]]
    chosen: int | None
    why: str
    change: PreviewAnswer | None


class SimulationAnswer(Answer):
    """What came of each strategy's decisions, in all and step by step."""

    strategies: dict[str, dict[str, Any]]
    steps: dict[str, list[dict[str, Any]]]
