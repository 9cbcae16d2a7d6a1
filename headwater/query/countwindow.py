"""Windows of a fixed number of rows of a key: cut by numpy as rows arrive, by row numbers in a batch run.

Rows are reduced to the keys and the *values* ``__v<n>``: the distinct expressions of ``order_by``,
which come first, and of the aggregates. Which values are NULL stands in bit masks ``__n<n>`` of 60
values each, because pandas would turn whole numbers with NULLs into floating point, and NULL into NaN.
PySpark also takes the keys through pandas: keys that are numbers come once more, as ``__k<n>`` without
NULLs. Their bits follow those of the values. Numbers in the order of arrival are packed by key before Spark
shuffles them (see ``packing``); a packed row has bits of its keys in a mask ``__kn``.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headwater.connectors.sparksql import column_of, expression
from headwater.connectors.sparktypes import spark_schema
from headwater.core.errors import UserCodeError
from headwater.dataflow import stateful
from headwater.dataflow.types import StreamType
from headwater.query.packing import BITS, KEYS, NUMBERS, masks_of, pack, unpack
from headwater.query.scan import ALL
from headwater.sql.expressions import check
from headwater.sql.lexer import quoted
from headwater.sql.rewrite import row_aggregates
from headwater.sql.schema import BINARY, INT, Column

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

VALUE = "__v"
MASK = "__n"
KEY, KEY_MASK = "__k", "__kn"
_ZERO = {"bigint": 0, "int": 0, "smallint": 0, "tinyint": 0, "boolean": False}
_INEXACT = ("bigint", "int", "smallint", "tinyint", "double", "float")
"""Types of keys whose NULLs pandas does not keep."""

Call = tuple[str, int]
"""A function of one value: its name and the value's number."""


def apply(operator: stateful.CountWindow, frame: DataFrame, type_: StreamType, *, streaming: bool) -> DataFrame:
    """Return a row per window, in a stream or a batch. The caller sets watermarks."""
    schema, where = type_.schema, operator.where
    parts = row_aggregates(operator.aggregates, schema, where=where)
    event_time = stateful.by_event_time(operator, type_)
    if event_time is not None:
        frame = frame.where(column_of(event_time).isNotNull())
    order = [check(quoted(c), schema, where=where).text for c in operator.order_by]
    values = list(dict.fromkeys([*order, *(argument for _, argument in parts.calls)]))
    calls = [(function, values.index(argument)) for function, argument in parts.calls]
    types = [check(text, schema, where=where).type.text for text in values]
    keys = operator.keys or (ALL,)
    by = [column_of(k) for k in operator.keys] or [F.lit(0).alias(ALL)]
    rows = frame.select(*by, *(expression(text).alias(f"{VALUE}{n}") for n, text in enumerate(values)))
    outputs = [column_of(k) for k in operator.keys]
    outputs += [expression(text).alias(name) for name, text in parts.outputs]
    size, slide = operator.size, operator.slide or operator.size
    if not streaming:
        return _batch(rows, keys, calls, len(values), size, slide).select(*outputs)
    own = [replace(schema.column(k), name=k) for k in operator.keys] or [Column(ALL, INT)]
    inexact = {k: schema.column(k).type.text for k in operator.keys if schema.column(k).type.text in _INEXACT}
    columns = {k: column_of(k) for k in keys}
    if kinds := _packed_kinds(types, own, event_time):
        rows = _packed(rows, own, kinds)
        columns |= {name: F.col(name) for name in _names(len(values))} | _exact_keys(inexact)
        if inexact:
            (columns[KEY_MASK],) = _masks([quoted(k) for k in inexact]).values()
    else:
        nullable = [*(f"{VALUE}{n}" for n in range(len(values))), *map(quoted, inexact)]
        columns |= _filled(types) | _exact_keys(inexact) | _masks(nullable)
    processor = CountWindowProcessor(
        columns=tuple(columns),
        keys=keys,
        inexact=tuple(inexact),
        orders=len(dict.fromkeys(order)),
        calls=tuple(calls),
        size=size,
        slide=slide,
        event_time=event_time is not None,
        packed=kinds,
    )
    ready = rows.select(*(column.alias(name) for name, column in columns.items()))
    windows = ready.groupBy(*map(column_of, keys)).transformWithStateInPandas(
        statefulProcessor=processor,
        outputStructType=spark_schema([*own, *(Column(f"__g{i}", t) for i, t in enumerate(parts.types))]),
        outputMode="Append",
        timeMode="EventTime" if event_time else "None",
    )
    return windows.select(*outputs)


def _names(values: int) -> tuple[str, ...]:
    """Return the columns of a number of values, and of the masks of packed ones."""
    return (*(f"{VALUE}{n}" for n in range(values)), *(f"{MASK}{n}" for n in range(masks_of(values))))


def _packed_kinds(types: Sequence[str], keys: Sequence[Column], event_time: str | None) -> tuple[str, ...]:
    """Return numpy's types of the values if rows can be packed; Spark must see the time of each row itself."""
    packable = all(k.type.text in KEYS for k in keys) and all(t in NUMBERS for t in types) and len(keys) <= BITS
    return tuple(NUMBERS[t] for t in types) if packable and event_time is None else ()


def _packed(rows: DataFrame, keys: Sequence[Column], kinds: tuple[str, ...]) -> DataFrame:
    columns = [*keys, *(Column(name, BINARY) for name in _names(len(kinds)))]
    function = partial(pack, names=tuple(c.name for c in columns), kinds=kinds)
    return rows.mapInArrow(function, spark_schema(columns))


def _filled(types: Sequence[str]) -> dict[str, Expression]:
    columns = {}
    for n, type_ in enumerate(types):
        value = F.col(f"{VALUE}{n}")
        if type_ in _ZERO:
            value = F.coalesce(value, F.lit(_ZERO[type_]).cast(type_))
        columns[f"{VALUE}{n}"] = value
    return columns


def _exact_keys(inexact: Mapping[str, str]) -> dict[str, Expression]:
    """Return keys without NULLs."""
    return {
        f"{KEY}{n}": expression(f"coalesce({quoted(k)}, CAST(0 AS {type_}))")
        for n, (k, type_) in enumerate(inexact.items())
    }


def _masks(columns: Sequence[str]) -> dict[str, Expression]:
    """Return the bit masks of columns that are NULL, 60 in each."""
    masks = {}
    for first in range(0, len(columns), BITS):
        bits = [f"IF({c} IS NULL, {1 << n}L, 0L)" for n, c in enumerate(columns[first : first + BITS])]
        masks[f"{MASK}{first // BITS}"] = expression(" + ".join(bits))
    return masks


def _batch(
    rows: DataFrame, keys: tuple[str, ...], calls: Sequence[Call], values: int, size: int, slide: int
) -> DataFrame:
    """Number each key's rows and group by the windows that each number falls into."""
    from pyspark.sql import Window

    by = [column_of(k) for k in keys]
    order = [F.col(f"{VALUE}{n}").asc_nulls_first() for n in range(values)]
    numbered = rows.withColumn("__i", F.row_number().over(Window.partitionBy(*by).orderBy(*order)) - 1)
    first = f"greatest(0, cast(ceil((__i - {size} + 1) / {slide}) AS int))"
    spread = numbered.withColumn("__w", expression(f"explode(sequence({first}, cast(floor(__i / {slide}) AS int)))"))
    # With slide < size a row's first and last windows overlap; __i below the first window's start cannot be.
    spread = spread.where(expression(f"__i >= __w * {slide} AND __i < __w * {slide} + {size}"))
    results = [F.count(F.lit(1)).alias("__rows")]
    for i, (function, n) in enumerate(calls):
        value = F.col(f"{VALUE}{n}")
        if function in ("first", "last"):
            picked = F.min_by if function == "first" else F.max_by
            results.append(picked(value, F.col("__i")).alias(f"__g{i}"))
        elif function == "collect_list":  # Spark's own has no order
            pairs = f"collect_list(struct(__i, {VALUE}{n})) FILTER (WHERE {VALUE}{n} IS NOT NULL)"
            results.append(expression(f"transform(sort_array({pairs}), x -> x.{VALUE}{n})").alias(f"__g{i}"))
        else:
            results.append(expression(f"{function}({VALUE}{n})").alias(f"__g{i}"))
    return spread.groupBy(*by, F.col("__w")).agg(*results).where(F.col("__rows") == size)


# ---------------------------------------------------------------- in a stream

Rows = dict[str, "np.ndarray[Any, Any]"]
"""Columns of rows, without the keys."""


class CountWindowProcessor(StatefulProcessor):
    """Cut the rows of each key into windows and aggregate them; see the module for the columns.

    In event-time order rows wait until the watermark has passed them, otherwise the rows of each
    micro-batch are taken in order, batch after batch. Output: the keys and ``__g<i>`` per call.
    """

    def __init__(
        self,
        *,
        columns: tuple[str, ...],
        keys: tuple[str, ...],
        inexact: tuple[str, ...] = (),
        orders: int,
        calls: tuple[Call, ...],
        size: int,
        slide: int,
        event_time: bool,
        packed: tuple[str, ...] = (),
    ) -> None:
        self._columns = columns
        self._keys = keys
        self._inexact = inexact
        self._orders = orders
        self._calls = calls
        self._size = size
        self._slide = slide
        self._event_time = event_time
        self._packed = packed

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: the rows of unfinished windows and, in event-time order, pending rows."""
        self._handle = handle
        self._open = handle.getValueState("open", "rows binary")
        self._waiting = handle.getListState("waiting", "rows binary") if self._event_time else None

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Cut windows at once, or store rows until the watermark has passed them."""
        for exact, fresh in self._by_key(key, rows):
            if exact is not key:
                self._handle._statefulProcessorApiClient.set_implicit_key(exact)
            if self._waiting is None:
                yield from self._cut(exact, fresh)
            else:
                self._wait(fresh)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Cut windows from the rows that the watermark has passed."""
        assert self._waiting is not None
        passed = timerValues.getCurrentWatermarkInMs()
        chunks = [pickle.loads(chunk) for (chunk,) in self._waiting.get()]
        if not chunks:
            return iter(())
        rows = _joined(chunks)
        ready = _deadlines(rows) <= passed
        self._waiting.clear()
        self._wait({name: values[~ready] for name, values in rows.items()})
        return self._cut(key, {name: values[ready] for name, values in rows.items()})

    def _by_key(self, key: Any, rows: Iterator[pd.DataFrame]) -> Iterator[tuple[Any, Rows]]:
        """Yield the rows of each key, with the key as it was before pandas.

        Where a batch has a NULL, whole numbers come as floating point: large ones may then be equal, and Spark
        would store the state under NULL.
        """
        if self._packed:
            yield from self._unpacked(key, rows)
            return
        fresh = _joined([self._arrays(part) for part in rows])
        if not self._inexact:
            yield key, fresh
            return
        keys = [fresh.pop(f"{KEY}{n}") for n in range(len(self._inexact))]
        values = sum(name.startswith(VALUE) for name in fresh)
        nulls = [_nulls(fresh, values + n) for n in range(len(self._inexact))]
        for name in [name for name in fresh if name.startswith(MASK)][-(-values // BITS) :]:
            del fresh[name]  # the state has masks of values only
        for exact, chosen in _exact(key, [self._keys.index(k) for k in self._inexact], keys, nulls):
            yield exact, fresh if chosen is None else {name: values[chosen] for name, values in fresh.items()}

    def _unpacked(self, key: Any, rows: Iterator[pd.DataFrame]) -> Iterator[tuple[Any, Rows]]:
        import pandas as pd

        part = pd.concat(list(rows))
        groups: Iterator[tuple[Any, Any]] = iter([(key, None)])
        if self._inexact:
            column = {name: part.iloc[:, n].to_numpy() for n, name in enumerate(self._columns)}
            count = len(self._inexact)
            nulls = [column[KEY_MASK] >> n & 1 == 1 for n in range(count)]
            places = [self._keys.index(k) for k in self._inexact]
            groups = _exact(key, places, [column[f"{KEY}{n}"] for n in range(count)], nulls)
        for exact, chosen in groups:
            arrays = unpack(part if chosen is None else part.iloc[chosen], len(self._keys), self._packed)
            yield exact, dict(zip(_names(len(self._packed)), arrays, strict=True))

    def _arrays(self, part: pd.DataFrame) -> Rows:
        # PySpark renames columns that begin with an underscore; their order it keeps.
        return {name: part.iloc[:, n].to_numpy() for n, name in enumerate(self._columns) if name not in self._keys}

    def _wait(self, rows: Rows) -> None:
        if _length(rows):
            assert self._waiting is not None
            self._waiting.appendValue((pickle.dumps(rows),))
            self._handle.registerTimer(_deadlines(rows).min().item())

    def _cut(self, key: Any, rows: Rows) -> Iterator[pd.DataFrame]:
        import pandas as pd

        if not _length(rows):
            return iter(())
        order = _order(rows, self._orders)
        if order is not None:
            rows = {name: values[order] for name, values in rows.items()}
        kept = self._open.get()
        if kept:
            rows = _joined([pickle.loads(kept[0]), rows])
        count = max(0, (_length(rows) - self._size) // self._slide + 1)
        rest = {name: values[count * self._slide :] for name, values in rows.items()}
        self._open.update((pickle.dumps(rest),))
        if not count:
            return iter(())
        out: dict[str, Any] = {name: [value] * count for name, value in zip(self._keys, key, strict=True)}
        for i, (function, n) in enumerate(self._calls):
            nulls = _nulls(rows, n)
            out[f"__g{i}"] = aggregate(
                function,
                _windows(rows[f"{VALUE}{n}"], self._size, self._slide),
                _windows(nulls, self._size, self._slide) if nulls is not None else None,
            )
        return iter([pd.DataFrame(out)])

    def close(self) -> None:
        """Release nothing: the state belongs to Spark."""


def _exact(
    key: Any,
    places: Sequence[int],
    keys: Sequence[np.ndarray[Any, Any]],
    nulls: Sequence[np.ndarray[Any, Any] | None],
) -> Iterator[tuple[tuple[Any, ...], np.ndarray[Any, Any] | None]]:
    """Yield each distinct key among rows whose keys pandas made equal, and the numbers of its rows; None for all.

    A key that pandas left as it was is ``key`` itself: its state needs no other key.
    ``keys`` are the exact values at ``places`` of the key, ``nulls`` their masks, None where none is NULL.
    """
    import numpy as np

    masks = [mask for mask in nulls if mask is not None]
    same = all(bool((values == values[0]).all()) for values in (*keys, *masks))
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row in range(1 if same else len(keys[0])):
        exact = list(key)
        for values, mask, place in zip(keys, nulls, places, strict=True):
            exact[place] = None if mask is not None and mask[row] else values[row].item()
        groups.setdefault(tuple(exact), []).append(row)
    for found, chosen in groups.items():
        kept = all(type(now) is type(was) and now == was for now, was in zip(found, key, strict=True))
        yield key if kept else found, None if same else np.array(chosen)


def _length(rows: Rows) -> int:
    return len(rows[f"{MASK}0"])


def _joined(parts: list[Rows]) -> Rows:
    import numpy as np

    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def _deadlines(rows: Rows) -> np.ndarray[Any, Any]:
    """Return the first whole millisecond at which a watermark has passed each row."""
    micros = rows[f"{VALUE}0"].astype("datetime64[us]").astype("int64")
    return -(-micros // 1000)


def _nulls(rows: Rows, n: int) -> np.ndarray[Any, Any] | None:
    """Return a mask of the rows whose value is NULL; None when there are none."""
    found = (rows[f"{MASK}{n // BITS}"] >> (n % BITS)) & 1 == 1
    return found if found.any() else None


def _order(rows: Rows, orders: int) -> np.ndarray[Any, Any] | None:
    """Return the order of rows by all values, NULLs first, as in ``_batch``; None when they are sorted already."""
    import numpy as np
    import pandas as pd

    first = rows[f"{VALUE}0"]
    if orders == 1 and first.dtype.kind in "iM" and _nulls(rows, 0) is None:
        if bool(np.all(first[1:] > first[:-1])):
            return None
        order = np.argsort(first, kind="stable")
        ordered = first[order]
        if bool(np.all(ordered[1:] > ordered[:-1])):
            return order
    columns: list[Any] = []
    for n in range(sum(name.startswith(VALUE) for name in rows)):
        values, nulls = rows[f"{VALUE}{n}"], _nulls(rows, n)
        if values.dtype.kind == "O":
            columns.append(pd.factorize(values, sort=True)[0])  # NULLs are -1
            continue
        if nulls is not None:
            columns.append(~nulls)
            values = np.where(nulls, values[:1], values)
        columns.append(values)
    return np.lexsort(columns[::-1])


def _windows(values: np.ndarray[Any, Any], size: int, slide: int) -> np.ndarray[Any, Any]:
    """View a column as its windows, one per row."""
    import numpy as np

    return np.lib.stride_tricks.sliding_window_view(values, size)[::slide]


def aggregate(function: str, values: np.ndarray[Any, Any], nulls: np.ndarray[Any, Any] | None) -> Any:
    """Aggregate each window (a row of ``values``) as Spark SQL does; ``nulls`` is the mask of NULL values.

    NULLs do not count, a window without a value gives NULL, and NaN is greater than any number.
    """
    import numpy as np

    size: int = values.shape[1]
    present = np.full(len(values), size) if nulls is None else size - nulls.sum(axis=1)
    if function == "count":
        return present
    if function in ("first", "last"):
        at = 0 if function == "first" else -1
        return _column(values[:, at], None if nulls is None else nulls[:, at])
    if function == "collect_list":
        return _lists(values, nulls)
    empty = present == 0 if nulls is not None else None
    if values.dtype.kind == "O":
        best = min if function == "min" else max
        return [best((v for v in window if v is not None), default=None) for window in values]
    if function in ("sum", "avg"):
        if nulls is not None:
            values = np.where(nulls, values.dtype.type(0), values)
        with np.errstate(invalid="ignore", over="ignore"):  # with infinities, NaN and infinity are correct results
            total = _sum(values) if function == "sum" else values.sum(axis=1, dtype="float64")
        return _column(total if function == "sum" else total / np.maximum(present, 1), empty)
    return _column(_extreme(function, values, nulls), empty)


def _column(values: np.ndarray[Any, Any], empty: np.ndarray[Any, Any] | None) -> Any:
    """Make a column of results that distinguishes NULL and NaN."""
    import pandas as pd
    import pyarrow as pa

    if values.dtype.kind in "MO":
        return values  # NaT and None already are NULL
    return pd.Series(pd.arrays.ArrowExtensionArray(pa.array(values, mask=empty)))


def _lists(values: np.ndarray[Any, Any], nulls: np.ndarray[Any, Any] | None) -> list[list[Any]]:
    """Return the values of each window that are not NULL."""
    import pyarrow as pa

    kind = values.dtype.kind
    windows: list[list[Any]] = (values.astype("datetime64[us]") if kind == "M" else values).tolist()
    if nulls is not None:
        pairs = zip(windows, nulls.tolist(), strict=True)
        windows = [[v for v, null in zip(*pair, strict=True) if not null] for pair in pairs]
    if kind == "f":  # PySpark makes NULL of a NaN in a list, but not of Arrow's
        nan = pa.scalar(float("nan"))
        windows = [[v if v == v else nan for v in window] for window in windows]
    return windows


def _sum(values: np.ndarray[Any, Any]) -> Any:
    import numpy as np

    if values.dtype.kind == "f":
        return values.sum(axis=1, dtype="float64")
    if np.abs(values.astype("float64")).sum(axis=1).max() >= 2.0**62:
        for window in values:  # near the end of the range: exactly
            if abs(sum(int(v) for v in window)) >= 2**63:
                raise UserCodeError("sum of bigint overflows", where="count_window", hint="sum(cast(v AS double))")
    return values.sum(axis=1, dtype="int64")


def _extreme(function: str, values: np.ndarray[Any, Any], nulls: np.ndarray[Any, Any] | None) -> Any:
    import numpy as np

    kind = values.dtype.kind
    if kind == "M":  # NaT is skipped
        return (np.fmin if function == "min" else np.fmax).reduce(values, axis=1)
    if nulls is not None:
        neutral: Any = function == "min"
        if kind == "i":
            limits = np.iinfo(values.dtype)
            neutral = limits.max if function == "min" else limits.min
        elif kind == "f":
            neutral = np.nan if function == "min" else -np.inf
        values = np.where(nulls, values.dtype.type(neutral), values)
    if function == "min":
        return np.fmin.reduce(values, axis=1) if kind == "f" else values.min(axis=1)
    return values.max(axis=1)
