"""From operators to DataFrames: one match over the core operators, for streams and for one batch.

The batch form is the oracle's: what it does with state it does another way (window functions,
applyInPandas), so that the two can be held against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headwater.dataflow import operators as ops
from headwater.dataflow import stateful
from headwater.dataflow.rewrite import row_aggregates
from headwater.dataflow.schema import Schema
from headwater.dataflow.sinks import Sink
from headwater.dataflow.types import StreamType
from headwater.errors import RuntimeFailure, UserCodeError

if TYPE_CHECKING:
    import pyarrow as pa

ALL = "__all"
"""The key column of an operator without keys."""

MARK = "spark.watermarkDelayMs"
WINDOW_MARK = "spark.timeWindow"
"""Column metadata by which Spark knows the event time of a stream, and the windows of one."""


def span(seconds: float) -> str:
    """Write a duration as a Spark interval."""
    return f"{round(seconds * 1_000_000)} microseconds"


def apply(
    operator: ops.Operator, frames: list[DataFrame], types: list[StreamType], *, streaming: bool
) -> DataFrame:
    """Apply an operator to its inputs' frames. Watermarks are the caller's affair."""
    frame, type_ = frames[0], types[0]
    match operator:
        case ops.Where():
            return frame.where(operator.condition)
        case ops.Select():
            return frame.select(*(F.expr(text).alias(name) for name, text in operator.columns))
        case ops.Explode():
            return _explode(operator, frame)
        case ops.Union():
            for other in frames[1:]:
                frame = frame.unionByName(other)
            return frame
        case ops.Watermark() | Sink():
            return frame
        case ops.MapBatches():
            schema = Schema.parse(operator.schema_text)
            return frame.mapInArrow(guarded(operator), schema.text)
        case ops.Transform():
            return _transform(operator, frame)
        case stateful.Aggregate():
            return _aggregate(operator, mark(frame, type_))
        case stateful.Dedup():
            if streaming:
                return mark(frame, type_).dropDuplicatesWithinWatermark(list(operator.keys))
            return frame.dropDuplicates(list(operator.keys))
        case stateful.Join():
            return _join(operator, mark(frames[0], types[0]), mark(frames[1], types[1]), types)
        case stateful.CountWindow():
            return _count_window(operator, frame, type_, streaming=streaming)
        case stateful.Scan():
            return _scan(operator, frame, type_, streaming=streaming)
    raise RuntimeFailure(
        f"no compilation for {operator.kind}", where=operator.where, hint="report this as a defect"
    )


def mark(frame: DataFrame, type_: StreamType) -> DataFrame:
    """Tell Spark which column is the event time, and that no other is."""
    if type_.event_time is None or not frame.isStreaming:
        return frame
    time = type_.event_time.column.lower()
    columns = []
    for column in type_.schema.columns:
        name = f"`{column.name}`"
        if column.name.lower() == time:
            window = {WINDOW_MARK: True} if column.type == stateful.WINDOW_TYPE else {}
            columns.append(F.col(name).alias(column.name, metadata={MARK: 0, **window}))
        elif column.type.text == "timestamp" or column.type == stateful.WINDOW_TYPE:
            columns.append(F.col(name).alias(column.name, metadata={"headwater": 1}))
        else:
            columns.append(F.col(name))
    return frame.select(*columns)


def _explode(operator: ops.Explode, frame: DataFrame) -> DataFrame:
    expression = F.expr(operator.expression)
    if operator.position is None:
        function = F.explode_outer if operator.outer else F.explode
        return frame.select("*", function(expression).alias(operator.alias))
    with_position = F.posexplode_outer if operator.outer else F.posexplode
    return frame.select("*", with_position(expression).alias(operator.position, operator.alias))


def _transform(operator: ops.Transform, frame: DataFrame) -> DataFrame:
    try:
        result = operator.function.load()(frame)
    except Exception as error:
        raise UserCodeError(
            f"the function raised {type(error).__name__}: {error}",
            where=operator.where,
            hint="correct the function",
        ) from error
    declared = Schema.parse(operator.schema_text)
    found = Schema.parse(", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in result.schema.fields))
    if found.text != declared.text:
        raise UserCodeError(
            f"the function gives {found.text}, but {declared.text} is declared",
            where=operator.where,
            hint="correct the schema given to transform(...)",
        )
    return result  # type: ignore[no-any-return]


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
        except Exception as error:
            row = _culprit(function, current[0]) if current else None
            shown = f"; row {row}" if row is not None else ""
            raise UserCodeError(
                f"the function raised {type(error).__name__}: {error}{shown}",
                where=where,
                hint="correct the function; the unit goes on from its last batch",
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


def _aggregate(operator: stateful.Aggregate, frame: DataFrame) -> DataFrame:
    groups: list[Any] = [F.col(f"`{k}`") for k in operator.keys]
    match operator.window:
        case stateful.TimeWindow(column, size, slide):
            length = span(operator.duration(size, "size"))
            hop = span(operator.duration(slide, "slide")) if slide else None
            groups.insert(0, F.window(F.col(f"`{column}`"), length, hop))
        case stateful.SessionWindow(column, gap):
            groups.insert(0, F.session_window(F.col(f"`{column}`"), span(operator.duration(gap, "gap"))))
    return frame.groupBy(*groups).agg(*(F.expr(text).alias(name) for name, text in operator.aggregates))


def _join(operator: stateful.Join, left: DataFrame, right: DataFrame, types: list[StreamType]) -> DataFrame:
    low, high = operator.bounds()
    times = [t.event_time for t in types]
    assert times[0] is not None and times[1] is not None
    a, b = left.alias("l"), right.alias("r")
    mine, theirs = F.col(f"l.`{times[0].column}`"), F.col(f"r.`{times[1].column}`")
    condition = (theirs >= mine + _interval(low)) & (theirs <= mine + _interval(high))
    for key in operator.on:
        condition = condition & (F.col(f"l.`{key}`") == F.col(f"r.`{key}`"))
    keys = {k.lower() for k in operator.on}
    columns = [F.col(f"l.`{n}`") for n in types[0].schema.names]
    columns += [F.col(f"r.`{n}`") for n in types[1].schema.names if n.lower() not in keys]
    return a.join(b, condition, operator.how).select(*columns)


def _interval(seconds: float) -> Any:
    return F.expr(f"INTERVAL {round(seconds * 1_000_000)} MICROSECOND")


def _scan(operator: stateful.Scan, frame: DataFrame, type_: StreamType, *, streaming: bool) -> DataFrame:
    from headwater.runtime.keyed import ScanProcessor, fold_rows, order_key

    event_time = stateful.by_event_time(operator, type_)
    schema = Schema.parse(operator.schema_text)
    if event_time is not None:
        frame = frame.where(f"`{event_time}` IS NOT NULL")
    function, initial, order, where = (
        operator.function.load(),
        operator.initial,
        operator.order_by,
        operator.where,
    )
    if streaming:
        frame = mark(frame, type_)
    if not operator.keys:  # state is kept by column, so one key for all rows must be a column
        frame, function = frame.withColumn(ALL, F.lit(0)), _without_all(function)
    grouped_by = [F.col(f"`{k}`") for k in operator.keys or (ALL,)]
    if streaming:
        processor = ScanProcessor(
            function=function,
            initial=initial,
            order_by=order,
            event_time=event_time,
            columns=schema.names,
            where=where,
        )
        return frame.groupBy(*grouped_by).transformWithState(
            statefulProcessor=processor,
            outputStructType=schema.text,
            outputMode="Append",
            timeMode="EventTime" if event_time else "None",
        )
    names = list(schema.names)

    def whole(batches: Iterator[Any]) -> Iterator[Any]:
        import json

        import pyarrow as pa

        parts = list(batches)
        if not parts:
            return
        rows = [_naive(row) for row in pa.Table.from_batches(parts).to_pylist()]
        rows.sort(key=order_key(order))
        _, out = fold_rows(function, json.loads(initial), rows, where=where)
        yield pa.RecordBatch.from_pylist([{n: r.get(n) for n in names} for r in out], schema=target)

    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import _parse_datatype_string

    target = to_arrow_schema(_parse_datatype_string(schema.text), timezone="UTC")  # type: ignore[arg-type]
    return frame.groupBy(*grouped_by).applyInArrow(_per_group(whole), schema.text)


def _naive(value: Any) -> Any:
    """Give times as PySpark's rows have them: in the session's zone, without saying so."""
    if isinstance(value, dict):
        return {k: _naive(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_naive(v) for v in value]
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value


def _without_all(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, row: function(state, {k: v for k, v in row.items() if k != ALL})


def _per_group(function: Callable[[Iterator[Any]], Iterator[Any]]) -> Callable[[pa.Table], pa.Table]:
    def group(table: Any) -> Any:
        import pyarrow as pa

        out = list(function(iter(table.to_batches())))
        return pa.Table.from_batches(out)

    return group


def _count_window(
    operator: stateful.CountWindow, frame: DataFrame, type_: StreamType, *, streaming: bool
) -> DataFrame:
    from headwater.runtime.keyed import NULL, ORDER, VALUE, CountWindowProcessor

    parts = row_aggregates(operator.aggregates, type_.schema, where=operator.where)
    event_time = stateful.by_event_time(operator, type_)
    size, slide = operator.size, operator.slide or operator.size
    frame = mark(frame, type_)
    if event_time is not None:
        frame = frame.where(f"`{event_time}` IS NOT NULL")
    columns = [F.col(f"`{k}`") for k in operator.keys] or [F.lit(0).alias(ALL)]
    keys = operator.keys or (ALL,)
    columns += [F.col(f"`{c}`").alias(f"{ORDER}{i}") for i, c in enumerate(operator.order_by)]
    for i, (_, argument) in enumerate(parts.calls):
        value = F.expr(argument)
        columns += [value.alias(f"{VALUE}{i}"), value.isNull().alias(f"{NULL}{i}")]
    rows = frame.select(*columns)
    outputs = [F.col(f"`{k}`") for k in operator.keys]
    outputs += [F.expr(text).alias(name) for name, text in parts.outputs]
    if not streaming:
        return _count_window_batch(rows, keys, parts.calls, size, slide, len(operator.order_by)).select(
            *outputs
        )
    filled = [F.col(f"`{c}`") for c in rows.columns if not c.startswith(VALUE)]
    for i, field in enumerate(f for f in rows.schema.fields if f.name.startswith(VALUE)):
        zero = {"bigint": 0, "int": 0, "smallint": 0, "tinyint": 0, "boolean": False}.get(
            field.dataType.simpleString()
        )
        # pandas would turn whole numbers with NULLs into floating point: NULLs travel in their own column.
        value = F.col(f"{VALUE}{i}")
        filled.append(
            (F.coalesce(value, F.lit(zero).cast(field.dataType)) if zero is not None else value).alias(
                f"{VALUE}{i}"
            )
        )
    schema = ", ".join(
        [f"`{f.name}` {f.dataType.simpleString()}" for f in rows.schema.fields if f.name in keys]
        + [f"`__g{i}` {t.text}" for i, t in enumerate(parts.types)]
    )
    ready = rows.select(*filled)
    processor = CountWindowProcessor(
        columns=tuple(ready.columns),
        keys=keys,
        orders=len(operator.order_by),
        functions=tuple(function for function, _ in parts.calls),
        size=size,
        slide=slide,
        event_time=event_time is not None,
    )
    result = ready.groupBy(*(F.col(f"`{k}`") for k in keys)).transformWithStateInPandas(
        statefulProcessor=processor,
        outputStructType=schema,
        outputMode="Append",
        timeMode="EventTime" if event_time else "None",
    )
    return result.select(*outputs)


def _count_window_batch(
    rows: DataFrame,
    keys: tuple[str, ...],
    calls: tuple[tuple[str, str], ...],
    size: int,
    slide: int,
    orders: int,
) -> DataFrame:
    """Number each key's rows and group by the windows that each number falls into."""
    from pyspark.sql import Window

    from headwater.runtime.keyed import NULL, ORDER, VALUE

    ties = sorted(c for c in rows.columns if c.startswith((VALUE, NULL)))
    order = [F.col(f"{ORDER}{i}").asc_nulls_first() for i in range(orders)]
    order += [F.col(c).asc_nulls_first() for c in ties]
    by = [F.col(f"`{k}`") for k in keys]
    numbered = rows.withColumn("__i", F.row_number().over(Window.partitionBy(*by).orderBy(*order)) - 1)
    first = f"greatest(0, cast(ceil((__i - {size} + 1) / {slide}) AS int))"
    spread = numbered.withColumn(
        "__w", F.expr(f"explode(sequence({first}, cast(floor(__i / {slide}) AS int)))")
    )
    # With slide < size a row's first and last windows overlap; __i below the first window's start cannot be.
    spread = spread.where(f"__i >= __w * {slide} AND __i < __w * {slide} + {size}")
    results = [F.count(F.lit(1)).alias("__rows")]
    for i, (function, _) in enumerate(calls):
        value = F.col(f"{VALUE}{i}")
        if function in ("first", "last"):
            picked = F.min_by if function == "first" else F.max_by
            results.append(picked(value, F.col("__i")).alias(f"__g{i}"))
        else:
            results.append(F.expr(f"{function}({VALUE}{i})").alias(f"__g{i}"))
    return spread.groupBy(*by, F.col("__w")).agg(*results).where(f"__rows = {size}")
