"""Jobs written for plain Spark give the same rows under plain Spark and under Headwater over three zones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StringType, StructField, StructType, TimestampType

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing.compare import compare
from headwater.testing.oracle import run_to_end

ZONES = Continuum.from_text("""
name: plant
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [L1]}
  E2: {layer: edge, parent: S1, locations: [L2]}
""")
NAMED_SOURCES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""A setting of Headwater's own sessions; the sources of plain jobs have no names."""
START = datetime(2026, 1, 1, 8, tzinfo=UTC)
END = "end of the test"
"""A device whose only row moves the watermark past all other rows; plain Spark keeps its windows open."""
SCHEMA = StructType(
    [
        StructField("device", StringType()),
        StructField("time", TimestampType()),
        StructField("signal", DoubleType()),
        StructField("words", StringType()),
    ]
)


def rows(location: str) -> Iterator[dict[str, Any]]:
    for n in range(60):
        time = START + timedelta(minutes=(n * 7) % 180, seconds=n)
        yield {
            "device": f"{location}-{n % 4}",
            "time": time.isoformat(),
            "signal": None if n % 11 == 0 else n * 1.5 - 20,
            "words": ["the cat", "a dog and the cat", "", "owl"][n % 4],
        }
        if n % 9 == 0:
            yield {"device": f"{location}-{n % 4}", "time": time.isoformat(), "signal": 3.0, "words": "the cat"}


def devices(spark: Any, path: str) -> Any:
    return spark.readStream.schema(SCHEMA).json(path)


def start(frame: Any, out: str) -> None:
    """Write as a job of Spark's guide does."""
    query = (
        frame.writeStream.format("parquet")
        .outputMode("append")
        .option("checkpointLocation", f"{out}-checkpoint")
        .trigger(availableNow=True)
        .start(out)
    )
    query.awaitTermination()


def strong_signals(spark: Any, path: str, out: str) -> None:
    df = devices(spark, path)
    start(df.where("signal > 10").select("device", (F.col("signal") / 2).alias("half"), df.time), out)


def windowed_word_count(spark: Any, path: str, out: str) -> None:
    lines = devices(spark, path)
    words = lines.select(F.explode(F.split(lines.words, " ")).alias("word"), lines.time.alias("timestamp"), "device")
    counts = (
        words.withWatermark("timestamp", "10 minutes")
        .groupBy(F.window(words.timestamp, "10 minutes", "5 minutes"), words.word)
        .count()
    )
    start(counts.hint("headwater_layer", "cloud"), out)


def without_duplicates(spark: Any, path: str, out: str) -> None:
    df = devices(spark, path).withWatermark("time", "4 hours")
    unique = hw.layer(df, "site").dropDuplicatesWithinWatermark(["device", "time"])
    start(unique.select("device", "time"), out)


def sessions(spark: Any, path: str, out: str) -> None:
    df = hw.layer(devices(spark, path).withWatermark("time", "10 minutes"), "cloud")
    found = df.groupBy("device", F.session_window("time", "5 minutes")).agg(
        F.count("*").alias("events"), F.max("signal")
    )
    start(found.withColumnRenamed("max(signal)", "highest").drop("nosuch"), out)


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc

    for batch in batches:
        yield pa.RecordBatch.from_arrays(
            [batch.column("device"), pc.multiply(batch.column("signal"), 2.0)], names=["device", "twice"]
        )


def functions_over_batches(spark: Any, path: str, out: str) -> None:
    df = devices(spark, path).withColumn("kind", F.when(F.col("signal") > 30, "high").otherwise("low"))
    high = df.filter(F.col("kind") == "high").select("device", "signal")
    low = df.filter(~(F.col("kind") == "high")).selectExpr("device", "signal - 1 AS signal")
    start(high.union(low).mapInArrow(doubled, "device string, twice double"), out)


JOBS = [strong_signals, windowed_word_count, without_duplicates, sessions, functions_over_batches]


@pytest.mark.parametrize("job", JOBS)
def test_a_job_gives_the_rows_of_plain_spark(
    job: Callable[[Any, str, str], None], endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    for location in ("L1", "L2"):
        place = tmp_path / "in" / location
        place.mkdir(parents=True)
        last = {"device": END, "time": "2026-06-01T00:00:00+00:00", "signal": 99.0, "words": END.replace(" ", "-")}
        for number, part in enumerate((list(rows(location)), [last])):
            (place / f"{number}.json").write_text("\n".join(map(json.dumps, part)))

    plain = endpoint.session()
    plain.conf.set(NAMED_SOURCES, "false")
    try:
        job(plain, f"{tmp_path}/in/*", f"{tmp_path}/plain")
        expected = plain.read.parquet(f"{tmp_path}/plain").toArrow()
    finally:
        plain.conf.set(NAMED_SOURCES, "true")

    made = hw.from_pyspark(
        "job", lambda spark: job(spark, f"{tmp_path}/in/{{location}}", f"{tmp_path}/out"), locations=["L1", "L2"]
    )
    plan = build(made.build(), ZONES)
    (found,) = run_to_end(plan, tmp_path / "run", endpoint).values()

    difference = compare(_whole(expected), _whole(found))
    assert not difference, difference
    assert _whole(found).num_rows > 10


def _whole(table: pa.Table) -> pa.Table:
    """Leave out the rows of the device that ends the test."""
    kept = [not any(str(value).startswith(END[:3]) for value in row.values()) for row in table.to_pylist()]
    return table.filter(pa.array(kept)).select(sorted(table.column_names))
