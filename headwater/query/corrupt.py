"""Pass malformed records around operators, so that one read of a source serves rows and dead letters.

Such a frame ends with two columns: ``CORRUPT`` is NULL in well-formed rows, and ``DEAD`` is a
malformed record's dead letter. The other columns of a malformed record must not be used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t

from headwater.connectors.marks import CORRUPT
from headwater.connectors.sources import DEAD_LETTER, dead_letter_columns, every_field_parsed
from headwater.connectors.sparksql import expression, items
from headwater.connectors.sparktypes import known, spark_schema
from headwater.dataflow.operators import Explode, MapBatches, Operator, Select, Where
from headwater.dataflow.sources import Source
from headwater.query.compile import guarded
from headwater.sql.lexer import quoted
from headwater.sql.printer import printed_text
from headwater.sql.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

    Batches = Iterator[pa.RecordBatch]

DEAD = "__dead"
"""Column with a malformed record's dead letter, beside the columns of well-formed rows."""


PASSED = (Where, Select, Explode, MapBatches)
"""Operators that malformed records can be passed around."""
GOOD = f"{quoted(CORRUPT)} IS NULL"


def read_whole(raw: DataFrame, source: Source, location: str) -> DataFrame:
    """Read all records of a text source at a location, malformed ones with their dead letters."""
    letter = f"struct({', '.join(dead_letter_columns(source, location))})"
    names = [quoted(name) for name in source.output(()).schema.names]
    frame = raw.where(expression(every_field_parsed(source.schema())))
    columns = [f"IF({GOOD}, {name}, NULL) AS {name}" for name in names]
    return frame.select(*items(*columns, quoted(CORRUPT), f"IF({GOOD}, NULL, {letter}) AS {quoted(DEAD)}"))


def past(operator: Operator, frame: DataFrame, schema: Schema) -> DataFrame:
    """Apply one of ``PASSED`` to the well-formed records of a frame; ``schema``: that of their rows."""
    carried = (quoted(CORRUPT), quoted(DEAD))
    match operator:
        case Where():
            return frame.where(expression(f"IF({GOOD}, {printed_text(operator.condition)}, true)"))
        case Select():
            columns = (f"IF({GOOD}, {printed_text(text)}, NULL) AS {quoted(name)}" for name, text in operator.columns)
            return frame.select(*items(*columns, *carried))
        case Explode():
            # Outer: a malformed record has no elements, and stays.
            text = printed_text(operator.expression)
            if not operator.outer:
                frame = frame.where(expression(f"NOT ({GOOD}) OR cardinality({text}) > 0"))
            value = expression(f"IF({GOOD}, {text}, NULL)")
            made = F.explode_outer(value).alias(operator.alias)
            if operator.position is not None:
                made = F.posexplode_outer(value).alias(operator.position, operator.alias)
            added = [operator.alias] if operator.position is None else [operator.position, operator.alias]
            names = map(quoted, [*schema.names, *added])
            return frame.select("*", made).select(*items(*names, *carried))
        case MapBatches():
            return _past_function(operator, known(frame, [*spark_schema(schema.columns), *_carried()]))
    raise TypeError(f"malformed records cannot be passed around {operator.kind}")


def _past_function(operator: MapBatches, frame: DataFrame) -> DataFrame:
    columns = spark_schema(Schema.parse(operator.schema_text).columns)
    return frame.mapInArrow(_around(guarded(operator), columns), t.StructType([*columns, *_carried()]))


def _carried() -> t.StructType:
    letter = t.StructType([t.StructField(name, t.StringType()) for name in DEAD_LETTER])
    return t.StructType([t.StructField(CORRUPT, t.StringType()), t.StructField(DEAD, letter)])


def _around(function: Callable[[Batches], Batches], columns: t.StructType) -> Callable[[Batches], Batches]:
    """Apply a function to the well-formed records only; append the others to its output."""

    def run(batches: Batches) -> Batches:
        import pyarrow.compute as pc
        from pyspark.sql.pandas.types import to_arrow_schema

        carried = to_arrow_schema(_carried())
        held: list[pa.RecordBatch] = []

        def well_formed() -> Batches:
            for batch in batches:
                corrupt = batch.column(CORRUPT)
                if corrupt.null_count < batch.num_rows:
                    # Spark treats literal columns as not nullable, but all batches must have one schema.
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
