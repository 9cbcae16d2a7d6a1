"""Aggregates over rows in an array, as expressions of one row. Pure."""

from __future__ import annotations

from headwater.core.text import cut
from headwater.sql.expressions import check_aggregate
from headwater.sql.lexer import quoted
from headwater.sql.rewrite import row_aggregates, substitute
from headwater.sql.schema import Column, Schema

_ROW = "r"


def over_rows(
    aggregates: tuple[tuple[str, str], ...], rows: Schema, array: Column, *, where: str
) -> tuple[tuple[str, str], ...]:
    """Return aggregates over rows of a schema as expressions over the column ``array`` that holds them, in order."""
    for _, text in aggregates:
        check_aggregate(text, rows, where=where)
    parts = row_aggregates(aggregates, rows, where=where)
    one = Schema((Column(_ROW, rows.struct),))
    names = {c.name: f"{_ROW}.{quoted(c.name)}" for c in rows.columns}
    held = Schema((array,))
    calls = {
        f"__g{i}": _result(
            function, f"transform({quoted(array.name)}, {_ROW} -> {substitute(text, names, one)})", type_.text
        )
        for i, ((function, text), type_) in enumerate(zip(parts.calls, parts.types, strict=True))
    }
    return tuple((alias, substitute(text, calls, held)) for alias, text in parts.outputs)


def _result(function: str, values: str, type_: str) -> str:
    """Return a function of the array ``values`` as Spark computes it over a group: without NULLs."""
    known = f"filter({values}, x -> x IS NOT NULL)"
    match function:
        case "count":
            return f"CAST(size({known}) AS bigint)"
        case "sum":
            return _sum(values, type_)
        case "avg":
            return f"{_sum(values, 'double')} / nullif(size({known}), 0)"
        case "min" | "max":
            return f"array_{function}({values})"
        case "first":
            return f"get({values}, 0)"
        case "last":
            return f"get({values}, size({values}) - 1)"
        case "collect_list":
            return known
    raise AssertionError(f"no form over arrays for {cut(function, 60)}")


def _sum(values: str, type_: str) -> str:
    return (
        f"aggregate({values}, CAST(NULL AS {type_}), (a, x) -> coalesce(a + CAST(x AS {type_}), a, CAST(x AS {type_})))"
    )
