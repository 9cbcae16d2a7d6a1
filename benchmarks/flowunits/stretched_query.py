"""The stretched cluster's driver: the pipeline as one hand-written Structured Streaming query.

    python -m benchmarks.flowunits.stretched_query SETTINGS.json

It runs in the cloud zone and says, one JSON document a line, when the executors and the query are
there. Results come to the driver, which writes them to its own disk: `results/BATCH.parquet`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from benchmarks.flowunits.stretched_source import EventSource
from benchmarks.pipeline import COLLATZ, STEPS, Averages

_EXECUTORS_SECONDS = 180.0


@dataclass(frozen=True)
class Settings:
    """The variant's settings for its driver."""

    master: str
    conf: dict[str, str]
    executors: int
    servers: dict[str, tuple[str, int]]
    splits: int
    batch_rows: int
    trigger: str
    checkpoint: str
    results: str


def frame(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the pipeline as a user would write it for a cluster that spans everything."""
    rows = (
        spark.readStream.name("events")
        .format("edge_events")
        .option("servers", json.dumps(settings.servers))
        .option("splits", settings.splits)
        .option("max_rows", settings.batch_rows)
        .load()
    )
    means = (
        rows.where("i % 3 = 0")
        .selectExpr("location", "i % 10 AS key", "i")
        .groupBy("location", "key")
        .transformWithStateInPandas(
            statefulProcessor=Averages("location", "key"),
            outputStructType="location string, key bigint, mean double",
            outputMode="Append",
            timeMode="None",
        )
    )
    return means.selectExpr("location", "key", "mean", f"{COLLATZ} AS steps").where(f"steps < {STEPS}")


def land(results: Path, table: pa.Table, batch: int) -> None:
    """Write a batch's results atomically, and once even if it is repeated."""
    if table.num_rows:
        scratch = results / f".{batch:08d}"
        with scratch.open("wb") as file:
            pq.write_table(table, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(results / f"{batch:08d}.parquet")


def wait_for_executors(spark: SparkSession, count: int) -> None:
    """Return when all executors have registered."""
    deadline = time.monotonic() + _EXECUTORS_SECONDS
    while (there := spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1) < count:
        if time.monotonic() > deadline:
            sys.exit(f"{there} of {count} executors after {_EXECUTORS_SECONDS:.0f} s: see the workers' logs")
        time.sleep(0.2)


def main(words: list[str]) -> int:
    """Run the query until ended."""
    settings = Settings(**json.loads(Path(words[0]).read_text()))
    results = Path(settings.results)
    results.mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.master(settings.master).appName("stretched")
    for key, value in settings.conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(EventSource)
    wait_for_executors(spark, settings.executors)
    print(json.dumps({"executors": settings.executors}), flush=True)
    query = (
        frame(spark, settings)
        .writeStream.queryName("stretched")
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
