"""Conversion of types to PySpark's."""

from __future__ import annotations

import pytest

from headwater.connectors.sparktypes import spark_schema, spark_type
from headwater.sql.schema import DataType, Schema

ATOMIC = "tinyint smallint int bigint float double string boolean binary date timestamp timestamp_ntz"
NESTED = [
    "array<map<string,int>>",
    "struct<start:timestamp,end:timestamp>",
    "array<struct<a:int,b:array<double>>>",
]


@pytest.mark.parametrize("text", [*ATOMIC.split(), "decimal(12,3)", *NESTED])
def test_a_type_is_the_same_in_pyspark(text: str) -> None:
    assert spark_type(DataType.parse(text)).simpleString() == text


def test_a_schema_keeps_names_and_order() -> None:
    made = spark_schema(Schema.parse("`my id` bigint, A string").columns)
    assert [(f.name, f.dataType.simpleString(), f.nullable) for f in made.fields] == [
        ("my id", "bigint", True),
        ("A", "string", True),
    ]
