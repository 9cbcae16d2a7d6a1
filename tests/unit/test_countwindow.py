"""Windows of a number of rows: numpy's results against a direct implementation of Spark's rules."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import UserCodeError
from headwater.query.countwindow import MASK, VALUE, _order, aggregate

WHOLE = st.integers(-(2**40), 2**40)
REAL = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf])
TEXT = st.sampled_from(["", "a", "b", "é", "z"])
FUNCTIONS = ("count", "first", "last", "min", "max", "collect_list", "sum", "avg")


def plainly(function: str, window: list[Any]) -> Any:
    """Aggregate as Spark does, one value after another."""
    values = [v for v in window if v is not None]
    if function == "count":
        return len(values)
    if function in ("first", "last"):
        return window[0 if function == "first" else -1]
    if function == "collect_list":
        return values
    if not values:
        return None
    if function in ("min", "max"):  # NaN is the greatest number
        best = min if function == "min" else max
        return best(values, key=lambda v: (1, 0) if v != v else (0, v))
    return sum(values) if function == "sum" else sum(map(float, values)) / len(values)


def same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6)
    return bool(a == b)


def results(column: Any, element: pa.DataType | None = None) -> list[Any]:
    """Convert a column of results as Spark does: pandas' missing values become NULL, NaN stays NaN."""
    if element is not None:
        return pa.Array.from_pandas(pd.Series(column), type=pa.list_(element)).to_pylist()  # type: ignore[no-any-return]
    return pa.array(column, from_pandas=False).to_pylist()


@given(st.data())
def test_aggregates_are_sparks(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["whole", "real", "text", "truth"]))
    element = {"whole": WHOLE, "real": REAL, "text": TEXT, "truth": st.booleans()}[kind]
    size, count = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    rows = data.draw(st.lists(st.none() | element, min_size=size * count, max_size=size * count))
    function = data.draw(st.sampled_from(FUNCTIONS if kind in ("whole", "real") else FUNCTIONS[:6]))
    filler: Any = {"whole": 0, "real": math.nan, "text": None, "truth": False}[kind]
    dtype: Any = {"whole": "int64", "real": "float64", "text": object, "truth": bool}[kind]
    values = np.array([filler if r is None else r for r in rows], dtype=dtype).reshape(count, size)
    nulls = np.array([r is None for r in rows]).reshape(count, size)
    element = {"whole": pa.int64(), "real": pa.float64(), "text": pa.string(), "truth": pa.bool_()}[kind]
    found = aggregate(function, values, nulls if nulls.any() else None)
    got = results(found, element if function == "collect_list" else None)
    wanted = [plainly(function, rows[n * size : (n + 1) * size]) for n in range(count)]
    assert len(got) == count
    assert all(same(a, b) for a, b in zip(wanted, got, strict=True)), (wanted, got)


def test_lists_keep_nan_and_leave_out_null() -> None:
    values = np.array([[1.0, math.nan, math.nan, 2.0]])
    found = aggregate("collect_list", values, np.array([[False, False, True, False]]))
    (listed,) = results(found, pa.float64())
    assert listed[0] == 1.0 and math.isnan(listed[1]) and listed[2:] == [2.0]


def test_times_are_aggregated() -> None:
    values = np.array([["2026-01-02", "NaT", "2026-01-01"]], dtype="datetime64[us]")
    nulls = np.isnat(values)
    assert aggregate("min", values, nulls).tolist() == values[:, 2].tolist()
    assert aggregate("max", values, nulls).tolist() == values[:, 0].tolist()
    assert pd.isna(aggregate("first", values[:, 1:], nulls[:, 1:])).all()
    assert aggregate("collect_list", values, nulls) == [[datetime(2026, 1, 2), datetime(2026, 1, 1)]]
    assert aggregate("collect_list", values.astype("datetime64[ns]"), nulls)[0][1] == datetime(2026, 1, 1)


def test_a_sum_that_overflows_is_an_error() -> None:
    near = np.array([[2**62, 2**62 - 1]])
    assert results(aggregate("sum", near, None)) == [2**63 - 1]
    with pytest.raises(UserCodeError, match="overflows"):
        aggregate("sum", np.array([[2**62, 2**62]]), None)
    assert results(aggregate("avg", np.array([[2**62, 2**62]]), None)) == [float(2**62)]


@given(st.data())
def test_order_is_that_of_a_batch(data: st.DataObject) -> None:
    orders = data.draw(st.integers(1, 2))
    row = st.tuples(st.none() | st.integers(0, 5), st.none() | TEXT, st.none() | st.floats(0, 3))
    rows = data.draw(st.lists(row, min_size=1, max_size=12))
    columns = {
        f"{VALUE}0": np.array([0 if r[0] is None else r[0] for r in rows]),
        f"{VALUE}1": np.array([r[1] for r in rows], dtype=object),
        f"{VALUE}2": np.array([math.nan if r[2] is None else r[2] for r in rows]),
        f"{MASK}0": np.array([sum((v is None) << n for n, v in enumerate(r)) for r in rows]),
    }
    order = _order(columns, orders)
    got = rows if order is None else [rows[i] for i in order]
    assert got == sorted(rows, key=lambda r: [(v is not None, v) for v in r])
