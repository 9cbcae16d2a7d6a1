"""Tasks over readings: the results of their folds for known values, and models as expressions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest

import headwater as hw
from headwater import iot
from headwater.continuum.model import Continuum
from headwater.core.errors import DataflowError
from headwater.dataflow.stream import Stream
from headwater.iot import hyperloglog
from headwater.plan.build import build
from headwater.query.scan import order_key

BEGIN = datetime(2026, 1, 1)
TWO_LOCATIONS = """
name: two
layers: [edge, site, cloud]
zones:
  C: {layer: cloud}
  S1: {layer: site, parent: C}
  S2: {layer: site, parent: C}
  E1: {layer: edge, parent: S1, locations: [L1]}
  E2: {layer: edge, parent: S2, locations: [L2]}
"""


def readings() -> Stream:
    rows = hw.flow("f", locations=["here"]).read.json("/in", "ts timestamp, id string, obs string, value double")
    return rows.with_watermark("ts", "10 seconds")


def folded(make: Callable[[Stream], Stream], values: list[Any], **more: Any) -> list[dict[str, Any]]:
    """Fold readings of one device, one second apart; return the resulting rows."""
    import json

    operator: Any = make(readings()).operator
    step, state, found = operator.function.load(), json.loads(operator.initial), []
    for n, value in enumerate(values):
        row = {"ts": BEGIN + timedelta(seconds=n), "id": "d", "obs": "t", "value": value, **more}
        state, out = step(json.loads(json.dumps(state)), row)
        if out is not None:
            found.append(out)
    return found


def test_a_gap_is_filled_with_the_mean_of_the_last() -> None:
    found = folded(lambda r: iot.interpolate(r, window=3), [None, 1.0, 2.0, 3.0, 4.0, None, None, 10.0, None])
    assert [row["value"] for row in found] == [
        None,
        1.0,
        2.0,
        3.0,
        4.0,
        3.0,
        3.0,
        10.0,
        pytest.approx(17 / 3),
    ]
    assert folded(lambda r: iot.interpolate(r, window=0), [1.0, None])[-1]["value"] is None


def test_kalman_by_hand() -> None:
    found = folded(lambda r: iot.kalman(r), [10.0, None, 12.0])
    gain = 30.125 / (30.125 + 0.32)
    first = gain * 10.0
    error = (1 - gain) * 30.125 + 0.125
    second = first + error / (error + 0.32) * (12.0 - first)
    assert [row["value"] for row in found] == [pytest.approx(first), None, pytest.approx(second)]


def test_block_average() -> None:
    found = folded(lambda r: iot.block_average(r, size=4), [1.0, 2.0, None, 3.0, 6.0, 7.0])
    assert [(row["value"], row["ts"]) for row in found] == [(3.0, BEGIN + timedelta(seconds=4))]


def test_a_straight_line_goes_on() -> None:
    found = folded(lambda r: iot.sliding_regression(r, train=4, predict=3), [2.0 * n + 1 for n in range(6)])
    assert [row["forecast"] for row in found] == [
        pytest.approx([9, 11, 13]), pytest.approx([11, 13, 15]), pytest.approx([13, 15, 17]),
    ]  # fmt: skip


def test_how_many_are_different() -> None:
    operator: Any = iot.distinct_count(readings(), of="id").operator
    step, state, out = operator.function.load(), "", {"distinct": 0.0}
    for n in range(300):
        state, out = step(state, {"id": f"device-{n}"})
    assert out["distinct"] == pytest.approx(300, rel=0.1)
    before = state
    for n in range(300):
        state, out = step(state, {"id": f"device-{n}"})
    assert state == before, "who was counted is not counted again"
    for n in range(3_000):
        state, out = step(state, {"id": f"other-{n}"})
    assert out["distinct"] == pytest.approx(3_300, rel=0.1)


SIZES = (1, 3, 10, 100, 300, 1_000, 1_800, 2_500, 2_700, 3_000, 4_000, 6_000, 10_000, 30_000, 100_000)


@pytest.mark.parametrize(("bits", "sizes", "seeds"), [(10, SIZES, 100), (4, SIZES[:10], 150), (10, (10**6,), 25)])
def test_the_number_of_different_values_is_within_its_stated_error(
    bits: int, sizes: tuple[int, ...], seeds: int
) -> None:
    """At each size, over many seeds: the root mean square of relative errors, and their mean, against exact counts."""
    m, errors = 1 << bits, np.zeros((seeds, len(sizes)))
    for seed in range(seeds):
        drawn, registers, count = np.random.default_rng(seed), np.zeros(m, dtype=np.uint8), 0
        for at, size in enumerate(sizes):
            # Hashes as uniform numbers: the first 1 of the upper 53 bits, exact as doubles, is rank enough.
            hashed = drawn.integers(0, 1 << 53, size - count)
            ranks = (53 + 1 - np.frexp(hashed.astype(float))[1]).astype(np.uint8)
            np.maximum.at(registers, drawn.integers(0, m, size - count), ranks)
            count = size
            errors[seed, at] = hyperloglog.estimate(registers.tobytes()) / size - 1
    stated = 1.04 / math.sqrt(m) * (7 / 6 if bits == 4 else 1)
    chance = 3 / math.sqrt(2 * seeds)  # three standard errors of a measured standard error
    assert np.sqrt((errors**2).mean(axis=0)).max() < stated * (1 + chance)
    assert np.abs(errors.mean(axis=0)).max() < stated * 3.5 / math.sqrt(seeds) + (0.02 if bits == 4 else 0)


def test_hashes_of_text_are_counted_as_well() -> None:
    registers, wrong = bytearray(1 << 10), []
    assert hyperloglog.estimate(registers) == 0.0
    for n in range(1, 50_001):
        hyperloglog.observe(registers, f"device-{n}")
        if n % 250 == 0:
            wrong.append(abs(hyperloglog.estimate(registers) / n - 1))
    assert max(wrong) < 3 * 1.04 / 32


def test_the_second_moment_is_exact_while_all_are_tracked() -> None:
    found = folded(lambda r: iot.second_moment(r, tracked=10), [1.0, 1.0, 2.0, 1.0])
    assert [row["moment"] for row in found] == [1.0, 4.0, 5.0, 10.0]


def test_the_second_moment_of_many() -> None:
    drawn = random.Random(3)
    values = [float(drawn.randrange(4)) for _ in range(3_000)]
    exact = sum(values.count(v) ** 2 for v in set(values))
    found = folded(lambda r: iot.second_moment(r, tracked=200), values)
    assert found[-1]["moment"] == pytest.approx(exact, rel=0.3)
    assert found == folded(lambda r: iot.second_moment(r, tracked=200), values), "the same in every run"


def test_series_are_gathered() -> None:
    (found,) = folded(lambda r: iot.accumulate(r, size=3), [1.0, None, 3.0, 4.0])
    assert [(p["label"], p["value"]) for p in found["series"]] == [("d t", 1.0), ("d t", None), ("d t", 3.0)]
    assert found["series"][1]["at"] - found["series"][0]["at"] == 1.0


def test_readings_of_one_time_are_gathered_in_the_order_of_their_labels() -> None:
    """Whatever other columns the rows have, and in whatever order."""
    columns = {"here": "string", "value": "double", "obs": "string", "ts": "timestamp", "id": "string"}
    schema = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
    rows = hw.flow("f", locations=["L"]).read.json("/in", schema).with_watermark("ts", "10 seconds")
    operator: Any = iot.accumulate(rows, size=4, keys=()).operator
    drawn = [
        {"here": str(9 - n), "value": float(n), "obs": "ab"[n % 2], "ts": BEGIN, "id": "dc"[n // 2]} for n in range(4)
    ]
    state: Any = []
    for row in sorted(drawn, key=order_key(operator.order_by)):
        state, out = operator.function.load()(state, row)
    assert [p["label"] for p in out["series"]] == ["c a", "c b", "d a", "d b"]


def test_charts_keep_their_keys_and_the_location() -> None:
    read = hw.flow("f", locations=["L1"]).read
    rows = read.json("/in/{location}", "ts timestamp, id string, obs string, value double", location_as="place")
    timed = rows.with_watermark("ts", "10 seconds")
    assert iot.plot_lines(timed).columns == ["place", "ts", "name", "content"]
    charts = iot.plot_lines(timed, keys=("obs", "place"))
    assert charts.columns == ["obs", "place", "ts", "name", "content"]
    assert charts.shape.located_by == {"place"} and charts.shape.event_time is not None
    assert iot.zip_files(charts).columns == ["place", "ts", "name", "content"]
    with pytest.raises(DataflowError, match="name"):
        iot.plot_lines(timed.with_columns(name="id"), keys=("name",)).columns  # noqa: B018


def test_a_bloom_filter_takes_few_strangers() -> None:
    members = [f"device-{n}" for n in range(500)]
    found = iot.Bloom.of(members, false_positives=0.01)
    assert all(m in found for m in members)
    assert sum(f"stranger-{n}" in found for n in range(5_000)) < 150
    with pytest.raises(DataflowError, match="bits"):
        iot.Bloom.of([], expected=20_000_000)


class Linear:
    coef_ = (2.0, -0.5)
    intercept_ = 1.0


def test_a_linear_model_is_an_expression() -> None:
    stream = iot.predict_linear(readings().with_columns(n="1"), Linear(), features=("value", "n"))
    columns: Any = stream.operator
    assert dict(columns.columns)["predicted"] == "1.0D + 2.0D * `value` + -0.5D * `n`"
    assert stream.schema.column("predicted").type.text == "double"
    with pytest.raises(DataflowError, match="2 coefficients"):
        iot.predict_linear(readings(), Linear(), features=("value",))


def test_what_is_wrong_is_said_at_once() -> None:
    with pytest.raises(DataflowError, match="no event time"):
        rows = hw.flow("f", locations=["x"]).read.json("/in", "ts timestamp, id string, obs string, value double")
        iot.kalman(rows)
    with pytest.raises(DataflowError, match="size=0"):
        iot.block_average(readings(), size=0)
    with pytest.raises(DataflowError, match="already exists"):
        iot.distinct_count(readings(), into="value")
    with pytest.raises(DataflowError, match="no ranges"):
        iot.range_filter(readings(), {})
    with pytest.raises(DataflowError, match="inf"):
        iot.range_filter(readings(), {"t": (0.0, math.inf)})


@pytest.mark.parametrize("layer", ["edge", "site", "cloud"])
def test_stateful_tasks_run_in_every_layer_and_keep_locations_apart(layer: str) -> None:
    flow = hw.flow("city", locations=["L1", "L2"])
    packs = flow.read.json("/in/{location}", iot.PACK, location_as="harbour")
    rows = iot.parse_senml(packs, fields=("light", "dust"), meta=("latitude",))
    assert rows.schema.names == ("harbour", "ts", "id", "latitude", "obs", "value")
    there = rows.to_layer(layer)
    clean = iot.kalman(iot.interpolate(there))
    for task in (iot.block_average, iot.sliding_regression, iot.distinct_count, iot.second_moment, iot.accumulate):
        found = task(clean)
        assert "harbour" in getattr(found.operator, "keys", ())
        found.write.memory(task.__name__)
    iot.join_message(clean, ("light", "dust")).write.memory("joined")
    plan = build(flow.build(), Continuum.from_text(TWO_LOCATIONS))
    assert {u.layer for u in plan.units if "joined" in u.operators} == {layer}


def test_all_tasks_of_a_city_build() -> None:
    packs = hw.flow("city", locations=["here"]).read.json("/in", iot.PACK)
    rows = iot.parse_senml(packs, fields=("light", "dust"), meta=("latitude",))
    assert rows.schema.names == ("ts", "id", "latitude", "obs", "value")
    clean = iot.bloom_filter(iot.range_filter(rows, {"light": (1.0, 2.0)}), iot.Bloom.of(["a"]))
    whole = iot.join_message(iot.interpolate(clean), ("light", "dust"))
    assert whole.schema.names == ("ts", "id", "light", "dust")
    assert iot.to_senml(whole, {"light": "lx", "dust": "ppm"}, texts=("id",)).schema.names == ("ts", "pack")
    annotated = iot.annotate(clean, {"a": "harbour"}, unknown="nowhere")
    assert annotated.schema.column("annotation").type.text == "string"


def test_a_chart_is_the_same_whatever_was_drawn_before() -> None:
    pytest.importorskip("matplotlib")
    from threading import Thread

    from headwater.iot.plots import svg

    drawn = random.Random(3)
    series = [
        [{"label": f"l{drawn.randrange(k)}", "at": n * s, "value": drawn.uniform(-s, s)} for n in range(20)]
        for k, s in ((3, 1.0), (15, 1e4), (1, 0.01), (14, 1.0), (3, 1.0))  # no legend from 13 lines on
    ]
    alone: list[str] = []
    for one in series:  # each in its own thread, in which no chart was drawn before
        worker = Thread(target=lambda points=one: alone.append(svg(points)))
        worker.start()
        worker.join(60)
    assert [svg(one) for one in series] == alone
    assert [text.count("<text") > 10 for text in alone] == [True] * 5
    assert len(set(alone)) == 5
