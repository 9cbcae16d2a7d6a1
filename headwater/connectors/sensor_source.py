"""``headwater_sensors``: the sensor model of ``headwater.dataflow.sensors`` as a Spark data source.

Streaming: the offset is ``{"row": n, "t0": ms}``. With ``rows_per_second`` above 0, row ``n`` is due
``n / rows_per_second`` seconds after ``t0``, the instant of the query's very first start, which the offset
carries: after a restart the query continues at its row, and the rows due meanwhile are a backlog, as with real
sensors. With 0 every batch takes as many rows as ``max_rows_per_batch`` admits. ``rows`` ends the stream.
Batch: the same rows, ``rows`` required.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headwater.core.errors import HeadwaterError
from headwater.dataflow.sensors import SensorModel

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME = "headwater_sensors"
SCHEMA = "machine string, ts timestamp, temperature double, label boolean, seq bigint"
DEFAULT_MAX_ROWS = 100_000
_ROWS_PER_PARTITION = 1_000_000
_ROWS_PER_ARROW_BATCH = 65_536

_Number = TypeVar("_Number", int, float)
_Offset = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class SensorOptions:
    """The source's options: model, location, rows, and their rate."""

    model: SensorModel
    location: str
    rows: int | None = None
    rows_per_second: float = 0.0
    max_rows_per_batch: int = DEFAULT_MAX_ROWS


_MODEL_OPTIONS = ("seed", "machines", "interval", "start", "anomaly_every", "anomaly_length")
_OPTIONS = ("location", *_MODEL_OPTIONS, "rows", "rows_per_second", "max_rows_per_batch")


def parse_options(given: Mapping[str, str]) -> SensorOptions:
    """Parse the options from Spark's strings; raise on unknown names, missing or impossible values."""
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise _wrong(f"unknown option {unknown[0]!r}", hint=f"known are {', '.join(_OPTIONS)}")
    location = options.get("location", "")
    if not location:
        raise _wrong("no location given", hint='add .option("location", "L1")')
    default = SensorModel()
    model = SensorModel(
        seed=_number(options, "seed", default=default.seed, read=int),
        machines=_number(options, "machines", default=default.machines, read=int),
        interval_s=_number(options, "interval", default=float(default.interval_s), read=float),
        start=options.get("start", default.start),
        anomaly_every=_number(options, "anomaly_every", default=default.anomaly_every, read=int),
        anomaly_length=_number(options, "anomaly_length", default=default.anomaly_length, read=int),
    )
    rows = _number(options, "rows", default=-1, read=int) if "rows" in options else None
    rows_per_second = _number(options, "rows_per_second", default=0.0, read=float)
    max_rows = _number(options, "max_rows_per_batch", default=DEFAULT_MAX_ROWS, read=int)
    if rows is not None and rows < 0:
        raise _wrong(f"rows is {rows}", hint="give 0 or more, or leave it out for a stream without end")
    if not 0 <= rows_per_second < float("inf"):
        raise _wrong(f"rows_per_second is {rows_per_second}", hint="give 0 for full speed, or a positive rate")
    if max_rows < 1:
        raise _wrong(f"max_rows_per_batch is {max_rows}", hint="give at least 1")
    return SensorOptions(
        model=model,
        location=location,
        rows=rows,
        rows_per_second=rows_per_second,
        max_rows_per_batch=max_rows,
    )


def _number(options: Mapping[str, str], name: str, *, default: _Number, read: Callable[[str], _Number]) -> _Number:
    if name not in options:
        return default
    try:
        return read(options[name])
    except ValueError as error:
        raise _wrong(f"{name} is {options[name]!r}", hint=f"give a number, e.g. {default}") from error


def _wrong(what: str, *, hint: str) -> HeadwaterError:
    return HeadwaterError(what, where=f"source {NAME}", hint=hint)


class SensorDataSource(DataSource):
    """Read the sensors of one location, as a stream or as a batch."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return NAME

    def schema(self) -> str:
        """Return the fixed schema."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        return SensorReader(parse_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the streaming reader."""
        return SensorStreamReader(parse_options(self.options))


@dataclass
class RowRange(InputPartition):
    """Rows [first, last) of the location: one Spark task."""

    first: int
    last: int


class SensorReader(DataSourceReader):
    """Read rows [0, rows) in one go."""

    def __init__(self, options: SensorOptions) -> None:
        if options.rows is None:
            raise _wrong("a batch read of a stream without end", hint='add .option("rows", ...)')
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """Split the rows into tasks."""
        return _ranges(0, self.options.rows or 0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        assert isinstance(partition, RowRange)
        return arrow_batches(self.options, first=partition.first, last=partition.last)


class SensorStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read rows as they fall due, or as fast as they are admitted."""

    def __init__(self, options: SensorOptions, *, clock: Callable[[], float] = time.time) -> None:
        self.options = options
        self._clock = clock
        self._frozen_at: int | None = None  # AvailableNow: the instant (ms) that ends the input
        self._frozen_row: int | None = None  # and the row, for a stream without pace
        self._seen: _Offset | None = None

    def initialOffset(self) -> _Offset:
        """Return row 0, anchored at this instant."""
        return {"row": 0, "t0": self._now_ms()}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the admission limit of one batch."""
        return ReadMaxRows(self.options.max_rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the input; a stream without pace and end then gives one batch more."""
        self._frozen_at = self._now_ms()

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:
        """Return the offset up to which the next batch may read."""
        row = start["row"]
        available = self._available(start)
        if available is None:  # neither pace nor end: only the admission bounds a batch
            available = row + self.options.max_rows_per_batch
            if self._frozen_at is not None:
                self._frozen_row = available if self._frozen_row is None else self._frozen_row
                available = self._frozen_row
        if isinstance(limit, ReadMaxRows):
            available = min(available, row + limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            available = min(available, row + self.options.max_rows_per_batch)
        end = {"row": max(row, available), "t0": start["t0"]}
        self._seen = end
        return end

    def reportLatestOffset(self) -> _Offset | None:
        """Return the newest offset due by now, so that Spark can report the lag."""
        if self._seen is None:
            return None
        available = self._available(self._seen)
        return None if available is None else {"row": max(available, self._seen["row"]), "t0": self._seen["t0"]}

    def partitions(self, start: _Offset, end: _Offset) -> list[InputPartition]:
        """Split the rows of one batch into tasks."""
        return _ranges(start["row"], end["row"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        assert isinstance(partition, RowRange)
        return arrow_batches(self.options, first=partition.first, last=partition.last)

    def _available(self, offset: _Offset) -> int | None:
        """Return the row up to which readings exist now; None when only admission bounds them."""
        bounds = [] if self.options.rows is None else [self.options.rows]
        if self.options.rows_per_second:
            now = self._now_ms() if self._frozen_at is None else self._frozen_at
            bounds.append(int((now - offset["t0"]) / 1000 * self.options.rows_per_second))
        return min(bounds) if bounds else None

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _ranges(first: int, last: int) -> list[InputPartition]:
    return [RowRange(low, min(low + _ROWS_PER_PARTITION, last)) for low in range(first, last, _ROWS_PER_PARTITION)]


def arrow_batches(options: SensorOptions, *, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Yield rows [first, last) of the location in Arrow batches of the source's schema."""
    import pyarrow as pa

    from headwater.dataflow.sensors import readings

    schema = pa.schema(
        [
            ("machine", pa.string()),
            ("ts", pa.timestamp("us", tz="UTC")),
            ("temperature", pa.float64()),
            ("label", pa.bool_()),
            ("seq", pa.int64()),
        ]
    )
    for low in range(first, last, _ROWS_PER_ARROW_BATCH):
        part = readings(options.model, options.location, first=low, last=min(low + _ROWS_PER_ARROW_BATCH, last))
        columns = [
            pa.array(part.machines).take(pa.array(part.machine_index)),
            pa.array(part.ts, pa.timestamp("us", tz="UTC")),
            pa.array(part.temperature),
            pa.array(part.label),
            pa.array(part.seq),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
