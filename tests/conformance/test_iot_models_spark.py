"""Models that the cloud trains are taken up by predictions at the edges, as in one batch run."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import headwater as hw
from headwater import iot
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, check_equivalent

PLANT = Continuum.from_text("""
name: plant
layers: [edge, cloud]
zones:
  C: {layer: cloud}
  E1: {layer: edge, parent: C, locations: [L1]}
  E2: {layer: edge, parent: C, locations: [L2]}
""")


def plant(tmp_path: Path, *, trees: bool) -> Dataflow:
    pytest.importorskip("skl2onnx")
    pytest.importorskip("onnxruntime")
    drawn = random.Random(5)
    for place in ("L1", "L2"):
        lines = []
        for n in range(120):  # 2 minutes, in which the line changes
            a, b = drawn.uniform(0, 10), drawn.uniform(0, 10)
            v = 2 * a - b + (0 if n < 60 else 50)
            at = f"2026-01-01T00:0{n // 60}:{n % 60:02}Z"
            lines.append({"ts": at, "a": a, "b": b, "v": v if n % 7 else None, "kind": "hot" if a > 5 else "cold"})
        (tmp_path / "in" / place).mkdir(parents=True)
        for part in range(3):
            some = lines[part * 40 : part * 40 + 40]
            (tmp_path / "in" / place / f"{part}.json").write_text("\n".join(map(json.dumps, some)))
    builder = hw.flow("models", locations=["L1", "L2"])
    schema = "ts timestamp, a double, b double, v double, kind string"
    read = builder.read.json(str(tmp_path / "in" / "{location}"), schema, location_as="location")
    rows = read.with_watermark("ts", "5 seconds")
    cloud = rows.to_layer("cloud")
    lines_of = iot.train_linear(cloud, features=("a", "b"), target="v", every="20 seconds")
    lines_of.select("ts", "samples", "sha2(model, 256) AS hash").write.memory("lines")
    at_edge = rows.select("location", "ts", "a", "b", "v", "kind")
    predicted = iot.predict_newest(at_edge, lines_of.to_layer("edge", location_as="location"), features=("a", "b"))
    if not trees:
        predicted.write.memory("predicted")
        return builder.build()
    classes = iot.train_tree(cloud, features=("a", "b"), label="kind", every="20 seconds")
    below = classes.to_layer("edge", location_as="location")
    classed = iot.predict_newest(
        predicted, below, features=("a", "b"), type="string", into="class", error="class_error"
    )
    classed.write.memory("predicted")
    return builder.build()


@pytest.mark.long
def test_models_of_the_cloud_are_taken_up_at_the_edges(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    flow = plant(tmp_path, trees=True)
    outcome = check_equivalent(flow, PLANT, endpoint, tmp_path / "run")
    assert outcome.rows == {"lines": 6, "predicted": 240}
    got = batch_result(endpoint.session(), flow, PLANT)["predicted"].to_pylist()
    right = [r["class"] == r["kind"] for r in got if r["class"] is not None]
    assert len(right) == 200 and sum(right) > 170


def test_each_row_is_predicted_by_the_model_of_the_window_before(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    got = batch_result(endpoint.session(), plant(tmp_path, trees=False), PLANT)["predicted"].to_pylist()
    assert all(r["model_error"] is None for r in got)
    for row in got:
        second = row["ts"].minute * 60 + row["ts"].second
        assert (row["predicted"] is None) == (second < 20)
        old = 0 if second < 80 else 50  # the model of the window before
        if second >= 20:
            assert row["predicted"] == pytest.approx(2 * row["a"] - row["b"] + old)
