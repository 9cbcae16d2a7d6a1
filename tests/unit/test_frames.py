"""Jobs for plain PySpark as dataflows: the operators and keys of the fluent API, and errors at the job's lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headwater as hw
from headwater.app import loading
from headwater.core.errors import DataflowError

SCHEMA = "machine string, ts timestamp, v double, tags array<string>"


@pytest.fixture(autouse=True)
def connect_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")


def readings(spark: Any) -> Any:
    return spark.readStream.schema(SCHEMA).option("location_as", "place").json("in/{location}")


def fluent() -> Any:
    return hw.flow("f", locations=["L1"]).read.json("in/{location}", SCHEMA, location_as="place")


def keys(made: Any) -> list[tuple[str, str | None]]:
    flow = made.build()
    return [(flow.keys[o.id], o.layer) for o in flow.operators]


def timed(frame: Any) -> Any:
    return frame.withWatermark("ts", "10 seconds")


def over(batches: Any) -> Any:
    yield from batches


PAIRS: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda d: d.filter("v > 5"), lambda s: s.where("v > 5")),
    (lambda d: d.where(d.v > 5).where(d["v"] < 9), lambda s: s.where("v > 5").where("v < 9")),
    (lambda d: d.select("v", d.machine.alias("m")), lambda s: s.select("v", "machine AS m")),
    (lambda d: d.select("*", F.explode("tags").alias("tag")), lambda s: s.select("*", "explode(tags) AS tag")),
    (lambda d: d.selectExpr("v * 2 AS twice"), lambda s: s.select("v * 2 AS twice")),
    (lambda d: d.withColumn("w", d.v * 2).drop("v", "no"), lambda s: s.withColumn("w", "v * 2").drop("v")),
    (lambda d: d.withColumnsRenamed({"v": "w", "no": "x"}), lambda s: s.withColumnRenamed("v", "w")),
    (lambda d: d.toDF("a", "b", "c", "d", "e"), lambda s: s.toDF("a", "b", "c", "d", "e")),
    (lambda d: d.repartition(3).coalesce(1).alias("x").cache(), lambda s: s),
    (lambda d: d.hint("broadcast"), lambda s: s),
    (lambda d: hw.layer(d, "site").where("v > 5"), lambda s: s.to_layer("site").where("v > 5")),
    (
        lambda d: timed(d).groupBy(F.window("ts", "1 hour"), "machine").agg(F.avg("v").alias("mean"), F.count("*")),
        lambda s: timed(s).group_by(hw.window("ts", "1 hour"), "machine").agg("avg(v) AS mean", "count(*)"),
    ),
    (
        lambda d: timed(d).groupBy("machine", F.window("ts", "1 hour")).count(),
        lambda s: (
            timed(s).group_by(hw.window("ts", "1 hour"), "machine").count().select("machine", "`window`", "count")
        ),
    ),
    (
        lambda d: timed(d).groupBy(F.session_window("ts", "5 minutes"), F.upper("machine").alias("m")).max("v"),
        lambda s: (
            timed(s).with_columns(m="upper(machine)").group_by(hw.session_window("ts", "5 minutes"), "m").max("v")
        ),
    ),
    (lambda d: timed(d).dropDuplicates(["machine", "ts"]), lambda s: timed(s).drop_duplicates("machine", "ts")),
    (lambda d: timed(d).dropDuplicatesWithinWatermark(["machine"]), lambda s: timed(s).drop_duplicates("machine")),
    (lambda d: timed(d).distinct(), lambda s: timed(s).drop_duplicates()),
    (
        lambda d: d.select("machine", "v").union(d.select("place", "v")),
        lambda s: s.select("machine", "v").union(s.select("place", "v").toDF("machine", "v")),
    ),
    (
        lambda d: d.select("machine", "v").unionByName(d.select("v", "machine")),
        lambda s: s.select("machine", "v").union(s.select("v", "machine")),
    ),
    (lambda d: d.mapInArrow(over, "id int"), lambda s: s.map_batches(over, "id int")),
]


@pytest.mark.parametrize(("plain", "fluently"), PAIRS)
def test_frames_give_the_operators_of_the_fluent_api(
    plain: Callable[[Any], Any], fluently: Callable[[Any], Any]
) -> None:
    columns: list[Any] = []

    def job(spark: Any) -> None:
        frame = plain(readings(spark))
        columns.extend([frame.columns, frame.schema.simpleString()])
        frame.writeStream.queryName("out").format("memory").start()

    made = hw.from_pyspark("f", job, locations=["L1"])
    stream = fluently(fluent())
    stream.write.memory("out")
    assert keys(made) == keys(stream.builder)
    assert columns == [stream.columns, stream.schema.struct.text.replace("`", "")]


def test_shared_frames_share_operators() -> None:
    def job(spark: Any) -> None:
        hot = readings(spark).where("v > 50")
        hot.createOrReplaceTempView("hot")
        hot.writeStream.format("console").start()
        spark.table("hot").select("v").writeStream.format("parquet").start("out")

    assert [o.kind for o in hw.from_pyspark("f", job).build().operators].count("where") == 1


WRONG: list[tuple[str, str]] = [
    ("df.orderBy('v')", ".top_k("),
    ("df.limit(5)", ".write.memory("),
    ("df.show()", ".write.memory("),
    ("df.collect()", ".write.memory("),
    ("df.toPandas()", ".write.memory("),
    ("df.sample(0.1)", "xxhash64"),
    ("df.join(df, 'machine')", "within="),
    ("df.where('nosuch > 1')", "the columns are"),
    ("df.groupBy('machine').count()", "with_watermark"),
    ("df.rollup('machine').count()", "groupBy for each level"),
    ("timed.dropDuplicates(['machine'])", "dropDuplicatesWithinWatermark"),
    ("df.mapInPandas(lambda f: f, 'id int')", "mapInArrow"),
    ("df.withColumn('u', F.udf(lambda v: v)('v'))", ".map_batches("),
    ("df.intersect(df)", "unionByName"),
    ("df.fillna(0)", "coalesce"),
    ("spark.read.schema('id int').json('in')", "spark.readStream"),
    ("spark.readStream.format('socket').option('host', 'h').load()", "csv, json, parquet"),
    ("spark.readStream.json('in')", ".schema("),
    ("spark.createDataFrame([(1,)], 'id int')", "spark.readStream"),
    ("spark.sql('SELECT 1')", "methods of DataFrames"),
    ("spark.table('nosuch')", "tables of a catalog"),
    ("spark.conf.set('spark.sql.session.timeZone', 'CET')", "UTC"),
    ("df.writeStream.format('parquet').outputMode('update').start('out')", "leave it out"),
    ("df.writeStream.format('parquet').partitionBy('v').start('out')", ".where("),
    ("df.writeStream.format('csv').start('out')", "header"),
    ("df.writeStream.format('parquet').start()", "start("),
    ("df.writeStream.format('delta').start('out')", "csv, json, parquet"),
    ("df.writeStream.foreachBatch(lambda f, n: None).start()", "for_each_batch"),
    ("df.writeStream.format('parquet').option('compression', 'zstd').start('out')", "leave them out"),
    ("df.writeStream.toTable('t')", 'start("out")'),
]


@pytest.mark.parametrize(("line", "hint"), WRONG)
def test_what_is_not_translated_is_refused_at_its_line(line: str, hint: str, tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text(
        "from pyspark.sql import SparkSession\nfrom pyspark.sql import functions as F\n"
        f"spark = SparkSession.builder.getOrCreate()\ndf = spark.readStream.schema('{SCHEMA}').json('in')\n"
        f"timed = df.withWatermark('ts', '10 seconds')\n{line}\ndf.writeStream.format('console').start()\n"
    )
    with pytest.raises(DataflowError) as raised:
        loading.load_dataflow(str(file))
    assert raised.value.where is not None and "job.py:6" in raised.value.where, raised.value
    assert hint in str(raised.value.hint), raised.value.hint


def test_a_job_in_a_file_is_a_dataflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED")
    before = SparkSession.Builder.getOrCreate
    file = tmp_path / "job.py"
    file.write_text(
        "from pyspark.sql import SparkSession\n"
        "spark = (SparkSession.builder.appName('my job').master('local[2]')\n"
        "         .config('headwater.locations', 'L1, L2').getOrCreate())\n"
        "spark.conf.set('spark.sql.shuffle.partitions', 4)\n"
        f"df = spark.readStream.schema('{SCHEMA}').option('maxFilesPerTrigger', 1).json('in/{{location}}')\n"
        "df.printSchema()\nassert df.isStreaming and spark.conf.get('spark.sql.shuffle.partitions') == '4'\n"
        "q = df.writeStream.format('parquet').option('checkpointLocation', 'c').start('out')\n"
        "q.awaitTermination()\nspark.streams.awaitAnyTermination()\nspark.stop()\n"
    )
    flow = loading.load_dataflow(str(file)).dataflow
    assert flow.name == "my-job" and flow.locations == ("L1", "L2")
    assert [o.kind for o in flow.operators] == ["files", "write_files"]
    assert SparkSession.Builder.getOrCreate is before


def test_a_file_that_starts_no_query_is_none(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text("from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n")
    with pytest.raises(DataflowError, match="no dataflow in the file"):
        loading.load_dataflow(str(file))
