"""Find the fields of a join's state keys that hold given columns.

Spark names the keys of a join's state ``field0``, ``field1``, ... in an order that it alone decides. Beside each
key it stores the rows of one side, with all their columns. A field stands for a column if both are equal in every
stored row: then the field's value decides about each row as the column's value would. Where several fields
are equal to the column in every row, each of them decides alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from headwater.connectors.sparksql import column_of
from headwater.core.errors import RuntimeFailure

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

SIDES = ("left", "right")


def key_columns(rows: Sequence[DataFrame], columns: Sequence[str], *, side: str) -> Column:
    """Return a struct of ``columns``, each taken from the field of ``partition_key`` that holds it.

    ``rows``: the stored rows of one side of a join, a frame for each checkpoint, with the structs ``key`` and
    ``value``. One field has to hold the column in all of them, because their keys are merged. Where no row is
    stored, no entry depends on the field. Raise RuntimeFailure where no field holds a column.
    """
    return F.struct(*(_field(rows, column, side).alias(column) for column in columns))


def side_of(store: str) -> str:
    """Return the side of a join that a store belongs to; raise RuntimeFailure where its name does not tell."""
    side = store.partition("-")[0]
    if side not in SIDES:
        raise RuntimeFailure(
            f"the join keeps its state in a store '{store}', which is of no side",
            where="state of a join",
            hint="leave spark.sql.streaming.join.stateFormatVersion at its default",
        )
    return side


def _field(rows: Sequence[DataFrame], column: str, side: str) -> Column:
    found: list[str] | None = None
    for frame in rows:
        equal, any_row = _equal_fields(frame, column, side)
        if any_row:
            found = equal if found is None else [field for field in found if field in equal]
    if found is None:
        return F.lit(None)
    if not found:
        raise RuntimeFailure(
            f"no field of the join's keys equals '{column}' in all rows stored for the {side} side",
            where="state of a join",
            hint="keep the number of its hosts, and its locations in one unit",
        )
    return F.col(f"partition_key.{found[0]}")


def _equal_fields(frame: DataFrame, column: str, side: str) -> tuple[list[str], bool]:
    """Return the fields that equal a column in every row, and whether there is any row."""
    keys, values = _part(frame, "key"), _part(frame, "value")
    stored = next((field for field in values.fields if field.name.lower() == column.lower()), None)
    fields = [field.name for field in keys.fields if stored is not None and field.dataType == stored.dataType]
    tests = [F.bool_and(F.col(f"key.{field}").eqNullSafe(column_of("value", column))).alias(field) for field in fields]
    (row,) = frame.agg(F.count(F.lit(1)).alias("rows"), *tests).collect()
    return [field for field in fields if row[field]], bool(row["rows"])


def _part(frame: DataFrame, name: str) -> StructType:
    part: StructType = frame.schema[name].dataType  # type: ignore[assignment]
    return part
