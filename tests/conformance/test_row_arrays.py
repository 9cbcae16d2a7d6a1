"""Aggregates over the rows of a window, which are expressions over an array, against Spark's own of a group."""

from __future__ import annotations

import pyarrow as pa

from headwater.connectors.sparksql import expression
from headwater.spark.endpoint import LocalEndpoint
from headwater.sql.rowarrays import over_rows
from headwater.sql.schema import ArrayType, Column, Schema
from headwater.testing import compare

ROWS = Schema.parse("i int, r double, n bigint, s smallint, b boolean, k string, t timestamp")
VALUES = """
    ('full', 1, 1.5D, 3L, 4S, true, 'b', TIMESTAMP '2026-01-02 03:04:05.678901'),
    ('full', 2, -0.5D, -9L, 7S, false, 'a', TIMESTAMP '2026-01-01 00:00:00'),
    ('holes', 1, NULL, NULL, NULL, NULL, NULL, NULL),
    ('holes', 2, CAST('NaN' AS double), 5L, 1S, true, '', NULL),
    ('holes', 3, 2.0D, NULL, NULL, NULL, 'z', TIMESTAMP '1969-12-31 23:59:59.999999'),
    ('infinite', 1, CAST('Infinity' AS double), 9007199254740993L, 1S, false, 'a', NULL),
    ('nothing', 1, NULL, NULL, NULL, NULL, NULL, NULL)
"""
AGGREGATES = {
    **{f"{f}_{c}": f"{f}({c})" for f in ("count", "sum", "avg", "min", "max", "collect_list") for c in "rns"},
    **{f"{f}_{c}": f"{f}({c})" for f in ("count", "min", "max", "collect_list") for c in "bkt"},
    "rows": "count(*)",
    "mixed": "max(r) - min(r) + sum(n * 2) / count(*)",
    "first": "min_by(k, i)",
    "last": "max_by(k, i)",
}


def test_aggregates_over_arrays_are_sparks(endpoint: LocalEndpoint) -> None:
    names = ", ".join(ROWS.names)
    frame = endpoint.session().sql(f"SELECT * FROM VALUES {VALUES} AS rows(g, {names})")
    texts = {**AGGREGATES, "first": "first(k)", "last": "last(k)"}  # of a group they have no order
    array = Column("all", ArrayType(ROWS.struct))
    made = over_rows(tuple(texts.items()), ROWS, array, where="here")
    of_group = frame.groupBy("g").agg(*(_sorted(name, text) for name, text in AGGREGATES.items()))
    arrays = frame.groupBy("g").agg(expression(f"sort_array(collect_list(struct({names})))").alias("all"))
    of_array = arrays.select("g", *(expression(_listed(name, text)).alias(name) for name, text in made))
    wanted, found = of_group.toArrow(), of_array.toArrow()
    assert wanted.num_rows == 4
    assert not compare(wanted, found), compare(wanted, found)
    assert _types(wanted) == _types(found)
    empty = endpoint.session().range(1).select(expression(f"CAST(array() AS {array.type.text})").alias("all"))
    row = empty.select(*(expression(text).alias(name) for name, text in made)).collect()[0]
    for name in texts:
        expected = 0 if name == "rows" or name.startswith("count") else [] if name.startswith("collect") else None
        assert row[name] == expected, name


def _types(table: pa.Table) -> dict[str, str]:
    return {f.name: str(f.type).replace(" not null", "") for f in table.schema}


def _sorted(name: str, text: str) -> object:
    return expression(_listed(name, text)).alias(name)


def _listed(name: str, text: str) -> str:
    """Sort lists: those of a group have no order."""
    return f"sort_array({text})" if name.startswith("collect") else text
