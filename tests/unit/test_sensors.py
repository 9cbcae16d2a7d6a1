"""The sensor model: equal values from any range, labelled windows, the statistics of the real file."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.connectors.sensor_source import (
    SensorReader,
    SensorStreamReader,
    arrow_batches,
    parse_options,
)
from headwater.core.errors import HeadwaterError
from headwater.dataflow.sensors import Readings, SensorModel, anomaly_windows, readings

COLUMNS = ("machine_index", "ts", "temperature", "label", "seq")
NAB = Path(__file__).parents[3] / "shared" / "data" / "nab"
NAB_FILE = "machine_temperature_system_failure.csv"
NAB_FIGURES = {
    "mean": 85.926,
    "sd": 13.747,
    "q01": 32.54,
    "q50": 89.41,
    "q99": 102.98,
    "lag1": 0.9969,
    "normal_mean": 88.359,
    "normal_sd": 9.786,
    "normal_q01": 55.19,
    "normal_q99": 103.03,
    "normal_lag1": 0.9943,
    "label_share": 0.0999,
}
"""Measured on all 22,695 readings of the file; ``normal_*``: outside its labelled windows."""
PINNED = [89.85593684352176, 89.36041981442283, 90.48778472682426]


def figures(values: np.ndarray[Any, Any], label: np.ndarray[Any, Any]) -> dict[str, float]:
    """Return the statistics of one or more series (a column each)."""
    found: dict[str, float] = {"label_share": float(label.mean())}
    for prefix, keep in (("", np.ones_like(label)), ("normal_", ~label)):
        kept = values[keep]
        pairs = keep[1:] & keep[:-1]
        step = (values[1:] - values[:-1])[pairs]
        found |= {
            f"{prefix}mean": float(kept.mean()),
            f"{prefix}sd": float(kept.std()),
            f"{prefix}q01": float(np.quantile(kept, 0.01)),
            f"{prefix}q50": float(np.quantile(kept, 0.5)),
            f"{prefix}q99": float(np.quantile(kept, 0.99)),
            # 1 - half the variogram: the autocorrelation, with no pair across a cut or between columns
            f"{prefix}lag1": float(1 - (step**2).mean() / 2 / kept.var()),
        }
    return found


def machine_of(part: Readings) -> np.ndarray[Any, Any]:
    """Return the machine's name for each reading."""
    return np.array(part.machines, dtype=object)[part.machine_index]


def real_figures() -> dict[str, float]:
    with (NAB / NAB_FILE).open(newline="") as source:
        rows = list(csv.reader(source))[1:]
    ts = np.array([datetime.fromisoformat(row[0]) for row in rows], dtype="datetime64[s]")
    label = np.zeros(len(rows), dtype=bool)
    windows = json.loads((NAB / "combined_windows.json").read_text())[f"realKnownCause/{NAB_FILE}"]
    for start, end in windows:
        label |= (ts >= np.datetime64(start)) & (ts <= np.datetime64(end))
    return figures(np.array([float(row[1]) for row in rows])[:, None], label[:, None])


@given(
    machines=st.integers(1, 5),
    interval_s=st.sampled_from([0.25, 1, 60, 300, 3600, 10_001]),
    cuts=st.lists(st.integers(0, 3_000), min_size=3, max_size=5),
    offset=st.sampled_from([0, 40_000, 10**9]),
    anomaly_every=st.sampled_from([0, 1, 50, 5_674]),
)
def test_a_range_equals_its_parts(
    machines: int, interval_s: float, cuts: list[int], offset: int, anomaly_every: int
) -> None:
    model = SensorModel(
        seed=3,
        machines=machines,
        interval_s=interval_s,
        anomaly_every=anomaly_every,
        anomaly_length=min(20, max(1, anomaly_every)),
    )
    marks = sorted(offset + cut for cut in cuts)
    whole = readings(model, "L1", first=marks[0], last=marks[-1])
    parts = [readings(model, "L1", first=low, last=high) for low, high in pairwise(marks)]
    for column in COLUMNS:
        joined = np.concatenate([getattr(part, column) for part in parts])
        assert np.array_equal(getattr(whole, column), joined), column


@pytest.mark.parametrize("interval_s", [300, 10_001])  # 10,001 s: longer than the distance of some knots
def test_a_range_longer_than_a_chunk_equals_its_single_rows(interval_s: float) -> None:
    model = SensorModel(seed=5, machines=2, interval_s=interval_s)
    whole = readings(model, "L1", first=0, last=150_000)
    for row in (0, 1, 65_535, 65_536, 65_537, 131_071, 149_999):
        one = readings(model, "L1", first=row, last=row + 1)
        assert (one.temperature[0], one.label[0], one.ts[0]) == (
            whole.temperature[row],
            whole.label[row],
            whole.ts[row],
        )


def test_values_stay_those_of_the_first_release() -> None:
    part = readings(SensorModel(seed=1), "L1", first=1_000, last=1_003)
    assert machine_of(part).tolist() == ["L1-m0"] * 3
    assert part.temperature.tolist() == PINNED


def test_columns() -> None:
    model = SensorModel(machines=3, interval_s=0.5, start="2026-01-01T01:00:00+01:00")
    part = readings(model, "site", first=4, last=9)
    assert machine_of(part).tolist() == ["site-m1", "site-m2", "site-m0", "site-m1", "site-m2"]
    assert part.seq.tolist() == [4, 5, 6, 7, 8]
    start = 1_767_225_600_000_000
    assert (part.ts - start).tolist() == [500_000, 500_000, 1_000_000, 1_000_000, 1_000_000]
    assert (part.ts.dtype, part.temperature.dtype, part.label.dtype) == (np.int64, np.float64, np.bool_)
    assert len(readings(model, "site", first=7, last=7)) == 0


def test_seed_location_and_machine_all_matter() -> None:
    model = SensorModel(seed=1, machines=2)
    base = readings(model, "L1", first=0, last=2_000).temperature
    others = [
        readings(replace(model, seed=2), "L1", first=0, last=2_000).temperature,
        readings(model, "L2", first=0, last=2_000).temperature,
    ]
    assert not any(np.any(base == other) for other in others)
    assert not np.any(base[0::2] == base[1::2])


def test_labels_are_the_windows() -> None:
    model = SensorModel(seed=9, machines=2, anomaly_every=300, anomaly_length=30)
    part = readings(model, "L1", first=0, last=6_000)
    windows = anomaly_windows(model, "L1", first=0, last=6_000)
    assert {window.kind for window in windows} == {"shutdown", "overheating", "degradation"}
    inside = np.zeros(len(part), dtype=bool)
    for window in windows:
        mine = (machine_of(part) == window.machine) & (part.ts >= window.start) & (part.ts <= window.end)
        assert mine.sum() == 30
        inside |= mine
    assert np.array_equal(inside, part.label)


def test_windows_of_a_range_are_those_it_touches() -> None:
    model = SensorModel(seed=9, machines=2, anomaly_every=300, anomaly_length=30)
    part = readings(model, "L1", first=0, last=6_000)
    everything = anomaly_windows(model, "L1", first=0, last=6_000)
    for first in range(0, 5_900, 37):
        cut = slice(first, first + 37)
        touched = {
            window
            for window in everything
            for name, ts in zip(machine_of(part)[cut], part.ts[cut], strict=True)
            if name == window.machine and window.start <= ts <= window.end
        }
        found = anomaly_windows(model, "L1", first=first, last=first + 37)
        assert set(found) == touched
        assert list(found) == sorted(found, key=lambda window: (window.start, window.machine))
    assert anomaly_windows(replace(model, anomaly_every=0), "L1", first=0, last=6_000) == ()
    assert anomaly_windows(model, "L1", first=5, last=5) == ()


def test_each_kind_of_anomaly_has_its_shape() -> None:
    model = SensorModel(seed=2, machines=6)
    part = readings(model, "L1", first=0, last=6 * 5_674 * 3)
    calm = readings(replace(model, anomaly_every=0), "L1", first=0, last=6 * 5_674 * 3)
    assert np.array_equal(part.temperature[~part.label], calm.temperature[~part.label])
    for window in anomaly_windows(model, "L1", first=0, last=len(part)):
        inside = (machine_of(part) == window.machine) & (part.ts >= window.start) & (part.ts <= window.end)
        values = part.temperature[inside]
        match window.kind:
            case "shutdown":
                assert values.min() < 20
                assert np.abs(np.diff(values)).max() > 2
            case "overheating":
                assert values[:250].max() > 102
                assert values[300:500].max() < 65
            case "degradation":
                early, middle, late = values[:60].mean(), values[200:260].mean(), values[400:540].mean()
                assert early > middle > late
                assert late < 50


TOLERANCE = {
    "mean": 1.5, "sd": 1.0, "q01": 4.0, "q50": 1.0, "q99": 1.5, "lag1": 0.001,
    "normal_mean": 1.0, "normal_sd": 1.0, "normal_q01": 4.0, "normal_q99": 2.0, "normal_lag1": 0.001,
    "label_share": 0.005,
}  # fmt: skip


def test_figures_are_those_of_the_real_file() -> None:
    part = readings(SensorModel(seed=7, machines=20), "L1", first=0, last=20 * 22_695)
    found = figures(part.temperature.reshape(-1, 20), part.label.reshape(-1, 20))
    wanted = real_figures() if NAB.is_dir() else NAB_FIGURES
    for name, tolerance in TOLERANCE.items():
        assert found[name] == pytest.approx(wanted[name], abs=tolerance), name


@pytest.mark.skipif(not NAB.is_dir(), reason="the real file is not beside this checkout")
def test_stored_figures_are_measured_ones() -> None:
    measured = real_figures()
    for name, figure in NAB_FIGURES.items():
        assert figure == pytest.approx(measured[name], abs=0.006 if "lag1" not in name else 0.0002), name


def test_no_step_of_python_is_taken_for_each_reading() -> None:
    def steps(count: int) -> int:
        taken = 0

        def tell(frame: object, event: str, arg: object) -> None:
            nonlocal taken
            taken += 1

        sys.setprofile(tell)
        try:
            readings(SensorModel(seed=1), "L1", first=0, last=count)
        finally:
            sys.setprofile(None)
        return taken

    steps(1)  # loads the imports
    assert steps(2_000_000) < 50_000


@pytest.mark.parametrize(
    "wrong",
    [{"interval_s": 0}, {"machines": 0}, {"anomaly_every": 5}, {"anomaly_every": -1}, {"start": "soon"}],
)
def test_an_impossible_model_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HeadwaterError, match=next(iter(wrong))):
        SensorModel(**wrong)


def test_an_impossible_range_is_refused() -> None:
    with pytest.raises(HeadwaterError, match="first"):
        readings(SensorModel(), "L1", first=-1, last=5)
    with pytest.raises(HeadwaterError):
        anomaly_windows(SensorModel(), "L1", first=5, last=4)


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def stream(clock: Clock, **options: object) -> SensorStreamReader:
    texts = {name: str(value) for name, value in options.items()}
    return SensorStreamReader(parse_options({"location": "L1", **texts}), clock=clock)


def test_paced_source_serves_what_is_due_and_catches_up_after_a_restart() -> None:
    clock = Clock(1_000.0)
    reader = stream(clock, rows_per_second=10, max_rows_per_batch=25)
    limit = reader.getDefaultReadLimit()
    begin = reader.initialOffset()
    assert begin == {"row": 0, "t0": 1_000_000}
    assert reader.latestOffset(begin, limit) == begin
    clock.now += 1.25
    first = reader.latestOffset(begin, limit)
    assert first == {"row": 12, "t0": 1_000_000}
    clock.now += 10
    again = stream(clock, rows_per_second=10, max_rows_per_batch=25)
    assert again.latestOffset(first, limit) == {"row": 37, "t0": 1_000_000}
    assert again.reportLatestOffset() == {"row": 112, "t0": 1_000_000}
    clock.now -= 11
    assert again.latestOffset(first, limit) == first


def test_unpaced_source_is_bounded_by_admission_and_end() -> None:
    reader = stream(Clock(5.0), rows=250, max_rows_per_batch=100)
    rows, offset = [], reader.initialOffset()
    for _ in range(5):
        offset = reader.latestOffset(offset, reader.getDefaultReadLimit())
        rows.append(offset["row"])
    assert rows == [100, 200, 250, 250, 250]
    assert reader.partitions(offset, offset) == []


def test_available_now_ends_even_without_an_end() -> None:
    clock = Clock(5.0)
    endless = stream(clock, max_rows_per_batch=100)
    endless.prepareForTriggerAvailableNow()
    offset = endless.latestOffset(endless.initialOffset(), endless.getDefaultReadLimit())
    assert offset["row"] == 100
    assert endless.latestOffset(offset, endless.getDefaultReadLimit()) == offset
    paced = stream(clock, rows_per_second=10)
    paced.prepareForTriggerAvailableNow()
    clock.now += 60
    assert paced.latestOffset({"row": 0, "t0": 0}, paced.getDefaultReadLimit())["row"] == 50


def test_arrow_batches_hold_the_readings() -> None:
    options = parse_options({"location": "L1", "machines": "2", "Seed": "4", "rows": "70000"})
    batches = list(SensorReader(options).read(SensorReader(options).partitions()[0]))
    assert len(batches) == 2
    assert [field.name for field in batches[0].schema] == ["machine", "ts", "temperature", "label", "seq"]
    model = SensorModel(seed=4, machines=2)
    wanted = readings(model, "L1", first=65_536, last=70_000)
    assert batches[1]["temperature"].to_pylist() == wanted.temperature.tolist()
    assert batches[1]["machine"].to_pylist() == machine_of(wanted).tolist()
    assert list(arrow_batches(options, first=3, last=3)) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "location"),
        ({"location": "L1", "rate": "5"}, "rate"),
        ({"location": "L1", "seed": "one"}, "seed"),
        ({"location": "L1", "rows": "-1"}, "rows"),
        ({"location": "L1", "rows_per_second": "-1"}, "rows_per_second"),
        ({"location": "L1", "rows_per_second": "nan"}, "rows_per_second"),
        ({"location": "L1", "max_rows_per_batch": "0"}, "max_rows_per_batch"),
        ({"location": "L1", "machines": "0"}, "machines"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(HeadwaterError, match=named):
        parse_options(options)


def test_a_batch_needs_an_end() -> None:
    with pytest.raises(HeadwaterError, match="without end"):
        SensorReader(parse_options({"location": "L1"}))
