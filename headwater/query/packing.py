"""Rows packed by key for PySpark's stateful operators: numbers of many rows as bytes in one row.

PySpark hands rows to ``transformWithStateInPandas`` one by one, as Python tuples, some microseconds each, and Spark
shuffles and sorts them one by one. Packed before the shuffle, a row for each key and chunk is left. Rows of
one packed row have equal keys; a key may have any number of packed rows, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa

NUMBERS = {"bigint": "int64", "int": "int64", "smallint": "int64", "tinyint": "int64"}
NUMBERS |= {"double": "float64", "float": "float64"}
"""Types of values that can be packed, and the types of numpy that they get: those that PySpark's rows give."""
KEYS = frozenset({"string", "bigint", "int", "smallint", "tinyint", "boolean", "date", "timestamp"})
"""Types of keys that can be packed."""
BITS = 60
"""Values whose NULLs one mask holds."""
_ROWS = 65_536  # rows of a chunk
_WIDTH = 8  # bytes of a value, and of a mask
_DENSE = 1 << 40  # codes of keys beyond which they are numbered anew


def masks_of(values: int) -> int:
    """Return the number of masks for a number of values."""
    return -(-values // BITS)


def pack(batches: Iterable[pa.RecordBatch], *, names: Sequence[str], kinds: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Pack rows of keys and a value of each of ``kinds``; ``names`` are those of the keys, values and masks."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= _ROWS:
            yield _packed(pa.Table.from_batches(waiting), names, kinds)
            waiting, count = [], 0
    if count:
        yield _packed(pa.Table.from_batches(waiting), names, kinds)


def _packed(rows: pa.Table, names: Sequence[str], kinds: Sequence[str]) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    keys = rows.num_columns - len(kinds)
    by = [rows.column(n).combine_chunks() for n in range(keys)]
    codes = _codes(by, rows.num_rows)
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    bounds = np.concatenate((starts, [rows.num_rows]))
    columns: list[Any] = [column.take(pa.array(order[starts])) for column in by]
    nulls: list[Any] = []
    for n, kind in enumerate(kinds):
        column = rows.column(keys + n).combine_chunks()
        nulls.append(column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None)
        columns.append(_bytes(_filled(column, kind)[order], bounds))
    for first in range(0, len(kinds), BITS):
        columns.append(_bytes(_mask(nulls[first : first + BITS], order), bounds))
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def _codes(columns: Sequence[Any], rows: int) -> np.ndarray[Any, Any]:
    """Number the rows by their keys: equal numbers for equal keys only."""
    import numpy as np

    codes, most = np.zeros(rows, dtype="int64"), 1
    for column in columns:
        encoded = column.dictionary_encode()
        size = len(encoded.dictionary) + 1
        codes = codes * size + encoded.indices.fill_null(size - 1).to_numpy(zero_copy_only=False)
        most *= size
        if most > _DENSE:
            found, codes = np.unique(codes, return_inverse=True)
            most = len(found)
    return codes


def _filled(column: Any, kind: str) -> np.ndarray[Any, Any]:
    """Return the values, with 0 or NaN in place of NULL."""
    if column.null_count:
        column = column.fill_null(0 if kind == "int64" else float("nan"))
    return column.to_numpy(zero_copy_only=False).astype(kind, copy=False)  # type: ignore[no-any-return]


def _mask(nulls: Sequence[Any], order: Any) -> np.ndarray[Any, Any] | None:
    """Return a bit for each value that is NULL; None where no value is."""
    import numpy as np

    mask = None
    for bit, found in enumerate(nulls):
        if found is not None:
            mask = np.zeros(len(order), dtype="int64") if mask is None else mask
            mask |= found.astype("int64") << bit
    return None if mask is None else mask[order]


def _bytes(values: np.ndarray[Any, Any] | None, bounds: np.ndarray[Any, Any]) -> pa.Array:
    """Cut values of 8 bytes into one binary for each key, without a copy; empty ones for None."""
    import numpy as np
    import pyarrow as pa

    ends = np.zeros(len(bounds), dtype="int32") if values is None else (bounds * _WIDTH).astype("int32")
    data = pa.py_buffer(b"" if values is None else values)
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(ends), data])


def unpack(part: pd.DataFrame, first: int, kinds: Sequence[str]) -> list[np.ndarray[Any, Any]]:
    """Return the values, then the masks, of packed rows whose values begin at column ``first``."""
    import numpy as np

    columns = [list(part.iloc[:, n]) for n in range(first, first + len(kinds))]
    found = [np.frombuffer(b"".join(column), dtype=kind) for column, kind in zip(columns, kinds, strict=True)]
    for n in range(masks_of(len(kinds))):
        masks = list(part.iloc[:, first + len(kinds) + n])
        if any(masks):
            whole = b"".join(mask or bytes(len(one)) for mask, one in zip(masks, columns[0], strict=True))
            found.append(np.frombuffer(whole, dtype="int64"))
        else:
            found.append(np.zeros(len(found[0]), dtype="int64"))
    return found
