"""Substitution of definitions for columns, and decomposition of aggregates over rows."""

from __future__ import annotations

import pytest

from headwater.core.errors import DataflowError
from headwater.sql.rewrite import row_aggregates, substitute
from headwater.sql.schema import Schema

SCHEMA = Schema.parse("id bigint, v double, x int, s struct<a:int,b:struct<c:int>>, xs array<int>")


@pytest.mark.parametrize(
    ("text", "definitions", "wanted"),
    [
        ("a + b", {"a": "v * 2", "b": "id - 1"}, "v * 2 + (id - 1)"),
        ("a * 2", {"a": "v + 1"}, "(v + 1) * 2"),
        ("-a", {"a": "-v"}, "-(-v)"),
        ("A", {"a": "v"}, "v"),
        ("a + b", {"a": "id", "B": "v"}, "id + v"),
        ("id + a", {"a": "id", "id": "v"}, "v + id"),  # all at once, not one after the other
        ("t.a + t.b.c", {"t": "s"}, "s.a + s.b.c"),
        ("a.c", {"a": "s.b"}, "s.b.c"),
        ("t.a", {"t": "named_struct('a', id)"}, "named_struct('a', id).a"),
        ("transform(ys, y -> y + a)", {"ys": "xs", "a": "id"}, "transform(xs, y -> y + id)"),
        # The lambda's variable hides the column of its name ...
        ("transform(ys, a -> a + 1)", {"ys": "xs", "a": "id"}, "transform(xs, a -> a + 1)"),
        ("transform(ys, A -> a + 1) ", {"ys": "xs", "a": "v"}, "transform(xs, A -> A + 1)"),
        # ... and does not capture a substituted column.
        ("transform(ys, x -> x + a)", {"ys": "xs", "a": "x"}, "transform(xs, x_ -> x_ + x)"),
        ("transform(ys, x -> x + a + x_)", {"ys": "xs", "a": "x", "x_": "v"},
         "transform(xs, x__ -> x__ + x + v)"),
        ("aggregate(ys, 0, (x, id) -> x + id + a)", {"ys": "xs", "a": "x"},
         "aggregate(xs, 0, (x_, id) -> x_ + id + x)"),
    ],
)  # fmt: skip
def test_substitute(text: str, definitions: dict[str, str], wanted: str) -> None:
    assert substitute(text, definitions, SCHEMA) == wanted


def test_row_aggregates_share_calls() -> None:
    found = row_aggregates(
        (("n", "count(*)"), ("m", "mean(v)"), ("d", "max(v) - min(v) + AVG( V )"), ("f", "first(id) + 1")),
        SCHEMA,
        where="w",
    )
    assert found.calls == (("count", "1"), ("avg", "v"), ("max", "v"), ("min", "v"), ("first", "id"))
    assert [t.text for t in found.types] == ["bigint", "double", "double", "double", "bigint"]
    assert found.outputs == (
        ("n", "__g0"), ("m", "__g1"), ("d", "__g2 - __g3 + __g1"), ("f", "__g4 + 1"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "type_"),
    [("sum(x)", "bigint"), ("sum(v)", "double"), ("avg(id)", "double"), ("count(s)", "bigint"),
     ("last_value(x)", "int"), ("first_value(cast(id AS string))", "string"), ("sum(x * 2)", "bigint")],
)  # fmt: skip
def test_type_of_row_aggregate(text: str, type_: str) -> None:
    assert [t.text for t in row_aggregates((("a", text),), SCHEMA, where="w").types] == [type_]


@pytest.mark.parametrize(
    "text",
    ["stddev(v)", "sum(xs)", "max(s)", "first(xs)", "count(DISTINCT v)", "sum(v) FILTER (WHERE v > 1)",
     "sum(cast(v AS decimal(10,2)))", "max_by(id, v)"],
)  # fmt: skip
def test_what_rows_cannot_be_aggregated_by(text: str) -> None:
    with pytest.raises(DataflowError, match="not supported over windows of rows") as caught:
        row_aggregates((("a", text),), SCHEMA, where="operator 'w'")
    assert caught.value.where == "operator 'w'" and caught.value.hint
