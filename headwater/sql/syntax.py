"""The tree of a Spark SQL expression: what the parser gives and the inference walks."""

from __future__ import annotations

from dataclasses import dataclass, field

from headwater.core.errors import DataflowError
from headwater.sql.schema import DataType

MAX_DEPTH = 120
"""Deepest tree. Python's own stack ends at about six times that."""


@dataclass(frozen=True)
class Node:
    """One node; ``depth`` bounds every recursive walk, whatever the text looked like."""

    depth: int = field(init=False, default=1, compare=False, repr=False)

    def __post_init__(self) -> None:
        depth = 1 + max((child.depth for child in self.children), default=0)
        if depth > MAX_DEPTH:
            raise too_deep()
        object.__setattr__(self, "depth", depth)

    @property
    def children(self) -> tuple[Node, ...]:
        """Give the nodes directly below, in the order of the text."""
        return ()


def too_deep() -> DataflowError:
    """Give the error for a tree that is too deep to walk."""
    return DataflowError(
        f"the expression is nested more than {MAX_DEPTH} deep",
        hint="name its parts with with_columns first; use IN (...) or concat(...) in place of long chains",
    )


@dataclass(frozen=True)
class Literal(Node):
    """A constant: its canonical text and its type; ``value`` for what the typing rules look at."""

    text: str
    type: DataType
    value: str | int | bool | None = None


@dataclass(frozen=True)
class Name(Node):
    """A column or lambda variable, with the struct fields taken from it: ``window.start``."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Star(Node):
    """``*`` or ``window.*``."""

    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unary(Node):
    """``-a``, ``+a``, ``~a``, ``NOT a``."""

    operator: str
    operand: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(frozen=True)
class Binary(Node):
    """Arithmetic, bitwise, comparison, AND and OR."""

    operator: str
    left: Node
    right: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.left, self.right)


@dataclass(frozen=True)
class Predicate(Node):
    """``IN``, ``BETWEEN``, ``LIKE``, ``ILIKE``, ``RLIKE`` and the ``IS`` family.

    ``operator`` is the keyword (``IS NULL``, ``IS TRUE``, ``IS DISTINCT FROM``, ...); ``escape`` only
    goes with LIKE and ILIKE.
    """

    operator: str
    negated: bool
    subject: Node
    others: tuple[Node, ...] = ()
    escape: str | None = None

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.subject, *self.others)


@dataclass(frozen=True)
class Case(Node):
    """``CASE [operand] WHEN .. THEN .. [ELSE ..] END``."""

    operand: Node | None
    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node | None

    @property
    def children(self) -> tuple[Node, ...]:
        pairs = [node for branch in self.branches for node in branch]
        return tuple(n for n in (self.operand, *pairs, self.otherwise) if n is not None)


@dataclass(frozen=True)
class Cast(Node):
    """``CAST(value AS type)`` or ``TRY_CAST``."""

    value: Node
    type: DataType
    safe: bool

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.value,)


@dataclass(frozen=True)
class Field(Node):
    """A struct field of something that is not a plain name: ``items[0].price``."""

    value: Node
    name: str

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.value,)


@dataclass(frozen=True)
class Subscript(Node):
    """``readings[0]``, ``tags['room']``."""

    value: Node
    index: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.value, self.index)


@dataclass(frozen=True)
class Lambda(Node):
    """``x -> x + 1`` or ``(acc, x) -> acc + x``, an argument of a function."""

    parameters: tuple[str, ...]
    body: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.body,)


@dataclass(frozen=True)
class Alias(Node):
    """``value AS name``: a whole projection, or an argument of ``struct``."""

    value: Node
    name: str

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.value,)


@dataclass(frozen=True)
class Call(Node):
    """A function with its arguments; the last three only go with aggregates."""

    name: str
    arguments: tuple[Node, ...]
    distinct: bool = False
    filter: Node | None = None
    ignore_nulls: bool = False

    @property
    def children(self) -> tuple[Node, ...]:
        return self.arguments if self.filter is None else (*self.arguments, self.filter)
