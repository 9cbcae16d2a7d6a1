"""PySpark's names and values raise errors that show the line to write instead."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.app import loading
from headwater.core.errors import DataflowError
from headwater.dataflow import habits
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.stream import Stream

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


def test_a_struct_type_is_answered_with_its_text() -> None:
    from pyspark.sql.types import DoubleType, StructField, StructType

    wrong: Any = StructType([StructField("v", DoubleType())])
    with pytest.raises(DataflowError) as raised:
        hw.flow("f").read.json("in", wrong)
    assert raised.value.hint == 'write the schema as "v double"'


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
        ("SparkSession.builder.getOrCreate().range(5).show() or rows", "start no session here"),
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
