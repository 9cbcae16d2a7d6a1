"""Windows of rows: of a count, or of a maker; their aggregates, and functions of their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from headwater.core.errors import DataflowError
from headwater.core.text import cut
from headwater.dataflow import operators as ops
from headwater.dataflow import stateful
from headwater.dataflow.arguments import ArgumentGuard
from headwater.dataflow.grouped import aggregates_of
from headwater.dataflow.settings import (
    Aggregated,
    AggregateItems,
    SchemaOf,
)
from headwater.dataflow.streambase import S, schema_text
from headwater.dataflow.windowmakers import (
    ChopTime,
    Complete,
    Maker,
    RowWindows,
    SlidingTime,
    WindowMaker,
    has_map,
    step_of,
    window_fold,
)
from headwater.sql.columnnames import free_name
from headwater.sql.expressions import check_condition
from headwater.sql.lexer import quoted
from headwater.sql.rowarrays import over_rows
from headwater.sql.schema import ArrayType, Column, Schema


@dataclass(frozen=True)
class Counted(ArgumentGuard, Generic[S]):
    """A stream in count windows, before its aggregates."""

    stream: S
    size: int
    slide: int | None
    keys: tuple[str, ...]
    order_by: tuple[str, ...]

    def _place_of(self, method: str) -> str:
        return f"count_window.{method} after '{self.stream.operator.id}'"

    def agg(self, *columns: AggregateItems, **aggregates: Aggregated) -> S:
        """Compute aggregates per window."""
        return self.stream._then(
            stateful.CountWindow,
            keys=self.keys,
            order_by=self.order_by,
            size=self.size,
            slide=self.slide,
            aggregates=aggregates_of(columns, aggregates, self._place_of("agg")),
        )

    def apply(self, function: Callable[..., Any], schema: SchemaOf) -> S:
        """Apply ``function(rows) -> rows`` to each window: a list of dicts in order, and any number of dicts.

        The columns of ``schema`` follow the keys.
        """
        stateful.check_slide(self.size, self.slide, self._place_of("apply"))
        return _applied(self, RowWindows(self.size, self.slide or self.size), function, schema, "count_window.apply")


@dataclass(frozen=True)
class Windowed(ArgumentGuard, Generic[S]):
    """A stream in the windows of a maker, before its aggregates."""

    stream: S
    maker: Maker
    keys: tuple[str, ...]
    order_by: tuple[str, ...]

    def _place_of(self, method: str) -> str:
        return f"windowed.{method} after '{self.stream.operator.id}'"

    def agg(self, *columns: AggregateItems, **aggregates: Aggregated) -> S:
        """Compute aggregates per window, those of ``count_window``."""
        where, schema = self._place_of("agg"), self.stream.schema
        found = aggregates_of(columns, aggregates, where)
        if not found:
            raise DataflowError("agg() computes nothing", where=where, hint="name an aggregate: .agg(n='count(*)')")
        rows = _rows_of_windows(self, self.maker, Column("rows", ArrayType(schema.struct)), None, "windowed.agg")
        array = rows.schema.columns[-1]
        keys = [(k, quoted(k)) for k in rows.columns[:-1]]
        return rows._then(ops.Select, columns=(*keys, *over_rows(found, schema, array, where=where)))

    def apply(self, function: Callable[..., Any], schema: SchemaOf) -> S:
        """Apply ``function(rows) -> rows`` to each window: a list of dicts in order, and any number of dicts.

        The columns of ``schema`` follow the keys.
        """
        return _applied(self, self.maker, function, schema, "windowed.apply")


def _applied(
    windows: Counted[S] | Windowed[S], maker: Maker | RowWindows, function: Callable[..., Any], schema: str, method: str
) -> S:
    """Return the output rows of a function of each window, after the keys."""
    where = windows._place_of("apply")
    windows.stream._function(function, 1, method)
    columns = Schema.parse(schema_text(schema, where))
    made = _rows_of_windows(windows, maker, Column("row", columns.struct), function, method)
    *keys, row = made.columns
    if clash := {k.lower() for k in keys} & {n.lower() for n in columns.names}:
        raise DataflowError(
            f"the function's columns have the names of keys: {cut(', '.join(sorted(clash)), 200)}",
            where=where,
            hint="leave them out: the keys are put before the function's columns",
        )
    pairs = [(c, f"{quoted(row)}.{quoted(c)}") for c in columns.names]
    return made._then(ops.Select, columns=(*((k, quoted(k)) for k in keys), *pairs))


def _rows_of_windows(
    windows: Counted[S] | Windowed[S],
    maker: Maker | RowWindows,
    item: Column,
    function: Callable[..., Any] | None,
    method: str,
) -> S:
    """Return the keys, and each result of a window as the column ``item``, by a scan that keeps open windows.

    The results of ``function`` of a window are rows; without it, the window is the result.
    """
    stream, where = windows.stream, windows._place_of(method.partition(".")[2])
    stream._require_columns(windows.keys, method)
    names = {c.lower(): c for c in stream.columns}
    keys = tuple(names[k.lower()] for k in windows.keys)
    if wide := [c.name for c in stream.schema.columns if has_map(c.type)]:
        raise DataflowError(
            f"windows hold no maps: {cut(', '.join(wide), 200)}",
            where=where,
            hint="select the other columns before it, or map_entries(...)",
        )
    column = free_name("closes", names)
    match maker:
        case Complete(until):
            check_condition(until, stream.schema, where=where)
            rows = stream.with_columns(**{column: f"coalesce({until}, false)"})
        case ChopTime() | SlidingTime():
            rows, time = stream, stream.shape.event_time
            if time is None or not windows.order_by or windows.order_by[0].lower() != time.column.lower():
                raise DataflowError(
                    "windows of a time need the order of the event time",
                    where=where,
                    hint=".with_watermark('ts', '10 seconds') before it, and order_by='ts'",
                )
            column = time.column
        case WindowMaker():
            rows = stream
            stream._function(maker.function, 2, method)
        case RowWindows():
            rows = stream
    step, initial = step_of(maker, column)
    taken = {k.lower() for k in keys}
    many, one = free_name("windows", taken), free_name(item.name, taken)
    # Open windows have the columns of the stream: with others the state is another one.
    state = {"state": initial, "rows of": {stream.schema.text: None}}
    out = Schema((*(stream.schema.column(k) for k in keys), Column(many, ArrayType(item.type))))
    fold = window_fold(step, keys, many, function)
    found = rows.scan(fold, out.text, keys=keys, order_by=windows.order_by, initial=state, keeps_keys=True)
    exploded = found.explode(quoted(many), one)
    return exploded._then(ops.Select, columns=tuple((c, quoted(c)) for c in (*keys, one)))
