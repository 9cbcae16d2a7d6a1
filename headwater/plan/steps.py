"""From a difference to ordered, idempotent steps, as data: carried out by one reader, explained by another.

Pure. What a step begins and leaves behind is known as the *standing* of unit incarnations, which the
controller stores: from any standing, also one left by a crash or a newer wanted plan in the midst of
a change, ``steps_to`` leads to the wanted plan. Order: all checks; then zone by zone, lower layers
first, so that whoever feeds comes before whoever reads; what is no longer read goes last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Discriminator, TypeAdapter, ValidationError

from headwater.errors import DeploymentError
from headwater.plan.content import is_stateful, unit_content
from headwater.plan.diff import PlanDiff, State
from headwater.plan.document import plan_id
from headwater.plan.model import DeploymentPlan, Unit


@dataclass(frozen=True, kw_only=True)
class _UnitStep:
    """What the steps of one unit have: the plan they refer to, by its id, and the unit's id."""

    plan: str
    unit: str

    @property
    def zone(self) -> str:
        return self.unit.rpartition("@")[2]


@dataclass(frozen=True, kw_only=True)
class Check(_UnitStep):
    """Compile the unit in its zone without starting it."""

    kind: Literal["check"] = "check"


@dataclass(frozen=True, kw_only=True)
class Prepare(_UnitStep):
    """Make the unit's output channels, register who reads them, set up its inputs."""

    kind: Literal["prepare"] = "prepare"


@dataclass(frozen=True, kw_only=True)
class Start(_UnitStep):
    """Start the unit, or adopt it when it runs."""

    kind: Literal["start"] = "start"
    state: State = "none"
    why: str = ""
    again: bool = False
    """Whether it takes the place of one that was stopped for it."""


@dataclass(frozen=True, kw_only=True)
class Feed(_UnitStep):
    """Give the running unit the inputs of the plan."""

    kind: Literal["feed"] = "feed"
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


@dataclass(frozen=True, kw_only=True)
class Drain(_UnitStep):
    """Wait until the unit has read all that its stopped producers left."""

    kind: Literal["drain"] = "drain"
    must: bool = True
    """Whether rows it cannot read end the change; else they are given up with the unit."""


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
    """Look at replaced units for some seconds before going on; if they do worse, the change is rolled back."""

    kind: Literal["watch"] = "watch"
    plan: str
    zone: str
    units: tuple[str, ...]
    seconds: float
    factor: float
    """By how much the share of dead letters and late rows may exceed that of before."""


Step = Check | Prepare | Start | Feed | Stop | Drain | Finish | Forget | Watch
_STEPS: TypeAdapter[Step] = TypeAdapter(Annotated[Step, Discriminator("kind")])


def step_to_data(step: Step) -> dict[str, Any]:
    """Give a step as JSON-able data for the journal."""
    return asdict(step)


def step_from_data(data: object) -> Step:
    """Read a step of the journal back."""
    try:
        return _STEPS.validate_python(data)
    except ValidationError as error:
        raise DeploymentError(
            f"not a step: {error.errors(include_url=False)[0]['msg']}",
            where="journal",
            hint="it was damaged, or written by another version of Headwater",
        ) from error


@dataclass(frozen=True, kw_only=True)
class CanarySettings:
    """Roll a change out zone by zone, and look for so long after each whether all is well."""

    seconds: float = 60.0
    factor: float = 2.0


# ---------------------------------------------------------------- where units stand

Incarnation = tuple[str, str]
"""A unit's id and tag: what has a checkpoint of its own."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What is known of one incarnation: the plan it was last prepared or started by, whether it runs."""

    plan: str
    runs: bool
    sure: bool = True
    """False from before a step is carried out until it is known to be."""


Standings = Mapping[Incarnation, Standing]
Plans = Mapping[str, DeploymentPlan]
"""Plans by id."""


def standing_of(plan: DeploymentPlan) -> dict[Incarnation, Standing]:
    """Give the standing of a deployment that runs a plan in full."""
    id_ = plan_id(plan)
    return {(u.id, u.tag): Standing(plan=id_, runs=True) for u in plan.units}


def begun(step: Step, standings: Standings, plan: DeploymentPlan) -> dict[Incarnation, Standing]:
    """Give what is known once a step may have been carried out or not; ``plan`` is the step's."""
    found = dict(standings)
    if isinstance(step, Watch | Check | Drain):
        return found
    key = (step.unit, plan.unit(step.unit).tag)
    now = found.get(key)
    match step:
        case Prepare():
            if now is None or not now.runs:
                found[key] = Standing(plan=step.plan, runs=False)
            # Their readers are registered now, which has to be undone should they never start.
            for channel in plan.outputs(plan.unit(step.unit)):
                for consumer in channel.consumers:
                    reader = (consumer, plan.unit(consumer).tag)
                    found.setdefault(reader, Standing(plan=step.plan, runs=False))
        case Start():
            found[key] = Standing(plan=step.plan, runs=True, sure=False)
        case Feed() | Stop() | Finish():
            if now is not None:
                found[key] = Standing(plan=now.plan, runs=now.runs, sure=False)
        case Forget():
            if now is not None:
                found[key] = Standing(plan=now.plan, runs=False)
    return found


def done(step: Step, standings: Standings, plan: DeploymentPlan) -> dict[Incarnation, Standing]:
    """Give what is known once a step is carried out."""
    found = dict(standings)
    if isinstance(step, Watch | Check | Drain):
        return found
    key = (step.unit, plan.unit(step.unit).tag)
    match step:
        case Start() | Feed():
            found[key] = Standing(plan=step.plan, runs=True)
        case Stop() | Finish():
            found[key] = Standing(plan=found[key].plan if key in found else step.plan, runs=False)
        case Forget():
            found.pop(key, None)
    return found


def settled(standings: Standings, plan: DeploymentPlan) -> dict[Incarnation, Standing]:
    """Give what is known after the last step: all units of the plan stand as it says."""
    return {**standings, **standing_of(plan)}


# ---------------------------------------------------------------- the order


def steps_of(diff: PlanDiff, *, canary: CanarySettings | None = None) -> tuple[Step, ...]:
    """Order the steps from a running plan, all of whose units stand as it says, to the wanted one."""
    running = diff.running
    plans = {plan_id(p): p for p in (running, diff.wanted) if p is not None}
    return steps_to(diff, standing_of(running) if running else {}, plans, canary=canary)


def steps_to(
    diff: PlanDiff, standings: Standings, plans: Plans, *, canary: CanarySettings | None = None
) -> tuple[Step, ...]:
    """Order the steps from where units stand to the wanted plan; ``plans`` holds those that stand."""
    if canary is not None:
        _require_way_back(diff)
    return _Ordering(diff, standings, plans, canary).result()


def stopping(standings: Standings, plans: Plans, *, forget: bool = False) -> tuple[Step, ...]:
    """Order the steps that stop all that runs, sources first, and perhaps delete it."""
    order = _by_place([(plans[s.plan], key, s) for key, s in standings.items()])
    steps: list[Step] = [
        Stop(
            plan=s.plan,
            unit=unit,
            why="the deployment is stopped",
            state="kept" if not forget and _keeps(plans[s.plan], unit) else "none",
            for_good=True,
        )
        for (unit, _), s in order
        if s.runs
    ]
    if forget:
        steps += [
            Forget(plan=s.plan, unit=unit, why="the deployment is deleted")
            for (unit, _), s in reversed(order)
        ]
    return tuple(steps)


def finishing(standings: Standings, plans: Plans) -> tuple[Step, ...]:
    """Order the steps that let all units use up their input and end, sources first."""
    order = _by_place([(plans[s.plan], key, s) for key, s in standings.items() if s.runs])
    return tuple(Finish(plan=s.plan, unit=unit) for (unit, _), s in order)


def _require_way_back(diff: PlanDiff) -> None:
    """Refuse a roll-out in parts where a roll-back could not be exact."""
    running = diff.running
    if running is None:
        return
    renewed = [
        u.id
        for u in diff.wanted.units
        if u.id in {v.id for v in running.units} and running.unit(u.id).tag != u.tag
    ]
    if renewed:
        raise DeploymentError(
            f"{', '.join(renewed)} begins with new state, so going back would repeat what it has read",
            where="--canary",
            hint="apply this change without --canary",
        )


def _keeps(plan: DeploymentPlan, unit: str) -> bool:
    return is_stateful(plan, plan.unit(unit))


Placed = tuple[Incarnation, Standing]


def _by_place(entries: Iterable[tuple[DeploymentPlan, Incarnation, Standing]]) -> list[Placed]:
    """Sort incarnations by layer, zone and place in their plan: who feeds comes first."""
    placed = [(_place(plan, plan.unit(key[0])), key, s) for plan, key, s in entries]
    return [(key, s) for _, key, s in sorted(placed, key=lambda p: p[0])]


def _place(plan: DeploymentPlan, unit: Unit) -> tuple[int, str, int]:
    position = next(n for n, u in enumerate(plan.units) if u.id == unit.id)
    return plan.continuum.layer_index(plan.continuum.zone(unit.zone).layer), unit.zone, position


class _Ordering:
    """Puts the steps of one change in order."""

    def __init__(
        self, diff: PlanDiff, standings: Standings, plans: Plans, canary: CanarySettings | None
    ) -> None:
        self._diff = diff
        self._plan = diff.wanted
        self._id = plan_id(diff.wanted)
        self._plans = {**plans, self._id: diff.wanted}
        self._standings = standings
        self._canary = canary
        self._changes = {u.unit: u for u in diff.units}
        self._wanted = {u.id for u in diff.wanted.units}
        self._channels = {c.id for c in diff.wanted.channels}
        self._same = cache(self._compared)
        self._stopped: set[str] = set()
        self._half: dict[str, set[str]] = {}
        """Channels that their writer has left for others, and the units that still read them."""

    def result(self) -> tuple[Step, ...]:
        """Give all steps."""
        wanted = [u for u in self._plan.units if not self._stands(u)]
        steps: list[Step] = [Check(plan=self._id, unit=u.id) for u in self._by_place(wanted)]
        steps += self._forget_leftovers()
        # In each zone first what leaves it, then what is to run there; zones by layer.
        leaving = {
            unit: (_place(self._plans[s.plan], self._plans[s.plan].unit(unit)), 0, unit)
            for (unit, _), s in self._standings.items()
            if unit not in self._wanted
        }
        staying = [(_place(self._plan, u), 1, u.id) for u in self._plan.units]
        order = sorted([*leaving.values(), *staying], key=lambda p: (p[0][0], p[0][1], p[1], p[0][2]))
        gated: list[str] = []
        for n, (place, stays, unit) in enumerate(order):
            made = self._stay(self._plan.unit(unit)) if stays else self._leave(unit)
            steps += made
            gated += [unit] if any(isinstance(s, Start) for s in made) else []
            last_of_zone = n + 1 == len(order) or order[n + 1][0][:2] != place[:2]
            if self._canary and gated and last_of_zone and not self._half:
                steps.append(
                    Watch(
                        plan=self._id,
                        zone=place[1],
                        units=tuple(gated),
                        seconds=self._canary.seconds,
                        factor=self._canary.factor,
                    )
                )
                gated = []
        return (*steps, *self._forget_last())

    def _by_place(self, units: Iterable[Unit]) -> list[Unit]:
        return sorted(units, key=lambda u: _place(self._plan, u))

    # ------------------------------------------------------------ what stands

    def _compared(self, unit: str, plan: str) -> bool:
        """Tell whether a unit is the same in another plan as in the wanted one."""
        other = self._plans[plan]
        mine, theirs = self._plan.unit(unit), other.unit(unit)
        return (mine.tag, mine.epoch) == (theirs.tag, theirs.epoch) and (
            unit_content(self._plan, mine) == unit_content(other, theirs)
        )

    def _stands(self, unit: Unit) -> bool:
        """Tell whether a unit surely runs as wanted, its inputs aside."""
        standing = self._standings.get((unit.id, unit.tag))
        return standing is not None and standing.runs and standing.sure and self._same(unit.id, standing.plan)

    def _of(self, unit: str) -> list[tuple[Incarnation, Standing]]:
        return [(key, s) for key, s in self._standings.items() if key[0] == unit]

    # ------------------------------------------------------------ one unit

    def _stay(self, unit: Unit) -> list[Step]:
        standing = self._standings.get((unit.id, unit.tag))
        if self._stands(unit):
            assert standing is not None
            return self._feed(unit, standing)
        steps: list[Step] = []
        again = False
        for _, stood in self._of(unit.id):
            # One that perhaps runs as wanted already is adopted by `start`.
            if stood.runs and not self._same(unit.id, stood.plan):
                steps += self._stop(unit.id, stood, for_good=False)
                again = True
        change = self._changes.get(unit.id)
        state: State = change.state if change else "none"
        why = change.reason if change and change.action != "unchanged" else "it does not run"
        steps.append(Prepare(plan=self._id, unit=unit.id))
        steps.append(Start(plan=self._id, unit=unit.id, state=state, why=why, again=again))
        if standing is not None and standing.runs and not again:
            steps.append(Feed(plan=self._id, unit=unit.id, why="it may run with other inputs"))
        for channel in [c for c, readers in self._half.items() if unit.id in readers]:
            self._half[channel].discard(unit.id)
            if not self._half[channel]:
                del self._half[channel]
        return steps

    def _feed(self, unit: Unit, standing: Standing) -> list[Step]:
        """Bring a unit that runs on up to date: who reads it, what it reads."""
        old = self._plans[standing.plan]
        steps: list[Step] = []
        if self._readers(self._plan, unit) - self._readers(old, old.unit(unit.id)):
            steps.append(Prepare(plan=self._id, unit=unit.id))
        before = {c.id for c in old.inputs(old.unit(unit.id))}
        if before != {c.id for c in self._plan.inputs(unit)}:
            change = self._changes.get(unit.id)
            steps.append(Feed(plan=self._id, unit=unit.id, why=change.reason if change else ""))
        return steps

    @staticmethod
    def _readers(plan: DeploymentPlan, unit: Unit) -> set[tuple[str, str]]:
        return {
            (c.id, plan.unit(consumer).checkpoint) for c in plan.outputs(unit) for consumer in c.consumers
        }

    def _leave(self, unit: str) -> list[Step]:
        steps: list[Step] = []
        for _, stood in self._of(unit):
            if stood.runs:
                steps += self._stop(unit, stood, for_good=True)
        return steps

    def _stop(self, unit: str, stood: Standing, *, for_good: bool) -> list[Step]:
        old = self._plans[stood.plan]
        steps: list[Step] = []
        ended = [c for c in old.inputs(old.unit(unit)) if c.id not in self._channels]
        if any(not self._writes(c.producer) for c in ended):
            steps.append(Drain(plan=stood.plan, unit=unit, must=not for_good))
        change = self._changes.get(unit)
        readers = tuple(dict.fromkeys(r for c in old.outputs(old.unit(unit)) for r in c.consumers))
        steps.append(
            Stop(
                plan=stood.plan,
                unit=unit,
                state=change.state if change else "none",
                why=change.reason if change else "it is not wanted any more",
                readers=() if for_good else readers,
                for_good=for_good,
            )
        )
        self._stopped.add(unit)
        if not for_good:
            for channel in old.outputs(old.unit(unit)):
                readers_left = set(channel.consumers) & self._wanted
                if channel.id not in self._channels and readers_left:
                    self._half[channel.id] = readers_left
        return steps

    def _writes(self, unit: str) -> bool:
        """Tell whether a unit may still run as it did before the change."""
        return unit not in self._stopped and any(s.runs for _, s in self._of(unit))

    # ------------------------------------------------------------ what is deleted

    def _forget_leftovers(self) -> list[Step]:
        """Delete what is left of units that were taken out by an earlier plan and come again."""
        running = {u.id for u in self._diff.running.units} if self._diff.running else set()
        wanted = {u.id: u.tag for u in self._plan.units}
        left = [
            (self._plans[s.plan], key, s)
            for key, s in self._standings.items()
            if not s.runs and key[0] in wanted and key[1] != wanted[key[0]] and key[0] not in running
        ]
        return [
            Forget(plan=s.plan, unit=unit, why="it was taken out before, and comes again")
            for (unit, _), s in reversed(_by_place(left))
        ]

    def _forget_last(self) -> list[Step]:
        wanted = {(u.id, u.tag) for u in self._plan.units}
        early = {(s.unit, s.plan) for s in self._forget_leftovers() if isinstance(s, Forget)}
        left = [
            (self._plans[s.plan], key, s)
            for key, s in self._standings.items()
            if key not in wanted and (key[0], s.plan) not in early
        ]
        return [
            Forget(
                plan=s.plan,
                unit=unit,
                why="its state was given up" if unit in self._wanted else "it is not wanted any more",
            )
            for (unit, _), s in reversed(_by_place(left))
        ]
