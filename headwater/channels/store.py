"""A filelog's segment files: in staging, then in data, or in quarantine when they are damaged."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from headwater.channels.base import OnCorrupt
from headwater.channels.segments import CorruptSegment, Segment, read_segment
from headwater.core.errors import ChannelError
from headwater.disk.durable import (
    make_directory,
    read_object,
    sweep,
    sweep_staged,
    sync_directory,
    write_atomically,
)

if TYPE_CHECKING:
    import pyarrow as pa


class SegmentStore:
    """Move, read and delete the segment files of one log directory."""

    def __init__(self, log: Path, *, on_corrupt: OnCorrupt, fsync: bool) -> None:
        self._data = log / "data"
        self._staging = log / "staging"
        self._quarantine = log / "quarantine"
        self._on_corrupt = on_corrupt
        self._fsync = fsync

    def create(self) -> None:
        """Make the directories."""
        for directory in (self._data, self._staging, self._quarantine):
            make_directory(directory, fsync=self._fsync)

    def sync(self) -> None:
        """Make data durable first, with the files that left staging, then staging with the new ones."""
        sync_directory(self._data)
        sync_directory(self._staging)

    def promote(self, segments: Sequence[Segment]) -> None:
        """Move published segments from staging to data; skip those moved already."""
        for segment in segments:
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._staging / str(segment.file), self._data / str(segment.file))

    def open(self, segment: Segment) -> BinaryIO | None:
        """Open a segment's file; None when it is missing."""
        if segment.file is None:
            return None
        # data again at last: it may move from staging in between
        for directory in (self._data, self._staging, self._data):
            with contextlib.suppress(FileNotFoundError):
                return (directory / segment.file).open("rb")
        return None

    def discard(self, segments: Sequence[Segment]) -> None:
        """Delete the segments of an abandoned attempt."""
        for segment in segments:
            if segment.file:
                (self._staging / segment.file).unlink(missing_ok=True)

    def delete(self, segments: Sequence[Segment]) -> None:
        """Delete published segments that no reader needs any more."""
        for segment in segments:
            for directory in (self._data, self._staging):
                (directory / str(segment.file)).unlink(missing_ok=True)

    def sweep(self, before: float | None) -> None:
        """Delete leftovers of crashed attempts in staging that are older than ``before``.

        A writer's batches come one after the other, so all files of a running attempt are
        younger than the last entry but one: callers pass that entry's time.
        """
        sweep(self._staging, before)

    def sweep_all(self) -> None:
        """Delete all segments in staging; the newest entry's must have been promoted."""
        sweep_staged(self._staging)

    def read(self, seq: int, segment: Segment, *, still_kept: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        """Yield a segment's batches; quarantine it or stop when it is damaged.

        ``still_kept`` returns whether its entry is above the floor: a file below it was deleted on
        purpose, and its rows are counted there.
        """
        name = str(segment.file)
        problem = "is missing"
        # data again at last: it may have moved from staging in between
        for directory in (self._data, self._staging, self._data):
            try:
                yield from read_segment(directory / name, segment)
                return
            except FileNotFoundError:
                continue
            except CorruptSegment as error:
                problem = error.what
                break
        if still_kept():
            self._lose(seq, segment, problem)

    def lost_rows(self) -> int:
        """Count the rows of all quarantined segments."""
        try:
            notes = [name for name in os.listdir(self._quarantine) if name.endswith(".json")]
        except FileNotFoundError:
            return 0
        return sum(int((read_object(self._quarantine / note) or {"rows": 0})["rows"]) for note in notes)

    def _lose(self, seq: int, segment: Segment, problem: str) -> None:
        name = str(segment.file)
        if self._on_corrupt == "stop":
            raise ChannelError(
                f"segment of entry {seq} with {segment.rows} rows {problem}",
                where=str(self._data / name),
                hint="restore the file from a backup, or accept the loss with on_corrupt=quarantine",
            )
        note = self._quarantine / f"{name}.json"
        if note.exists():  # found damaged by another reader, or by this one before
            return
        self._quarantine.mkdir(exist_ok=True)
        for directory in (self._data, self._staging):
            with contextlib.suppress(FileNotFoundError):
                os.rename(directory / name, self._quarantine / name)
        record = {"seq": seq, "rows": segment.rows, "problem": problem, "found": time.time()}
        write_atomically(note, json.dumps(record), scratch=self._quarantine, fsync=self._fsync)
