"""Compare the running plan with the wanted one: what starts, stops, is replaced, is fed, and why. Pure.

Units are matched by id. A unit restarts when its own content changes, not when something above it
does; its state goes on when the operators that keep it can. Where operators come to stand in other
units, these take over what they kept (``headwater.plan.carry``). What cannot go on is refused here, before
anything stops.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headwater.dataflow.graph import own_content
from headwater.dataflow.operators import Operator
from headwater.dataflow.sinks import Sink
from headwater.dataflow.sources import Source
from headwater.dataflow.types import stream_type
from headwater.errors import DeploymentError, ErrorList, HeadwaterError
from headwater.plan.build import tag_of
from headwater.plan.carry import Carriers, Carry, beginning, joined
from headwater.plan.content import (
    is_stateful,
    own_sources,
    source_locations,
)
from headwater.plan.document import inherit
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.spec import spec_of
from headwater.plan.state import Kept, kept_state, listed, state_difference

Action = Literal["start", "stop", "replace", "feed", "unchanged"]
State = Literal["kept", "carried", "none", "given up"]


@dataclass(frozen=True, kw_only=True)
class UnitChange:
    """What happens to one unit, to its state, and why in plain words."""

    unit: str
    action: Action
    state: State
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ChannelChange:
    """What happens to one channel, by id."""

    channel: str
    action: Literal["begins", "ends", "continues"]


@dataclass(frozen=True, kw_only=True)
class PlanDiff:
    """The wanted plan with its stored names and epochs decided, and what differs from the running one."""

    running: DeploymentPlan | None
    wanted: DeploymentPlan
    units: tuple[UnitChange, ...]
    channels: tuple[ChannelChange, ...]
    notes: tuple[str, ...] = ()
    carries: tuple[Carry, ...] = ()

    @property
    def empty(self) -> bool:
        """Tell whether nothing has to be done."""
        return all(u.action == "unchanged" for u in self.units) and all(
            c.action == "continues" for c in self.channels
        )

    @property
    def changed(self) -> tuple[UnitChange, ...]:
        return tuple(u for u in self.units if u.action != "unchanged")

    def to_data(self) -> dict[str, Any]:
        """Give the difference as JSON-able data; unchanged units and channels are only counted."""
        return {
            "units": [vars(u) for u in self.changed],
            "unchanged": len(self.units) - len(self.changed),
            "channels": [vars(c) for c in self.channels if c.action != "continues"],
            "carried": [{"unit": c.unit, "from": list(c.donors)} for c in self.carries],
            "notes": list(self.notes),
        }


def diff(
    running: DeploymentPlan | None,
    wanted: DeploymentPlan,
    *,
    reset_state: frozenset[str] = frozenset(),
    generation: int | None = None,
) -> PlanDiff:
    """Compare two plans and decide what the wanted one inherits; raise ErrorList of what is refused.

    ``reset_state`` names units whose state may be given up. ``generation`` counts the plans of the
    deployment, those forgotten included: no epoch that was used before exceeds it, so that names and
    epochs made with it are new.
    """
    known = {u.id for plan in (wanted, running) if plan for u in plan.units}
    unknown = reset_state - known
    if unknown:
        raise DeploymentError(
            f"no unit is called {', '.join(sorted(unknown))}",
            where="--reset-state",
            hint=f"the units are {', '.join(u.id for u in wanted.units)}",
        )
    if running is None:
        return _first(wanted, generation or 1)
    if running.dataflow.name != wanted.dataflow.name:
        raise DeploymentError(
            f"'{wanted.dataflow.name}' cannot take the place of '{running.dataflow.name}'",
            hint="a deployment is known by its dataflow's name: apply it as one of its own",
        )
    newest = max((u.epoch for u in running.units), default=0) + 1
    return _Comparison(running, wanted, reset_state, max(generation or 0, newest)).result()


def _first(wanted: DeploymentPlan, generation: int) -> PlanDiff:
    decided = wanted
    if generation > 1:
        keys = wanted.dataflow.keys
        tags = {id_: _fresh(keys[id_], generation) for id_ in wanted.tags}
        units = {u.id: _fresh(u.key, generation) for u in wanted.units}
        epochs = {u.id: generation for u in wanted.units}
        decided = inherit(wanted, tags=tags, unit_tags=units, epochs=epochs)
    return PlanDiff(
        running=None,
        wanted=decided,
        units=tuple(
            UnitChange(unit=u.id, action="start", state="none", reason="it is new") for u in decided.units
        ),
        channels=tuple(ChannelChange(channel=c.id, action="begins") for c in decided.channels),
    )


def _fresh(key: str, generation: int) -> str:
    """Make a name for state that none before can have had."""
    return tag_of(hashlib.sha256(f"{key} {generation}".encode()).hexdigest())


class _Comparison:
    """One comparison: collects decisions, problems and notes on the way."""

    def __init__(
        self, running: DeploymentPlan, wanted: DeploymentPlan, reset: frozenset[str], generation: int
    ) -> None:
        self._old = running
        self._new = wanted
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
        self._carriers = Carriers(running, self._new, reset)
        self._begin = beginning(running, wanted)
        # Whoever takes a dataflow out of many gives up what it kept.
        self._end = beginning(wanted, running) if wanted.pooled else frozenset[str]()
        self._carries: dict[str, Carry] = {}
        self._takers: dict[str, list[Carry]] = {}
        self._taken: set[tuple[str, str]] = set()
        """Who goes on from a unit, and what of it is taken over; known once all units were looked at."""
        self._holders = Counter(o for u in wanted.units for o in u.operators)

    def result(self) -> PlanDiff:
        """Decide everything, or raise an ErrorList of all that is refused."""
        changes = [self._unit_change(u) for u in self._new.units]
        for carry in self._carries.values():
            for donor in carry.donors:
                self._takers.setdefault(donor, []).append(carry)
            self._taken |= {(d.unit, s.operator) for s in carry.shares for d in s.donors}
        changes += [self._stop(u) for u in self._old.units if u.id not in self._after]
        self._check_taken()
        decided = inherit(self._new, unit_tags=self._unit_tags, epochs=self._epochs)
        before, after = {c.id for c in self._old.channels}, {c.id for c in decided.channels}
        channels = [
            ChannelChange(channel=c.id, action="continues" if c.id in before else "begins")
            for c in decided.channels
        ]
        channels += [
            ChannelChange(channel=c.id, action="ends") for c in self._old.channels if c.id not in after
        ]
        self._check_readers(decided)
        if self._problems:
            raise ErrorList(self._problems)
        return PlanDiff(
            running=self._old,
            wanted=decided,
            units=tuple(changes),
            channels=tuple(channels),
            notes=tuple(self._notes),
            carries=tuple(self._carries.values()),
        )

    # ------------------------------------------------------------ names of channels, sinks, sources

    def _decide_names(self) -> None:
        """Name what is stored as it was; nothing that begins gets a name that was ever used."""
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
                channels[channel.place] = _fresh(self._new.dataflow.keys[id_], self._generation)
        self._new = inherit(self._new, tags=self._tags, channel_tags=channels)

    def _decide_tags(self) -> None:
        old, new = self._old.dataflow, self._new.dataflow
        written = {c.operator for plan in (self._old, self._new) for c in plan.channels}
        for id_ in new.order:
            former = self._former(id_)
            self._tags[id_] = _fresh(new.keys[id_], self._generation)
            if former is None:
                continue
            operator = new[id_]
            same = stream_type(old.types[former]) == stream_type(new.types[id_])
            if isinstance(operator, Source) and old[former].kind == operator.kind:
                # It names how far the source was read: it stays, or all would be read again.
                if not same and id_ in written:
                    self._refuse_retyped(id_)
                self._tags[id_] = self._old.tags[former]
            elif same and (old[former].kind == operator.kind or not _ends(old[former], operator)):
                self._tags[id_] = self._old.tags[former]

    def _former(self, id_: str) -> str | None:
        """Give the operator of the running plan that goes on as this one."""
        old, new = self._old.dataflow, self._new.dataflow
        if id_ in old:
            return id_
        if not isinstance(new[id_], Source):
            return None
        # A source under another name, in a unit that goes on, is still read from where it stood.
        same = [
            s.id for s in old.sources if s.id not in new and own_content(old, s.id) == own_content(new, id_)
        ]
        rivals = [
            s.id for s in new.sources if s.id not in old and own_content(new, s.id) == own_content(new, id_)
        ]
        return same[0] if len(same) == 1 and len(rivals) == 1 else None

    def _refuse_retyped(self, id_: str) -> None:
        self._problems.append(
            DeploymentError(
                "its columns change, and it is sent to other units as it is read: "
                "the new stream would begin with all input again",
                where=self._new.dataflow[id_].where,
                hint="put a named .where(...) or .select(...) between the source and the next layer, and "
                "apply that first; or stop the deployment with --forget and begin anew",
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
            return UnitChange(unit=unit.id, action="feed", state=state, reason="a broker's address changed")
        parts = [f"it also reads {', '.join(sorted(after - before))}"] if after - before else []
        parts += [f"{', '.join(sorted(before - after))} ends"] if before - after else []
        return UnitChange(unit=unit.id, action="feed", state=state, reason="; ".join(parts))

    def _why_restart(self, old: Unit, new: Unit) -> str:
        """Give the reason for a restart in plain words; '' where there is none."""
        before, after = spec_of(self._old, old.id).content, spec_of(self._new, new.id).content
        if before != after:
            return self._what_changed(old, new, before, after)
        if new.id in self._reset:
            return "its state is to be given up"
        return self._carriers.shift(new, old)

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
            parts.append(f"{listed(gone)} taken out")
        inputs = {i for o in new.operators for i in flow[o].inputs if i not in inside}
        if retyped := [
            i for i in sorted(inputs) if i in was and stream_type(was.types[i]) != stream_type(flow.types[i])
        ]:
            parts.append(f"{listed(retyped)}, which it reads, has other columns")
        if before["outputs"].keys() != after["outputs"].keys():
            parts.append("it has other outputs")
        places = source_locations(self._new.dataflow, new)
        if places and places != source_locations(self._old.dataflow, old):
            found = sorted({x for xs in places.values() for x in xs})
            parts.append(f"it reads its sources at {', '.join(found)}")
        if before["outputs"].keys() == after["outputs"].keys() and before["kept"] != after["kept"]:
            moved = [o for o, kept in after["kept"].items() if before["kept"].get(o) != kept]
            parts += [f"the channel of '{o}' {_goes_to(after['kept'][o])}" for o in moved]
        if not parts and before["frontier"] != after["frontier"]:
            parts.append("it follows event time in another way, because it now reads more or fewer inputs")
        return "; ".join(parts) or "its operators are joined in another way"

    def _start(self, unit: Unit) -> UnitChange:
        self._renew(unit)
        try:
            carry = self._carriers.carry(unit)
            if carry is None:
                return UnitChange(unit=unit.id, action="start", state="none", reason="it is new")
            return self._carried(carry, "start", "")
        except DeploymentError as error:
            self._problems.append(error)
            return UnitChange(unit=unit.id, action="start", state="none")

    def _renew(self, unit: Unit) -> None:
        """Give a unit a name for its state and an epoch that none had."""
        self._unit_tags[unit.id] = _fresh(unit.key, self._generation)
        self._epochs[unit.id] = self._generation

    def _carried(self, carry: Carry, action: Action, reason: str) -> UnitChange:
        self._carriers.check_reads(carry)
        self._carries[carry.unit] = carry
        others = [d for d in carry.donors if d != carry.unit]
        state: State = "carried" if carry.shares else "none"
        reasons = [reason, f"it goes on from {', '.join(others)}" if others else ""]
        return UnitChange(
            unit=carry.unit, action=action, state=state, reason="; ".join(r for r in reasons if r)
        )

    def _replace(self, old: Unit, new: Unit, reason: str) -> UnitChange:
        self._epochs[new.id] = old.epoch + 1
        before, after = kept_state(self._old.dataflow, old), kept_state(self._new.dataflow, new)
        why = state_difference(before, after, begin=self._begin, end=self._end)
        if new.id in self._reset:
            why = why or "you asked for it"
        elif why is not None or self._carriers.takes_in(new, old):
            try:
                carry = self._carriers.carry(new)
                if self._goes_elsewhere(old, carry):
                    self._renew(new)
                    if carry is not None:
                        return self._carried(carry, "replace", reason)
                    return UnitChange(unit=new.id, action="replace", state="none", reason=reason)
            except DeploymentError as error:
                if why is None or self._carriers.takes_in(new, old):
                    self._problems.append(error)
                    return UnitChange(unit=new.id, action="replace", state="none", reason=reason)
        if why is None:
            state: State = "kept" if before else "none"
            self._note_functions(new, state)
            return UnitChange(unit=new.id, action="replace", state=state, reason=reason)
        return self._begin_anew(new, before, why, reason)

    def _goes_elsewhere(self, old: Unit, carry: Carry | None) -> bool:
        """Tell whether all that a unit kept is in its successor, or in other units of the new plan."""
        taken = {s.operator for s in carry.shares} if carry else set()
        kept = {k.operator for k in kept_state(self._old.dataflow, old)} - self._end
        itself = self._after[old.id].operators if old.id in self._after else ()
        return all(self._holders[o] > (o in itself) for o in kept - taken)

    def _begin_anew(self, new: Unit, before: tuple[Kept, ...], why: str, reason: str) -> UnitChange:
        """Give a unit's state up where its input can be read on, and it was agreed to."""
        self._unit_tags[new.id] = _fresh(new.key, self._generation)
        if sources := own_sources(self._new.dataflow, new):
            self._problems.append(
                DeploymentError(
                    f"its state cannot be gone on with ({why}), and it reads {listed(s.id for s in sources)} "
                    "itself, which would be read again from the beginning",
                    where=f"unit {new.id}",
                    hint="put the operators with state in a higher layer, so that they read a channel; or "
                    "leave them as they are; or stop the deployment with --forget and begin anew",
                )
            )
        elif before and new.id not in self._reset:
            self._problems.append(
                DeploymentError(
                    f"its state cannot be gone on with: {why}",
                    where=f"unit {new.id}",
                    hint=f"allow it to be given up with --reset-state {new.id} (open windows and what was "
                    "remembered are lost; input goes on where it stood), or leave the operators as they are",
                )
            )
        if not before:
            return UnitChange(unit=new.id, action="replace", state="none", reason=f"{reason}; {why}")
        return UnitChange(unit=new.id, action="replace", state="given up", reason=f"{reason}; {why}")

    def _note_functions(self, unit: Unit, state: State) -> None:
        """Say where new code meets old state."""
        for id_ in unit.operators:
            if state == "kept" and self._new.dataflow[id_].kind == "scan" and id_ in self._old.dataflow:
                before = own_content(self._old.dataflow, id_)
                after = own_content(self._new.dataflow, id_)
                if before != after:
                    self._notes.append(
                        f"{unit.id}: the changed function of '{id_}' goes on with the state that the former "
                        "one left, and has to understand it"
                    )

    def _check_taken(self) -> None:
        """See that whatever a renewed unit kept is somewhere."""
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
                        f"nobody takes over the state of {listed(kept)}",
                        where=f"unit {unit.id}",
                        hint=f"allow it to be given up with --reset-state {unit.id}",
                    )
                )

    def _stop(self, unit: Unit) -> UnitChange:
        """Stop a unit; where its operators live on in another one, giving up its state needs consent."""
        takers = self._takers.get(unit.id, [])
        before = kept_state(self._old.dataflow, unit)
        kept = [k for k in before if (unit.id, k.operator) not in self._taken]
        state: State = "given up" if kept else "carried" if before else "none"
        near = self._new.meeting(unit.locations) if kept else ()
        heirs = [u.id for u in near if any(k.operator in u.operators for k in kept)]
        if heirs and not self._reset & {unit.id, *heirs}:
            self._problems.append(
                DeploymentError(
                    f"its operators go on as {', '.join(heirs)}, without the state of "
                    f"{listed(k.operator for k in kept)}",
                    where=f"unit {unit.id}",
                    hint=f"allow it with --reset-state {unit.id}, or leave names, layers, cuts as they are",
                )
            )
        goes_on = list(dict.fromkeys([*(c.unit for c in takers), *heirs]))
        reason = f"it goes on as {', '.join(goes_on)}" if goes_on else "it is not wanted any more"
        return UnitChange(unit=unit.id, action="stop", state=state, reason=reason)

    # ------------------------------------------------------------ who reads what

    def _check_readers(self, decided: DeploymentPlan) -> None:
        """Refuse to give what a running unit goes on writing from one zone's reader to another's."""
        before = {c.id: c for c in self._old.channels}
        for channel in decided.channels:
            old = before.get(channel.id)
            if old is None:
                continue
            for gone in set(old.consumers) - set(channel.consumers):
                name = gone.rpartition("@")[0]
                takers = [
                    c for c in channel.consumers if c.rpartition("@")[0] == name and c not in old.consumers
                ]
                takers = [t for t in takers if not self._reads_on(t, channel.operator, gone)]
                if takers and gone in self._after:
                    self._problems.append(
                        DeploymentError(
                            f"would be read by {takers[0]} instead of {gone}, in the midst of the stream",
                            where=f"channel {channel.id}",
                            hint=f"take the locations of {channel.zone} out and apply, then put them back in",
                        )
                    )

    def _reads_on(self, unit: str, operator: str, donor: str) -> bool:
        """Tell whether a unit reads a stream on where another one stood."""
        carry = self._carries.get(unit)
        return carry is not None and any(r.operator == operator and donor in r.donors for r in carry.readings)


def _goes_to(kept: list[str]) -> str:
    return f"goes to the broker of {kept[0]}, {kept[1]}" if kept else "goes to the disk of its zone"


def _ends(*operators: Operator) -> bool:
    """Tell whether one of these is a source or sink, whose stored names fit one kind only."""
    return any(isinstance(o, Source | Sink) for o in operators)
