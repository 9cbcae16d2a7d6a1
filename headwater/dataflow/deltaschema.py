"""The schema of a Delta table, read when a dataflow is written."""

from __future__ import annotations

from typing import Any

from headwater.core.errors import DataflowError
from headwater.sql.lexer import quote_name

_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_HINT = 'give the schema: read.delta(path, "id bigint, ts timestamp")'


def delta_schema(path: str, *, where: str) -> str:
    """Return the columns of the table in a directory as Spark's DDL; raise DataflowError where it cannot be read."""
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise DataflowError(
            "the schema of a Delta table is read with the package deltalake, which is missing",
            where=where,
            hint=f"pip install 'headwater[tables]', or {_HINT}",
        ) from None
    try:
        schema: dict[str, Any] = _loaded(DeltaTable(path).schema().to_json())
    except Exception as error:
        text = str(error).strip().splitlines()
        raise DataflowError(
            f"the schema of the table cannot be read: {text[0] if text else type(error).__name__}",
            where=where,
            hint=_HINT,
        ) from error
    return ", ".join(f"{quote_name(f['name'])} {ddl_of(f['type'], where=where)}" for f in schema["fields"])


def _loaded(text: str) -> dict[str, Any]:
    import json

    found: dict[str, Any] = json.loads(text)
    return found


def ddl_of(type_: Any, *, where: str) -> str:
    """Return a type of Delta's JSON form as Spark's DDL.

    >>> ddl_of({"type": "array", "elementType": "long", "containsNull": True}, where="x")
    'array<bigint>'
    """
    match type_:
        case str():
            return _NAMES.get(type_, type_)
        case {"type": "array", "elementType": element}:
            return f"array<{ddl_of(element, where=where)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map<{ddl_of(key, where=where)},{ddl_of(value, where=where)}>"
        case {"type": "struct", "fields": fields}:
            inner = (f"{quote_name(f['name'], after_dot=True)}:{ddl_of(f['type'], where=where)}" for f in fields)
            return f"struct<{','.join(inner)}>"
    raise DataflowError(f"a column has a type that Headwater does not know: {type_!r}", where=where, hint=_HINT)
