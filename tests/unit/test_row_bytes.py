"""Estimated bytes of rows."""

from __future__ import annotations

import pytest

from headwater.plan.profile import row_bytes
from headwater.sql.schema import Schema


@pytest.mark.parametrize(
    ("schema", "size"),
    [
        ("a bigint, b int, c boolean", 13.0),
        ("a string, b decimal(10,2)", 40.0),
        ("s struct<a: bigint, b: struct<c: int>>", 14.0),
        ("a bigint, b string, c timestamp", 36.0),
        ("s struct<a: bigint, b: string, c: timestamp>", 37.0),
    ],
)
def test_a_structure_is_not_smaller_than_its_fields(schema: str, size: float) -> None:
    assert row_bytes(Schema.parse(schema)) == size
