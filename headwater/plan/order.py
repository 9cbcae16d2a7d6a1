"""Order the steps of a change, from any unit status. Pure.

First all checks; then zone by zone, lower layers first, so that writers come before readers; deletion of
unused data comes last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache

from headwater.core.errors import DeploymentError
from headwater.core.metrics import Progress
from headwater.plan.catchup import can_catch_up, lacks_room, price_of
from headwater.plan.diff import PlanDiff, State
from headwater.plan.document import plan_id
from headwater.plan.ending import Placed, by_place, place_of
from headwater.plan.formeroutput import settle_former_output
from headwater.plan.model import Channel, DeploymentPlan, Unit
from headwater.plan.spec import spec_of
from headwater.plan.steps import (
    CanarySettings,
    CatchUp,
    Check,
    Drain,
    Forget,
    FormerOutputChoice,
    Incarnation,
    Load,
    Plans,
    Preflight,
    Prepare,
    Save,
    Start,
    Step,
    Stop,
    Switch,
    UnitStatus,
    UnitStatuses,
    UpdateInputs,
    WarmUp,
    Watch,
    incarnation,
)
from headwater.plan.transfer import Reading, StateTransfer


def steps_to(
    diff: PlanDiff,
    unit_statuses: UnitStatuses,
    plans: Plans,
    *,
    canary: CanarySettings | None = None,
    former_output: FormerOutputChoice = "refuse",
    seen: Progress | None = None,
) -> tuple[Step, ...]:
    """Order the steps from any unit status to the wanted plan; ``plans`` holds the plans of the units.

    ``seen``: the last reports of the nodes, which tell whether there is room for units that catch up.
    """
    if canary is not None:
        _require_way_back(diff)
    steps = _Ordering(diff, unit_statuses, plans, canary, seen or Progress(seconds=0.0)).result()
    settled = settle_former_output(diff, unit_statuses, plans, former_output)
    checks = 0 if former_output == "refuse" else sum(isinstance(s, Check) for s in steps)
    return (*steps[:checks], *settled, *steps[checks:])


def _require_way_back(diff: PlanDiff) -> None:
    """Refuse a canary change that could not be rolled back exactly."""
    running = diff.running
    if running is None:
        return
    if diff.transfers:
        raise DeploymentError(
            f"{', '.join(c.unit for c in diff.transfers)} takes over state from other units in one step",
            where="--canary",
            hint="apply this change without --canary",
        )
    renewed = [
        u.id for u in diff.wanted.units if u.id in {v.id for v in running.units} and running.unit(u.id).tag != u.tag
    ]
    if renewed:
        raise DeploymentError(
            f"{', '.join(renewed)} starts with new state, so a rollback would process its input again",
            where="--canary",
            hint="apply this change without --canary",
        )


def _starts_together(steps: Iterable[Step]) -> list[Step]:
    """Put the starts of successive units behind their preparation, so that nodes start them side by side."""
    found: list[Step] = []
    starts: list[Start] = []
    for step in steps:
        if isinstance(step, Start):
            starts.append(step)
            continue
        if not isinstance(step, Prepare) or any(start.unit == step.unit for start in starts):
            found += starts
            starts = []
        found.append(step)
    return found + starts


class _Ordering:
    """Orders the steps of one change."""

    def __init__(
        self,
        diff: PlanDiff,
        unit_statuses: UnitStatuses,
        plans: Plans,
        canary: CanarySettings | None,
        seen: Progress,
    ) -> None:
        self._diff = diff
        self._plan = diff.wanted
        self._id = plan_id(diff.wanted)
        self._plans = {**plans, self._id: diff.wanted}
        self._unit_statuses = {key: s for key, s in unit_statuses.items() if not s.ahead}
        self._ahead = {key: s for key, s in unit_statuses.items() if s.ahead}
        """Left by changes that were given up before their switch: they are prepared again, or deleted."""
        self._canary = canary
        self._seen = seen
        self._changes = {u.unit: u for u in diff.units}
        self._wanted = {u.id for u in diff.wanted.units}
        self._incarnations = {incarnation(u) for u in diff.wanted.units}
        self._channels = {c.id: c for c in diff.wanted.channels}
        self._same = cache(self._compared)
        self._statuses_of: defaultdict[str, list[tuple[Incarnation, UnitStatus]]] = defaultdict(list)
        # Running ones first: two incarnations of a unit must not run together.
        for key, unit_status in sorted(self._unit_statuses.items(), key=lambda one: (not one[1].runs, one[0])):
            self._statuses_of[key[0]].append((key, unit_status))
        self._transferred = {c.unit: c for c in diff.transfers}
        self._transferred_from = {d for c in diff.transfers for d in c.source_units}
        self._read_on: defaultdict[tuple[str, str], list[tuple[StateTransfer, Reading]]] = defaultdict(list)
        """Transfers that continue to read a stream, by source unit and the stream's operator."""
        for transfer in diff.transfers:
            for reading in transfer.readings:
                for source in reading.source_units:
                    self._read_on[source, reading.operator].append((transfer, reading))
        self._stopped: set[str] = set()
        self._fed: set[str] = set()
        self._registered: dict[Incarnation, UnitStatus] = {}
        self._half: dict[str, set[str]] = {}
        """Channels that their writer has left for others, and the units that still read them."""
        self._half_read: defaultdict[str, list[str]] = defaultdict(list)
        """The same channels, by reader."""

    def result(self) -> tuple[Step, ...]:
        """Return all steps."""
        wanted = [u for u in self._plan.units if not self._stands(u)]
        steps: list[Step] = [Check(plan=self._id, unit=u.id) for u in self._by_place(wanted)]
        steps += [Preflight(plan=s.plan, unit=key[0]) for key, s in self._source_units()]
        steps += self._forget_first()
        steps += [self._warm_up(u) for u in self._by_place(wanted) if self._is_awaited(u)]
        steps += self._feed_early()
        steps += self._hand_over()
        at_the_cut, before = set(self._stopped), len(steps)
        # In each zone, units that leave it come before units that are to run there; zones by layer.
        leaving = {
            unit: (place_of(self._plans[s.plan], self._plans[s.plan].unit(unit)), 0, unit)
            for (unit, _, _), s in self._known().items()
            if unit not in self._wanted
        }
        staying = [(place_of(self._plan, u), 1, u.id) for u in self._plan.units]
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
        seen = self._wanted | leaving.keys()
        while late := [u for (u, _, _) in self._registered if u not in seen]:
            seen.add(late[0])
            steps += self._leave(late[0])
        # A stopped unit is prepared at once, for an early start.
        rest = sorted(steps[before:], key=lambda s: not (isinstance(s, Prepare) and s.unit in at_the_cut))
        return (*steps[:before], *_starts_together(rest), *self._forget_last())

    def _by_place(self, units: Iterable[Unit]) -> list[Unit]:
        return sorted(units, key=lambda u: place_of(self._plan, u))

    # ------------------------------------------------------------ unit status

    def _known(self) -> dict[Incarnation, UnitStatus]:
        """Return all incarnations of which a node has data, or will have."""
        return {**self._ahead, **self._registered, **self._unit_statuses}

    def _compared(self, unit: str, plan: str) -> bool:
        """Return whether a unit is the same in another plan as in the wanted one."""
        other = self._plans[plan]
        mine, theirs = self._plan.unit(unit), other.unit(unit)
        return (mine.tag, mine.epoch) == (theirs.tag, theirs.epoch) and (
            spec_of(self._plan, unit).content == spec_of(other, unit).content
        )

    def _stands(self, unit: Unit) -> bool:
        """Return whether a unit certainly runs as wanted, apart from its inputs."""
        unit_status = self._unit_statuses.get(incarnation(unit))
        return (
            unit_status is not None and unit_status.runs and unit_status.sure and self._same(unit.id, unit_status.plan)
        )

    def _warm_up(self, unit: Unit) -> Step:
        transfer = self._transferred.get(unit.id)
        return WarmUp(plan=self._id, unit=unit.id, transfer=transfer, saved=self._saved(transfer) if transfer else ())

    def _is_awaited(self, unit: Unit) -> bool:
        """Return whether rows queue up between the stop of the running unit and the start of a unit."""
        return unit.id in self._transferred or any(
            s.runs and not self._same(unit.id, s.plan) for _, s in self._statuses_of[unit.id]
        )

    # ------------------------------------------------------------ state transfer

    def _hand_over(self) -> list[Step]:
        """Stop all sources and targets at one point of the stream, transfer the state, and switch.

        Until the switch the former units can continue; after it, only the new ones can.
        """
        if not self._transferred:
            return []
        stopping = self._stopping_together()
        # A kept writer retains from now on the rows for new readers, which begin to fetch them.
        going_on = {u.id for u in self._plan.units if u.id not in stopping and self._stands(u)}
        steps: list[Step] = [
            self._prepare(u, ahead=True)
            for u in self._by_place(self._plan.units)
            if (u.id in going_on and self._gets_readers(u)) or self._reads_from(u, going_on)
        ]
        handled: set[Incarnation] = set()
        while left := self._left_to_stop(stopping, handled):
            handled.add(left[0][0])
            steps += self._stop_at_the_cut(*left[0])
        first = next((n for n, step in enumerate(steps) if isinstance(step, Stop)), len(steps))
        catching_up = [c for u in self._by_place(self._plan.units) if (c := self._catch_up(u, going_on)) is not None]
        steps[first:first] = catching_up
        prepared = {c.unit for c in catching_up}
        moved = {(one.unit, one.sink) for transfer in self._transferred.values() for one in transfer.sinks}
        steps += [
            Save(plan=s.plan, unit=key[0], sinks=tuple(sorted(sink for unit, sink in moved if unit == key[0])))
            for key, s in self._source_units()
        ]
        beginning = self._by_place(map(self._plan.unit, self._transferred))
        steps += [self._prepare(unit, ahead=True) for unit in beginning if unit.id not in prepared]
        # They may run at once: to divide state takes seconds on each node.
        for unit in beginning:
            transfer = self._transferred[unit.id]
            steps.append(Load(plan=self._id, unit=unit.id, transfer=transfer, saved=self._saved(transfer)))
        return [*steps, Switch(plan=self._id)]

    def _catch_up(self, unit: Unit, going_on: set[str]) -> CatchUp | None:
        """Let a prepared unit catch up with the running one whose work it continues."""
        transfer = self._transferred.get(unit.id)
        if transfer is None or not self._reads_from(unit, going_on):
            return None
        if not can_catch_up(transfer, self._base, self._plan):
            return None
        if any(c.producer not in going_on for c in self._plan.inputs(unit)):
            return None
        source = self._checkpoint_writer(self._base.unit(transfer.source_units[0]))
        if source is None or not (source[1].runs and source[1].sure) or lacks_room(unit, source[0][0], self._seen):
            return None
        return CatchUp(
            plan=self._id,
            unit=unit.id,
            transfer=transfer,
            saved=self._saved(transfer),
            source_plan=source[1].plan,
            price=price_of(source[0][0], self._seen),
        )

    def _prepare(self, unit: Unit, *, ahead: bool = False) -> Prepare:
        """Prepare a unit; in a pooled deployment, new readers start at the current end of the stream."""
        if not self._plan.pooled:
            return Prepare(plan=self._id, unit=unit.id, ahead=ahead)
        near = [unit.id, *(c for channel in self._plan.outputs(unit) for c in channel.consumers)]
        joining = (u for u in dict.fromkeys(near) if self._is_new(u))
        return Prepare(plan=self._id, unit=unit.id, joining=tuple(joining), ahead=ahead)

    def _is_new(self, unit: str) -> bool:
        change = self._changes.get(unit)
        return change is not None and change.action == "start" and unit not in self._transferred

    def _saved(self, transfer: StateTransfer) -> tuple[str, ...]:
        """Return the checkpoints of a transfer's source units; '' for one that never ran."""
        source_units = map(self._base.unit, transfer.source_units)
        return tuple(u.checkpoint if self._checkpoint_writer(u) else "" for u in source_units)

    def _checkpoint_writer(self, unit: Unit) -> Placed | None:
        """Return the incarnation of a unit of the base plan that wrote its checkpoint.

        It is an earlier one where the change to the base plan was given up before the unit was replaced.
        """
        same = incarnation(unit)[:2]
        found = [(key, s) for key, s in self._statuses_of[unit.id] if key[:2] == same and key in self._unit_statuses]
        return max(found, key=lambda one: one[0][2], default=None)

    def _left_to_stop(self, units: set[str], handled: set[Incarnation]) -> list[Placed]:
        """Return the incarnations that are to stop, writers first; a unit that is started for it may add readers."""
        found = [(key, s) for unit in units for key, s in self._statuses_of[unit] if key not in handled]
        placed = by_place([(self._plans[s.plan], key, s) for key, s in found])
        first: dict[str, int] = {}
        for n, (key, _) in enumerate(placed):
            first.setdefault(key[0], n)
        # Plans may place a unit differently; its running incarnation stops before another one starts.
        return sorted(placed, key=lambda one: (first[one[0][0]], not one[1].runs))

    def _stop_at_the_cut(self, key: Incarnation, stood: UnitStatus) -> list[Step]:
        """Stop a unit once it has read its input up to the cut; start it for that unless it certainly runs."""
        unit, has_rows_left = key[0], self._may_have_rows_left(key, stood)
        steps = self._stop(unit, stood, for_good=unit not in self._wanted)
        drains = any(isinstance(step, Drain) for step in steps)
        perhaps_runs = stood.runs and not stood.sure
        if (perhaps_runs and drains) or (not stood.runs and has_rows_left):
            # The unit may not have been prepared yet, nor all units whose output it reads.
            start = Start(plan=stood.plan, unit=unit, state="kept", why="it has rows left to read")
            writers = self._prepare_writers(stood.plan, unit)
            self._register_readers(stood.plan, unit)
            return [*writers, Prepare(plan=stood.plan, unit=unit), start, *steps]
        return steps if stood.runs else []

    def _may_have_rows_left(self, key: Incarnation, stood: UnitStatus) -> bool:
        """Return whether rows may wait for an incarnation that no other one reads."""
        replaced = any(other[2] > key[2] for other, _ in self._statuses_of[key[0]])
        return not replaced and self._drains(key[0], self._plans[stood.plan])

    def _drains(self, unit: str, old: DeploymentPlan) -> bool:
        """Return whether a unit has to read inputs to their end before it stops."""
        inputs = old.inputs(old.unit(unit))
        if any(self._read_elsewhere(unit, c) for c in inputs):
            return True
        return any(not self._writes(c.producer) for c in inputs if self._reads_out(unit, c))

    def _prepare_writers(self, plan: str, unit: str) -> list[Step]:
        """Make the channels that a unit of a plan reads, and that no incarnation of their writers has made."""
        old = self._plans[plan]
        steps: list[Step] = []
        for writer in dict.fromkeys(c.producer for c in old.inputs(old.unit(unit))):
            key = incarnation(old.unit(writer))
            if all(known[:2] != key[:2] for known, _ in self._statuses_of[writer]):
                self._register(key, plan)
                steps.append(Prepare(plan=plan, unit=writer))
        return steps

    def _register_readers(self, plan: str, unit: str) -> None:
        """Record the readers registered by the prepare step of a unit: they read its rows, and are removed then."""
        old = self._plans[plan]
        for channel in old.outputs(old.unit(unit)):
            for reader in channel.consumers:
                key = incarnation(old.unit(reader))
                if key not in self._unit_statuses and key not in self._registered:
                    self._register(key, plan)

    def _register(self, key: Incarnation, plan: str) -> None:
        """Record an incarnation that a step of this change prepares, or registers as a reader."""
        self._registered[key] = UnitStatus(plan=plan, runs=False)
        self._statuses_of[key[0]].append((key, self._registered[key]))

    def _reads_from(self, unit: Unit, writers: set[str]) -> bool:
        """Return whether a unit that is to take over, with no running unit of its id, reads from a kept one."""
        return (
            unit.id in self._transferred
            and not self._statuses_of[unit.id]
            and any(c.producer in writers for c in self._plan.inputs(unit))
        )

    def _gets_readers(self, unit: Unit) -> bool:
        old = self._plans[self._unit_statuses[incarnation(unit)].plan]
        return bool(self._readers(self._plan, unit) - self._readers(old, old.unit(unit.id)))

    def _read_elsewhere(self, unit: str, channel: Channel) -> bool:
        """Return whether a stream is read on from another node, which lacks the rows that wait on this one."""
        return any(
            self._plan.unit(c.unit).node != self._base.unit(unit).node for c, _ in self._read_on[unit, channel.operator]
        )

    @property
    def _base(self) -> DeploymentPlan:
        assert self._diff.running is not None
        return self._diff.running

    def _source_units(self) -> list[Placed]:
        """Return the incarnations from which something is taken."""
        writers = (self._checkpoint_writer(self._base.unit(d)) for d in self._transferred_from)
        return by_place([(self._plans[one[1].plan], *one) for one in writers if one is not None])

    def _stopping_together(self) -> set[str]:
        """Return the units that have to stop before anything is saved: source units, replaced units, and the
        writers of the rows that these have to read first."""
        before = {u.id for u in self._base.units}
        found = {d for c in self._transferred.values() for d in c.source_units} | (self._transferred.keys() & before)
        todo = list(found)
        while todo:
            unit = todo.pop()
            for channel in self._base.inputs(self._base.unit(unit)):
                if self._reads_out(unit, channel) and channel.producer not in found:
                    found.add(channel.producer)
                    todo.append(channel.producer)
        return found

    def _reads_out(self, unit: str, channel: Channel) -> bool:
        """Return whether a unit that stops has to read a channel to its end.

        It must if no unit reads on, or if one does for several units at different positions.
        """
        if channel.id not in self._channels or self._is_levelled(unit, channel):
            return True
        if unit not in self._transferred and unit in self._channels[channel.id].consumers:
            return False  # it continues to read the channel itself
        readers = self._channels[channel.id].consumers
        read_on = any(c.unit in readers for c, _ in self._read_on[unit, channel.operator])
        return unit in self._transferred_from and not read_on

    def _is_levelled(self, unit: str, channel: Channel) -> bool:
        readers = self._channels[channel.id].consumers
        return any(r.level and c.unit in readers for c, r in self._read_on[unit, channel.operator])

    # ------------------------------------------------------------ one unit

    def _stay(self, unit: Unit) -> list[Step]:
        unit_status = self._unit_statuses.get(incarnation(unit))
        if self._stands(unit) and unit.id not in self._stopped:
            assert unit_status is not None
            return [] if unit.id in self._fed else self._update_inputs(unit, unit_status)
        steps: list[Step] = []
        again = stopped = unit.id in self._stopped  # perhaps only because others must read its former output
        for key, stood in tuple(self._statuses_of[unit.id]):
            leaves = key != incarnation(unit) or (self._ended_inputs(unit, stood) and self._reaches_more(unit, stood))
            # `start` adopts a unit that perhaps runs as wanted already.
            if stood.runs and not self._same(unit.id, stood.plan):
                if unit.id not in self._stopped:
                    steps += self._stop_at_the_cut(key, stood)
                again = True
            elif not (stood.runs or stopped) and leaves and self._may_have_rows_left(key, stood):
                steps += self._stop_at_the_cut(key, stood)
                again = True
        change = self._changes.get(unit.id)
        state: State = change.state if change else "none"
        why = change.reason if change and change.action != "unchanged" else "it does not run"
        if unit.id not in self._transferred:
            if unit_status is not None and self._ended_inputs(unit, unit_status) and not again:
                # A plan that was given up may have started their writers alone; it reads their rows to the end.
                steps.append(Prepare(plan=unit_status.plan, unit=unit.id))
                self._register_readers(unit_status.plan, unit.id)
            steps.append(self._prepare(unit))
        steps.append(Start(plan=self._id, unit=unit.id, state=state, why=why, again=again))
        if unit_status is not None and unit_status.runs and not again:
            steps.append(UpdateInputs(plan=self._id, unit=unit.id, why="its inputs may differ from the plan"))
        for channel in self._half_read.pop(unit.id, ()):
            left = self._half.get(channel, set())
            left.discard(unit.id)
            if not left:
                self._half.pop(channel, None)
        return steps

    def _ended_inputs(self, unit: Unit, stood: UnitStatus) -> bool:
        """Return whether a unit that stands still was to read channels that end with this change."""
        old = self._plans[stood.plan]
        return not stood.runs and any(c.id not in self._channels for c in old.inputs(old.unit(unit.id)))

    def _reaches_more(self, unit: Unit, stood: UnitStatus) -> bool:
        """Return whether a unit of a former plan has readers that it no longer has."""
        old = self._plans[stood.plan]
        return not self._readers(old, old.unit(unit.id)) <= self._readers(self._plan, unit)

    def _feed_early(self) -> list[Step]:
        """Update the inputs of units that only get more inputs before the new producers start.

        From then on their event time waits for the new inputs, so the first rows of these are not late.
        """
        steps: list[Step] = []
        for unit in self._by_place(self._plan.units):
            unit_status = self._unit_statuses.get(incarnation(unit))
            if unit_status is None or not self._stands(unit):
                continue
            if self._inputs(self._plans[unit_status.plan], unit.id) < self._inputs(self._plan, unit.id):
                steps += self._update_inputs(unit, unit_status)
                self._fed.add(unit.id)
        return steps

    def _update_inputs(self, unit: Unit, unit_status: UnitStatus) -> list[Step]:
        """Update the readers and the inputs of a unit that keeps running."""
        steps: list[Step] = []
        if self._gets_readers(unit) and not self._transferred:
            steps.append(self._prepare(unit))
        if self._inputs(self._plans[unit_status.plan], unit.id) != self._inputs(self._plan, unit.id):
            change = self._changes.get(unit.id)
            steps.append(UpdateInputs(plan=self._id, unit=unit.id, why=change.reason if change else ""))
        return steps

    @staticmethod
    def _inputs(plan: DeploymentPlan, unit: str) -> set[str]:
        return {c.id for c in plan.inputs(plan.unit(unit))}

    @staticmethod
    def _readers(plan: DeploymentPlan, unit: Unit) -> set[tuple[str, str]]:
        return {(c.id, plan.unit(consumer).checkpoint) for c in plan.outputs(unit) for consumer in c.consumers}

    def _leave(self, unit: str) -> list[Step]:
        """Stop a unit that is not in the plan; one that has been stopped, or never started, reads its rows first."""
        if unit in self._stopped:
            return []
        steps: list[Step] = []
        for key, stood in tuple(self._statuses_of[unit]):
            if stood.runs or self._may_have_rows_left(key, stood):
                steps += self._stop_at_the_cut(key, stood)
        return steps

    def _stop(self, unit: str, stood: UnitStatus, *, for_good: bool) -> list[Step]:
        old = self._plans[stood.plan]
        steps: list[Step] = []
        if self._drains(unit, old):
            steps.append(Drain(plan=stood.plan, unit=unit, must=unit in self._transferred_from or not for_good))
        change = self._changes.get(unit)
        readers = tuple(dict.fromkeys(r for c in old.outputs(old.unit(unit)) for r in c.consumers))
        steps.append(
            Stop(
                plan=stood.plan,
                unit=unit,
                state=change.state if change else "none",
                why=change.reason if change else "it is not in the new plan",
                readers=() if for_good else readers,
                for_good=for_good,
                clean=unit in self._transferred_from,
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
        """Return whether a unit may still run as it did before the change."""
        return unit not in self._stopped and any(s.runs for _, s in self._statuses_of[unit])

    # ------------------------------------------------------------ deletion

    def _forget_first(self) -> list[Step]:
        """Delete units of given-up changes that are to read other channels: those would keep rows for them for ever."""
        found: list[Step] = []
        for key, stood in self._ahead.items():
            unit = key[0]
            if key not in self._incarnations:
                continue
            if self._inputs(self._plans[stood.plan], unit) - self._inputs(self._plan, unit):
                found.append(Forget(plan=stood.plan, unit=unit, why="a change that was given up prepared it"))
        return found

    def _forget_last(self) -> list[Step]:
        left = [(self._plans[s.plan], key, s) for key, s in self._known().items() if key not in self._incarnations]
        return [
            Forget(
                plan=s.plan,
                unit=unit,
                why="another unit replaces it" if unit in self._wanted else "it is not in the new plan",
            )
            for (unit, _, _), s in reversed(by_place(left))
        ]
