"""Folds over sensor readings: the stateful tasks of RIoTBench.

Each is a ``scan`` over the readings of a key, by default of a device, its observation, and its location where the
stream has a location column, in event-time order: so each runs in any layer.
Readings are rows with a column ``value``; the output rows have another value, and some have more columns.
Formulas and parameters are those of RIoTBench (Shukla, Chaturvedi, Simmhan 2017).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any

from headwater.core.errors import DataflowError
from headwater.dataflow.stream import Stream
from headwater.iot import hyperloglog
from headwater.sql.lexer import quoted

KEYS = ("id", "obs")
Row = dict[str, Any]
Step = Callable[[Any, Row], tuple[Any, Row | None]]


def interpolate(
    readings: Stream, *, window: int = 5, keys: Sequence[str] | None = None, value: str = "value"
) -> Stream:
    """Replace a NULL by the mean of the last ``window`` non-NULL readings; 0: leave it NULL."""
    at_least("window", window, 0)

    def interpolated(last: list[float], row: Row) -> tuple[list[float], Row]:
        found = row[value]
        if found is not None:
            return [*last, found][-window:] if window else [], row
        return last, {**row, value: math.fsum(last) / len(last) if last else None}

    return _scan(readings, interpolated, readings.schema.text, keys, [])


def kalman(
    readings: Stream,
    *,
    process_noise: float = 0.125,
    sensor_noise: float = 0.32,
    estimated_error: float = 30.0,
    keys: Sequence[str] | None = None,
    value: str = "value",
) -> Stream:
    """Replace a reading by a scalar Kalman filter's estimate, which starts at 0 with ``estimated_error``.

    ``p' = p + process_noise; k = p' / (p' + sensor_noise); x += k (z - x); p = (1 - k) p'``. NULL stays NULL.
    """

    def filtered(state: list[float], row: Row) -> tuple[list[float], Row]:
        measured = row[value]
        if measured is None:
            return state, row
        estimate, error = state
        error += process_noise
        gain = error / (error + sensor_noise)
        estimate += gain * (measured - estimate)
        return [estimate, (1 - gain) * error], {**row, value: estimate}

    return _scan(readings, filtered, readings.schema.text, keys, [0.0, estimated_error])


def block_average(
    readings: Stream, *, size: int = 10, keys: Sequence[str] | None = None, value: str = "value"
) -> Stream:
    """Return one row for ``size`` readings: the last of them, with their mean. NULL does not count."""
    at_least("size", size, 1)

    def averaged(block: list[float], row: Row) -> tuple[list[float], Row | None]:
        if row[value] is None:
            return block, None
        block = [*block, row[value]]
        if len(block) < size:
            return block, None
        return [], {**row, value: math.fsum(block) / size}

    return _scan(readings, averaged, readings.schema.text, keys, [])


def sliding_regression(
    readings: Stream,
    *,
    train: int = 10,
    predict: int = 10,
    keys: Sequence[str] | None = None,
    value: str = "value",
    into: str = "forecast",
) -> Stream:
    """Predict the next ``predict`` readings by a straight line through the last ``train``: an array.

    The first row is the reading that completes the first ``train``. NULL does not count.
    """
    at_least("train", train, 2)
    at_least("predict", predict, 1)
    _is_new(readings, into)
    middle = (train - 1) / 2
    spread = math.fsum((n - middle) ** 2 for n in range(train))

    def forecast(last: list[float], row: Row) -> tuple[list[float], Row | None]:
        if row[value] is None:
            return last, None
        last = [*last, row[value]][-train:]
        if len(last) < train:
            return last, None
        mean = math.fsum(last) / train
        slope = math.fsum((n - middle) * (y - mean) for n, y in enumerate(last)) / spread
        return last, {**row, into: [mean + slope * (train + n - middle) for n in range(predict)]}

    return _scan(readings, forecast, f"{readings.schema.text}, {quoted(into)} array<double>", keys, [])


def distinct_count(
    readings: Stream,
    *,
    of: str = "id",
    buckets: int = 10,
    keys: Sequence[str] | None = None,
    into: str = "distinct",
) -> Stream:
    """Estimate after each row the number of distinct values of ``of`` so far, in 2^``buckets`` registers.

    By default of an observation, and a location.

    HyperLogLog (Flajolet et al. 2007) with the estimate of Ertl 2017: the standard error is 1.04 / sqrt(2^``buckets``)
    of the number, for few and for many; with ``buckets`` below 7, up to a sixth more.
    """
    if not 4 <= buckets <= 16:
        raise DataflowError(f"buckets={buckets}", where="distinct_count", hint="give 4 to 16, the exponent of two")
    _is_new(readings, into)

    def counted(state: str, row: Row) -> tuple[str, Row]:
        registers = bytearray(base64.b64decode(state)) if state else bytearray(1 << buckets)
        if row[of] is not None:
            hyperloglog.observe(registers, str(row[of]))
        return base64.b64encode(registers).decode(), {**row, into: hyperloglog.estimate(registers)}

    keys = keys_of(readings, keys, ("obs",))
    return _scan(readings, counted, f"{readings.schema.text}, {quoted(into)} double", keys, "")


def second_moment(
    readings: Stream,
    *,
    tracked: int = 10,
    keys: Sequence[str] | None = None,
    value: str = "value",
    into: str = "moment",
) -> Stream:
    """Estimate after each reading the second moment of the values' frequencies: the sum of their squares.

    Alon, Matias, Szegedy 1996: the mean of ``n (2 r - 1)`` over ``tracked`` readings drawn at random from all
    ``n``, each seen ``r`` times since. The draw depends only on ``n``, so it is the same in every run.
    """
    at_least("tracked", tracked, 1)
    _is_new(readings, into)

    def moment(state: dict[str, Any], row: Row) -> tuple[dict[str, Any], Row]:
        if row[value] is None:
            return state, {**row, into: None}
        count, item = state["n"] + 1, repr(row[value])
        sample = [[kept, seen + (kept == item)] for kept, seen in state["sample"]]
        if len(sample) < tracked:
            sample.append([item, 1])
        elif (drawn := _drawn(count)) < tracked:
            sample[drawn] = [item, 1]
        estimate = count * math.fsum(2 * seen - 1 for _, seen in sample) / len(sample)
        return {"n": count, "sample": sample}, {**row, into: estimate}

    return _scan(readings, moment, f"{readings.schema.text}, {quoted(into)} double", keys, {"n": 0, "sample": []})


def accumulate(
    readings: Stream, *, size: int = 20, keys: Sequence[str] | None = None, value: str = "value", time: str = "ts"
) -> Stream:
    """Return one row for ``size`` readings: ``ts`` of the last and ``series``: a label, time and value each.

    By default the readings of a location are gathered together, those of one time in the order of their labels.

    A label consists of ``id`` and ``obs``, if these columns exist.
    """
    at_least("size", size, 1)
    label = [c for c in KEYS if c in readings.columns]
    keys = keys_of(readings, keys, ())

    def gathered(rows: list[list[Any]], row: Row) -> tuple[list[list[Any]], Row | None]:
        at = row[time]
        moment = at.replace(tzinfo=UTC).timestamp()  # times of rows are in UTC
        rows = [*rows, [" ".join(str(row[c]) for c in label), moment, row[value]]]
        if len(rows) < size:
            return rows, None
        series = [{"label": name, "at": second, "value": found} for name, second, found in rows]
        return [], {**{k: row[k] for k in keys}, time: at, "series": series}

    kept = ", ".join(f"{quoted(k)} {readings.schema.column(k).type.text}" for k in keys)
    schema = f"{kept + ', ' if kept else ''}{quoted(time)} timestamp, {SERIES}"
    return _scan(readings, gathered, schema, keys, [], then_by=label)


SERIES = "series array<struct<label:string,at:double,value:double>>"


def _drawn(count: int) -> int:
    """Return a pseudo-random number below ``count``, always the same (splitmix64)."""
    mask = (1 << 64) - 1
    z = (count * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) % count


def keys_of(readings: Stream, keys: Sequence[str] | None, usual: Sequence[str] = KEYS) -> tuple[str, ...]:
    """Return the given keys, else the usual ones with the location columns: no zone then needs the rows of another."""
    return tuple(keys) if keys is not None else (*sorted(readings.shape.located_by), *usual)


def _scan(
    readings: Stream,
    step: Step,
    schema: str,
    keys: Sequence[str] | None,
    initial: Any,
    *,
    then_by: Sequence[str] = (),
) -> Stream:
    time = readings.shape.event_time
    if time is None:
        raise DataflowError(
            "the readings have no event time", where=step.__name__, hint=".with_watermark('ts', '10 seconds')"
        )
    keys = keys_of(readings, keys)
    order = (time.column, *then_by)
    return readings.scan(step, schema, keys=keys, order_by=order, initial=initial, keeps_keys=True)


def at_least(name: str, given: int, least: int) -> None:
    if given < least:
        raise DataflowError(f"{name}={given}", where="iot", hint=f"give at least {least}")


def _is_new(readings: Stream, column: str) -> None:
    if column.lower() in {c.lower() for c in readings.columns}:
        raise DataflowError(
            f"column '{column}' already exists", where="iot", hint="choose another name with into='...'"
        )
