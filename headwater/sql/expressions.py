"""Check expressions before Spark starts: their columns, types and canonical text.

Expressions are Spark SQL. The canonical text means the same to Spark as the user's text, and is equal for all
spellings that differ only in spaces, case, quotes, comments and redundant parentheses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from headwater.core.errors import DataflowError
from headwater.sql.coercion import Typed
from headwater.sql.inference import Inference
from headwater.sql.lexer import shorten
from headwater.sql.parser import parse, parse_item
from headwater.sql.schema import BOOLEAN, VOID, DataType, IntervalType, Schema, StructType
from headwater.sql.syntax import Alias, Field, Name, Star, SyntaxNode, too_deep

T = TypeVar("T")
_REMEMBERED = 4096
"""Results of each kind of check that are kept: to plan a pool checks the same expressions thousands of times."""


@dataclass(frozen=True)
class Expression:
    """A checked scalar expression.

    ``text`` is canonical Spark SQL, ``columns`` the columns it reads, ``deterministic`` whether equal rows
    always give equal values.
    """

    text: str
    type: DataType
    columns: frozenset[str]
    deterministic: bool = True


@dataclass(frozen=True)
class AggregateCall:
    """A checked aggregate expression; ``functions`` are the aggregate functions in it."""

    text: str
    type: DataType
    columns: frozenset[str]
    functions: frozenset[str]
    deterministic: bool = True


def check(text: str, schema: Schema, *, where: str | None = None) -> Expression:
    """Check a scalar expression against the columns of its input."""
    return _located(lambda: _checked(text, schema), where)


@lru_cache(_REMEMBERED)
def _checked(text: str, schema: Schema) -> Expression:
    return _scalar(parse(text), schema)


def check_condition(text: str, schema: Schema, *, where: str | None = None) -> Expression:
    """Check a boolean expression."""
    return _located(lambda: _condition(text, schema), where)


@lru_cache(_REMEMBERED)
def _condition(text: str, schema: Schema) -> Expression:
    found, walk = _infer(parse(text), schema)
    if found.type not in (BOOLEAN, VOID):
        raise DataflowError(
            f"{shorten(found.text)} is {found.type}, and a condition is needed",
            hint=f"compare it with something, for example {found.within(7)} > ...",
        )
    return Expression(found.text, BOOLEAN, frozenset(walk.columns), not walk.volatile)


def parse_projection(text: str, schema: Schema, *, where: str | None = None) -> list[tuple[str, Expression]]:
    """Check one item of ``select``: ``a``, ``*``, ``window.*``, ``window.start``, ``a * 2 AS b``."""
    return list(_located(lambda: _projection(text, schema), where))


@lru_cache(_REMEMBERED)
def _projection(text: str, schema: Schema) -> tuple[tuple[str, Expression], ...]:
    return tuple(_project(parse_item(text), schema))


def check_aggregate(text: str, schema: Schema, *, where: str | None = None) -> AggregateCall:
    """Check an aggregate expression: ``count(*)``, ``sum(v * 2) / count(*)``, ``max_by(id, v)``."""
    return _located(lambda: _aggregate(text, schema), where)


@lru_cache(_REMEMBERED)
def _aggregate(text: str, schema: Schema) -> AggregateCall:
    walk = Inference(schema, place="outside")
    found = walk.walk(parse(text))
    if not walk.aggregates:
        raise DataflowError(
            f"{shorten(found.text)} has no aggregate", hint="write count(*), avg(v), max_by(id, v), ..."
        )
    _require_storable(found)
    return AggregateCall(found.text, found.type, frozenset(walk.columns), frozenset(walk.aggregates), not walk.volatile)


def _located(checked: Callable[[], T], where: str | None) -> T:
    """Run a check; its errors name the operator, and too deep nesting is an error like others."""
    try:
        return checked()
    except DataflowError as error:
        raise DataflowError(error.what, where=where, hint=error.hint) from None
    except RecursionError:
        deep = too_deep()
        raise DataflowError(deep.what, where=where, hint=deep.hint) from None


def _infer(node: SyntaxNode, schema: Schema) -> tuple[Typed, Inference]:
    walk = Inference(schema, place="scalar")
    return walk.walk(node), walk


def _scalar(node: SyntaxNode, schema: Schema) -> Expression:
    found, walk = _infer(node, schema)
    _require_storable(found)
    return Expression(found.text, found.type, frozenset(walk.columns), not walk.volatile)


def _require_storable(found: Typed) -> None:
    if found.type.storable:
        return
    hint = f"cast it: CAST({found.text} AS string)"
    if isinstance(found.type, IntervalType):
        hint = "write timestampdiff(SECOND, a, b), or add it to a timestamp"
    raise DataflowError(f"{shorten(found.text)} is {found.type}, which is not allowed for a column", hint=hint)


def _project(node: SyntaxNode, schema: Schema) -> list[tuple[str, Expression]]:
    match node:
        case Star(parts=()):
            return [(c.name, _scalar(Name((c.name,)), schema)) for c in schema]
        case Star(parts):
            found, _ = _infer(Name(parts), schema)
            if not isinstance(found.type, StructType):
                raise DataflowError(f"{found.shown} and has no fields", hint=f"write {found.text} without .*")
            return [(f.name, _scalar(Name((*parts, f.name)), schema)) for f in found.type.fields]
        case Alias(value, name):
            return [(name, _scalar(value, schema))]
    expression = _scalar(node, schema)
    found, _ = _infer(node, schema)
    if isinstance(node, Name | Field):
        return [(found.name or expression.text.removesuffix("()"), expression)]
    hint = f"add one: {expression.text[:60]} AS result"
    raise DataflowError(f"{shorten(expression.text)} has no name", hint=hint)
