"""PySpark's Columns in a dataflow: the same operators and keys as with text."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import headwater as hw
from headwater.app import loading
from headwater.core.errors import DataflowError
from headwater.dataflow.graph import Dataflow
from headwater.sql.columns import column_text

SCHEMA = (
    "machine string, ts timestamp, v double, n int, st struct<x:int,y:string>, tags array<string>, "
    "arr array<int>, m map<string,int>, `odd name` int"
)


@pytest.fixture(autouse=True)
def connect_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")


def rows() -> Any:
    return hw.flow("f", locations=["L1"]).read.json("in/{location}", SCHEMA).with_watermark("ts", "10 seconds")


def quoted(stream: Any) -> list[str]:
    return [f"`{name}`" for name in stream.columns]


def keys(stream: Any) -> list[str]:
    """Return the keys of all operators of a stream that is written to a sink."""
    stream.write.memory("out")
    made: Dataflow = stream.builder.build()
    return [made.keys[operator.id] for operator in made.operators]


PAIRS: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda s: s.where(F.col("v") > 50), lambda s: s.where("v > 50")),
    (
        lambda s: s.filter(~F.col("n").isin(1, 2) & F.col("v").isNotNull()),
        lambda s: s.where("n NOT IN (1, 2) AND v IS NOT NULL"),
    ),
    (lambda s: s.where(F.col("machine").like("p%")), lambda s: s.where("machine LIKE 'p%'")),
    (lambda s: s.select((F.col("n") * 2).alias("twice"), "v"), lambda s: s.select("n * 2 AS twice", "v")),
    (lambda s: s.select(["n", F.col("v")]), lambda s: s.select("n", "v")),
    (lambda s: s.select("*"), lambda s: s.select(*quoted(s))),
    (lambda s: s.select(F.col("st")["x"].alias("x")), lambda s: s.select("st.x AS x")),
    (lambda s: s.select(F.col("st").y.alias("y")), lambda s: s.select("st.y AS y")),
    (lambda s: s.select(F.col("st.x")), lambda s: s.select("st.x")),
    (
        lambda s: s.select(F.col("m")["k"].alias("k"), F.col("arr")[0].alias("a")),
        lambda s: s.select("m['k'] AS k", "arr[0] AS a"),
    ),
    (lambda s: s.withColumn("twice", F.col("n") * 2), lambda s: s.with_columns(twice="n * 2")),
    (lambda s: s.withColumns({"a": F.lit(1), "n": F.col("n") + 1}), lambda s: s.with_columns(a="1", n="n + 1")),
    (
        lambda s: s.withColumnRenamed("v", "value"),
        lambda s: s.select("machine", "ts", "v AS value", "n", "st", "tags", "arr", "m", "`odd name`"),
    ),
    (lambda s: s.drop(F.col("st"), "odd name"), lambda s: s.drop("st", "odd name")),
    (lambda s: s.selectExpr("n * 2 AS twice"), lambda s: s.select("n * 2 AS twice")),
    (
        lambda s: s.withColumn("kind", F.when(F.col("v") > 50, "hot").when(F.col("v") > 20, "warm").otherwise("cold")),
        lambda s: s.with_columns(kind="CASE WHEN v > 50 THEN 'hot' WHEN v > 20 THEN 'warm' ELSE 'cold' END"),
    ),
    (
        lambda s: s.withColumn("a", F.transform("arr", lambda one: one + F.col("n"))),
        lambda s: s.with_columns(a="transform(arr, x -> x + n)"),
    ),
    (
        lambda s: s.withColumn("a", F.transform("arr", lambda a: F.aggregate("arr", a, lambda b, c: b + c))),
        lambda s: s.with_columns(a="transform(arr, x -> aggregate(arr, x, (y, z) -> y + z))"),
    ),
    (
        lambda s: s.groupBy(F.window("ts", "1 hour"), "machine").agg(F.avg("v").alias("mean"), F.count("*").alias("c")),
        lambda s: s.group_by(hw.window("ts", "1 hour"), "machine").agg(mean="avg(v)", c="count(*)"),
    ),
    (
        lambda s: s.groupBy([F.window(F.col("ts"), "1 hour", "30 minutes"), F.col("machine")]).agg(
            c=F.count_if(F.col("v") > 1)
        ),
        lambda s: s.group_by(hw.window("ts", "1 hour", "30 minutes"), "machine").agg(c="count_if(v > 1)"),
    ),
    (
        lambda s: s.groupBy(F.session_window("ts", "5 minutes"), "machine").count(),
        lambda s: s.group_by(hw.session_window("ts", "5 minutes"), "machine").agg(count="count(*)"),
    ),
    (
        lambda s: s.groupBy(F.window("ts", "1 hour"), F.upper("machine").alias("name")).count(),
        lambda s: s.with_columns(name="upper(machine)").group_by(hw.window("ts", "1 hour"), "name").count(),
    ),
    (lambda s: s.select("n", F.explode("tags").alias("tag")), lambda s: s.explode("tags", "tag").select("n", "tag")),
    (
        lambda s: s.select("n", F.explode_outer("tags").alias("tags")),
        lambda s: s.explode("tags", "tags_2", outer=True).select("n", "tags_2 AS tags"),
    ),
    (lambda s: s.withColumn("tag", F.explode("tags")), lambda s: s.explode("tags", "tag").select(*quoted(s), "tag")),
    (
        lambda s: s.count_window(3, keys=F.col("machine"), order_by="ts").agg(F.sum("n").alias("t")),
        lambda s: s.count_window(3, keys="machine", order_by="ts").agg(t="sum(n)"),
    ),
    (lambda s: s.dropDuplicates(["machine", "ts"]), lambda s: s.drop_duplicates("machine", "ts")),
    (lambda s: s.where(F.expr("v > 50 AND n < 3")), lambda s: s.where("v > 50 AND n < 3")),
    (lambda s: s.explode(F.col("tags"), "tag"), lambda s: s.explode("tags", "tag")),
]


@pytest.mark.parametrize(("with_columns", "with_text"), PAIRS)
def test_columns_give_the_operators_and_keys_of_text(
    with_columns: Callable[[Any], Any], with_text: Callable[[Any], Any]
) -> None:
    mine, text = with_columns(rows()), with_text(rows())
    assert mine.schema == text.schema and mine.shape.event_time == text.shape.event_time
    assert keys(mine) == keys(text)


def test_keys_and_values_of_kafka_may_be_columns() -> None:
    mine = rows().write.kafka("b:9092", "t", key=F.col("machine"), value=F.to_json(F.struct("v"))).stream
    text = rows().write.kafka("b:9092", "t", key="machine", value="to_json(struct(v))").stream
    assert [o.content((mine.parents[0].parents[0].shape,)) for o in (mine.parents[0].operator,)] == [
        o.content((text.parents[0].parents[0].shape,)) for o in (text.parents[0].operator,)
    ]


def test_constants_keep_their_types() -> None:
    found = [
        (F.lit(-3), "-3"),
        (F.lit(2**40), "1099511627776L"),
        (F.lit(2.5), "2.5D"),
        (F.lit(float("inf")), "CAST('inf' AS double)"),
        (F.lit(1e-300), "1E-300D"),
        (F.lit(True), "TRUE"),
        (F.lit(None), "NULL"),
        (F.lit("it's \\ a\nline"), r"'it\'s \\ a\nline'"),
        (F.lit(b"\x01\xff"), "X'01FF'"),
        (F.lit(Decimal("1.50")), "CAST(1.50BD AS decimal(10,2))"),
        (F.lit(date(2026, 1, 31)), "DATE '2026-01-31'"),
        (F.lit(datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)), "TIMESTAMP '2026-01-31 12:00:00.000005Z'"),
        (F.lit(timedelta(days=-1, hours=2)), "INTERVAL '-0 22:00:00' DAY TO SECOND"),
        (F.lit([1, 2]), "array(1, 2)"),
    ]
    for column, text in found:
        assert column_text(column) == text


def test_lambda_variables_hide_no_columns() -> None:
    column = F.transform("arr", lambda v: v + F.col("X") + F.expr("y.z"))
    assert column_text(column) == "transform(arr, x1 -> x1 + X + y.z)"


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda s: s.select(F.col("v") * 2), "AS result"),
        (lambda s: s.where(F.col("nosuch") > 1), "the columns are"),
        (lambda s: s.where(F.col("v")), "compare it with something"),
        (lambda s: s.where(F.udf(lambda v: v)("v")), ".map_batches("),
        (lambda s: s.where(F.col("n").isin()), "at least one value"),
        (lambda s: s.withColumn("r", F.row_number()), "group by a window"),
        (lambda s: s.select(F.col("v").desc()), ".top_k("),
        (lambda s: s.select(F.col("st").withField("x", F.lit(1)).alias("s")), "F.struct("),
        (lambda s: s.select(F.col("`odd").alias("s")), "F.expr("),
        (lambda s: s.select(F.explode("m").alias("k", "v")), "F.map_entries"),
        (lambda s: s.withColumn("r", F.rand()), "take the value from the data"),
        (lambda s: s.withColumn("r", F.reflect(F.lit("java.lang.Math"), F.lit("random"))), "functions of Spark SQL"),
        (lambda s: s.groupBy(F.window("ts", "1 hour").alias("w")), '.select("window AS w"'),
        (lambda s: s.groupBy(F.window("ts", "1 hour", "1 hour", "5 minutes")), "leave out startTime"),
        (lambda s: s.groupBy(F.window(F.to_timestamp("machine"), "1 hour")), 'F.window("ts", "1 hour")'),
        (lambda s: s.groupBy(F.window("ts", "1 hour"), F.upper("machine")), '.alias("key")'),
        (lambda s: s.groupBy(F.window("ts", "1 hour"), F.upper("machine").alias("n")), "another name"),
        (lambda s: s.groupBy(F.window("ts", "1 hour")).agg(F.avg(F.col("v") * 2)), '.alias("name")'),
        (lambda s: s.drop(F.col("v") + 1), ".with_columns("),
        (lambda s: s.withColumn("x", F.lit(1).cast("variant")), None),
    ],
)
def test_other_columns_are_refused_with_a_hint(wrong: Callable[[Any], Any], hint: str | None) -> None:
    with pytest.raises(DataflowError) as raised:
        wrong(rows())
    assert raised.value.where and raised.value.hint and (hint is None or hint in raised.value.hint)


def test_deep_columns_are_refused() -> None:
    column = F.col("n")
    for _ in range(400):
        column = -(column + 1)
    with pytest.raises(DataflowError, match="nested"):
        rows().select(column.alias("deep"))


def test_a_flow_file_with_columns_needs_no_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED")
    file = tmp_path / "flow.py"
    file.write_text(
        "import os, headwater as hw\nfrom pyspark.sql import functions as F\n"
        f"b = hw.flow('f')\nb.read.json('in', '{SCHEMA}').where(F.col('v') > 50).write.memory('out')\n"
    )
    loaded = loading.load_dataflow(str(file))
    assert [o.config().get("condition") for o in loaded.dataflow.operators if o.kind == "where"] == ["v > 50"]
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ


def test_text_alone_imports_no_pyspark() -> None:
    code = (
        "import sys, headwater as hw\n"
        f"s = hw.flow('f').read.json('in', '{SCHEMA}').where('v > 5').select('v * 2 AS twice')\n"
        "s.write.memory('out'); s.builder.build()\n"
        "print([m for m in ('pyspark', 'pandas', 'grpc', 'google.protobuf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
