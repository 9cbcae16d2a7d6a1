"""The syntax tree of a SELECT statement; its expressions are those of :mod:`headwater.sql.syntax`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from headwater.core.errors import DataflowError
from headwater.sql.syntax import OrderKey, SyntaxNode


class StatementError(DataflowError):
    """An error of a SQL statement; ``where`` is the position in its text."""


class UnknownStream(StatementError):
    """A query reads a stream that does not exist, or not yet; ``name`` is its name."""

    name = ""


@dataclass(frozen=True)
class RankCall(SyntaxNode):
    """``ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...)``, and other functions of that kind."""

    name: str
    partition: tuple[SyntaxNode, ...]
    order: tuple[OrderKey, ...]


@dataclass(frozen=True)
class Clause:
    """An expression of a statement, and the position of its first character in the text."""

    node: SyntaxNode
    at: int


@dataclass(frozen=True)
class SelectItem:
    """One column of the result; a star has the names that it leaves out (``* EXCEPT (a, b)``)."""

    node: SyntaxNode
    at: int
    alias: str | None = None
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class WatermarkClause:
    """``WATERMARK ts DELAY OF INTERVAL 10 SECONDS``."""

    column: Clause
    delay: Clause


@dataclass(frozen=True)
class StreamRelation:
    """A stream by its name, or a query of the WITH clause."""

    name: str
    alias: str
    at: int
    watermark: WatermarkClause | None = None


@dataclass(frozen=True)
class QueryRelation:
    """A query in parentheses."""

    query: Query
    alias: str
    at: int


JoinKind: TypeAlias = Literal["inner", "left", "left_semi", "left_anti"]


@dataclass(frozen=True)
class JoinRelation:
    """Two relations, and the condition by which their rows are paired."""

    left: Relation
    right: StreamRelation | QueryRelation
    how: JoinKind
    at: int
    on: Clause


Relation: TypeAlias = StreamRelation | QueryRelation | JoinRelation


@dataclass(frozen=True)
class ExplodeView:
    """``LATERAL VIEW [OUTER] explode(array) alias AS column``; with posexplode, two columns."""

    array: Clause
    alias: str
    column: str
    position: str | None
    outer: bool


@dataclass(frozen=True)
class PlaceHint:
    """``/*+ LAYER(site), REQUIRE('gpu = true') */``: the place of a SELECT's operators; ``ZONE(S1)`` names a zone."""

    layer: str | None = None
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class SelectQuery:
    """One SELECT, its clauses in the order in which they are applied."""

    items: tuple[SelectItem, ...]
    source: Relation
    at: int
    hint: PlaceHint = PlaceHint()
    views: tuple[ExplodeView, ...] = ()
    where: Clause | None = None
    groups: tuple[Clause, ...] = ()
    group_all: bool = False
    having: Clause | None = None
    qualify: Clause | None = None
    distinct: bool = False


@dataclass(frozen=True)
class UnionQuery:
    """``left UNION ALL right``, or ``UNION``, which drops duplicates."""

    left: Query
    right: Query
    at: int
    distinct: bool = False


@dataclass(frozen=True)
class WithQuery:
    """Queries with names, each known to the later ones, and the query that uses them."""

    named: tuple[tuple[str, Query], ...]
    body: Query
    at: int = field(default=0)


Query: TypeAlias = SelectQuery | UnionQuery | WithQuery


def place_in(text: str, at: int) -> str:
    """Return a position in a text for people: ``line 2, column 7 of the SQL text``."""
    before = text[:at]
    return f"line {before.count(chr(10)) + 1}, column {at - (before.rfind(chr(10)) + 1) + 1} of the SQL text"
