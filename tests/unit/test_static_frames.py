"""Static DataFrames of jobs for plain PySpark: the reference tables of the fluent API."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import headwater as hw
from headwater.core.errors import DataflowError
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


def of_file(read: Callable[[Any], Any]) -> Lookup:
    """Return the table of a job that joins its readings with a file, by the file's first column."""

    def job(spark: Any) -> None:
        table = read(spark.read)
        found = readings(spark).join(table, F.col("machine") == F.col(table.columns[0]))
        found.select("v").writeStream.queryName("m").format("memory").start()

    (found,) = (o for o in hw.from_pyspark("f", job, locations=["L1"]).build().operators if isinstance(o, Lookup))
    return found


def test_columns_of_a_file_are_read_where_it_names_them(tmp_path: Path) -> None:
    """As Spark does without a look at the rows; times without a zone in Parquet are such times."""
    rows = pa.table(
        {
            "name": ["a"],
            "at": pa.array([datetime(2026, 1, 1)], pa.timestamp("us")),
            "since": pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            "price": pa.array([Decimal("1.50")], pa.decimal128(9, 2)),
            "tags": [["x"]],
        }
    )
    pq.write_table(rows, tmp_path / "m.parquet")
    found = of_file(lambda read: read.parquet(str(tmp_path / "m.parquet")))
    assert found.schema_text == (
        "name string, at timestamp_ntz, since timestamp, price decimal(9,2), tags array<string>"
    )  # fmt: skip
    (tmp_path / "m.csv").write_text('name;"the most";at\na;1;2\n')
    found = of_file(lambda read: read.option("header", True).option("sep", ";").csv(str(tmp_path / "m.csv")))
    assert found.schema_text == "name string, `the most` string, at string"
    assert dict(found.options) == {"header": "true", "sep": ";"}


def test_options_of_readers_are_those_of_tables() -> None:
    lazy = of_file(
        lambda read: read.schema("k string").option("refresh", "5 minutes").json("/t/*.json", mode="FAILFAST")
    )
    assert lazy.refresh == "5 minutes" and dict(lazy.options) == {"mode": "FAILFAST"}
    typed = of_file(lambda read: read.schema("k string").csv("/t.csv", header=True, inferSchema=True))
    assert dict(typed.options) == {"header": "true"}
    old = of_file(lambda read: read.schema("k string").format("delta").option("versionAsOf", 3).load("/t"))
    assert (old.format, old.version, old.options) == ("delta", 3, ())
    for wrong in (
        lambda read: read.schema("k string").parquet("/t.parquet", mergeSchema=True),
        lambda read: read.schema("k string").format("delta").option("versionAsOf", "x").load("/t"),
        lambda read: read.schema("k string").format("delta").option("timestampAsOf", "2026-01-01").load("/t"),
        lambda read: read.schema("k string").csv(["/a.csv", "/b.csv"]),
        lambda read: read.schema("k string").option("refresh", "soon").csv("/t.csv"),
    ):
        with pytest.raises(DataflowError) as raised:
            of_file(wrong)
        assert raised.value.hint


@pytest.mark.parametrize(
    ("content", "read", "what"),
    [
        ("a,b\n", lambda read, path: read.csv(path), "its rows only"),
        ("a,b\n", lambda read, path: read.csv(path, header=True, inferSchema=True), "its rows only"),
        ("{}", lambda read, path: read.json(path), "its rows only"),
        ("a,A\n", lambda read, path: read.csv(path, header=True), "two columns"),
        ("a,\n", lambda read, path: read.csv(path, header=True), "does not name all"),
        ("a, b\n", lambda read, path: read.csv(path, header=True), "does not name all"),
        ("\ufeffa,b\n", lambda read, path: read.csv(path, header=True), "does not name all"),
        ("", lambda read, path: read.csv(path, header=True), "does not name all"),
        ("a,b\n", lambda read, path: read.csv(path, header=True, sep="||"), "cannot be read"),
        ("a,b\n", lambda read, path: read.csv(path, header=True, encoding="nosuch"), "nosuch"),
        ("a,b\n", lambda read, path: read.csv(f"{path}/no", header=True), "cannot be read"),
        ("no Parquet", lambda read, path: read.parquet(path), "cannot be read"),
        ("x", lambda read, path: read.parquet(path[:-4] + "*"), "cannot be read"),
        ("__a,b\n", lambda read, path: read.csv(path, header=True), "reserved"),
    ],
)
def test_other_files_need_a_schema(content: str, read: Callable[[Any, str], Any], what: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_text(content)
    with pytest.raises(DataflowError, match=re.escape(what)) as raised:
        of_file(lambda reader: read(reader, str(tmp_path / "data")))
    assert ".schema(" in str(raised.value.hint)
