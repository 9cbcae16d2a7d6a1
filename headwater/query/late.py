"""Late rows, counted in rows of the input.

Spark counts what its operators drop. For most of them these are rows, but an aggregate has combined the rows of a group
before. So a query observes, in front of an aggregate, how many rows there are for each time at which a window
closes. Rows are late if their window closed at the watermark of the batch before, as in Spark. Of a row that belongs to
several windows, the first one counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from headwater.connectors.sparksql import expression
from headwater.dataflow.stateful import WINDOW_TYPE, Aggregate, SessionWindow, TimeWindow
from headwater.dataflow.types import StreamType
from headwater.sql.lexer import quoted

_MOST = 200
"""Times up to which the counts of a batch are exact; beyond, Spark joins neighbouring times."""
_LATE = "late "
_AGGREGATES = ("stateStoreSave", "sessionWindowStateStoreSaveExec")
"""Spark's names of the operators that count groups instead of rows."""


def late_of(operator: str) -> str:
    """Name the observation from which an aggregate's late rows follow."""
    return f"{_LATE}{operator}"


def rows_by_close(operator: Aggregate, type_: StreamType) -> Column:
    """Return the number of an aggregate's input rows for each time at which their first window closes, as JSON."""
    assert type_.event_time is not None
    name = type_.event_time.column
    at = f"unix_micros({quoted(name)})"
    closes = at
    if type_.schema.column(name).type == WINDOW_TYPE:
        closes = f"unix_micros({quoted(name)}.end)"
        at = f"({closes} - 1)"
    match operator.window:
        case TimeWindow(_, size, slide):
            length = _micros(operator, size)
            hop = _micros(operator, slide) if slide else length
            closes = f"{at} - pmod({at} - {length}, {hop}) + {hop}"
        case SessionWindow(_, gap):
            # Each row has its own closing time. Rounding up to a twentieth of the gap leaves few of them; a histogram
            # of many costs more than the aggregate.
            length = _micros(operator, gap)
            step = max(length // 20, 1000)
            closes = f"ceil(({at} + {length}) / {step}) * {step}"
    return F.to_json(F.histogram_numeric(expression(closes), F.lit(_MOST)))


def _micros(operator: Aggregate, duration: str) -> int:
    return round(operator.duration(duration, "duration") * 1_000_000)


def late_rows(progress: Mapping[str, Any], passed: int) -> int:
    """Count the late rows of a batch; ``passed``: the watermark of the batch before, in microseconds."""
    told = {n: row[0][0] for n, row in (progress.get("observedMetrics") or {}).items() if n.startswith(_LATE)}
    dropped = [o for o in progress["stateOperators"] if not told or o["operatorName"] not in _AGGREGATES]
    found = sum(int(o.get("numRowsDroppedByWatermark", 0)) for o in dropped)
    for rows in told.values():
        found += round(sum(one["y"] for one in json.loads(rows or "[]") if one["x"] <= passed))
    return found


def watermark_of(progress: Mapping[str, Any]) -> int:
    """Return the watermark with which a batch was planned, in microseconds; 0 where it has none."""
    text = (progress.get("eventTime") or {}).get("watermark")
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000) if text else 0
