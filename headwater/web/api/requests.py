"""Bodies of requests: every field is checked before a use case sees it."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from headwater.control.sharing import Role
from headwater.placement.situation import Limits
from headwater.placement.usage import Weights
from headwater.plan.profile import Profile
from headwater.plan.steps import CanarySettings, FormerOutputChoice

NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$"
MOST = 2**31 - 1
"""Highest version or number that the store can hold."""

Name = Annotated[str, Field(pattern=NAME, examples=["plant"])]
NamePath = Annotated[str, Path(pattern=NAME, description="A deployment's name.", examples=["plant"])]
PoolPath = Annotated[str, Path(pattern=NAME, description="A pool's name.", examples=["commons"])]
OwnerPath = Annotated[str, Path(pattern=NAME, description="An owner's name.", examples=["team-a"])]
NumberPath = Annotated[int, Path(ge=1, le=MOST, description="A decision's number.", examples=[1])]
OwnerName = Annotated[str, Field(pattern=NAME, examples=["team-a"])]
Text = Annotated[str, Field(min_length=1, max_length=300)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[Finite, Field(gt=0)]
Share = Annotated[Finite, Field(ge=0, lt=1)]

FLOW: dict[str, Any] = {
    "headwater": 1,
    "name": "plant",
    "locations": ["L1"],
    "operators": [
        {
            "id": "rows", "kind": "files", "inputs": [], "layer": None, "requires": "",
            "path": "in/{location}", "format": "csv", "schema_text": "id int, v double", "options": [],
            "location_as": "location",
        },
        {
            "id": "high", "kind": "where", "inputs": ["rows"], "layer": None, "requires": "",
            "condition": "v > 1",
        },
        {"id": "out", "kind": "memory", "inputs": ["high"], "layer": "cloud", "requires": ""},
    ],
}  # fmt: skip
ZONES: dict[str, Any] = {
    "name": "plant",
    "layers": ["edge", "cloud"],
    "zones": {
        "C1": {"layer": "cloud"},
        "E1": {"layer": "edge", "parent": "C1", "locations": ["L1"], "link": {"bandwidth": "100Mbit/s"}},
    },
}


class Form(BaseModel):
    """A request's body; unknown fields and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class LimitsForm(Form):
    """Limits of a scheduler; null: no limit."""

    max_latency_s: Positive | None = Field(default=None, examples=[1.0])
    max_bandwidth_bytes_per_s: Positive | None = Field(default=None, examples=[125e6])
    min_bandwidth_bytes_per_s: Annotated[Finite, Field(ge=0, description="Of trcs.")] = Limits().min_bandwidth / 8
    confidence: Annotated[Finite, Field(ge=0, le=1, description="Of tsoo_robust.")] = Limits().confidence

    def limits(self) -> Limits:
        """Return them as strategies take them."""
        latency, width = self.max_latency_s, self.max_bandwidth_bytes_per_s
        return Limits(
            max_latency=math.inf if latency is None else latency,
            max_bandwidth=math.inf if width is None else width * 8,
            min_bandwidth=self.min_bandwidth_bytes_per_s * 8,
            confidence=self.confidence,
        )


class WeightsForm(Form):
    """Weights of hosts and network in the cost."""

    cpu: Annotated[Finite, Field(ge=0)] = 0.5
    network: Annotated[Finite, Field(ge=0)] = 0.5

    def weights(self) -> Weights:
        """Return them as strategies take them."""
        return Weights(self.cpu, self.network)


class CanaryForm(Form):
    """Change zone by zone, and watch each."""

    seconds: Positive = 60.0
    factor: Annotated[Finite, Field(ge=0)] = 2.0

    def settings(self) -> CanarySettings:
        """Return it as plans take it."""
        return CanarySettings(seconds=self.seconds, factor=self.factor)


DataflowField = Annotated[
    dict[str, Any] | Text,
    Field(
        description="The document of Dataflow.to_json(); or the name of a deployment, or the id of a "
        "plan, that the store has.",
        examples=[FLOW, "plant"],
    ),
]
FormerOutputField = Annotated[
    FormerOutputChoice, Field(description="Treatment of other runs' output in sinks that the deployment adds.")
]
ContinuumField = Annotated[
    dict[str, Any] | str | None,
    Field(
        description="The zones, as YAML text or the same as JSON; without it, those of the dataflow's deployment.",
        examples=[ZONES],
    ),
]


class PlanForm(Form):
    """The request to plan a dataflow."""

    dataflow: DataflowField
    continuum: ContinuumField = None
    strategy: Text | None = Field(
        default=None, description="Chooses layers; null: the dataflow's annotations do.", examples=["optimal"]
    )
    limits: LimitsForm = LimitsForm()
    weights: WeightsForm = WeightsForm()
    profile: Profile | None = Field(default=None, description="Operator costs; default: assumed.")
    compare: bool = Field(default=False, description="Compare with all other strategies.")
    rewrite: bool = Field(default=False, description="Choose an equivalent dataflow that sends less over links.")
    without_rules: list[Text] = Field(
        default=[], max_length=100, description="Rewrite rules to leave out.", examples=[[]]
    )
    reset_state: list[Text] = Field(
        default=[], max_length=1000, description="Units whose state may be dropped.", examples=[[]]
    )
    canary: CanaryForm | None = None
    former_output: FormerOutputField = "refuse"


class ApplyForm(PlanForm):
    """The request to run a dataflow. With ``after`` it is refused where another change came first."""

    after: int | None = Field(
        default=None, ge=0, le=MOST, description="The version that the shown plan is based on.", examples=[None]
    )


class EditForm(Form):
    """An edit of a running deployment."""

    preview: bool = Field(default=False, description="Only show the changes.")
    after: int | None = Field(
        default=None, ge=0, le=MOST, description="The version that the shown change is based on.", examples=[None]
    )


class MoveForm(EditForm):
    """Move an operator to another layer or host, for all locations or one; or to a zone."""

    operator: Text = Field(examples=["means"])
    to: Text = Field(description="The layer, or the host.", examples=["edge"])
    at: Text | None = Field(default=None, description="The location; null: all.")


class SplitForm(EditForm):
    """Cut a unit in two behind one of its operators."""

    unit: Text = Field(description="With or without its zone.", examples=["means@S1"])
    after_operator: Text = Field(description="The operator to cut behind.", examples=["readings"])


class SpreadForm(EditForm):
    """Run a unit on one host of its zone, or on several."""

    unit: Text = Field(description="With or without its node.", examples=["means@S1"])
    over: list[Text] = Field(min_length=1, max_length=1000, description="The hosts.", examples=[["s1a", "s1b"]])


class FuseForm(EditForm):
    """Join two neighbouring units into one query."""

    first: Text = Field(description="With or without its zone.", examples=["readings"])
    second: Text = Field(examples=["means"])
    to: Text | None = Field(default=None, description="The layer; null: unchanged.")


class StopForm(Form):
    """The way a deployment stops: keep its state, delete it, or use up all input first."""

    how: Literal["stop", "forget", "finish"] = "stop"


class SloForm(Form):
    """The SLO to set. Omitted fields keep their values; null removes a limit."""

    mode: Literal["off", "advise", "auto"] = "advise"
    max_latency: Positive | None = Field(default=None, description="Maximum p95 latency at every sink, in seconds.")
    max_bandwidth: Positive | None = Field(default=None, description="Maximum bytes per second into the top layer.")
    max_cost: Positive | None = None
    headroom: Share | None = Field(default=0.2, description="The share of each host's cores that stays free.")
    gain: Share = 0.1
    cool_down: Annotated[Finite, Field(ge=0)] = Field(default=60.0, description="Seconds.")
    settle: Annotated[Finite, Field(ge=0)] = Field(default=20.0, description="Seconds.")


class SubmitForm(Form):
    """A dataflow to add to a pool."""

    dataflow: DataflowField
    continuum: ContinuumField = None
    owner: OwnerName | None = Field(default=None, description="The owner; by default the token's owner.")
    former_output: FormerOutputField = "refuse"
    update: bool = Field(default=False, description="Replace the running dataflow of this name.")
    own_windows: bool = Field(default=False, description="Compute no window from shorter windows of other dataflows.")


class OwnerForm(Form):
    """An owner's role and limits. Omitted fields keep their values; null removes a limit."""

    role: Role = Field(default="viewer", description="The default holds for new owners.")
    dataflows: Annotated[int, Field(ge=0, le=MOST)] | None = None
    operators: Annotated[int, Field(ge=0, le=MOST)] | None = None
    cores: Annotated[Finite, Field(ge=0)] | None = None


class RightForm(Form):
    """A right to grant to another owner."""

    other: OwnerName
    what: Literal["read", "remove"]
    owner: OwnerName | None = Field(default=None, description="The owner; by default the token's owner.")


class SimulationForm(Form):
    """A trace of rates to replay through schedulers."""

    dataflow: DataflowField
    continuum: ContinuumField = None
    trace: str = Field(
        max_length=4 * 2**20,
        description="CSV: time,source,location,rate.",
        examples=["time,source,location,rate\n0,rows,L1,10\n60,rows,L1,50\n"],
    )
    strategies: list[Text] = Field(default=["tsoo_exact", "atsoo_h", "annotated"], min_length=1, max_length=12)
    limits: LimitsForm = LimitsForm()
    weights: WeightsForm = WeightsForm()
    profile: Profile | None = None
    forecast: Text | None = Field(default=None, examples=["ewma"])


class DeadLetterForm(Form):
    """A dead letter to replay."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$", examples=["0123456789abcdef"])]
    record: Annotated[str, Field(max_length=4 * 2**20)] | None = Field(
        default=None,
        description="The corrected record; null: unchanged.",
        examples=["press,2026-01-01T08:10:00Z,61.5"],
    )


class ReplayForm(Form):
    """Dead letters to replay."""

    letters: list[DeadLetterForm] = Field(min_length=1, max_length=1000)
    force: bool = Field(default=False, description="Replay even if it does not fit, or was replayed before.")


class WhatIfForm(Form):
    """Suppositions, written as for `headwater what-if`."""

    rates: list[Text] = Field(
        default=[],
        max_length=100,
        description="2x (all sources), read=500 (rows/s), read=2x, or read@L1=500 (at one location).",
        examples=[["2x"]],
    )
    links: list[Text] = Field(
        default=[],
        max_length=100,
        description="E1=1Mbit/s, E1=40ms, or E1=1Mbit/s,40ms: the link from that zone to its parent.",
        examples=[["E1=1Mbit/s"]],
    )


class ContinuumForm(Form):
    """Zones to check."""

    continuum: dict[str, Any] | str = Field(description="As YAML text, or the same as JSON.", examples=[ZONES])
