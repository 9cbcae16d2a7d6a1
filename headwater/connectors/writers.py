"""Sink writers: the outputs of one unit, each committed exactly once by (epoch, batch).

A task opens a sink writer, writes batches and gets a *segment*, which describes its file in
staging. The driver then commits all segments of a batch. Committing twice changes nothing,
so after a crash between two sink writers' commits, the replayed batch completes the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headwater.channels.log import Log
from headwater.channels.open import LOG_KINDS, open_log
from headwater.channels.segments import Segment, SegmentWriter
from headwater.connectors.sparkclient import own_session
from headwater.connectors.staged import StagedSinkWriter
from headwater.core.errors import ChannelError, UserCodeError
from headwater.dataflow.function import raised

if TYPE_CHECKING:
    import pyarrow as pa


DEAD_LETTERS = "deadletters"
"""The kind of sink writer for records that do not fit a source's schema."""


class SinkWriterTask(Protocol):
    """Write one task's rows to one sink writer's staging."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""

    def close(self) -> Segment | None:
        """Finish; return the segment to commit, None when there were no rows."""

    def abandon(self) -> None:
        """Remove the task's files."""


class SinkWriter(Protocol):
    """Commit a unit's batches to one output."""

    def open(self) -> SinkWriterTask:
        """Start writing in a task."""

    def commit(self, segments: Sequence[Segment], batch: int) -> None:
        """Commit a batch; one that is committed already is left as it is."""

    def abort(self, segments: Sequence[Segment]) -> None:
        """Remove the segments of a failed batch."""

    def recover(self) -> None:
        """Finish a commit that a crash interrupted."""

    def sweep(self) -> None:
        """Delete what interrupted batches have staged; call it while no task of the unit runs."""

    def newest(self) -> int | None:
        """Return the newest batch of its lineage in the output; None for none, or where repetitions are written."""


class ChannelWriter:
    """Write to a channel: rows to its log (described as in ``channels.open``), with the event-time frontier.

    Either ``event_time`` names the column whose newest value is the frontier
    (right for a unit that holds no rows back and reads one writer), or ``offsets`` is the
    directory of the query's offset log: the frontier is the watermark that Spark planned the batch with. Both less
    ``delay`` seconds.
    ``ingested``: ingest times of the oldest and the newest row that led to the batch, where known. ``trace``: the
    ``traceparent`` of its publication.
    """

    def __init__(self, spec: Mapping[str, Any], epoch: int) -> None:
        self._epoch = epoch
        self._delay = round(float(spec.get("delay") or 0.0) * 1_000_000)
        self._offsets: str | None = spec.get("offsets")
        self._ingested: tuple[float, float] | None = spec.get("ingested")
        self._trace: str | None = spec.get("trace")
        self.log = open_log(spec)

    def open(self) -> SinkWriterTask:
        """Start a segment."""
        return _LogTask(self.log)

    def commit(self, segments: Sequence[Segment], batch: int) -> None:
        """Publish the batch. Rows after it are newer than the frontier: hence one millisecond less."""
        timed = [p if p.frontier is None else replace(p, frontier=p.frontier - self._delay - 1000) for p in segments]
        if self._offsets is not None:
            watermark = planned_watermark(Path(self._offsets), batch)
            if watermark is not None:
                frontier = watermark - self._delay - 1000
                timed.append(Segment(file=None, rows=0, bytes=0, crc32=0, frontier=frontier))
        self.log.commit(self._epoch, batch, timed, ingested=self._ingested, trace=self._trace)

    def abort(self, segments: Sequence[Segment]) -> None:
        """Delete the segments."""
        self.log.discard(segments)

    def recover(self) -> None:
        """Do nothing: the next commit rolls forward."""

    def sweep(self) -> None:
        """Delete what interrupted batches have left in staging."""
        self.log.sweep()

    def newest(self) -> int | None:
        """Return the newest batch of its lineage in the log."""
        return self.log.newest_batch()


def planned_watermark(offsets: Path, batch: int) -> int | None:
    """Read from Spark's offset log the watermark of a batch, in microseconds; None before there is one."""
    lines = (offsets / str(batch)).read_text().splitlines()
    millis = int(json.loads(lines[1]).get("batchWatermarkMs", 0))
    return millis * 1000 if millis > 0 else None


class _LogTask:
    def __init__(self, log: Log) -> None:
        self._log = log
        self._segment: SegmentWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if self._segment is None:
            self._segment = self._log.open_segment(batch.schema)
        self._segment.write(batch)

    def close(self) -> Segment | None:
        return self._segment.close() if self._segment else None

    def abandon(self) -> None:
        if self._segment:
            self._segment.abandon()


class CallbackSinkWriter(StagedSinkWriter):
    """Call a Python function with every batch: ``function`` (cloudpickle, base64), ``operator``, ``as_dataframe``.

    At-least-once, like foreachBatch: after a crash it is called again with the same batch id.
    A batch without rows is no call.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        self._function: str = spec["function"]
        self._operator: str = spec.get("operator", "callback")
        self._as_dataframe = bool(spec.get("as_dataframe"))

    def commit(self, segments: Sequence[Segment], batch: int) -> None:
        """Call the function with the whole batch."""
        import base64

        import cloudpickle
        import pyarrow as pa

        files = [p for p in segments if p.file]
        if not files:
            return
        try:
            function = cloudpickle.loads(base64.b64decode(self._function))
            table = pa.Table.from_batches(self.batches(files))
            if self._as_dataframe:
                with own_session() as session:
                    function(session.createDataFrame(table), batch)
            else:
                function(table, batch)
        except Exception as error:
            raise UserCodeError(
                f"the sink function raised {raised(error)}",
                where=f"operator {self._operator!r}, batch {batch}",
                hint="fix the function and restart the unit: it is called with the batch again, with the same id",
            ) from error
        self.abort(files)

    def newest(self) -> int | None:
        """Return None: the function may see a batch again."""
        return None


# Each kind imports its module when it is opened: a process without a sink on Kafka does not load its client.


def _files(spec: Mapping[str, Any], epoch: int) -> SinkWriter:
    from headwater.connectors.filewriter import FileSinkWriter

    return FileSinkWriter(spec, epoch)


def _dead_letters(spec: Mapping[str, Any], epoch: int) -> SinkWriter:
    from headwater.connectors.deadletters import DeadLetterWriter

    return DeadLetterWriter(spec, epoch)


def _callback(spec: Mapping[str, Any], epoch: int) -> SinkWriter:
    return CallbackSinkWriter(spec)


def _kafka(spec: Mapping[str, Any], epoch: int) -> SinkWriter:
    from headwater.connectors.kafkawriter import KafkaSinkWriter

    return KafkaSinkWriter(spec, epoch)


def _mqtt(spec: Mapping[str, Any], epoch: int) -> SinkWriter:
    from headwater.connectors.mqttwriter import MqttSinkWriter

    return MqttSinkWriter(spec)


def _opcua(spec: Mapping[str, Any], epoch: int) -> SinkWriter:
    from headwater.connectors.opcuawriter import OpcuaSinkWriter

    return OpcuaSinkWriter(spec)


def _delta(spec: Mapping[str, Any], epoch: int) -> SinkWriter:
    from headwater.connectors.deltawriter import DeltaSinkWriter

    return DeltaSinkWriter(spec, epoch)


def _iceberg(spec: Mapping[str, Any], epoch: int) -> SinkWriter:
    from headwater.connectors.icebergwriter import IcebergSinkWriter

    return IcebergSinkWriter(spec, epoch)


def _postgres(spec: Mapping[str, Any], epoch: int) -> SinkWriter:
    from headwater.connectors.postgreswriter import PostgresSinkWriter

    return PostgresSinkWriter(spec, epoch)


def _custom(spec: Mapping[str, Any], epoch: int) -> SinkWriter:
    from headwater.connectors.customs import CustomSinkWriter

    return CustomSinkWriter(spec)


SINK_WRITERS: Mapping[str, Callable[[Mapping[str, Any], int], SinkWriter]] = {
    **{kind.sink_writer: ChannelWriter for kind in LOG_KINDS.values()},
    "files": _files,
    DEAD_LETTERS: _dead_letters,
    "kafka": _kafka,
    "mqtt": _mqtt,
    "opcua": _opcua,
    "delta": _delta,
    "iceberg": _iceberg,
    "postgres": _postgres,
    "callback": _callback,
    "custom": _custom,
}
"""All kinds of sink writers by name: each makes the sink writer of a description and an epoch."""


def open_sink_writer(spec: Mapping[str, Any], epoch: int) -> SinkWriter:
    """Make the sink writer that a config entry describes."""
    make = SINK_WRITERS.get(str(spec.get("kind")))
    if make is None:
        raise ChannelError(
            f"unknown kind of sink writer {spec.get('kind')!r}",
            where="sink config",
            hint=f"use one of {', '.join(SINK_WRITERS)}",
        )
    return make(spec, epoch)
