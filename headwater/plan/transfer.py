"""State transfer: operators' state and input positions that a new unit takes over from running ones. Pure.

Fission, fusion and migration all use it: parts of the old units' checkpoints become the new unit's checkpoint.
They are consistent because the old units stop at one point of the stream: each has read all rows sent over
channels that end, so every operator has seen the same input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from headwater.core.errors import DeploymentError
from headwater.dataflow import stateful
from headwater.dataflow.graph import Graph
from headwater.dataflow.sinks import MemorySink
from headwater.dataflow.sources import BridgedSource, Source
from headwater.plan.content import own_sources
from headwater.plan.heirs import Heirs
from headwater.plan.model import Channel, DeploymentPlan, Part, Unit
from headwater.plan.onepass import below_of
from headwater.plan.spread import keys_by
from headwater.plan.state import KeptState, kept_state, listed, state_difference


@dataclass(frozen=True, kw_only=True)
class TransferSource:
    """A unit with an operator's state, and Spark's number of the operator there."""

    unit: str
    number: int


@dataclass(frozen=True, kw_only=True)
class KeyPart:
    """The keys whose column, of a type, hashes to ``index`` of ``count``: the state of a part of a unit."""

    column: str
    type: str
    index: int
    count: int


@dataclass(frozen=True, kw_only=True)
class OperatorTransfer:
    """One operator's state: Spark's number of it in the new unit, and its sources.

    Several sources are merged; ``by`` divides the state: only keys are taken whose column ``by`` has one of
    ``values``; ``part`` takes the keys of one part. In all these cases Spark rewrites the state. ``tag``
    identifies a scan's state under a shared number, in the new unit and in its source.
    """

    operator: str
    number: int
    source_units: tuple[TransferSource, ...]
    by: str | None = None
    values: tuple[str, ...] = ()
    part: KeyPart | None = None
    tag: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Where an input is read on: at the position of source units, or without one at its channels' end at the cut.

    ``joined``: it also has channels that begin with the change. ``prompt``: the input, or a channel that joins it,
    is new and brings no rows older than the source units' event time. ``level``: several source units read the
    same channels up to different positions; all read them to their ends first.
    """

    operator: str
    source_units: tuple[str, ...]
    prompt: bool = False
    joined: bool = False
    level: bool = False

    @property
    def follows(self) -> bool:
        """Return whether event time may continue from that of the source units."""
        return self.prompt or (bool(self.source_units) and not self.joined)


@dataclass(frozen=True, kw_only=True)
class SinkTransfer:
    """A memory sink whose rows so far a new unit takes over from a unit of another place."""

    sink: str
    unit: str
    alone: bool = False
    """Whether nothing else of that unit is taken over: its event time does not count."""


@dataclass(frozen=True, kw_only=True)
class StateTransfer:
    """Everything that one new unit takes over. Units are named by id; source units by the id in the running plan."""

    unit: str
    source_units: tuple[str, ...]
    """Running units that end where this one starts: all its sources, in their plan's order."""
    shares: tuple[OperatorTransfer, ...]
    readings: tuple[Reading, ...]
    fresh: tuple[int, ...] = ()
    """Spark's numbers of scans without state so far: they start empty."""
    counted: tuple[str, ...] = ()
    """Source units whose count of late rows this unit continues: exactly one unit does."""
    sinks: tuple[SinkTransfer, ...] = ()
    """Memory sinks whose rows go to this unit, from its source units."""


_NAMED = 3
"""Units that a message names at least, of possibly many."""
_IN_JSON = ("boolean", "tinyint", "smallint", "int", "bigint", "string")
"""Types whose values a scan's keys hold unchanged."""


class TransferPlanner:
    """Decides which state the units of a wanted plan take over from the running units."""

    def __init__(self, running: DeploymentPlan, wanted: DeploymentPlan, reset: frozenset[str]) -> None:
        """``reset``: units of both plans whose state may be given up."""
        self._old = running
        self._new = wanted
        self._reset = reset
        self._begin = beginning(running, wanted)
        self._heirs = Heirs(running, wanted)
        self._before = {c.id: c for c in running.channels}
        self._reads: dict[str, frozenset[str]] = {}

    def transfer(self, unit: Unit) -> StateTransfer | None:
        """Return the transfer of a unit; None if it continues no running unit.

        Raises DeploymentError, before anything stops, if the transfer cannot be exact.
        """
        kept = kept_state(self._new.dataflow, unit)
        shares = [s for k in kept if (s := self._share(unit, k)) is not None]
        own = [s.id for s in own_sources(self._new.dataflow, unit)]
        readings = [self._reading(unit, i) for i in (*own, *self._channels_read(unit))]
        source_units = {d.unit for s in shares for d in s.source_units} | {d for r in readings for d in r.source_units}
        unread = {r.operator: self._unread(unit, r) for r in readings}
        for reading in readings:
            source_units |= self._at_work(unit, reading, unread[reading.operator])
        sinks = tuple(self._sinks(unit, source_units))  # of units whose inputs may all be read to their ends
        if not source_units and not sinks:
            return None
        readings = [self._opened(r, unread[r.operator], source_units) for r in readings]
        source_units |= {one.unit for one in sinks}
        taken = {s.operator for s in shares}
        fresh = [
            k.operator for k in kept if k.operator not in taken | self._begin and not self._given_up(unit, k.operator)
        ]
        numbers = {s.number for s in shares}
        first = [k for k in kept if k.number not in numbers and k.operator in self._begin]
        # The state of a scan has a fixed form, which can be created empty.
        fresh += [k.operator for k in first if k.tag is None]
        # A unit that comes between others has no operator of theirs, and begins without state.
        if fresh and any(set(unit.operators) & set(self._old.unit(v).operators) for v in source_units):
            raise _refused(unit, f"{listed(fresh)} becomes stateful in the middle of the stream")
        return StateTransfer(
            unit=unit.id,
            source_units=tuple(sorted(source_units, key=self._old.position)),
            shares=tuple(shares),
            readings=tuple(readings),
            fresh=tuple(sorted({k.number for k in first})),
            counted=self._counted(shares),
            sinks=sinks,
        )

    def _sinks(self, unit: Unit, source_units: Iterable[str]) -> Iterator[SinkTransfer]:
        """Yield the memory sinks whose rows a unit takes: of several units with a sink the first one does."""
        sinks = [o for o in unit.outputs if isinstance(self._new.dataflow[o], MemorySink)]
        known = frozenset(source_units)
        for old in self._former(unit, sinks) if sinks else ():
            for sink in sinks:
                if sink not in old.outputs or self._keeps_sink(old, sink):
                    continue
                heirs = [v for x in old.locations for v in self._takers(sink, x) if sink in v.outputs]
                if heirs and min(heirs, key=lambda v: self._new.position(v.id)) == unit:
                    yield SinkTransfer(sink=sink, unit=old.id, alone=old.id not in known)

    def _keeps_sink(self, old: Unit, sink: str) -> bool:
        """Return whether some unit goes on with a sink in its present place."""
        return any(sink in u.outputs and (u.node, u.suffix) == (old.node, old.suffix) for u in self._new.units)

    def _counted(self, shares: Iterable[OperatorTransfer]) -> tuple[str, ...]:
        """Return the source units of which these shares have the first part of the first operator's state."""
        found: dict[str, None] = {}
        for share in shares:
            for source_unit in (s.unit for s in share.source_units):
                old = self._old.unit(source_unit)
                first = kept_state(self._old.dataflow, old)[0].operator == share.operator
                among = not share.values or sorted(old.locations)[0] in share.values
                if first and among and (share.part is None or share.part.index == 0):
                    found[source_unit] = None
        return tuple(found)

    def takes_in(self, unit: Unit, old: Unit) -> bool:
        """Return whether a unit takes over operators or locations of other units, or leaves locations to them, in
        addition to its own."""
        more = set(unit.operators) - set(old.operators)
        others = [v for v in self._former(unit, unit.operators) if v.id != old.id]
        if any(more & set(v.operators) for v in others) or self.shift(unit, old):
            return True
        return any(self._passes_on(v, i, unit) for i in self._channels_read(unit) for v in others)

    def shift(self, unit: Unit, old: Unit) -> str:
        """Return which locations a unit takes from, or leaves to, other units; '' for none."""
        gained = moved_locations(self._old, unit, old, unit.operators)
        lost = moved_locations(self._new, old, unit, old.operators)
        said = [f"it takes over {', '.join(gained)}"] if gained else []
        said += [f"it leaves {', '.join(lost)} to others"] if lost else []
        return "; ".join(said)

    # ------------------------------------------------------------ locations

    def _locations(self, unit: Unit, operators: Iterable[str]) -> tuple[str, ...]:
        """Return the locations of a unit, and those that end and leave it their state of operators."""
        return *unit.locations, *self._heirs.left_to(unit, operators)

    def _former(self, unit: Unit, operators: Iterable[str]) -> tuple[Unit, ...]:
        """Return the running units of the locations of which a unit takes operators over."""
        return self._old.serving(self._locations(unit, operators))

    def _takers(self, operator: str, location: str) -> tuple[Unit, ...]:
        """Return the units of the wanted plan that may take over an operator's rows of a location."""
        return *self._new.serving((location,)), *self._heirs.of(operator, location)

    # ------------------------------------------------------------ state

    def _share(self, unit: Unit, kept: KeptState) -> OperatorTransfer | None:
        if self._given_up(unit, kept.operator):
            return None
        found = {
            v: (k.number, k)
            for v in self._former(unit, (kept.operator,))
            if kept.operator in v.operators
            for k in kept_state(self._old.dataflow, v)
            if k.operator == kept.operator
        }
        if not found:
            return None
        for _, before in found.values():
            if why := state_difference((before,), (kept,)):
                raise _refused(unit, why)
        part = None
        if any(v.part is not None for v in (*found, unit)):
            same = {v: k for v, k in found.items() if v.part == unit.part}
            if len(same) == 1 and self._parts(unit, kept.operator) == {v.part for v in found}:
                found = same
            elif unit.part is not None:
                part = self._key_part(unit, kept.operator)
        divided = self._divided(unit, kept.operator, found)
        return OperatorTransfer(
            operator=kept.operator,
            number=kept.number,
            source_units=tuple(TransferSource(unit=v.id, number=n) for v, (n, _) in found.items()),
            by=self._location_of(unit, kept.operator, divided) if divided else None,
            values=self._locations(unit, (kept.operator,)) if divided else (),
            part=part,
            tag=kept.tag,
        )

    def _divided(self, unit: Unit, operator: str, source_units: Iterable[Unit]) -> tuple[str, ...]:
        """Return the first few units of other locations that an operator's state is divided among."""
        found: dict[str, None] = {}
        for location in (x for d in source_units for x in d.locations):
            for other in self._takers(operator, location):
                if other is not unit and operator in other.operators and other.locations != unit.locations:
                    found[other.id] = None
            if len(found) >= _NAMED:
                break
        return tuple(found)

    def _parts(self, unit: Unit, operator: str) -> set[Part | None]:
        """Return the parts among which an operator's rows are shared out where a new unit takes them."""
        return {u.part for u in self._new.serving(unit.locations) if operator in u.operators}

    def _key_part(self, unit: Unit, operator: str) -> KeyPart:
        """Return the keys of an operator that a part of a unit takes; refuse types that are not stored unchanged."""
        assert unit.part is not None
        flow = self._new.dataflow
        column = (keys_by(flow, unit.operators, unit.part.column) or {}).get(operator)
        type_ = flow.types[flow[operator].inputs[0]].schema.column(column).type.text if column else ""
        if column is None or (isinstance(flow[operator], stateful.Scan) and type_ not in _IN_JSON):
            raise _refused(
                unit,
                f"the state of '{operator}' cannot be divided by '{column or unit.part.column}'",
                hint="keep the number of its hosts",
            )
        return KeyPart(column=column, type=type_, index=unit.part.index, count=unit.part.count)

    def _location_of(self, unit: Unit, operator: str, others: Iterable[str]) -> str:
        """Return the key column that holds the location of a row of state."""
        flow = self._new.dataflow
        one = flow[operator]
        keys = one.on if isinstance(one, stateful.Join) else getattr(one, "keys", ())
        located = {c.lower() for i in one.inputs for c in flow.types[i].located_by}
        column = next((k for k in keys if k.lower() in located), None)
        if column is None:
            raise _refused(
                unit,
                f"the state of '{operator}' would have to be divided with {listed(others)}, and no key holds "
                "its location",
                hint="add a location column to its keys",
            )
        return str(column)

    def _given_up(self, unit: Unit, operator: str) -> bool:
        holders = {v.id for v in self._former(unit, (operator,)) if operator in v.operators}
        return unit.id in self._reset or (bool(holders) and holders <= self._reset)

    # ------------------------------------------------------------ inputs

    def _reading(self, unit: Unit, input_: str) -> Reading:
        """Return the units that have read an input for the operators behind it in the new unit."""
        behind = {input_, *below_of(self._new.dataflow, input_, unit.operators)}
        itself = input_ in unit.operators
        source = self._new.dataflow[input_]
        once = itself and isinstance(source, Source) and not source.per_location  # whatever the locations are
        near = self._old.units if once else self._former(unit, unit.operators)
        # Where each unit has read the input: locations of a source, or channels.
        read: dict[str, list[str]] = {}
        if once:
            read = {old.id: [input_] for old in near if input_ in old.operators}
        elif itself:
            for location in unit.locations:
                for old in self._old.serving((location,)):
                    if input_ in old.operators:
                        read.setdefault(old.id, []).append(location)
        else:
            for channel in self._new.inputs(unit):
                before = self._before.get(channel.id) if channel.operator == input_ else None
                for reader in before.consumers if before is not None else ():
                    read.setdefault(reader, []).append(channel.id)
        readers = [
            v
            for v in near
            if v.id in read and (behind & set(v.operators) or (not itself and self._passes_on(v, input_, unit)))
        ]
        if any(v.part == unit.part for v in readers):
            readers = [v for v in readers if v.part == unit.part]
        places = [place for v in readers for place in read[v.id]]
        level = len(places) > len(set(places))
        if level and itself:
            raise _refused(unit, f"'{input_}' is read by {listed(v.id for v in readers)}, each up to another position")
        away = [v.zone for v in readers if v.zone != unit.zone]
        if away and itself and isinstance(self._new.dataflow[input_], BridgedSource):
            raise _refused(unit, f"unread records of '{input_}' are on the disk of zone {away[0]}")
        return Reading(operator=input_, source_units=tuple(v.id for v in readers), level=level)

    def _channels_read(self, unit: Unit) -> Iterable[str]:
        """Return the operators whose channels a unit reads."""
        return dict.fromkeys(c.operator for c in self._new.inputs(unit))

    def _passes_on(self, old: Unit, input_: str, unit: Unit) -> bool:
        """Return whether a running unit reads a stream no longer, and a new unit does, for the same operators.

        So it is where a unit comes, or goes, between a stream and its reader.
        """
        if input_ not in self._read_by(old):
            return False
        heir = next((u for u in self._new.units if u.id == old.id), None)
        if heir is not None and (heir == unit or input_ in self._channels_read(heir)):
            return False
        served = _served(self._old.dataflow, input_, old.operators)
        return not served.isdisjoint(_served(self._new.dataflow, input_, unit.operators))

    def _unread(self, unit: Unit, reading: Reading) -> list[Channel]:
        """Return the channels of an input that none of its source units has read."""
        source_units, inputs = set(reading.source_units), self._new.inputs(unit)

        def is_read(channel: Channel) -> bool:
            before = self._before.get(channel.id)
            return before is not None and not source_units.isdisjoint(before.consumers)

        return [c for c in inputs if c.operator == reading.operator and not is_read(c)]

    def _opened(self, reading: Reading, unread: Iterable[Channel], source_units: Iterable[str]) -> Reading:
        """Return how event time may continue over an input that is new, or has new channels."""
        if not reading.source_units:
            return replace(reading, prompt=self._is_prompt(reading.operator, source_units))
        writers = [self._new.unit(c.producer) for c in unread if c.id not in self._before]
        known = set(source_units)
        near = [[v.id for v in self._old.serving(w.locations) if v.id in known] for w in writers]
        prompt = bool(near) and all(self._is_prompt(reading.operator, ds) for ds in near)
        return replace(reading, joined=bool(near), prompt=prompt)

    def _is_prompt(self, input_: str, source_units: Iterable[str]) -> bool:
        """Return whether source units computed all operators up to an input, without holding rows back."""
        flow, units = self._new.dataflow, [self._old.unit(d) for d in source_units]
        inside = {o for unit in units for o in unit.operators}
        read = {operator for unit in units for operator in self._read_by(unit)}
        todo = [input_]
        while todo:
            if (id_ := todo.pop()) in read:
                continue
            if id_ not in inside or (flow[id_].stateful and not isinstance(flow[id_], stateful.Dedup)):
                return False
            todo += flow[id_].inputs
        return True

    def _read_by(self, unit: Unit) -> frozenset[str]:
        """Return the operators whose channels a running unit reads."""
        if unit.id not in self._reads:
            self._reads[unit.id] = frozenset(c.operator for c in self._old.inputs(unit))
        return self._reads[unit.id]

    def _at_work(self, unit: Unit, reading: Reading, unread: Iterable[Channel]) -> set[str]:
        """Return the units that did this unit's work on channels that none of its source units has read.

        They have processed all rows of a channel that others read already. A new channel is empty; but where it
        joins others, event time is as far as these units had it for its locations.
        """
        behind = below_of(self._new.dataflow, reading.operator, unit.operators)
        found: set[str] = set()
        for channel in unread:
            writer = self._new.unit(channel.producer)
            near = [v for v in self._old.serving(writer.locations) if behind & set(v.operators)]
            if channel.id in self._before:
                found |= {v.id for v in near if reading.operator in v.operators}
            elif reading.source_units:
                found |= {v.id for v in near}
        return found


def _served(flow: Graph, input_: str, inside: Iterable[str]) -> set[str]:
    """Return the operators of a unit behind one of its inputs, and all behind them."""
    own = below_of(flow, input_, frozenset(inside))
    return own.union(*(below_of(flow, id_, frozenset(flow.order)) for id_ in own))


def beginning(running: DeploymentPlan, wanted: DeploymentPlan) -> frozenset[str]:
    """Return the operators that start at the current end of the stream, without earlier state.

    In a pooled deployment, the new operators.
    """
    if not wanted.pooled:
        return frozenset()
    return frozenset(i for i in wanted.dataflow.order if i not in running.dataflow)


def moved_locations(plan: DeploymentPlan, unit: Unit, other: Unit, operators: Iterable[str]) -> tuple[str, ...]:
    """Return the locations of ``unit`` that ``other`` does not have: in ``plan``, other units run some of
    ``operators`` for them."""
    if unit.locations == other.locations:
        return ()
    inside, had = set(operators), set(other.locations)

    def moved(location: str) -> bool:
        near = plan.serving((location,))
        return any(v.id != unit.id and not inside.isdisjoint(v.operators) for v in near)

    return tuple(x for x in unit.locations if x not in had and moved(x))


def joined(running: DeploymentPlan, old: Channel, wanted: DeploymentPlan, new: Channel) -> bool:
    """Return whether a location is added to a channel whose event time may be ahead of it by now."""
    units = wanted.unit(new.producer), running.unit(old.producer)
    return bool(moved_locations(running, *units, (new.operator,)))


def _refused(unit: Unit, what: str, *, hint: str = "keep the operators unchanged") -> DeploymentError:
    return DeploymentError(
        f"it cannot take over the state of other units: {what}",
        where=f"unit {unit.id}",
        hint=f"{hint}; or start it without state, with --reset-state {unit.id}",
    )
