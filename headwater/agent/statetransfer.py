"""Save a unit's state and load it into another unit: a node's side of a state transfer."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from headwater.agent import catchup, memorysinks
from headwater.agent.units import Units
from headwater.core.errors import RuntimeFailure, Unavailable
from headwater.dataflow.sources import Source
from headwater.disk.checkpoint import newest_batch
from headwater.disk.durable import read_note, write_atomically
from headwater.disk.layout import Layout
from headwater.plan.content import own_sources, reads
from headwater.plan.model import Unit
from headwater.plan.spec import UnitSpec
from headwater.plan.state import kept_state
from headwater.plan.transfer import StateTransfer
from headwater.query.names import further_reads
from headwater.state.assembly import InputPosition, assemble, place_of
from headwater.state.empty import empty_state
from headwater.state.savedstate import Saved, StateStore, describe, operators, put_batches, put_early

_RECEIPT = "saved.json"
_ARRIVAL = 2.0  # seconds to wait for entries that are on their way
_LOOK = 0.02


def preflight(units: Units, spec: UnitSpec, store: StateStore, *, batches_only: bool = False) -> None:
    """Raise the reason why a unit's state cannot be saved; save a first copy while it runs.

    RocksDB's files do not change, so after the stop only new files are saved. ``batches_only``: where a copy is recent,
    note only the batches that the unit has planned since.
    """
    name, checkpoint = _stored(spec, spec.unit.checkpoint), units.layout.checkpoint(spec.unit)
    if batches_only and put_batches(checkpoint, name, store):
        return
    store.check()
    if left := sorted(units.channels.retired(spec.unit)):
        raise Unavailable(
            f"still reads {', '.join(left)}, which end", where=f"unit {spec.id}", hint="wait until it has"
        )
    kept = kept_state(spec.flow, spec.unit)
    if newest_batch(checkpoint / "commits") < 0:
        waiting = [c.id for c in spec.inputs if units.channels.log(spec, c).latest() > 0]
        if kept and (waiting or newest_batch(checkpoint / "offsets") >= 0):
            raise Unavailable("has not done its first batch", where=f"unit {spec.id}", hint="wait")
        found = {}
    else:
        found = operators(checkpoint)
    known = {k.number for k in kept}
    if found and set(found) != known:
        raise RuntimeFailure(
            f"keeps state in {len(found)} places, where {len(known)} are known",
            where=f"unit {spec.id}",
            hint="report this as a defect; nothing was changed",
        )
    _leave_receipt(units.layout, spec.unit, store, name)
    put_early(checkpoint, name, store)


def save(units: Units, spec: UnitSpec, store: StateStore, sinks: Sequence[str] = ()) -> tuple[Saved, int]:
    """Save a stopped unit's state and the rows of memory sinks; return its description, and the bytes sent now."""
    work = units.get(spec.id)
    if work is not None and work.running is not None and work.unit.checkpoint == spec.unit.checkpoint:
        raise RuntimeFailure("is to be saved while it runs", where=f"unit {spec.id}", hint="stop it first")
    ends = {c.id: units.channels.log(spec, c).latest() for c in spec.outputs}
    note = read_note(units.layout.state(spec.unit))
    saved, files = describe(
        units.layout.checkpoint(spec.unit),
        ends,
        rows_in=int(note.get("rows_in", 0)),
        late_rows=int(note.get("late_rows", 0)),
    )
    name = _stored(spec, spec.unit.checkpoint)
    _leave_receipt(units.layout, spec.unit, store, name)
    logs = {sink: memorysinks.files_of(units.layout, spec, sink) for sink in sinks if sink in spec.unit.outputs}
    saved = replace(saved, sinks={sink: tuple(found) for sink, found in logs.items()})
    sent = store.put(name, {**files, **{place: file for found in logs.values() for place, file in found.items()}})
    store.note(name, saved)
    return saved, sent


def _leave_receipt(layout: Layout, unit: Unit, store: StateStore, name: str) -> None:
    write_atomically(layout.state(unit).with_name(_RECEIPT), json.dumps({"store": store.uri, "name": name}))


def remove(layout: Layout, unit: Unit) -> None:
    """Delete a unit's saved state, if any."""
    receipt = read_note(layout.state(unit).with_name(_RECEIPT))
    if receipt:
        StateStore(str(receipt["store"])).remove(str(receipt["name"]))


def dress(
    units: Units, spec: UnitSpec, transfer: StateTransfer, names: Sequence[str], store: StateStore
) -> Callable[[Path], int] | None:
    """Return a function that makes a warm-up checkpoint from running units' state; None where nothing is saved.

    ``load`` does not fetch these files again.
    """
    names = [_stored(spec, name) if name else "" for name in names]
    if _begins_empty(spec, transfer) or not any(name and store.has_early(name) for name in names):
        return None
    store = store.keeping(_kept(units.layout, spec.unit))
    found = {
        source_unit: store.saved(name, early=True) if name and store.has_early(name) else Saved()
        for source_unit, name in zip(transfer.source_units, names, strict=True)
    }
    where = dict(zip(transfer.source_units, names, strict=True))
    blank = partial(_empty, units, spec)

    def make(checkpoint: Path) -> int:
        made = assemble(checkpoint, transfer, store, where, found, (), blank)
        return made.bytes if made else 0

    return make


def _kept(layout: Layout, unit: Unit) -> Path:
    return layout.state(unit).with_name("fetched")


def _empty(units: Units, spec: UnitSpec) -> Path:
    """Return the state of scans without rows, made once for the unit."""
    place = _empties(units.layout, spec.unit)
    return empty_state(units.endpoint.session(), place, spec.flow, spec.unit.operators)


def _empties(layout: Layout, unit: Unit) -> Path:
    return layout.state(unit).with_name("blank")


def catch_up(
    units: Units, spec: UnitSpec, transfer: StateTransfer, names: Sequence[str], store: StateStore
) -> int | None:
    """Let a unit repeat the batches of the one unit that it replaces, which runs; return how many are left.

    Return None where it does not catch up: its state is loaded when that unit has stopped.
    """
    (name,) = names
    source = _stored(spec, name)
    if not units.settings.catch_up or not name or not store.has_early(source):
        return None
    early = store.saved(source, early=True)
    if early.batch < 0:
        return None
    known = {transfer.source_units[0]: early}

    def begin() -> None:
        _assemble(units, spec, transfer, [source], store, known)

    return catchup.catch_up(units, spec, source, early, begin)


def load(units: Units, spec: UnitSpec, transfer: StateTransfer, names: Sequence[str], store: StateStore) -> bool:
    """Make a unit's checkpoint from saved states, and keep the unread entries for it.

    Return True for a unit that has caught up with the one that it replaces, and has it already. Raise Unavailable while
    the node lacks entries before the unit's first position.
    """
    names = [_stored(spec, name) if name else "" for name in names]
    found = {source_unit: _known(store, name) for source_unit, name in zip(transfer.source_units, names, strict=True)}
    memorysinks.take(
        units.layout, spec, transfer.sinks, store, dict(zip(transfer.source_units, names, strict=True)), found
    )
    if len(names) == 1 and catchup.take_over(units, spec, names[0], saved := found[transfer.source_units[0]]):
        _write_totals(units, spec, saved)
        _tidy(units, spec)
        return True
    summary = _assemble(units, spec, transfer, names, store, found)
    if summary is not None:
        _write_totals(units, spec, summary)
    _tidy(units, spec)
    return False


def _write_totals(units: Units, spec: UnitSpec, summary: Saved) -> None:
    totals = {"rows_in": summary.rows_in, "late_rows": summary.late_rows, "finished": False}
    write_atomically(units.layout.state(spec.unit), json.dumps(totals))


def _tidy(units: Units, spec: UnitSpec) -> None:
    for done in (_kept(units.layout, spec.unit), _empties(units.layout, spec.unit)):
        shutil.rmtree(done, ignore_errors=True)


def _assemble(
    units: Units,
    spec: UnitSpec,
    transfer: StateTransfer,
    names: Sequence[str],
    store: StateStore,
    found: Mapping[str, Saved],
) -> Saved | None:
    """Make a unit's checkpoint, and let it read on where its source units stood; None where it exists."""
    store = store.keeping(_kept(units.layout, spec.unit))
    places: list[InputPosition] = []
    at: dict[str, int] = {}
    sources = {o.id for o in spec.flow.operators if isinstance(o, Source)}
    times = reads(spec.flow, spec.unit)
    for reading in transfer.readings:
        if reading.operator in sources:
            # Once for each branch; and dead letters may be read apart in one of the units or in both.
            for name, further in further_reads(spec, reading.operator, times[reading.operator] + 1).items():
                places.append(InputPosition(name=name))
                places += [InputPosition(name=read, like=name) for read in further]
            continue
        wanted = [c.id for c in spec.inputs if c.operator == reading.operator]
        ((name, further),) = further_reads(spec, reading.operator, times[reading.operator]).items()
        positions = place_of((found[d] for d in reading.source_units), found.values(), name, wanted)
        places += [InputPosition(name=read, positions=positions) for read in (name, *further)]
        at |= positions
    for channel in spec.inputs:
        log = units.channels.log(spec, channel)
        log.create()
        for reader in spec.own_readers[channel.operator]:
            log.register(reader)
        deadline = time.monotonic() + _ARRIVAL
        while log.latest() < at[channel.id] and time.monotonic() < deadline:
            time.sleep(_LOOK)
        if log.latest() < at[channel.id]:
            raise Unavailable(
                f"entries of {channel.id} are still to arrive from {channel.node}",
                where=f"unit {spec.id}",
                hint="wait, or check the link",
            )
        for reader in spec.own_readers[channel.operator]:
            log.advance(reader, at[channel.id])
    if _begins_empty(spec, transfer):
        return None  # without a checkpoint, it begins at the positions of its readers
    where = dict(zip(transfer.source_units, names, strict=True))
    blank = partial(_empty, units, spec)
    return assemble(units.layout.checkpoint(spec.unit), transfer, store, where, found, places, blank)


def _begins_empty(spec: UnitSpec, transfer: StateTransfer) -> bool:
    """Return whether a unit has operators with state, and takes over positions in channels alone.

    Spark starts no query at a later batch without the state of its operators.
    """
    if transfer.shares or transfer.fresh or not kept_state(spec.flow, spec.unit):
        return False
    return not own_sources(spec.flow, spec.unit)


def _known(store: StateStore, name: str) -> Saved:
    """Return the description of a source's saved state; None where the source never ran."""
    return store.saved(name) if name else Saved()


def _stored(spec: UnitSpec, checkpoint: str) -> str:
    return f"{spec.deployment}/{checkpoint}"
