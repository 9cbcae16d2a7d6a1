"""Predictions of model files: what becomes part of the dataflow, what hosts check, and the values."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest

import headwater as hw
from headwater.app.loading import LoadedDataflow, check_trust
from headwater.connectors.permitted import AgentPermissions, check_unit
from headwater.continuum.model import Continuum
from headwater.core.errors import DataflowError, DeploymentError, HeadwaterError, UserCodeError
from headwater.core.permissions import Permissions
from headwater.dataflow import predictor
from headwater.dataflow.builtin import BuiltinFunction
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import MapBatches
from headwater.dataflow.stream import Stream
from headwater.plan.build import build
from headwater.plan.spec import spec_of
from headwater.query.compile import guarded

FEATURES = np.array([[1.0, 2.0], [2.0, 3.0], [3.0, 5.0], [4.0, 4.0]])
SUMS = FEATURES.sum(axis=1)


@pytest.fixture(autouse=True)
def fresh() -> None:
    predictor.load.cache_clear()


def readings() -> Stream:
    schema = "id bigint, ts timestamp, v double, w int, k string"
    raw = hw.flow("f", locations=["L1"]).read.json("in/{location}", schema)
    return raw.with_watermark("ts", "10 seconds")


def onnx(path: Path, *, weight: float = 1.0) -> Path:
    """Write a model that adds two columns, the first one times ``weight``."""
    skl2onnx = pytest.importorskip("skl2onnx")
    pytest.importorskip("onnxruntime")
    model = pytest.importorskip("sklearn.linear_model").LinearRegression().fit(FEATURES, FEATURES @ [weight, 1.0])
    path.write_bytes(skl2onnx.to_onnx(model, FEATURES[:1]).SerializeToString())
    return path


def classes(path: Path) -> Path:
    model = (
        pytest.importorskip("sklearn.linear_model")
        .LogisticRegression(C=1e4)
        .fit(FEATURES, np.array(["low", "low", "high", "high"]))
    )
    if path.suffix == ".skops":
        pytest.importorskip("skops.io").dump(model, path)
    elif path.suffix == ".onnx":
        skl2onnx = pytest.importorskip("skl2onnx")
        found = skl2onnx.to_onnx(model, FEATURES[:1].astype("float32"), options={"zipmap": False})
        path.write_bytes(found.SerializeToString())
    else:
        pytest.importorskip("joblib").dump(model, path)
    return path


def batch() -> pa.RecordBatch:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array([1, 2, 3, 4], pa.int64()),
            "ts": pa.array([at] * 4, pa.timestamp("us", tz="UTC")),
            "v": pa.array([1.0, None, 3.0, 4.0]),
            "w": pa.array([2, 3, 5, None], pa.int32()),
            "k": ["a", "b", "c", "d"],
        }
    )


def operator_of(stream: Stream) -> MapBatches:
    assert isinstance(stream.operator, MapBatches)
    return stream.operator


def outcome(stream: Stream, given: pa.RecordBatch | None = None) -> list[Any]:
    """Return the predictions for a batch, as a Spark worker makes them."""
    function = pickle.loads(cloudpickle.dumps(guarded(operator_of(stream))))
    (found,) = function(iter([batch() if given is None else given]))
    assert found.schema.names == stream.columns
    return found.column("prediction").to_pylist()  # type: ignore[no-any-return]


def test_onnx_adds_a_column_and_keeps_the_others(tmp_path: Path) -> None:
    found = readings().predict(onnx(tmp_path / "m.onnx"), ["v", "w"])
    assert found.dtypes[-1] == ("prediction", "double") and found.columns[:5] == readings().columns
    assert found.shape.event_time == readings().shape.event_time
    assert outcome(found) == [pytest.approx(3.0), None, pytest.approx(8.0), None], "NULL where a column is NULL"
    assert outcome(found, batch().slice(1, 1)) == [None]
    assert outcome(found, batch().slice(0, 0)) == []


@pytest.mark.parametrize("name", ["m.onnx", "m.skops", "m.joblib"])
def test_types_are_read_from_the_model(name: str, tmp_path: Path) -> None:
    path = classes(tmp_path / name)
    found = readings().predict(str(path), ["v", "w"])
    assert found.dtypes[-1] == ("prediction", "string")
    assert outcome(found) == ["low", None, "high", None]
    more = "probabilities" if name == "m.onnx" else "predict_proba"
    shares = readings().predict(path, ["v", "w"], result=more)
    assert shares.dtypes[-1][1] in ("array<float>", "array<double>")
    assert [row and list(map(round, row)) for row in outcome(shares)] == [[0, 1], None, [1, 0], None]


def test_a_declared_type_needs_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = onnx(tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(DataflowError, match=r"(?s)needs onnxruntime.*headwater\[onnx\]"):
        readings().predict(path, ["v", "w"])
    found = readings().predict(path, ["v", "w"], type="float")
    assert found.dtypes[-1] == ("prediction", "float")
    with pytest.raises(UserCodeError, match=r"(?s)operator 'map_batches'.*needs onnxruntime.*headwater\[onnx\]"):
        outcome(found)
    monkeypatch.undo()
    assert outcome(found)[0] == pytest.approx(3.0)


def test_another_model_is_another_operator(tmp_path: Path) -> None:
    def key(path: Path) -> str:
        stream = readings().predict(path, ["v", "w"])
        stream.write.memory("out")
        return stream.builder.build().keys["out"]  # type: ignore[attr-defined,no-any-return]

    first = key(onnx(tmp_path / "m.onnx"))
    assert key(onnx(tmp_path / "m.onnx")) == first
    assert key(onnx(tmp_path / "m.onnx", weight=2.0)) != first


def test_a_large_model_is_read_from_its_path_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "MOST_EMBEDDED", 100)
    path = onnx(tmp_path / "m.onnx")
    found = readings().predict(path, ["v", "w"])
    function = operator_of(found).function
    assert isinstance(function, BuiltinFunction) and function.model is not None
    assert (function.model.path, function.model.content) == (str(path), None)
    assert outcome(found)[0] == pytest.approx(3.0)
    onnx(path, weight=2.0)
    assert outcome(found)[0] == pytest.approx(3.0), "this process has loaded it already"
    predictor.load.cache_clear()
    with pytest.raises(UserCodeError, match=r"(?s)is another one: its sha256 is .*copy the dataflow's model here"):
        outcome(found)
    path.unlink()
    with pytest.raises(UserCodeError, match="cannot be read here: No such file"):
        outcome(found)
    monkeypatch.chdir(tmp_path)
    onnx(path)
    with pytest.raises(DataflowError, match="too many for the dataflow"):
        readings().predict("m.onnx", ["v", "w"])


def test_a_path_needs_the_zones_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "MOST_EMBEDDED", 100)
    (tmp_path / "models").mkdir()
    builder = hw.flow("f", locations=["L1"])
    counts = builder.read.rate(location_as="l")
    path = onnx(tmp_path / "models" / "m.onnx")
    counts.with_columns(v="value * 1D").predict(path, ["v", "value"]).write.memory("out")
    places = Continuum.from_text("name: p\nlayers: [edge]\nzones:\n  E1: {layer: edge, locations: [L1]}\n")
    plan = build(builder.build(), places)
    spec = spec_of(plan, plan.units[0].id)

    def check(*roots: str) -> None:
        check_unit(spec, AgentPermissions(own=Permissions(read=roots)))

    check(str(tmp_path / "models"))
    with pytest.raises(DeploymentError, match=r"(?s)m\.onnx.*--allow-read"):
        check(str(tmp_path / "data"))


TRUSTED: dict[str, Callable[[Path], Path]] = {
    "m.onnx": lambda p: onnx(p),
    "m.skops": classes,
}


@pytest.mark.parametrize("name", [*TRUSTED, "m.joblib"])
def test_only_pickled_models_are_code(name: str, tmp_path: Path) -> None:
    stream = readings().predict(TRUSTED.get(name, classes)(tmp_path / name), ["v", "w"])
    stream.write.memory("out")
    flow: Dataflow = stream.builder.build()  # type: ignore[attr-defined]
    again = Dataflow.from_json(flow.to_json())
    assert again == flow and again.keys == flow.keys
    loaded = LoadedDataflow(again, "a file", is_code=False)
    if name == "m.joblib":
        with pytest.raises(DataflowError, match="pickled Python code"):
            check_trust(loaded, trust_code=False)
        check_trust(loaded, trust_code=True)
    else:
        check_trust(loaded, trust_code=False)


class Unknown:
    """A class that skops does not trust."""

    def predict(self, rows: Any) -> Any:
        return rows[:, 0]


def test_skops_refuses_classes_it_does_not_trust(tmp_path: Path) -> None:
    skops_io = pytest.importorskip("skops.io")
    skops_io.dump(Unknown(), tmp_path / "m.skops")
    with pytest.raises(DataflowError, match=r"(?s)types that skops does not trust: .*Unknown"):
        readings().predict(tmp_path / "m.skops", ["v"])


def test_a_model_with_tensors_in_other_files_is_refused(tmp_path: Path) -> None:
    onnx_library = pytest.importorskip("onnx")
    path = onnx(tmp_path / "m.onnx")
    model = onnx_library.load(path)
    tensor = onnx_library.helper.make_tensor("t", onnx_library.TensorProto.FLOAT, [256], np.zeros(256).tolist())
    tensor.raw_data = np.zeros(256, "float32").tobytes()
    del tensor.float_data[:]
    model.graph.initializer.append(tensor)
    onnx_library.save(model, path, save_as_external_data=True, location="etc", size_threshold=0)
    with pytest.raises(DataflowError, match="tensors in other files"):
        readings().predict(path, ["v", "w"])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "format": ({"model": "m.txt"}, "'m.txt' is no known model file"),
    "no file": ({"model": "none.onnx"}, "none.onnx cannot be read"),
    "no columns": ({"columns": []}, "reads no columns"),
    "unknown column": ({"columns": ["v", "z"]}, "no column 'z'"),
    "text": ({"columns": ["v", "ts"]}, r"(?s)'ts' is timestamp.*CAST\(ts AS double\)"),
    "taken": ({"output": "V"}, "there is a column 'V'"),
    "too few columns": ({"columns": ["v"]}, "reads 2 columns, not 1"),
    "no output": ({"result": "label"}, "(?s)has no output 'label'.*variable"),
    "a type": ({"type": "number"}, "number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_where_it_is_written(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx(tmp_path / "m.onnx")
    more, message = REFUSED[case]
    with pytest.raises(DataflowError, match=message) as refused:
        readings().predict(**{"model": "m.onnx", "columns": ["v", "w"], **more})
    assert refused.value.where == "predict after 'watermark'" and refused.value.hint


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(DataflowError, match=r"m\.onnx cannot be loaded: InvalidProtobuf"):
        readings().predict(tmp_path / "m.onnx", ["v", "w"])


@pytest.mark.parametrize("change", [{"format": "pt"}, {"path": "/m"}, {"columns": None}, {"more": 1}])
def test_malformed_settings_in_json(change: dict[str, Any], tmp_path: Path) -> None:
    stream = readings().predict(onnx(tmp_path / "m.onnx"), ["v", "w"])
    stream.write.memory("out")
    data = stream.builder.build().to_data()  # type: ignore[attr-defined]
    (operator,) = (o for o in data["operators"] if o["kind"] == "map_batches")
    operator["function"]["settings"] = json.dumps({**json.loads(operator["function"]["settings"]), **change})
    with pytest.raises(HeadwaterError, match="the settings of predict are malformed"):
        Dataflow.from_data(data)
