"""Compare the running plan with the wanted one: which units start, stop or get other inputs, and why. Pure.

Units are matched by id. A unit restarts when its own content changes, not when a unit above it does; its state
is kept if the new operators can use it. Where operators move to other units, these take over their state
(``headwater.plan.transfer``). A change that cannot keep results exact is refused here, before anything stops.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from headwater.core.errors import DeploymentError, ErrorList, HeadwaterError
from headwater.core.jsonform import named
from headwater.dataflow.graph import own_content
from headwater.dataflow.operators import Operator
from headwater.dataflow.sinks import Sink
from headwater.dataflow.sources import Source
from headwater.dataflow.types import stream_type
from headwater.plan.build import single_keys, tag_of
from headwater.plan.content import (
    is_stateful,
    own_sources,
    source_locations,
)
from headwater.plan.document import inherit
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.spec import spec_of
from headwater.plan.state import KeptState, kept_state, listed, state_difference
from headwater.plan.transfer import StateTransfer, TransferPlanner, beginning, joined

Action = Literal["start", "stop", "replace", "update_inputs", "unchanged"]
State = Literal["kept", "transferred", "none", "given up"]


@dataclass(frozen=True, kw_only=True)
class UnitChange:
    """The change of one unit and of its state, and the reason in plain words."""

    unit: str
    action: Action
    state: State
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ChannelChange:
    """The change of one channel, by id."""

    channel: str
    action: Literal["begins", "ends", "continues"]


@dataclass(frozen=True, kw_only=True)
class Transferred:
    """A unit that takes over state, and the source units."""

    unit: str
    source_units: Annotated[tuple[str, ...], named("from")]


@dataclass(frozen=True, kw_only=True)
class DiffOutline:
    """The changes when one plan replaces another; ``unchanged`` units are only counted."""

    units: tuple[UnitChange, ...]
    unchanged: int
    channels: tuple[ChannelChange, ...]
    transferred: tuple[Transferred, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PlanDiff:
    """The wanted plan with its stored names and epochs, and its differences from the running plan."""

    running: DeploymentPlan | None
    wanted: DeploymentPlan
    units: tuple[UnitChange, ...]
    channels: tuple[ChannelChange, ...]
    notes: tuple[str, ...] = ()
    transfers: tuple[StateTransfer, ...] = ()

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to do."""
        return all(u.action == "unchanged" for u in self.units) and all(c.action == "continues" for c in self.channels)

    @property
    def changed(self) -> tuple[UnitChange, ...]:
        return tuple(u for u in self.units if u.action != "unchanged")

    def shown(self) -> DiffOutline:
        """Return the changes; unchanged units are only counted."""
        return DiffOutline(
            units=self.changed,
            unchanged=len(self.units) - len(self.changed),
            channels=tuple(c for c in self.channels if c.action != "continues"),
            transferred=tuple(Transferred(unit=c.unit, source_units=tuple(c.source_units)) for c in self.transfers),
            notes=self.notes,
        )


def diff(
    running: DeploymentPlan | None,
    wanted: DeploymentPlan,
    *,
    reset_state: frozenset[str] = frozenset(),
    generation: int | None = None,
) -> PlanDiff:
    """Compare two plans, with the names and epochs that the wanted one inherits; raise ErrorList of refusals.

    ``reset_state`` names units whose state may be given up. ``generation`` counts all plans of the deployment,
    deleted ones included; no earlier epoch exceeds it, so names and epochs made with it are new.
    """
    known = {u.id for plan in (wanted, running) if plan for u in plan.units}
    unknown = reset_state - known
    if unknown:
        raise DeploymentError(
            f"unknown unit {', '.join(sorted(unknown))}",
            where="--reset-state",
            hint=f"the units are {', '.join(u.id for u in wanted.units)}",
        )
    if running is None:
        return _first(wanted, generation or 1)
    if running.dataflow.name != wanted.dataflow.name:
        raise DeploymentError(
            f"dataflow '{wanted.dataflow.name}' cannot replace '{running.dataflow.name}'",
            hint="a deployment has the name of its dataflow: apply this one as a separate deployment",
        )
    newest = max((u.epoch for u in running.units), default=0) + 1
    return _Comparison(running, wanted, reset_state, max(generation or 0, newest)).result()


def _first(wanted: DeploymentPlan, generation: int) -> PlanDiff:
    decided = wanted
    if generation > 1:
        keys = single_keys(wanted.dataflow)
        tags = {id_: _fresh(keys[id_], generation) for id_ in wanted.tags}
        units = {u.id: _fresh(u.key, generation) for u in wanted.units}
        epochs = {u.id: generation for u in wanted.units}
        decided = inherit(wanted, tags=tags, unit_tags=units, epochs=epochs)
    return PlanDiff(
        running=None,
        wanted=decided,
        units=tuple(UnitChange(unit=u.id, action="start", state="none", reason="it is new") for u in decided.units),
        channels=tuple(ChannelChange(channel=c.id, action="begins") for c in decided.channels),
    )


def _fresh(key: str, generation: int) -> str:
    """Return a name for state that was never used before."""
    return tag_of(hashlib.sha256(f"{key} {generation}".encode()).hexdigest())


class _Comparison:
    """One comparison; collects decisions, problems and notes."""

    def __init__(self, running: DeploymentPlan, wanted: DeploymentPlan, reset: frozenset[str], generation: int) -> None:
        self._old = running
        self._new = wanted
        self._keys = single_keys(wanted.dataflow)
        self._reset = reset
        self._generation = generation
        self._before: Mapping[str, Unit] = {u.id: u for u in running.units}
        self._after: Mapping[str, Unit] = {u.id: u for u in wanted.units}
        self._tags: dict[str, str] = {}
        self._unit_tags: dict[str, str] = {}
        self._epochs: dict[str, int] = {}
        self._notes: list[str] = []
        self._problems: list[HeadwaterError] = []
        self._decide_names()
        self._transfers = TransferPlanner(running, self._new, reset)
        self._begin = beginning(running, wanted)
        # A dataflow that is removed from a pooled plan gives up its state.
        self._end = beginning(wanted, running) if wanted.pooled else frozenset[str]()
        self._found_transfers: dict[str, StateTransfer] = {}
        self._takers: dict[str, list[StateTransfer]] = {}
        """Transfers by source unit; complete after all unit changes."""
        self._taken: set[tuple[str, str]] = set()
        """Units and their operators whose state is transferred; complete after all unit changes."""
        self._holders = Counter(o for u in wanted.units for o in u.operators)
        """Number of units that run each operator in the new plan."""

    def result(self) -> PlanDiff:
        """Return all decisions, or raise an ErrorList of all refusals."""
        changes = [self._unit_change(u) for u in self._new.units]
        for transfer in self._found_transfers.values():
            for source in transfer.source_units:
                self._takers.setdefault(source, []).append(transfer)
            self._taken |= {(d.unit, s.operator) for s in transfer.shares for d in s.source_units}
        changes += [self._stop(u) for u in self._old.units if u.id not in self._after]
        self._check_taken()
        decided = inherit(self._new, unit_tags=self._unit_tags, epochs=self._epochs)
        before, after = {c.id for c in self._old.channels}, {c.id for c in decided.channels}
        channels = [
            ChannelChange(channel=c.id, action="continues" if c.id in before else "begins") for c in decided.channels
        ]
        channels += [ChannelChange(channel=c.id, action="ends") for c in self._old.channels if c.id not in after]
        self._check_readers(decided)
        if self._problems:
            raise ErrorList(self._problems)
        return PlanDiff(
            running=self._old,
            wanted=decided,
            units=tuple(changes),
            channels=tuple(channels),
            notes=tuple(self._notes),
            transfers=tuple(self._found_transfers.values()),
        )

    # ------------------------------------------------------------ names of channels, sinks, sources

    def _decide_names(self) -> None:
        """Keep stored names where the stored data is kept; give new data unused names."""
        self._decide_tags()
        places = {c.place: c for c in self._old.channels}
        channels = {}
        for channel in self._new.channels:
            id_ = channel.operator
            old = places.get(channel.place)
            same = old is not None and self._tags[id_] == self._old.tags.get(id_)
            if old is not None and same and not joined(self._old, old, self._new, channel):
                channels[channel.place] = old.tag
            else:
                channels[channel.place] = _fresh(self._keys[id_], self._generation)
        units = {unit.id: self._reading_on(unit) for unit in self._new.units}
        self._new = inherit(self._new, tags=self._tags, channel_tags=channels, units=units)

    def _reading_on(self, unit: Unit) -> Unit:
        """Keep the order of a unit's locations, and with it the names of its reads: another name reads all again."""
        flow, old = self._new.dataflow, self._before.get(unit.id)
        if old is not None:
            kept = [x for x in old.locations if x in unit.locations]
            unit = replace(unit, locations=(*kept, *(x for x in unit.locations if x not in kept)))
        names = {s.id: self._name_of_read(s.id) for s in own_sources(flow, unit) if not s.per_location}
        return replace(unit, read_for={id_: x for id_, x in names.items() if x and x != unit.locations[0]})

    def _name_of_read(self, source: str) -> str:
        """Return the location in the name by which a source without locations is read; '' where it is not read."""
        former = self._former(source)
        reader = next((u for u in self._old.units if former in u.operators), None)
        read = source_locations(self._old.dataflow, reader) if reader is not None else {}
        return read[former][0] if former in read else ""

    def _decide_tags(self) -> None:
        old, new = self._old.dataflow, self._new.dataflow
        written = {c.operator for plan in (self._old, self._new) for c in plan.channels}
        for id_ in new.order:
            former = self._former(id_)
            self._tags[id_] = _fresh(self._keys[id_], self._generation)
            if former is None:
                continue
            operator, before = new[id_], old[former]
            if isinstance(operator, Source) and isinstance(before, Source) and operator.stream != before.stream:
                continue  # it begins anew: the offsets of another topic say nothing of this one
            same = stream_type(old.types[former]) == stream_type(new.types[id_])
            if isinstance(operator, Source) and old[former].kind == operator.kind:
                # The tag names the read position of the source: a new tag would read all input again.
                if not same and id_ in written:
                    self._refuse_retyped(id_)
                self._tags[id_] = self._old.tags[former]
            elif same and (old[former].kind == operator.kind or not _ends(old[former], operator)):
                self._tags[id_] = self._old.tags[former]

    def _former(self, id_: str) -> str | None:
        """Return the operator of the running plan that continues as this one."""
        old, new = self._old.dataflow, self._new.dataflow
        if id_ in old:
            return id_
        if not isinstance(new[id_], Source):
            return None
        # A renamed source in a kept unit continues from its read position.
        same = [s.id for s in old.sources if s.id not in new and own_content(old, s.id) == own_content(new, id_)]
        rivals = [s.id for s in new.sources if s.id not in old and own_content(new, s.id) == own_content(new, id_)]
        return same[0] if len(same) == 1 and len(rivals) == 1 else None

    def _refuse_retyped(self, id_: str) -> None:
        self._problems.append(
            DeploymentError(
                "its columns change, and its rows go to other units unchanged: "
                "the new stream would read all input again",
                where=self._new.dataflow[id_].where,
                hint="put a named .where(...) or .select(...) between the source and the next layer, and "
                "apply that first; or stop the deployment with --forget and start again",
            )
        )

    # ------------------------------------------------------------ units

    def _unit_change(self, unit: Unit) -> UnitChange:
        old = self._before.get(unit.id)
        if old is None:
            return self._start(unit)
        self._epochs[unit.id] = old.epoch
        self._unit_tags[unit.id] = old.tag
        reason = self._why_restart(old, unit)
        stateful = is_stateful(self._old.dataflow, old)
        if stateful and (added := sorted(set(unit.locations) - set(old.locations))):
            self._notes.append(
                f"{unit.id}: rows of {', '.join(added)} that are older than the event time it has reached are late"
            )
        if reason:
            return self._replace(old, unit, reason)
        was, now = spec_of(self._old, old.id), spec_of(self._new, unit.id)
        kept_before = {c.id: was.kept_at(c) for c in was.inputs}
        kept_after = {c.id: now.kept_at(c) for c in now.inputs}
        state: State = "kept" if stateful else "none"
        if kept_before == kept_after:
            return UnitChange(unit=unit.id, action="unchanged", state=state)
        before, after = kept_before.keys(), kept_after.keys()
        if before == after:
            return UnitChange(unit=unit.id, action="update_inputs", state=state, reason="a broker's address changed")
        parts = [f"it also reads {', '.join(sorted(after - before))}"] if after - before else []
        parts += [f"{', '.join(sorted(before - after))} ends"] if before - after else []
        return UnitChange(unit=unit.id, action="update_inputs", state=state, reason="; ".join(parts))

    def _why_restart(self, old: Unit, new: Unit) -> str:
        """Return the reason for a restart in plain words; '' if there is none."""
        before, after = spec_of(self._old, old.id).content, spec_of(self._new, new.id).content
        if before != after:
            return self._what_changed(old, new, before, after)
        if new.id in self._reset:
            return "its state is given up"
        return self._transfers.shift(new, old)

    def _what_changed(self, old: Unit, new: Unit, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
        flow, was = self._new.dataflow, self._old.dataflow
        inside, formerly = set(new.operators), set(old.operators)
        parts = []
        changed = [i for i in new.operators if i in formerly and own_content(flow, i) != own_content(was, i)]
        if changed:
            parts.append(f"{listed(changed)} changed")
        if added := [i for i in new.operators if i not in formerly]:
            parts.append(f"{listed(added)} added")
        if gone := [i for i in old.operators if i not in inside]:
            parts.append(f"{listed(gone)} removed")
        inputs = {i for o in new.operators for i in flow[o].inputs if i not in inside}
        if retyped := [
            i for i in sorted(inputs) if i in was and stream_type(was.types[i]) != stream_type(flow.types[i])
        ]:
            parts.append(f"the columns of its input {listed(retyped)} changed")
        if before["outputs"].keys() != after["outputs"].keys():
            parts.append("its outputs changed")
        places = source_locations(self._new.dataflow, new)
        if places and places != source_locations(self._old.dataflow, old):
            found = sorted({x for xs in places.values() for x in xs})
            parts.append(f"it reads its sources at {', '.join(found)}")
        if before["outputs"].keys() == after["outputs"].keys() and before["kept"] != after["kept"]:
            moved = [o for o, kept in after["kept"].items() if before["kept"].get(o) != kept]
            parts += [f"the channel of '{o}' {_goes_to(after['kept'][o])}" for o in moved]
        if not parts and before["frontier"] != after["frontier"]:
            parts.append("it tracks event time differently, because the number of its inputs changed")
        return "; ".join(parts) or "the connections of its operators changed"

    def _start(self, unit: Unit) -> UnitChange:
        self._renew(unit)
        try:
            transfer = self._transfers.transfer(unit)
            if transfer is None:
                return UnitChange(unit=unit.id, action="start", state="none", reason="it is new")
            return self._transferred(transfer, "start", "")
        except DeploymentError as error:
            self._problems.append(error)
            return UnitChange(unit=unit.id, action="start", state="none")

    def _renew(self, unit: Unit) -> None:
        """Give a unit an unused name for its state and an unused epoch."""
        self._unit_tags[unit.id] = _fresh(unit.key, self._generation)
        self._epochs[unit.id] = self._generation

    def _transferred(self, transfer: StateTransfer, action: Action, reason: str) -> UnitChange:
        self._found_transfers[transfer.unit] = transfer
        others = [d for d in transfer.source_units if d != transfer.unit]
        state: State = "transferred" if transfer.shares else "none"
        reasons = [reason]
        if found := [d for d in others if self._continues(d, transfer.unit)]:
            reasons.append(f"it takes over the state of {', '.join(found)}")
        if found := [d for d in others if not self._continues(d, transfer.unit)]:
            reasons.append(f"it reads on where {', '.join(found)} ended")
        return UnitChange(unit=transfer.unit, action=action, state=state, reason="; ".join(r for r in reasons if r))

    def _continues(self, old: str, new: str) -> bool:
        """Return whether operators of a unit of the running plan run in a unit of the wanted one."""
        return not set(self._before[old].operators).isdisjoint(self._after[new].operators)

    def _replace(self, old: Unit, new: Unit, reason: str) -> UnitChange:
        self._epochs[new.id] = old.epoch + 1
        before, after = kept_state(self._old.dataflow, old), kept_state(self._new.dataflow, new)
        why = state_difference(before, after, begin=self._begin, end=self._end)
        if new.id in self._reset:
            why = why or "reset requested"
        elif why is not None or self._transfers.takes_in(new, old):
            try:
                transfer = self._transfers.transfer(new)
                if self._goes_elsewhere(old, transfer):
                    self._renew(new)
                    if transfer is not None:
                        return self._transferred(transfer, "replace", reason)
                    return UnitChange(unit=new.id, action="replace", state="none", reason=reason)
            except DeploymentError as error:
                if why is None or self._transfers.takes_in(new, old):
                    self._problems.append(error)
                    return UnitChange(unit=new.id, action="replace", state="none", reason=reason)
        if why is None:
            state: State = "kept" if before else "none"
            self._note_functions(new, state)
            return UnitChange(unit=new.id, action="replace", state=state, reason=reason)
        return self._begin_anew(new, before, why, reason)

    def _goes_elsewhere(self, old: Unit, transfer: StateTransfer | None) -> bool:
        """Return whether all state of a unit is in its successor or in other units of the new plan."""
        taken = {s.operator for s in transfer.shares} if transfer else set()
        kept = {k.operator for k in kept_state(self._old.dataflow, old)} - self._end
        itself = self._after[old.id].operators if old.id in self._after else ()
        return all(self._holders[o] > (o in itself) for o in kept - taken)

    def _begin_anew(self, new: Unit, before: tuple[KeptState, ...], why: str, reason: str) -> UnitChange:
        """Give up a unit's state if its input is kept and the user agreed to it."""
        self._unit_tags[new.id] = _fresh(new.key, self._generation)
        if sources := own_sources(self._new.dataflow, new):
            self._problems.append(
                DeploymentError(
                    f"its state cannot be kept ({why}), and it reads {listed(s.id for s in sources)} "
                    "itself, which would be read again from the start",
                    where=f"unit {new.id}",
                    hint="put the operators with state in a higher layer, so that they read a channel; or "
                    "keep them unchanged; or stop the deployment with --forget and start again",
                )
            )
        elif before and new.id not in self._reset:
            self._problems.append(
                DeploymentError(
                    f"its state cannot be kept: {why}",
                    where=f"unit {new.id}",
                    hint=f"allow its loss with --reset-state {new.id} (open windows and other state "
                    "are lost; input continues at its position), or keep the operators unchanged",
                )
            )
        if not before:
            return UnitChange(unit=new.id, action="replace", state="none", reason=f"{reason}; {why}")
        return UnitChange(unit=new.id, action="replace", state="given up", reason=f"{reason}; {why}")

    def _note_functions(self, unit: Unit, state: State) -> None:
        """Add a note where new code reads old state."""
        for id_ in unit.operators:
            if state == "kept" and self._new.dataflow[id_].kind == "scan" and id_ in self._old.dataflow:
                before = own_content(self._old.dataflow, id_)
                after = own_content(self._new.dataflow, id_)
                if before != after:
                    self._notes.append(
                        f"{unit.id}: the changed function of '{id_}' reads the state of the former "
                        "one; the formats have to match"
                    )

    def _check_taken(self) -> None:
        """Check that all state of renewed units has a target."""
        for unit in self._new.units:
            old = self._before.get(unit.id)
            if old is None or self._unit_tags[unit.id] == old.tag or {unit.id} & self._reset:
                continue
            kept = [
                k.operator
                for k in kept_state(self._old.dataflow, old)
                if (old.id, k.operator) not in self._taken and k.operator not in self._end
            ]
            if kept and not self._problems:
                self._problems.append(
                    DeploymentError(
                        f"no unit takes over the state of {listed(kept)}",
                        where=f"unit {unit.id}",
                        hint=f"allow its loss with --reset-state {unit.id}",
                    )
                )

    def _stop(self, unit: Unit) -> UnitChange:
        """Stop a unit; if its operators continue in another one, giving up its state needs consent."""
        takers = self._takers.get(unit.id, [])
        before = kept_state(self._old.dataflow, unit)
        kept = [k for k in before if (unit.id, k.operator) not in self._taken]
        state: State = "given up" if kept else "transferred" if before else "none"
        near = self._new.serving(unit.locations) if kept else ()
        heirs = [u.id for u in near if any(k.operator in u.operators for k in kept)]
        if heirs and not self._reset & {unit.id, *heirs}:
            self._problems.append(
                DeploymentError(
                    f"its operators continue in {', '.join(heirs)} without the state of "
                    f"{listed(k.operator for k in kept)}",
                    where=f"unit {unit.id}",
                    hint=f"allow it with --reset-state {unit.id}, or keep names, layers and cuts unchanged",
                )
            )
        goes_on = list(dict.fromkeys([*(c.unit for c in takers if self._continues(unit.id, c.unit)), *heirs]))
        readers = [c.unit for c in takers if c.unit not in goes_on]
        reasons = [f"its operators continue in {', '.join(goes_on)}"] if goes_on else []
        reasons += [f"{', '.join(readers)} reads on where it ends"] if readers else []
        return UnitChange(
            unit=unit.id, action="stop", state=state, reason="; ".join(reasons) or "it is not in the new plan"
        )

    # ------------------------------------------------------------ readers

    def _check_readers(self, decided: DeploymentPlan) -> None:
        """Refuse to hand a kept channel from a reader in one zone to a reader in another zone."""
        before = {c.id: c for c in self._old.channels}
        for channel in decided.channels:
            old = before.get(channel.id)
            if old is None:
                continue
            for gone in set(old.consumers) - set(channel.consumers):
                name = gone.rpartition("@")[0]
                takers = [c for c in channel.consumers if c.rpartition("@")[0] == name and c not in old.consumers]
                takers = [t for t in takers if not self._reads_on(t, channel.operator, gone)]
                if takers and gone in self._after:
                    self._problems.append(
                        DeploymentError(
                            f"would change its reader from {gone} to {takers[0]} in the middle of the stream",
                            where=f"channel {channel.id}",
                            hint=f"remove the locations of {channel.zone} and apply, then add them again",
                        )
                    )

    def _reads_on(self, unit: str, operator: str, source_unit: str) -> bool:
        """Return whether a unit continues to read a stream from another unit's position."""
        transfer = self._found_transfers.get(unit)
        return transfer is not None and any(
            r.operator == operator and source_unit in r.source_units for r in transfer.readings
        )


def _goes_to(kept: list[str]) -> str:
    return f"goes to the broker of {kept[0]}, {kept[1]}" if kept else "goes to the disk of its zone"


def _ends(*operators: Operator) -> bool:
    """Return whether any of these is a source or sink, whose stored names fit one kind only."""
    return any(isinstance(o, Source | Sink) for o in operators)
