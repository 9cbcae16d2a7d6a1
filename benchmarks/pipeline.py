"""The pipeline of the FlowUnits paper, for every benchmark that runs it, and its expected output.

O1 keeps every third of the rows ``i``, O2 averages ten rows of a key ``i % 10`` in order, O3 counts
Collatz steps of the average and keeps the small ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

if TYPE_CHECKING:
    import pandas as pd

SIZE = 10  # rows of a count window
STEPS = 100  # O3 keeps averages with fewer steps
LIMIT = 200  # steps after which counting ends

# The same text for plain Spark and Headwater.
START = "cast(mean AS bigint) % 1000 + 1"
COLLATZ = (
    f"aggregate(sequence(1, {LIMIT}), named_struct('n', {START}, 's', 0), (a, x) -> IF(a.n <= 1, a, "
    "named_struct('n', IF(a.n % 2 = 0, a.n div 2, 3 * a.n + 1), 's', a.s + 1))).s"
)


class Averages(StatefulProcessor):
    """Average every ten rows of a key in order, vectorised; the rest waits in the state."""

    def __init__(self, *keys: str) -> None:
        self._keys = keys

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._rest = handle.getValueState("rest", "values binary")

    def handleInputRows(  # noqa: N802 (PySpark's name)
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],  # type: ignore[override]  # it is never given rows
        timerValues: Any,  # noqa: N803 (PySpark's name)
    ) -> Iterator[pd.DataFrame]:
        import numpy as np
        import pandas as pd

        values = np.sort(np.concatenate([part["i"].to_numpy() for part in rows]))
        rest = self._rest.get()
        if rest:
            values = np.concatenate([np.frombuffer(rest[0], dtype="int64"), values])
        full = len(values) // SIZE * SIZE
        self._rest.update((values[full:].tobytes(),))
        if full:
            means = values[:full].reshape(-1, SIZE).mean(axis=1)
            count = len(means)
            named = {
                name: np.full(count, value, dtype=object if isinstance(value, str) else None)
                for name, value in zip(self._keys, key, strict=True)
            }
            yield pd.DataFrame({**named, "mean": means})

    def close(self) -> None:
        pass


def results(first: int, rows: int) -> pa.Table:
    """Compute the output for ``i = first .. first + rows - 1`` without Spark."""
    every = np.arange(first, first + rows, dtype="int64")
    kept = every[every % 3 == 0]
    keys, means = [], []
    for number in range(10):
        mine = kept[kept % 10 == number]
        windows = mine[: len(mine) // SIZE * SIZE].reshape(-1, SIZE)
        means.append(windows.sum(axis=1) / SIZE)
        keys.append(np.full(len(windows), number, dtype="int64"))
    key, mean = np.concatenate(keys), np.concatenate(means)
    counted = _all_steps()[mean.astype("int64") % 1000]
    few = counted < STEPS
    return ordered(pa.table({"key": key[few], "mean": mean[few], "steps": counted[few].astype("int32")}))


@cache
def _all_steps() -> np.ndarray:
    return np.array([_steps(n) for n in range(1, 1001)])


def _steps(n: int) -> int:
    steps = 0
    while n > 1 and steps < LIMIT:
        n, steps = n // 2 if n % 2 == 0 else 3 * n + 1, steps + 1
    return steps


def written(files: list[Path], columns: tuple[str, ...] = ()) -> pa.Table:
    """Return the rows in a variant's sink, in a comparable order; `columns` are further keys."""
    schema = pa.schema([("key", pa.int64()), ("mean", pa.float64()), ("steps", pa.int32())])
    for name in columns:
        schema = schema.append(pa.field(name, pa.string()))
    tables = [pq.ParquetFile(f).read().select(schema.names).cast(schema) for f in files]
    return ordered(pa.concat_tables([schema.empty_table(), *tables]))


def ordered(table: pa.Table) -> pa.Table:
    """Sort rows, so that equal multisets are equal tables."""
    names = ["key", "mean", *(n for n in table.column_names if n not in ("key", "mean", "steps"))]
    return table.select([*names, "steps"]).sort_by([(name, "ascending") for name in names])


def check(variant: str, got: pa.Table, wanted: pa.Table) -> None:
    """End the benchmark if a variant's result is wrong."""
    if got.num_rows != wanted.num_rows:
        sys.exit(f"{variant}: {got.num_rows} rows instead of {wanted.num_rows}")
    for name in wanted.column_names:
        mine = got[name].to_numpy(zero_copy_only=False)
        right = wanted[name].to_numpy(zero_copy_only=False)
        if not np.array_equal(mine, right):
            at = int(np.flatnonzero(mine != right)[0])
            sys.exit(f"{variant}: in row {at} {name} is {mine[at]} instead of {right[at]}")
