"""The columns of an Avro schema, so that a dataflow can be typed by it. Pure: values are decoded elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headwater.core.errors import DataflowError
from headwater.sql.schema import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    Column,
    DataType,
    DecimalType,
    MapType,
    Schema,
    StructType,
)

_PRIMITIVE = {
    "boolean": BOOLEAN, "int": INT, "long": BIGINT, "float": FLOAT, "double": DOUBLE, "bytes": BINARY,
    "string": STRING,
}  # fmt: skip
_LOGICAL = {
    "date": DATE, "timestamp-millis": TIMESTAMP, "timestamp-micros": TIMESTAMP, "uuid": STRING,
    "local-timestamp-millis": TIMESTAMP_NTZ, "local-timestamp-micros": TIMESTAMP_NTZ, "time-millis": STRING,
    "time-micros": STRING,
}  # fmt: skip
_NUMBERS = (INT, BIGINT, FLOAT, DOUBLE)
"""Each may become a later one."""
_DEEPEST = 40


def read_avro_schema(text: str, *, where: str) -> dict[str, Any]:
    """Read an Avro schema in JSON; raise DataflowError unless it is that of a record."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataflowError(
            f"the Avro schema is not JSON: {error}", where=where, hint="give the text of an .avsc file"
        ) from None
    if not isinstance(found, dict) or found.get("type") != "record" or not isinstance(found.get("fields"), list):
        raise DataflowError(
            "the Avro schema is not that of a record", where=where, hint='begin it with {"type": "record", ...}'
        )
    return found


def columns_of_avro(text: str, *, where: str) -> Schema:
    """Return the columns of a record's Avro schema; raise DataflowError for types that no column has."""
    found = _Reader(where).record(read_avro_schema(text, where=where), "", {}, 0)
    return Schema(found.fields)


class _Reader:
    """Walks a schema; named types are known from their definition on."""

    def __init__(self, where: str) -> None:
        self._where = where

    def record(self, data: Mapping[str, Any], space: str, known: dict[str, DataType | None], depth: int) -> StructType:
        name, space = _named(data, space)
        known[name] = None  # while its fields are read: a record inside itself has no type in Spark
        columns = []
        for field in data.get("fields", ()):
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise self._wrong(f"a field of record {name} has no name")
            columns.append(Column(field["name"], self.type_of(field.get("type"), space, known, depth + 1)))
        if not columns:
            raise self._wrong(f"record {name} has no fields")
        known[name] = made = StructType(tuple(columns))
        return made

    def type_of(self, data: Any, space: str, known: dict[str, DataType | None], depth: int) -> DataType:
        if depth > _DEEPEST:
            raise self._wrong(f"it is nested more than {_DEEPEST} deep")
        if isinstance(data, list):
            return self._union(data, space, known, depth)
        if isinstance(data, str):
            return self._by_name(data, space, known)
        if not isinstance(data, dict):
            raise self._wrong(f"{json.dumps(data)[:60]} is no type")
        kind, logical = data.get("type"), data.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            if kind == "fixed":
                known[_named(data, space)[0]] = BINARY
            return DecimalType(int(data.get("precision", 10)), int(data.get("scale", 0)))
        if isinstance(logical, str) and logical in _LOGICAL:
            return _LOGICAL[logical]
        match kind:
            case "record":
                return self.record(data, space, known, depth)
            case "enum" | "fixed":
                known[_named(data, space)[0]] = made = STRING if kind == "enum" else BINARY
                return made
            case "array":
                return ArrayType(self.type_of(data.get("items"), space, known, depth + 1))
            case "map":
                return MapType(STRING, self.type_of(data.get("values"), space, known, depth + 1))
        return self.type_of(kind, space, known, depth + 1)

    def _union(self, data: list[Any], space: str, known: dict[str, DataType | None], depth: int) -> DataType:
        found = [self.type_of(one, space, known, depth + 1) for one in data if one != "null"]
        if found and all(one in _NUMBERS for one in found):
            return max(found, key=_NUMBERS.index)
        if len(set(found)) != 1:
            raise self._wrong(f"a union of {', '.join(t.text for t in found) or 'nothing'} is no column")
        return found[0]

    def _by_name(self, name: str, space: str, known: Mapping[str, DataType | None]) -> DataType:
        if name in _PRIMITIVE:
            return _PRIMITIVE[name]
        for full in (name, f"{space}.{name}"):
            if full in known:
                if (made := known[full]) is None:
                    raise self._wrong(f"record {full} has itself as a part")
                return made
        raise self._wrong(f"the type {name} is unknown")

    def _wrong(self, what: str) -> DataflowError:
        return DataflowError(
            f"the Avro schema gives no columns: {what}",
            where=self._where,
            hint="give the columns to read as schema='id bigint, ...'; other fields are left out",
        )


def _named(data: Mapping[str, Any], space: str) -> tuple[str, str]:
    """Return the full name of a named type, and the namespace of the names inside of it."""
    name, own = str(data.get("name", "")), data.get("namespace", space)
    if "." in name:
        return name, name.rpartition(".")[0]
    return (f"{own}.{name}" if own else name), str(own or "")
