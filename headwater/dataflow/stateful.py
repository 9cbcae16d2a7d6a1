"""Stateful operators: windows, duplicates, joins, folds over the rows of a key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from headwater.core.errors import DataflowError, HeadwaterError
from headwater.core.quantity import parse_interval
from headwater.core.text import cut
from headwater.dataflow.arguments import checked
from headwater.dataflow.builtin import BuiltinFunction
from headwater.dataflow.function import PythonFunction
from headwater.dataflow.operators import (
    Operator,
    checked_schema,
    column_named,
    opaque_output,
    require_deterministic,
)
from headwater.dataflow.settings import Bound, ColumnName, Duration, StateText, WindowRows
from headwater.dataflow.types import EventTime, StreamType, idle_together, is_time
from headwater.sql.expressions import check_aggregate
from headwater.sql.rewrite import row_aggregates
from headwater.sql.schema import Column, DataType

_SHORTEST, _LONGEST, _DAY = 28, 31, 86_400  # days of a month, seconds of a day
ROWS = "headwater_rows"
"""The column with the number of rows that a result was computed from, where results are output as they change."""
WINDOW_TYPE = DataType.parse("struct<start:timestamp,end:timestamp>")


@dataclass(frozen=True)
class TimeWindow:
    """Windows of ``size``, a new one every ``slide`` (``slide`` = None: tumbling)."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    column: str
    size: Duration
    slide: Duration | None = None


@dataclass(frozen=True)
class SessionWindow:
    """Windows that end when a key had no rows for ``gap``."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    column: str
    gap: Duration


@checked
def window(time_column: ColumnName, size: Duration, slide: Duration | None = None) -> TimeWindow:
    """Tumbling windows of ``size``, or sliding ones every ``slide``, for ``group_by``.

    Both are at least a microsecond, as Spark's times, and at most 365250 days.
    """
    return TimeWindow(time_column, size, slide)


@checked
def session_window(time_column: ColumnName, gap: Duration) -> SessionWindow:
    """Windows that end after ``gap`` without rows, for ``group_by``; a microsecond to 365250 days."""
    return SessionWindow(time_column, gap)


@dataclass(frozen=True, kw_only=True)
class Aggregate(Operator):
    """Aggregates per window and keys; a window's row is output once, when the watermark passes its end.

    With ``mode="update"`` a row is output in each batch that changes it; the last aggregate is ``headwater_rows``.
    A ``partial`` one may run in several zones, each over its own rows: an aggregate behind it merges their results.
    """

    kind: ClassVar[str] = "aggregate"
    stateful: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("window", "keys", "mode")
    newer: ClassVar[frozenset[str]] = frozenset({"mode", "partial"})
    window: TimeWindow | SessionWindow | None = None
    keys: tuple[str, ...] = ()
    aggregates: tuple[tuple[str, str], ...]
    mode: Literal["update"] | None = None
    partial: Literal[True] | None = None

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        (source,) = inputs
        time = source.event_time
        if self.mode == "update":
            self._check_updates()
        if time is None:
            raise self.error(
                "an aggregate over a stream never ends without a watermark",
                ".with_watermark(<timestamp column>, '10 seconds') before .group_by(...)",
            )
        columns: list[Column] = []
        if self.window is None:
            if time.column.lower() not in {k.lower() for k in self.keys}:
                raise self.error(
                    f"group_by has no window and not the event time '{time.column}', so no group ever ends",
                    f"add hw.window('{time.column}', '1 minute') or '{time.column}' to group_by(...)",
                )
            out = time
        else:
            if self.window.column.lower() != time.column.lower():
                raise self.error(
                    f"the window is over '{self.window.column}', but the event time is '{time.column}'",
                    f"use hw.window('{time.column}', ...)",
                )
            name = self._check_window(self.window)
            columns.append(Column(name, WINDOW_TYPE))
            out = EventTime(name, 0.0, time.idle_after)
        columns += [source.schema.column(self._key(k, source)) for k in self.keys]
        columns += aggregate_columns(self, self.aggregates, source)
        located = frozenset(k for k in self.keys if k.lower() in {c.lower() for c in source.located_by})
        return StreamType(checked_schema(self, columns), event_time=out, located_by=located)

    def content(self, inputs: tuple[StreamType, ...]) -> dict[str, Any]:
        return {**self.config(), **_canonical(self, inputs[0])}

    def _check_updates(self) -> None:
        if isinstance(self.window, SessionWindow):
            raise self.error(
                "Spark outputs sessions only when they have ended: a session's window itself changes",
                "use hw.window(...), or leave output_mode('update') out",
            )
        if self.partial:
            raise self.error("a partial aggregate has no final results to update", "leave out mode, or partial")
        if self.aggregates[-1:] != ((ROWS, "count(*)"),):
            raise self.error(f"the last aggregate is not {ROWS}", "write it by .write.output_mode('update')")

    def _check_window(self, window: TimeWindow | SessionWindow) -> str:
        if isinstance(window, SessionWindow):
            if self.duration(window.gap, "the session's gap") <= 0:
                raise self.error("the session's gap is not positive", "write it as '5 minutes'")
            return "session_window"
        size = self.duration(window.size, "the window's size")
        slide = self.duration(window.slide, "the window's slide") if window.slide is not None else size
        if size <= 0 or not 0 < slide <= size:
            raise self.error(f"window of {window.size} every {window.slide}", "0 < slide <= size")
        return "window"

    def _key(self, key: str, source: StreamType) -> str:
        return column_named(self, key, source.schema)

    def partition_keys(self) -> tuple[str, ...] | None:
        return None if self.partial else self.keys


def updates(operator: Operator) -> bool:
    """Return whether an operator outputs results as they change, before they are final."""
    return isinstance(operator, Aggregate) and operator.mode == "update"


@dataclass(frozen=True, kw_only=True)
class Dedup(Operator):
    """Drop rows whose keys were seen before within the watermark's delay.

    A ``partial`` one may run in several zones, each over its own rows: another one behind it drops the rest.
    """

    kind: ClassVar[str] = "dedup"
    stateful: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("keys",)
    newer: ClassVar[frozenset[str]] = frozenset({"partial"})
    keys: tuple[str, ...]
    partial: Literal[True] | None = None

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        (source,) = inputs
        if source.event_time is None:
            raise self.error(
                "dropping duplicates without a watermark needs unbounded state",
                ".with_watermark(<timestamp column>, '10 seconds') before .drop_duplicates(...)",
            )
        if not is_time(source.schema.column(source.event_time.column).type):
            raise self.error(
                "the event time is a window, and duplicates are dropped by a time",
                "group by the columns: .group_by('window', 'k').agg(n='count(*)')",
            )
        if not self.keys:
            raise self.error("no columns to compare", "name them: .drop_duplicates('id')")
        for key in self.keys:
            column_named(self, key, source.schema)
        return source

    def partition_keys(self) -> tuple[str, ...] | None:
        return None if self.partial else self.keys


@dataclass(frozen=True, kw_only=True)
class Join(Operator):
    """Pair rows of two streams with equal keys and event times within bounds.

    ``earliest`` and ``latest`` bound right event time - left event time. Streams whose event time is a window are
    paired by equal windows, which are among the keys; both bounds are zero.
    """

    kind: ClassVar[str] = "join"
    arity: ClassVar[tuple[int, int | None]] = (2, 2)
    stateful: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("on",)
    on: tuple[str, ...]
    earliest: Bound
    latest: Bound
    how: Literal["inner", "left"] = "inner"

    def intervals(self) -> tuple[tuple[int, float], tuple[int, float]]:
        """Return the bounds in months of the calendar and seconds."""
        try:
            return parse_interval(self.earliest), parse_interval(self.latest)
        except HeadwaterError as error:
            raise self.error(f"the join's bound: {error.what}", error.hint or "write it as '30 seconds'") from error

    def bounds(self) -> tuple[float, float]:
        """Return the bounds in seconds; where they have months, bounds that are at least as wide."""
        (low_months, low), (high_months, high) = self.intervals()
        low += low_months * (_SHORTEST if low_months > 0 else _LONGEST) * _DAY
        high += high_months * (_LONGEST if high_months > 0 else _SHORTEST) * _DAY
        if low > high:
            raise self.error(f"the bounds are reversed: {self.earliest}, {self.latest}", "swap the bounds")
        return low, high

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        left, right = inputs
        low, high = self.bounds()
        for side, stream in (("left", left), ("right", right)):
            if stream.event_time is None:
                raise self.error(
                    f"the {side} stream has no watermark, so its state would be unbounded",
                    f".with_watermark(<timestamp column>, '10 seconds') on the {side} stream",
                )
        assert left.event_time is not None and right.event_time is not None
        self._check_times(left, right)
        if not self.on:
            raise self.error("a join of streams needs key columns", "join(other, on='id', within='1 minute')")
        for key in self.on:
            a = left.schema.column(column_named(self, key, left.schema)).type
            b = right.schema.column(column_named(self, key, right.schema)).type
            if a != b:
                raise self.error(f"'{key}' is {a.text} on the left and {b.text} on the right", "cast one side")
        keys = {k.lower() for k in self.on}
        if len(keys) < len(self.on):
            raise self.error(f"duplicate keys: {cut(', '.join(self.on), 200)}", "names ignore case: name each once")
        rest = [c for c in right.schema.columns if c.name.lower() not in keys]
        clash = {c.name.lower() for c in rest} & {c.name.lower() for c in left.schema.columns}
        if clash:
            raise self.error(
                f"both streams have: {cut(', '.join(sorted(clash)), 200)}",
                "rename them on one side: .select('ts AS right_ts', ...)",
            )
        # A joined row may be as late as its older side waited for the younger one.
        delay = max(left.event_time.delay, right.event_time.delay) + max(abs(low), abs(high))
        located = frozenset(k for k in left.located_by if k.lower() in keys and k in right.located_by)
        schema = checked_schema(self, [*left.schema.columns, *rest])
        idle = idle_together((left.event_time, right.event_time))
        return StreamType(schema, EventTime(left.event_time.column, delay, idle), located)

    def by_window(self, left: StreamType) -> bool:
        """Return whether rows of equal windows are paired."""
        return left.event_time is not None and not is_time(left.schema.column(left.event_time.column).type)

    def _check_times(self, left: StreamType, right: StreamType) -> None:
        assert left.event_time is not None and right.event_time is not None
        names = [stream.event_time.column for stream in (left, right) if stream.event_time is not None]
        windows = [self.by_window(stream) for stream in (left, right)]
        if windows == [False, False]:
            return
        if windows != [True, True]:
            raise self.error(
                f"the {'left' if windows[0] else 'right'} stream's event time is a window, the other's is a time",
                "select window_time(window) AS t, and the other columns, first",
            )
        keys = {k.lower() for k in self.on}
        if names[0].lower() != names[1].lower() or names[0].lower() not in keys:
            raise self.error(
                "the streams' event times are windows, and rows of unequal windows never meet",
                f"join(other, on=['{names[0]}', ...]), with the window of one name in both streams",
            )
        if any(bound != (0, 0) for bound in self.intervals()):
            raise self.error("a join of equal windows takes no bounds", "leave out within and between")

    def partition_keys(self) -> tuple[str, ...] | None:
        return self.on


def check_slide(size: int, slide: int | None, where: str) -> None:
    """Refuse windows between which rows would be left out."""
    if slide is not None and slide > size:
        raise DataflowError(f"window of {size} rows every {slide}", where=where, hint="1 <= slide <= size")


@dataclass(frozen=True, kw_only=True)
class CountWindow(Operator):
    """Aggregates over every ``size`` rows of a key, a new window every ``slide`` rows."""

    kind: ClassVar[str] = "count_window"
    stateful: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("size", "keys")
    keys: tuple[str, ...]
    order_by: tuple[str, ...]
    size: WindowRows
    slide: WindowRows | None = None
    aggregates: tuple[tuple[str, str], ...]

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        (source,) = inputs
        check_slide(self.size, self.slide, self.where)
        order_columns(self, source)
        columns = [source.schema.column(column_named(self, k, source.schema)) for k in self.keys]
        columns += aggregate_columns(self, self.aggregates, source)
        row_aggregates(self.aggregates, source.schema, where=self.where)
        located = frozenset(k for k in self.keys if k in source.located_by)
        return StreamType(checked_schema(self, columns), None, located)

    def content(self, inputs: tuple[StreamType, ...]) -> dict[str, Any]:
        return {**self.config(), **_canonical(self, inputs[0])}

    def partition_keys(self) -> tuple[str, ...] | None:
        return self.keys


@dataclass(frozen=True, kw_only=True)
class Scan(Operator):
    """Per key, in order: ``state, out = function(state, row)``; every row gives one output row.

    ``function`` takes the state (``initial`` as JSON first) and the row as a dict, and returns
    the new state and a dict of the columns of ``schema_text``, or None for no output row.
    ``keeps_keys``: each output row has the keys of its input row, so another scan by these keys can run in the
    same place.
    """

    kind: ClassVar[str] = "scan"
    stateful: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("function", "keys")
    keys: tuple[str, ...]
    order_by: tuple[str, ...]
    function: PythonFunction | BuiltinFunction
    initial: StateText
    schema_text: str
    keeps_keys: bool = False

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        (source,) = inputs
        order_columns(self, source)
        if isinstance(self.function, BuiltinFunction):
            self.function.check(self.where, over="rows")
        for key in self.keys:
            column_named(self, key, source.schema)
        try:
            json.loads(self.initial)
        except (ValueError, RecursionError) as error:
            raise self.error(f"the initial state is not JSON: {error}", "write it as JSON text") from error
        out = opaque_output(self, source, self.schema_text)
        for key in self.keys:
            name = key.lower()
            if name in {n.lower() for n in out.schema.names} and out.schema.column(key) != source.schema.column(key):
                raise self.error(f"the key '{key}' has another type in the output", "keep the types of keys")
        return out

    def partition_keys(self) -> tuple[str, ...] | None:
        return self.keys


def _canonical(operator: Aggregate | CountWindow, source: StreamType) -> dict[str, Any]:
    return {
        "keys": [column_named(operator, k, source.schema) for k in operator.keys],
        "aggregates": [
            [alias, check_aggregate(text, source.schema, where=operator.where).text]
            for alias, text in operator.aggregates
        ],
    }


def aggregate_columns(operator: Operator, aggregates: tuple[tuple[str, str], ...], source: StreamType) -> list[Column]:
    """Check aggregates and return their output columns."""
    columns = []
    for alias, text in aggregates:
        aggregate = check_aggregate(text, source.schema, where=operator.where)
        require_deterministic(operator, aggregate)
        columns.append(Column(alias, aggregate.type))
    if not columns:
        raise operator.error("agg() computes nothing", "name an aggregate: .agg(n='count(*)')")
    return columns


def order_columns(operator: CountWindow | Scan, source: StreamType) -> tuple[str, ...]:
    """Check ``order_by`` and return the columns as declared in the stream."""
    if not operator.order_by:
        raise operator.error(
            "rows of a key have no order without order_by",
            "order_by='ts' (the event time: exact wherever it runs) or a counter the rows carry",
        )
    columns = tuple(column_named(operator, c, source.schema) for c in operator.order_by)
    time = source.event_time
    if time is not None and columns[0] == time.column and not is_time(source.schema.column(columns[0]).type):
        raise operator.error(
            f"'{columns[0]}' is a window, not a time",
            "select('*', 'window_time(window) AS t') and order by t",
        )
    return columns


def by_event_time(operator: CountWindow | Scan, source: StreamType) -> str | None:
    """Return the event-time column if the operator works in its order, so that arrival order is irrelevant."""
    first = order_columns(operator, source)[0]
    time = source.event_time
    return first if time is not None and time.column.lower() == first.lower() else None
