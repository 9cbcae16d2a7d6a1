"""The state of scans that have had no rows, as Spark itself writes it.

A query that went on without state cannot begin to keep some: from its next batch on Spark looks for what the
one before has left. So that is made by another query, whose scans no row comes to. All scans' state has one
form, so only whether they go by event time makes a difference.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from headwater.core.errors import RuntimeFailure
from headwater.dataflow.graph import Graph
from headwater.dataflow.stateful import Scan, by_event_time
from headwater.query.scan import KEY, KEYED, TIME, Scanning, together

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS = 120


def empty_state(spark: SparkSession, place: Path, flow: Graph, operators: Iterable[str]) -> Path:
    """Make it below ``place`` for the scans among some operators, unless it is there; give that checkpoint.

    It is of batch 0, under number 0. Raise RuntimeFailure where Spark does not come to its end.
    """
    made = place / "checkpoint"
    if made.exists():
        return made
    shutil.rmtree(place, ignore_errors=True)
    rows = place / "rows"
    rows.mkdir(parents=True)
    (rows / "one.txt").write_text("none of the scans gets this\n")
    found = [one for id_ in operators if isinstance(one := flow[id_], Scan)]
    scans = [Scanning(one, by_event_time(one, flow.types[one.inputs[0]]), "i0") for one in found]
    # A column that may be NULL, as those of rows that only pass are.
    no_key = F.when(F.col("value") == "", F.col("value"))
    reader: Any = spark.readStream.name("none")
    frame = reader.text(str(rows)).where("false")
    frame = frame.select(
        no_key.alias(KEYED),
        no_key.alias(KEY),
        F.current_timestamp().alias(TIME),
        F.struct("value").alias("i0"),
    )
    if any(scan.event_time is not None for scan in scans):
        frame = frame.withWatermark(TIME, "0 seconds")
    draft = place / "draft"
    query = together(frame, scans).writeStream.format("noop").outputMode("append")
    query = query.option("checkpointLocation", str(draft)).trigger(availableNow=True)
    said = ""
    try:
        running = query.start()
        try:
            running.awaitTermination(_SECONDS)
        finally:
            running.stop()
    except PySparkException as error:
        said = f": {str(error).splitlines()[0]}"
    if not (draft / "state" / "0" / "0" / "1.zip").exists():
        raise RuntimeFailure(
            f"Spark has not made the state for scans to begin with{said}",
            where=str(place),
            hint="see the Spark log of the zone; nothing was changed",
        )
    draft.rename(made)
    return made
