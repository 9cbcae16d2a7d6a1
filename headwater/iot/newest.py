"""Predict with the newest of the models that come as rows: a new model is taken up without a restart.

Models come from ``train_linear`` and ``train_tree``, from above by ``to_layer``, or from a container of blobs.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from headwater.core.errors import DataflowError, HeadwaterError
from headwater.dataflow.predictor import MOST_EMBEDDED, Predictor, load
from headwater.dataflow.stream import Stream
from headwater.iot.folds import Row, keys_of
from headwater.sql.lexer import quoted

_MODEL, _ORDER = "newest_model", "newest_order"
_PYTHON = {"double": float, "string": str}


def predict_newest(
    rows: Stream,
    models: Stream,
    *,
    features: Sequence[str],
    type: Literal["double", "string"] = "double",
    keys: Sequence[str] | None = None,
    model: str = "model",
    into: str = "predicted",
    error: str = "model_error",
) -> Stream:
    """Add the prediction of the newest model whose event time is not after the row's; NULL before the first model.

    ``models``: a stream with the ``keys``, by default the location columns, an event time, and ONNX files in column
    ``model``. A row with a NULL in a feature has no prediction. A model that cannot be used - no ONNX, other features,
    another type of predictions, more than 1 MiB - is skipped: the former one stays, and ``error`` of the next rows
    says why.
    """
    keys = keys_of(rows, keys, ())
    time, other = rows.shape.event_time, models.shape.event_time
    if time is None or other is None:
        raise DataflowError(
            f"the {'rows' if time is None else 'models'} have no event time",
            where="predict_newest",
            hint=".with_watermark('ts', '10 seconds')",
        )
    if taken := {into.lower(), error.lower(), _MODEL, _ORDER} & {c.lower() for c in rows.columns}:
        raise DataflowError(
            f"column '{min(taken)}' already exists", where="predict_newest", hint="choose another name: into='...'"
        )
    schema = rows.schema
    given = {key: quoted(key) for key in keys} | {time.column: quoted(other.column)}
    empty = [
        f"{given.get(name, f'CAST(NULL AS {schema.column(name).type.text})')} AS {quoted(name)}"
        for name in rows.columns
    ]
    # A model comes before the rows of its time, and two models of one time in the order of their hashes.
    content = quoted(model)
    published = models.where(f"{content} IS NOT NULL").select(
        *empty, f"{content} AS {_MODEL}", f"sha2({content}, 256) AS {_ORDER}"
    )
    tagged = rows.select(*map(quoted, rows.columns), f"CAST(NULL AS binary) AS {_MODEL}", f"'row' AS {_ORDER}")
    convert = _PYTHON[type]

    def predict(state: dict[str, Any], row: Row) -> tuple[dict[str, Any], Row | None]:
        if row[_MODEL] is not None:
            return _taken_up(state, bytes(row[_MODEL]), tuple(features), type), None
        values = [row[name] for name in features]
        known = state["model"] is not None and None not in values
        found = convert(_predicted(state["model"], tuple(features), type, values)) if known else None
        return state, {**row, into: found, error: state["error"]}

    return tagged.union(published).scan(
        predict,
        f"{schema.text}, {quoted(into)} {type}, {quoted(error)} string",
        keys=keys,
        order_by=[time.column, _ORDER],
        initial={"model": None, "error": None},
        keeps_keys=True,
    )


def _taken_up(state: dict[str, Any], content: bytes, features: tuple[str, ...], type: str) -> dict[str, Any]:
    """Return the state with a model, tried on one row; with the former one where it cannot be used."""
    if len(content) > MOST_EMBEDDED:
        return {**state, "error": f"the model has {len(content)} bytes, more than {MOST_EMBEDDED}"}
    encoded = base64.b64encode(content).decode()
    try:
        found = _predicted(encoded, features, type, [0.0] * len(features))
        if isinstance(found, str) != (type == "string"):
            return {**state, "error": f"the model predicts {found!r}, no {type}"}
    except HeadwaterError as problem:
        if "not installed" in problem.what:
            raise
        return {**state, "error": problem.what}
    except Exception as problem:  # of onnxruntime, which has no common class of errors
        return {**state, "error": f"{problem.__class__.__name__}: {str(problem)[:300]}"}
    return {"model": encoded, "error": None}


def _predicted(encoded: str, features: tuple[str, ...], type: str, values: Sequence[Any]) -> Any:
    import pyarrow as pa

    made = Predictor(
        format="onnx", name="model", sha256=_digest(encoded), content=encoded, path=None,
        columns=features, output="", result=None, type=type,
    )  # fmt: skip
    found = load(made).predict([pa.array([float(value)], pa.float64()) for value in values], features)
    value = found.reshape(-1)[0]
    return value if isinstance(value, str) else value.item()


@lru_cache(maxsize=16)
def _digest(encoded: str) -> str:
    return hashlib.sha256(base64.b64decode(encoded)).hexdigest()
