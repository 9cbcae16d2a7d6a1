"""Constants of Spark SQL: numbers, dates, timestamps, bytes and intervals, checked and typed."""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal

from headwater.core.errors import DataflowError
from headwater.sql.lexer import quote_string
from headwater.sql.schema import (
    BIGINT,
    BINARY,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    AtomicType,
    DecimalType,
    IntervalType,
)
from headwater.sql.syntax import Literal

_SIZED = {"Y": (TINYINT, 7), "S": (SMALLINT, 15), "L": (BIGINT, 63)}
_NUMBER = re.compile(r"([0-9.]+)([eE][+-]?[0-9]+)?([A-Za-z]*)\Z")
_DATE = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?\Z")
_TIMESTAMP = re.compile(
    r"(\d{4}(?:-\d{1,2}(?:-\d{1,2})?)?)"
    r"(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.\d{1,9})?)?\s*"
    r"(Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?|[A-Z]\w+/\w+)?)?\Z"
)
_INTERVAL_NUMBER = re.compile(r"[+-]?\d{1,18}(\.\d{1,9})?\Z")
_UNITS = ("year", "month", "day", "hour", "minute", "second")
_SMALL_UNITS = {"week": "day", "millisecond": "second", "microsecond": "second"}
UNITS = (*_UNITS, *_SMALL_UNITS)
"""Units of an interval, singular."""


def string(value: str) -> Literal:
    """Return a string constant."""
    return Literal(quote_string(value), STRING, value)


def number(text: str, *, negative: bool = False) -> Literal:
    """Read a number as Spark types it: 1 is int, 1.5 is decimal(2,1), 1e3 and 1D are double."""
    match = _NUMBER.match(text)
    if match is None:
        raise DataflowError(f"{text!r} is not a number")
    digits, exponent, suffix = match.group(1), match.group(2) or "", match.group(3).upper()
    sign = "-" if negative else ""
    if suffix in _SIZED:
        found, bits = _SIZED[suffix]
        if "." in digits or exponent:
            raise DataflowError(f"{text!r} is not a whole number", hint=f"write it without the {suffix}")
        value = _whole(sign + digits, text)
        if not -(2**bits) <= value < 2**bits:
            raise DataflowError(f"{sign}{text} does not fit in {found}", hint="use a wider suffix, or none")
        return Literal(sign + digits + suffix, found, value)
    if suffix in ("D", "F") or (exponent and suffix != "BD"):
        if len(digits) > 400 or abs(int(exponent[1:] or 0)) > 400:
            raise DataflowError(f"the number {text[:40]!r} is out of range")
        return Literal(f"{sign}{digits}{exponent.upper()}{suffix}", FLOAT if suffix == "F" else DOUBLE)
    if "." not in digits and suffix != "BD":
        value = _whole(sign + digits, text)
        for found, bits in ((INT, 31), (BIGINT, 63)):
            if -(2**bits) <= value < 2**bits:
                return Literal(str(value), found, value)
        digits = digits.lstrip("0")
    return Literal(f"{sign}{digits}{exponent.upper()}{suffix}", decimal_type(digits + exponent, text))


def _whole(digits: str, text: str) -> int:
    if len(digits) > 60:
        raise DataflowError(f"the number {text[:40]!r} is out of range", hint="decimals have 38 digits")
    return int(digits)


def decimal_type(digits: str, shown: str) -> DecimalType:
    """Return the smallest decimal type that holds a number."""
    if len(digits) > 80:
        raise DataflowError(f"the number {shown[:40]!r} has more than 38 digits")
    parts = Decimal(digits).as_tuple()
    scale = -int(parts.exponent)
    precision = max(len(parts.digits), 1)
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    if precision > 38:
        raise DataflowError(f"the number {shown[:40]!r} has more than 38 digits", hint="write it as 1.5e40")
    return DecimalType(precision, scale)


def typed(keyword: str, text: str) -> Literal:
    """Read ``DATE '...'``, ``TIMESTAMP '...'``, ``TIMESTAMP_NTZ '...'`` or ``X'...'``."""
    if keyword == "X":
        if not re.fullmatch(r"[0-9A-Fa-f]*", text):
            raise DataflowError(f"X'{text[:40]}' is not hexadecimal", hint="write two digits a byte: X'1F'")
        return Literal(f"X'{text.upper()}'", BINARY)
    if keyword == "DATE":
        if not _is_date(text.strip()):
            raise DataflowError(f"DATE {text[:40]!r} is not a date", hint="write DATE '2026-01-31'")
        return Literal(f"DATE {quote_string(text.strip())}", DATE)
    match = _TIMESTAMP.match(text.strip())
    if match is None or not _is_date(match.group(1)) or not _is_time(match.group(2, 3, 4)):
        raise DataflowError(f"{keyword} {text[:40]!r} is not a timestamp", hint="write TIMESTAMP '2026-01-31 12:00:00'")
    found = TIMESTAMP_NTZ if keyword == "TIMESTAMP_NTZ" else TIMESTAMP
    return Literal(f"{keyword} {quote_string(text.strip())}", found)


def _is_date(text: str) -> bool:
    match = _DATE.match(text)
    if match is None:
        return False
    try:
        date(int(match.group(1)), int(match.group(2) or 1), int(match.group(3) or 1))
    except ValueError:
        return False
    return True


def _is_time(parts: tuple[str | None, ...]) -> bool:
    return all(int(part or 0) < bound for part, bound in zip(parts, (24, 60, 60), strict=True))


def interval(parts: tuple[tuple[str, str], ...]) -> Literal:
    """Return ``INTERVAL '5' MINUTE`` from (number, unit) pairs; units are singular and lower case."""
    fields = []
    for value, unit in parts:
        if unit not in UNITS:
            raise DataflowError(f"{unit!r} is not a unit of time", hint=f"the units are {', '.join(UNITS)}")
        match = _INTERVAL_NUMBER.match(value.strip())
        if match is None or (match.group(1) and unit != "second"):
            raise DataflowError(f"INTERVAL {value[:40]!r} {unit} is not an interval", hint="write INTERVAL 5 MINUTES")
        fields.append(_SMALL_UNITS.get(unit, unit))
    places = sorted(_UNITS.index(f) for f in fields)
    if places[0] < 2 <= places[-1]:
        raise DataflowError(
            "an interval counts either months or time, not both",
            hint="add two intervals: ts + INTERVAL 1 MONTH + INTERVAL 1 DAY",
        )
    body = " ".join(f"{quote_string(value.strip())} {unit.upper()}" for value, unit in parts)
    return Literal(f"INTERVAL {body}", IntervalType(_UNITS[places[0]], _UNITS[places[-1]]))


def interval_range(text: str, start: str, end: str) -> Literal:
    """Return ``INTERVAL '1 2:03' DAY TO MINUTE``."""
    if start not in _UNITS or end not in _UNITS or _UNITS.index(start) >= _UNITS.index(end):
        raise DataflowError(f"{start} to {end} is not a range of time units", hint="write DAY TO SECOND")
    if (start == "year") != (end == "month"):
        raise DataflowError(f"{start} to {end} is not a range of time units", hint="write YEAR TO MONTH")
    first, last = _UNITS.index(start), _UNITS.index(end)
    shape = r"[+-]?\d{1,9}-\d{1,2}"
    if start != "year":
        shape = r"[+-]?\d{1,9}"
        for place in range(first, last):
            shape += (" " if place == 2 else ":") + r"\d{1,2}"
        shape += r"(\.\d{1,9})?" if end == "second" else ""
    if not re.fullmatch(shape, text.strip()):
        raise DataflowError(f"INTERVAL {text[:40]!r} {start} to {end} is not an interval")
    return Literal(f"INTERVAL {quote_string(text.strip())} {start.upper()} TO {end.upper()}", IntervalType(start, end))


def null() -> Literal:
    """Return the NULL constant."""
    return Literal("NULL", AtomicType("void"))


def boolean(value: bool) -> Literal:
    """Return TRUE or FALSE."""
    return Literal("TRUE" if value else "FALSE", AtomicType("boolean"), value)
