"""The only module that gives SQL text to Spark: all of it is printed from a syntax tree."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from headwater.sql.lexer import quoted
from headwater.sql.parser import parse_generated
from headwater.sql.printer import printed
from headwater.sql.syntax import Alias, SyntaxNode, too_deep


def expression(text: str) -> Column:
    """Return an expression, user's or generated, as a column."""
    (found,) = items(text)
    return found


def items(*texts: str) -> list[Column]:
    """Return items of a projection as columns: ``a``, ``a + 1 AS b``, ``*``, ``r.*``."""
    try:
        return [_column(parse_generated(text, alias=True)) for text in texts]
    except RecursionError:
        raise too_deep() from None


def column_of(*names: str) -> Column:
    """Return a column, or a field of one, by its names, which may hold any characters."""
    return F.col(".".join(map(quoted, names)))


def _column(node: SyntaxNode) -> Column:
    if isinstance(node, Alias):
        return _column(node.value).alias(node.name)
    return F.expr(printed(node))
