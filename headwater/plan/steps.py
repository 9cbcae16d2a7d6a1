"""Idempotent steps as data: carried out by one reader, explained to a person by another. Pure.

What a step begins and leaves behind is the *standing* of unit incarnations, which the controller
stores. ``headwater.plan.order`` leads from any standing to the wanted plan, also from one that a
crash or a newer wanted plan left in the midst of a change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator

from headwater.plan.diff import State
from headwater.plan.document import plan_id
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.transfer import StateTransfer


@dataclass(frozen=True, kw_only=True)
class _UnitStep:
    """What the steps of one unit have: the plan they refer to, by its id, and the unit's id."""

    plan: str
    unit: str

    @property
    def node(self) -> str:
        return self.unit.rpartition("@")[2]


@dataclass(frozen=True, kw_only=True)
class Check(_UnitStep):
    """Compile the unit in its zone without starting it."""

    kind: Literal["check"] = "check"


@dataclass(frozen=True, kw_only=True)
class Prepare(_UnitStep):
    """Make the unit's output channels, register who reads them, set up its inputs."""

    kind: Literal["prepare"] = "prepare"
    joining: tuple[str, ...] = ()
    """Of itself and its readers those that begin where the stream stands, and not where it is kept from."""


@dataclass(frozen=True, kw_only=True)
class Start(_UnitStep):
    """Start the unit, or adopt it when it runs."""

    kind: Literal["start"] = "start"
    state: State = "none"
    why: str = ""
    again: bool = False
    """Whether it takes the place of one that was stopped for it."""


@dataclass(frozen=True, kw_only=True)
class UpdateInputs(_UnitStep):
    """Give the running unit the inputs of the plan."""

    kind: Literal["update_inputs"] = "update_inputs"
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Stop(_UnitStep):
    """Stop the unit at a batch boundary."""

    kind: Literal["stop"] = "stop"
    state: State = "none"
    why: str = ""
    readers: tuple[str, ...] = ()
    """Units that get nothing from it meanwhile."""
    for_good: bool = False
    clean: bool = False
    """Whether a batch that is cut off must be brought to its end: what the unit keeps is to be taken out."""


@dataclass(frozen=True, kw_only=True)
class Drain(_UnitStep):
    """Wait until the unit has read all that its stopped producers left."""

    kind: Literal["drain"] = "drain"
    must: bool = True
    """Whether rows it cannot read end the change; else they are given up with the unit."""


@dataclass(frozen=True, kw_only=True)
class Preflight(_UnitStep):
    """See beforehand whether what a running unit keeps can be taken out of it."""

    kind: Literal["preflight"] = "preflight"


@dataclass(frozen=True, kw_only=True)
class WarmUp(_UnitStep):
    """Run the unit in its zone on a trifle, beside all that counts: its Spark knows the plan then."""

    kind: Literal["warm_up"] = "warm_up"
    transfer: StateTransfer | None = None
    saved: tuple[str, ...] = ()
    """As in ``Load``, of what runs."""


@dataclass(frozen=True, kw_only=True)
class Save(_UnitStep):
    """Put what a stopped unit kept, and how far it had come, where other zones can take it from."""

    kind: Literal["save"] = "save"


@dataclass(frozen=True, kw_only=True)
class Load(_UnitStep):
    """Make the checkpoint of a unit from what others have saved."""

    kind: Literal["load"] = "load"
    transfer: StateTransfer
    saved: tuple[str, ...] = ()
    """The checkpoints of the carry's donors, in its order; '' for one that never came to run."""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """From here on the new plan counts: what was saved is used up, and there is no way back."""

    kind: Literal["switch"] = "switch"
    plan: str
    unit: str = ""

    @property
    def node(self) -> str:
        return "controller"


@dataclass(frozen=True, kw_only=True)
class Finish(_UnitStep):
    """Let the unit use up its input, close its windows and end its channels."""

    kind: Literal["finish"] = "finish"


@dataclass(frozen=True, kw_only=True)
class Forget(_UnitStep):
    """Delete the unit's state and output channels, once all that read them have done so."""

    kind: Literal["forget"] = "forget"
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Look at changed units for some seconds; if they do worse, the change is rolled back."""

    kind: Literal["watch"] = "watch"
    plan: str
    units: tuple[str, ...]
    seconds: float
    factor: float
    """By how much the share of dead letters and late rows may exceed that of before."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(u.rpartition("@")[2] for u in self.units))

    @property
    def node(self) -> str:
        return ", ".join(self.nodes)


Step = (  # fmt: skip
    Check
    | Prepare
    | Start
    | UpdateInputs
    | Stop
    | Drain
    | Preflight
    | WarmUp
    | Save
    | Load
    | Switch
    | Finish
    | Forget
    | Watch
)
_SIDE_BY_SIDE = Check | Preflight | WarmUp | Start | Finish


def side_by_side(steps: Sequence[Step]) -> tuple[int, ...]:
    """Give the places of those steps that may be carried out at once with the first: one for each node."""
    found = {steps[0].node: 0}
    for n, step in enumerate(steps):
        if not isinstance(step, _SIDE_BY_SIDE) or step.kind != steps[0].kind:
            break
        found.setdefault(step.node, n)
    return tuple(found.values())


_FORMER_KINDS = {"feed": "update_inputs", "survey": "preflight", "rehearse": "warm_up"}
_FORMER_FIELDS = {"carry": "transfer", "donors": "source_units"}


def _up_to_date(data: Any) -> Any:
    """Give a step that an older version journaled its names of today."""
    if isinstance(data, list):
        return [_up_to_date(one) for one in data]
    if not isinstance(data, dict):
        return data
    found = {_FORMER_FIELDS.get(name, name): _up_to_date(value) for name, value in data.items()}
    if found.get("state") == "carried":
        found["state"] = "transferred"
    return {**found, "kind": _FORMER_KINDS.get(found["kind"], found["kind"])} if "kind" in found else found


AnyStep: Any = Annotated[Step, Discriminator("kind"), BeforeValidator(_up_to_date)]
"""The schema of a step in the journal; steps of older versions are read, too."""


@dataclass(frozen=True, kw_only=True)
class CanarySettings:
    """Roll a change out zone by zone, and look for so long after each whether all is well."""

    seconds: float = 60.0
    factor: float = 2.0


# ---------------------------------------------------------------- where units stand

Incarnation = tuple[str, str, int]
"""A unit's id, tag and epoch: one way of running it. Those of one tag share a checkpoint."""


def incarnation(unit: Unit) -> Incarnation:
    """Give the incarnation that a plan's unit is."""
    return unit.id, unit.tag, unit.epoch


@dataclass(frozen=True, kw_only=True)
class UnitStatus:
    """What is known of one incarnation: the plan it was last prepared or started by, whether it runs."""

    plan: str
    runs: bool
    sure: bool = True
    """False from before a step is carried out until it is known to be."""


UnitStatuses = Mapping[Incarnation, UnitStatus]
Plans = Mapping[str, DeploymentPlan]
"""Plans by id."""


def unit_statuses_of(plan: DeploymentPlan) -> dict[Incarnation, UnitStatus]:
    """Give the standing of a deployment that runs a plan in full."""
    id_ = plan_id(plan)
    return {incarnation(u): UnitStatus(plan=id_, runs=True) for u in plan.units}


_MOVES_NOTHING = Watch | Check | Drain | Preflight | WarmUp | Save | Load | Switch


def begun(step: Step, unit_statuses: UnitStatuses, plan: DeploymentPlan) -> dict[Incarnation, UnitStatus]:
    """Give what is known once a step may have been carried out or not; ``plan`` is the step's."""
    found = dict(unit_statuses)
    if isinstance(step, _MOVES_NOTHING):
        return found
    key = incarnation(plan.unit(step.unit))
    now = found.get(key)
    match step:
        case Prepare():
            if now is None or not now.runs:
                found[key] = UnitStatus(plan=step.plan, runs=False)
            # Their readers are registered now, which has to be undone should they never start.
            for channel in plan.outputs(plan.unit(step.unit)):
                for consumer in channel.consumers:
                    reader = incarnation(plan.unit(consumer))
                    found.setdefault(reader, UnitStatus(plan=step.plan, runs=False))
        case Start():
            found[key] = UnitStatus(plan=step.plan, runs=True, sure=False)
        case UpdateInputs() | Stop() | Finish():
            if now is not None:
                found[key] = UnitStatus(plan=now.plan, runs=now.runs, sure=False)
        case Forget():
            if now is not None:
                found[key] = UnitStatus(plan=now.plan, runs=False)
    return found


def done(step: Step, unit_statuses: UnitStatuses, plan: DeploymentPlan) -> dict[Incarnation, UnitStatus]:
    """Give what is known once a step is carried out."""
    found = dict(unit_statuses)
    if isinstance(step, _MOVES_NOTHING):
        return found
    key = incarnation(plan.unit(step.unit))
    match step:
        case Start() | UpdateInputs():
            found[key] = UnitStatus(plan=step.plan, runs=True)
        case Stop() | Finish():
            found[key] = UnitStatus(plan=found[key].plan if key in found else step.plan, runs=False)
        case Forget():
            found.pop(key, None)
    return found


def settled(unit_statuses: UnitStatuses, plan: DeploymentPlan) -> dict[Incarnation, UnitStatus]:
    """Give what is known after the last step: all units of the plan stand as it says."""
    return {**unit_statuses, **unit_statuses_of(plan)}
