"""The rest of a filter or projection behind another one that contains it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headwater.dataflow import operators as ops
from headwater.sql.conditions import Conjunct, implied
from headwater.sql.expressions import check
from headwater.sql.lexer import quote_name
from headwater.sql.rewrite import substitute
from headwater.sql.schema import Schema

Columns = Sequence[tuple[str, str]]
"""Names and expressions of a projection."""


def rest_of(mine: tuple[Conjunct, ...], other: tuple[Conjunct, ...]) -> tuple[Conjunct, ...] | None:
    """Return the remaining conditions for rows that pass another filter; None if that filter drops some."""
    if not all(implied(part, mine) for part in other):
        return None
    texts = {part.text for part in other}
    return tuple(part for part in mine if part.text not in texts and not implied(part, other))


def columns_over(mine: Columns, other: Columns, schema: Schema) -> tuple[tuple[str, str], ...] | None:
    """Return a projection's columns in terms of another one's; None if a column is missing."""
    given: dict[str, str] = {}
    plain: dict[str, str] = {}
    for name, text in other:
        given.setdefault(check(text, schema).text, name)
        column = ops.plain_column(text)
        if column is not None:
            plain.setdefault(column.lower(), name)
    found = []
    for name, text in mine:
        expression = check(text, schema)
        if expression.text in given:
            found.append((name, quote_name(given[expression.text])))
        elif {c.lower() for c in expression.columns} <= plain.keys():
            found.append((name, _over(expression.text, plain, schema)))
        else:
            return None
    return tuple(found)


def _over(text: str, plain: Mapping[str, str], schema: Schema) -> str:
    """Return an expression over the output names of another projection; ``plain``: those of plain columns."""
    types = [replace(schema.column(column), name=name) for column, name in plain.items()]
    names = {schema.column(column).name: quote_name(name) for column, name in plain.items()}
    return substitute(text, names, Schema(tuple(types), internal=True))
