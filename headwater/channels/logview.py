"""The reading half of a log - entries, readers, reclaiming, counters - and the protocols of its three parts."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headwater.channels.base import Backlog, ChannelStats
from headwater.channels.entry import Entry, Floor
from headwater.channels.segments import Segment
from headwater.core.errors import ChannelError

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class EntryJournal(Protocol):
    """Numbered entries."""

    def last(self) -> int:
        """Return the newest entry's number, -1 when there is none."""

    def get(self, number: int) -> Mapping[str, Any]:
        """Read one entry; raise ChannelError when it is not there or damaged."""


class LogRetention(Protocol):
    """Readers' positions and the floor."""

    def change(self, do: Callable[[], T]) -> T:
        """Run ``do``, which changes readers or floor, while no other process changes them; it may be repeated."""

    def floor(self) -> Floor:
        """Return the first readable position and the totals before it."""

    def write_floor(self, floor: Floor, *, fsync: bool) -> None:
        """Replace the floor; with ``fsync`` it is durable when this returns."""

    def readers(self) -> dict[str, int]:
        """Return every registered reader's position."""

    def position(self, reader: str) -> int | None:
        """Return a reader's position; None when it is not registered."""

    def place(self, reader: str, position: int) -> None:
        """Record a reader's position."""

    def forget(self, reader: str) -> None:
        """Remove a reader's registration."""


class SegmentShelf(Protocol):
    """Segments, published and staged."""

    def read(self, seq: int, segment: Segment, *, still_kept: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        """Yield a segment's batches; quarantine it or stop when it is damaged."""

    def discard(self, segments: Sequence[Segment]) -> None:
        """Delete the segments of an abandoned attempt."""

    def sweep_all(self) -> None:
        """Delete all staged segments."""

    def lost_rows(self) -> int:
        """Count the rows of all segments that were found damaged."""


class LogView(ABC):
    """Read one log, and keep the entries that its readers have not read.

    ``where`` names the log in messages; with ``fsync`` the floor is on disk before the entries
    below it are deleted.
    """

    where: str
    fsync: bool
    _journal: EntryJournal
    _keep: LogRetention
    _store: SegmentShelf
    _slack = 0
    """Number of entries below the floor that may wait for their deletion."""

    @abstractmethod
    def create(self) -> None:
        """Create the log's storage."""

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """Return the log's schema; None before its first batch."""

    @abstractmethod
    def _delete(self, first: int, stop: int, newest: int) -> int:
        """Delete the segments of entries ``first`` .. ``stop - 1``, except the entry ``newest``.

        Return the position up to which they are deleted: the next reclaim asks for the rest again.
        """

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
        """Yield the entries from ``start`` to before ``end`` that are not reclaimed or dropped."""
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
        """Yield the rows of the entries from ``start`` to before ``end``."""
        yield from self.read_segments((e.seq, s) for e in self.entries(start, end) for s in e.segments)

    def read_segments(self, wanted: Iterable[tuple[int, Segment]]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of segments, each with the number of its entry, one after the other."""
        for seq, segment in wanted:
            yield from self.read_segment(seq, segment)

    def read_segment(self, seq: int, segment: Segment) -> Iterator[pa.RecordBatch]:
        """Yield one segment's batches; a damaged one is quarantined or stops the reader."""
        yield from self._store.read(seq, segment, still_kept=lambda: seq >= self.earliest())

    def frontier(self, position: int) -> int | None:
        """Return the event-time frontier as of ``position``; None while there is none.

        It is known for every position a registered reader can still start from. Below the floor it
        is lost, and the result is None: no watermark is better than a wrong one.
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
            # A replica that began at its original's floor counts the rows before it, as ``totals`` does.
            return ChannelStats(
                rows=floor.rows,
                bytes=floor.bytes,
                entries=floor.seq,
                earliest=floor.seq,
                latest=floor.seq,
                unread={r: Backlog(position=p) for r, p in self.readers().items()},
                dropped_rows=floor.dropped_rows,
                frontier=floor.frontier,
            )
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
        """Return totals and frontier as of ``position``, as a floor there."""
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
                continue  # reclaimed in between: the floor has the totals now
            return Floor(rows=entry.total_rows, bytes=entry.total_bytes, frontier=entry.frontier)
        return replace(self._keep.floor(), frontier=None)

    # -- readers -----------------------------------------------------------------------------

    def register(self, reader: str) -> int:
        """Keep the entries that ``reader`` has not read, from the earliest on; return the reader's position."""
        self.create()

        def add() -> int:
            if (known := self._keep.position(reader)) is not None:
                return known
            position = self._keep.floor().seq
            self._keep.place(reader, position)
            return position

        return self._keep.change(add)

    def advance(self, reader: str, position: int) -> None:
        """Record that ``reader`` needs nothing before ``position``; reclaim entries no reader needs."""

        def move() -> None:
            known = self._keep.position(reader)
            if known is None:
                raise ChannelError(
                    f"reader {reader!r} is not registered",
                    where=self.where,
                    hint="register a reader before its channel's writer starts",
                )
            if position > self.latest():
                raise ChannelError(
                    f"reader {reader!r} reports position {position}, but the log ends at {self.latest()}",
                    where=self.where,
                    hint="the log was replaced, or the reader belongs to another one: start it from a new checkpoint",
                )
            if position > known:
                self._keep.place(reader, position)
                self._reclaim()

        self._keep.change(move)

    def unregister(self, reader: str) -> None:
        """Forget ``reader``; reclaim entries that only it had not read."""

        def drop() -> None:
            self._keep.forget(reader)
            self._reclaim()

        if self._keep.readers():
            self._keep.change(drop)

    def readers(self) -> dict[str, int]:
        """Return every registered reader's position."""
        return self._keep.readers()

    def _slowest(self) -> int:
        """Return the first unread position; with no reader, all stored entries are unread."""
        return max(self._keep.floor().seq, min(self.readers().values(), default=0))

    def _reclaim(self) -> None:
        floor, positions = self._keep.floor(), self.readers()
        target = max(floor.seq, min(positions.values(), default=0))
        if target > floor.seq or floor.swept + self._slack < min(floor.seq, self.latest() - 1):
            self._raise_floor(floor, target)

    def _raise_floor(self, floor: Floor, seq: int, dropped: int = 0) -> None:
        totals = self._before(seq)
        floor = replace(totals, seq=seq, swept=floor.swept, dropped_rows=floor.dropped_rows + dropped)
        self._keep.write_floor(floor, fsync=self.fsync)
        newest = self._journal.last()
        swept = self._delete(floor.swept, min(seq, newest + 1), newest)
        self._keep.write_floor(replace(floor, swept=swept), fsync=self.fsync)
