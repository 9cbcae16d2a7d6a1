"""Keyed state in order: what runs inside Spark's transformWithState for scans and count windows.

Two orders. With the event time first in ``order_by`` rows wait until the watermark has passed
them and are then folded in full order: the result does not depend on how rows arrived, nor on
cuts and placement. Otherwise the rows of each micro-batch are folded in the order of
``order_by``, batch after batch: exact where a key's rows arrive in that order.

This module is loaded in Spark's Python workers: imports stay light.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headwater.errors import UserCodeError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

Fold = Callable[[Any, dict[str, Any]], tuple[Any, dict[str, Any] | None]]


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


# ---------------------------------------------------------------- count windows

ORDER = "__k"  # prefix of order columns, which may also be arguments
VALUE = "__v"
NULL = "__n"


class CountWindowProcessor(StatefulProcessor):
    """Cut the rows of each key into windows of so many rows and aggregate each with numpy.

    Input columns: the keys, order columns ``__k0..``, and per aggregate its argument ``__v<i>``
    (NULL replaced) and whether it was NULL ``__n<i>``. Output: the keys and ``__g<i>``.
    """

    def __init__(
        self,
        *,
        columns: tuple[str, ...],
        keys: tuple[str, ...],
        orders: int,
        functions: tuple[str, ...],
        size: int,
        slide: int,
        event_time: bool,
    ) -> None:
        self._columns = columns
        self._keys = keys
        self._orders = orders
        self._functions = functions
        self._size = size
        self._slide = slide
        self._event_time = event_time

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: the rows of unfinished windows and, in event-time order, those that wait."""
        self._handle = handle
        self._open = handle.getValueState("open", "rows binary")
        self._waiting = handle.getListState("waiting", "rows binary") if self._event_time else None

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Cut windows at once, or set rows aside until the watermark has passed them."""
        import pandas as pd

        # PySpark renames columns that begin with an underscore; their order it keeps.
        parts = [part.set_axis(list(self._columns), axis=1).drop(columns=list(self._keys)) for part in rows]
        fresh = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
        if self._waiting is None:
            return self._cut(key, fresh)
        fresh = fresh[fresh[f"{ORDER}0"].notna()]
        if len(fresh):
            self._waiting.appendValue((pickle.dumps(fresh),))
            self._handle.registerTimer(self._deadlines(fresh).min().item())
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Cut windows from the rows that the watermark has passed."""
        import pandas as pd

        assert self._waiting is not None
        passed = timerValues.getCurrentWatermarkInMs()
        parts = [pickle.loads(chunk) for (chunk,) in self._waiting.get()]
        if not parts:
            return iter(())
        rows = pd.concat(parts, ignore_index=True)
        ready = self._deadlines(rows) <= passed
        rest = rows[~ready]
        self._waiting.clear()
        if len(rest):
            self._waiting.appendValue((pickle.dumps(rest),))
            self._handle.registerTimer(self._deadlines(rest).min().item())
        return self._cut(key, rows[ready])

    def _deadlines(self, rows: pd.DataFrame) -> np.ndarray[Any, Any]:
        micros = rows[f"{ORDER}0"].to_numpy(dtype="datetime64[us]").astype("int64")
        return -(-micros // 1000)

    def _cut(self, key: Any, rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
        import pandas as pd

        if not len(rows):
            return iter(())
        ties = sorted(c for c in rows.columns if not c.startswith(ORDER))
        rows = rows.sort_values(
            [f"{ORDER}{i}" for i in range(self._orders)] + ties, kind="stable", na_position="first"
        )
        kept = self._open.get()
        if kept:
            rows = pd.concat([pickle.loads(kept[0]), rows], ignore_index=True)
        count = max(0, (len(rows) - self._size) // self._slide + 1)
        self._open.update((pickle.dumps(rows.iloc[count * self._slide :]),))
        if not count:
            return iter(())
        out: dict[str, Any] = {name: [value] * count for name, value in zip(self._keys, key, strict=True)}
        for i, function in enumerate(self._functions):
            values = rows[f"{VALUE}{i}"].to_numpy()
            nulls = rows[f"{NULL}{i}"].to_numpy(dtype=bool)
            out[f"__g{i}"] = aggregate(
                function, windows(values, self._size, self._slide), windows(nulls, self._size, self._slide)
            )
        return iter([pd.DataFrame(out)])

    def close(self) -> None:
        """Release nothing: the state belongs to Spark."""


def windows(values: np.ndarray[Any, Any], size: int, slide: int) -> np.ndarray[Any, Any]:
    """View a column as its windows, one per row."""
    import numpy as np

    return np.lib.stride_tricks.sliding_window_view(values, size)[::slide]


def aggregate(function: str, values: np.ndarray[Any, Any], nulls: np.ndarray[Any, Any]) -> list[Any]:
    """Aggregate each window as Spark SQL does: NULLs do not count, no value gives NULL."""
    import numpy as np

    present = (~nulls).sum(axis=1)
    if function == "count":
        return [int(n) for n in present]
    if function in ("first", "last"):
        at = 0 if function == "first" else -1
        return [None if n else _plain(v) for v, n in zip(values[:, at], nulls[:, at], strict=True)]
    if values.dtype == object or values.dtype.kind in "Mb" or nulls.any():
        return [
            _one(function, [_plain(v) for v, n in zip(vs, ns, strict=True) if not n])
            for vs, ns in zip(values, nulls, strict=True)
        ]
    if function == "sum" and values.dtype.kind == "i":
        values = values.astype("int64")
        if np.abs(values.astype("float64")).sum(axis=1).max() >= 2.0**63:
            return [_one("sum", [int(v) for v in vs]) for vs in values]
    reductions: dict[str, Any] = {"sum": np.sum, "avg": np.mean, "min": np.min, "max": np.max}
    found: list[Any] = reductions[function](values, axis=1).tolist()
    return found


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and not hasattr(value, "tz_localize") else value


def _one(function: str, values: list[Any]) -> Any:
    if not values:
        return None
    if function == "sum":
        total = sum(values)
        if isinstance(total, int) and abs(total) >= 2**63:
            raise UserCodeError(
                "sum of bigint overflows", where="count_window", hint="sum(cast(v AS decimal(38,0)))"
            )
        return total
    if function == "avg":
        return float(sum(values)) / len(values)
    return min(values) if function == "min" else max(values)
