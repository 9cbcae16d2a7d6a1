"""A driver of plain Spark in the cloud: workloads as hand-written queries, one after the other.

    python -m benchmarks.field.spark_query SETTINGS.json

Each line on its input is an `Order` as JSON: its query takes the place of the one before. It prints, one JSON document
a line, when the executors and when a query are there, as the stretched cluster's driver does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.field.workloads import WORKLOADS
from benchmarks.flowunits.stretched_query import land, wait_for_executors

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


@dataclass(frozen=True)
class Settings:
    """The variant's settings for its driver."""

    master: str
    conf: dict[str, str]
    executors: int
    trigger: str


@dataclass(frozen=True)
class Order:
    """A query to run; ``inputs`` are the directories of the locations."""

    workload: str
    inputs: dict[str, str]
    checkpoint: str
    results: str


def start(spark: SparkSession, settings: Settings, order: Order) -> StreamingQuery:
    """Start the query of a workload."""
    workload, results = WORKLOADS[order.workload], Path(order.results)
    streams = {
        location: spark.readStream.name(f"rows_{location}")
        .schema(workload.schema)
        .option("maxFileAge", "36500d")
        # A look at a directory asks for the host of each file there: a request over the links for each one.
        .option("cleanSource", "delete")
        .csv(uri)
        .withColumn("location", F.lit(location))
        for location, uri in order.inputs.items()
    }
    return (
        workload.spark(streams)
        .writeStream.queryName(order.workload)
        .outputMode("append")
        .foreachBatch(lambda rows, batch: land(results, rows.toArrow(), batch))
        .option("checkpointLocation", order.checkpoint)
        .trigger(processingTime=settings.trigger)
        .start()
    )


def watch(query: StreamingQuery) -> None:
    """End this process when a query fails."""
    try:
        query.awaitTermination()
    except Exception:
        traceback.print_exc()
        os._exit(1)


def main(words: list[str]) -> int:
    """Run queries until ended."""
    settings = Settings(**json.loads(Path(words[0]).read_text()))
    builder = SparkSession.builder.master(settings.master).appName("field")
    for key, value in settings.conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    wait_for_executors(spark, settings.executors)
    print(json.dumps({"executors": settings.executors}), flush=True)
    for line in sys.stdin:
        for query in spark.streams.active:
            query.stop()
        started = start(spark, settings, Order(**json.loads(line)))
        threading.Thread(target=watch, args=(started,), daemon=True).start()
        print(json.dumps({"query": str(started.id)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
