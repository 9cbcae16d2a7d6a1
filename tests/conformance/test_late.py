"""Late rows are counted in rows of the input, by the time at which Spark closes the first window of a row."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from headwater.dataflow.stateful import WINDOW_TYPE, Aggregate, SessionWindow, TimeWindow
from headwater.dataflow.types import EventTime, StreamType
from headwater.query.late import late_of, late_rows, rows_by_close, watermark_of
from headwater.sql.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

TIMES = ["1969-12-31 23:59:07", "2026-01-31 10:00:00", "2026-01-31 10:00:00.000001", "2026-01-31 10:09:59.999999"]
WINDOWS = [
    (TimeWindow("ts", "10 minutes"), "window(ts, '10 minutes')"),
    (TimeWindow("ts", "10 minutes", "3 minutes"), "window(ts, '10 minutes', '3 minutes')"),
    (SessionWindow("ts", "5 minutes"), "session_window(ts, '5 minutes')"),
]


def aggregate(window: TimeWindow | SessionWindow | None) -> Aggregate:
    return Aggregate(id="a", window=window, aggregates=(("n", "count(*)"),))


def counted(text: str) -> dict[int, int]:
    found: Counter[int] = Counter()
    for one in json.loads(text):  # tasks may have one time each
        found[one["x"]] += round(one["y"])
    return dict(found)


@pytest.mark.parametrize(("window", "of_spark"), WINDOWS)
def test_rows_by_the_end_of_their_first_window(spark: SparkSession, window: Any, of_spark: str) -> None:
    frame = spark.createDataFrame([(n, t) for n, t in enumerate(TIMES)], "id int, t string")
    frame = frame.selectExpr("id", "CAST(t AS timestamp) AS ts")
    type_ = StreamType(Schema.parse("id int, ts timestamp"), EventTime("ts", 0.0))
    (row,) = frame.agg(rows_by_close(aggregate(window), type_)).collect()
    ends = (
        frame.groupBy(F.expr(of_spark).alias("w"), "id").count().groupBy("id").agg(F.min(F.expr("unix_micros(w.end)")))
    )
    step = 15_000_000 if isinstance(window, SessionWindow) else 1  # sessions: rounded up to a twentieth of the gap
    assert counted(row[0]) == dict(Counter(-(-end // step) * step for _, end in ends.collect()))


def test_rows_of_windows_by_the_end_of_the_wider_one(spark: SparkSession) -> None:
    windows = spark.sql("SELECT TIMESTAMP'2026-01-31 09:59:00Z' AS a, TIMESTAMP'2026-01-31 10:00:00Z' AS b")
    frame = windows.selectExpr("struct(a AS start, b AS end) AS window")
    type_ = StreamType(Schema.parse(f"window {WINDOW_TYPE.text}"), EventTime("window", 0.0))
    end = round(datetime(2026, 1, 31, 10, tzinfo=UTC).timestamp() * 1_000_000)
    for window in (TimeWindow("window", "1 hour"), None):  # the last microsecond of a window is inside the wider one
        (row,) = frame.agg(rows_by_close(aggregate(window), type_)).collect()
        assert counted(row[0]) == {end: 1}


def test_late_rows_of_a_batch() -> None:
    operators = [
        {"operatorName": "stateStoreSave", "numRowsDroppedByWatermark": 1},
        {"operatorName": "dedupeWithinWatermark", "numRowsDroppedByWatermark": 3},
    ]
    told = json.dumps([{"x": 5, "y": 2.0}, {"x": 6, "y": 4.0}, {"x": 7, "y": 8.0}])
    progress = {
        "stateOperators": operators,
        "observedMetrics": {late_of("a"): [[told], {}]},
        "eventTime": {"watermark": "1970-01-01T00:00:02.000Z"},
    }
    assert [late_rows(progress, passed) for passed in (4, 6, 9)] == [3, 9, 17]
    assert late_rows({"stateOperators": operators}, 6) == 4, "without an observation Spark's count is taken"
    assert (watermark_of(progress), watermark_of({"eventTime": {}})) == (2_000_000, 0)
