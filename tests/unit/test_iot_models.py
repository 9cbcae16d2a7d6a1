"""Models that are trained on windows, and taken up by predictions as rows: bad ones are skipped."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

import headwater as hw
from headwater import iot
from headwater.core.errors import DataflowError
from headwater.dataflow.stream import Stream
from headwater.iot.training import _onnx

pytest.importorskip("onnxruntime")
pytest.importorskip("skl2onnx")

SCHEMA = "ts timestamp, a double, b double, kind string"


def rows() -> tuple[Stream, Stream]:
    read = hw.flow("f", locations=["here"]).read
    models = read.json("/models", "ts timestamp, model binary").with_watermark("ts", "10 seconds")
    return read.json("/in", SCHEMA).with_watermark("ts", "10 seconds"), models


def folded(type: Any, items: list[Any]) -> list[dict[str, Any]]:
    """Fold rows (a, b) and models, one second apart."""
    operator: Any = iot.predict_newest(*rows(), features=("a", "b"), type=type, into="p").operator
    step, state, found = operator.function.load(), json.loads(operator.initial), []
    for n, item in enumerate(items):
        row: dict[str, Any] = {"ts": datetime(2026, 1, 1) + timedelta(seconds=n), "newest_model": None}
        row |= {"newest_model": item} if isinstance(item, bytes) else {"a": item[0], "b": item[1]}
        state, out = step(json.loads(json.dumps(state)), row)
        found += [] if out is None else [out]
    return found


def linear(slope: float, columns: int = 2) -> bytes:
    from sklearn.linear_model import LinearRegression

    samples = [(*(float(n), float(n * n), 1.0)[:columns], slope * n + 1) for n in range(9)]
    return _onnx(lambda x, y: LinearRegression().fit(x, y), samples)


def tree() -> bytes:
    from sklearn.tree import DecisionTreeClassifier

    samples = [(float(n), 0.0, "low" if n < 5 else "high") for n in range(9)]
    return _onnx(lambda x, y: DecisionTreeClassifier(max_depth=3, random_state=0).fit(x, y), samples)


def test_the_newest_model_predicts_and_bad_ones_are_skipped() -> None:
    first, second = linear(2.0), linear(-1.0)
    bad = [b"no model", linear(1.0, columns=3), tree(), b"x" * (2**20 + 1)]
    assert first == linear(2.0), "the same rows give the same model"
    found = folded("double", [(3.0, 9.0), first, (3.0, 9.0), (None, 1.0), second, (3.0, 9.0)])
    assert [row["p"] for row in found] == [None, pytest.approx(7.0), None, pytest.approx(-2.0)]
    assert [row["model_error"] for row in found] == [None] * 4
    for one in bad:
        (row,) = folded("double", [first, one, (3.0, 9.0)])
        assert row["p"] == pytest.approx(7.0) and row["model_error"], one[:20]
    (row,) = folded("double", [bad[0], first, (3.0, 9.0)])
    assert row["model_error"] is None, "a good model ends the error"


def test_a_tree_predicts_text() -> None:
    found = folded("string", [tree(), (4.0, 0.0), (7.0, 0.0), linear(1.0), (7.0, 0.0)])
    assert [row["p"] for row in found] == ["low", "high", "high"]
    assert "no string" in found[-1]["model_error"]


def test_errors_of_the_author() -> None:
    data, models = rows()
    with pytest.raises(DataflowError, match="no features"):
        iot.train_linear(data, features=(), target="b")
    with pytest.raises(DataflowError, match="depth=0"):
        iot.train_tree(data, features=("a",), label="kind", depth=0)
    with pytest.raises(DataflowError, match="already exists"):
        iot.predict_newest(data, models, features=("a",), into="b")
    bare = hw.flow("f", locations=["here"]).read.json("/in", SCHEMA)
    with pytest.raises(DataflowError, match="no event time"):
        iot.train_tree(bare, features=("a",), label="kind")
    with pytest.raises(DataflowError, match="models have no event time"):
        iot.predict_newest(data, bare, features=("a",))
