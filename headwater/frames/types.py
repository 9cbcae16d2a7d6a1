"""Types of PySpark's API as types of Headwater, and back."""

from __future__ import annotations

import json
from typing import Any

from headwater.core.errors import DataflowError
from headwater.sql.lexer import quoted
from headwater.sql.schema import ArrayType, DataType, MapType, Schema, StructType

_NAMES = {"int": "integer", "bigint": "long", "smallint": "short", "tinyint": "byte"}
_TEXTS = {name: text for text, name in _NAMES.items()}


def spark_json(found: DataType) -> Any:
    """Return a type as Spark writes it in JSON."""
    match found:
        case ArrayType(element):
            return {"type": "array", "elementType": spark_json(element), "containsNull": True}
        case MapType(key, value):
            types = {"keyType": spark_json(key), "valueType": spark_json(value)}
            return {"type": "map", **types, "valueContainsNull": True}
        case StructType(fields):
            columns = [{"name": f.name, "type": spark_json(f.type), "nullable": True, "metadata": {}} for f in fields]
            return {"type": "struct", "fields": columns}
    return _NAMES.get(found.text, found.text)


def type_of_text(text: str) -> DataType:
    """Read one type, or a schema, which is a struct."""
    try:
        return Schema.parse(text).struct
    except DataflowError:
        return DataType.parse(text)


def type_of(found: Any) -> DataType:
    """Return a type of PySpark: a DataType, or one that it has not parsed, such as the text of a schema."""
    text = getattr(found, "data_type_string", None)
    return type_of_text(str(text) if text is not None else _text(json.loads(found.json())))


def source_schema(found: str) -> str:
    """Return the schema of a source as DDL; PySpark sends a StructType as JSON."""
    return _columns(json.loads(found)["fields"], " ") if found.lstrip().startswith("{") else found


def columns_text(found: Any) -> str:
    """Return the schema of a function's rows, a struct of PySpark, as DDL."""
    struct = type_of(found)
    if not isinstance(struct, StructType):
        raise DataflowError(f"{struct.text} where a schema is wanted", hint='write "id int, v double", or a StructType')
    return Schema(struct.fields).text


def _text(found: Any) -> str:
    if isinstance(found, str):
        return _TEXTS.get(found, found)
    match found["type"]:
        case "array":
            return f"array<{_text(found['elementType'])}>"
        case "map":
            return f"map<{_text(found['keyType'])},{_text(found['valueType'])}>"
        case "udt":
            raise DataflowError("a user-defined type of PySpark", hint="write a struct of its fields")
    return f"struct<{_columns(found['fields'], ':')}>"


def _columns(fields: list[dict[str, Any]], mark: str) -> str:
    return ", ".join(f"{quoted(f['name'])}{mark}{_text(f['type'])}" for f in fields)
