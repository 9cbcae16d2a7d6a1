"""Static DataFrames of jobs for plain PySpark: the reference tables of the fluent API."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import functions as F

import headwater as hw
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.lookup import Lookup
from tests.unit.test_frames import fluent, keys, readings


@pytest.fixture(autouse=True)
def connect_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")


MACHINES = "machine string, kind string, most double"


def machines(made: Any) -> Any:
    """Return a reference table, of a job or of the fluent API."""
    return made.read.schema(MACHINES).json("machines/*.json")


def table() -> Any:
    return hw.flow("f").table.json("machines/*.json", MACHINES)


TABLE_PAIRS: list[tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = [
    (lambda d, m: d.join(m, "machine"), lambda s, t: s.join(t, "machine")),
    (lambda d, m: d.join(F.broadcast(m), ["machine"], "left"), lambda s, t: s.join(t, "machine", how="left")),
    (
        lambda d, m: d.join(m.where("most > 5").where(m.kind != "x"), "machine", "left_outer"),
        lambda s, t: s.join(t.where("most > 5").filter("kind <> 'x'"), "machine", how="left"),
    ),
    (
        lambda d, m: d.join(m, "machine", "left_semi"),
        lambda s, t: s.join(t.select("machine"), "machine", how="left_semi"),
    ),
    (
        lambda d, m: d.join(m.select(F.upper("kind").alias("k"), "most"), d.machine == F.col("k"), "left_anti"),
        lambda s, t: s.join(t.select("upper(kind) AS machine"), "machine", how="left_anti"),
    ),
    (
        lambda d, m: d.join(m, (d.machine == m.machine) & (m.most > 3) & (d.v > m.most)).select(d.machine, m.kind),
        lambda s, t: s.join(t.where("most > 3"), "machine").where("v > most").select("machine", "kind"),
    ),
    (
        lambda d, m: d.join(m, d.machine == m.machine, "left").select(m.machine.alias("known"), "kind"),
        lambda s, t: s.join(
            t.select("machine", "machine AS right_machine", "kind", "most"), "machine", how="left"
        ).select("right_machine AS known", "kind"),
    ),
    (
        lambda d, m: m.join(d, "machine"),
        lambda s, t: s.join(t, "machine").select("machine", "kind", "most", "ts", "v", "tags", "place"),
    ),
    (
        lambda d, m: m.withColumnRenamed("kind", "tag").drop("most").join(d, "machine", "right"),
        lambda s, t: (
            s.join(t.withColumnsRenamed({"kind": "tag"}).drop("most"), "machine", how="left")
            .select("machine", "tag", "ts", "v", "tags", "place")
        ),
    ),
    (
        lambda d, m: d.join(
            m.toDF("a", "b", "c").withColumn("c", F.col("c") * 2).selectExpr("a AS machine", "c"), "machine"
        ),
        lambda s, t: s.join(t.select("machine", "most * 2 AS c"), "machine"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("job", "by_hand"), TABLE_PAIRS)
def test_static_frames_are_reference_tables(job: Callable[[Any, Any], Any], by_hand: Callable[[Any, Any], Any]) -> None:
    """The operators of joins, and the rows and columns of their tables, are those of the fluent API."""

    def whole(spark: Any) -> None:
        job(readings(spark), machines(spark)).writeStream.queryName("m").format("memory").start()

    made = by_hand(fluent(), table())
    made.write.memory("m")
    assert keys(hw.from_pyspark("f", whole, locations=["L1"])) == keys(made.builder)


def test_views_and_statements_join_static_frames() -> None:
    def job(spark: Any) -> None:
        readings(spark).createOrReplaceTempView("readings")
        machines(spark).createOrReplaceTempView("machines")
        assert spark.table("readings").isStreaming and not spark.table("machines").isStreaming
        text = "SELECT r.v, m.kind FROM readings r JOIN machines m ON r.machine = m.machine WHERE m.most < r.v"
        spark.sql(text).writeStream.queryName("m").format("memory").start()

    made = fluent().join(table(), "machine").where("most < v").select("v", "kind")
    made.write.memory("m")
    assert keys(hw.from_pyspark("f", job, locations=["L1"])) == keys(made.builder)


def test_rows_of_the_job_are_part_of_the_dataflow() -> None:
    rows: list[Any] = [
        (
            "a",
            1,
            datetime(2026, 1, 1, 8, 0, 0, 5, tzinfo=UTC),
            Decimal("1.50"),
            [1.5, float("nan")],
            {"x": None},
            b"\x00",
        ),
        (None, None, None, None, None, None, None),
    ]
    schema = "machine string, n int, at timestamp, d decimal(4,2), l array<double>, m map<string,int>, b binary"

    def job(spark: Any) -> None:
        made = spark.createDataFrame(rows, schema)
        assert made.columns == ["machine", "n", "at", "d", "l", "m", "b"] and made.schema.simpleString() == (
            f"struct<{schema.replace(', ', ',').replace(' ', ':')}>"
        )
        limits = spark.createDataFrame(pd.DataFrame({"machine": ["a"], "limit": [2.5]}))
        nothing = spark.createDataFrame([], "machine string, none int")
        found = readings(spark).join(made, "machine").join(limits, "machine").join(nothing, "machine", "left")
        found.writeStream.queryName("m").format("memory").start()

    flow = hw.from_pyspark("f", job, locations=["L1"]).build()
    first, second, third = (o for o in flow.operators if isinstance(o, Lookup))
    assert first.embedded is not None and second.embedded is not None and third.embedded == ""
    assert [json.loads(line) for line in base64.b64decode(first.embedded).decode().splitlines()] == [
        {"machine": "a", "n": 1, "at": "2026-01-01T08:00:00.000005+00:00", "d": "1.50", "l": [1.5, "NaN"],
         "m": {"x": None}, "b": "AA=="},
        dict.fromkeys(("machine", "n", "at", "d", "l", "m", "b")),
    ]  # fmt: skip
    assert second.table.text == "machine string, `limit` double"
    assert Dataflow.from_data(json.loads(json.dumps(flow.to_data()))) == flow
