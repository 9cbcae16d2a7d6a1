"""Jobs for plain PySpark as dataflows: the operators and keys of the fluent API, and errors at the job's lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

import headwater as hw
from headwater.app import loading
from headwater.connectors.sparktypes import spark_type
from headwater.continuum.model import Continuum
from headwater.core.errors import DataflowError, ErrorList
from headwater.dataflow.operators import MapBatches, Select, Where
from headwater.dataflow.sinks import CallbackSink, RealTimeKafkaSink
from headwater.plan.build import build
from headwater.sql.schema import Schema

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
    (lambda d: d.fillna(True), lambda s: s),
    (
        lambda d: d.fillna(0).na.fill("none", ["machine", "v"]),
        lambda s: s.with_columns(v="coalesce(nanvl(v, CAST(NULL AS double)), CAST(0L AS double))").with_columns(
            machine="coalesce(machine, CAST('none' AS string))"
        ),
    ),
    (
        lambda d: d.fillna({"machine": 1, "v": "2.5"}),
        lambda s: s.with_columns(
            machine="coalesce(machine, CAST(1L AS string))",
            v="coalesce(nanvl(v, CAST(NULL AS double)), CAST('2.5' AS double))",
        ),
    ),
    (
        lambda d: d.dropna(subset=["machine", "v"]),
        lambda s: s.where("machine IS NOT NULL AND (v IS NOT NULL AND NOT isnan(v))"),
    ),
    (
        lambda d: d.na.drop("all", subset="machine"),
        lambda s: s.where("CASE WHEN machine IS NOT NULL THEN 1 ELSE 0 END >= 1"),
    ),
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


def other(made: Any) -> Any:
    """Return a second stream, of a frame or of the fluent API."""
    return made.withColumnRenamed("v", "w").withColumnRenamed("ts", "at").withWatermark("at", "5 seconds")


NEAR = ("-1 minute", "1 minute")
PAIRS += [
    (
        lambda d: (
            timed(d).alias("a")
            .join(other(d).alias("b"), F.expr(
                "a.machine = b.machine AND b.at BETWEEN a.ts - INTERVAL 1 MINUTE AND a.ts + INTERVAL 1 MINUTE"))
            .select("a.machine", F.col("b.w").alias("w"), "v")
        ),
        lambda s: timed(s).join(
            other(s).select("machine", "at", "w", "tags AS b_tags", "place AS b_place"), "machine", between=NEAR,
        ).select("machine", "w", "v"),
    ),
    (
        lambda d: (lambda a, b: a.join(
            b, (a.machine == b["machine"]) & (b.at >= a.ts - F.expr("INTERVAL 1 MINUTE"))
            & (b.at <= a.ts + F.expr("INTERVAL 1 MINUTE")), "left_outer",
        ).drop(b.machine, b.tags).drop("place").select("*"))(timed(d), other(d)),
        lambda s: timed(s).join(
            other(s).select("machine", "at", "w", "tags AS right_tags", "place AS right_place"),
            "machine", between=NEAR, how="left",
        ).select("machine", "ts", "v", "tags", "at", "w"),
    ),
    (
        lambda d: d.createOrReplaceTempView("r") or d.sparkSession.sql(
            "SELECT machine, v FROM r WHERE v > :low AND machine <> :m", args={"low": 2.5, "m": "x"}),
        lambda s: s.builder.sql("SELECT machine, v FROM r WHERE v > 2.5D AND machine <> 'x'", r=s),
    ),
    (
        lambda d: d.sparkSession.sql("SELECT machine, v * 2 AS w FROM {readings} WHERE v > ?", args=[7], readings=d),
        lambda s: s.builder.sql("SELECT machine, v * 2 AS w FROM r WHERE v > 7", r=s),
    ),
    (lambda d: d.alias("r").select("r.*", F.col("r.machine").alias("m")).drop("v"),
     lambda s: s.select("machine", "ts", "v", "tags", "place", "machine AS m").drop("v")),
    (lambda d: timed(d).alias("r").groupBy("r.machine", F.window("r.ts", "1 hour")).agg(F.max("r.v").alias("top")),
     lambda s: timed(s).group_by(hw.window("ts", "1 hour"), "machine").agg("max(v) AS top").select(
         "machine", "`window`", "top")),
    (lambda d: timed(d).alias("a").join(other(d).drop("tags", "place").alias("b"), F.expr(
        "a.machine = b.machine AND b.at BETWEEN a.ts - INTERVAL 1 MINUTE AND a.ts + INTERVAL 1 MINUTE"))
        .drop(F.col("b.machine")).groupBy(F.window("a.ts", "1 hour"), "a.machine").agg(F.sum("b.w").alias("w")),
     lambda s: timed(s).join(other(s).drop("tags", "place"), "machine", between=NEAR)
        .group_by(hw.window("ts", "1 hour"), "machine").agg("sum(w) AS w")),
]  # fmt: skip


def test_a_field_of_a_struct_is_one_of_its_side() -> None:
    def job(spark: Any) -> None:
        left = timed(readings(spark)).withColumn("st", F.struct("v"))
        right = other(readings(spark)).withColumn("st", F.struct(F.col("w").alias("v")))
        near = F.expr("at >= ts") & (right.at <= left.ts + F.expr("INTERVAL 1 MINUTE"))
        joined = left.join(right, (left.machine == right.machine) & near)
        joined.select(left["st.v"].alias("a"), right["st.v"].alias("b")).writeStream.format("console").start()

    flow = hw.from_pyspark("f", job).build()
    columns = [o.columns for o in flow.operators if isinstance(o, Select)][-1]
    assert columns == (("a", "st.v"), ("b", "right_st.v"))


def test_views_of_one_name_replace_each_other() -> None:
    def job(spark: Any) -> None:
        frame = readings(spark)
        frame.where("v > 1").createOrReplaceTempView("r")
        frame.where("v > 2").createOrReplaceTempView("r")
        spark.sql("SELECT v FROM r").writeStream.format("console").start()

    flow = hw.from_pyspark("f", job).build()
    assert [o.condition for o in flow.operators if isinstance(o, Where)] == ["v > 2"]


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


def test_a_topic_of_kafka_has_the_columns_of_spark() -> None:
    def job(spark: Any) -> None:
        options = {
            "startingOffsets": '{"t": {"0": 5, "1": -2}}',
            "includeHeaders": "true",
            "kafka.security.protocol": "SSL",
            "maxOffsetsPerTrigger": "9",
            "user_env": "HEADWATER_SECRET_USER",
        }
        reader = spark.readStream.format("kafka").options(**options).option("subscribe", "t")
        frame = reader.option("kafka.bootstrap.servers", "b:9092").load()
        value = F.from_json(F.col("value").cast("string"), "id bigint").alias("row")
        frame.select(value, "headers").select("row.id").writeStream.queryName("out").format("memory").start()

    made = hw.from_pyspark("f", job, locations=["L1"])
    read = hw.flow("f", locations=["L1"]).read.kafka(
        "b:9092",
        "t",
        format="raw",
        headers_as="headers",
        starting={0: 5, 1: -2},
        security_protocol="SSL",
        maxOffsetsPerTrigger=9,
        user_env="HEADWATER_SECRET_USER",
    )
    row = read.select("from_json(CAST(value AS string), 'id bigint') AS row", "headers")
    row.select("row.id").write.memory("out")
    assert keys(made) == keys(read.builder)


def test_shared_frames_share_operators() -> None:
    def job(spark: Any) -> None:
        hot = readings(spark).where("v > 50")
        hot.createOrReplaceTempView("hot")
        hot.writeStream.format("console").start()
        spark.table("hot").select("v").writeStream.format("parquet").start("out")

    assert [o.kind for o in hw.from_pyspark("f", job).build().operators].count("where") == 1


def test_the_trigger_of_real_time_mode_is_a_setting_of_its_sink() -> None:
    def job(spark: Any) -> None:
        rows = (
            spark.readStream.format("kafka").option("kafka.bootstrap.servers", "b:1").option("subscribe", "in").load()
        )
        out = rows.select("value").writeStream.format("kafka").option("kafka.bootstrap.servers", "b:1")
        out.option("topic", "out").outputMode("update").trigger(realTime="1 minute").start()

    (sink,) = hw.from_pyspark("f", job).build().sinks
    assert isinstance(sink, RealTimeKafkaSink) and sink.real_time == "1 minute"


TOPIC = "spark.readStream.format('kafka').option('kafka.bootstrap.servers', 'b:1').option('subscribe', 't')"
WRONG: list[tuple[str, str]] = [
    ("df.orderBy('v')", ".top_k("),
    ("df.limit(5)", ".write.memory("),
    ("df.show()", ".write.memory("),
    ("df.collect()", ".write.memory("),
    ("df.toPandas()", ".write.memory("),
    ("df.sample(0.1)", "xxhash64"),
    ("timed.join(timed, 'machine')", "BETWEEN"),
    ("df.join(df.alias('r'), F.expr('left.machine = r.machine'))", "WATERMARK"),
    ("timed.join(timed, 'nosuch')", "its columns are"),
    ("timed.join(timed, timed.machine == timed.v)", ".alias("),
    ("timed.alias('a').join(timed.alias('a'), 'machine')", ".alias("),
    ("timed.join(timed, 'machine', 'full_outer')", "left_outer"),
    ("timed.join(timed.alias('r'), F.expr('left.machine = r.machine AND r.ts = left.ts')).where('v > 1')", "left.v"),
    ("timed.join(timed.alias('r'), F.expr('left.machine = r.machine AND r.ts = left.ts')).distinct()", "drop"),
    ("df.where('nosuch > 1')", "the columns are"),
    ("df.groupBy('machine').count()", "with_watermark"),
    ("df.rollup('machine').count()", "groupBy for each level"),
    ("timed.dropDuplicates(['machine'])", "dropDuplicatesWithinWatermark"),
    ("df.withColumn('u', F.udf(lambda v: v).asNondeterministic()('v'))", "asNondeterministic"),
    ("df.where(F.udf(lambda v: v)('nosuch') > 1)", "the columns are"),
    ("df.groupBy('ts').agg(F.pandas_udf(lambda v: v.max(), 'double', 'grouped_agg')('v').alias('m'))", "map_batches"),
    ("df.writeStream.format('console').outputMode('update').trigger(realTime='5 seconds').start()", 'format("kafka")'),
    ("df.writeStream.format('kafka').trigger(realTime='5 seconds').start()", "outputMode"),
    ("df.writeStream.foreach(print).start()", "foreachBatch"),
    ("df.intersect(df)", "unionByName"),
    ("df.fillna(0, ['nosuch'])", "the columns are"),
    ("df.dropna(subset=['nosuch'])", "the columns are"),
    ("df.replace(1, 2)", "CASE WHEN"),
    ("spark.read.schema('id int').json('in').groupBy('id').count()", "join a stream with it"),
    ("spark.read.schema('id int').json('in').writeStream.format('console').start()", "join a stream with it"),
    ("spark.read.schema('id int').json('in').union(spark.read.schema('id int').json('in'))", "join a stream with it"),
    ("spark.read.schema('id int').json('in').hint('headwater_layer', 'edge')", "join a stream with it"),
    ("spark.read.schema('id int').json('in').withColumn('u', F.udf(lambda v: v)('id'))", "over batches"),
    ("spark.read.schema('id int').json('in').where(F.rand() > 0.5)", "from the table"),
    ("spark.read.schema('id int').json('in').show()", ".write.memory("),
    ("spark.read.schema('id int').json('in/{location}')", "spark.readStream"),
    ("spark.read.json('in')", ".schema("),
    ("spark.read.format('jdbc').option('url', 'u').load()", "f.table.jdbc("),
    ("df.join(spark.createDataFrame([('a', 1)], 'machine string, n int'), 'machine', 'full')", "left_semi"),
    ("spark.createDataFrame([('a', 1)], 'machine string, n int').join(df, 'machine', 'left')", "side of the stream"),
    ("df.join(spark.createDataFrame([(1.5,)], 'v double'), 'v')", "a whole number or a text"),
    ("df.join(spark.createDataFrame([(1,)], 'machine int'), 'machine')", "cast one of them"),
    ("df.join(spark.createDataFrame([(1.5,)], 'w double'), F.expr('v > w'))", "a.k = b.k"),
    (
        "df.join(spark.createDataFrame([('a', 2.5)], 'k string, w double'), F.expr('machine = k AND v > w'), 'left')",
        "only an inner join",
    ),
    ("spark.readStream.format('socket').option('host', 'h').load()", "csv, json, parquet"),
    ("spark.readStream.json('in')", ".schema("),
    ("spark.readStream.format('kafka').option('subscribe', 't').load()", "kafka.bootstrap.servers"),
    (f"{TOPIC}.option('startingOffsets', '{{').load()", "earliest"),
    (f"{TOPIC}.option('startingTimestamp', 'now').load()", "milliseconds"),
    (f"{TOPIC}.option('kafka.sasl.jaas.config', 'x').load()", "password_env"),
    ("spark.createDataFrame([(1,)], 'id int').distinct()", "join a stream with it"),
    ("spark.createDataFrame([('x' * 1_200_000,)], 'machine string')", "spark.read.parquet"),
    ("spark.createDataFrame([({1: 2},)], 'm map<int, int>')", "spark.read.parquet"),
    ("spark.sql('SELECT 1')", "SELECT columns FROM"),
    ("spark.sql('SELECT v FROM nosuch')", "named"),
    ("spark.sql('SELECT v FROM {d} WHERE v > :x', d=df, args={'x': None})", "in the text"),
    ("spark.table('nosuch')", "tables of a catalog"),
    ("spark.conf.set('spark.sql.session.timeZone', 'CET')", "UTC"),
    ("df.writeStream.format('parquet').outputMode('update').start('out')", "leave it out"),
    ("df.writeStream.format('memory').partitionBy('v').queryName('m').start()", "leave .partitionBy out"),
    ("df.writeStream.format('csv').start('out')", "header"),
    ("df.writeStream.format('parquet').start()", "start("),
    ("df.writeStream.format('delta').start()", "start("),
    ("df.writeStream.format('iceberg').start('out')", "csv, json, parquet"),
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


ROWS = [
    {"machine": "a", "ts": datetime(2026, 1, 1, 8, tzinfo=UTC), "v": 1.5, "tags": ["x", "y"], "place": "L1"},
    {"machine": None, "ts": datetime(2026, 7, 1, 8, 0, 0, 5, tzinfo=UTC), "v": -2.0, "tags": [], "place": "L1"},
    {"machine": "b", "ts": None, "v": 4.0, "tags": None, "place": "L2"},
]
TYPES = pa.schema([
    ("machine", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.float64()), ("tags", pa.list_(pa.string())),
    ("place", pa.string()),
])  # fmt: skip


def results(frame: Callable[[Any], Any]) -> list[Any]:
    """Run the functions of a job as a Python worker does, over batches of two rows; return the new columns."""

    def job(spark: Any) -> None:
        frame(readings(spark)).writeStream.queryName("m").format("memory").start()

    flow = hw.from_pyspark("f", job, locations=["L1"]).build()
    batches = pa.Table.from_pylist(ROWS, TYPES).to_batches(max_chunksize=2)
    for call in (o for o in flow.operators if isinstance(o, MapBatches)):
        batches = list(call.function.load()(iter(batches)))
        wanted = [spark_type(c.type) for c in Schema.parse(call.schema_text)]
        assert [from_arrow_type(field.type) for field in batches[0].schema] == wanted
    found = pa.Table.from_batches(batches).to_pylist()
    return [[value for name, value in row.items() if name not in ROWS[0]] for row in found]


def of_rows(function: Callable[..., Any], returns: str) -> Callable[[Any], Any]:
    return lambda d: d.withColumn("u", F.udf(function, returns)("v", "machine"))


def summed(columns: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
    offset = 10.0  # set once for all batches of a worker
    for v, times in columns:
        yield v + times.dt.year + offset


def frames(batches: Iterator[Any]) -> Iterator[Any]:
    for frame in batches:
        frame["late"] = frame["ts"] > datetime(2026, 3, 1)
        yield frame[["late", "place", "ts"]][frame["v"] > -9]


@pytest.mark.parametrize(("frame", "wanted"), [
    (of_rows(lambda v, m: f"{m}:{v}", "string"), ["a:1.5", "None:-2.0", "b:4.0"]),
    (of_rows(lambda v, m: [v, None], "array<double>"), [[1.5, None], [-2.0, None], [4.0, None]]),
    (of_rows(lambda v, m: {"n": 1, "m": m}, "struct<n: int, m: string>"),
     [{"n": 1, "m": "a"}, {"n": 1, "m": None}, {"n": 1, "m": "b"}]),
    (lambda d: d.withColumn("u", F.udf(lambda t: t and t.replace(year=2000, tzinfo=None), "timestamp_ntz")("ts")),
     [datetime(2000, 1, 1, 8), datetime(2000, 7, 1, 8, 0, 0, 5), None]),
    (lambda d: d.withColumn("u", F.udf(lambda: 7, "int")()), [7, 7, 7]),
    (lambda d: d.withColumn("u", F.udf(lambda tags: len(tags or "abc"), "int")("tags")), [2, 3, 3]),
    (lambda d: d.withColumn("u", F.pandas_udf(lambda v: v * 2, "double")("v")), [3.0, -4.0, 8.0]),
    (lambda d: d.withColumn("u", F.pandas_udf(lambda t: t.dt.month == 7, "boolean")("ts")), [False, True, False]),
    (lambda d: d.withColumn("u", F.arrow_udf(lambda v: pc.negate(v), "double")("v")), [-1.5, 2.0, -4.0]),
    (lambda d: d.withColumn("u", F.udf(lambda v: v + 1, "double")(F.udf(lambda v: v * 10, "double")("v"))),
     [16.0, -19.0, 41.0]),
])  # fmt: skip
def test_python_functions_compute_columns(frame: Callable[[Any], Any], wanted: list[Any]) -> None:
    assert [row[-1] for row in results(frame)] == wanted


def test_a_function_over_batches_of_columns_keeps_its_state() -> None:
    def frame(d: Any) -> Any:
        function = F.pandas_udf(summed, "double")
        return d.where("ts IS NOT NULL").withColumn("u", function("v", "ts"))

    assert [row[-1] for row in results(frame)][:2] == [2037.5, 2034.0]


def test_a_function_over_frames_of_pandas() -> None:
    found = results(lambda d: d.mapInPandas(frames, "late boolean, ts timestamp, place string"))
    assert found == [[False], [True], [False]]


def test_python_functions_become_operators_between_others() -> None:
    def job(spark: Any) -> None:
        double = F.udf(lambda v: v * 2, "double")
        frame = readings(spark).where(double(F.col("v") + 1) > 4).select("machine", double("v"), double("v").alias("w"))
        assert frame.columns == ["machine", "<lambda>(v)", "w"]
        frame.writeStream.format("console").start()

    flow = hw.from_pyspark("f", job).build()
    kinds = ["files", "select", "map_batches", "where", "select", "map_batches", "select", "console"]
    assert [o.kind for o in flow.operators] == kinds


def test_a_function_of_batches_of_a_query() -> None:
    def save(frame: Any, number: int) -> None:
        frame.write.mode("append").parquet("out")

    def job(spark: Any) -> None:
        readings(spark).writeStream.queryName("saved").foreachBatch(save).start()

    (sink,) = hw.from_pyspark("f", job).build().sinks
    assert isinstance(sink, CallbackSink) and sink.id == "saved" and sink.function.name.endswith("save")
    zones = "{layers: [edge, cloud], zones: {C: {layer: cloud}, A: {layer: edge, parent: C, locations: [L1]}, %s}}"
    one, two = (Continuum.from_text(zones % more) for more in ("", "B: {layer: edge, parent: C, locations: [L2]}"))
    build(hw.from_pyspark("f", job).build(), one)
    with pytest.raises(ErrorList, match="knows them by number"):
        build(hw.from_pyspark("f", job).build(), two)


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


def test_tables_and_partitions_of_plain_pyspark(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text(
        "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n"
        f"df = spark.readStream.schema('{SCHEMA}').json('in')\n"
        "df.writeStream.format('json').partitionBy('machine').start('files')\n"
        "df.writeStream.format('delta').partitionBy('machine').start('table')\n"
    )
    files, table = loading.load_dataflow(str(file)).dataflow.sinks
    assert (files.kind, files.config()["partition_by"]) == ("write_files", ["machine"])
    assert table.config() | {"path": "table", "partition_by": ["machine"]} == table.config()


def test_a_file_that_starts_no_query_is_none(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text("from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n")
    with pytest.raises(DataflowError, match="no dataflow in the file"):
        loading.load_dataflow(str(file))


PIPELINE = f"""
from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.active()

@dp.table(name="means", format="json", table_properties={{"headwater.path": "out/means"}})
def means_of_hours():
    hours = F.window("ts", "1 hour")
    return spark.readStream.table("clean").groupBy(hours, "place").agg(F.avg("v").alias("mean"))

@dp.temporary_view(spark_conf={{"headwater.layer": "site"}})
def clean():
    readings = spark.readStream.schema("{SCHEMA}").option("location_as", "place").json("in/{{location}}")
    return readings.where("v IS NOT NULL").withWatermark("ts", "10 seconds")

@dp.materialized_view
def hot():
    return spark.sql("SELECT place, mean FROM STREAM means WHERE mean > 90")

dp.create_streaming_table("alarms")

@dp.append_flow(target="alarms")
def of_means():
    return spark.readStream.table("hot").select("place")

@dp.append_flow(target="alarms", name="second")
def of_readings():
    return spark.readStream.table("clean").where("v > 1000").select("place")
"""


def test_a_declarative_pipeline_is_a_dataflow(tmp_path: Path) -> None:
    file = tmp_path / "plant.py"
    file.write_text(PIPELINE)
    flow = loading.load_dataflow(str(file)).dataflow
    assert flow.name == "plant"
    builder = hw.flow("f")
    rows = builder.read.json("in/{location}", SCHEMA, location_as="place").where("v IS NOT NULL")
    clean = timed(rows).to_layer("site")
    means = clean.group_by(hw.window("ts", "1 hour"), "place").agg("avg(v) AS mean")
    means.write.files("out/means", format="json").named("means")
    hot = means.where("mean > 90").select("place", "mean")
    hot.write.files("tables/hot", format="parquet").named("hot")
    alarms = hot.select("place").union(clean.where("v > 1000").select("place"))
    alarms.write.files("tables/alarms", format="parquet").named("alarms")
    wanted = builder.build()
    assert sorted(flow.keys[o.id] for o in flow.sinks) == sorted(wanted.keys[o.id] for o in wanted.sinks)
    assert {o.id: o.layer for o in flow.sinks} == {o.id: o.layer for o in wanted.sinks}


@pytest.mark.parametrize(("text", "hint"), [
    ("@dp.table\ndef a():\n    return spark.readStream.table('b')\n"
     "@dp.table\ndef b():\n    return spark.sql('SELECT * FROM a')\n", "no circle"),
    ("@dp.table\ndef a():\n    return spark.readStream.table('nosuch')\n", "the views are"),
    ("@dp.table\ndef a():\n    return 5\n", "return it"),
    ("@dp.append_flow(target='nosuch')\ndef a():\n    return READINGS\n", "create_streaming_table"),
    ("@dp.table(cluster_by=['v'])\ndef a():\n    return READINGS\n", "leave them out"),
    ("@dp.table(schema='v int')\ndef a():\n    return READINGS.select('v')\n", "correct the query"),
    ("@dp.table(format='orc')\ndef a():\n    return READINGS\n", "csv, json, parquet"),
    ("@dp.table\ndef a():\n    return READINGS\n@dp.table\ndef a():\n    return READINGS\n", "a name of its own"),
    ("dp.create_streaming_table('t')\n", "append_flow"),
    ("dp.create_streaming_table('t')\ndp.create_auto_cdc_flow('t', 's', ['k'], 'n')\n", "append the changes"),
    ("@dp.table\ndef a():\n    return READINGS.where('nosuch > 1')\n", "the columns are"),
])  # fmt: skip
def test_a_pipeline_is_refused_with_what_to_do(text: str, hint: str, tmp_path: Path) -> None:
    file = tmp_path / "plant.py"
    head = "from pyspark import pipelines as dp\nfrom pyspark.sql import SparkSession\nspark = SparkSession.active()\n"
    file.write_text(head + f"READINGS = spark.readStream.schema('{SCHEMA}').json('in')\n" + text)
    with pytest.raises(DataflowError) as raised:
        loading.load_dataflow(str(file))
    assert hint in str(raised.value.hint), raised.value
    assert "plant.py:" in str(raised.value.where), raised.value
