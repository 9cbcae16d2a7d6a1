"""Idempotent steps as data: one reader executes them, another describes them to a person. Pure.

The controller stores the *unit status* of each incarnation before and after a step. ``headwater.plan.order``
leads from any unit status to the wanted plan, also after a crash or a newer plan in the middle of a change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator

from headwater.core.metrics import node_of
from headwater.plan.diff import State
from headwater.plan.document import plan_id
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.transfer import StateTransfer


@dataclass(frozen=True, kw_only=True)
class _UnitStep:
    """Fields of the steps of one unit: the id of the plan, and the id of the unit."""

    plan: str
    unit: str

    @property
    def node(self) -> str:
        return node_of(self.unit)


FormerOutputChoice = Literal["refuse", "append", "overwrite"]
"""The treatment of other runs' output in sinks: refuse to begin, write after it, or remove it first."""


@dataclass(frozen=True, kw_only=True)
class FormerOutput(_UnitStep):
    """Refuse, keep or remove other runs' output in sinks of a unit to which the deployment has not written yet."""

    kind: Literal["former_output"] = "former_output"
    choice: FormerOutputChoice = "refuse"
    sinks: tuple[str, ...] = ()
    """The sinks; none stands for all sinks of the unit."""


@dataclass(frozen=True, kw_only=True)
class Check(_UnitStep):
    """Compile the unit in its zone without starting it."""

    kind: Literal["check"] = "check"


@dataclass(frozen=True, kw_only=True)
class Prepare(_UnitStep):
    """Create the unit's output channels, register their readers, set up its inputs."""

    kind: Literal["prepare"] = "prepare"
    joining: tuple[str, ...] = ()
    """The unit or its readers that start at the current end of the stream, not at the oldest row kept."""
    ahead: bool = False
    """Whether the plan becomes active only at a later ``Switch``; see ``UnitStatus.ahead``."""


@dataclass(frozen=True, kw_only=True)
class Start(_UnitStep):
    """Start the unit, or adopt it if it runs."""

    kind: Literal["start"] = "start"
    state: State = "none"
    why: str = ""
    again: bool = False
    """Whether it replaces a unit that was stopped for it."""


@dataclass(frozen=True, kw_only=True)
class UpdateInputs(_UnitStep):
    """Update the inputs of a running unit to those of the plan."""

    kind: Literal["update_inputs"] = "update_inputs"
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Stop(_UnitStep):
    """Stop the unit at a batch boundary."""

    kind: Literal["stop"] = "stop"
    state: State = "none"
    why: str = ""
    readers: tuple[str, ...] = ()
    """Units that get no rows from it meanwhile."""
    for_good: bool = False
    clean: bool = False
    """Whether an interrupted batch must be completed, because the unit's state is to be saved."""


@dataclass(frozen=True, kw_only=True)
class Drain(_UnitStep):
    """Wait until the unit has read all rows of its stopped producers."""

    kind: Literal["drain"] = "drain"
    must: bool = True
    """Whether unreadable rows end the change; else they are given up with the unit."""


@dataclass(frozen=True, kw_only=True)
class Preflight(_UnitStep):
    """Check that a running unit's state can be saved."""

    kind: Literal["preflight"] = "preflight"


@dataclass(frozen=True, kw_only=True)
class WarmUp(_UnitStep):
    """Run the unit in its zone on a sample, whose output is discarded, so that its Spark has compiled the plan."""

    kind: Literal["warm_up"] = "warm_up"
    transfer: StateTransfer | None = None
    saved: tuple[str, ...] = ()
    """As in ``Load``, for running units."""


@dataclass(frozen=True, kw_only=True)
class CatchUp(_UnitStep):
    """Let the unit repeat the batches of the running unit that it replaces, until it is at most one behind."""

    kind: Literal["catch_up"] = "catch_up"
    transfer: StateTransfer
    saved: tuple[str, ...] = ()
    """As in ``Load``, for the running unit."""
    source_plan: str
    """The plan of the running unit."""
    price: str = ""
    """What the unit needs meanwhile, in words, if it is known."""
    seconds: float = 60.0
    """Seconds after which the change goes on without; the unit's state is loaded then."""


@dataclass(frozen=True, kw_only=True)
class Save(_UnitStep):
    """Save a stopped unit's state and positions where other zones can read them."""

    kind: Literal["save"] = "save"
    sinks: tuple[str, ...] = ()
    """Memory sinks whose rows are saved, too."""


@dataclass(frozen=True, kw_only=True)
class Load(_UnitStep):
    """Make the checkpoint of a unit from saved state."""

    kind: Literal["load"] = "load"
    transfer: StateTransfer
    saved: tuple[str, ...] = ()
    """The checkpoints of the transfer's source units, in order; '' for one that never ran."""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """Make the new plan the active one: saved state is used up, and there is no rollback.

    From then on its units own the rows and the state that were prepared for them.
    """

    kind: Literal["switch"] = "switch"
    plan: str
    unit: str = ""

    @property
    def node(self) -> str:
        return "controller"


@dataclass(frozen=True, kw_only=True)
class Finish(_UnitStep):
    """Let the unit finish its input, close its windows and end its channels."""

    kind: Literal["finish"] = "finish"


@dataclass(frozen=True, kw_only=True)
class Forget(_UnitStep):
    """Delete the unit's state and output channels, once all readers have read them."""

    kind: Literal["forget"] = "forget"
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Observe changed units for some seconds; roll the change back if they do worse."""

    kind: Literal["watch"] = "watch"
    plan: str
    units: tuple[str, ...]
    seconds: float
    factor: float
    """Factor by which the share of dead letters and late rows may exceed the earlier one."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(node_of, self.units)))

    @property
    def node(self) -> str:
        return ", ".join(self.nodes)


Step = (  # fmt: skip
    FormerOutput
    | Check
    | Prepare
    | Start
    | UpdateInputs
    | Stop
    | Drain
    | Preflight
    | WarmUp
    | CatchUp
    | Save
    | Load
    | Switch
    | Finish
    | Forget
    | Watch
)
_SIDE_BY_SIDE = FormerOutput | Check | Preflight | WarmUp | Save | Load | Start | Finish


def side_by_side(steps: Sequence[Step]) -> tuple[int, ...]:
    """Return the indexes of the steps that may run at once with the first: one for each node.

    All units finish at once: most of them wait for the end of their input. A unit is warmed up beside its check, where
    no other unit of its node waits for one: neither changes anything.
    """
    first, found = steps[0], {steps[0].node: 0}
    alike = list(takewhile(lambda step: isinstance(step, _SIDE_BY_SIDE) and step.kind == first.kind, steps))
    if isinstance(first, Finish):
        return tuple(range(len(alike)))
    for n, step in enumerate(alike):
        found.setdefault(step.node, n)
    if not isinstance(first, Check):
        return tuple(found.values())
    nodes = Counter(step.node for step in alike)
    lone = {step.unit for step in alike if isinstance(step, Check) and nodes[step.node] == 1}
    behind = enumerate(takewhile(lambda step: isinstance(step, WarmUp), steps[len(alike) :]), len(alike))
    return (*found.values(), *(n for n, step in behind if isinstance(step, WarmUp) and step.unit in lone))


_FORMER_KINDS = {"feed": "update_inputs", "survey": "preflight", "rehearse": "warm_up"}
_FORMER_FIELDS = {"carry": "transfer", "donors": "source_units"}


def _up_to_date(data: Any) -> Any:
    """Return a step with the names of an older journal replaced by current ones."""
    if isinstance(data, list):
        return [_up_to_date(one) for one in data]
    if not isinstance(data, dict):
        return data
    found = {_FORMER_FIELDS.get(name, name): _up_to_date(value) for name, value in data.items()}
    if found.get("state") == "carried":
        found["state"] = "transferred"
    return {**found, "kind": _FORMER_KINDS.get(found["kind"], found["kind"])} if "kind" in found else found


AnyStep: Any = Annotated[Step, Discriminator("kind"), BeforeValidator(_up_to_date)]
"""The schema of a step in the journal; also reads steps of older versions."""


@dataclass(frozen=True, kw_only=True)
class CanarySettings:
    """Roll a change out zone by zone, and observe the units for some seconds after each zone."""

    seconds: float = 60.0
    factor: float = 2.0


# ---------------------------------------------------------------- unit status

Incarnation = tuple[str, str, int]
"""A unit's id, tag and epoch: one way of running it. Incarnations of one tag share a checkpoint."""


def incarnation(unit: Unit) -> Incarnation:
    """Return the incarnation of a plan's unit."""
    return unit.id, unit.tag, unit.epoch


@dataclass(frozen=True, kw_only=True)
class UnitStatus:
    """Status of one incarnation: the plan it was last prepared or started by, and whether it runs."""

    plan: str
    runs: bool
    sure: bool = True
    """False from before a step until the result of the step is known."""
    ahead: bool = False
    """Whether it was prepared, or registered as a reader, only by plans that have not become active.

    It has no rows and no state of its own: units of the active plan process the rows that are retained for it. So it
    never runs, and if its change is given up, it is only deleted.
    """


UnitStatuses = Mapping[Incarnation, UnitStatus]
Plans = Mapping[str, DeploymentPlan]
"""Plans by id."""


def unit_statuses_of(plan: DeploymentPlan) -> dict[Incarnation, UnitStatus]:
    """Return the unit status of a deployment that runs a plan in full."""
    id_ = plan_id(plan)
    return {incarnation(u): UnitStatus(plan=id_, runs=True) for u in plan.units}


_MOVES_NOTHING = Watch | FormerOutput | Check | Drain | Preflight | WarmUp | CatchUp | Save | Load


def begun(step: Step, unit_statuses: UnitStatuses, plan: DeploymentPlan) -> dict[Incarnation, UnitStatus]:
    """Return the unit status while a step may have been executed or not; ``plan`` is the step's."""
    found = dict(unit_statuses)
    if isinstance(step, _MOVES_NOTHING):
        return found
    if isinstance(step, Switch):
        return {key: replace(s, ahead=s.ahead and s.plan != step.plan) for key, s in found.items()}
    key = incarnation(plan.unit(step.unit))
    now = found.get(key)
    match step:
        case Prepare():
            prepared = UnitStatus(plan=step.plan, runs=False, ahead=step.ahead)
            if now is None or now.ahead or not (now.runs or step.ahead):
                found[key] = prepared
            # Their readers are registered now, and must be removed if they never start.
            for channel in plan.outputs(plan.unit(step.unit)):
                for consumer in channel.consumers:
                    reader = incarnation(plan.unit(consumer))
                    if reader not in found or found[reader].ahead:
                        found[reader] = prepared
        case Start():
            found[key] = UnitStatus(plan=step.plan, runs=True, sure=False)
        case UpdateInputs() | Stop() | Finish():
            if now is not None:
                found[key] = replace(now, sure=False)
        case Forget():
            if now is not None:
                found[key] = replace(now, runs=False, sure=True)
    return found


def done(step: Step, unit_statuses: UnitStatuses, plan: DeploymentPlan) -> dict[Incarnation, UnitStatus]:
    """Return the unit status after a step."""
    found = dict(unit_statuses)
    if isinstance(step, _MOVES_NOTHING | Switch):
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
    """Return the unit status after the last step: all units are as the plan says."""
    return {**unit_statuses, **unit_statuses_of(plan)}
