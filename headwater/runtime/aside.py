"""Python functions over batches that malformed records go past, so that one read serves both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import types as t

from headwater.dataflow.operators import MapBatches
from headwater.dataflow.schema import Schema
from headwater.runtime.compile import guarded
from headwater.runtime.sources import CORRUPT, DEAD_LETTER
from headwater.runtime.sparktypes import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

    Batches = Iterator[pa.RecordBatch]

DEAD = "__dead"
"""A malformed record as a dead letter, beside the columns of those that are well formed."""


def past(operator: MapBatches, frame: DataFrame) -> DataFrame:
    """Apply a function to the well-formed records of a frame that ends with ``CORRUPT`` and ``DEAD``."""
    columns = spark_schema(Schema.parse(operator.schema_text).columns)
    return frame.mapInArrow(_aside(guarded(operator), columns), t.StructType([*columns, *_carried()]))


def _carried() -> t.StructType:
    letter = t.StructType([t.StructField(name, t.StringType()) for name in DEAD_LETTER])
    return t.StructType([t.StructField(CORRUPT, t.StringType()), t.StructField(DEAD, letter)])


def _aside(function: Callable[[Batches], Batches], columns: t.StructType) -> Callable[[Batches], Batches]:
    """Let a function see the well-formed records only; give the others behind what it gives."""

    def run(batches: Batches) -> Batches:
        import pyarrow.compute as pc
        from pyspark.sql.pandas.types import to_arrow_schema

        carried = to_arrow_schema(_carried())
        held: list[pa.RecordBatch] = []

        def well_formed() -> Batches:
            for batch in batches:
                corrupt = batch.column(CORRUPT)
                if corrupt.null_count < batch.num_rows:
                    # Columns of literals are not nullable to Spark: all batches are to have one schema.
                    held.append(batch.filter(pc.is_valid(corrupt)).select(carried.names).cast(carried))
                    batch = batch.filter(pc.is_null(corrupt))
                if batch.num_rows:
                    yield batch.drop_columns(carried.names)

        def letters(beside: pa.Schema) -> Batches:
            while held:
                one = held.pop(0)
                yield _side_by_side(_nothing(beside, one.num_rows), one)

        made: pa.Schema | None = None
        for batch in function(well_formed()):
            made = batch.schema
            yield _side_by_side(batch, _nothing(carried, batch.num_rows))
            yield from letters(made)
        yield from letters(made or to_arrow_schema(columns, timezone="UTC"))

    return run


def _nothing(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in schema], names=schema.names)


def _side_by_side(left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow as pa

    names = [*left.schema.names, *right.schema.names]
    return pa.RecordBatch.from_arrays([*left.columns, *right.columns], names=names)
