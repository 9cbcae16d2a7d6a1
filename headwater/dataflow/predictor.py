"""Predictions of model files over Arrow batches, as the function of ``map_batches``; and the settings of all models.

A dataflow has a small model in itself, and of a large one the path and the hash of its content, which each host checks
when it reads the file. A worker process loads a model once. ONNX files, skops files and directories of Spark ML hold
data; joblib and pickle files hold code, so a dataflow with one counts as code. Spark itself applies models of Spark ML.
"""

from __future__ import annotations

import base64
import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headwater.core.errors import DataflowError, HeadwaterError, UserCodeError
from headwater.dataflow.sparkmodel import archive, is_spark_model, model_of
from headwater.sql.schema import DataType, Schema

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

MOST_EMBEDDED = 2**20
"""Bytes of a model that becomes part of the dataflow: stored plans and each unit's order have a copy of it."""
FORMATS = {".onnx": "onnx", ".skops": "skops", ".joblib": "joblib", ".pkl": "joblib", ".pickle": "joblib"}
SPARK = "spark"
"""The format of a directory that Spark ML has saved."""
METHODS = ("predict", "predict_proba", "decision_function", "score_samples", "transform")
"""Methods of scikit-learn's models that give a value for each row."""
_EXTRAS = {"onnx": ("onnxruntime", "onnx"), "skops": ("skops.io", "sklearn"), "joblib": ("joblib", "sklearn")}
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean")
_OF_TENSOR = {
    "tensor(float)": "float", "tensor(double)": "double", "tensor(int64)": "bigint", "tensor(int32)": "int",
    "tensor(bool)": "boolean", "tensor(string)": "string",
}  # fmt: skip
_TO_NUMPY = {"float": "float32", "double": "float64", "bigint": "int64", "int": "int32", "boolean": "bool"}
_READ = {"onnx": (*_NUMBERS, "string"), SPARK: (*_NUMBERS, "string")}
"""The types of columns that a model reads, where it reads more than numbers."""
_EXTERNAL = b"\x0a\x08location"
"""The key of a tensor's file in an ONNX file."""


class LoadedModel(Protocol):
    """A model in memory."""

    def type(self) -> str | None:
        """Return the Spark type of a prediction, if the model tells it."""

    def predict(self, columns: Sequence[pa.Array], names: Sequence[str]) -> np.ndarray[Any, Any]:
        """Return a prediction for each row; there are rows, and no NULLs."""


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """The settings of a prediction: the model, the columns that it reads, and the column that it adds."""

    format: str
    name: str
    sha256: str
    content: str | None
    path: str | None
    columns: tuple[str, ...]
    output: str
    result: str | None
    type: str

    @property
    def of_spark(self) -> bool:
        """Whether it is a model of Spark ML, which Spark applies to a DataFrame."""
        return self.format == SPARK

    @property
    def has_code(self) -> bool:
        """Whether loading the model runs code in it."""
        return self.format == "joblib"

    @property
    def settings(self) -> str:
        """The settings as JSON."""
        return json.dumps(vars(self), sort_keys=True)

    def bytes(self) -> bytes:
        """Return the model file's content, checked against the hash."""
        if self.content is not None:
            found = base64.b64decode(self.content)
        else:
            try:
                found = _content(Path(str(self.path)))
            except OSError as error:
                raise UserCodeError(
                    f"the model {self.path} cannot be read here: {error.strerror}",
                    hint=f"copy it to this path on every host; its sha256 is {self.sha256}",
                ) from error
        here = hashlib.sha256(found).hexdigest()
        if here != self.sha256:
            raise UserCodeError(
                f"the model {self.path or self.name} on this host is another one: its sha256 is {here}",
                hint=f"copy the dataflow's model here ({self.sha256}), or apply the dataflow with this one",
            )
        return found


def predictor(
    path: Path,
    schema: Schema,
    *,
    columns: tuple[str, ...],
    output: str,
    result: str | None,
    type: str | None,
    where: str,
) -> Predictor:
    """Read a model file, check the columns, and return the settings of a prediction."""

    def error(what: str, hint: str) -> DataflowError:
        return DataflowError(what, where=where, hint=hint)

    format = SPARK if is_spark_model(path) else FORMATS.get(path.suffix.lower())
    if format is None:
        hint = f"save it as one of {', '.join(FORMATS)}, or give the directory that Spark ML has saved"
        raise error(f"'{path.name}' is no known model file", hint)
    if format in ("skops", "joblib") and result is not None and result not in METHODS:
        raise error(f"'{result}' is no method with a value for each row", f"use {', '.join(METHODS)}")
    try:
        content = _content(path)
    except OSError as problem:
        raise error(f"the model {path} cannot be read: {problem.strerror}", "give the path of a model file") from None
    if not columns:
        raise error("the model reads no columns", "name them in the order of its training: ['v', 'w']")
    for name in columns:
        found = schema.find(name)
        if found is None:
            raise error(f"no column '{name}'", f"the columns are {', '.join(schema.names)}")
        if found.type.text not in _READ.get(format, _NUMBERS):
            raise error(f"'{name}' is {found.type}, and the model reads numbers", f"CAST({name} AS double) before it")
    if schema.find(output) is not None:
        raise error(f"there is a column '{output}'", "name the prediction: output='...'")
    embedded = len(content) <= MOST_EMBEDDED
    if not embedded and not path.is_absolute():
        raise error(
            f"the model {path} has {len(content)} bytes, too many for the dataflow",
            "copy it to one absolute path on all hosts, and give that path",
        )
    made = Predictor(
        format=format,
        name=path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        content=base64.b64encode(content).decode() if embedded else None,
        path=None if embedded else str(path),
        columns=columns,
        output=output,
        result=result,
        type="void",
    )
    try:
        told = _spark_type(made, content, error) if made.of_spark else None
        wanted = type or told
        if wanted is None and not made.of_spark:
            wanted = load(made).type()
        if wanted is None:
            of = f"'{result}'" if result else "its predictions"
            raise error(f"{path.name} does not tell the type of {of}", "declare it: type='double'")
        spelled = DataType.parse(wanted).text
    except HeadwaterError as problem:
        raise error(problem.what, problem.hint or "declare the type: type='double'") from problem
    return Predictor(**{**vars(made), "type": spelled})


def _content(path: Path) -> bytes:
    return archive(path) if is_spark_model(path) else path.read_bytes()


def _spark_type(made: Predictor, content: bytes, error: Callable[[str, str], DataflowError]) -> str | None:
    """Check that a model of Spark ML fits columns and result; return the result's type, if the model tells it."""
    model = model_of(content, made.name)
    given = {c.lower() for c in made.columns}
    missing = [c for c in model.needed if c.lower() not in given]
    if missing and model.vector is None:
        raise error(
            f"the model {made.name} reads {', '.join(model.needed)}", "name these columns, and have them before"
        )
    if missing and model.features not in (None, len(made.columns)):
        raise error(
            f"the model {made.name} reads {model.features} columns, not {len(made.columns)}",
            "name the columns in the order of its training",
        )
    outputs = list(dict.fromkeys(name for stage in model.stages for name in stage.outputs))
    if made.result is not None and made.result not in outputs:
        raise error(f"the model {made.name} has no output '{made.result}'", f"its outputs are {', '.join(outputs)}")
    return model.type_of(made.result or model.output)


@lru_cache(maxsize=16)
def predictor_of(settings: str) -> Predictor:
    """Read settings of a model for batches; raise ValueError or KeyError for malformed ones."""
    made = _read_settings(settings)
    if made.format not in _EXTRAS:
        raise ValueError("the model's format is unknown")
    if made.result is not None and made.format != "onnx" and made.result not in METHODS:
        raise ValueError(f"no method '{made.result}'")
    return made


@lru_cache(maxsize=16)
def spark_predictor_of(settings: str) -> Predictor:
    """Read settings of a model of Spark ML; raise ValueError or KeyError for malformed ones."""
    made = _read_settings(settings)
    if made.format != SPARK:
        raise ValueError("the model is none of Spark ML")
    return made


def _read_settings(settings: str) -> Predictor:
    found = json.loads(settings)
    made = Predictor(**{**found, "columns": tuple(found["columns"])})
    if (made.content is None) == (made.path is None):
        raise ValueError("a model has either content or a path")
    return made


def predicting(settings: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that adds predictions to batches."""

    def predict(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield predicted(predictor_of(settings), batch)

    return predict


def predicted(made: Predictor, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add the column of predictions; a row with NULL in a column of the model has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    by_name = {name.lower(): n for n, name in enumerate(batch.schema.names)}
    columns = [batch.column(by_name[name.lower()]) for name in made.columns]
    complete = pa.array([True] * batch.num_rows, pa.bool_())
    for column in columns:
        complete = pc.and_(complete, column.is_valid())
    kind = _arrow_type(made.type)
    count = pc.sum(complete).as_py() or 0
    values = pa.nulls(0, kind)
    if count:
        found = load(made).predict([c.filter(complete) for c in columns], made.columns)
        if len(found) != count:
            raise UserCodeError(f"the model gave {len(found)} values for {count} rows", hint="use a model by row")
        values = pa.array(_values(found), from_pandas=False).cast(kind)
    # Rows without prediction take a place after the last value, which does not exist.
    places = pc.if_else(
        complete, pc.subtract(pc.cumulative_sum(complete.cast(pa.int64())), 1), pa.scalar(None, pa.int64())
    )
    return pa.RecordBatch.from_arrays([*batch.columns, values.take(places)], names=[*batch.schema.names, made.output])


@lru_cache(maxsize=16)
def load(made: Predictor) -> LoadedModel:
    """Return the model, loaded once in this process."""
    module, extra = _EXTRAS[made.format]
    content = made.bytes()
    try:
        library = import_module(module)
    except ImportError as error:
        raise UserCodeError(
            f"the model {made.name} needs {module.split('.')[0]}, which is not installed here",
            hint=f"pip install 'headwater[{extra}]' on every host that predicts; "
            "the dataflow can be written without it where the type is declared",
        ) from error
    try:
        return _OnnxModel(library, content, made) if made.format == "onnx" else _EstimatorModel(library, content, made)
    except HeadwaterError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"the model {made.name} cannot be loaded: {type(error).__name__}: {str(error)[:300]}",
            hint="save it again with the versions of the libraries that the hosts have",
        ) from error


class _OnnxModel:
    def __init__(self, library: Any, content: bytes, made: Predictor) -> None:
        if _EXTERNAL in content:
            raise UserCodeError(f"the model {made.name} has tensors in other files", hint="save it as one file")
        options = library.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # Spark runs a task for each core
        self._session = library.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._inputs = self._session.get_inputs()
        outputs = {o.name: o for o in self._session.get_outputs()}
        name = made.result or next(iter(outputs))
        if name not in outputs:
            raise UserCodeError(
                f"the model {made.name} has no output '{name}'", hint=f"its outputs are {', '.join(outputs)}"
            )
        self._output = outputs[name]
        if len(self._inputs) > 1:
            lower = {c.lower() for c in made.columns}
            if {i.name.lower() for i in self._inputs} != lower:
                raise UserCodeError(
                    f"the model's inputs are {', '.join(i.name for i in self._inputs)}",
                    hint="a model of several inputs reads columns of the same names",
                )
        elif len(shape := self._inputs[0].shape) == 2 and isinstance(shape[1], int) and shape[1] != len(made.columns):
            raise UserCodeError(
                f"the model {made.name} reads {shape[1]} columns, not {len(made.columns)}",
                hint="name the columns in the order of its training",
            )

    def type(self) -> str | None:
        element = _OF_TENSOR.get(self._output.type)
        many = len(self._output.shape) > 1 and self._output.shape[1] != 1
        return f"array<{element}>" if element and many else element

    def predict(self, columns: Sequence[pa.Array], names: Sequence[str]) -> np.ndarray[Any, Any]:
        import numpy as np

        if len(self._inputs) == 1:
            wanted = self._inputs[0]
            arrays = [_as(column, wanted.type) for column in columns]
            matrix = np.stack(arrays, axis=1) if len(wanted.shape) > 1 else arrays[0]
            given = {wanted.name: matrix}
        else:
            by_name = {name.lower(): column for name, column in zip(names, columns, strict=True)}
            given = {}
            for wanted in self._inputs:
                array = _as(by_name[wanted.name.lower()], wanted.type)
                given[wanted.name] = array.reshape(-1, 1) if len(wanted.shape) > 1 else array
        found: np.ndarray[Any, Any] = self._session.run([self._output.name], given)[0]
        return found


class _EstimatorModel:
    """A model of scikit-learn."""

    def __init__(self, library: Any, content: bytes, made: Predictor) -> None:
        if made.format == "skops":
            if unknown := library.get_untrusted_types(data=content):
                raise UserCodeError(
                    f"the model {made.name} has types that skops does not trust: {', '.join(unknown)}",
                    hint="save it as ONNX, or as .joblib, which counts as code",
                )
            self._model = library.loads(content)
        else:
            from io import BytesIO

            self._model = library.load(BytesIO(content))
        self._method = made.result or "predict"

    def type(self) -> str | None:
        many = self._method in ("predict_proba", "transform")
        if self._method != "predict":
            return "array<double>" if many else "double"
        classes = getattr(self._model, "classes_", None)
        kind = "f" if classes is None else classes.dtype.kind
        return {"i": "bigint", "u": "bigint", "b": "boolean", "U": "string", "O": "string"}.get(kind, "double")

    def predict(self, columns: Sequence[pa.Array], names: Sequence[str]) -> np.ndarray[Any, Any]:
        import numpy as np

        matrix = np.stack([_as(column, "tensor(double)") for column in columns], axis=1)
        with warnings.catch_warnings():
            # Columns are in the order of training; a model that was trained on names would warn for each batch.
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            found: np.ndarray[Any, Any] = getattr(self._model, self._method)(matrix)
        return found


def _as(column: pa.Array, tensor: str) -> np.ndarray[Any, Any]:
    """Return a column without NULLs as numpy, in the type of a tensor."""
    array: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
    wanted = _TO_NUMPY.get(_OF_TENSOR.get(tensor, ""))
    return array.astype(wanted or object)


def _values(found: np.ndarray[Any, Any]) -> Any:
    """Return predictions as one value or list for each row."""
    if found.ndim > 1:
        found = found.reshape(len(found), -1)
        return found[:, 0] if found.shape[1] == 1 else list(found)
    return found


def _arrow_type(text: str) -> pa.DataType:
    import pyarrow as pa

    if text.startswith("array<"):
        return pa.list_(_arrow_type(text[len("array<") : -1]))
    return {
        "float": pa.float32(), "double": pa.float64(), "bigint": pa.int64(), "int": pa.int32(),
        "boolean": pa.bool_(), "string": pa.string(),
    }[text]  # fmt: skip
