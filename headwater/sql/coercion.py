"""Type coercion by Spark 4's ANSI rules.

In one place it is stricter than Spark on purpose: Spark compares and adds a string and a number by casting the
string, which fails at run time on the first row that is not a number. Here the user writes the cast.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from headwater.sql.lexer import shorten
from headwater.sql.printer import canonical, enclosed
from headwater.sql.schema import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    VOID,
    ArrayType,
    AtomicType,
    Column,
    DataType,
    DecimalType,
    IntervalType,
    MapType,
    StructType,
)
from headwater.sql.syntax import Literal, SyntaxNode

INTEGRAL = (TINYINT, SMALLINT, INT, BIGINT)
DATETIME = (DATE, TIMESTAMP_NTZ, TIMESTAMP)
_UNITS = ("year", "month", "day", "hour", "minute", "second")
_DIGITS: dict[DataType, int] = {TINYINT: 3, SMALLINT: 5, INT: 10, BIGINT: 20}
_MAX, _MIN_SCALE = 38, 6


def is_numeric(found: DataType) -> bool:
    """Return whether arithmetic is defined on a type."""
    return found in (*INTEGRAL, FLOAT, DOUBLE) or isinstance(found, DecimalType)


def is_orderable(found: DataType) -> bool:
    """Return whether values are orderable: all but maps, and types that contain maps."""
    if isinstance(found, ArrayType):
        return is_orderable(found.element)
    if isinstance(found, StructType):
        return all(is_orderable(f.type) for f in found.fields)
    return not isinstance(found, MapType)


def common_type(left: DataType, right: DataType) -> DataType | None:
    """Return the narrowest type that both widen to (for COALESCE, CASE, arrays, ...), or None."""
    if left == right or right == VOID:
        return left
    if left == VOID:
        return right
    if is_numeric(left) and is_numeric(right):
        return _common_number(left, right)
    if left in DATETIME and right in DATETIME:
        return left if _place(left, DATETIME) > _place(right, DATETIME) else right
    for one, other in ((left, right), (right, left)):
        if one == STRING and other in (*DATETIME, BOOLEAN, BINARY):
            return other
    match left, right:
        case IntervalType(), IntervalType() if left.of_months == right.of_months:
            start = min(left.start, right.start, key=_UNITS.index)
            return IntervalType(start, max(left.end, right.end, key=_UNITS.index))
        case ArrayType(), ArrayType():
            element = common_type(left.element, right.element)
            return ArrayType(element) if element else None
        case MapType(), MapType():
            key, value = common_type(left.key, right.key), common_type(left.value, right.value)
            return MapType(key, value) if key and value else None
        case StructType(), StructType():
            return _common_struct(left, right)
    return None


def common_of(types: list[DataType]) -> DataType | None:
    """Return the common type of all of them; void for none."""
    found: DataType | None = VOID
    for each in types:
        found = found and common_type(found, each)
    return found


def _place(found: DataType, among: tuple[AtomicType, ...]) -> int:
    return next(i for i, each in enumerate(among) if each == found)


def _common_number(left: DataType, right: DataType) -> DataType:
    if isinstance(left, DecimalType) or isinstance(right, DecimalType):
        if left in (FLOAT, DOUBLE) or right in (FLOAT, DOUBLE):
            return DOUBLE
        one, other = as_decimal(left), as_decimal(right)
        scale = max(one.scale, other.scale)
        whole = max(one.precision - one.scale, other.precision - other.scale)
        # Whole digits take precedence over fractional ones if 38 are not enough.
        excess = max(0, whole + scale - _MAX)
        return DecimalType(whole + scale - excess, max(0, scale - excess))
    if left in INTEGRAL and right in INTEGRAL:
        return left if _place(left, INTEGRAL) > _place(right, INTEGRAL) else right
    # Spark widens a whole number and a float to double, to lose no digits of the whole number.
    return FLOAT if left == right == FLOAT else DOUBLE


def _common_struct(left: StructType, right: StructType) -> StructType | None:
    if [f.name.lower() for f in left.fields] != [f.name.lower() for f in right.fields]:
        return None
    types = [common_type(a.type, b.type) for a, b in zip(left.fields, right.fields, strict=True)]
    if any(t is None for t in types):
        return None
    return StructType(tuple(Column(f.name, t) for f, t in zip(left.fields, types, strict=True) if t))


def as_decimal(found: DataType, *, literal: int | None = None) -> DecimalType:
    """Return the decimal type of a whole number; a literal only takes the digits it has."""
    if isinstance(found, DecimalType):
        return found
    if literal is not None:
        return DecimalType(len(str(abs(literal))), 0)
    return DecimalType(_DIGITS[found], 0)


def decimal_result(operator: str, left: DecimalType, right: DecimalType) -> DecimalType:
    """Return the type of decimal arithmetic, with Spark's loss of scale when 38 digits are not enough."""
    p1, s1, p2, s2 = left.precision, left.scale, right.precision, right.scale
    scale = max(s1, s2)
    match operator:
        case "+" | "-":
            return _adjusted(max(p1 - s1, p2 - s2) + scale + 1, scale)
        case "*":
            return _adjusted(p1 + p2 + 1, s1 + s2)
        case "/":
            scale = max(_MIN_SCALE, s1 + p2 + 1)
            return _adjusted(p1 - s1 + s2 + scale, scale)
        case _:
            return _adjusted(min(p1 - s1, p2 - s2) + scale, scale)


def _adjusted(precision: int, scale: int) -> DecimalType:
    if precision <= _MAX:
        return DecimalType(max(precision, 1), scale)
    whole = precision - scale
    return DecimalType(_MAX, max(_MAX - whole, min(scale, _MIN_SCALE)))


def bounded(precision: int, scale: int) -> DecimalType:
    """Return a decimal type, cut to 38 digits."""
    return DecimalType(min(precision, _MAX), min(scale, _MAX))


def converts(given: DataType, wanted: DataType) -> bool:
    """Return whether Spark converts an argument implicitly (and Headwater allows it)."""
    if given in (wanted, VOID):
        return True
    if is_numeric(given) and is_numeric(wanted):
        return True
    if given in DATETIME and wanted in DATETIME:
        return True
    if wanted == STRING:
        return is_numeric(given) or given in (*DATETIME, BOOLEAN, BINARY)
    if given == STRING:
        return wanted in (*DATETIME, BINARY)
    match given, wanted:
        case IntervalType(), IntervalType():
            return given.of_months == wanted.of_months
        case ArrayType(), ArrayType():
            return converts(given.element, wanted.element)
        case MapType(), MapType():
            return converts(given.key, wanted.key) and converts(given.value, wanted.value)
    return False


def castable(given: DataType, wanted: DataType) -> bool:
    """Return whether Spark's ANSI ``CAST(given AS wanted)`` is defined."""
    if given in (wanted, VOID):
        return True
    if wanted == VOID:
        return False
    match given, wanted:
        case ArrayType(), ArrayType():
            return castable(given.element, wanted.element)
        case MapType(), MapType():
            return castable(given.key, wanted.key) and castable(given.value, wanted.value)
        case StructType(), StructType():
            return len(given.fields) == len(wanted.fields) and all(
                castable(a.type, b.type) for a, b in zip(given.fields, wanted.fields, strict=True)
            )
        case IntervalType(), IntervalType():
            return given.of_months == wanted.of_months
    if wanted == STRING:
        return True
    if isinstance(given, IntervalType):
        return wanted in INTEGRAL or _unit_cast(given, wanted)
    if isinstance(wanted, IntervalType):
        return given == STRING or _unit_cast(wanted, given)
    if given == STRING:
        return isinstance(wanted, AtomicType | DecimalType)
    if is_numeric(given):
        return is_numeric(wanted) or wanted in (BOOLEAN, TIMESTAMP)
    if given == BOOLEAN:
        return is_numeric(wanted)
    if given in DATETIME:
        return wanted in DATETIME or (given == TIMESTAMP and is_numeric(wanted))
    return False


def _unit_cast(interval: IntervalType, number: DataType) -> bool:
    """Only an interval of one unit is a number."""
    return interval.start == interval.end and (number in INTEGRAL or isinstance(number, DecimalType))


@dataclass(frozen=True)
class Typed:
    """An expression whose type is known.

    ``node`` has its names resolved; ``name`` is set if Spark would name a struct's field after it.
    """

    node: SyntaxNode
    type: DataType
    name: str | None = None

    @cached_property
    def text(self) -> str:
        """The canonical text."""
        return canonical(self.node)

    @property
    def constant(self) -> Literal | None:
        return self.node if isinstance(self.node, Literal) else None

    def within(self, floor: int) -> str:
        """Return the canonical text, in parentheses if it binds less tightly than ``floor`` (``parser.BINDING``)."""
        return enclosed(self.node, floor)

    @property
    def shown(self) -> str:
        """Return a description for an error message."""
        return f"{shorten(self.text, 60)} is {self.type}"
