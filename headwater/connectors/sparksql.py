"""The only module that gives SQL text to Spark: all of it is printed from a syntax tree."""

from __future__ import annotations

from functools import lru_cache

from pyspark.sql import Column
from pyspark.sql import functions as F

from headwater.sql.lexer import quoted
from headwater.sql.parser import parse_generated
from headwater.sql.printer import printed
from headwater.sql.syntax import Alias, too_deep

_SHORT = 10_000  # characters of an item that is kept


def expression(text: str) -> Column:
    """Return an expression, user's or generated, as a column."""
    (found,) = items(text)
    return found


def items(*texts: str) -> list[Column]:
    """Return items of a projection as columns: ``a``, ``a + 1 AS b``, ``*``, ``r.*``."""
    return [_column(*(_printed(text) if len(text) <= _SHORT else _print(text))) for text in texts]


def column_of(*names: str) -> Column:
    """Return a column, or a field of one, by its names, which may hold any characters."""
    return F.col(".".join(map(quoted, names)))


def _print(text: str) -> tuple[str, tuple[str, ...]]:
    """Return an item's expression as it is given to Spark, and its names, the outermost last."""
    try:
        node, names = parse_generated(text, alias=True), []
        while isinstance(node, Alias):
            names.append(node.name)
            node = node.value
        return printed(node), tuple(reversed(names))
    except RecursionError:
        raise too_deep() from None


_printed = lru_cache(512)(_print)
"""A query is compiled several times before it runs: as a check, as a warm-up, and when it starts."""


def _column(text: str, names: tuple[str, ...]) -> Column:
    column = F.expr(text)
    for name in names:
        column = column.alias(name)
    return column
