"""A driver of plain Spark in the cloud: a workload as one hand-written query.

    python -m benchmarks.field.spark_query SETTINGS.json

It prints, one JSON document a line, when the executors and the query are there, as the stretched cluster's driver does.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.field.workloads import WORKLOADS
from benchmarks.flowunits.stretched_query import land, wait_for_executors


@dataclass(frozen=True)
class Settings:
    """The variant's settings for its driver; ``inputs`` are the directories of the locations."""

    master: str
    conf: dict[str, str]
    executors: int
    workload: str
    inputs: dict[str, str]
    trigger: str
    checkpoint: str
    results: str


def main(words: list[str]) -> int:
    """Run the query until ended."""
    settings = Settings(**json.loads(Path(words[0]).read_text()))
    workload = WORKLOADS[settings.workload]
    results = Path(settings.results)
    builder = SparkSession.builder.master(settings.master).appName("field")
    for key, value in settings.conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    wait_for_executors(spark, settings.executors)
    print(json.dumps({"executors": settings.executors}), flush=True)
    streams = {
        location: spark.readStream.name(f"rows_{location}")
        .schema(workload.schema)
        .option("maxFileAge", "36500d")
        .csv(uri)
        .withColumn("location", F.lit(location))
        for location, uri in settings.inputs.items()
    }
    query = (
        workload.spark(streams)
        .writeStream.queryName("field")
        .outputMode("append")
        .foreachBatch(lambda rows, batch: land(results, rows.toArrow(), batch))
        .option("checkpointLocation", settings.checkpoint)
        .trigger(processingTime=settings.trigger)
        .start()
    )
    print(json.dumps({"query": str(query.id)}), flush=True)
    query.awaitTermination()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
