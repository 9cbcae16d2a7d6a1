"""Rows staged in a scratch directory until their batch is committed: for sink writers without files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.channels.segments import Segment, SegmentWriter, read_segment
from headwater.disk.durable import sweep, sweep_staged

if TYPE_CHECKING:
    import pyarrow as pa

_STALE = 3600.0  # seconds after which a leftover segment is deleted


class StagedSinkWriter:
    """Keep a batch's rows in ``path``, a directory that tasks and driver share, until it is committed."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._scratch = Path(spec["path"])

    def open(self) -> SegmentWriter:
        """Start a segment in the scratch directory."""
        return SegmentWriter(self._scratch, fsync=False)

    def batches(self, segments: Sequence[Segment]) -> list[pa.RecordBatch]:
        """Read back the rows that the tasks have written."""
        return [b for p in segments for b in read_segment(self._scratch / str(p.file), p)]

    def abort(self, segments: Sequence[Segment]) -> None:
        """Delete the segments."""
        for segment in segments:
            if segment.file:
                (self._scratch / segment.file).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete what interrupted batches have left."""
        sweep_staged(self._scratch)

    def recover(self) -> None:
        """Delete leftovers of killed processes: a repeated batch writes new segments."""
        with contextlib.suppress(FileNotFoundError):
            sweep(self._scratch, time.time() - _STALE)
