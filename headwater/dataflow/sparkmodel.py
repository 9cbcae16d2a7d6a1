"""Saved models of Spark ML as values: an archive of the directory, and its stages, read without Spark.

A directory holds parameters and names of classes. Only transformers of Spark ML that map each row by itself are
accepted: a model file cannot name another class, hold SQL, or drop rows.
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from headwater.core.errors import UserCodeError

_CLASS = re.compile(r"org\.apache\.spark\.ml\.(classification|regression|clustering|feature)\.(\w+)")
_PIPELINE = "org.apache.spark.ml.PipelineModel"
_REFUSED = {
    "SQLTransformer": "it holds SQL, which belongs in the dataflow: with_columns(...)",
    "OneVsRestModel": "convert it to ONNX",
    "RFormulaModel": "save the stages of its formula as a pipeline",
    "LocalLDAModel": "it draws random numbers, so rows could not be computed again: convert it to ONNX",
    "DistributedLDAModel": "it draws random numbers, so rows could not be computed again: convert it to ONNX",
}
_INPUTS = ("featuresCol", "inputCol", "inputCols")
_OUTPUTS = (
    "rawPredictionCol", "probabilityCol", "leafCol", "linkPredictionCol", "quantilesCol", "outputCol", "outputCols",
    "predictionCol",
)  # fmt: skip
_OF_VECTORS = {
    "ChiSqSelectorModel", "DCT", "ElementwiseProduct", "MaxAbsScalerModel", "MinMaxScalerModel", "Normalizer",
    "PCAModel", "PolynomialExpansion", "RobustScalerModel", "StandardScalerModel", "UnivariateFeatureSelectorModel",
    "VarianceThresholdSelectorModel", "VectorIndexerModel", "VectorSlicer",
}  # fmt: skip
"""Transformers whose input column is a vector; that of a model with ``featuresCol`` is always one."""
_MOST_BYTES = 2**30
_MOST_FILES = 10_000


@dataclass(frozen=True, slots=True)
class Stage:
    """One transformer: the module and class in ``pyspark.ml``, its directory in the archive, and its parameters."""

    module: str
    name: str
    directory: str
    params: Mapping[str, Any]
    features: int | None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return _names(self.params, _INPUTS)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The columns that it adds."""
        return _names(self.params, _OUTPUTS)

    @property
    def reads_vector(self) -> bool:
        """Whether its input is a vector of the features."""
        return "featuresCol" in self.params or self.name in _OF_VECTORS


@dataclass(frozen=True, slots=True)
class SparkModel:
    """The stages of a saved model, in order."""

    stages: tuple[Stage, ...]

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that the stages read and none before them adds."""
        made: set[str] = set()
        found: dict[str, None] = {}
        for stage in self.stages:
            found.update(dict.fromkeys(name for name in stage.inputs if name.lower() not in made))
            made |= {name.lower() for name in stage.outputs}
        return tuple(found)

    @property
    def vector(self) -> str | None:
        """The name of the vector that the model reads, if that is all."""
        (first, *more) = self.needed or ("",)
        reader = next((s for s in self.stages if first in s.inputs), None)
        return first if not more and reader is not None and reader.reads_vector else None

    @property
    def features(self) -> int | None:
        """The length of the vector, where the model tells it."""
        return next((s.features for s in self.stages if self.vector in s.inputs and s.features), None)

    @property
    def imputed(self) -> frozenset[str]:
        """The input columns, in lower case, whose NULL the model replaces."""
        return frozenset(c.lower() for s in self.stages if s.name == "ImputerModel" for c in s.inputs)

    @property
    def refuses_nan(self) -> bool:
        """Whether NaN in an input column would end the query."""
        return any(
            s.name == "VectorAssembler" and s.params.get("handleInvalid", "error") == "error" for s in self.stages
        )

    @property
    def output(self) -> str:
        """The column of the predictions: the last one that the last stage adds."""
        return self.stages[-1].outputs[-1]

    def type_of(self, output: str) -> str | None:
        """Return the type of an output column, as it leaves ``predict``; None where only Spark knows it."""
        stage = next((s for s in reversed(self.stages) if output in s.outputs), None)
        if stage is None:
            return None
        if output == stage.params.get("predictionCol"):
            return "int" if stage.module == "clustering" else "double"
        of_vectors = {stage.params.get("probabilityCol"), stage.params.get("rawPredictionCol")}
        if output in of_vectors or stage.name in _OF_VECTORS:
            return "array<double>"
        return None


def is_spark_model(path: Path) -> bool:
    """Return whether a path is a model saved by Spark ML."""
    return os.path.isdir(path / "metadata")  # unlike a Path, it knows no name that is too long


def archive(path: Path) -> bytes:
    """Return a directory's model as a ZIP file, equal for equal content."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as file:  # versions of zlib compress differently
        for found in sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith((".", "_"))):
            file.writestr(zipfile.ZipInfo(found.relative_to(path).as_posix()), found.read_bytes())
    return made.getvalue()


def model_of(content: bytes, name: str) -> SparkModel:
    """Read a model's archive; raise UserCodeError for one that is malformed, or may not be used."""
    try:
        with _opened(content) as file:
            stages = tuple(_stages(file, "", name))
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserCodeError(
            f"the model {name} cannot be read: {type(error).__name__}: {str(error)[:300]}",
            hint="save it again: model.write().overwrite().save(path)",
        ) from error
    if not stages or not stages[-1].outputs:
        raise UserCodeError(f"the model {name} adds no column", hint="save a fitted model or pipeline")
    return SparkModel(stages)


def unpack(content: bytes, directory: Path) -> None:
    """Write a model's files below an empty directory."""
    with _opened(content) as file:
        file.extractall(directory)


def _opened(content: bytes) -> zipfile.ZipFile:
    file = zipfile.ZipFile(io.BytesIO(content))
    entries = file.infolist()
    if len(entries) > _MOST_FILES or sum(e.file_size for e in entries) > _MOST_BYTES:
        raise ValueError("the model has more than 10000 files or 1 GiB")
    for entry in entries:
        parts = PurePosixPath(entry.filename).parts
        if entry.filename.startswith("/") or ".." in parts or "\\" in entry.filename:
            raise ValueError(f"a file of the model leaves its directory: {entry.filename[:100]!r}")
    return file


def _stages(file: zipfile.ZipFile, directory: str, name: str) -> Iterator[Stage]:
    metadata = _metadata(file, directory)
    class_name = str(metadata["class"])
    if class_name in (_PIPELINE, "pyspark.ml.pipeline.PipelineModel"):
        uids = metadata["paramMap"]["stageUids"]
        width = len(str(len(uids)))
        for n, uid in enumerate(uids):
            yield from _stages(file, f"{directory}stages/{n:0{width}}_{uid}/", name)
        return
    match = _CLASS.fullmatch(class_name)
    if match is None:
        raise UserCodeError(
            f"the model {name} has a stage of class {class_name[:200]}, which is none of Spark ML's",
            hint="convert the model to ONNX, or apply it in map_batches(...)",
        )
    if match[2] in _REFUSED:
        raise UserCodeError(f"the model {name} has a {match[2]}", hint=_REFUSED[match[2]])
    params = {**metadata.get("defaultParamMap", {}), **metadata["paramMap"]}
    if params.get("handleInvalid") == "skip":
        raise UserCodeError(
            f"the {match[2]} of the model {name} skips invalid rows, and predict keeps each row",
            hint="save the model with handleInvalid='keep'",
        )
    features = metadata.get("numFeatures")
    yield Stage(match[1], match[2], directory, params, features if isinstance(features, int) else None)


def _metadata(file: zipfile.ZipFile, directory: str) -> dict[str, Any]:
    names = [n for n in file.namelist() if n.startswith(f"{directory}metadata/part-")]
    text = b"".join(file.read(n) for n in sorted(names)).decode()
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("its metadata is no object")
    return found


def _names(params: Mapping[str, Any], kinds: tuple[str, ...]) -> tuple[str, ...]:
    found: list[str] = []
    for kind in kinds:
        value = params.get(kind)
        found += [value] if isinstance(value, str) and value else value if isinstance(value, list) else []
    return tuple(found)
