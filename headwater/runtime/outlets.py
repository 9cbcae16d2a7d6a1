"""Outlets: the places one unit's rows go to, each committed exactly once by (epoch, batch).

A task opens an outlet, writes batches and gets a *piece*, the record of what it left in
staging. The driver side then commits all pieces of a batch. Committing twice changes nothing,
so when a crash falls between two outlets' commits, the replayed batch heals the gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headwater.errors import ChannelError, UserCodeError
from headwater.runtime.channels.base import Limits
from headwater.runtime.channels.filelog import FileLog
from headwater.runtime.channels.segments import Segment, SegmentWriter, read_segment

if TYPE_CHECKING:
    import pyarrow as pa


class OutletTask(Protocol):
    """Take one task's rows for one outlet."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch."""

    def close(self) -> Segment | None:
        """Finish; return the piece to commit, None when there was nothing."""

    def abandon(self) -> None:
        """Remove what was written."""


class Outlet(Protocol):
    """Store one kind of output."""

    def open(self) -> OutletTask:
        """Start writing in a task."""

    def commit(self, pieces: Sequence[Segment], batch: int) -> None:
        """Make a batch count; a batch that counts already is left as it is."""

    def abort(self, pieces: Sequence[Segment]) -> None:
        """Remove the pieces of a failed batch."""

    def recover(self) -> None:
        """Finish what a crash left half done."""


def open_outlet(spec: Mapping[str, Any], epoch: int) -> Outlet:
    """Make the outlet a config entry describes."""
    from headwater.runtime.fileoutlet import FilesOutlet

    kind = spec.get("kind")
    if kind == "filelog":
        return LogOutlet(spec, epoch)
    if kind == "files":
        return FilesOutlet(spec, epoch)
    if kind == "deadletters":
        return FilesOutlet({"format": "json", **spec}, epoch)
    if kind == "callback":
        return CallbackOutlet(spec)
    raise ChannelError(
        f"unknown outlet kind {kind!r}",
        where="sink config",
        hint="use filelog, files, deadletters or callback",
    )


class LogOutlet:
    """Write to a filelog: ``path``, ``event_time``, ``watermark``, limits and ``fsync``.

    ``watermark`` names a punctuation column of the rows (as FilelogSource adds it). Rows that
    have it set are not stored: their value is the frontier. A unit that merges zones must hand
    punctuation on like this, or the faster zone's event time would make the slower one late.
    """

    def __init__(self, spec: Mapping[str, Any], epoch: int) -> None:
        self._epoch = epoch
        self._watermark: str | None = spec.get("watermark")
        names = ("max_bytes", "max_age", "when_full", "block_timeout")
        self.log = FileLog(
            spec["path"],
            limits=Limits(**{n: spec[n] for n in names if spec.get(n) is not None}),
            event_time=None if self._watermark else spec.get("event_time"),
            fsync=bool(spec.get("fsync", True)),
        )

    def open(self) -> OutletTask:
        """Start a segment."""
        return _LogTask(self.log, self._watermark)

    def commit(self, pieces: Sequence[Segment], batch: int) -> None:
        """Publish the batch."""
        self.log.commit(self._epoch, batch, pieces)

    def abort(self, pieces: Sequence[Segment]) -> None:
        """Delete the segments."""
        self.log.discard(pieces)

    def recover(self) -> None:
        """Do nothing: the next commit rolls forward."""


class _LogTask:
    def __init__(self, log: FileLog, watermark: str | None) -> None:
        self._log = log
        self._watermark = watermark
        self._segment: SegmentWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        frontier = None
        if self._watermark is not None:
            batch, frontier = split_watermark(batch, self._watermark)
        if self._segment is None:
            self._segment = self._log.open_segment(batch.schema)
        self._segment.raise_frontier(frontier)
        self._segment.write(batch)

    def close(self) -> Segment | None:
        return self._segment.close() if self._segment else None

    def abandon(self) -> None:
        if self._segment:
            self._segment.abandon()


def split_watermark(batch: pa.RecordBatch, column: str) -> tuple[pa.RecordBatch, int | None]:
    """Take the punctuation rows and column out of a batch; return the rest and their maximum."""
    import pyarrow as pa
    import pyarrow.compute as pc

    index = batch.schema.get_field_index(column)
    if index < 0:
        raise ChannelError(
            f"no punctuation column {column!r}; columns: {', '.join(batch.schema.names)}",
            where="sink config",
            hint="name the column that carries the punctuation, or leave 'watermark' out",
        )
    marks = batch.column(index)
    value = pc.max(marks.cast(pa.timestamp("us", tz="UTC"))).value
    if value is not None:
        batch = batch.filter(pc.is_null(marks))
    names = [name for name in batch.schema.names if name != column]
    return batch.select(names), None if value is None else int(value)


class CallbackOutlet:
    """Call a Python function with every batch: ``function`` (cloudpickle, base64), ``path``, ``operator``.

    At-least-once, like foreachBatch: after a crash it is called again with the same batch id.
    ``path`` is a scratch directory that tasks and driver share. A batch without rows is no call.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        from pathlib import Path

        self._function: str = spec["function"]
        self._operator: str = spec.get("operator", "callback")
        self._scratch = Path(spec["path"])

    def open(self) -> OutletTask:
        """Start a segment in the scratch directory."""
        return SegmentWriter(self._scratch, fsync=False)

    def commit(self, pieces: Sequence[Segment], batch: int) -> None:
        """Call the function with the whole batch."""
        import base64

        import cloudpickle
        import pyarrow as pa

        files = [p for p in pieces if p.file]
        if not files:
            return
        try:
            parts = [b for p in files for b in read_segment(self._scratch / str(p.file), p)]
            function = cloudpickle.loads(base64.b64decode(self._function))
            function(pa.Table.from_batches(parts), batch)
        except Exception as error:
            raise UserCodeError(
                f"the sink function raised {type(error).__name__}: {error}",
                where=f"operator {self._operator!r}, batch {batch}",
                hint="fix the function and restart: the batch is given to it again with the same id",
            ) from error
        self.abort(files)

    def abort(self, pieces: Sequence[Segment]) -> None:
        """Delete the segments."""
        for piece in pieces:
            if piece.file:
                (self._scratch / piece.file).unlink(missing_ok=True)

    def recover(self) -> None:
        """Do nothing: a replayed batch writes its segments anew."""
