"""Types and schemas."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import DataflowError
from headwater.sql.coercion import castable, common_of, common_type
from headwater.sql.schema import (
    BIGINT,
    DOUBLE,
    ArrayType,
    Column,
    DataType,
    DecimalType,
    MapType,
    Schema,
    StructType,
)

ATOM_NAMES = "tinyint smallint int bigint float double string boolean binary date timestamp timestamp_ntz"
ATOMS = ATOM_NAMES.split()


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("LONG", "bigint"), ("integer", "int"), ("short", "smallint"), ("byte", "tinyint"), ("real", "float"),
        ("numeric(5, 2)", "decimal(5,2)"), ("dec", "decimal(10,0)"), ("timestamp_ltz", "timestamp"),
        ("array < double >", "array<double>"), ("array<array<int>>", "array<array<int>>"),
        ("map<string, array<long>>", "map<string,array<bigint>>"), ("struct<>", "struct<>"),
        ("struct<start: timestamp, end timestamp NOT NULL COMMENT 'x'>",
         "struct<start:timestamp,end:timestamp>"),
        ("struct<`odd name`: int>", "struct<`odd name`:int>"),
    ],
)  # fmt: skip
def test_types_are_read_in_sparks_spellings(written: str, text: str) -> None:
    found = DataType.parse(written)
    assert found.text == text
    assert DataType.parse(text) == found
    assert hash(DataType.parse(text)) == hash(found)


@pytest.mark.parametrize(
    "written", ["", "strin", "array", "array<int", "map<int>", "decimal(50)", "decimal(3,5)", "int int",
                "decimal(x)", "struct<a>", "struct<a:int", "1", "array<" * 500 + "int" + ">" * 500]
)  # fmt: skip
def test_what_is_no_type_is_refused_with_a_hint(written: str) -> None:
    with pytest.raises(DataflowError) as caught:
        DataType.parse(written)
    assert caught.value.hint


def test_a_misspelt_type_gets_the_near_one() -> None:
    with pytest.raises(DataflowError, match="did you mean bigint"):
        Schema.parse("id bigin")


def test_schema_keeps_order_and_finds_without_case() -> None:
    schema = Schema.parse("Id long, `odd name` array<double>, w struct<start: timestamp, end: timestamp>")
    assert schema.names == ("Id", "odd name", "w")
    assert schema.column("iD") == Column("Id", BIGINT)
    assert schema.column("ODD NAME").type == ArrayType(DOUBLE)
    assert schema.text == "Id bigint, `odd name` array<double>, w struct<start:timestamp,end:timestamp>"
    assert "ID" in schema and "x" not in schema and len(schema) == 3
    assert Schema.parse(schema.text) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_an_unknown_column_names_the_near_and_the_known() -> None:
    with pytest.raises(DataflowError, match="no column 'temprature'") as caught:
        Schema.parse("temperature double, room string").column("temprature")
    assert "did you mean temperature" in str(caught.value) and "room" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a int, A string", "two columns"), ("__x int", "reserved"), ("a void", "not allowed for a column"),
        ("a array<interval day>", "not allowed for a column"), ("` ` int", "empty name"),
        ("a int,", "a column name"),
        ("a int b int", "expected the end"), ("a int; b int", "unexpected ';'"),
    ],
)  # fmt: skip
def test_bad_schemas_are_refused(text: str, what: str) -> None:
    with pytest.raises(DataflowError, match=what):
        Schema.parse(text)


def test_headwaters_own_columns_are_allowed_inside() -> None:
    assert Schema.parse("__batch bigint", internal=True).names == ("__batch",)


def test_keywords_are_quoted_in_ddl() -> None:
    schema = Schema.parse("`select` int, `a``b` int, `end` int, plain int")
    assert schema.text == "`select` int, `a``b` int, `end` int, plain int"
    assert Schema.parse(schema.text) == schema


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        ("int", "bigint", "bigint"), ("int", "float", "double"), ("float", "float", "float"),
        ("decimal(10,2)", "int", "decimal(12,2)"), ("decimal(10,2)", "double", "double"),
        ("decimal(38,0)", "decimal(20,5)", "decimal(38,0)"), ("date", "timestamp", "timestamp"),
        ("timestamp_ntz", "timestamp", "timestamp"), ("string", "date", "date"), ("string", "int", None),
        ("boolean", "int", None), ("array<int>", "array<double>", "array<double>"), ("void", "int", "int"),
        ("map<string,int>", "map<string,bigint>", "map<string,bigint>"),
        ("struct<a:int>", "struct<A:bigint>", "struct<a:bigint>"), ("struct<a:int>", "struct<b:int>", None),
        ("interval day", "interval hour", "interval day to hour"), ("interval day", "interval month", None),
    ],
)  # fmt: skip
def test_common_types(left: str, right: str, common: str | None) -> None:
    found = common_type(DataType.parse(left), DataType.parse(right))
    assert (found.text if found else None) == common


def test_common_of_many() -> None:
    assert common_of([DataType.parse(t) for t in ("tinyint", "int", "float")]) == DOUBLE
    assert common_of([DataType.parse(t) for t in ("int", "string", "int")]) is None


def test_casts_of_parts() -> None:
    assert castable(DataType.parse("array<int>"), DataType.parse("array<string>"))
    assert not castable(DataType.parse("array<date>"), DataType.parse("array<int>"))
    assert not castable(DataType.parse("struct<a:int>"), DataType.parse("struct<a:int,b:int>"))


names = st.text(min_size=1, max_size=8).filter(lambda n: n.strip() and not n.startswith("__"))
types = st.recursive(
    st.sampled_from(ATOMS).map(DataType.parse)
    | st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: DecimalType(p, s))),
    lambda inner: (
        inner.map(ArrayType)
        | st.builds(MapType, inner, inner)
        | st.lists(st.builds(Column, names, inner), max_size=3).map(lambda f: StructType(tuple(f)))
    ),
    max_leaves=6,
)


@given(types)
def test_every_type_is_read_back(found: DataType) -> None:
    assert DataType.parse(found.text) == found


@given(st.lists(st.builds(Column, names, types), max_size=4, unique_by=lambda c: c.name.lower()))
def test_every_schema_is_read_back(columns: list[Column]) -> None:
    schema = Schema(tuple(columns))
    assert Schema.parse(schema.text) == schema


@given(types, types)
def test_common_type_has_no_side(left: DataType, right: DataType) -> None:
    one, other = common_type(left, right), common_type(right, left)
    assert (one is None) == (other is None)
    assert one is None or one.text.lower() == other.text.lower() if other else one is None
