"""Parts of conditions, and implication between them. Pure.

A condition is the set of the parts joined by AND. It holds if all of them are true, so their order is irrelevant.
Implication is known for comparisons of one expression with constants, exactly as Spark compares them; any other
part implies only itself.

Spark compares two types in a common one. Where this rounds the values of the expression, as double does those of
bigint, the comparison is *rounded*: it says less of the values than an exact one.
"""

from __future__ import annotations

import operator
import re
import struct
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
_REAL = frozenset(["float", "double"])
_SMALL = frozenset(["tinyint", "smallint", "int"])
"""Types whose values are doubles, all of them."""
_MOST_DIGITS = 38
_FLOAT_WHOLE = 2**24
"""Whole numbers up to this one are floats."""


@dataclass(frozen=True)
class Conjunct:
    """One part of a condition, by its canonical text.

    ``subject`` is compared by ``comparison`` with ``values``, any of which may match; '' if only the text is known.
    ``rounded``: the type in which the subject's values are rounded and compared; '' for an exact comparison.
    """

    text: str
    subject: str = ""
    comparison: str = ""
    values: tuple[Value, ...] = ()
    rounded: str = ""

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
        comparison, values = self.comparison, self.values
        if self.rounded != other.rounded:
            if self.rounded or other.rounded != "double" or comparison == "!=":
                return False
            # Rounding keeps the order of two values, but may make them equal.
            comparison, values = comparison[0] + "=" * (comparison != "="), tuple(map(_double, values))
        if comparison == "=":
            return all(any(_COMPARE[other.comparison](v, w) for w in other.values) for v in values)
        (bound,) = values
        return other.comparison != "=" and all(_follows(comparison, bound, other.comparison, w) for w in other.values)


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
    rounded = _rounded(subject[1], [one.type for one in literals])
    values = [None if rounded is None else _value(one, subject[1], rounded) for one in literals]
    known = [v for v in values if v is not None]
    return Conjunct(text, subject[0], sign, tuple(known) if len(known) == len(values) else (), rounded or "")


def _rounded(type_: DataType, of_literals: Collection[DataType]) -> str | None:
    """Return the type in which a comparison rounds values of a type; '' where it rounds none, None where unknown."""
    kinds = {literal.text for literal in of_literals}
    if kinds == {"string"} and type_.text == "string":
        return ""
    if not all(_is_number(one) for one in (type_, *of_literals)):
        return None
    if type_.text in _REAL or not kinds & _REAL:
        return "" if type_.text in _REAL or _fits_one_decimal(type_, of_literals) else None
    if "double" in kinds:
        return "" if type_.text in _SMALL else "double"
    return "float" if kinds == {"float"} else None


def _is_number(type_: DataType) -> bool:
    return type_.text in _NUMERIC or isinstance(type_, DecimalType)


def _fits_one_decimal(type_: DataType, of_literals: Collection[DataType]) -> bool:
    """Return whether one type of decimals holds all values of some types: else Spark rounds them."""
    shapes = [
        (t.precision - t.scale, t.scale) if isinstance(t, DecimalType) else (20, 0) for t in (type_, *of_literals)
    ]
    return max(whole for whole, _ in shapes) + max(scale for _, scale in shapes) <= _MOST_DIGITS


def _value(literal: Literal, type_: DataType, rounded: str) -> Value | None:
    """Return a constant as Spark compares it with a column of a type; None if that is not known."""
    if literal.type.text == "string":
        return None if literal.value is None else str(literal.value)
    match = _NUMBER.match(literal.text)
    if match is None:
        return None
    found = Decimal(match.group(1))
    if literal.type.text == "float":
        try:
            return Decimal(struct.unpack("f", struct.pack("f", float(found)))[0])
        except OverflowError:
            return None
    if type_.text == "float" and literal.type.text in _NUMERIC - _REAL and abs(found) > _FLOAT_WHOLE:
        return None  # compared as float or as double, by Spark's settings
    as_double = type_.text in _REAL or literal.type.text == "double" or rounded == "double"
    return _double(found) if as_double else found


def _double(value: Value) -> Value:
    return Decimal(float(value))


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
