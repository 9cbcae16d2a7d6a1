"""PySpark's names and values raise errors that show the line to write instead."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, GroupedData, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter
from pyspark.sql.types import ArrayType, DoubleType, IntegerType, StructField, StructType

import headwater as hw
from headwater.app import loading
from headwater.core.errors import DataflowError
from headwater.dataflow import habits
from headwater.dataflow.builder import DataflowBuilder, Reader
from headwater.dataflow.grouped import Grouped
from headwater.dataflow.stream import Stream
from headwater.dataflow.writer import Writer

SCHEMA = "id bigint, ts timestamp, v double"


def begin() -> tuple[DataflowBuilder, Any]:
    builder = hw.flow("f", locations=["L1"])
    return builder, builder.read.json("in/{location}", SCHEMA)


def test_names_of_pyspark_are_answered_with_the_line_to_write() -> None:
    builder, rows = begin()
    grouped = rows.with_watermark("ts", "1 s").group_by(hw.window("ts", "1 minute"))
    for owner, known in (
        (rows, habits.STREAM),
        (grouped, habits.GROUPED),
        (builder.read, habits.READER),
        (rows.write, habits.WRITER),
        (builder, habits.BUILDER),
    ):
        for name in known:
            assert not hasattr(owner, name), f"{name} is there: no hint is needed"
            with pytest.raises(DataflowError) as raised:
                getattr(owner, name)
            assert f"has no '{name}'" in raised.value.what and raised.value.hint


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda s: s.orderBy("id"), "write .top_k("),
        (lambda s: s.v, 'where("v > 5")'),
        (lambda s: s.wher("v > 5"), "did you mean 'where'?"),
        (lambda s: s.write.parquets("out"), "did you mean 'parquet'?"),
        (lambda s: s.where(["v > 5"]), 'write SQL as text: where("v > 5")'),
        (lambda s: s.select({"id", "v"}), 'select("id"'),
        (lambda s: s.with_columns(w=5), 'with_columns(twice="v * 2")'),
        (lambda s: s.with_watermark("ts", "1 s").group_by("id").agg(n=5), 'agg(mean="avg(v)")'),
        (lambda s: s.map_batches(list, ["id int"]), "id int, ts timestamp"),
    ],
)
def test_wrong_names_and_values_have_a_hint(wrong: Callable[[Any], Any], hint: str) -> None:
    with pytest.raises(DataflowError) as raised:
        wrong(begin()[1])
    assert hint in str(raised.value.hint) and raised.value.where


def test_a_struct_type_is_a_schema() -> None:
    inner = StructType([StructField("x", IntegerType())])
    schema: Any = StructType([StructField("odd name", DoubleType()), StructField("s", ArrayType(inner))])
    assert hw.flow("f").read.json("in", schema).schema.text == "`odd name` double, s array<struct<x:int>>"


@pytest.mark.parametrize(
    ("mine", "known", "theirs"),
    [
        (Stream, habits.STREAM, (DataFrame,)),
        (Grouped, habits.GROUPED, (GroupedData,)),
        (Reader, habits.READER, (DataFrameReader, DataStreamReader)),
        (Writer, habits.WRITER, (DataFrameWriter, DataStreamWriter)),
        (DataflowBuilder, habits.BUILDER, (SparkSession,)),
    ],
)
def test_every_public_name_of_pyspark_works_or_is_answered(mine: type, known: Any, theirs: tuple[type, ...]) -> None:
    names = {name for cls in theirs for name in dir(cls) if not name.startswith("_")}
    assert len(names) > 10
    assert sorted(names - set(dir(mine)) - set(known)) == []


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "pyspark.md"
ROWS = re.findall(r"^\| (`.*`) \| (.*) \|$", GUIDE.read_text().split("## PySpark -> here")[1], re.MULTILINE)


def scope() -> dict[str, Any]:
    """Return the names that the table uses."""
    builder = hw.flow("f", locations=["L1"])
    schema = "id int, ts timestamp, v double, tags array<string>"
    df, other = (builder.read.json(f"in{n}/{{location}}", schema) for n in (1, 2))
    return {
        "f": builder, "df": df, "other": other, "F": F, "function": one_or_two,
        "StructType": StructType, "StructField": StructField, "DoubleType": DoubleType,
    }  # fmt: skip


def one_or_two(*given: Any) -> Any:
    return given


def codes(cell: str) -> list[str]:
    return [part for part in re.findall(r"`([^`]+)`", cell) if part.startswith(("df", "f.", "F."))]


def run(code: str) -> Any:
    """Run one cell's code, with a watermark where the stream needs one."""
    names = scope()
    if "withWatermark" not in code:
        names["df"], names["other"] = (names[n].with_watermark("ts", "10 seconds") for n in ("df", "other"))
    return eval(code, names)


@pytest.mark.parametrize(("pyspark", "here"), ROWS)
def test_the_table_of_the_guide(pyspark: str, here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    assert codes(pyspark)
    for code in codes(pyspark):
        if here.startswith("works"):
            run(code)
        else:
            with pytest.raises(DataflowError) as raised:
                run(code)
            assert raised.value.hint, code
    if here.startswith("works"):
        return
    found = codes(here)
    assert found or here.startswith("nothing"), here
    for code in found:
        run(code)


def test_the_table_is_whole() -> None:
    assert len(ROWS) > 60


def test_locations_are_no_text() -> None:
    with pytest.raises(DataflowError) as raised:
        hw.flow("f", locations="L1")
    assert raised.value.hint == 'write locations=["L1"]'


def test_a_stream_shows_its_columns_and_can_be_copied() -> None:
    rows: Stream = begin()[1]
    assert repr(rows) == "<Stream 'files' of dataflow 'f': id bigint, ts timestamp, v double>"
    for made in (copy.copy(rows), copy.deepcopy(rows), pickle.loads(pickle.dumps(rows))):
        assert made.columns == ["id", "ts", "v"]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("rows.where(F.udf(lambda v: v)('v'))", ".map_batches("),
        ("rows.where(F.row_number().over(Window.partitionBy('id').orderBy('v')) == 1)", "F.window(...)"),
        ("SparkSession.builder.getOrCreate().range(5).show() or rows", "spark.readStream"),
    ],
)
def test_what_needs_a_spark_is_answered_at_the_line(line: str, hint: str, tmp_path: Path) -> None:
    file = tmp_path / "flow.py"
    file.write_text(
        "import headwater as hw; from pyspark.sql import SparkSession, Window\nfrom pyspark.sql import functions as F\n"
        f"b = hw.flow('f')\nrows = b.read.json('in', '{SCHEMA}')\n{line}.write.memory('out')\n"
    )
    with pytest.raises(DataflowError) as raised:
        loading.load_dataflow(str(file))
    assert raised.value.where is not None and "flow.py:5" in raised.value.where
    assert raised.value.hint is not None and hint in raised.value.hint
