"""The syntax tree of a Spark SQL expression."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headwater.core.errors import DataflowError
from headwater.sql.schema import DataType

MAX_DEPTH = 120
"""Deepest tree that is walked. Python's own stack ends at about six times that."""


@dataclass(frozen=True)
class SyntaxNode:
    """One node; its ``depth`` tells whether a recursive walk can end."""

    depth: int = field(init=False, default=1, compare=False, repr=False)

    def __post_init__(self) -> None:
        depth = 1 + max((child.depth for child in self.children), default=0)
        object.__setattr__(self, "depth", depth)

    @property
    def children(self) -> tuple[SyntaxNode, ...]:
        """Return the child nodes, in the order of the fields."""
        return tuple(_nodes_in(tuple(vars(self).values())))


def _nodes_in(value: object) -> Iterator[SyntaxNode]:
    if isinstance(value, SyntaxNode):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from _nodes_in(one)


def too_deep() -> DataflowError:
    """Return the error for a tree that is too deep to walk."""
    return DataflowError(
        f"the expression is nested more than {MAX_DEPTH} deep",
        hint="name its parts with with_columns first; use IN (...) or concat(...) in place of long chains",
    )


@dataclass(frozen=True)
class Literal(SyntaxNode):
    """A constant: its canonical text and its type; ``value`` for the typing rules."""

    text: str
    type: DataType
    value: str | int | bool | None = None


@dataclass(frozen=True)
class Name(SyntaxNode):
    """A column or lambda variable, with the struct fields taken from it: ``window.start``."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Star(SyntaxNode):
    """``*`` or ``window.*``."""

    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unary(SyntaxNode):
    """``-a``, ``+a``, ``~a``, ``NOT a``."""

    operator: str
    operand: SyntaxNode


@dataclass(frozen=True)
class Binary(SyntaxNode):
    """Arithmetic, bitwise, comparison, AND and OR."""

    operator: str
    left: SyntaxNode
    right: SyntaxNode


@dataclass(frozen=True)
class PredicateCall(SyntaxNode):
    """``IN``, ``BETWEEN``, ``LIKE``, ``ILIKE``, ``RLIKE`` and the ``IS`` family.

    ``operator`` is the keyword (``IS NULL``, ``IS TRUE``, ``IS DISTINCT FROM``, ...); ``escape`` is only for LIKE and
    ILIKE.
    """

    operator: str
    negated: bool
    subject: SyntaxNode
    others: tuple[SyntaxNode, ...] = ()
    escape: str | None = None


@dataclass(frozen=True)
class CaseWhen(SyntaxNode):
    """``CASE [operand] WHEN .. THEN .. [ELSE ..] END``."""

    operand: SyntaxNode | None
    branches: tuple[tuple[SyntaxNode, SyntaxNode], ...]
    otherwise: SyntaxNode | None


@dataclass(frozen=True)
class Cast(SyntaxNode):
    """``CAST(value AS type)`` or ``TRY_CAST``."""

    value: SyntaxNode
    type: DataType
    safe: bool


@dataclass(frozen=True)
class Field(SyntaxNode):
    """A struct field of something that is not a plain name: ``items[0].price``."""

    value: SyntaxNode
    name: str


@dataclass(frozen=True)
class Subscript(SyntaxNode):
    """``readings[0]``, ``tags['room']``."""

    value: SyntaxNode
    index: SyntaxNode


@dataclass(frozen=True)
class Lambda(SyntaxNode):
    """``x -> x + 1`` or ``(acc, x) -> acc + x``, an argument of a function."""

    parameters: tuple[str, ...]
    body: SyntaxNode


@dataclass(frozen=True)
class Alias(SyntaxNode):
    """``value AS name``: a whole projection, or an argument of ``struct``."""

    value: SyntaxNode
    name: str


@dataclass(frozen=True)
class OrderKey(SyntaxNode):
    """``value [ASC | DESC]`` of an ORDER BY."""

    value: SyntaxNode
    descending: bool


@dataclass(frozen=True)
class Call(SyntaxNode):
    """A function with its arguments; the last four are only for aggregates, ``order`` is that of WITHIN GROUP."""

    name: str
    arguments: tuple[SyntaxNode, ...]
    distinct: bool = False
    filter: SyntaxNode | None = None
    ignore_nulls: bool = False
    order: tuple[OrderKey, ...] = ()
