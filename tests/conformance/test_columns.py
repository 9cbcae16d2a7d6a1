"""Compare PySpark's Columns, as Headwater reads them, with the text form and with Spark's own reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from headwater.sql.coercion import Typed
from headwater.sql.columnnames import spark_name
from headwater.sql.columns import column_text
from headwater.sql.inference import Inference
from headwater.sql.parser import parse
from headwater.sql.printer import canonical, printed
from headwater.sql.schema import Schema
from tests.conformance import expression_cases as cases
from tests.conformance.column_cases import NotInPySpark, column_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = Schema.parse(cases.COLUMNS)
PLACES = {"scalar": "scalar", "aggregate": "outside"}
UNNAMED = ("zip_with(arr, arr, (l, r) -> struct(l, r))", "transform(arr, x -> struct(x, x + 1))")
"""Fields named after lambda variables: PySpark's own names of them are numbers that differ each time."""


def _inferred(text: str, kind: str) -> tuple[Typed, bool]:
    walk = Inference(SCHEMA, place=PLACES[kind])  # type: ignore[arg-type]
    return walk.walk(parse(text)), bool(walk.volatile)


def _sayable(kind: str) -> dict[str, Any]:
    """Return the Columns of all cases that PySpark has a form for."""
    found = {}
    for text in cases.SCALARS if kind == "scalar" else cases.AGGREGATES:
        try:
            found[text] = column_of(parse(text))
        except NotInPySpark:
            continue
    return found


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    nulls = ", ".join(f"CAST(NULL AS {c.type.text})" for c in SCHEMA)
    casts = [f"CAST(`{c.name}` AS {c.type.text}) AS `{c.name}`" for c in SCHEMA]
    return spark.sql(f"{cases.ROW} UNION ALL SELECT {nulls}").selectExpr(*casts)


@pytest.mark.parametrize(("kind", "least"), [("scalar", 660), ("aggregate", 105)])
def test_columns_have_the_types_of_the_text_form(kind: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    columns = _sayable(kind)
    mistyped, same = [], 0
    for text, column in columns.items():
        mine, _ = _inferred(column_text(column), kind)
        wanted, _ = _inferred(text, kind)
        same += mine.text == wanted.text
        if mine.type != wanted.type and text not in UNNAMED:
            mistyped.append(f"{text}: {column_text(column)} is {mine.type}, not {wanted.type}")
    assert not mistyped, "\n".join(mistyped)
    assert len(columns) >= least
    assert same >= 0.8 * len(columns), "the others are written in another way, such as shiftleft(a, 1) for a << 1"


def test_canonical_text_has_the_tree_of_printed_text() -> None:
    for text in (*cases.SCALARS, *cases.AGGREGATES):
        node = parse(text)
        assert parse(canonical(node)) == parse(printed(node)), text


def _values(frame: DataFrame, columns: Sequence[Any]) -> list[Any]:
    """Evaluate Columns as strings; where a run fails, each alone, with the failure's class as its value."""
    try:
        found = frame.select(*[c.cast("string").alias(f"e{i}") for i, c in enumerate(columns)]).collect()
    except Exception as error:
        if len(columns) == 1:
            return [str(error).split("]")[0]]
        half = len(columns) // 2
        return [*_values(frame, columns[:half]), *_values(frame, columns[half:])]
    return [list(column) for column in zip(*found, strict=True)]


@pytest.mark.parametrize("kind", ["scalar", "aggregate"])
def test_spark_computes_the_same_from_column_text_and_case(rows: DataFrame, kind: str) -> None:
    from pyspark.sql import functions as F

    columns = {text: c for text, c in _sayable(kind).items() if not _inferred(text, kind)[1]}
    sound = {text: c for text, c in columns.items() if text not in cases.RAISING}
    wrong = []
    for part in (sound, *({text: columns[text]} for text in columns if text in cases.RAISING)):
        given = _values(rows, list(part.values()))
        read = _values(rows, [F.expr(printed(parse(column_text(c)))) for c in part.values()])
        wanted = _values(rows, [F.expr(text) for text in part])
        wrong += [
            f"{t}: {x}, {y}, {z}" for t, x, y, z in zip(part, given, read, wanted, strict=True) if not x == y == z
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", ["scalar", "aggregate"])
def test_spark_gives_columns_the_types_of_their_text(rows: DataFrame, kind: str) -> None:
    columns = {text: c for text, c in _sayable(kind).items() if text not in UNNAMED}
    mine = [_inferred(column_text(c), kind)[0].type.text.lower() for c in columns.values()]
    schema = rows.select(*[c.alias(f"e{i}") for i, c in enumerate(columns.values())]).schema
    theirs = [f.dataType.simpleString().lower() for f in schema]
    wrong = [
        f"{text}: Spark {their}, Headwater {my}"
        for text, my, their in zip(columns, mine, theirs, strict=True)
        if my.replace("`", "") != their.replace("`", "")
    ]
    assert not wrong, "\n".join(wrong)


def test_unnamed_aggregates_have_sparks_names(rows: DataFrame) -> None:
    from pyspark.sql import functions as F

    columns = [
        F.avg("d"),
        F.mean("d"),
        F.count("*"),
        F.count("a"),
        F.max_by("a", "d"),
        F.first("a"),
        F.first("a", True),
    ]
    columns += [getattr(F, n)("a") for n in ("sum", "min", "max", "stddev", "variance", "collect_list", "collect_set")]
    columns += [getattr(F, n)("a") for n in ("stddev_pop", "var_samp", "skewness", "kurtosis", "median", "bit_xor")]
    columns += [getattr(F, n)("a") for n in ("any_value", "last", "stddev_samp", "var_pop", "bit_and", "bit_or")]
    columns += [F.bool_and("bo"), F.bool_or("bo"), F.corr("a", "d"), F.covar_pop("a", "d"), F.covar_samp("a", "d")]
    columns += [
        F.regr_count("a", "d"),
        F.min_by("a", "d"),
        F.std("a"),
        F.sum(F.col("a") + 1),
        F.approx_count_distinct("a"),
    ]
    mine = [spark_name(parse(column_text(c))) for c in columns]
    theirs = rows.select(*columns).columns
    assert [m for m in mine if m] == [t for m, t in zip(mine, theirs, strict=True) if m]
    assert mine.count(None) == 4
