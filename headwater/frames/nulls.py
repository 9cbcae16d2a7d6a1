"""Fill NULLs, and drop rows with NULLs, by the rules of PySpark's ``fillna`` and ``dropna``, as expressions."""

from __future__ import annotations

import math
from typing import Any

from headwater.core.errors import DataflowError
from headwater.sql.coercion import is_numeric
from headwater.sql.columns import Message
from headwater.sql.lexer import quote_string, quoted
from headwater.sql.schema import Column, Schema

_FLOATING = ("float", "double")


def filled(schema: Schema, part: Message) -> dict[str, str]:
    """Return the new values, by name, of the columns that a ``fillna`` changes.

    One value is for the columns of its type: a number for all numbers. Several are for a column each.
    """
    values, columns = [_literal(value) for value in part.values], _columns(schema, part)
    if len(values) > 1:
        return {c.name: _without_null(c, text) for c, (_, text) in zip(columns, values, strict=True)}
    ((kind, text),) = values
    return {c.name: _without_null(c, text) for c in columns if _kind_of(c) == kind}


def kept(schema: Schema, part: Message) -> str:
    """Return the condition of the rows that a ``dropna`` keeps. NaN counts as NULL."""
    known = [_is_known(column) for column in _columns(schema, part)]
    if not part.HasField("min_non_nulls"):
        return " AND ".join(known)
    counted = " + ".join(f"CASE WHEN {one} THEN 1 ELSE 0 END" for one in known)
    return f"{counted} >= {part.min_non_nulls}"


def _columns(schema: Schema, part: Message) -> list[Column]:
    """Return the columns that a call names, or all where it names none."""
    return [schema.column(name) for name in part.cols] or list(schema.columns)


def _kind_of(column: Column) -> str:
    """Return the kind of values that one value fills."""
    return "number" if is_numeric(column.type) else column.type.text


def _without_null(column: Column, value: str) -> str:
    name, kind = quoted(column.name), column.type.text
    found = f"nanvl({name}, CAST(NULL AS {kind}))" if kind in _FLOATING else name
    return f"coalesce({found}, CAST({value} AS {kind}))"


def _is_known(column: Column) -> str:
    name = quoted(column.name)
    known = f"{name} IS NOT NULL"
    return f"({known} AND NOT isnan({name}))" if column.type.text in _FLOATING else known


def _literal(value: Message) -> tuple[str, str]:
    """Return the kind of a value, and its text."""
    kind = value.WhichOneof("literal_type")
    found: Any = getattr(value, kind)
    match kind:
        case "boolean":
            return "boolean", "true" if found else "false"
        case "string":
            return "string", quote_string(found)
        case "double" if not math.isfinite(found):
            return "number", f"CAST('{found}' AS double)"
        case "double":
            return "number", f"{found!r}D"
        case "long" | "integer":
            return "number", f"{found}L"
    raise DataflowError(f"fillna with a value of type {kind}", hint="use a number, a text or a truth value")
