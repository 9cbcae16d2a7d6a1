"""Spark streaming source over several channels of any kind, one per upstream zone.

Options of ``headwater_channel``: ``members`` (JSON file, see Members), ``reader`` (id under
which every log keeps unread entries), ``schema`` (DDL), ``punctuate``, ``max_rows_per_batch``
(soft: every log with new entries gives at least one), ``parallelism`` (maximum tasks per batch),
``on_corrupt``, ``at_once``, ``again``, ``lifted`` (idle channels may be lifted), ``checkpoint`` (synced before the
entries of a committed batch are given up; without it a power cut may lose rows), ``pace`` (the file of ``disk.pace``).

With ``at_once`` a query runs a batch when it starts even where there is nothing to read: its operators
emit pending results, and the first rows find it warm. One more entry in the offset marks that batch. With ``again``
it also runs such a batch when there has been nothing to read for a second: the batch carries the watermark that the
last rows led to.

An offset is ``{writer: position}``, with the lifts of idle writers (see ``lifts``). A batch's rows and its
punctuation depend on its start and end offset alone, so a replay gives the same rows. For that reason the
punctuation uses the writers named in ``end`` and not the current members.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headwater.channels.arrival import arrival_of, record_arrival
from headwater.channels.base import AGAIN_AFTER, BEGUN, Offset, OnCorrupt
from headwater.channels.batchpace import BatchPace
from headwater.channels.catchupinput import CatchUpInput
from headwater.channels.entry import Entry
from headwater.channels.lifts import lifts_in, offset_of, raised, read_lifts
from headwater.channels.log import Log
from headwater.channels.open import LogSpec, open_log
from headwater.channels.segments import Segment, conform, normal_schema
from headwater.core.errors import ChannelError
from headwater.disk.syncing import sync_checkpoint

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SOURCE_FORMAT = "headwater_channel"
WATERMARK = "__wm"
_SMALL = 50_000  # rows below which a second Python task costs more than it brings


class ChannelSource(DataSource):
    """Read the logs listed in a members file."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return SOURCE_FORMAT

    def schema(self) -> str:
        """Return the logs' columns, and the watermark column when punctuating."""
        ddl = self._option("schema")
        return f"{ddl}, {WATERMARK} timestamp" if self._punctuate() else ddl

    def streamReader(self, schema: StructType) -> ChannelReader:
        """Make the reader of one query."""
        limit = self.options.get("max_rows_per_batch")
        on_corrupt: OnCorrupt = "stop" if self.options.get("on_corrupt") == "stop" else "quarantine"
        return ChannelReader(
            Members(self._option("members"), self._option("reader"), on_corrupt),
            schema,
            punctuate=self._punctuate(),
            max_rows=int(limit) if limit else None,
            parallelism=max(1, int(self.options.get("parallelism") or 1)),
            at_once=self._is_set("at_once"),
            again=self._is_set("again"),
            lifted=self._is_set("lifted"),
            checkpoint=Path(checkpoint) if (checkpoint := self.options.get("checkpoint")) else None,
            catch_up=CatchUpInput.of(described) if (described := self.options.get("catch_up")) else None,
            pace=BatchPace(Path(pace)) if (pace := self.options.get("pace")) else None,
        )

    def _punctuate(self) -> bool:
        return self._is_set("punctuate")

    def _is_set(self, name: str) -> bool:
        return str(self.options.get(name, "false")).lower() == "true"

    def _option(self, name: str) -> str:
        value = self.options.get(name)
        if not value:
            raise ChannelError(
                f"option {name!r} is missing",
                where=f"source {SOURCE_FORMAT}",
                hint=f'add .option("{name}", ...)',
            )
        return str(value)


@dataclass(frozen=True)
class LogSegment:
    """One segment to read: its log, its entry's number, and its expected content.

    ``log`` is the log's description as JSON: tasks open it themselves.
    """

    log: str
    seq: int
    segment: Segment


class LogPartition(InputPartition):
    """The segments one task reads, in order, and the punctuation if this task emits it."""

    def __init__(self, segments: tuple[LogSegment, ...], watermark: int | None = None) -> None:
        self.segments = segments
        self.watermark = watermark


class Members:
    """The logs of one source, read from a JSON file that may be replaced at any time.

    ``{"writers": {"E1": "/path"}, "retired": {"E0": "/path"}}``, with a log's description
    (``channels.open``) in place of a path where it is no filelog. A log that does not exist yet counts
    as empty and holds the punctuation back. A writer removed from ``writers`` is read to
    its end and then left out of the offsets; keep it under ``retired`` until then, or a query
    restarted in between cannot find the entries it has planned to read.
    """

    def __init__(self, file: str, reader: str, on_corrupt: OnCorrupt) -> None:
        self.file = file
        self.reader = reader
        self.on_corrupt = on_corrupt
        self._stamp: tuple[int, int, int] | None = None
        self._active: tuple[str, ...] = ()
        self._specs: dict[str, str] = {}
        self._logs: dict[str, Log] = {}

    def active(self) -> tuple[str, ...]:
        """Return the writers listed now, in order of their names."""
        try:
            stat = os.stat(self.file)
            stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if stamp != self._stamp:
                self._load()
                self._stamp = stamp
        except FileNotFoundError:
            raise ChannelError("no members file", where=self.file, hint="write it before starting the query") from None
        return self._active

    def retired(self) -> tuple[str, ...]:
        """Return the retired writers in whose logs the reader is registered."""
        active = set(self.active())
        others = sorted(self._logs.keys() - active)
        return tuple(writer for writer in others if self.reader in self._logs[writer].readers())

    def log(self, writer: str) -> Log | None:
        """Return a writer's log; None when the members file does not name it (any more)."""
        self.active()
        return self._logs.get(writer)

    def look_s(self) -> float:
        """Return the least seconds between two looks for new entries."""
        return max((self._logs[writer].look_s for writer in self.active()), default=0.0)

    def places(self, also: Iterable[str]) -> list[Path] | None:
        """Return the directories in which new entries appear; None where some do elsewhere.

        ``also``: writers that were removed and are still read, beside those listed now.
        """
        found = []
        for writer in {*self.active(), *also}:
            if (log := self._logs.get(writer)) is None or log.place is None:
                return None
            found.append(log.place)
        return found

    def spec(self, writer: str) -> str:
        """Return the description of a writer's log, as JSON."""
        return self._specs[writer]

    def _load(self) -> None:
        try:
            with open(self.file, encoding="utf-8") as source:
                content = json.load(source)
            writers: dict[str, LogSpec] = dict(content["writers"])
            retired: dict[str, LogSpec] = dict(content.get("retired", {}))
        except (ValueError, KeyError, TypeError) as error:
            raise ChannelError(
                f"not a members file: {error}",
                where=self.file,
                hint='write {"writers": {"<zone>": "<log directory>"}}, replacing the file in one step',
            ) from None
        # Logs once seen stay known to this process, so a removed one can be read to its end.
        for writer, spec in {**retired, **writers}.items():
            text = json.dumps(spec, sort_keys=True)
            if self._specs.get(writer) != text:
                log = self._logs[writer] = open_log(spec, on_corrupt=self.on_corrupt)
                self._specs[writer] = text
                if writer in writers:
                    log.register(self.reader)
        self._active = tuple(sorted(writers))


class ChannelReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plan batches over all members and read them in tasks."""

    def __init__(
        self,
        members: Members,
        schema: StructType,
        *,
        punctuate: bool,
        max_rows: int | None,
        parallelism: int,
        at_once: bool = False,
        again: bool = False,
        lifted: bool = False,
        checkpoint: Path | None = None,
        catch_up: CatchUpInput | None = None,
        pace: BatchPace | None = None,
    ) -> None:
        self._members = members
        self._schema = schema
        self._punctuate = punctuate
        self._max_rows = max_rows
        self._parallelism = parallelism
        self._target: Offset | None = None
        self._begun = not at_once
        self._begins = at_once and punctuate
        self._again = again
        self._lifted = lifted
        self._checkpoint = checkpoint
        self._catch_up = catch_up
        self._pace = pace
        self._moved = -math.inf

    # -- planning (one process for as long as the query runs) ----------------------------------

    def initialOffset(self) -> Offset:
        """Return the reader's registered position in every member, else the member's earliest position.

        Removed members in which it is registered count too: their rows wait for a query that never ran.
        """
        return {writer: self._first(writer) for writer in (*self._members.active(), *self._members.retired())}

    def _first(self, writer: str) -> int:
        log = self._log(writer)
        return max(log.earliest(), log.readers().get(self._members.reader, 0))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the read limit set by the options."""
        return ReadMaxRows(self._max_rows) if self._max_rows else ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end offset of the next batch; wait for its begin, or for that of a batch to repeat."""
        if self._catch_up is not None and (repeated := self._catch_up.next_end(self._has_come)) is not None:
            return repeated
        if self._pace is None:
            return self._next_end(start, limit)
        return self._pace.next_end(
            start,
            lambda: self._next_end(start, limit),
            self._members.look_s(),
            lambda: self._members.places(_read(start)),
        )

    def _next_end(self, start: Offset, limit: ReadLimit) -> Offset:
        at = _read(start)
        newest = self._newest(at)
        if self._target is not None:
            newest = {w: min(to, self._target[w]) for w, to in newest.items() if w in self._target}
        if isinstance(limit, ReadMaxRows):
            newest = self._limited(at, newest, limit.max_rows)
        lifts = self._lifts(start, newest)
        begins, self._begins = self._begins and self._watermark(start) is not None, False
        if newest != at or lifts != lifts_in(start):
            self._begun, self._moved = not self._again, time.monotonic()
            begun = {BEGUN: start.get(BEGUN, 0) + 1} if begins else {}
            return {**newest, **offset_of(lifts), **begun}
        if self._begun or time.monotonic() - self._moved < AGAIN_AFTER:
            return start
        self._begun = True
        return {**start, BEGUN: start.get(BEGUN, 0) + 1}

    def _has_come(self, end: Offset) -> bool:
        """Return whether all entries up to an offset are here: those of other zones are on their way."""
        return all(self._log(writer).latest() >= position for writer, position in _read(end).items())

    def reportLatestOffset(self) -> Offset:
        """Return the members' newest positions, for the lag in Spark's progress."""
        return {writer: self._log(writer).latest() for writer in self._members.active()}

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end offset of an "available now" run."""
        self._target = self.reportLatestOffset()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Share the entries between two offsets among tasks."""
        planned = end
        watermark = self._new_watermark(start, end) if self._punctuate else None
        start, end = _read(start), _read(end)
        entries = {writer: self._entries(writer, start, to) for writer, to in sorted(end.items())}
        if start != end:
            every = itertools.chain.from_iterable(entries.values())
            record_arrival(Path(self._members.file), planned, arrival_of(every))
        segments = [self._segments(writer, own) for writer, own in entries.items()]
        groups = share([p for p in segments if p], self._parallelism)
        if watermark is not None and not groups:
            groups = [()]
        return [LogPartition(g, watermark if i == 0 else None) for i, g in enumerate(groups)]

    def commit(self, end: Offset) -> None:
        """Let every log reclaim the entries before ``end``, once the checkpoint is durable."""
        if self._checkpoint is not None:
            sync_checkpoint(self._checkpoint)
        for writer, position in _read(end).items():
            log = self._members.log(writer)
            if log is not None and self._members.reader in log.readers():
                log.advance(self._members.reader, position)

    def _newest(self, start: Offset) -> Offset:
        newest = self.reportLatestOffset()
        for writer, position in start.items():
            if writer in newest:
                self._check_reach(writer, position, newest[writer])
                continue
            log = self._members.log(writer)
            if log is not None and position < log.latest():
                newest[writer] = log.latest()  # removed from the members: read the rest
        return newest

    def _lifts(self, start: Offset, newest: Offset) -> dict[str, int]:
        """Return the lifts of the next batch, for writers that it reads."""
        if not self._lifted:
            return {}
        lifts = raised(lifts_in(start), read_lifts(Path(self._members.file)))
        return {writer: lift for writer, lift in lifts.items() if writer in newest}

    def _check_reach(self, writer: str, position: int, newest: int) -> None:
        if position > newest:
            raise ChannelError(
                f"the query has read {position} entries of {writer}, but only {newest} are there",
                where=self._log(writer).where,
                hint="the log was emptied or replaced: restore it, or start the query from a new checkpoint",
            )

    def _limited(self, start: Offset, newest: Offset, max_rows: int) -> Offset:
        """Share a row limit fairly: small logs are read whole, the rest of the limit is split among the others."""
        froms = {w: start.get(w, self._log(w).earliest()) for w in newest}
        waiting = {w: self._rows(w, froms[w], to) for w, to in newest.items()}
        limited, left = dict(newest), max_rows
        for count, writer in enumerate(sorted(waiting, key=lambda w: (waiting[w], w))):
            fair = left // (len(waiting) - count)
            if waiting[writer] > fair:
                limited[writer] = self._cut(writer, froms[writer], newest[writer], fair)
            left = max(0, left - self._rows(writer, froms[writer], limited[writer]))
        return limited

    def _cut(self, writer: str, start: int, end: int, rows: int) -> int:
        """Return the greatest position with at most ``rows`` rows since start, at least one entry on."""
        low, high = start + 1, end
        while low < high:
            middle = (low + high + 1) // 2
            if self._rows(writer, start, middle) <= rows:
                low = middle
            else:
                high = middle - 1
        return low

    def _rows(self, writer: str, start: int, end: int) -> int:
        log = self._log(writer)
        return log.totals(end)[0] - log.totals(start)[0] if end > start else 0

    def _entries(self, writer: str, start: Offset, end: int) -> tuple[Entry, ...]:
        log = self._members.log(writer)
        if log is None:
            if start.get(writer, 0) == end:
                return ()
            raise ChannelError(
                f"the batch reads entries of {writer} up to {end}, but the members file does not name its log",
                where=self._members.file,
                hint='list it under "retired" until it is read to its end',
            )
        first = start.get(writer, self._first(writer))  # entries() begins at the earliest that is kept
        return tuple(log.entries(first, end))

    def _segments(self, writer: str, entries: Sequence[Entry]) -> tuple[LogSegment, ...]:
        if not entries:
            return ()
        spec = self._members.spec(writer)
        return tuple(LogSegment(spec, e.seq, s) for e in entries for s in e.segments)

    def _new_watermark(self, start: Offset, end: Offset) -> int | None:
        """Return the watermark of a batch if it is new to Spark, which forgets those of single reads with a query."""
        new, old = self._watermark(end), None
        if end.get(BEGUN, 0) <= start.get(BEGUN, 0):
            with contextlib.suppress(ChannelError):  # a log that has been read to its end is deleted at any time
                old = self._watermark(start)
        return new if new is not None and (old is None or new > old) else None

    def _watermark(self, offset: Offset) -> int | None:
        """Return the least frontier of all writers in an offset, lifts included; None unless all have one."""
        least: int | None = None
        lifts = lifts_in(offset)
        for writer, position in _read(offset).items():
            log = self._members.log(writer)
            frontier = log.frontier(position) if log is not None else None
            known = [time for time in (frontier, lifts.get(writer)) if time is not None]
            if not known:
                return None
            least = max(known) if least is None else min(least, max(known))
        return least

    def _log(self, writer: str) -> Log:
        log = self._members.log(writer)
        assert log is not None, writer
        return log

    # -- reading (in tasks) --------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's rows in exactly the declared schema."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, LogPartition)
        declared: pa.Schema = to_arrow_schema(self._schema, timezone="UTC")
        own = pa.schema([f for f in declared if f.name != WATERMARK]) if self._punctuate else declared
        for spec, segments in itertools.groupby(partition.segments, key=lambda one: one.log):
            log = open_log(json.loads(spec), on_corrupt=self._members.on_corrupt)
            for batch in log.read_segments((p.seq, p.segment) for p in segments):
                yield self._fit(batch, own, declared, log.where)
        if partition.watermark is not None:
            row: dict[str, Any] = dict.fromkeys(declared.names)
            arrays = [pa.array([row[f.name]], f.type) for f in declared if f.name != WATERMARK]
            mark = pa.array([partition.watermark], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
            yield pa.RecordBatch.from_arrays([*arrays, mark], schema=declared)

    def _fit(self, batch: pa.RecordBatch, own: pa.Schema, declared: pa.Schema, where: str) -> pa.RecordBatch:
        import pyarrow as pa

        if batch.schema.names != own.names:
            raise ChannelError(
                f"holds columns {batch.schema.names}, but the source declares {own.names}",
                where=where,
                hint="declare the channel's own schema, in its order",
            )
        # Arrow casts a long to a timestamp without an error; only zone and nullability may differ.
        if not normal_schema(batch.schema).equals(normal_schema(own)):
            raise ChannelError(
                f"has {_types(batch.schema)}, but the source declares {_types(own)}",
                where=where,
                hint="declare the channel's own schema",
            )
        batch = conform(batch, own)
        if not self._punctuate:
            return batch
        none = pa.nulls(batch.num_rows, declared.field(WATERMARK).type)
        return pa.RecordBatch.from_arrays([*batch.columns, none], schema=declared)


def _read(offset: Offset) -> Offset:
    """Return an offset's positions, without the mark of a start and without lifts."""
    others = {BEGUN, *offset_of(lifts_in(offset))}
    return {writer: position for writer, position in offset.items() if writer not in others}


def _types(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def share(segments: Sequence[tuple[LogSegment, ...]], parallelism: int) -> list[tuple[LogSegment, ...]]:
    """Spread each writer's segments over at most ``parallelism`` groups, balanced by rows.

    A writer stays whole and in order unless it alone exceeds a fair share; then it is cut
    into runs. Few rows make one group: a Python task costs 10 ms and more.
    """
    if not segments:
        return []
    total = sum(p.segment.rows for run in segments for p in run)
    count = min(parallelism, max(1, total // _SMALL))
    if count == 1:
        return [tuple(p for run in segments for p in run)]
    fair = -(-total // count)
    runs = [part for run in segments for part in _cut_run(run, fair)]
    groups: list[list[LogSegment]] = [[] for _ in range(count)]
    sizes = [0] * count
    for run in sorted(runs, key=_rows_of, reverse=True):  # the largest first; sorting is stable
        least = sizes.index(min(sizes))
        groups[least].extend(run)
        sizes[least] += _rows_of(run)
    return [tuple(group) for group in groups if group]


def _rows_of(run: Sequence[LogSegment]) -> int:
    return sum(p.segment.rows for p in run)


def _cut_run(run: tuple[LogSegment, ...], fair: int) -> Iterator[tuple[LogSegment, ...]]:
    """Cut one writer's segments into runs of about ``fair`` rows, in order."""
    part: list[LogSegment] = []
    rows = 0
    for one in run:
        if part and rows + one.segment.rows > fair:
            yield tuple(part)
            part, rows = [], 0
        part.append(one)
        rows += one.segment.rows
    yield tuple(part)
