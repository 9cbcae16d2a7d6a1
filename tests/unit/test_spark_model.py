"""Directories of Spark ML as values: their stages, and the refusal of those that hold more than parameters."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.app.loading import LoadedDataflow, check_trust
from headwater.core.errors import DataflowError, HeadwaterError, UserCodeError
from headwater.dataflow import predictor
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import Transform
from headwater.dataflow.sparkmodel import archive, model_of, unpack
from headwater.dataflow.stream import Stream

FEATURE = "org.apache.spark.ml.feature."


def metadata(kind: str, **params: Any) -> dict[str, Any]:
    return {"class": kind, "uid": kind.rsplit(".", 1)[-1], "paramMap": params, "defaultParamMap": {}}


ASSEMBLER = metadata(FEATURE + "VectorAssembler", inputCols=["v", "w"], outputCol="features")
LINEAR = metadata(
    "org.apache.spark.ml.regression.LinearRegressionModel", featuresCol="features", predictionCol="prediction"
)
TREE = {
    **metadata(
        "org.apache.spark.ml.classification.DecisionTreeClassificationModel",
        featuresCol="features",
        predictionCol="class",
        probabilityCol="chances",
        rawPredictionCol="",
        leafCol="",
    ),
    "numFeatures": 2,
}


def saved(path: Path, *stages: dict[str, Any]) -> Path:
    """Write a model, or a pipeline of several stages, without the data of its stages."""

    def write(directory: Path, found: dict[str, Any]) -> None:
        (directory / "metadata").mkdir(parents=True)
        (directory / "metadata/part-00000").write_text(json.dumps(found))
        (directory / "metadata/_SUCCESS").touch()
        (directory / "metadata/.part-00000.crc").write_text("1")

    if len(stages) == 1:
        write(path, stages[0])
        return path
    uids = [f"{stage['uid']}_{n}" for n, stage in enumerate(stages)]
    write(path, metadata("org.apache.spark.ml.PipelineModel", stageUids=uids))
    for n, (uid, stage) in enumerate(zip(uids, stages, strict=True)):
        write(path / f"stages/{n}_{uid}", stage)
    return path


def readings() -> Stream:
    return hw.flow("f", locations=["L1"]).read.json("in/{location}", "id bigint, v double, w int, k string")


def test_the_stages_and_columns_of_a_pipeline(tmp_path: Path) -> None:
    indexer = metadata(FEATURE + "StringIndexerModel", inputCol="k", outputCol="index", handleInvalid="keep")
    parts = metadata(FEATURE + "VectorAssembler", inputCols=["v", "Index"], outputCol="features")
    content = archive(saved(tmp_path / "m", indexer, parts, TREE))
    model = model_of(content, "m")
    assert [stage.name for stage in model.stages] == [
        "StringIndexerModel", "VectorAssembler", "DecisionTreeClassificationModel",
    ]  # fmt: skip
    assert model.needed == ("k", "v") and model.vector is None and model.refuses_nan
    assert model.output == "class" and model.type_of("class") == "double"
    assert model.type_of("chances") == "array<double>" and model.type_of("index") is None
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        assert file.namelist() == [f"{d}metadata/part-00000" for d in ("", *(s.directory for s in model.stages))]


def test_a_pipeline_becomes_part_of_the_dataflow(tmp_path: Path) -> None:
    path = saved(tmp_path / "m", ASSEMBLER, LINEAR)
    found = readings().predict(path, ["v", "w"], output="p")
    assert found.dtypes[-1] == ("p", "double") and isinstance(found.operator, Transform)
    found.write.memory("out")
    flow = found.builder.build()  # type: ignore[attr-defined]
    assert Dataflow.from_json(flow.to_json()) == flow
    check_trust(LoadedDataflow(flow, "a file", is_code=False), trust_code=False)
    model = found.operator.function.model  # type: ignore[union-attr]
    assert model.path is None and not model.has_code
    unpack(model.bytes(), tmp_path / "again")
    assert archive(tmp_path / "again") == archive(path)


def test_equal_models_have_equal_archives(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "a", ASSEMBLER, LINEAR), saved(tmp_path / "b", ASSEMBLER, LINEAR)
    (second / "metadata/.part-00000.crc").write_text("another checksum")
    assert archive(first) == archive(second)
    other = saved(tmp_path / "c", ASSEMBLER, {**LINEAR, "uid": "other"})
    assert archive(first) != archive(other)


def test_a_model_without_pipeline_reads_a_vector_of_the_columns(tmp_path: Path) -> None:
    path = saved(tmp_path / "m", TREE)
    assert readings().predict(path, ["v", "w"], result="chances").dtypes[-1][1] == "array<double>"
    with pytest.raises(DataflowError, match="reads 2 columns, not 1"):
        readings().predict(path, ["v"])
    with pytest.raises(DataflowError, match=r"(?s)no output 'p'.*chances, class"):
        readings().predict(path, ["v", "w"], result="p")


def test_columns_that_the_pipeline_reads_are_named(tmp_path: Path) -> None:
    path = saved(tmp_path / "m", ASSEMBLER, LINEAR)
    with pytest.raises(DataflowError, match=r"the model m reads v, w"):
        readings().predict(path, ["v"])


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (metadata("com.example.Evil", outputCol="x"), "none of Spark ML's"),
        (metadata("org.apache.spark.ml.feature.a.B", outputCol="x"), "none of Spark ML's"),
        (metadata("os.system", outputCol="x"), "none of Spark ML's"),
        (metadata(FEATURE + "SQLTransformer", statement="SELECT java_method('a', 'b')"), "SQLTransformer"),
        ({**ASSEMBLER, "paramMap": {**ASSEMBLER["paramMap"], "handleInvalid": "skip"}}, "skips invalid rows"),
        ({"class": FEATURE + "VectorAssembler"}, "cannot be read: KeyError"),
        (metadata("org.apache.spark.ml.PipelineModel"), "cannot be read: KeyError"),
        (metadata("org.apache.spark.ml.PipelineModel", stageUids=["../../x"]), "cannot be read"),
    ],
)
def test_what_is_more_than_parameters_is_refused(stage: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataflowError, match=words):
        readings().predict(saved(tmp_path / "m", stage), ["v", "w"])


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "metadata/../../evil", "a\\..\\evil"])
def test_no_file_of_an_archive_leaves_its_directory(name: str, tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(name, "x")
    with pytest.raises(ValueError, match="leaves its directory"):
        unpack(made.getvalue(), tmp_path)
    with pytest.raises(UserCodeError, match="leaves its directory"):
        model_of(made.getvalue(), "m")
    assert not list(tmp_path.iterdir())


def test_a_model_stands_only_where_its_kind_of_function_stands(tmp_path: Path) -> None:
    found = readings().predict(saved(tmp_path / "m", ASSEMBLER, LINEAR), ["v", "w"])
    found.write.memory("out")
    text = found.builder.build().to_json()  # type: ignore[attr-defined]
    with pytest.raises(HeadwaterError, match="no function 'predict_spark_ml' of batches"):
        Dataflow.from_json(text.replace('"transform"', '"map_batches"'))
    with pytest.raises(HeadwaterError, match="no function 'predict' of frames"):
        Dataflow.from_json(text.replace("predict_spark_ml", "predict"))


def test_a_large_model_is_read_from_its_path_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "MOST_EMBEDDED", 100)
    path = saved(tmp_path / "m", ASSEMBLER, LINEAR)
    model = readings().predict(path, ["v", "w"]).operator.function.model  # type: ignore[attr-defined]
    assert model.path == str(path) and model.bytes() == archive(path)
    (path / "metadata/part-00000").write_text("{}")
    with pytest.raises(UserCodeError, match="is another one"):
        model.bytes()
