"""Fitted models as Spark SQL: a scikit-learn model runs without Python.

A dataflow holds a model's numbers, not its file: nothing is unpickled where it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwater.core.errors import DataflowError
from headwater.dataflow.stream import Stream
from headwater.iot.text import double_text
from headwater.sql.lexer import quote_string, quoted

_MOST_NODES = 2_000


def predict_linear(rows: Stream, model: Any, *, features: Sequence[str], into: str = "predicted") -> Stream:
    """Add the prediction of a linear model from columns ``features``: scikit-learn's, with ``coef_``, ``intercept_``.

    A row with a NULL among them gets NULL.
    """
    coefficients = [float(c) for c in _vector(model, "coef_")]
    if len(coefficients) != len(features):
        raise DataflowError(
            f"the model has {len(coefficients)} coefficients, but there are {len(features)} features",
            where="predict_linear",
            hint="name the columns in the order in which the model was fitted",
        )
    terms = [f"{double_text(c)} * {quoted(name)}" for c, name in zip(coefficients, features, strict=True)]
    (intercept,) = _vector(model, "intercept_")
    return rows.with_columns(**{into: " + ".join([double_text(float(intercept)), *terms])})


def classify_tree(rows: Stream, model: Any, *, features: Sequence[str], into: str = "class") -> Stream:
    """Add the class that a decision tree predicts from columns ``features``: a fitted DecisionTreeClassifier.

    A row with a NULL among them gets NULL.
    """
    tree = getattr(model, "tree_", None)
    if tree is None:
        raise DataflowError("the tree is not fitted", where="classify_tree", hint="call model.fit(x, y) first")
    if tree.n_features != len(features):
        raise DataflowError(
            f"the tree has {tree.n_features} features, but there are {len(features)}",
            where="classify_tree",
            hint="name the columns in the order in which the tree was fitted",
        )
    if tree.node_count > _MOST_NODES:
        raise DataflowError(
            f"the tree has {tree.node_count} nodes, more than {_MOST_NODES}",
            where="classify_tree",
            hint="limit its depth: DecisionTreeClassifier(max_depth=8)",
        )
    classes = [quote_string(str(c)) for c in model.classes_]

    def node(n: int) -> str:
        if tree.children_left[n] == tree.children_right[n]:
            return classes[int(tree.value[n][0].argmax())]
        column, threshold = features[int(tree.feature[n])], double_text(float(tree.threshold[n]))
        # A tree compares in single precision: its threshold applies to that.
        test = f"CAST({quoted(column)} AS float) <= {threshold}"
        return f"IF({test}, {node(int(tree.children_left[n]))}, {node(int(tree.children_right[n]))})"

    known = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in features)
    return rows.with_columns(**{into: f"IF({known}, {node(0)}, NULL)"})


def estimate_error(
    rows: Stream, *, actual: str = "value", predicted: str = "predicted", average: str = "average",
    into: str = "error",
) -> Stream:  # fmt: skip
    """Add the error of a prediction, as a share of the average: ``|actual - predicted| / |average|``."""
    error = f"abs({quoted(actual)} - {quoted(predicted)}) / nullif(abs({quoted(average)}), 0)"
    return rows.with_columns(**{into: f"CAST({error} AS double)"})


def _vector(model: Any, name: str) -> list[Any]:
    found = getattr(model, name, None)
    if found is None:
        raise DataflowError(f"the model has no {name}", where="predict_linear", hint="fit it first: model.fit(x, y)")
    while hasattr(found, "__len__") and len(found) == 1 and hasattr(found[0], "__len__"):
        found = found[0]
    return list(found) if hasattr(found, "__len__") else [found]
