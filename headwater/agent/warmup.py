"""Warm up a unit: run it once on a sample, beside the running units, before any of them stops.

A query's first run in a Spark is slow because of its code, not its state: code is generated, compiled and loaded, and
Python workers are started. A warm-up runs the unit's own plan on a sample of its input, in the Spark where it is to
run; its output is discarded. It also shows whether the plan works.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.agent.units import Units
from headwater.channels.filelog import FileLog
from headwater.core.errors import HeadwaterError
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.dataflow.operators import Operator
from headwater.dataflow.sinks import MemorySink, Sink
from headwater.dataflow.sources import BridgedSource, FileSource, RateSource, SensorSource
from headwater.dataflow.tablesources import DeltaSource, IcebergSource
from headwater.disk.layout import Layout, full_path
from headwater.plan.content import source_locations
from headwater.plan.model import Unit
from headwater.plan.spec import UnitSpec

if TYPE_CHECKING:
    from headwater.channels.log import Log

_LOG = logging.getLogger(__name__)
_ROWS = 100  # rows of each input
_LINE_BYTES = 2**16  # bytes of a file that are searched for lines
_SECONDS = 60.0  # seconds after which a warm-up ends
_SMALL = 4 * 2**20  # bytes of state up to which windows are closed


def warm_up(units: Units, spec: UnitSpec, dress: Callable[[Path], int] | None = None) -> None:
    """Run a unit on some rows of its inputs, to their end; raise its errors.

    With ``dress``, which makes a checkpoint from other units' state and returns its size in bytes, it continues from
    that. Nothing is repeated that this Spark has run before. A warm-up of an earlier caller is waited for. Where
    batches are rare, one batch shows that the plan works, and windows are not closed; a plan of operators that this
    Spark has run in other units is only checked.
    """
    with units.warm_ups[spec.unit.checkpoint]:
        _warm_up(units, spec, dress)


def _warm_up(units: Units, spec: UnitSpec, dress: Callable[[Path], int] | None) -> None:
    unit = spec.unit
    place = units.layout.root / "warm_ups" / unit.checkpoint
    shutil.rmtree(place, ignore_errors=True)
    stage = _staged(spec, place)
    at_once = replace(units.settings, trigger="0 seconds")
    stand_in = Units(Layout(place), units.endpoint, at_once, share=True, receives=False)
    try:
        kept = dress(stand_in.layout.checkpoint(unit)) if dress is not None else 0
        rare = units.settings.rare_batches
        if units.run_history.knows(unit) or (rare and units.has_run_operators(spec)):
            return
        # The windows of a large state are not closed: that takes long and shows nothing new.
        to_the_end = kept <= _SMALL and not rare
        _lay_out(units, stand_in, spec, stage, end=to_the_end)
        stand_in.start(stage, batches="once" if rare else "on_trigger")
        try:
            _play(stand_in, unit)
        finally:
            stand_in.stop(unit.id)
        units.run_history.add(spec)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _play(stand_in: Units, unit: Unit) -> None:
    enough = threading.Event()
    timer = threading.Timer(_SECONDS, enough.set)
    timer.start()
    try:
        stand_in.settle(unit.id, enough)
    finally:
        timer.cancel()
    running = stand_in[unit.id].running
    error = running.failure(unit.id) if running is not None else None
    if error is not None:
        raise error


def _staged(spec: UnitSpec, place: Path) -> UnitSpec:
    """Return a unit's spec with sample files to read, no sinks, and local channels."""

    def stand_in(operator: Operator) -> Operator:
        match operator:
            case FileSource():
                where = "{location}" if operator.per_location else "all"
                return replace(operator, path=str(place / "in" / operator.id / where))
            case SensorSource():
                return replace(operator, rows=1)  # rows come at the sensor's pace
            case RateSource() | DeltaSource() | IcebergSource():  # the source never ends, or has too many rows
                path, rows = str(place / "in" / operator.id / "all"), operator.schema().text
                return FileSource(
                    id=operator.id,
                    path=path,
                    format="json",
                    schema_text=rows,
                    location_as=operator.location_as,
                )
            case KafkaSource():  # an empty file with its columns: the topic is not read for this
                columns = [c.text for c in operator.output(()).schema if c.name != operator.location_as]
                return FileSource(
                    id=operator.id,
                    path=str(place / "in" / operator.id / ("{location}" if operator.per_location else "all")),
                    format="json",
                    schema_text=", ".join(columns),
                    location_as=operator.location_as,
                )
            case Sink():
                return MemorySink(id=operator.id, inputs=operator.inputs)
        return operator

    return replace(
        spec,
        deployment=f"warmup.{spec.deployment}"[:100],
        flow=replace(spec.flow, operators=tuple(map(stand_in, spec.flow.operators))),
        inputs=tuple(replace(c, broker=None) for c in spec.inputs),
        outputs=tuple(replace(c, broker=None) for c in spec.outputs),
        # Without a broker a channel has another id.
        readers={replace(c, broker=None).id: spec.readers[c.id] for c in (*spec.inputs, *spec.outputs)},
    )


def _lay_out(units: Units, stand_in: Units, spec: UnitSpec, stage: UnitSpec, *, end: bool) -> None:
    """Write a sample of an input where the changed spec reads it; ``end``: with the end of time, which closes windows.

    The end comes with the rows: one batch reads both, and the next one closes the windows.
    """
    stand_in.prepare(stage)
    if end:
        stand_in.end_time(stage, "first")
    for staged, channel in zip(stage.inputs, spec.inputs, strict=True):
        log = stand_in.channels.log(stage, staged)
        log.create()
        for rows, frontier in _newest(partial(units.channels.log, spec, channel), channel.id):
            log.append(rows, epoch=1, batch=0, frontier=frontier)
        if end:
            log.end(1)
    for id_, locations in source_locations(spec.flow, spec.unit).items():
        source, staged_source = spec.flow[id_], stage.flow[id_]
        if isinstance(source, FileSource) and isinstance(staged_source, FileSource):
            for location in locations:
                _some_lines(source, staged_source, location)
        elif isinstance(source, KafkaSource) and isinstance(staged_source, FileSource):
            for location in locations:
                _nothing(staged_source, location)
        elif isinstance(source, RateSource) and isinstance(staged_source, FileSource):
            _made_up(staged_source)
        elif isinstance(source, DeltaSource | IcebergSource) and isinstance(staged_source, FileSource):
            Path(full_path(staged_source.path)).mkdir(parents=True, exist_ok=True)
        elif isinstance(source, BridgedSource):
            for location in locations:
                there, here = (u.layout.spool(id_, spec.tags[id_], location) / "log" for u in (units, stand_in))
                FileLog(here).create()
                for rows, _ in _newest(partial(FileLog, there), id_):
                    FileLog(here).append(rows, epoch=1, batch=0)


def _made_up(source: FileSource) -> None:
    """Write two rows like those of Spark's rate source."""
    place = Path(full_path(source.path))
    place.mkdir(parents=True, exist_ok=True)
    rows = ({"timestamp": f"2000-01-01T00:00:0{n}Z", "value": n} for n in range(2))
    (place / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _nothing(source: FileSource, location: str) -> None:
    """Write an empty file."""
    place = Path(full_path(source.path.replace("{location}", location)))
    place.mkdir(parents=True, exist_ok=True)
    (place / "none.json").touch()


def _newest(open_: Callable[[], Log], name: str) -> Iterator[tuple[pa.Table, int | None]]:
    """Return some of the newest rows of a log, if any."""
    try:
        log = open_()
        newest = log.tail()
        if newest is None or not newest.rows:
            return
        batches = [b.slice(0, _ROWS) for b in islice(log.read(newest.seq, newest.seq + 1), 1)]
    except (HeadwaterError, OSError) as error:
        _LOG.info("no sample of %s for the warm-up: %s", name, error)
        return
    if batches:
        yield pa.Table.from_batches(batches), newest.high


def _some_lines(source: FileSource, staged: FileSource, location: str) -> None:
    """Copy the beginning of a source's newest file, or make an empty file."""
    place = Path(full_path(staged.path.replace("{location}", location)))
    place.mkdir(parents=True, exist_ok=True)
    newest = _newest_file(full_path(source.path.replace("{location}", location)))
    target = place / (newest.name if newest else "none")
    if source.format == "parquet":
        if newest is not None and newest.stat().st_size <= _LINE_BYTES:
            shutil.copyfile(newest, target)
        return
    text = b""
    if newest is not None and newest.suffix in ("", f".{source.format}", ".txt", ".jsonl"):
        with newest.open("rb") as file:
            text = file.read(_LINE_BYTES)
    whole = text.splitlines(keepends=True)[: _ROWS + 1]
    target.write_bytes(b"".join(line for line in whole if line.endswith(b"\n")))


def _newest_file(path: str) -> Path | None:
    """Return the newest file of a local directory; only the last part may be a pattern."""
    if "://" in path:
        return None
    directory = Path(path)
    pattern = "*"
    if any(c in directory.name for c in "*?[{"):
        directory, pattern = directory.parent, directory.name
    if not directory.is_dir():
        return None
    deadline = time.monotonic() + 1.0  # a directory may hold a million files
    found: tuple[float, Path] | None = None
    for file in directory.glob(pattern):
        if file.name.startswith((".", "_")) or not file.is_file():
            continue
        written = file.stat().st_mtime
        if found is None or written > found[0]:
            found = (written, file)
        if time.monotonic() > deadline:
            break
    return found[1] if found else None
