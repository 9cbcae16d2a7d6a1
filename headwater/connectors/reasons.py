"""Why a record does not fit its schema, in plain words, for the person who has to correct it.

Spark only reports that a record is malformed. The reason is found here with Python's own
parsers, so the check is loose: a value is blamed only when Spark surely refuses it.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from headwater.core.errors import HeadwaterError
from headwater.sql.schema import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    MapType,
    Schema,
    StructType,
)

NOT_UTF8 = "not UTF-8, base64: "
"""Prefix of the text stored for a payload that is no text; JSON never begins like this."""

_SHOWN = 60  # characters of a value quoted in a reason
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_TIMES = ("timestamp", "timestamp_ntz", "date")
_FLOAT_WORDS = frozenset({"nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"})
_TIME = re.compile(
    r"\s*[+-]?\d{4,7}(-(?P<month>\d{1,2})(-(?P<day>\d{1,2})"
    r"([T ](?P<hour>\d{1,2}):(?P<minute>\d{1,2})(:(?P<second>\d{1,2})(\.\d{0,9})?)?"
    r"\s?(Z|UTC|GMT|[+-]\d{1,2}(:?\d{2}){0,2}|[A-Za-z]+[A-Za-z/_+:0-9-]*)?)?)?)?\s*"
)
_RANGES = {"month": (1, 12), "day": (1, 31), "hour": (0, 23), "minute": (0, 59), "second": (0, 59)}
# Java's date patterns that Python's strptime supports too.
_JAVA = {
    "yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S", "SSSSSS": "%f", "SSS": "%f"
}  # fmt: skip


def explain(record: str, *, format: str, schema: str, options: Mapping[str, str] | None = None) -> str:
    """Return why ``record`` does not fit ``schema`` (DDL), read as ``format`` with the reader's options."""
    reason = misfit(record, format=format, schema=schema, options=options)
    return reason or f"does not fit the schema {_short(schema, 200)}"


def misfit(record: str, *, format: str, schema: str, options: Mapping[str, str] | None = None) -> str | None:
    """Return why ``record`` does not fit ``schema``, as ``explain`` does; None where no reason is found."""
    if record.startswith(NOT_UTF8):
        return "not UTF-8 text"
    if not record.strip():
        return "empty record"
    settings = {key.lower(): value for key, value in (options or {}).items()}
    try:
        wanted = Schema.parse(schema)
        find = {"csv": _csv, "json": _json}.get(format)
        return find(record, wanted, settings) if find else None
    except (HeadwaterError, ValueError, RecursionError):
        return None


def _short(text: str, length: int = _SHOWN) -> str:
    return text if len(text) <= length else f"{text[:length]}..."


# ---------------------------------------------------------------- CSV


def _csv(record: str, schema: Schema, options: Mapping[str, str]) -> str | None:
    quote = options.get("quote", '"')[:1]
    try:
        rows = list(
            csv.reader(
                record.splitlines(keepends=True),
                delimiter=options.get("sep", options.get("delimiter", ",")).replace("\\t", "\t"),
                quotechar=quote or None,
                quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
                escapechar=options.get("escape", "\\")[:1] or None,
            )
        )
    except (csv.Error, TypeError) as error:
        return f"not CSV: {error}"
    fields = rows[0] if len(rows) == 1 else [field for row in rows for field in row]
    if len(fields) != len(schema):
        count = f"{len(fields)} field" + ("s" if len(fields) != 1 else "")
        return f"{count}, {len(schema)} expected"
    for column, field in zip(schema, fields, strict=True):
        # Spark reads an empty field, or the value of nullValue, as NULL in a column of any type.
        if field in ("", options.get("nullvalue", "")):
            continue
        if not _text_fits(field, column.type, options):
            return f"field '{column.name}': '{_short(field)}' is not {_article(column.type)}"
    return None


def _text_fits(text: str, type_: DataType, options: Mapping[str, str]) -> bool:
    if isinstance(type_, DecimalType):
        return _decimal_fits(text.strip(), type_)
    if not isinstance(type_, AtomicType):
        return True
    name = type_.name
    if name in _BITS:
        return bool(re.fullmatch(r"[+-]?\d+", text.strip())) and _in_range(int(text), name)
    if name in ("float", "double"):
        words = {options.get(k, "").lower() for k in ("nanvalue", "positiveinf", "negativeinf")}
        return text.strip().lower() in _FLOAT_WORDS | words or _is_float(text)
    if name == "boolean":
        return text.strip().lower() in ("true", "false")
    if name in _TIMES:
        return _time_fits(text, name, options)
    return True


def _decimal_fits(text: str, type_: DecimalType) -> bool:
    try:
        value = decimal.Decimal(text.replace(",", ""))
    except decimal.InvalidOperation:
        return False
    # Spark rounds a value that is too fine, and refuses one that is too large.
    return (value.is_finite() and value.adjusted() < type_.precision - type_.scale) or value == 0


def _in_range(value: int, name: str) -> bool:
    bound = 1 << (_BITS[name] - 1)
    return -bound <= value < bound


def _is_float(text: str) -> bool:
    try:
        float(text.replace(",", "").rstrip("dDfF"))
    except ValueError:
        return False
    return "_" not in text


def _time_fits(text: str, name: str, options: Mapping[str, str]) -> bool:
    names = {"date": "dateformat", "timestamp_ntz": "timestampntzformat"}
    pattern = options.get(names.get(name, "timestampformat"))
    if pattern:
        return _matches_java(text, pattern)
    found = _TIME.fullmatch(text)
    if not found:
        return False
    parts = {k: int(v) for k, v in found.groupdict().items() if v is not None}
    return all(_RANGES[k][0] <= v <= _RANGES[k][1] for k, v in parts.items())


def _matches_java(text: str, pattern: str) -> bool:
    """Return whether a text matches a date pattern; True for patterns that Python does not support."""
    translated = ""
    for part in re.finditer(r"'(?P<quoted>[^']*)'|(?P<letters>([A-Za-z])\3*)|[^A-Za-z']+", pattern):
        letters, quoted = part["letters"], part["quoted"]
        if letters:
            if letters not in _JAVA:
                return True
            translated += _JAVA[letters]
        else:
            translated += (part[0] if quoted is None else quoted).replace("%", "%%")
    try:
        datetime.datetime.strptime(text.strip(), translated)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------- JSON


def _json(record: str, schema: Schema, options: Mapping[str, str]) -> str | None:
    text = record.strip().removeprefix("\ufeff")
    start = record.index(text[0])
    reasons: Iterator[str]
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
    except json.JSONDecodeError as error:
        if text[error.pos : error.pos + 1] == "'":
            return None  # Spark accepts single quotes: they are not the reason
        return f"not JSON: {error.msg} at {_position(record, error.pos + start)}"
    if isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
        reasons = iter([r for v in value for r in _misfits(v, schema.struct, "", options)])
    elif not isinstance(value, dict):
        return f"not an object: {_quoted(value)}"
    else:
        reasons = _misfits(value, schema.struct, "", options)
    if reason := next(reasons, None):
        return reason
    return f"not JSON: extra data at {_position(record, end + start)}" if text[end:].strip() else None


def _position(record: str, at: int) -> str:
    line = record.count("\n", 0, at)
    column = at - (record.rfind("\n", 0, at) + 1) + 1
    return f"line {line + 1} column {column}" if line else f"column {column}"


def _misfits(value: Any, type_: DataType, path: str, options: Mapping[str, str]) -> Iterator[str]:
    """Yield a reason for every value that does not fit, outermost first."""
    if value is None:
        return
    if isinstance(type_, StructType) and isinstance(value, dict):
        for name, inner in value.items():
            column = type_.field(name)
            if column is not None:
                yield from _misfits(inner, column.type, f"{path}.{name}" if path else name, options)
    elif isinstance(type_, ArrayType) and isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _misfits(inner, type_.element, f"{path}[{index}]", options)
    elif isinstance(type_, MapType) and isinstance(value, dict):
        for name, inner in value.items():
            yield from _misfits(inner, type_.value, f"{path}.{name}", options)
    elif not _value_fits(value, type_, options):
        yield f"field '{path}': {_quoted(value)} is not {_article(type_)}"


def _value_fits(value: Any, type_: DataType, options: Mapping[str, str]) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(type_, DecimalType):
        return (number or isinstance(value, str)) and _decimal_fits(str(value), type_)
    if not isinstance(type_, AtomicType):
        return False
    name = type_.name
    if name in _BITS:
        return number and isinstance(value, int) and _in_range(value, name)
    if name in ("float", "double"):
        return number or (isinstance(value, str) and value.lower() in _FLOAT_WORDS)
    if name == "boolean":
        return isinstance(value, bool)
    if name in _TIMES:
        fits = isinstance(value, str) and _time_fits(value, name, options)
        # Spark reads a number as seconds since 1970.
        return fits or (name == "timestamp" and number)
    return True


def _quoted(value: Any) -> str:
    return _short(json.dumps(value, ensure_ascii=False))


def _article(type_: DataType) -> str:
    text = _short(type_.text, 100)
    return f"an {text}" if text[0] in "aeiou" else f"a {text}"
