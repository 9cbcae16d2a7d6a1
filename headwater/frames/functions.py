"""Run the Python functions of a PySpark job over Arrow batches, as Spark's own Python workers do.

Values are converted by PySpark's own conversions, and times are in UTC, the time zone of Headwater's sessions.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

Form: TypeAlias = Literal["rows", "pandas", "pandas batches", "arrow", "arrow batches"]
"""How a function takes its arguments: row by row, as columns of pandas or Arrow, or as an iterator of these."""
Call: TypeAlias = tuple[str, Callable[..., Any], Form, tuple[str, ...], str]
"""Name of the result's column, function, form, names of its arguments' columns, type of the result in Spark's JSON."""


def with_results(
    calls: Sequence[Call], kept: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Add the results of functions to batches, each as a column, and keep the named columns."""
    for call in calls:
        batches = _with_result(call, batches)
    for batch in batches:
        yield batch.select(list(kept))


def in_pandas(
    function: Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]], schema: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run a function of ``mapInPandas``; ``schema``: that of its rows, in Spark's JSON."""
    import pandas as pd
    from pyspark.sql.conversion import PandasToArrowConversion

    rows = _type(schema)
    frames = (
        pd.concat([series.rename(name) for name, series in zip(b.schema.names, _series(b), strict=True)], axis=1)
        for b in batches
    )
    for frame in function(frames):
        yield PandasToArrowConversion.convert(frame, rows, timezone="UTC", arrow_cast=True, assign_cols_by_name=True)


def _with_result(call: Call, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    name, function, form, names, returns = call
    waiting: deque[pa.RecordBatch] = deque()

    def arguments() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            waiting.append(batch)
            yield batch.select(list(names))

    result_type = _type(returns)
    for result in _FORMS[form](function, arguments(), result_type):
        batch = waiting.popleft()
        if len(result) != batch.num_rows:
            raise ValueError(f"{len(result)} results for {batch.num_rows} rows")
        yield pa.RecordBatch.from_arrays([*batch.columns, result], names=[*batch.schema.names, name])


def _by_rows(function: Callable[..., Any], batches: Iterator[pa.RecordBatch], returns: DataType) -> Iterator[pa.Array]:
    import pyarrow as pa
    from pyspark.sql.conversion import ArrowTableToRowsConversion, LocalDataToArrowConversion
    from pyspark.sql.pandas.types import from_arrow_schema

    for batch in batches:
        rows: Sequence[tuple[Any, ...]] = [()] * batch.num_rows
        if batch.num_columns:
            table = pa.Table.from_batches([batch])
            rows = ArrowTableToRowsConversion.convert(table, from_arrow_schema(batch.schema), return_as_tuples=True)
        results = [(function(*row),) for row in rows]
        yield _array(LocalDataToArrowConversion.convert(results, _one(returns), False).column(0))


def _by_columns_of_pandas(
    function: Callable[..., Any], batches: Iterator[pa.RecordBatch], returns: DataType
) -> Iterator[pa.Array]:
    for batch in batches:
        yield _of_series(function(*_series(batch)), returns)


def _by_batches_of_pandas(
    function: Callable[..., Any], batches: Iterator[pa.RecordBatch], returns: DataType
) -> Iterator[pa.Array]:
    for result in function(_alone_or_tuple(_series(batch)) for batch in batches):
        yield _of_series(result, returns)


def _by_columns_of_arrow(
    function: Callable[..., Any], batches: Iterator[pa.RecordBatch], returns: DataType
) -> Iterator[pa.Array]:
    for batch in batches:
        yield _cast(function(*batch.columns), returns)


def _by_batches_of_arrow(
    function: Callable[..., Any], batches: Iterator[pa.RecordBatch], returns: DataType
) -> Iterator[pa.Array]:
    for result in function(_alone_or_tuple(batch.columns) for batch in batches):
        yield _cast(result, returns)


_FORMS: dict[Form, Callable[..., Iterator[pa.Array]]] = {
    "rows": _by_rows,
    "pandas": _by_columns_of_pandas,
    "pandas batches": _by_batches_of_pandas,
    "arrow": _by_columns_of_arrow,
    "arrow batches": _by_batches_of_arrow,
}


def _alone_or_tuple(columns: Sequence[Any]) -> Any:
    return columns[0] if len(columns) == 1 else tuple(columns)


def _series(batch: pa.RecordBatch) -> list[Any]:
    from pyspark.sql.conversion import ArrowArrayToPandasConversion
    from pyspark.sql.pandas.types import from_arrow_type

    return [
        ArrowArrayToPandasConversion.convert(
            column, from_arrow_type(field.type), ser_name=field.name, timezone="UTC", df_for_struct=True
        )
        for column, field in zip(batch.columns, batch.schema, strict=True)
    ]


def _of_series(result: Any, returns: DataType) -> pa.Array:
    from pyspark.sql.conversion import PandasToArrowConversion

    found = PandasToArrowConversion.convert([result], _one(returns), timezone="UTC", arrow_cast=True)
    return _array(found.column(0))


def _cast(result: Any, returns: DataType) -> pa.Array:
    from pyspark.sql.pandas.types import to_arrow_type

    wanted = to_arrow_type(returns, timezone="UTC")
    return _array(result if result.type == wanted else result.cast(wanted))


def _array(column: Any) -> pa.Array:
    import pyarrow as pa

    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) and column.chunks else column


def _type(text: str) -> Any:
    from pyspark.sql.types import _parse_datatype_json_value

    return _parse_datatype_json_value(json.loads(text))


def _one(found: DataType) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField("result", found)])
