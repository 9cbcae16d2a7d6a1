"""Window makers: functions from the rows of a key, in order, to windows, each a list of rows. Pure.

They run inside a scan, whose state holds the rows of open windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from headwater.core.quantity import parse_duration
from headwater.dataflow.arguments import checked
from headwater.dataflow.settings import Condition, Duration, text_of
from headwater.sql.schema import DataType, MapType, has_part

WindowRow: TypeAlias = dict[str, Any]
WindowStep: TypeAlias = Callable[[Any, WindowRow], tuple[Any, list[list[WindowRow]]]]
"""From a state and the next row to the next state and the windows that closed."""


@dataclass(frozen=True)
class WindowMaker:
    """Windows by a function of one's own: ``function(state, row) -> (state, windows)``.

    ``row`` is a dict, ``windows`` the windows that closed with it: lists of rows. The state starts as ``initial`` and
    holds JSON values and rows.
    """

    function: Callable[..., Any]
    initial: Any = None


@dataclass(frozen=True)
class Complete:
    """Windows that end with the row for which a condition is true."""

    until: str


@dataclass(frozen=True)
class ChopTime:
    """Windows of a time one after the other, from a key's first row; ``empty``: also those without rows."""

    size: str
    empty: bool = False


@dataclass(frozen=True)
class SlidingTime:
    """For each row the rows from it on, within a time."""

    size: str


@dataclass(frozen=True)
class RowWindows:
    """Windows of a number of rows, a new one every ``slide`` rows."""

    size: int
    slide: int


Maker: TypeAlias = WindowMaker | Complete | ChopTime | SlidingTime


@checked
def complete(until: Condition) -> Complete:
    """Windows that end with a row for which the condition is true: ``complete("status = 'done'")``."""
    return Complete(text_of(until))


@checked
def chop_time(size: Duration, *, empty: bool = False) -> ChopTime:
    """Windows of ``size`` one after the other, the first one from the time of a key's first row.

    A window closes with the first row after its end. ``empty``: windows without rows are windows too.
    """
    return ChopTime(size, empty)


@checked
def sliding_time(size: Duration) -> SlidingTime:
    """For each row, the window of the rows from it on whose time is less than ``size`` later.

    It closes with the first row after its end.
    """
    return SlidingTime(size)


def step_of(maker: Maker | RowWindows, column: str) -> tuple[WindowStep, Any]:
    """Return a maker's step and first state; ``column``: that of the time, or of a condition's value."""
    match maker:
        case WindowMaker(function, initial):
            return function, initial
        case Complete():
            return _complete(column), {"rows": []}
        case ChopTime(size, empty):
            return _chop_time(column, _micros(size), empty), {"rows": [], "start": None}
        case SlidingTime(size):
            return _sliding_time(column, _micros(size)), {"rows": []}
        case RowWindows(size, slide):
            return _counting(size, slide), {"rows": []}


def window_fold(
    step: WindowStep, keys: tuple[str, ...], items: str, each: Callable[[list[WindowRow]], Iterable[Any]] | None
) -> Callable[[Any, WindowRow], tuple[Any, WindowRow | None]]:
    """Return a scan's function that outputs the keys of a row and, as ``items``, the results of closed windows.

    ``each`` gives a window's results, which are rows; without it the windows themselves are the results.
    """

    def fold(state: Any, row: WindowRow) -> tuple[Any, WindowRow | None]:
        kept, closed = step(state["state"], row)
        # Windows may share rows, and lists, with the state, which a function may change later.
        windows = [[dict(r) for r in window] for window in closed]
        found = windows if each is None else [_row(r) for window in windows for r in each(window)]
        return {"state": kept}, {**{k: row[k] for k in keys}, items: found} if found else None

    return fold


def has_map(type_: DataType) -> bool:
    """Return whether values of a type contain maps, whose keys a state in JSON would make text."""
    return has_part(type_, lambda part: isinstance(part, MapType))


def _row(value: Any) -> WindowRow:
    if not isinstance(value, dict):
        raise TypeError(f"apply() is given {type(value).__name__} as an output row, not a dict")
    return value


def _micros(size: str) -> int:
    return round(parse_duration(size) * 1_000_000)


def _complete(column: str) -> WindowStep:
    def complete(state: Any, row: WindowRow) -> tuple[Any, list[list[WindowRow]]]:
        rows = state["rows"]
        rows.append({name: value for name, value in row.items() if name != column})
        return ({"rows": []}, [rows]) if row[column] else (state, [])

    return complete


def _counting(size: int, slide: int) -> WindowStep:
    def counting(state: Any, row: WindowRow) -> tuple[Any, list[list[WindowRow]]]:
        rows = state["rows"]
        rows.append(row)
        return ({"rows": rows[slide:]}, [rows]) if len(rows) == size else (state, [])

    return counting


def _chop_time(column: str, micros: int, empty: bool) -> WindowStep:
    def chop_time(state: Any, row: WindowRow) -> tuple[Any, list[list[WindowRow]]]:
        rows, start, size = state["rows"], state["start"], timedelta(microseconds=micros)
        ended = 0 if start is None else (row[column] - start) // size
        windows = [rows] if ended and (rows or empty) else []
        if empty:
            windows += [[] for _ in range(ended - 1)]
        kept = [] if ended else rows
        kept.append(row)
        return {"rows": kept, "start": row[column] if start is None else start + ended * size}, windows

    return chop_time


def _sliding_time(column: str, micros: int) -> WindowStep:
    def sliding_time(state: Any, row: WindowRow) -> tuple[Any, list[list[WindowRow]]]:
        rows, end = state["rows"], row[column] - timedelta(microseconds=micros)
        ended = next((n for n, one in enumerate(rows) if one[column] > end), len(rows))
        windows = [rows[n:] for n in range(ended)]
        del rows[:ended]
        rows.append(row)
        return state, windows

    return sliding_time
