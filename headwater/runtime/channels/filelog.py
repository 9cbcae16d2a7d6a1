"""The embedded channel: a directory written by one unit instance, read by any number.

Layout of one log::

    schema.json          its Arrow schema, fixed by the first writer
    staging/             segments of running attempts, unfinished small files
    data/<id>.arrow      published segments
    log/<seq>            manifest entries (Journal); log.hint remembers the newest
    floor.json           first readable position and the totals before it
    readers/<id>.json    registered readers and their positions
    quarantine/          damaged segments and a note on each

Publishing is one hard link, so it happens or does not. Everything after it (segments move
from staging to data) is rolled forward by the next commit; only the newest entry's segments
can still be in staging, and a reader looks there too. The lock file orders housekeeping
(readers, floor) only; writers are ordered by the link.

Reclaiming moves the floor first, durably, then deletes a segment before its manifest entry:
after a crash in between, files below the floor are left and the next reclaim finishes them.
The newest entry is never deleted: it carries (epoch, batch) and the running totals.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.errors import ChannelError, ChannelFull
from headwater.runtime.channels.base import Backlog, ChannelStats, Limits, OnCorrupt
from headwater.runtime.channels.entry import Entry
from headwater.runtime.channels.journal import Journal
from headwater.runtime.channels.retention import Floor, Retention
from headwater.runtime.channels.schemafile import ensure_schema, load_schema
from headwater.runtime.channels.segments import Segment, SegmentWriter
from headwater.runtime.channels.store import SegmentStore

if TYPE_CHECKING:
    import pyarrow as pa

_POLL = 0.05  # seconds between two looks whether a full log has room


class FileLog:
    """Write and read one log directory; cheap to make, holds nothing open.

    ``fsync=False`` trades safety against power loss (not against a killed process) for
    speed. A batch may be empty: it is published only if it moves the frontier.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        limits: Limits | None = None,
        on_corrupt: OnCorrupt = "quarantine",
        event_time: str | None = None,
        fsync: bool = True,
    ) -> None:
        self.path = Path(path)
        self.limits = limits or Limits()
        self.event_time = event_time
        self.fsync = fsync
        self._staging = self.path / "staging"
        self._store = SegmentStore(self.path, on_corrupt=on_corrupt, fsync=fsync)
        self._keep = Retention(self.path)
        self._journal = Journal(self.path / "log", scratch=self._staging, fsync=fsync)

    # -- writing -----------------------------------------------------------------------------

    def create(self) -> None:
        """Make the log's directories."""
        self._journal.create()
        self._store.create()
        self._keep.create()

    def open_segment(self, schema: pa.Schema) -> SegmentWriter:
        """Start a segment of the next batch, refusing rows that do not fit the log's schema."""
        self.create()
        ensure_schema(self.path, schema, scratch=self._staging, fsync=self.fsync)
        return SegmentWriter(self._staging, event_time=self.event_time, fsync=self.fsync)

    def append(self, table: pa.Table, *, epoch: int, batch: int, frontier: int | None = None) -> bool:
        """Store a table as one batch; return False when (epoch, batch) is in already."""
        writer = self.open_segment(table.schema)
        writer.raise_frontier(frontier)
        for part in table.to_batches():
            writer.write(part)
        piece = writer.close()
        return self.commit(epoch, batch, [piece] if piece else [])

    def commit(self, epoch: int, batch: int, pieces: Sequence[Segment]) -> bool:
        """Publish the segments of one batch as an entry; return False when there was no need.

        Raise ChannelError when a newer writer has taken over, ChannelFull when the log is full
        and its policy says so. A batch larger than the limit is taken by an empty log.
        """
        self.create()
        deadline = time.monotonic() + self.limits.block_timeout
        size, rows = sum(p.bytes for p in pieces), sum(p.rows for p in pieces)
        while True:
            last = self.tail()
            self._refuse_zombie(last, epoch)
            if last is not None and last.epoch == epoch and last.batch >= batch:
                self._settle(last)
                self.discard(pieces)
                return False
            high = max((f for f in (p.frontier for p in pieces) if f is not None), default=None)
            if last is not None and last.high is not None:
                high = last.high if high is None else max(high, last.high)
            if rows == 0 and high == (last.high if last else None):
                return False
            if last is not None and last.ended_by is not None and last.ended_by >= epoch:
                raise ChannelError(
                    f"batch {batch} comes after epoch {epoch} has ended the stream",
                    where=str(self.path),
                    hint="to resume an ended stream, start the writer with a higher epoch",
                )
            full = self._full(last, size) if rows else None
            if full and self.limits.when_full == "drop_oldest":
                self._drop_oldest(last, size)
            elif full and self.limits.when_full != "drop_newest":
                self._wait(full, deadline)
                continue
            dropped = bool(full) and self.limits.when_full == "drop_newest"
            entry = Entry(
                seq=last.seq + 1 if last else 0,
                epoch=epoch,
                batch=batch,
                segments=() if dropped else tuple(p for p in pieces if p.file),
                rows=0 if dropped else rows,
                bytes=0 if dropped else size,
                total_rows=(last.total_rows if last else 0) + (0 if dropped else rows),
                total_bytes=(last.total_bytes if last else 0) + (0 if dropped else size),
                dropped_rows=(last.dropped_rows if last else 0) + (rows if dropped else 0),
                high=high,
            )
            if self._publish(entry, last):
                if dropped:
                    self.discard(pieces)
                return True

    def end(self, epoch: int) -> None:
        """Mark the end of the stream; repeating it changes nothing.

        A writer of a higher epoch may append again (a stopped job is resumed). The frontier
        then falls back to event time, so a reader that has acted on the end sees late rows:
        resume only what no reader has finished, or restart the readers without their state.
        """
        self._mark(epoch, ended_by=epoch)

    def fence(self, epoch: int) -> tuple[int, int] | None:
        """Shut out every writer older than ``epoch``; return the last (epoch, batch) that counts.

        After this call no older writer can publish, not even one stuck in a commit, so what it
        returns is final: the next writer goes on from there. Repeating it gives the same answer.
        """
        return self._mark(epoch, ended_by=None)

    def discard(self, pieces: Sequence[Segment]) -> None:
        """Delete the segments of an attempt that was given up."""
        self._store.discard(pieces)

    def _mark(self, epoch: int, *, ended_by: int | None) -> tuple[int, int] | None:
        self.create()
        while True:
            last = self.tail()
            self._refuse_zombie(last, epoch)
            if last is not None and last.epoch == epoch and (ended_by is None or last.ended_by == epoch):
                return last.counts
            same = last is not None and last.epoch == epoch
            entry = Entry(
                seq=last.seq + 1 if last else 0,
                epoch=epoch,
                batch=last.batch if last and same else -1,
                total_rows=last.total_rows if last else 0,
                total_bytes=last.total_bytes if last else 0,
                dropped_rows=last.dropped_rows if last else 0,
                high=last.high if last else None,
                # a fence leaves an ended stream ended; only new rows reopen it
                ended_by=ended_by if ended_by is not None or last is None else last.ended_by,
                previous=(last.previous if same else last.counts) if last else None,
            )
            if self._publish(entry, last):
                return entry.counts

    def _publish(self, entry: Entry, last: Entry | None) -> bool:
        """Link the entry in, then tidy up; False when another writer was first."""
        if last is not None:
            self._store.promote(last.segments)
        before = self._journal.modified(last.seq) if last else None
        if self.fsync:
            # in this order: what left staging is in data, and what is published is in staging
            self._store.sync()
        if not self._journal.publish(entry.seq, asdict(replace(entry, written=time.time()))):
            return False
        self._store.promote(entry.segments)
        self._store.sweep(before)
        return True

    def _settle(self, last: Entry) -> None:
        """Finish what a killed writer left undone after publishing ``last``."""
        self._store.promote(last.segments)
        self._store.sweep(self._journal.modified(last.seq - 1) if last.seq else None)

    def _refuse_zombie(self, last: Entry | None, epoch: int) -> None:
        if last is not None and last.epoch > epoch:
            raise ChannelError(
                f"writer of epoch {epoch} is out of date: epoch {last.epoch} has taken over",
                where=str(self.path),
                hint="stop this writer; its unit runs elsewhere by now",
            )

    # -- being a replica ----------------------------------------------------------------------

    def begin_at(self, floor: Floor) -> None:
        """Let a replica go on at another log's floor: what lies before it is not to be had any more."""
        self.create()
        with self._keep.lock():
            if floor.seq > self.latest():
                self._keep.write_floor(replace(floor, swept=floor.seq), fsync=self.fsync)

    def mirror(self, entry: Entry) -> None:
        """Store the next entry of another log under its own number; its segments are in staging already."""
        if entry.seq < self.latest():
            return
        if entry.seq > self.latest():
            raise ChannelError(
                f"entry {entry.seq} comes after {self.latest() - 1}",
                where=str(self.path),
                hint="the log it is copied from was replaced: remove this copy",
            )
        if self.fsync:
            self._store.sync()
        if self._journal.publish(entry.seq, asdict(entry)):
            self._store.promote(entry.segments)

    def segment_file(self, segment: Segment) -> Path | None:
        """Tell where a segment lies; None when it is lost or has no rows."""
        return self._store.find(segment)

    # -- bounds ------------------------------------------------------------------------------

    def _full(self, last: Entry | None, size: int) -> str | None:
        """Say why a batch of ``size`` bytes does not fit, None when it does."""
        limits = self.limits
        if last is None or (limits.max_bytes is None and limits.max_age is None):
            return None
        oldest = self._slowest()
        unread = last.total_bytes - self._before(oldest).bytes
        if unread <= 0:
            return None
        if limits.max_bytes is not None and unread + size > limits.max_bytes:
            return f"{unread} bytes are unread and {size} more would pass max_bytes={limits.max_bytes}"
        age = time.time() - self._entry(oldest).written
        if limits.max_age is not None and age > limits.max_age:
            return f"its oldest unread entry is {age:.1f} s old, max_age={limits.max_age}"
        return None

    def _wait(self, full: str, deadline: float) -> None:
        blocking = self.limits.when_full == "block"
        if blocking and time.monotonic() < deadline:
            time.sleep(_POLL)
            return
        slowest = min(self.readers().items(), key=lambda item: item[1], default=None)
        who = (
            f"reader {slowest[0]!r} at {slowest[1]} of {self.latest()}"
            if slowest
            else "no reader is registered"
        )
        waited = f" for {self.limits.block_timeout:g} s" if blocking else ""
        raise ChannelFull(
            f"full{waited}: {full}; slowest: {who}",
            where=str(self.path),
            hint="see why the reader is behind, raise the limit, or choose when_full=drop_oldest/drop_newest",
        )

    def _drop_oldest(self, last: Entry | None, size: int) -> None:
        """Raise the floor until a batch of ``size`` bytes fits; count what was unread."""
        assert last is not None
        with self._keep.lock():
            floor = self._keep.floor()
            first = seq = self._slowest()
            while seq <= last.seq:
                unread = last.total_bytes - self._before(seq).bytes
                fits = self.limits.max_bytes is None or unread + size <= self.limits.max_bytes
                fresh = (
                    self.limits.max_age is None
                    or time.time() - self._entry(seq).written <= self.limits.max_age
                )
                if unread == 0 or (fits and fresh):
                    break
                seq += 1
            lost = self._before(seq).rows - self._before(first).rows
            self._raise_floor(floor, seq, dropped=lost)

    # -- readers -----------------------------------------------------------------------------

    def register(self, reader: str) -> int:
        """Keep what ``reader`` has not read, from the earliest position on; return where it stands."""
        self.create()
        with self._keep.lock():
            if (known := self._keep.position(reader)) is not None:
                return known
            position = self._keep.floor().seq
            self._keep.place(reader, position)
            return position

    def advance(self, reader: str, position: int) -> None:
        """Record that ``reader`` needs nothing before ``position``; reclaim what nobody needs."""
        with self._keep.lock():
            known = self._keep.position(reader)
            if known is None:
                raise ChannelError(
                    f"reader {reader!r} is not registered",
                    where=str(self.path),
                    hint="register a reader before its channel's writer starts",
                )
            if position > self.latest():
                raise ChannelError(
                    f"reader {reader!r} reports position {position}, but the log ends at {self.latest()}",
                    where=str(self.path),
                    hint="the log was replaced by another one, or the reader belongs to another log",
                )
            if position > known:
                self._keep.place(reader, position)
                self._reclaim()

    def unregister(self, reader: str) -> None:
        """Forget ``reader``; reclaim what only it was waiting for."""
        if self._keep.readers():
            with self._keep.lock():
                self._keep.forget(reader)
                self._reclaim()

    def readers(self) -> dict[str, int]:
        """Return every registered reader's position."""
        return self._keep.readers()

    def _slowest(self) -> int:
        """Return the first unread position; with no reader, all that is kept is unread."""
        return max(self._keep.floor().seq, min(self.readers().values(), default=0))

    def _reclaim(self) -> None:
        floor, positions = self._keep.floor(), self.readers()
        target = max(floor.seq, min(positions.values(), default=0))
        if target > floor.seq or floor.swept < min(floor.seq, self.latest() - 1):
            self._raise_floor(floor, target)

    def _raise_floor(self, floor: Floor, seq: int, dropped: int = 0) -> None:
        totals = self._before(seq)
        floor = replace(totals, seq=seq, swept=floor.swept, dropped_rows=floor.dropped_rows + dropped)
        self._keep.write_floor(floor, fsync=self.fsync)
        newest = self._journal.last()
        for number in range(floor.swept, min(seq, newest + 1)):
            with contextlib.suppress(ChannelError):  # deleted by an earlier, interrupted reclaim
                self._store.delete(self._entry(number).segments)
            if number < newest:
                self._journal.discard(number, number + 1)
        self._keep.write_floor(replace(floor, swept=min(seq, newest)), fsync=False)

    # -- reading -----------------------------------------------------------------------------

    def schema(self) -> pa.Schema | None:
        """Return the log's schema; None before its first batch."""
        return load_schema(self.path)

    def tail(self) -> Entry | None:
        """Return the newest entry."""
        newest = self._journal.last()
        return None if newest < 0 else self._entry(newest)

    def earliest(self) -> int:
        """Return the first position that can still be read."""
        return self._keep.floor().seq

    def latest(self) -> int:
        """Return the position after the newest entry."""
        newest = self._journal.last()
        return newest + 1 if newest >= 0 else self._keep.floor().seq

    def floor(self) -> Floor:
        """Return the first readable position and the totals before it."""
        return self._keep.floor()

    def entries(self, start: int, end: int) -> Iterator[Entry]:
        """Give the entries from ``start`` to before ``end`` that are not reclaimed or dropped."""
        seq = max(start, self.earliest())
        while seq < end:
            try:
                entry = self._entry(seq)
            except ChannelError:
                if (floor := self.earliest()) <= seq:
                    raise
                seq = floor  # reclaimed while we were reading
                continue
            yield entry
            seq += 1

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Give the rows of the entries from ``start`` to before ``end``."""
        for entry in self.entries(start, end):
            for segment in entry.segments:
                yield from self.read_segment(entry.seq, segment)

    def read_segment(self, seq: int, segment: Segment) -> Iterator[pa.RecordBatch]:
        """Give one segment's batches; a damaged one is quarantined or stops the reader."""
        yield from self._store.read(seq, segment, still_kept=lambda: seq >= self.earliest())

    def frontier(self, position: int) -> int | None:
        """Return the event-time frontier as of ``position``; None while there is none.

        Known for every position a registered reader can still start from. Below the floor it
        is not known any more, and None says so: no watermark is better than a wrong one.
        """
        return self._before(position).frontier

    def totals(self, position: int) -> tuple[int, int]:
        """Return how many rows and bytes were stored before ``position``."""
        before = self._before(position)
        return before.rows, before.bytes

    def stats(self) -> ChannelStats:
        """Read all counters."""
        last, floor = self.tail(), self._keep.floor()
        if last is None:
            return ChannelStats(unread={r: Backlog(position=p) for r, p in self.readers().items()})
        return ChannelStats(
            rows=last.total_rows,
            bytes=last.total_bytes,
            entries=last.seq + 1,
            earliest=floor.seq,
            latest=last.seq + 1,
            epoch=last.epoch,
            batch=last.counts[1] if last.counts else None,
            unread={reader: self._backlog(at, last) for reader, at in self.readers().items()},
            dropped_rows=last.dropped_rows + floor.dropped_rows,
            lost_rows=self._store.lost_rows(),
            frontier=last.frontier,
            ended=last.end,
        )

    def _backlog(self, position: int, last: Entry) -> Backlog:
        position = max(position, self.earliest())
        before = self._before(position)
        waiting = last.seq + 1 - position
        return Backlog(
            position=position,
            entries=waiting,
            rows=last.total_rows - before.rows,
            bytes=last.total_bytes - before.bytes,
            age=max(0.0, time.time() - self._entry(position).written) if waiting > 0 else 0.0,
        )

    def _entry(self, seq: int) -> Entry:
        return Entry.from_record(self._journal.get(seq))

    def _before(self, position: int) -> Floor:
        """Return what is known as of ``position``, in the shape of a floor there."""
        for _ in range(2):
            floor = self._keep.floor()
            if position == floor.seq:
                return floor
            if position < floor.seq:
                return replace(floor, frontier=None)
            try:
                entry = self._entry(position - 1)
            except ChannelError:
                if self._keep.floor().seq < position:
                    raise
                continue  # reclaimed in between: the floor tells now
            return Floor(rows=entry.total_rows, bytes=entry.total_bytes, frontier=entry.frontier)
        return replace(self._keep.floor(), frontier=None)
