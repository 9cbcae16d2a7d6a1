"""From a difference to steps in order, from wherever units stand. Pure.

First all checks; then zone by zone, lower layers first, so that whoever feeds comes before whoever
reads it; what is no longer read goes last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache

from headwater.errors import DeploymentError
from headwater.plan.carry import Carry, Reading
from headwater.plan.content import is_stateful
from headwater.plan.diff import PlanDiff, State
from headwater.plan.document import plan_id
from headwater.plan.model import Channel, DeploymentPlan, Unit
from headwater.plan.spec import spec_of
from headwater.plan.steps import (
    CanarySettings,
    Check,
    Drain,
    Feed,
    Finish,
    Forget,
    Incarnation,
    Load,
    Plans,
    Prepare,
    Rehearse,
    Save,
    Standing,
    Standings,
    Start,
    Step,
    Stop,
    Survey,
    Switch,
    Watch,
    incarnation,
    standing_of,
)


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
        for (unit, _, _), s in order
        if s.runs
    ]
    if forget:
        steps += [
            Forget(plan=s.plan, unit=unit, why="the deployment is deleted")
            for (unit, _, _), s in reversed(order)
        ]
    return tuple(steps)


def finishing(standings: Standings, plans: Plans) -> tuple[Step, ...]:
    """Order the steps that let all units use up their input and end, sources first."""
    order = _by_place([(plans[s.plan], key, s) for key, s in standings.items() if s.runs])
    return tuple(Finish(plan=s.plan, unit=unit) for (unit, _, _), s in order)


def _require_way_back(diff: PlanDiff) -> None:
    """Refuse a roll-out in parts where a roll-back could not be exact."""
    running = diff.running
    if running is None:
        return
    if diff.carries:
        raise DeploymentError(
            f"{', '.join(c.unit for c in diff.carries)} takes over state from other units, all at one moment",
            where="--canary",
            hint="apply this change without --canary",
        )
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
    return is_stateful(plan.dataflow, plan.unit(unit))


Placed = tuple[Incarnation, Standing]


def _by_place(entries: Iterable[tuple[DeploymentPlan, Incarnation, Standing]]) -> list[Placed]:
    """Sort incarnations by layer, zone and place in their plan: who feeds comes first."""
    placed = [(_place(plan, plan.unit(key[0])), key, s) for plan, key, s in entries]
    return [(key, s) for _, key, s in sorted(placed, key=lambda p: p[0])]


def _place(plan: DeploymentPlan, unit: Unit) -> tuple[int, str, int]:
    return plan.continuum.layer_index(unit.layer), unit.zone, plan.position(unit.id)


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
        self._incarnations = {incarnation(u) for u in diff.wanted.units}
        self._channels = {c.id: c for c in diff.wanted.channels}
        self._same = cache(self._compared)
        self._of: defaultdict[str, list[Placed]] = defaultdict(list)
        for key, standing in standings.items():
            self._of[key[0]].append((key, standing))
        self._carried = {c.unit: c for c in diff.carries}
        self._givers = {d for c in diff.carries for d in c.donors}
        self._read_on: defaultdict[tuple[str, str], list[tuple[Carry, Reading]]] = defaultdict(list)
        """Who reads a stream on where a unit stood, by unit and the stream's operator."""
        for carry in diff.carries:
            for reading in carry.readings:
                for donor in reading.donors:
                    self._read_on[donor, reading.operator].append((carry, reading))
        self._stopped: set[str] = set()
        self._fed: set[str] = set()
        self._registered: dict[Incarnation, Standing] = {}
        self._half: dict[str, set[str]] = {}
        """Channels that their writer has left for others, and the units that still read them."""
        self._half_read: defaultdict[str, list[str]] = defaultdict(list)
        """The same by unit."""

    def result(self) -> tuple[Step, ...]:
        """Give all steps."""
        wanted = [u for u in self._plan.units if not self._stands(u)]
        steps: list[Step] = [Check(plan=self._id, unit=u.id) for u in self._by_place(wanted)]
        steps += [Survey(plan=s.plan, unit=key[0]) for key, s in self._donors()]
        steps += [self._rehearse(u) for u in self._by_place(wanted) if self._is_awaited(u)]
        steps += self._feed_early()
        steps += self._hand_over()
        at_the_cut, before = set(self._stopped), len(steps)
        # In each zone first what leaves it, then what is to run there; zones by layer.
        leaving = {
            unit: (_place(self._plans[s.plan], self._plans[s.plan].unit(unit)), 0, unit)
            for (unit, _, _), s in self._standings.items()
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
                        units=tuple(gated),
                        seconds=self._canary.seconds,
                        factor=self._canary.factor,
                    )
                )
                gated = []
        # What stands still is prepared at once, so that it is started at once.
        rest = sorted(steps[before:], key=lambda s: not (isinstance(s, Prepare) and s.unit in at_the_cut))
        return (*steps[:before], *rest, *self._forget_last())

    def _by_place(self, units: Iterable[Unit]) -> list[Unit]:
        return sorted(units, key=lambda u: _place(self._plan, u))

    # ------------------------------------------------------------ what stands

    def _compared(self, unit: str, plan: str) -> bool:
        """Tell whether a unit is the same in another plan as in the wanted one."""
        other = self._plans[plan]
        mine, theirs = self._plan.unit(unit), other.unit(unit)
        return (mine.tag, mine.epoch) == (theirs.tag, theirs.epoch) and (
            spec_of(self._plan, unit).content == spec_of(other, unit).content
        )

    def _stands(self, unit: Unit) -> bool:
        """Tell whether a unit surely runs as wanted, its inputs aside."""
        standing = self._standings.get(incarnation(unit))
        return standing is not None and standing.runs and standing.sure and self._same(unit.id, standing.plan)

    def _rehearse(self, unit: Unit) -> Step:
        carry = self._carried.get(unit.id)
        return Rehearse(plan=self._id, unit=unit.id, carry=carry, saved=self._saved(carry) if carry else ())

    def _is_awaited(self, unit: Unit) -> bool:
        """Tell whether rows wait between the stop of what runs and the start of a unit."""
        return unit.id in self._carried or any(
            s.runs and not self._same(unit.id, s.plan) for _, s in self._of[unit.id]
        )

    # ------------------------------------------------------------ what goes from unit to unit

    def _hand_over(self) -> list[Step]:
        """Stop all that gives or takes at one point of the stream, carry state over, and switch.

        Until the switch the former units can go on where they stood; after it only the new ones can.
        """
        if not self._carried:
            return []
        stopping = self._stopping_together()
        # Whoever goes on writing keeps from now on what others are to read, and these begin to fetch it.
        going_on = {u.id for u in self._plan.units if u.id not in stopping and self._stands(u)}
        steps: list[Step] = [
            self._prepare(u)
            for u in self._by_place(self._plan.units)
            if (u.id in going_on and self._gets_readers(u)) or self._reads_from(u, going_on)
        ]
        for key, stood in _by_place(
            [(self._plans[s.plan], key, s) for key, s in self._standings.items() if key[0] in stopping]
        ):
            steps += self._stop_at_the_cut(key, stood)
        steps += [Save(plan=s.plan, unit=key[0]) for key, s in self._donors()]
        for unit in self._by_place(map(self._plan.unit, self._carried)):
            carry = self._carried[unit.id]
            steps.append(self._prepare(unit))
            steps.append(Load(plan=self._id, unit=unit.id, carry=carry, saved=self._saved(carry)))
        return [*steps, Switch(plan=self._id)]

    def _prepare(self, unit: Unit) -> Prepare:
        """Prepare a unit; in a deployment that many share, who is new to the stream joins it as it stands."""
        if not self._plan.pooled:
            return Prepare(plan=self._id, unit=unit.id)
        near = [unit.id, *(c for channel in self._plan.outputs(unit) for c in channel.consumers)]
        joining = (u for u in dict.fromkeys(near) if self._is_new(u))
        return Prepare(plan=self._id, unit=unit.id, joining=tuple(joining))

    def _is_new(self, unit: str) -> bool:
        change = self._changes.get(unit)
        return change is not None and change.action == "start" and unit not in self._carried

    def _saved(self, carry: Carry) -> tuple[str, ...]:
        """Name the checkpoints of a carry's donors; '' for one that never came to run."""
        donors = map(self._base.unit, carry.donors)
        return tuple(u.checkpoint if incarnation(u) in self._standings else "" for u in donors)

    def _stop_at_the_cut(self, key: Incarnation, stood: Standing) -> list[Step]:
        """Stop a unit once it has read what it must; one that does not surely run is started for that."""
        unit = key[0]
        steps = self._stop(unit, stood, for_good=unit not in self._wanted)
        drains = any(isinstance(s, Drain) for s in steps)
        replaced = any(other[2] > key[2] for other, _ in self._of[unit])
        if drains and not replaced and not (stood.runs and stood.sure):
            # It may never have come so far as to be prepared.
            start = Start(plan=stood.plan, unit=unit, state="kept", why="it has rows left to read")
            self._register_readers(stood.plan, unit)
            return [Prepare(plan=stood.plan, unit=unit), start, *steps]
        return steps if stood.runs else []

    def _register_readers(self, plan: str, unit: str) -> None:
        """Note who is registered as a reader when a unit is prepared, to be struck in the end."""
        old = self._plans[plan]
        for channel in old.outputs(old.unit(unit)):
            for reader in channel.consumers:
                key = incarnation(old.unit(reader))
                if key not in self._standings:
                    self._registered[key] = Standing(plan=plan, runs=False)

    def _reads_from(self, unit: Unit, writers: set[str]) -> bool:
        """Tell whether a unit that is to take over, where none of its id runs, reads from some that go on."""
        return (
            unit.id in self._carried
            and not self._of[unit.id]
            and any(c.producer in writers for c in self._plan.inputs(unit))
        )

    def _gets_readers(self, unit: Unit) -> bool:
        old = self._plans[self._standings[incarnation(unit)].plan]
        return bool(self._readers(self._plan, unit) - self._readers(old, old.unit(unit.id)))

    def _read_elsewhere(self, unit: str, channel: Channel) -> bool:
        """Tell whether a stream is read on on another node, which does not have what waits on this one."""
        return any(
            self._plan.unit(c.unit).node != self._base.unit(unit).node
            for c, _ in self._read_on[unit, channel.operator]
        )

    @property
    def _base(self) -> DeploymentPlan:
        assert self._diff.running is not None
        return self._diff.running

    def _donors(self) -> list[Placed]:
        """Give the incarnations that something is taken from."""
        donors = {incarnation(self._base.unit(d)) for c in self._carried.values() for d in c.donors}
        found = [(self._plans[s.plan], key, s) for key, s in self._standings.items() if key in donors]
        return _by_place(found)

    def _stopping_together(self) -> set[str]:
        """Give the units that have to stop before anything is saved: donors, those whose place is taken,
        and whoever writes what these have to read first."""
        before = {u.id for u in self._base.units}
        found = {d for c in self._carried.values() for d in c.donors} | (self._carried.keys() & before)
        todo = list(found)
        while todo:
            unit = todo.pop()
            for channel in self._base.inputs(self._base.unit(unit)):
                if self._reads_out(unit, channel) and channel.producer not in found:
                    found.add(channel.producer)
                    todo.append(channel.producer)
        return found

    def _reads_out(self, unit: str, channel: Channel) -> bool:
        """Tell whether a unit that stops has to read a channel to its end.

        Nobody reads it on, or somebody does for several that stand at different places.
        """
        if channel.id not in self._channels or self._is_levelled(unit, channel):
            return True
        if unit not in self._carried and unit in self._channels[channel.id].consumers:
            return False  # it reads it on itself
        readers = self._channels[channel.id].routes
        read_on = any(c.unit in readers for c, _ in self._read_on[unit, channel.operator])
        return unit in self._givers and not read_on

    def _is_levelled(self, unit: str, channel: Channel) -> bool:
        readers = self._channels[channel.id].routes
        return any(r.level and c.unit in readers for c, r in self._read_on[unit, channel.operator])

    # ------------------------------------------------------------ one unit

    def _stay(self, unit: Unit) -> list[Step]:
        standing = self._standings.get(incarnation(unit))
        if self._stands(unit) and unit.id not in self._stopped:
            assert standing is not None
            return [] if unit.id in self._fed else self._feed(unit, standing)
        steps: list[Step] = []
        again = unit.id in self._stopped  # if only for others to read what it had written
        for _, stood in self._of[unit.id]:
            # One that perhaps runs as wanted already is adopted by `start`.
            if stood.runs and not self._same(unit.id, stood.plan):
                if unit.id not in self._stopped:
                    steps += self._stop(unit.id, stood, for_good=False)
                again = True
        change = self._changes.get(unit.id)
        state: State = change.state if change else "none"
        why = change.reason if change and change.action != "unchanged" else "it does not run"
        if unit.id not in self._carried:
            steps.append(self._prepare(unit))
        steps.append(Start(plan=self._id, unit=unit.id, state=state, why=why, again=again))
        if standing is not None and standing.runs and not again:
            steps.append(Feed(plan=self._id, unit=unit.id, why="it may run with other inputs"))
        for channel in self._half_read.pop(unit.id, ()):
            left = self._half.get(channel, set())
            left.discard(unit.id)
            if not left:
                self._half.pop(channel, None)
        return steps

    def _feed_early(self) -> list[Step]:
        """Let those that only get more inputs wait for these before their producers start.

        From then on their event time stands still until the new inputs have one: what these write at
        first does not come too late.
        """
        steps: list[Step] = []
        for unit in self._by_place(self._plan.units):
            standing = self._standings.get(incarnation(unit))
            if standing is None or not self._stands(unit):
                continue
            old = self._plans[standing.plan]
            before = {c.id for c in old.inputs(old.unit(unit.id))}
            if before < {c.id for c in self._plan.inputs(unit)}:
                steps += self._feed(unit, standing)
                self._fed.add(unit.id)
        return steps

    def _feed(self, unit: Unit, standing: Standing) -> list[Step]:
        """Bring a unit that runs on up to date: who reads it, what it reads."""
        old = self._plans[standing.plan]
        steps: list[Step] = []
        if self._gets_readers(unit) and not self._carried:
            steps.append(self._prepare(unit))
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
        for _, stood in self._of[unit]:
            if stood.runs and unit not in self._stopped:
                steps += self._stop(unit, stood, for_good=True)
        return steps

    def _stop(self, unit: str, stood: Standing, *, for_good: bool) -> list[Step]:
        old = self._plans[stood.plan]
        steps: list[Step] = []
        ended = [c for c in old.inputs(old.unit(unit)) if self._reads_out(unit, c)]
        moves = any(self._read_elsewhere(unit, c) for c in old.inputs(old.unit(unit)))
        if moves or any(not self._writes(c.producer) for c in ended):
            steps.append(Drain(plan=stood.plan, unit=unit, must=unit in self._givers or not for_good))
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
                clean=unit in self._givers,
            )
        )
        self._stopped.add(unit)
        if not for_good:
            for channel in old.outputs(old.unit(unit)):
                readers_left = set(channel.consumers) & self._wanted
                if channel.id not in self._channels and readers_left:
                    self._half[channel.id] = readers_left
                    for reader in readers_left:
                        self._half_read[reader].append(channel.id)
        return steps

    def _writes(self, unit: str) -> bool:
        """Tell whether a unit may still run as it did before the change."""
        return unit not in self._stopped and any(s.runs for _, s in self._of[unit])

    # ------------------------------------------------------------ what is deleted

    def _forget_last(self) -> list[Step]:
        left = [
            (self._plans[s.plan], key, s)
            for key, s in {**self._registered, **self._standings}.items()
            if key not in self._incarnations
        ]
        return [
            Forget(
                plan=s.plan,
                unit=unit,
                why="another takes its place" if unit in self._wanted else "it is not wanted any more",
            )
            for (unit, _, _), s in reversed(_by_place(left))
        ]
