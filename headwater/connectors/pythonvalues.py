"""Python values, as decoders return them, as values of columns.

A value of another type is refused with the field's name; it is never bent to fit, apart from what every reader does:
whole numbers become wider ones or floating-point ones.
"""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headwater.core.text import cut
from headwater.sql.schema import ArrayType, AtomicType, Column, DataType, DecimalType, MapType, StructType

if TYPE_CHECKING:
    import pyarrow as pa

Convert = Callable[[Any], Any]
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_MOST_FLOAT = 3.4028235677973366e38  # from here on a float is infinite


class Misfit(Exception):
    """A value does not fit its column; the text is the reason."""


def converter(type_: DataType, path: str) -> Convert:
    """Return a function that makes a column's value of a Python value, and raises Misfit; ``path`` is its name."""
    convert = _of_type(type_, path)
    return lambda value: None if value is None else convert(value)


def row_converter(columns: tuple[Column, ...]) -> Callable[[dict[str, Any]], list[Any]]:
    """Return a function that makes a row's values of a record, by the names of its fields; missing ones are NULL."""
    fields = [(c.name, c.name.lower(), converter(c.type, c.name)) for c in columns]

    def convert(record: dict[str, Any]) -> list[Any]:
        found, known, lower = [], False, None
        for name, folded, of in fields:
            if name in record:
                known = True
                found.append(of(record[name]))
                continue
            if lower is None:
                lower = {str(key).lower(): value for key, value in record.items()}
            known = known or folded in lower
            found.append(of(lower.get(folded)))
        if not known:
            raise Misfit(f"none of the columns is a field of the record, which has {cut(', '.join(record), 100)}")
        return found

    return convert


def _of_type(type_: DataType, path: str) -> Convert:
    match type_:
        case AtomicType(name) if name in _BITS:
            return _whole(name, path)
        case AtomicType(name) if name in ("float", "double"):
            return _float(name, path)
        case AtomicType(name):
            return _ATOMS[name](path)
        case DecimalType(precision, scale):
            return _decimal(precision, scale, path)
        case ArrayType(element):
            of = converter(element, f"{path}[]")
            return lambda value: [of(one) for one in _a(list, value, path, type_)]
        case MapType(key, value_type):
            of_key, of_value = converter(key, f"{path} (key)"), converter(value_type, f"{path}[]")
            return lambda value: [(of_key(k), of_value(v)) for k, v in _a(dict, value, path, type_).items()]
        case StructType(fields):
            names = [f.name for f in fields]
            inner = row_converter(tuple(Column(f.name, f.type) for f in fields))
            return lambda value: dict(zip(names, inner(_a(dict, value, path, type_)), strict=True))
    raise TypeError(f"no column has the type {type_}")


def _misfit(value: Any, path: str, wanted: str) -> Misfit:
    return Misfit(f"field '{path}': {cut(repr(value), 60)} is not {'an' if wanted[0] in 'aeiou' else 'a'} {wanted}")


def _a(kind: type, value: Any, path: str, type_: DataType) -> Any:
    if not isinstance(value, kind):
        raise _misfit(value, path, cut(type_.text, 100))
    return value


def _whole(name: str, path: str) -> Convert:
    bound = 1 << (_BITS[name] - 1)

    def convert(value: Any) -> int:
        if type(value) is not int or not -bound <= value < bound:
            raise _misfit(value, path, name)
        return value

    return convert


def _float(name: str, path: str) -> Convert:
    def convert(value: Any) -> float:
        if type(value) not in (int, float):
            raise _misfit(value, path, name)
        found = float(value)
        if name == "float" and math.isfinite(found) and abs(found) >= _MOST_FLOAT:
            raise _misfit(value, path, name)
        return found

    return convert


def _decimal(precision: int, scale: int, path: str) -> Convert:
    wanted = f"decimal({precision},{scale})"
    unit = decimal.Decimal(1).scaleb(-scale)
    context = decimal.Context(prec=precision, rounding=decimal.ROUND_HALF_UP)

    def convert(value: Any) -> decimal.Decimal:
        if type(value) is not int and not isinstance(value, decimal.Decimal):
            raise _misfit(value, path, wanted)
        try:
            return decimal.Decimal(value).quantize(unit, context=context)
        except decimal.InvalidOperation:
            raise _misfit(value, path, wanted) from None

    return convert


def _text(path: str) -> Convert:
    def convert(value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, uuid.UUID):
            return str(value)
        if isinstance(value, datetime.time):
            return value.isoformat()
        raise _misfit(value, path, "string")

    return convert


def _only(kind: type, name: str) -> Callable[[str], Convert]:
    def of(path: str) -> Convert:
        def convert(value: Any) -> Any:
            if type(value) is not kind:
                raise _misfit(value, path, name)
            return value

        return convert

    return of


def _time(name: str, *, zoned: bool) -> Callable[[str], Convert]:
    def of(path: str) -> Convert:
        def convert(value: Any) -> datetime.datetime:
            if not isinstance(value, datetime.datetime) or (value.tzinfo is not None) != zoned:
                raise _misfit(value, path, name)
            return value

        return convert

    return of


_ATOMS: dict[str, Callable[[str], Convert]] = {
    "string": _text,
    "binary": _only(bytes, "binary"),
    "boolean": _only(bool, "boolean"),
    "date": _only(datetime.date, "date"),
    "timestamp": _time("timestamp", zoned=True),
    "timestamp_ntz": _time("timestamp_ntz", zoned=False),
}


def arrow_type(type_: DataType) -> pa.DataType:
    """Return the type of Arrow that Spark has for a column's type."""
    import pyarrow as pa

    match type_:
        case AtomicType("timestamp"):
            return pa.timestamp("us", tz="UTC")
        case AtomicType("timestamp_ntz"):
            return pa.timestamp("us")
        case AtomicType(name):
            return pa.type_for_alias(_ARROW[name])
        case DecimalType(precision, scale):
            return pa.decimal128(precision, scale)
        case ArrayType(element):
            return pa.list_(arrow_type(element))
        case MapType(key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case StructType(fields):
            return pa.struct([pa.field(f.name, arrow_type(f.type)) for f in fields])
    raise TypeError(f"no column has the type {type_}")


_ARROW = {
    "tinyint": "int8", "smallint": "int16", "int": "int32", "bigint": "int64", "float": "float32", "double": "float64",
    "string": "string", "boolean": "bool", "binary": "binary", "date": "date32",
}  # fmt: skip
