"""Rules common to all kinds of log: fencing, deduplication, limits, retention.

A kind supplies three parts - a journal of entries, a retention (readers and floor), a store of
segments - and implements how an entry is published and how unneeded entries are deleted.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from headwater.channels.base import ChannelLimits
from headwater.channels.entry import Entry
from headwater.channels.logview import EntryJournal, LogRetention, LogView, SegmentShelf
from headwater.channels.segments import Segment, SegmentWriter
from headwater.core.errors import ChannelError, ChannelFull

if TYPE_CHECKING:
    import pyarrow as pa

Delivery: TypeAlias = Literal["exactly_once", "at_least_once"]

_POLL = 0.05  # seconds between two checks whether a full log has room


class Log(LogView):
    """Write and read one log; a batch may be empty: it is published only if it moves the frontier.

    With ``delivery`` "at_least_once" a writer checks neither whether its batch is in nor whether there is a newer
    writer. ``lineage`` names the numbering of the batches (a checkpoint): a batch that was
    published under the same one is a repetition, whichever epoch has written it.
    """

    compression = "lz4"
    """Compression of written segments; read ones carry theirs. ``segments.FOR_LINK`` suits those that cross a link."""
    streamed = False
    """Whether segments cross a link in streams that are compressed as one (``entrysender``)."""
    look_s = 0.0
    """Least seconds between two looks of a waiting reader for new entries."""
    place: Path | None = None
    """The directory in which each new entry appears as a file; None where entries are kept elsewhere."""
    bytes_per_s: float | None = None
    """Speed of that link; None: unknown."""

    def __init__(
        self,
        *,
        where: str,
        journal: EntryJournal,
        keep: LogRetention,
        store: SegmentShelf,
        limits: ChannelLimits | None,
        event_time: str | None,
        fsync: bool,
        delivery: Delivery,
        lineage: str | None,
    ) -> None:
        self.where = where
        self.limits = limits or ChannelLimits()
        self.event_time = event_time
        self.fsync = fsync
        self.delivery = delivery
        self.lineage = lineage
        self._journal = journal
        self._keep = keep
        self._store = store

    # -- supplied by each kind -----------------------------------------------------------------

    @abstractmethod
    def open_segment(self, schema: pa.Schema) -> SegmentWriter:
        """Start a segment of the next batch, refusing rows that do not fit the log's schema."""

    @abstractmethod
    def _publish(self, entry: Entry, last: Entry | None) -> bool:
        """Publish an entry after ``last``; return False when another one came first."""

    @abstractmethod
    def _settle(self, last: Entry) -> None:
        """Finish the work that a killed writer left undone after publishing ``last``."""

    def _writer(self, staging: Path, *, fsync: bool) -> SegmentWriter:
        """Return the writer of a segment in a directory."""
        return SegmentWriter(
            staging,
            event_time=self.event_time,
            fsync=fsync,
            compression=self.compression,
            bytes_per_s=self.bytes_per_s,
            streamed=self.streamed,
        )

    def _newest_for_writer(self) -> Entry | None:
        """Return the newest entry, as exactly as a writer needs it."""
        return self.tail()

    # -- writing -----------------------------------------------------------------------------

    def append(self, table: pa.Table, *, epoch: int, batch: int, frontier: int | None = None) -> bool:
        """Store a table as one batch; return False when (epoch, batch) is in already."""
        writer = self.open_segment(table.schema)
        writer.raise_frontier(frontier)
        for part in table.to_batches():
            writer.write(part)
        segment = writer.close()
        return self.commit(epoch, batch, [segment] if segment else [])

    def commit(
        self,
        epoch: int,
        batch: int,
        segments: Sequence[Segment],
        *,
        ingested: tuple[float, float] | None = None,
        trace: str | None = None,
    ) -> bool:
        """Publish the segments of one batch as an entry; return False when there was no need.

        ``ingested`` holds the ingest times of the oldest and the newest row that led to it; None: unknown.
        ``trace``: the ``traceparent`` of the publication.
        Raise ChannelError when a newer writer has taken over, ChannelFull when the log is full
        and its policy says so. A batch larger than the limit is taken by an empty log.
        """
        self.create()
        deadline = time.monotonic() + self.limits.block_timeout
        size, rows = sum(p.bytes for p in segments), sum(p.rows for p in segments)
        while True:
            last = self._newest_for_writer()
            if self.delivery == "exactly_once" and self._is_in(last, epoch, batch):
                assert last is not None
                self._settle(last)
                self.discard(segments)
                return False
            high = max((f for f in (p.frontier for p in segments) if f is not None), default=None)
            if last is not None and last.high is not None:
                high = last.high if high is None else max(high, last.high)
            if rows == 0 and high == (last.high if last else None):
                return False
            if last is not None and last.ended_by is not None and last.ended_by >= epoch:
                raise ChannelError(
                    f"batch {batch} comes after epoch {epoch} has ended the stream",
                    where=self.where,
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
                segments=() if dropped else tuple(p for p in segments if p.file),
                rows=0 if dropped else rows,
                bytes=0 if dropped else size,
                total_rows=(last.total_rows if last else 0) + (0 if dropped else rows),
                total_bytes=(last.total_bytes if last else 0) + (0 if dropped else size),
                dropped_rows=(last.dropped_rows if last else 0) + (rows if dropped else 0),
                high=high,
                lineage=self.lineage,
                ingested=ingested,
                trace=trace,
            )
            if self._publish(entry, last):
                if dropped:
                    self.discard(segments)
                return True

    def sweep(self) -> None:
        """Delete what interrupted batches have left in staging; call it while no writer is at work."""
        self._store.sweep_all()

    def newest_batch(self) -> int | None:
        """Return the newest batch of this lineage in the log; None for none, or where repetitions are written."""
        last = self.tail()
        if last is None or last.counts is None or self.lineage is None or last.lineage != self.lineage:
            return None
        return last.counts[1] if self.delivery == "exactly_once" else None

    def end(self, epoch: int) -> None:
        """Mark the end of the stream; repeating it changes nothing.

        A writer of a higher epoch may append again (a stopped job is resumed). The frontier
        then falls back to event time, so a reader that has acted on the end sees late rows:
        resume only a stream that no reader has finished, or restart the readers without their state.
        """
        self._mark(epoch, ended_by=epoch)

    def fence(self, epoch: int) -> tuple[int, int] | None:
        """Shut out every writer older than ``epoch``; return the last (epoch, batch) that counts.

        After this call no older writer can publish, not even one stuck in a commit, so the result
        is final: the next writer continues from there. Repeating the call gives the same result.
        """
        return self._mark(epoch, ended_by=None)

    def discard(self, segments: Sequence[Segment]) -> None:
        """Delete the segments of an abandoned attempt."""
        self._store.discard(segments)

    def _mark(self, epoch: int, *, ended_by: int | None) -> tuple[int, int] | None:
        self.create()
        while True:
            last = self._newest_for_writer()
            if self.delivery == "exactly_once":
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
                # A fence leaves an ended stream ended; only new rows reopen it.
                ended_by=ended_by if ended_by is not None or last is None else last.ended_by,
                previous=(last.previous if same else last.counts) if last else None,
                lineage=last.lineage if last else None,
            )
            if self._publish(entry, last):
                return entry.counts

    def _is_in(self, last: Entry | None, epoch: int, batch: int) -> bool:
        """Return whether a batch is in the log; raise ChannelError when this writer may not write."""
        self._refuse_zombie(last, epoch)
        if last is None:
            return False
        if last.epoch == epoch and last.batch >= 0 and last.lineage not in (None, self.lineage):
            raise ChannelError(
                f"the log holds batches of epoch {epoch} that another checkpoint has numbered",
                where=self.where,
                hint="another deployment writes to this channel, or its checkpoint was deleted and the channel was "
                "not: start again with an empty channel, or with a higher epoch",
            )
        if last.epoch == epoch and last.batch >= batch:
            return True
        # a newer writer has continued the same numbering
        counts = last.counts
        return bool(self.lineage) and last.lineage == self.lineage and counts is not None and counts[1] >= batch

    def _refuse_zombie(self, last: Entry | None, epoch: int) -> None:
        if last is not None and last.epoch > epoch:
            raise ChannelError(
                f"the writer of epoch {epoch} is out of date: epoch {last.epoch} has taken over",
                where=self.where,
                hint="stop this writer; its unit runs elsewhere now",
            )

    # -- bounds ------------------------------------------------------------------------------

    def _full(self, last: Entry | None, size: int) -> str | None:
        """Return why a batch of ``size`` bytes does not fit, None when it does."""
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
        who = f"reader {slowest[0]!r} at {slowest[1]} of {self.latest()}" if slowest else "no reader is registered"
        waited = f" for {self.limits.block_timeout:g} s" if blocking else ""
        raise ChannelFull(
            f"full{waited}: {full}; slowest: {who}",
            where=self.where,
            hint="find out why the reader is behind, raise the limit, or choose when_full=drop_oldest/drop_newest",
        )

    def _drop_oldest(self, last: Entry | None, size: int) -> None:
        """Raise the floor until a batch of ``size`` bytes fits; count the unread rows dropped by that."""
        assert last is not None

        def drop() -> None:
            floor = self._keep.floor()
            first = seq = self._slowest()
            while seq <= last.seq:
                unread = last.total_bytes - self._before(seq).bytes
                fits = self.limits.max_bytes is None or unread + size <= self.limits.max_bytes
                fresh = self.limits.max_age is None or time.time() - self._entry(seq).written <= self.limits.max_age
                if unread == 0 or (fits and fresh):
                    break
                seq += 1
            lost = self._before(seq).rows - self._before(first).rows
            self._raise_floor(floor, seq, dropped=lost)

        self._keep.change(drop)
