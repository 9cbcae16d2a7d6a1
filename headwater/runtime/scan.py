"""Folds over the rows of a key, in order: what runs inside Spark's transformWithState for scans.

Two orders. With the event time first in ``order_by`` rows wait until the watermark has passed
them and are then folded in full order: the result does not depend on how rows arrived, nor on
cuts and placement. Otherwise the rows of each micro-batch are folded in the order of
``order_by``, batch after batch: exact where a key's rows arrive in that order.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headwater.dataflow import stateful
from headwater.dataflow.schema import Schema
from headwater.dataflow.types import StreamType
from headwater.errors import UserCodeError
from headwater.runtime.sparktypes import spark_schema
from headwater.runtime.stateserver import limit_waiting

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ALL = "__all"
"""The key column of an operator without keys."""

Fold = Callable[[Any, dict[str, Any]], tuple[Any, dict[str, Any] | None]]

limit_waiting()


def apply(operator: stateful.Scan, frame: DataFrame, type_: StreamType, *, streaming: bool) -> DataFrame:
    """Fold the rows of each key, in a stream or a batch. Watermarks are the caller's affair."""
    event_time = stateful.by_event_time(operator, type_)
    schema = Schema.parse(operator.schema_text)
    target = spark_schema(schema.columns)
    if event_time is not None:
        frame = frame.where(f"`{event_time}` IS NOT NULL")
    function, initial, order, where = (
        operator.function.load(),
        operator.initial,
        operator.order_by,
        operator.where,
    )
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
            outputStructType=target,
            outputMode="Append",
            timeMode="EventTime" if event_time else "None",
        )
    names = list(schema.names)
    arrow = to_arrow_schema(target, timezone="UTC")

    def whole(group: pa.Table) -> pa.Table:
        import pyarrow as pa

        rows = sorted((_naive(row) for row in group.to_pylist()), key=order_key(order))
        _, out = fold_rows(function, json.loads(initial), rows, where=where)
        return pa.Table.from_pylist([{n: r.get(n) for n in names} for r in out], schema=arrow)

    return frame.groupBy(*grouped_by).applyInArrow(whole, target)


def _naive(value: Any) -> Any:
    """Give times as PySpark's rows have them: in the session's zone, without saying so."""
    if isinstance(value, dict):
        return {k: _naive(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_naive(v) for v in value]
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value


def _without_all(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, row: function(state, {k: v for k, v in row.items() if k != ALL})


def order_key(columns: Sequence[str]) -> Callable[[dict[str, Any]], Any]:
    """Make a sort key over rows; NULLs first as in Spark, ties by the whole row so that order is total."""

    def key(row: dict[str, Any]) -> Any:
        first = tuple((row[c] is not None, row[c]) for c in columns)
        return (first, tuple(repr(v) for v in row.values()))

    return key


def fold_rows(
    fold: Fold, state: Any, rows: list[dict[str, Any]], *, where: str
) -> tuple[Any, list[dict[str, Any]]]:
    """Fold rows into a state; an exception of the user's function names operator and row."""
    out: list[dict[str, Any]] = []
    for row in rows:
        try:
            state, result = fold(state, row)
        except Exception as error:
            raise UserCodeError(
                f"the function raised {type(error).__name__}: {error}; row {row}",
                where=where,
                hint="correct the function; the unit goes on from its last batch",
            ) from error
        if result is not None:
            out.append(result)
    return state, out


def deadline_ms(time: Any) -> int:
    """Give the first whole millisecond at which a watermark has passed a time."""
    micros = _micros(time)
    return -(-micros // 1000)


def _micros(time: Any) -> int:
    from datetime import UTC, datetime

    aware = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    delta = aware - datetime(1970, 1, 1, tzinfo=UTC)
    micros: int = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    return micros


class ScanProcessor(StatefulProcessor):
    """Fold a user's function over the rows of each key."""

    def __init__(
        self,
        *,
        function: Fold,
        initial: str,
        order_by: tuple[str, ...],
        event_time: str | None,
        columns: tuple[str, ...],
        where: str,
    ) -> None:
        self._function = function
        self._initial = initial
        self._order = order_by
        self._event_time = event_time
        self._columns = columns
        self._where = where

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: the user's state as JSON and, in event-time order, the rows that wait."""
        self._handle = handle
        self._state = handle.getValueState("state", "json string")
        self._waiting = handle.getListState("waiting", "rows binary") if self._event_time else None

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        """Fold at once, or set rows aside until the watermark has passed them."""
        fresh = [row.asDict(recursive=True) for row in rows]
        if self._waiting is None or self._event_time is None:
            return self._fold(fresh)
        if fresh:
            self._waiting.appendValue((pickle.dumps(fresh),))
            self._handle.registerTimer(min(deadline_ms(r[self._event_time]) for r in fresh))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Fold the rows that the watermark has passed."""
        assert self._waiting is not None and self._event_time is not None
        passed = timerValues.getCurrentWatermarkInMs()
        rows = [r for (chunk,) in self._waiting.get() for r in pickle.loads(chunk)]
        ready = [r for r in rows if deadline_ms(r[self._event_time]) <= passed]
        rest = [r for r in rows if deadline_ms(r[self._event_time]) > passed]
        self._waiting.clear()
        if rest:
            self._waiting.appendValue((pickle.dumps(rest),))
            self._handle.registerTimer(min(deadline_ms(r[self._event_time]) for r in rest))
        return self._fold(ready)

    def _fold(self, rows: list[dict[str, Any]]) -> Iterator[Row]:
        if not rows:
            return iter(())
        rows.sort(key=order_key(self._order))
        stored = self._state.get()
        state = json.loads(stored[0] if stored else self._initial)
        state, out = fold_rows(self._function, state, rows, where=self._where)
        try:
            self._state.update((json.dumps(state),))
        except (TypeError, ValueError) as error:
            raise UserCodeError(
                f"the state cannot be stored as JSON: {error}",
                where=self._where,
                hint="use numbers, text, lists, dicts",
            ) from error
        return iter([Row(**{c: r.get(c) for c in self._columns}) for r in out])

    def close(self) -> None:
        """Release nothing: the state belongs to Spark."""
