"""The state of scans that have had no rows, as Spark itself writes it.

A query that continues without state cannot start to keep some: from its next batch on Spark reads the state of
the one before. So another query, whose scans get no rows, writes that state. The state of all scans has one
form, which differs only for scans in event-time order.
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
    """Make the state of the scans among ``operators`` below ``place``, unless it exists; return its checkpoint.

    The state is that of batch 0, operator number 0. Raise RuntimeFailure where the query does not finish.
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
    frame = reader.text(str(rows)).where(F.lit(False))
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
            f"Spark has not created the empty state of the scans{said}",
            where=str(place),
            hint="read the Spark log of the zone; nothing was changed",
        )
    draft.rename(made)
    return made
