"""Models saved by Spark ML predict as plain Spark predicts with them, in a batch and in streams over zones."""

from __future__ import annotations

import gc
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stream import Stream
from headwater.plan import build
from headwater.testing import BoundedSource, batch_result, check_equivalent
from tests.conftest import activate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.spark.endpoint import LocalEndpoint

CONTINUUM = Continuum.from_text("""
name: test
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [L1]}
  E2: {layer: edge, parent: C1, locations: [L2]}
""")
SCHEMA = "id bigint, ts timestamp, v double, w int, k string"


def _rows() -> list[dict[str, Any]]:
    rows = []
    for n in range(60):
        v: float | None = None if n % 11 == 3 else math.nan if n % 13 == 5 else (n * 7) % 20 / 2
        w = None if n % 17 == 2 else n % 5
        k = None if n % 19 == 4 else "abcz"[n % 4]
        rows.append({"id": n, "ts": f"2026-01-01T00:00:{n:02}Z", "v": v, "w": w, "k": k})
    return rows


def _linear(frame: DataFrame) -> Any:
    from pyspark.ml.feature import VectorAssembler
    from pyspark.ml.regression import LinearRegression

    vectors = VectorAssembler(inputCols=["v", "w"], outputCol="features").transform(frame)
    return LinearRegression(labelCol="y").fit(vectors)


def _forest(frame: DataFrame) -> Any:
    from pyspark.ml import Pipeline
    from pyspark.ml.classification import RandomForestClassifier
    from pyspark.ml.feature import StandardScaler, StringIndexer, VectorAssembler

    stages = [
        StringIndexer(inputCol="k", outputCol="index", handleInvalid="keep"),
        VectorAssembler(inputCols=["v", "w", "index"], outputCol="raw"),
        StandardScaler(inputCol="raw", outputCol="features"),
        RandomForestClassifier(labelCol="class", numTrees=4, seed=3),
    ]
    return Pipeline(stages=stages).fit(frame)


def _clusters(frame: DataFrame) -> Any:
    from pyspark.ml import Pipeline
    from pyspark.ml.clustering import KMeans
    from pyspark.ml.feature import Imputer, VectorAssembler

    stages = [
        Imputer(inputCols=["v"], outputCols=["full"]),
        VectorAssembler(inputCols=["full", "w"], outputCol="features"),
        KMeans(k=3, seed=1),
    ]
    return Pipeline(stages=stages).fit(frame)


@pytest.fixture(scope="module")
def models(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Train models on Spark, and yield the directory in which they are saved."""
    activate(spark)
    # PySpark deletes models from Spark's cache in the garbage collector, where the call may wait for ever.
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr("pyspark.ml.util.del_remote_cache", lambda ref: None)
    place = tmp_path_factory.mktemp("models")
    known = [(float(n % 9), n % 5, "abc"[n % 3], 3.0 * (n % 9) - (n % 5), float(n % 9 > 4)) for n in range(90)]
    frame = spark.createDataFrame(known, "v double, w int, k string, y double, class double")
    for name, train in {"linear": _linear, "forest": _forest, "clusters": _clusters}.items():
        train(frame).write().save((place / name).as_uri())
    yield place
    gc.collect()
    monkeypatch.undo()


def _flow(path: str, predicted: Callable[[Stream], Stream]) -> Dataflow:
    f = hw.flow("f", locations=["L1", "L2"])
    rows = f.read.json(path, SCHEMA).with_watermark("ts", "5 seconds")
    predicted(rows).write.memory("out")
    return f.build()


def _source(place: Path) -> BoundedSource:
    rows = _rows()
    source = BoundedSource(place, {"L1": rows[::2], "L2": rows[1::2]}, rows_per_file=10)
    source.release_all()
    return source


def _by_id(rows: Any) -> dict[int, Any]:
    return {row["id"]: row["prediction"] for row in rows}


@pytest.mark.long
def test_predictions_are_those_of_plain_spark(
    models: Path, active_session: SparkSession, endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    """Each model, with the complete rows of the stream, as users would apply it in a batch."""
    from pyspark.ml import PipelineModel
    from pyspark.ml.feature import VectorAssembler
    from pyspark.ml.regression import LinearRegressionModel

    spark = endpoint.session()
    numbers = [row for row in _rows() if row["w"] is not None]
    complete = [row for row in numbers if row["v"] is not None and not math.isnan(row["v"])]
    frame = lambda rows: spark.createDataFrame(  # noqa: E731
        [(row["id"], row["v"], row["w"], row["k"]) for row in rows], "id bigint, v double, w int, k string"
    )
    vectors = VectorAssembler(inputCols=["v", "w"], outputCol="features").transform(frame(complete))
    wanted = {
        "linear": _by_id(LinearRegressionModel.load(str(models / "linear")).transform(vectors).collect()),
        "forest": _by_id(PipelineModel.load(str(models / "forest")).transform(frame(complete)).collect()),
        "clusters": _by_id(PipelineModel.load(str(models / "clusters")).transform(frame(numbers)).collect()),
    }
    path = _source(tmp_path / "in").path
    columns = {"linear": ["v", "w"], "forest": ["v", "w", "k"], "clusters": ["v", "w"]}
    for name, read in columns.items():
        flow = _flow(path, lambda s, name=name, read=read: s.predict(models / name, read))  # type: ignore[misc]
        found = _by_id(batch_result(spark, flow, CONTINUUM)["out"].to_pylist())
        assert len(found) == 60 and len(wanted[name]) >= 40
        for id_, value in found.items():
            if id_ in wanted[name]:
                assert value == pytest.approx(wanted[name][id_]), (name, id_)
            else:
                assert value is None or (name == "linear" and math.isnan(value)), (name, id_)


def test_a_model_at_the_edge_equals_one_batch_run(models: Path, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    def predicted(rows: Stream) -> Stream:
        chances = rows.predict(models / "forest", ["v", "w", "k"], result="probability", output="chances")
        both = chances.predict(models / "clusters", ["v", "w"], output="cluster").to_layer("cloud")
        counted = both.group_by(hw.window("ts", "20 seconds"), "cluster")
        return counted.agg("count(*) AS n", "round(sum(chances[0]), 9) AS chance", "max(id) AS newest")

    flow = _flow(_source(tmp_path / "in").path, predicted)
    outcome = check_equivalent(flow, CONTINUUM, endpoint, tmp_path / "run", decision=build.annotated(flow, CONTINUUM))
    assert outcome.rows["out"] >= 9 and len(outcome.plan.units) == 3


def test_a_model_that_spark_cannot_load_is_named_by_its_operator(
    models: Path, endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(models / "linear", broken)
    for file in (broken / "data").iterdir():
        file.unlink()
    flow = _flow(_source(tmp_path / "in").path, lambda s: s.predict(broken, ["v", "w"]))
    with pytest.raises(HeadwaterError, match=r"(?s)operator 'transform'.*LinearRegressionModel of the model broken"):
        batch_result(endpoint.session(), flow, CONTINUUM)
