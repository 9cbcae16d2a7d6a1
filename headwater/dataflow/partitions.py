"""Columns that partition a sink's rows: the types that may, and the names of directories that their values give.

Names are those of Hive and Spark, ``day=2026-01-01``, escaped as Spark does, so Spark's partition discovery reads them
back. An empty text has the directory of NULL and is read back as NULL, as in Spark.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import Final

from headwater.core.errors import DataflowError, suggestion
from headwater.sql.schema import Schema

NULL_NAME: Final = "__HIVE_DEFAULT_PARTITION__"
"""The name that stands for NULL."""

MOST_BYTES: Final = 255
"""Bytes that a name of a directory may have."""

_TYPES = ("string", "tinyint", "smallint", "int", "bigint", "boolean", "date")
_ESCAPED = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")


def resolved_partitions(columns: Sequence[str], schema: Schema, *, where: str) -> tuple[str, ...]:
    """Return the columns as the schema spells them; raise DataflowError for those that cannot partition its rows."""
    there = {column.name.lower(): column for column in schema.columns}
    found: list[str] = []
    for name in columns:
        column = there.get(name.lower())
        if column is None:
            hint = suggestion(name, [c.name for c in schema.columns], "the columns are")
            raise DataflowError(f"partition_by names '{name}', which is no column", where=where, hint=hint)
        if column.name in found:
            raise DataflowError(f"partition_by names '{column.name}' twice", where=where, hint="name it once")
        if column.type.text not in _TYPES:
            raise DataflowError(
                f"rows cannot be partitioned by '{column.name}' of type {column.type.text}",
                where=where,
                hint=f"make a column of type {', '.join(_TYPES)}, such as .with_columns(day='to_date(ts)')",
            )
        found.append(column.name)
    if found and len(found) == len(there):
        raise DataflowError(
            "partition_by names all columns, which leaves none for the files", where=where, hint="name fewer columns"
        )
    return tuple(found)


def partition_text(value: object) -> str | None:
    """Return a value of a partition column as text; None for NULL and an empty text.

    >>> partition_text(True), partition_text(7), partition_text("")
    ('true', '7', None)
    """
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def directory_name(column: str, text: str | None) -> str:
    """Return the name of the directory of a column's value.

    >>> directory_name("day", "2026-01-01"), directory_name("k", "a/b=50%")
    ('day=2026-01-01', 'k=a%2Fb%3D50%25')
    """
    return f"{_escaped(column)}={NULL_NAME if text is None else _escaped(text)}"


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)
