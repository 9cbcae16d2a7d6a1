"""Jobs written for plain Spark give the same rows under plain Spark and under Headwater over three zones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StringType, StructField, StructType, TimestampType

import headwater as hw
from headwater.app.loading import load_dataflow
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing.compare import compare

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
    lines = hw.layer(devices(spark, path), "cloud")
    words = lines.select(F.explode(F.split(lines.words, " ")).alias("word"), lines.time.alias("timestamp"), "device")
    counts = (
        words.withWatermark("timestamp", "10 minutes")
        .groupBy(F.window("timestamp", "10 minutes", "5 minutes"), "word")
        .count()
    )
    start(counts, out)


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


def impressions_and_clicks(spark: Any, path: str, out: str) -> None:
    df = devices(spark, path)
    impressions = df.where("signal < 30").withWatermark("time", "10 minutes").alias("i")
    clicks = df.selectExpr("device AS clicked", "time AS click_time", "signal AS strength", "words")
    clicks = hw.layer(clicks.where("strength > 10").withWatermark("click_time", "20 minutes"), "cloud")
    within = F.expr("click_time >= i.time AND click_time <= i.time + INTERVAL 30 MINUTES")
    joined = hw.layer(impressions, "cloud").join(clicks, (F.col("device") == clicks.clicked) & within, "leftOuter")
    start(joined.drop(clicks.words).select("device", "time", "words", "click_time", "strength", "clicked"), out)


def evenings(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        frame["until"] = frame["time"].dt.ceil("h")
        yield frame[["until", "device", "fahrenheit", "about"]]


def python_functions(spark: Any, path: str, out: str) -> None:
    @F.udf("struct<kind: string, letters: int>")
    def described(device, words):  # type: ignore[no-untyped-def]
        return device.split("-")[0], len(words or "")

    @F.pandas_udf("double")  # type: ignore[untyped-decorator]
    def fahrenheit(celsius: pd.Series) -> pd.Series:
        return celsius * 9 / 5 + 32

    df = devices(spark, path).where(fahrenheit(F.col("signal") + 1) > 40)
    df = df.withColumn("about", described("device", "words")).select("*", fahrenheit("signal").alias("fahrenheit"))
    df = df.withColumn("about", F.concat_ws(":", "about.kind", F.col("about.letters").cast("string")))
    start(df.mapInPandas(evenings, "until timestamp, device string, fahrenheit double, about string"), out)


def statements(spark: Any, path: str, out: str) -> None:
    updates = hw.layer(devices(spark, path).withWatermark("time", "10 minutes"), "site")
    updates.createOrReplaceTempView("updates")
    windows = spark.sql(
        """
        SELECT window, device, avg(signal) AS mean, count(*) AS n FROM updates
        WHERE signal > :low GROUP BY window(time, '20 minutes'), device""",
        args={"low": -5.5},
    )
    start(spark.sql("SELECT window.start AS begin, device, mean FROM {w} WHERE n > 1", w=windows), out)


def static_frames(spark: Any, path: str, out: str) -> None:
    owners = spark.createDataFrame(
        [
            ("L1-0", "ann", START, Decimal("0.25"), {"floor": 2}, [1.5, float("nan")], b"\x00\xff"),
            ("L2-3", 'b"ö\n', START.replace(microsecond=7), Decimal("-1.00"), {}, [], None),
            ("L2-3", "cy", None, None, None, None, b""),
            (None, "nobody", START, None, None, None, None),
        ],
        "device string, owner string, since timestamp, share decimal(4,2), at map<string, int>, s array<double>, "
        "b binary",
    )
    limits = spark.read.csv(f"{Path(path).parent.parent}/limits.csv", header=True)
    limits = limits.withColumn("most", F.col("most").cast("double"))
    df = devices(spark, path)
    low = limits.where(F.col("most") < 60).select("device", (F.col("most") / 2).alias("half"))
    below = df.join(F.broadcast(low), (df.device == low.device) & (df.signal < low.half)).drop(low.device)
    named = hw.layer(below, "site").join(
        owners.withColumnRenamed("device", "of"), F.col("device") == F.col("of"), "left"
    )
    named.createOrReplaceTempView("named")
    limits.createOrReplaceTempView("limits")
    others = spark.sql("SELECT * FROM named LEFT ANTI JOIN limits ON named.device = limits.device AND limits.most > 55")
    others = others.drop("words").withColumn("at", F.to_json("at")).withColumn("n", F.col("half").cast("int"))
    others = others.withColumn("signal", F.when(F.col("signal") < 0, float("nan")).otherwise(F.col("signal")))
    others.createOrReplaceTempView("others")
    some = others.na.fill({"owner": "none", "share": 9.75, "n": 2.5, "signal": 0}).dropna(thresh=8)
    more = others.fillna(7.5).fillna("nothing", subset=["owner", "n"]).dropna(subset=["since", "signal"])
    start(some.union(more).union(others.dropna()), out)


def batches_of_a_query(spark: Any, path: str, out: str, port: int) -> None:
    def save(frame: Any, number: int) -> None:
        setting = "spark.connect.grpc.binding.port"
        assert frame.sparkSession.conf.get(setting) == str(port), "the zone's Spark, and not one of its own"
        doubled = frame.selectExpr("device", "signal * 2 AS twice")
        doubled.write.mode("overwrite").parquet(f"{out}/batch={number}")

    df = hw.layer(devices(spark, path).where("signal > 20"), "cloud")
    query = (
        df.writeStream.foreachBatch(save).option("checkpointLocation", f"{out}-checkpoint")
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()


JOBS = [
    strong_signals, windowed_word_count, without_duplicates, sessions, functions_over_batches, impressions_and_clicks,
    python_functions, statements, static_frames,
]  # fmt: skip
FEW = [windowed_word_count, impressions_and_clicks, python_functions, static_frames]


PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
SCHEMA = "device string, time timestamp, signal double, words string"


@dp.temporary_view(spark_conf={{"headwater.layer": "site"}})
def readings():
    rows = spark.readStream.schema(SCHEMA).json("{path}")
    return rows.where("signal IS NOT NULL").withWatermark("time", "10 minutes")


@dp.table(table_properties={{"headwater.path": "{out}/means"}})
def means():
    hours = F.window("time", "1 hour")
    return spark.readStream.table("readings").groupBy(hours, "device").agg(F.avg("signal").alias("mean"))


@dp.table(table_properties={{"headwater.path": "{out}/hot"}}, spark_conf={{"headwater.layer": "cloud"}})
def hot():
    found = spark.readStream.table("means").where(F.col("mean") > 5)
    return found.select("device", F.col("window.start").alias("hour"), F.round("mean", 6).alias("mean"))


@dp.materialized_view(table_properties={{"headwater.path": "{out}/warm"}})
def warm():
    return spark.sql("SELECT device, hour FROM hot WHERE mean < 30")


dp.create_streaming_table("alarms", table_properties={{"headwater.path": "{out}/alarms"}})


@dp.append_flow(target="alarms")
def of_means():
    return spark.readStream.table("hot").select("device")


@dp.append_flow(target="alarms", name="of_readings")
def of_readings():
    return spark.readStream.table("readings").where("signal > 40 AND words <> 'owl'").select("device")
"""
TABLES = ("means", "hot", "warm", "alarms")


def write_input(directory: Path) -> None:
    """Write the rows of two locations, a last one that closes all windows, and the rows of a table."""
    for location in ("L1", "L2"):
        place = directory / location
        place.mkdir(parents=True)
        last = {"device": END, "time": "2026-06-01T00:00:00+00:00", "signal": 99.0, "words": END.replace(" ", "-")}
        for number, part in enumerate((list(rows(location)), [last])):
            (place / f"{number}.json").write_text("\n".join(map(json.dumps, part)))
    (directory.parent / "limits.csv").write_text(
        "device,most\nL1-0,40\nL1-0,59.5\nL1-1,30\nL2-3,50\nL2-2,99\nL9-9,10\n,20\n"
    )


def run_over_zones(dataflow: Dataflow, endpoint: LocalEndpoint, directory: Path) -> None:
    deployment = LocalRun(build(dataflow, ZONES), directory, endpoint, UnitSettings(trigger="1 second"))
    deployment.start()
    try:
        deployment.drain()
    finally:
        deployment.stop()


@contextmanager
def unnamed_sources(spark: SparkSession) -> Iterator[None]:
    """Let the sources of plain jobs run, which have no names."""
    spark.conf.set(NAMED_SOURCES, "false")
    try:
        yield
    finally:
        spark.conf.set(NAMED_SOURCES, "true")


@pytest.mark.parametrize("them", [FEW, pytest.param(JOBS, marks=pytest.mark.long)], ids=["few", "all"])
def test_jobs_give_the_rows_of_plain_spark(
    endpoint: LocalEndpoint, active_session: SparkSession, tmp_path: Path, them: Sequence[Callable[..., None]]
) -> None:
    """The jobs run in one deployment; a job of ``foreachBatch`` writes its files itself."""
    write_input(tmp_path / "in")

    def jobs(spark: Any, path: str, out: Path) -> None:
        for job in them:
            job(spark, path, f"{out}/{job.__name__}")
        batches_of_a_query(spark, path, f"{out}/batches_of_a_query", endpoint.port)

    plain = active_session
    with unnamed_sources(plain):
        jobs(plain, f"{tmp_path}/in/*", tmp_path / "plain")
    made = hw.from_pyspark(
        "jobs", lambda spark: jobs(spark, f"{tmp_path}/in/{{location}}", tmp_path / "out"), locations=["L1", "L2"]
    )
    run_over_zones(made.build(), endpoint, tmp_path / "run")
    for job in (*them, batches_of_a_query):
        expected, found = (plain.read.parquet(f"{tmp_path}/{side}/{job.__name__}") for side in ("plain", "out"))
        assert_equal(job.__name__, expected, found)


@pytest.mark.long
def test_a_pipeline_gives_the_rows_of_plain_spark(
    endpoint: LocalEndpoint, active_session: SparkSession, tmp_path: Path
) -> None:
    """The file is loaded as ``spark-pipelines run`` loads it, and as ``headwater apply`` does."""
    write_input(tmp_path / "in")
    plain = active_session
    try:
        with unnamed_sources(plain):
            run_pipeline(plain, PIPELINE.format(path=f"{tmp_path}/in/*", out="unused"), tmp_path)
        file = tmp_path / "plant.py"
        file.write_text(PIPELINE.format(path=f"{tmp_path}/in/{{location}}", out=tmp_path / "out"))
        loaded = load_dataflow(str(file)).dataflow
        run_over_zones(loaded, endpoint, tmp_path / "run")
        expected = {table: plain.table(table) for table in TABLES}
        # Spark's file sink has one log of batches for all flows of a table, and skips the second flow's first batch.
        loud = plain.read.schema(SCHEMA).json(f"{tmp_path}/in/*").where("signal > 40 AND words <> 'owl'")
        expected["alarms"] = expected["hot"].select("device").unionAll(loud.select("device"))
        for table in TABLES:
            assert_equal(table, expected[table], plain.read.parquet(f"{tmp_path}/out/{table}"))
    finally:
        for table in TABLES:
            plain.sql(f"DROP TABLE IF EXISTS {table}")


def run_pipeline(spark: SparkSession, text: str, directory: Path) -> None:
    """Run a pipeline in plain Spark, as its command does."""
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, handle_pipeline_events, start_run

    graph = create_dataflow_graph(spark, default_catalog=None, default_database=None, sql_conf={NAMED_SOURCES: "false"})
    with graph_element_registration_context(SparkConnectGraphElementRegistry(spark, graph)):
        exec(compile(text, "plant.py", "exec"), {"__name__": "plant"})
    events = start_run(
        spark, graph, full_refresh=[], full_refresh_all=False, refresh=[], dry=False,
        storage=(directory / "storage").as_uri(),
    )  # fmt: skip
    handle_pipeline_events(events)


def assert_equal(name: str, expected: DataFrame, found: DataFrame) -> None:
    rows = _whole(found.toArrow())
    difference = compare(_whole(expected.toArrow()), rows)
    assert not difference, (name, difference.examples)
    assert rows.num_rows > 10, name


def _whole(table: pa.Table) -> pa.Table:
    """Leave out the rows of the device that ends the test, and the numbers of batches."""
    kept = [not any(str(value).startswith(END[:3]) for value in row.values()) for row in table.to_pylist()]
    return table.filter(pa.array(kept)).select(sorted(n for n in table.column_names if n != "batch"))
