"""Train models on windows of readings: scikit-learn's, published as ONNX, one row for each window.

Needs the ``iot`` extra where it runs. An ONNX file holds no code, so whoever takes up a model runs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headwater.core.errors import DataflowError
from headwater.dataflow.stateful import window
from headwater.dataflow.stream import Stream
from headwater.sql.lexer import quoted

if TYPE_CHECKING:
    import pyarrow as pa

_OPSETS = {"": 17, "ai.onnx.ml": 3}
"""Versions that onnxruntime 1.20 reads, whatever onnx is installed where a model is trained."""
_LARGEST = "1.7976931348623157E308D"
MODELS = "model binary, samples bigint"


def train_linear(
    rows: Stream, *, features: Sequence[str], target: str, every: str = "10 minutes", keys: Sequence[str] = ()
) -> Stream:
    """Fit a linear regression of ``target`` by ``features`` to each window: the keys, the time, ``model``, ``samples``.

    ``every``: the length of windows; ``keys``: columns with a model for each of their values. ``model`` is ONNX,
    ``samples`` the number of its rows; a model has the last time of its window. Rows with a NULL or an infinite number
    do not count. The rows of a window are in memory at once.
    """

    def fitted(x: Any, y: list[Any]) -> Any:
        from sklearn.linear_model import LinearRegression

        return LinearRegression().fit(x, y)

    return _trained(rows, fitted, features, target, every, keys, label=False)


def train_tree(
    rows: Stream,
    *,
    features: Sequence[str],
    label: str,
    depth: int = 8,
    every: str = "10 minutes",
    keys: Sequence[str] = (),
) -> Stream:
    """Fit a decision tree for the classes in column ``label``, of text, to each window; else as ``train_linear``."""
    if not 1 <= depth <= 16:
        raise DataflowError(f"depth={depth}", where="train_tree", hint="give 1 to 16 levels")

    def fitted(x: Any, y: list[Any]) -> Any:
        from sklearn.tree import DecisionTreeClassifier

        return DecisionTreeClassifier(max_depth=depth, random_state=0).fit(x, y)

    return _trained(rows, fitted, features, label, every, keys, label=True)


def _trained(
    rows: Stream,
    fitted: Callable[[Any, list[Any]], Any],
    features: Sequence[str],
    target: str,
    every: str,
    keys: Sequence[str],
    *,
    label: bool,
) -> Stream:
    time = rows.shape.event_time
    if time is None:
        raise DataflowError("the rows have no event time", where="train", hint=".with_watermark('ts', '10 seconds')")
    if not features:
        raise DataflowError("there are no features", where="train", hint="name columns: features=['light', 'dust']")
    numbers = [*features] if label else [*features, target]
    finite = [f"abs(CAST({quoted(name)} AS double)) <= {_LARGEST}" for name in numbers]  # also false for NaN
    complete = rows.where(" AND ".join([*finite, f"{quoted(target)} IS NOT NULL"]))
    values = [f"CAST({quoted(name)} AS double) AS x{n}" for n, name in enumerate(features)]
    values.append(f"CAST({quoted(target)} AS {'string' if label else 'double'}) AS y")
    # Sorted: the same rows give the same model, in whatever order they came.
    gathered = complete.group_by(window(time.column, every), *keys).agg(
        rows=f"sort_array(collect_list(struct({', '.join(values)})))"
    )
    at = quoted(time.column)
    windows = gathered.select(*map(quoted, keys), f"window_time(window) AS {at}", "rows")

    def train(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            samples = batch.column("rows").to_pylist()
            models = [_onnx(fitted, [tuple(row.values()) for row in rows]) for rows in samples]
            counts = pa.array([len(rows) for rows in samples], pa.int64())
            kept = [batch.column(name) for name in names]
            columns = [*kept, pa.array(models, pa.binary()), counts]
            yield pa.RecordBatch.from_arrays(columns, names=[*names, "model", "samples"])

    names = [*keys, time.column]
    kept = ", ".join(f"{quoted(name)} {windows.schema.column(name).type.text}" for name in names)
    return windows.map_batches(train, f"{kept}, {MODELS}")


def _onnx(fitted: Callable[[Any, list[Any]], Any], samples: Sequence[tuple[Any, ...]]) -> bytes:
    import numpy as np
    from skl2onnx import to_onnx

    x = np.array([sample[:-1] for sample in samples], dtype=float)
    model = fitted(x, [sample[-1] for sample in samples])
    if hasattr(model, "classes_"):  # trees compare in single precision, and ONNX's give their probabilities in it
        example, options = x[:1].astype(np.float32), {id(model): {"zipmap": False}}
    else:
        example, options = x[:1], None
    made = to_onnx(model, example, name="model", target_opset=_OPSETS, options=options)
    content: bytes = made.SerializeToString(deterministic=True)
    return content
