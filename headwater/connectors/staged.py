"""Rows that wait in a scratch directory until their batch is committed: for outlets that are no files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.channels.segments import Segment, SegmentWriter, read_segment
from headwater.disk.durable import sweep

if TYPE_CHECKING:
    import pyarrow as pa

_STALE = 3600.0  # seconds after which nobody will come for a segment


class StagedSinkWriter:
    """Keep a batch's rows in ``path``, a directory that tasks and driver share, until it is committed."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._scratch = Path(spec["path"])

    def open(self) -> SegmentWriter:
        """Start a segment in the scratch directory."""
        return SegmentWriter(self._scratch, fsync=False)

    def batches(self, pieces: Sequence[Segment]) -> list[pa.RecordBatch]:
        """Read back what the tasks have left."""
        return [b for p in pieces for b in read_segment(self._scratch / str(p.file), p)]

    def abort(self, pieces: Sequence[Segment]) -> None:
        """Delete the segments."""
        for piece in pieces:
            if piece.file:
                (self._scratch / piece.file).unlink(missing_ok=True)

    def recover(self) -> None:
        """Delete what killed processes left: a batch that is done again writes its segments anew."""
        with contextlib.suppress(FileNotFoundError):
            sweep(self._scratch, time.time() - _STALE)
