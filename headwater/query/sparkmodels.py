"""Apply saved models of Spark ML to DataFrames: streams and batches alike."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.connect.session import SparkSession as Session

from headwater.connectors.sparksql import column_of
from headwater.connectors.sparktypes import spark_type
from headwater.core.errors import UserCodeError
from headwater.dataflow.function import raised
from headwater.dataflow.predictor import Predictor
from headwater.dataflow.sparkmodel import SparkModel, Stage, model_of, unpack
from headwater.sql.schema import DataType

if TYPE_CHECKING:
    from pyspark.ml import Transformer

_LOADED: dict[tuple[str, str], list[Transformer]] = {}
_LOADING = Lock()


def predicted(made: Predictor, frame: DataFrame) -> DataFrame:
    """Add the column of predictions; a row with NULL in a column that the model does not impute has none.

    The stream's columns have other names meanwhile: the model's own may be equal to theirs.
    """
    content = made.bytes()
    model = model_of(content, made.name)
    hidden = [f"headwater {n}" for n in range(len(frame.columns))]
    kept = [column_of(name).alias(other) for name, other in zip(frame.columns, hidden, strict=True)]
    types = {field.name.lower(): field.dataType.simpleString() for field in frame.schema.fields}
    complete = _complete(made, model, types)
    given = {c.lower(): _value(c, types[c.lower()], model, complete) for c in made.columns}
    if all(name.lower() in given for name in model.needed):
        inputs = [given[name.lower()].alias(name) for name in model.needed]
    else:
        from pyspark.ml.functions import array_to_vector

        features = F.array(*(value.cast("double") for value in given.values()))
        inputs = [array_to_vector(features).alias(model.needed[0])]
    found = frame.select(*kept, complete.alias("headwater complete"), *inputs)
    for transformer in _transformers(made, model, content, cast(Session, frame.sparkSession)):
        found = transformer.transform(found)
    columns = [column_of(other).alias(name) for name, other in zip(frame.columns, hidden, strict=True)]
    value = _result(made, model, found)
    return found.select(*columns, F.when(column_of("headwater complete"), value).alias(made.output))


def _complete(made: Predictor, model: SparkModel, types: dict[str, str]) -> Column:
    """Return whether a row has all numbers that the model reads; strings go to the model, which may have an index."""
    complete = F.lit(True)
    for name in made.columns:
        if name.lower() in model.imputed or types[name.lower()] == "string":
            continue
        complete = complete & column_of(name).isNotNull()
        if model.refuses_nan and types[name.lower()] in ("float", "double"):
            complete = complete & ~F.isnan(column_of(name))
    return complete


def _value(name: str, type: str, model: SparkModel, complete: Column) -> Column:
    """Return a column as the model reads it: a row without prediction passes through the model with zeros."""
    value = column_of(name)
    if type == "string" or name.lower() in model.imputed:
        return value
    return F.when(complete, value).otherwise(F.lit(0).cast(type))


def _transformers(made: Predictor, model: SparkModel, content: bytes, session: Session) -> list[Transformer]:
    """Return the model's stages in Spark, loaded once in a session."""
    key = (session.session_id, made.sha256)
    with _LOADING:
        if key not in _LOADED:
            with tempfile.TemporaryDirectory(prefix="headwater-model-") as directory, _active(session):
                unpack(content, Path(directory))
                _LOADED[key] = [_load(stage, made, directory, session) for stage in model.stages]
        return _LOADED[key]


def _load(stage: Stage, made: Predictor, directory: str, session: Session) -> Transformer:
    from pyspark.ml.connect.readwrite import RemoteMLReader
    from pyspark.ml.util import RemoteModelRef

    try:
        kind = getattr(import_module(f"pyspark.ml.{stage.module}"), stage.name)
        loaded: Any = RemoteMLReader.loadInstance(kind, Path(directory, stage.directory).as_uri(), session)
    except Exception as error:
        raise UserCodeError(
            f"Spark cannot load the {stage.name} of the model {made.name}: {raised(error)}",
            hint="save it again with the version of Spark that the zones have",
        ) from error
    if isinstance(loaded._java_obj, RemoteModelRef):
        # Without references left, PySpark calls Spark from the garbage collector, which may run within another call:
        # both wait for ever. The model stays in Spark's cache, which writes unused ones to disk, until Spark ends.
        loaded._java_obj.add_ref()
    return loaded  # type: ignore[no-any-return]


@contextlib.contextmanager
def _active(session: Session) -> Iterator[None]:
    """Make a session this thread's active one: Spark ML asks for it."""
    active: Any = Session._active_session
    before = getattr(active, "session", None)
    active.session = session
    try:
        yield
    finally:
        active.session = before


def _result(made: Predictor, model: SparkModel, frame: DataFrame) -> Column:
    name = made.result or model.output
    value = column_of(name)
    if frame.schema[name].dataType.typeName() == "vectorudt":
        from pyspark.ml.functions import vector_to_array

        value = vector_to_array(value)
    return value.cast(spark_type(DataType.parse(made.type)))
