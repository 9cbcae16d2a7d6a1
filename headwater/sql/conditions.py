"""Parts of conditions, and implication between them. Pure.

A condition is the set of the parts joined by AND. It holds if all of them are true, so their order is irrelevant.
Implication is known for comparisons of one expression with constants, exactly as Spark compares them, for prefixes of
strings, and for parts joined by OR; any other part implies only itself.

Spark compares two types in a common one. Where this rounds the values of the expression, as double does those of
bigint, the comparison is *rounded*: it says less of the values than an exact one.
"""

from __future__ import annotations

import math
import operator
import re
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from headwater.sql.inference import Inference
from headwater.sql.parser import parse
from headwater.sql.schema import DataType, DecimalType, Schema
from headwater.sql.syntax import Binary, Literal, PredicateCall, SyntaxNode

Value = Decimal | str

_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_COMPARE: dict[str, Callable[[Value, Value], bool]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
    "=": operator.eq, "!=": operator.ne, "starts": lambda value, prefix: str(value).startswith(str(prefix)),
}  # fmt: skip
_PREFIX = re.compile(r"([^%_\\]+)%\Z")
"""A pattern of LIKE that only asks for a prefix."""
_TIME = re.compile(r"(?:DATE|TIMESTAMP(?:_NTZ|_LTZ)?) '(\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d{1,6})?)?)'\Z")
_TIMES = frozenset(["date", "timestamp", "timestamp_ntz"])
_WHOLE = frozenset(["tinyint", "smallint", "int", "bigint"])
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
    ``starts`` is the comparison with a prefix. ``options``: of parts joined by OR, the parts of each.
    ``rounded``: the type in which the subject's values are rounded and compared; '' for an exact comparison.
    """

    text: str
    subject: str = ""
    comparison: str = ""
    values: tuple[Value, ...] = ()
    rounded: str = ""
    options: tuple[tuple[Conjunct, ...], ...] = ()

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
    if _follows_from(part, by):
        return True
    return any(
        all(_follows_from(part, [*(p for p in by if p is not one), *option]) for option in options)
        for one in by
        if (options := _options(one))
    )


def _options(part: Conjunct) -> tuple[tuple[Conjunct, ...], ...]:
    """Return the options of a part, one of which is true where it is."""
    if part.comparison == "=" and len(part.values) > 1:
        return tuple((replace(part, text="", values=(value,)),) for value in part.values)
    return part.options


def _follows_from(part: Conjunct, by: Collection[Conjunct]) -> bool:
    """Return whether a part follows from others, the options of which are not looked at."""
    if any(one.implies(part) for one in (*by, *_together(by))):
        return True
    return any(all(_follows_from(p, by) for p in option) for option in part.options)


def _together(parts: Collection[Conjunct]) -> Iterator[Conjunct]:
    """Yield what several parts say of one subject: the values that all of them allow."""
    for one in parts:
        others = [
            p for p in parts if p is not one and p.values and p.subject == one.subject and p.rounded == one.rounded
        ]
        if one.comparison == "=":
            left = [v for v in one.values if all(any(_holds(p.comparison, v, w) for w in p.values) for p in others)]
            if left and len(left) < len(one.values):
                yield replace(one, text="", values=tuple(left))
        elif one.comparison == ">=" and any(p.comparison == "<=" and p.values == one.values for p in others):
            yield replace(one, text="", comparison="=")


def _holds(comparison: str, value: Value, other: Value) -> bool:
    """Return whether a comparison of two constants is true; True for constants of two kinds."""
    return type(value) is not type(other) or _COMPARE[comparison](value, other)


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
        case PredicateCall("LIKE", False, subject, (Literal() as pattern,), None):
            yield _prefix(walk(node)[0], walk(subject), _PREFIX.match(str(pattern.value)))
        case Binary("OR"):
            sides = [tuple(p for one in _joined(side) for p in _parts(one, schema)) for side in _sides(node)]
            yield Conjunct(walk(node)[0], options=tuple(sides))
        case PredicateCall("IS NULL", True, subject, ()):
            yield Conjunct(walk(node)[0], walk(subject)[0], "is there")
        case _:
            yield Conjunct(walk(node)[0])


def _sides(node: SyntaxNode) -> list[SyntaxNode]:
    """Return the conditions joined by OR."""
    found, todo = list[SyntaxNode](), [node]
    while todo:
        match todo.pop():
            case Binary("OR", left, right):
                todo += [right, left]
            case one:
                found.append(one)
    return found


def _prefix(text: str, subject: tuple[str, DataType], match: re.Match[str] | None) -> Conjunct:
    if match is None or subject[1].text != "string":
        return Conjunct(text)
    return Conjunct(text, subject[0], "starts", (match.group(1),))


def _comparison(text: str, subject: tuple[str, DataType], sign: str, literals: Collection[Literal]) -> Conjunct:
    rounded = _rounded(subject[1], [one.type for one in literals])
    values = [None if rounded is None else _value(one, subject[1], rounded) for one in literals]
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return Conjunct(text, subject[0], sign, (), rounded or "")
    whole = subject[1].text in _WHOLE and not rounded and len(known) == 1 and Decimal(known[0]).is_finite()
    if whole and sign in _TO_WHOLE:
        sign, known = _TO_WHOLE[sign][0], [Decimal(_TO_WHOLE[sign][1](Decimal(known[0])))]
    return Conjunct(text, subject[0], sign, tuple(known), rounded or "")


_TO_WHOLE: dict[str, tuple[str, Callable[[Decimal], int]]] = {
    ">": (">=", lambda bound: math.floor(bound) + 1), ">=": (">=", math.ceil),
    "<": ("<=", lambda bound: math.ceil(bound) - 1), "<=": ("<=", math.floor),
}  # fmt: skip
"""Comparisons of whole numbers, by the next whole number."""


def _rounded(type_: DataType, of_literals: Collection[DataType]) -> str | None:
    """Return the type in which a comparison rounds values of a type; '' where it rounds none, None where unknown."""
    kinds = {literal.text for literal in of_literals}
    if (kinds == {"string"} and type_.text == "string") or (kinds <= _TIMES and type_.text in _TIMES):
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
    if literal.type.text in _TIMES:
        return _microseconds(literal.text)
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


def _microseconds(text: str) -> Value | None:
    """Return a date or time as Spark compares it, all of them in UTC; None for other ways of writing it."""
    match = _TIME.match(text)
    if match is None:
        return None
    try:
        at = datetime.fromisoformat(match.group(1)).replace(tzinfo=UTC)
    except ValueError:
        return None
    return Decimal((at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))


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
        case ("starts", "starts"):
            return str(bound).startswith(str(limit))
        case ("starts", ">" | ">="):
            return _COMPARE[other](bound, limit)
        case ("starts", "<" | "<="):
            return bound < limit and not str(limit).startswith(str(bound))  # type: ignore[operator]
        case ("starts", "!="):
            return not str(limit).startswith(str(bound))
    return False
