"""The query of a unit whose results are output as they change: Spark's update mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.query.writer import SINK_FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True)
class UpdatesWriter:
    """Write one batch; runs in a Python process beside the zone's Spark."""

    config: str

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        writer = batch.write.format(SINK_FORMAT).option("config", self.config).option("batch", str(batch_id))
        writer.mode("append").save()


def updates_writer(frame: DataFrame, config: str) -> DataStreamWriter:
    """Return the writer of a query in update mode: Spark has this mode for ``foreachBatch``, not for Python sinks."""
    return frame.writeStream.foreachBatch(UpdatesWriter(config)).outputMode("update")
