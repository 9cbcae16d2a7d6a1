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
can still be in staging, and readers look there too. The lock file orders housekeeping
(readers, floor) only; writers are ordered by the link.

Reclaiming moves the floor first, durably, then deletes a segment before its manifest entry:
after a crash in between, files below the floor are left and the next reclaim finishes them.
The newest entry is never deleted: it carries (epoch, batch) and the running totals.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from headwater.channels.base import ChannelLimits, OnCorrupt
from headwater.channels.entry import Entry, Floor
from headwater.channels.journal import Journal
from headwater.channels.log import Delivery, Log
from headwater.channels.retention import Retention
from headwater.channels.schemafile import ensure_schema, load_schema
from headwater.channels.segments import Segment, SegmentWriter
from headwater.channels.store import SegmentStore
from headwater.core.errors import ChannelError
from headwater.disk.durable import sync_directory

if TYPE_CHECKING:
    import pyarrow as pa


class FileLog(Log):
    """Write and read one log directory; cheap to make, holds nothing open.

    ``fsync=False`` trades safety against power loss (not against a killed process) for
    speed.
    """

    streamed = True
    _journal: Journal
    _keep: Retention
    _store: SegmentStore
    place: Path

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        limits: ChannelLimits | None = None,
        on_corrupt: OnCorrupt = "quarantine",
        event_time: str | None = None,
        fsync: bool = True,
        delivery: Delivery = "exactly_once",
        lineage: str | None = None,
    ) -> None:
        self.path = Path(path)
        self._staging = self.path / "staging"
        self.place = self.path / "log"
        super().__init__(
            where=str(self.path),
            journal=Journal(self.place, scratch=self._staging, fsync=fsync),
            keep=Retention(self.path),
            store=SegmentStore(self.path, on_corrupt=on_corrupt, fsync=fsync),
            limits=limits,
            event_time=event_time,
            fsync=fsync,
            delivery=delivery,
            lineage=lineage,
        )

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
        return self._writer(self._staging, fsync=self.fsync)

    def _publish(self, entry: Entry, last: Entry | None) -> bool:
        """Link the entry in, then tidy up; False when another writer was first."""
        if last is not None:
            self._store.promote(last.segments)
        before = self._journal.modified(last.seq) if last else None
        if self.fsync:
            # In this order: a segment that left staging is in data, and a published one is in staging.
            self._store.sync()
        if not self._journal.publish(entry.seq, replace(entry, written=time.time()).to_record()):
            return False
        self._store.promote(entry.segments)
        self._store.sweep(before)
        return True

    def _settle(self, last: Entry) -> None:
        """Finish the work that a killed writer left undone after publishing ``last``."""
        self._store.promote(last.segments)
        self._store.sweep(self._journal.modified(last.seq - 1) if last.seq else None)

    def sweep(self) -> None:
        """Delete what interrupted batches have left in staging; call it while no writer is at work."""
        if (last := self.tail()) is not None:
            self._store.promote(last.segments)
        super().sweep()

    def _delete(self, first: int, stop: int, newest: int) -> int:
        """Delete segments before their entries, so that the next reclaim finds the leftovers of a crash."""
        for number in range(first, stop):
            with contextlib.suppress(ChannelError):  # deleted by an earlier, interrupted reclaim
                self._store.delete(self._entry(number).segments)
            if number < newest:
                self._journal.discard(number, number + 1)
        return min(stop, newest)

    # -- being a replica ----------------------------------------------------------------------

    def begin_at(self, floor: Floor) -> None:
        """Continue a replica at its original's floor: earlier entries are no longer available.

        The replica's own earlier entries are deleted; wait until its readers are past them.
        """
        self.create()

        def begin() -> None:
            if floor.seq <= self.latest():
                return
            before, newest = self._keep.floor(), self._journal.last()
            self._keep.write_floor(replace(floor, swept=floor.seq), fsync=self.fsync)
            for number in range(before.swept, newest + 1):
                self._store.delete(self._entry(number).segments)
                self._journal.discard(number, number + 1)

        self._keep.change(begin)

    def sync(self) -> None:
        """Make entries durable that a writer had published when it was killed, before it could sync them."""
        if self.fsync:
            self._store.sync()
            sync_directory(self._journal.directory)

    def mirror(self, entry: Entry) -> None:
        """Store the next entry of another log under its own number; its segments are in staging already."""
        if entry.seq < self.latest():
            return
        if entry.seq > self.latest():
            raise ChannelError(
                f"entry {entry.seq} comes after {self.latest() - 1}",
                where=self.where,
                hint="the original log was replaced: remove this replica",
            )
        if self.fsync:
            self._store.sync()
        if self._journal.publish(entry.seq, entry.to_record()):
            self._store.promote(entry.segments)

    def open_published(self, segment: Segment) -> BinaryIO | None:
        """Open the file of a segment; None when it is lost or has no rows."""
        return self._store.open(segment)

    # -- reading -------------------------------------------------------------------------------

    def schema(self) -> pa.Schema | None:
        """Return the log's schema; None before its first batch."""
        return load_schema(self.path)
