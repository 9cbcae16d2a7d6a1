"""Parts of conditions, and implication between them. Pure.

A condition is the set of the parts joined by AND. It holds if all of them are true, so their order is irrelevant.
Implication is known for comparisons of one expression with constants, exactly as Spark compares them; any other
part implies only itself.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from decimal import Decimal

from headwater.sql.inference import Inference
from headwater.sql.parser import parse
from headwater.sql.schema import DataType, DecimalType, Schema
from headwater.sql.syntax import Binary, Literal, PredicateCall, SyntaxNode

Value = Decimal | str

_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_COMPARE: dict[str, Callable[[Value, Value], bool]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
    "=": operator.eq, "!=": operator.ne,
}  # fmt: skip
_NUMBER = re.compile(r"(-?[0-9.]+(?:[eE][+-]?[0-9]+)?)[A-Za-z]*\Z")
_NUMERIC = frozenset(["tinyint", "smallint", "int", "bigint", "float", "double"])


@dataclass(frozen=True)
class Conjunct:
    """One part of a condition, by its canonical text.

    ``subject`` is compared by ``comparison`` with ``values``, any of which may match; '' if only the text is known.
    """

    text: str
    subject: str = ""
    comparison: str = ""
    values: tuple[Value, ...] = ()

    def implies(self, other: Conjunct) -> bool:
        """Return whether the other part is true wherever this one is."""
        if self.text == other.text:
            return True
        if not self.subject or self.subject != other.subject:
            return False
        if other.comparison == "is there":
            return True  # NULL is neither greater, nor less, nor equal
        if not self.values or not other.values:
            return False
        if {type(v) for v in self.values} != {type(v) for v in other.values}:
            return False
        if self.comparison == "=":
            return all(any(_COMPARE[other.comparison](v, w) for w in other.values) for v in self.values)
        (bound,) = self.values
        return other.comparison != "=" and all(
            _follows(self.comparison, bound, other.comparison, w) for w in other.values
        )


def parts_of(condition: str, schema: Schema) -> tuple[Conjunct, ...]:
    """Return the parts of a condition over columns of ``schema``, each once, sorted by text."""
    found = {p.text: p for node in _joined(parse(condition)) for p in _parts(node, schema)}
    return tuple(found[text] for text in sorted(found))


def canonical(condition: str, schema: Schema) -> str:
    """Return a condition in canonical form: equal for all orders of its parts."""
    return " AND ".join(f"({part.text})" for part in parts_of(condition, schema))


def implied(part: Conjunct, by: Collection[Conjunct]) -> bool:
    """Return whether a part is true wherever all others are."""
    return any(one.implies(part) for one in by)


def _joined(node: SyntaxNode) -> Iterator[SyntaxNode]:
    todo = [node]
    while todo:
        match todo.pop():
            case Binary("AND", left, right):
                todo += [right, left]
            case PredicateCall("BETWEEN", False, subject, (low, high)):
                yield Binary(">=", subject, low)
                yield Binary("<=", subject, high)
            case Literal(value=True):
                pass  # then so is every row
            case one:
                yield one


def _parts(node: SyntaxNode, schema: Schema) -> Iterator[Conjunct]:
    def walk(inner: SyntaxNode) -> tuple[str, DataType]:
        typed = Inference(schema, place="scalar").walk(inner)
        return typed.text, typed.type

    match node:
        case Binary(sign, Literal() as value, subject) if sign in _FLIPPED and not isinstance(subject, Literal):
            yield from _parts(Binary(_FLIPPED[sign], subject, value), schema)
        case Binary(sign, subject, Literal() as value) if sign in _FLIPPED:
            yield _comparison(walk(node)[0], walk(subject), sign, (value,))
        case PredicateCall("IN", False, subject, others) if all(isinstance(o, Literal) for o in others):
            values = tuple(o for o in others if isinstance(o, Literal))
            yield _comparison(walk(node)[0], walk(subject), "=", values)
        case PredicateCall("IS NULL", True, subject, ()):
            yield Conjunct(walk(node)[0], walk(subject)[0], "is there")
        case _:
            yield Conjunct(walk(node)[0])


def _comparison(text: str, subject: tuple[str, DataType], sign: str, literals: Collection[Literal]) -> Conjunct:
    values = [_value(one, subject[1]) for one in literals]
    known = [v for v in values if v is not None]
    return Conjunct(text, subject[0], sign, tuple(known) if len(known) == len(values) else ())


def _value(literal: Literal, type_: DataType) -> Value | None:
    """Return a constant as Spark compares it with a column of a type; None if the comparison changes a value."""
    numeric = type_.text in _NUMERIC or isinstance(type_, DecimalType)
    if literal.type.text == "string":
        return str(literal.value) if type_.text == "string" and literal.value is not None else None
    if not numeric or not (literal.type.text in _NUMERIC or isinstance(literal.type, DecimalType)):
        return None
    match = _NUMBER.match(literal.text)
    if match is None:
        return None
    if type_.text in ("float", "double") or literal.type.text in ("float", "double"):
        return Decimal(float(match.group(1)))  # Spark compares them so
    return Decimal(match.group(1))


def _follows(mine: str, bound: Value, other: str, limit: Value) -> bool:
    """Return whether ``x <mine> bound`` implies ``x <other> limit`` for every x."""
    match mine, other:
        case (">" | ">=", ">" | ">="):
            strict = other == ">" and mine == ">="
            return _COMPARE[">" if strict else ">="](bound, limit)
        case ("<" | "<=", "<" | "<="):
            strict = other == "<" and mine == "<="
            return _COMPARE["<" if strict else "<="](bound, limit)
        case (">" | "<", "!="):
            return _COMPARE[">=" if mine == ">" else "<="](bound, limit)
        case (">=" | "<=", "!="):
            return _COMPARE[">" if mine == ">=" else "<"](bound, limit)
        case ("!=", "!="):
            return bound == limit
    return False
