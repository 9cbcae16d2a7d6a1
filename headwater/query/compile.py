"""Compile operators to DataFrames: one match over the core operators, for streams and for one batch.

The batch form is the oracle's: it implements stateful operators another way (window functions,
applyInArrow), so that the two forms check each other.
"""

from __future__ import annotations

import functools
import operator as operators
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headwater.connectors.sparksql import column_of, expression
from headwater.connectors.sparktypes import MARK, WINDOW_MARK, known, spark_schema
from headwater.core.errors import HeadwaterError, RuntimeFailure, UserCodeError
from headwater.dataflow import operators as ops
from headwater.dataflow import stateful
from headwater.dataflow.builtin import BuiltinFunction
from headwater.dataflow.function import raised
from headwater.dataflow.lookup import Lookup
from headwater.dataflow.predictor import spark_predictor_of
from headwater.dataflow.sinks import Sink
from headwater.dataflow.types import StreamType
from headwater.query import countwindow, scan, sparkmodels
from headwater.sql.distinct import without_distinct
from headwater.sql.lexer import quote_string, quoted
from headwater.sql.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa


Tables = Callable[[Lookup], DataFrame]
"""Returns the rows of an operator's reference table."""


def span(seconds: float) -> str:
    """Write a duration as a Spark interval."""
    return f"{round(seconds * 1_000_000)} microseconds"


def apply(
    operator: ops.Operator,
    frames: list[DataFrame],
    types: list[StreamType],
    *,
    streaming: bool,
    locations: Sequence[str] = (),
    tables: Tables | None = None,
) -> DataFrame:
    """Apply an operator to its inputs' frames, at some locations, with the rows of reference tables.

    Watermarks are the caller's affair.
    """
    frame, type_ = frames[0], types[0]

    def marked(n: int = 0) -> DataFrame:
        return mark(frames[n], types[n]) if streaming else frames[n]

    match operator:
        case ops.Where():
            return frame.where(expression(operator.condition))
        case ops.Select():
            return frame.select(*(expression(text).alias(name) for name, text in operator.columns))
        case ops.Explode():
            return _explode(operator, frame)
        case ops.Union():
            for other in frames[1:]:
                frame = frame.unionByName(other)
            return frame
        case Lookup() if tables is not None:
            return _lookup(operator, frame, tables(operator), streaming=streaming and type_.event_time is not None)
        case ops.ToLocations():
            return _to_locations(operator, frame, locations)
        case ops.Watermark() | Sink():
            return frame
        case ops.MapBatches():
            schema = Schema.parse(operator.schema_text)
            given = known(frame, spark_schema(type_.schema.columns))
            return given.mapInArrow(guarded(operator), spark_schema(schema.columns))
        case ops.Transform():
            return _transform(operator, frame)
        case stateful.Aggregate():
            return _aggregate(operator, marked(), type_, streaming=streaming)
        case stateful.Dedup():
            if streaming:
                return marked().dropDuplicatesWithinWatermark(list(operator.keys))
            return frame.dropDuplicates(list(operator.keys))
        case stateful.Join():
            return _join(operator, marked(), marked(1), types)
        case stateful.CountWindow():
            return countwindow.apply(operator, marked(), type_, streaming=streaming)
        case stateful.Scan():
            if streaming:
                return scan.alone(operator, frame, type_)
            return scan.in_batch(operator, frame, type_)
    raise RuntimeFailure(f"no compilation for {operator.kind}", where=operator.where, hint="report this as a defect")


def mark(frame: DataFrame, type_: StreamType, also: Sequence[str] = ()) -> DataFrame:
    """Mark the event-time column of a stream for Spark, and unmark all others; ``also``: further columns to keep."""
    if type_.event_time is None:
        return frame
    time = type_.event_time.column.lower()
    columns = []
    for column in type_.schema.columns:
        name = quoted(column.name)
        window = {WINDOW_MARK: True} if column.type == stateful.WINDOW_TYPE else {}
        if column.name.lower() == time:
            columns.append(F.col(name).alias(column.name, metadata={MARK: 0, **window}))
        elif window:
            columns.append(F.col(name).alias(column.name, metadata=window))
        elif column.type.text == "timestamp":
            columns.append(F.col(name).alias(column.name, metadata={"headwater": 1}))
        else:
            columns.append(F.col(name))
    return frame.select(*columns, *also)


def whole(frame: DataFrame, type_: StreamType) -> DataFrame:
    """Keep Spark from dropping columns that are not used later: the content of state would depend on the cuts.

    The condition is true and needs all columns; to the optimizer it is not deterministic, so it stays.
    """
    hashed = [
        f"CAST({quoted(c.name)} AS STRING)" if "MAP<" in c.type.text.upper() else quoted(c.name)
        for c in type_.schema.columns
    ]
    return frame.where(expression(f"spark_partition_id() >= -(xxhash64({', '.join(hashed)}) & 1)"))


def _explode(operator: ops.Explode, frame: DataFrame) -> DataFrame:
    value = expression(operator.expression)
    if operator.position is None:
        function = F.explode_outer if operator.outer else F.explode
        return frame.select("*", function(value).alias(operator.alias))
    with_position = F.posexplode_outer if operator.outer else F.posexplode
    return frame.select("*", with_position(value).alias(operator.position, operator.alias))


def _lookup(operator: Lookup, frame: DataFrame, table: DataFrame, *, streaming: bool) -> DataFrame:
    """Join with a table's rows; ``streaming``: all rows of the frame must be read, since they carry event time.

    Spark may leave a frame unread that it joins with an empty table, and then misses its watermark. It reads the left
    side of an outer join. The condition is not deterministic to the optimizer, which would make an inner join again.
    """
    keys = {k.lower() for k in operator.on}
    rest = [n for n in operator.table.names if n.lower() not in keys] if operator.adds_columns else []
    named = [column_of(key).alias(f"__key{n}") for n, key in enumerate(operator.on)]
    rows = table.select(*named, *map(column_of, rest))
    if not operator.adds_columns:
        rows = rows.distinct()
    same = functools.reduce(
        operators.and_, (column_of(key) == column_of(f"__key{n}") for n, key in enumerate(operator.on))
    )
    how = {"left_semi": "inner", "left_anti": "left"}.get(operator.how, operator.how)
    joined = frame.join(F.broadcast(rows), same, "left" if streaming else how)
    if operator.how == "left_anti":
        joined = joined.where(column_of("__key0").isNull())
    elif streaming and how == "inner":
        joined = joined.where(expression(f"spark_partition_id() >= IF(__key0 IS NULL, {2**31 - 1}, 0)"))
    return joined.select(*(column_of(n) for n in (*frame.columns, *rest)))


def at_locations(column: str, locations: Sequence[str]) -> str:
    """Return the condition, as SQL, that a column names one of some locations."""
    return f"{quoted(column)} IN ({', '.join(map(quote_string, locations))})"


def _to_locations(operator: ops.ToLocations, frame: DataFrame, locations: Sequence[str]) -> DataFrame:
    if not operator.copies:
        return frame.where(expression(at_locations(operator.column, locations)))
    names = f"array({', '.join(map(quote_string, locations))})"
    return frame.select("*", F.explode(expression(names)).alias(operator.column))


def _transform(operator: ops.Transform, frame: DataFrame) -> DataFrame:
    try:
        if isinstance(operator.function, BuiltinFunction):
            result = sparkmodels.predicted(spark_predictor_of(operator.function.settings), frame)
        else:
            result = operator.function.load()(frame)
        columns = result.schema.fields  # Spark checks the function's columns only now
    except HeadwaterError as error:  # of a function of Headwater: the words are there
        raise UserCodeError(error.what, where=operator.where, hint=error.hint) from error
    except Exception as error:
        raise UserCodeError(
            f"the function raised {raised(error)}", where=operator.where, hint="correct the function"
        ) from error
    declared = Schema.parse(operator.schema_text)
    found = Schema.parse(", ".join(f"{quoted(f.name)} {f.dataType.simpleString()}" for f in columns))
    if found.text != declared.text:
        raise UserCodeError(
            f"the function returns {found.text}, but {declared.text} is declared",
            where=operator.where,
            hint="correct the schema given to transform(...)",
        )
    return result


def guarded(operator: ops.MapBatches) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Wrap a function over batches so that its exceptions name operator and row."""
    function, where = operator.function.load(), operator.where

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        current: list[Any] = []

        def watched() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                current[:] = [batch]
                yield batch

        try:
            yield from function(watched())
        except HeadwaterError as error:  # of a function of Headwater: the words are there
            raise UserCodeError(error.what, where=where, hint=error.hint) from error
        except Exception as error:
            row = _culprit(function, current[0]) if current else None
            raise UserCodeError(
                f"the function raised {raised(error, row)}",
                where=where,
                hint="correct the function; the unit continues from its last batch",
            ) from error

    return run


def _culprit(function: Callable[..., Any], batch: pa.RecordBatch) -> dict[str, Any] | None:
    """Find the first row of a batch with which the function fails, by halving."""

    def fails(part: pa.RecordBatch) -> bool:
        try:
            for _ in function(iter([part])):
                pass
        except Exception:
            return True
        return False

    if not fails(batch):
        return None
    while batch.num_rows > 1:
        half = batch.num_rows // 2
        first = batch.slice(0, half)
        batch = first if fails(first) else batch.slice(half)
    return batch.to_pylist()[0] if batch.num_rows else None


def _aggregate(operator: stateful.Aggregate, frame: DataFrame, type_: StreamType, *, streaming: bool) -> DataFrame:
    groups: list[Any] = [column_of(k) for k in operator.keys]
    match operator.window:
        case stateful.TimeWindow(column, size, slide):
            length = span(operator.duration(size, "size"))
            hop = span(operator.duration(slide, "slide")) if slide else None
            groups.insert(0, F.window(column_of(column), length, hop))
        case stateful.SessionWindow(column, gap):
            groups.insert(0, F.session_window(column_of(column), span(operator.duration(gap, "gap"))))
    texts = [(n, without_distinct(text, type_.schema) if streaming else text) for n, text in operator.aggregates]
    return frame.groupBy(*groups).agg(*(expression(text).alias(name) for name, text in texts))


def _join(operator: stateful.Join, left: DataFrame, right: DataFrame, types: list[StreamType]) -> DataFrame:
    low, high = operator.bounds()
    times = [t.event_time for t in types]
    assert times[0] is not None and times[1] is not None
    a, b = left.alias("l"), right.alias("r")
    mine, theirs = column_of("l", times[0].column), column_of("r", times[1].column)
    if operator.by_window(types[0]):
        condition = mine == theirs
    else:
        condition = (theirs >= mine + _interval(low)) & (theirs <= mine + _interval(high))
    # Spark bounds state by fixed times only: months of the calendar are a further condition.
    for side, (months, seconds) in zip(("low", "high"), operator.intervals(), strict=True):
        if months:
            bound = mine + expression(f"INTERVAL '{months}' MONTH") + _interval(seconds)
            condition = condition & (theirs >= bound if side == "low" else theirs <= bound)
    for key in operator.on:
        condition = condition & (column_of("l", key) == column_of("r", key))
    keys = {k.lower() for k in operator.on}
    columns = [column_of("l", n) for n in types[0].schema.names]
    columns += [column_of("r", n) for n in types[1].schema.names if n.lower() not in keys]
    return a.join(b, condition, operator.how).select(*columns)


def _interval(seconds: float) -> Any:
    return expression(f"INTERVAL {round(seconds * 1_000_000)} MICROSECOND")
