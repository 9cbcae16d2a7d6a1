"""Spark streaming sink: one query's rows, routed to any number of sink writers.

Option ``config`` of ``headwater_sink``::

    {"epoch": 3, "sink_writers": [{"tag": 0, "kind": "filelog", "path": "...", "event_time": "ts"},
                             {"tag": 1, "kind": "files", "format": "parquet", "path": "..."}],
     "tracking": {...}, "run": "...", "checkpoint": "..."}

``tracking`` is the JSON form of LatencyTracking. ``run`` is the result of
``checkpoint.begin_run``: without it a batch cannot be taken back. ``checkpoint`` is the directory that is synced
before a batch is published: without it a power cut may lose rows. ``checked`` is the JSON form of CheckedFiles.
``catch_up`` is the file of batches that the unit repeats; their output is discarded. All five may be left out. Spark
writes no results that change to a Python sink, so ``start_updates`` writes each batch of them by itself, with its
number as option ``batch``.

With one sink writer the frame's columns are the output's. With several the frame is ``__out`` (the
tag) and one struct column ``o<tag>`` per sink writer, so that one query feeds them all.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from headwater.channels.segments import Segment
from headwater.connectors.writers import DEAD_LETTERS, SinkWriter, SinkWriterTask, open_sink_writer
from headwater.core.errors import ChannelError, RuntimeFailure
from headwater.disk.catchup import read_catch_up
from headwater.disk.checkpoint import begin_to_publish
from headwater.disk.syncing import sync_checkpoint
from headwater.query.batchtrace import BatchTrace
from headwater.query.checkedfiles import CheckedFiles
from headwater.query.ingest import IngestTimes
from headwater.query.latency import LatencyTracking

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SINK_FORMAT = "headwater_sink"
TAG = "__out"


def tag_column(tag: int) -> str:
    """Return the name of the struct column with a sink writer's rows."""
    return f"o{tag}"


def sink_config(
    epoch: int,
    sink_writers: Sequence[Mapping[str, Any]],
    tracking: LatencyTracking,
    run: str | None = None,
    *,
    checkpoint: Path | None = None,
    checked: CheckedFiles | None = None,
    catch_up: Path | None = None,
) -> str:
    """Write option ``config``."""
    if not sink_writers:
        raise RuntimeFailure("a unit without outputs", where="sink", hint="report this as a defect")
    config = {"epoch": epoch, "sink_writers": list(sink_writers), "tracking": tracking.to_data(), "run": run}
    config["checkpoint"] = str(checkpoint) if checkpoint else None
    if checked is not None:
        config["checked"] = checked.to_data()
    if catch_up is not None:
        config["catch_up"] = str(catch_up)
    return json.dumps(config)


class HeadwaterSink(DataSource):
    """Write to the sink writers of a unit."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return SINK_FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Make the writer of one batch that is written by itself."""
        return BatchWriter(self.streamWriter(schema, overwrite), int(self.options["batch"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> UnitWriter:
        """Make the writer of one batch."""
        try:
            config = json.loads(self.options["config"])
            epoch, specs = int(config["epoch"]), list(config["sink_writers"])
            tags = [int(spec.get("tag", 0)) for spec in specs]
            tracking = LatencyTracking.from_data(config["tracking"]) if "tracking" in config else None
            run, checkpoint = config.get("run"), config.get("checkpoint")
            checked = CheckedFiles.from_data(config["checked"]) if "checked" in config else None
            catch_up = Path(config["catch_up"]) if "catch_up" in config else None
        except (KeyError, ValueError, TypeError) as error:
            raise ChannelError(
                f"not a sink config: {error!r}",
                where=f"sink {SINK_FORMAT}",
                hint='give option "config" = {"epoch": int, "sink_writers": [{"tag": int, "kind": ...}]}',
            ) from None
        if not specs or len(set(tags)) != len(tags):
            raise ChannelError(
                f"sink writers have the tags {tags}",
                where=f"sink {SINK_FORMAT}",
                hint="give each sink writer its tag",
            )
        if len(specs) > 1:
            wanted = [TAG, *map(tag_column, tags)]
            if sorted(schema.names) != sorted(wanted):
                raise ChannelError(
                    f"{len(specs)} sink writers need {', '.join(wanted)}, not {', '.join(schema.names)}",
                    where=f"sink {SINK_FORMAT}",
                    hint=f"make one struct column o<tag> per sink writer and an int column {TAG}",
                )
        writers = dict(zip(tags, specs, strict=True))
        return UnitWriter(epoch, writers, tracking, run, checkpoint=checkpoint, checked=checked, catch_up=catch_up)


class SinkMessage(WriterCommitMessage):
    """One task's staged segments, by the sink writer's tag."""

    def __init__(self, segments: Mapping[int, Segment]) -> None:
        self.segments = dict(segments)


class UnitWriter(DataSourceStreamArrowWriter):
    """Write tasks' rows to staging, then commit sink writer by sink writer.

    Python functions come last: their effects cannot be undone, so they see only batches
    that all other sink writers have committed. The output of a batch that another unit has published is discarded, and
    no sink writer is opened for it: the other unit may be at work.
    """

    def __init__(
        self,
        epoch: int,
        specs: Mapping[int, Mapping[str, Any]],
        tracking: LatencyTracking | None = None,
        run: str | None = None,
        *,
        checkpoint: str | None = None,
        checked: CheckedFiles | None = None,
        catch_up: Path | None = None,
    ) -> None:
        found = read_catch_up(catch_up) if catch_up is not None else None
        self._discards = found is not None and not found.released
        if self._discards:
            return
        self._checked = checked
        if checked is not None:
            checked.check_sinks()
        self._epoch = epoch
        self._specs = dict(specs)
        self._tracking = tracking
        self._run = run
        self._checkpoint = Path(checkpoint) if checkpoint else None
        # Spark makes a writer for every batch it plans: it recovers from a crash before the next one.
        for sink_writer in self._sink_writers().values():
            sink_writer.recover()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        """Write one task's rows."""
        if self._discards:
            for _ in iterator:
                pass
            return SinkMessage({})
        tasks = {tag: sink_writer.open() for tag, sink_writer in self._sink_writers().items()}
        try:
            if len(tasks) == 1:
                (task,) = tasks.values()
                for batch in iterator:
                    task.write(batch)
            else:
                for batch in iterator:
                    route(batch, tasks)
            segments = {tag: task.close() for tag, task in tasks.items()}
        except BaseException:
            for task in tasks.values():
                with contextlib.suppress(Exception):  # on a full disk the files of all the others go, too
                    task.abandon()
            raise
        return SinkMessage({tag: segment for tag, segment in segments.items() if segment is not None})

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch in every sink writer; each one skips a batch that it has.

        Raises ChannelError for a batch that was taken back after its query was stopped.
        """
        if self._discards:
            return
        if self._checked is not None:
            self._checked.check_batch(batchId)
        if self._run is not None:
            begin_to_publish(self._run, batchId)
        if self._checkpoint is not None:  # with the mark: what is published is not planned or taken back again
            sync_checkpoint(self._checkpoint)
        tracking = self._tracking
        ingested = tracking.ingested(batchId) if tracking is not None else None
        trace = tracking.trace(batchId, ingested) if tracking is not None else None
        sink_writers = self._sink_writers(ingested, trace)
        for tag in sorted(sink_writers, key=lambda t: self._specs[t].get("kind") == "callback"):
            sink_writers[tag].commit(_segments_of(messages, tag), batchId)
        if tracking is not None:
            given = [t for t, spec in self._specs.items() if spec.get("kind") != DEAD_LETTERS]
            tracking.note(batchId, sum(p.rows for t in given for p in _segments_of(messages, t)), ingested, trace)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what the tasks of a failed batch have written."""
        if self._discards:
            return
        for tag, sink_writer in self._sink_writers().items():
            sink_writer.abort(_segments_of(messages, tag))

    def _sink_writers(
        self, ingested: IngestTimes | None = None, trace: BatchTrace | None = None
    ) -> dict[int, SinkWriter]:
        told: dict[str, Any] = {"ingested": (ingested.oldest, ingested.newest)} if ingested is not None else {}
        if trace is not None:
            told["trace"] = trace.publish.text
        return {tag: open_sink_writer({**spec, **told}, self._epoch) for tag, spec in self._specs.items()}


class BatchWriter(DataSourceArrowWriter):
    """Write one batch by itself, outside of the streaming query that computes it."""

    def __init__(self, writer: UnitWriter, batch: int) -> None:
        self._writer, self._batch = writer, batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        """Write one task's rows."""
        return self._writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the batch."""
        self._writer.commit(messages, self._batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what the tasks of the failed batch have written."""
        self._writer.abort(messages, self._batch)


def _segments_of(messages: Sequence[WriterCommitMessage | None], tag: int) -> list[Segment]:
    # Spark gives None for a task that failed.
    return [m.segments[tag] for m in messages if isinstance(m, SinkMessage) and tag in m.segments]


def route(batch: pa.RecordBatch, tasks: Mapping[int, SinkWriterTask]) -> None:
    """Write the rows of a tagged batch to their sink writers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = batch.schema.names
    tags = batch.column(names.index(TAG))
    present = pc.unique(tags).to_pylist()
    unknown = [tag for tag in present if tag not in tasks]
    if unknown:
        raise ChannelError(
            f"rows have tag {unknown[0]!r}, but the sink writers have {', '.join(map(str, sorted(tasks)))}",
            where=f"sink {SINK_FORMAT}",
            hint=f"set {TAG} to a sink writer's tag in every row",
        )
    for tag in present:
        rows = batch.column(names.index(tag_column(tag)))
        if len(present) > 1:
            rows = rows.filter(pc.equal(tags, pa.scalar(tag, tags.type)))
        fields = [rows.type.field(i).name for i in range(rows.type.num_fields)]
        tasks[tag].write(pa.RecordBatch.from_arrays(rows.flatten(), names=fields))
