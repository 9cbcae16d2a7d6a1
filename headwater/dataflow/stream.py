"""The fluent API for dataflows, in the style of PySpark.

Every method checks itself against the schema and returns a new Stream; nothing runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol

from headwater.core.errors import DataflowError, HeadwaterError
from headwater.core.requirement import Requirement
from headwater.core.rules import MOST_TEXT, Span
from headwater.core.text import cut, shown
from headwater.dataflow import habits, sinks, stateful
from headwater.dataflow import operators as ops
from headwater.dataflow.arguments import ArgumentGuard
from headwater.dataflow.builtin import BuiltinFunction
from headwater.dataflow.function import PythonFunction, accepts
from headwater.dataflow.keys import KeyExpression, Keys
from headwater.dataflow.pairs import pair_fold, pairing
from headwater.dataflow.predictor import predictor
from headwater.dataflow.recognition import recognition
from headwater.dataflow.settings import (
    Aggregated,
    AggregateItems,
    Bound,
    ColumnName,
    Columns,
    Computed,
    ComputedByName,
    Condition,
    Definitions,
    Duration,
    DurationOrNone,
    Label,
    Measures,
    NewNames,
    Option,
    Place,
    Projections,
    RowPatternText,
    SchemaOf,
    ShownRows,
    TopRows,
    WindowRows,
    chained,
    text_of,
)
from headwater.dataflow.types import StreamType, is_time
from headwater.dataflow.windowmakers import (
    ChopTime,
    Complete,
    Maker,
    RowWindows,
    SlidingTime,
    WindowMaker,
    has_map,
    step_of,
    window_fold,
)
from headwater.sql.columnnames import free_name, spark_name
from headwater.sql.expressions import check_condition, parse_projection
from headwater.sql.generators import ArrayRows, exploded_of
from headwater.sql.lexer import quoted
from headwater.sql.parser import parse_item
from headwater.sql.printer import canonical
from headwater.sql.rewrite import ranks, row_json, row_struct
from headwater.sql.rowarrays import over_rows
from headwater.sql.schema import ArrayType, Column, Schema
from headwater.sql.syntax import Alias

_NUMBER = re.compile(r"([0-9.]+)")


class Registry(Protocol):
    """Methods of the dataflow that a stream needs."""

    name: str

    def new_id(self, kind: str) -> str:
        """Return the next free name for an operator of ``kind``."""

    def add_sink(self, stream: Stream) -> None:
        """Register a stream that ends in a sink."""

    def replace_sink(self, old: Stream, new: Stream) -> None:
        """Register a sink's new name."""

    def add_name(self, name: str, stream: Stream) -> None:
        """Register the stream that SQL statements read by a name."""


@dataclass(frozen=True, eq=False)
class Stream(habits.NameGuard):
    """A stream of rows with a known schema; methods return new streams and change nothing."""

    builder: Registry
    operator: ops.Operator
    parents: tuple[Stream, ...]
    shape: StreamType
    next_layer: str | None = None
    next_requires: Requirement = Requirement()

    def __repr__(self) -> str:
        return f"<Stream '{self.operator.id}' of dataflow '{self.builder.name}': {self.schema.text}>"

    def _unknown(self, name: str) -> habits.UnknownName:
        where = f"after '{self.operator.id}'"
        return habits.missing(name, self, habits.STREAM, where=where, columns=self.columns)

    def _place_of(self, method: str) -> str:
        return f"{method} after '{self.operator.id}'"

    # ------------------------------------------------------------ schema

    @property
    def schema(self) -> Schema:
        """The columns and their types."""
        return self.shape.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.shape.schema.names)

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """The names of the columns and their types, as text."""
        return [(column.name, column.type.text) for column in self.schema.columns]

    isStreaming = True

    def __getitem__(self, name: str) -> NoReturn:
        """Refuse ``stream["v"]`` with the line to write."""
        raise self._unknown(str(name))

    def print_schema(self) -> None:
        """Print the columns and their types as PySpark does."""
        print("root")
        for column in self.schema.columns:
            print(f" |-- {column.name}: {column.type.text}")

    # ------------------------------------------------------------ place and name

    def to_layer(self, layer: Place) -> Stream:
        """Run the following operators in this layer, in every zone of it that covers a location of the dataflow.

        It drops earlier requirements: ``.to_layer("cloud").require("gpu = true")``.
        """
        return replace(self, next_layer=layer, next_requires=Requirement())

    def require(self, *predicates: Place) -> Stream:
        """Run later operators only on hosts with these capabilities: ``require("gpu = true", "n_cpu >= 4")``."""
        try:
            wanted = Requirement.parse(" and ".join(predicates))
        except HeadwaterError as error:
            raise DataflowError(error.what, where=f"require after '{self.operator.id}'", hint=error.hint) from error
        return replace(self, next_requires=self.next_requires & wanted)

    def named(self, name: Label) -> Stream:
        """Name the last operator, for plans, metrics and errors, and the stream for SQL statements."""
        stream = replace(self, operator=replace(self.operator, id=name))
        if not isinstance(self.operator, sinks.Sink):
            self.builder.add_name(name, stream)
        return stream

    # ------------------------------------------------------------ row by row

    def where(self, condition: Condition) -> Stream:
        """Keep the rows for which the condition is true."""
        return self._then(ops.Where, condition=condition)

    filter = where

    def select(self, *columns: Projections) -> Stream:
        """Compute columns: ``select("id", "v * 2 AS twice", F.col("window.start").alias("start"))``.

        ``explode(items) AS item`` gives a row for each element of the array.
        """
        where = f"select after '{self.operator.id}'"
        stream, pairs = self, list[tuple[str, str]]()
        for text in chained(columns):
            if (exploded := exploded_of(text)) is None:
                pairs += [(name, e.text) for name, e in parse_projection(text, self.schema, where=where)]
            else:
                stream, free = stream._with_elements(exploded)
                pairs.append((exploded.name, quoted(free)))
        return stream._then(ops.Select, columns=tuple(pairs))

    def _with_elements(self, exploded: ArrayRows) -> tuple[Stream, str]:
        """Return the stream with a row for each element, and the name of the element's column."""
        taken = {c.lower() for c in self.columns}
        names = (exploded.name, *(f"{exploded.name}_{i}" for i in range(2, len(taken) + 3)))
        free = next(n for n in names if n.lower() not in taken)
        return self.explode(exploded.array, free, outer=exploded.outer), free

    def with_columns(self, **columns: Computed) -> Stream:
        """Add columns, or replace those of the same name: ``with_columns(twice="v * 2")``."""
        given = {k.lower(): (k, text_of(v)) for k, v in columns.items()}
        if len(given) < len(columns):
            raise DataflowError(
                "two columns differ only by case",
                where=f"with_columns after '{self.operator.id}'",
                hint="names ignore case: name each once",
            )
        pairs = [given.pop(c.lower(), (c, quoted(c))) for c in self.columns]
        return self._then(ops.Select, columns=tuple((*pairs, *given.values())))

    def withColumn(self, name: ColumnName, column: Computed) -> Stream:
        """Add a column, or replace that of the same name: ``withColumn("twice", F.col("v") * 2)``."""
        return self.withColumns({name: column})

    def withColumns(self, columns: ComputedByName) -> Stream:
        """Add columns, or replace those of the same name: ``withColumns({"twice": F.col("v") * 2})``."""
        stream, plain = self, dict[str, Any]()
        for name, text in columns.items():
            exploded = exploded_of(text_of(text))
            if exploded is None:
                plain[name] = text
            else:
                stream, free = stream._with_elements(replace(exploded, name=name))
                plain[name] = quoted(free)
        added = stream.with_columns(**plain)
        extra = [c for c in stream.columns if c not in self.columns and c not in columns]
        return added.drop(*extra) if extra else added

    def withColumnRenamed(self, existing: ColumnName, new: ColumnName) -> Stream:
        """Rename a column."""
        return self.withColumnsRenamed({existing: new})

    def withColumnsRenamed(self, names: NewNames) -> Stream:
        """Rename columns: ``withColumnsRenamed({"v": "value"})``."""
        self._require_columns(names, "withColumnsRenamed")
        new = {existing.lower(): name for existing, name in names.items()}
        return self._then(ops.Select, columns=tuple((new.get(c.lower(), c), quoted(c)) for c in self.columns))

    def drop(self, *columns: ColumnName) -> Stream:
        """Drop columns."""
        self._require_columns(columns, "drop")
        gone = {c.lower() for c in columns}
        return self._then(ops.Select, columns=tuple((c, quoted(c)) for c in self.columns if c.lower() not in gone))

    def _require_columns(self, names: Iterable[str], method: str) -> None:
        unknown = {c.lower() for c in names} - {c.lower() for c in self.columns}
        if unknown:
            raise DataflowError(
                f"no column {cut(', '.join(sorted(unknown)), 200)}",
                where=self._place_of(method),
                hint=f"the columns are {cut(', '.join(self.columns), 600)}",
            )

    def explode(
        self, expression: Computed, alias: ColumnName, *, position: ColumnName | None = None, outer: bool = False
    ) -> Stream:
        """Return one row per element of an array, as column ``alias`` (and its index as ``position``)."""
        return self._then(ops.Explode, expression=expression, alias=alias, position=position, outer=outer)

    def union(self, *others: Stream) -> Stream:
        """Return all rows of this stream and the others, columns matched by name."""
        if not others:
            raise DataflowError(
                "union without other streams", where=f"union after '{self.operator.id}'", hint="write a.union(b, ...)"
            )
        return self._then(ops.Union, others)

    merge = union

    def map_batches(self, function: Callable[..., Any], schema: SchemaOf) -> Stream:
        """Apply ``function(iterator of pyarrow.RecordBatch) -> iterator of RecordBatch`` (mapInArrow).

        Spark decides how rows fall into batches: the function must process each row independently.
        """
        return self._then(
            ops.MapBatches,
            function=self._function(function, 1, "map_batches"),
            schema_text=schema_text(schema, f"map_batches after '{self.operator.id}'"),
        )

    def transform(self, function: Callable[..., Any], schema: SchemaOf) -> Stream:
        """Apply ``function(DataFrame) -> DataFrame``: stateless PySpark, opaque to Headwater."""
        return self._then(
            ops.Transform,
            function=self._function(function, 1, "transform"),
            schema_text=schema_text(schema, f"transform after '{self.operator.id}'"),
        )

    def predict(
        self,
        model: Place | Path,
        columns: Columns,
        *,
        output: ColumnName = "prediction",
        type: SchemaOf | None = None,
        result: ColumnName | None = None,
    ) -> Stream:
        """Add a column with the predictions of a model file: ONNX, scikit-learn's as skops or joblib, or Spark ML's.

        ``columns``: those of the model's training, in their order; a row with NULL in one gets NULL. ``type``: the type
        of the predictions, which is read from the model where it is left out. ``result``: the ONNX model's output,
        scikit-learn's method (``"predict_proba"``), or the column that the Spark ML model adds (``"probability"``). A
        model of at most 1 MiB becomes part of the dataflow; a larger one needs one absolute path on all hosts, where
        its hash is checked. joblib and pickle files run code.
        """
        made = predictor(
            Path(model),
            self.schema,
            columns=_tuple(columns),
            output=output,
            result=result,
            type=type,
            where=self._place_of("predict"),
        )
        kind, name = (ops.Transform, "predict_spark_ml") if made.of_spark else (ops.MapBatches, "predict")
        schema = f"{self.schema.text}, {quoted(output)} {made.type}"
        return self._then(kind, function=BuiltinFunction(name, made.settings), schema_text=schema)

    # ------------------------------------------------------------ stateful

    def with_watermark(
        self, column: ColumnName, delay: DurationOrNone, *, idle_after: Duration | None = None
    ) -> Stream:
        """Declare the event-time column, and how late a row may arrive after the newest.

        A location without rows for ``idle_after`` ("5 minutes") no longer holds back the event time of the others;
        rows that it sends later may be late. Without it, a location holds back the others until it has rows.
        Durations are at most 365250 days, and at least a microsecond, as Spark's times; a delay may be 0.
        """
        return self._then(ops.Watermark, column=column, delay=delay, idle_after=idle_after)

    def group_by(self, *keys: Keys) -> Grouped:
        """Group by columns and at most one window: ``group_by(hw.window("ts", "1 minute"), "machine")``.

        A key that is an expression, ``F.upper("machine").alias("name")``, becomes a column first.
        """
        found = chained(keys)
        computed = {k.name: k.text for k in found if isinstance(k, KeyExpression)}
        names = tuple(k.name if isinstance(k, KeyExpression) else k for k in found)
        windows = [k for k in names if not isinstance(k, str)]
        where = f"group_by after '{self.operator.id}'"
        if len(windows) > 1:
            raise DataflowError("group_by has more than one window", where=where, hint="keep one")
        clash = {c.lower() for c in self.columns} & {c.lower() for c in computed}
        if clash:
            raise DataflowError(
                f"a key has the name of a column: {cut(', '.join(sorted(clash)), 200)}",
                where=where,
                hint="give the key another name with alias(...)",
            )
        stream = self.with_columns(**computed) if computed else self
        return Grouped(stream, windows[0] if windows else None, tuple(k for k in names if isinstance(k, str)))

    def count_window(
        self, size: WindowRows, slide: WindowRows | None = None, *, keys: Columns = (), order_by: Columns
    ) -> Counted:
        """Return windows of ``size`` rows of each key in the order of ``order_by``, one every ``slide`` rows.

        At most 1000000 rows: those of a key are one value in Spark's state.
        """
        return Counted(self, size, slide, _tuple(keys), _tuple(order_by))

    def windowed(self, maker: Maker, *, keys: Columns = (), order_by: Columns) -> Windowed:
        """Return the windows that a maker makes from the rows of each key in the order of ``order_by``.

        Makers: ``hw.complete("v > 90")``, ``hw.chop_time("1 hour")``, ``hw.sliding_time("30 minutes")``, or
        ``hw.WindowMaker(function, initial)`` with ``function(state, row) -> (state, windows)``. The state has the
        rows of open windows. The order is that of ``scan``; windows of a time need the event time.
        """
        return Windowed(self, maker, _tuple(keys), _tuple(order_by))

    def drop_duplicates(self, *columns: Columns) -> Stream:
        """Drop rows equal in these columns (default all) to one seen within the watermark's delay."""
        return self._then(stateful.Dedup, keys=chained(columns) or tuple(self.columns))

    drop_duplicates_within_watermark = drop_duplicates

    def join(
        self,
        other: Stream,
        on: Columns,
        *,
        within: Bound | None = None,
        between: tuple[Bound, Bound] | None = None,
        how: Literal["inner", "left"] = "inner",
    ) -> Stream:
        """Pair rows of equal keys whose event times are near.

        ``within="1 minute"``: the maximum distance. ``between=("-10 seconds", "1 minute")``: the other stream's time
        minus this one's, as intervals of Spark SQL, such as ``"1 hour 30 minutes"`` or, by the calendar, ``"-1 year"``.
        Bounds are at most 1000 years. ``how="left"`` also returns unpaired rows of this stream. Two streams of windows
        are joined without a bound, by equal windows and other keys: ``join(other, ["window", "machine"])``.
        """
        windows = [s.shape.event_time is not None and not s._has_time() for s in (self, other)]
        if all(windows) and within is None and between is None:
            between = ("0 seconds", "0 seconds")
        if (within is None) == (between is None):
            raise DataflowError(
                "a join of streams needs a bound on the time between two rows",
                where=f"join after '{self.operator.id}'",
                hint="give within='1 minute', or between=('-10 seconds', '1 minute'), not both",
            )
        if between is not None:
            earliest, latest = between
        else:
            assert within is not None
            earliest, latest = _NUMBER.sub(r"-\1", within), within
        return self._then(stateful.Join, (other,), on=_tuple(on), earliest=earliest, latest=latest, how=how)

    def zip(self, other: Stream, *, keys: Columns = (), order_by: Columns) -> Stream:
        """Pair the n-th row of each key with the n-th row of this key in the other stream, in their orders.

        Both streams have the columns ``keys`` and ``order_by``; those of a pair are this stream's. Rows without a
        partner wait for it in the state. With the event time in ``order_by`` the order is exact wherever it runs.
        """
        pairs = pairing(self.shape, other.shape, _tuple(keys), _tuple(order_by), where=self._place_of("zip"))
        left, right = (s._then(ops.Select, columns=c) for s, c in zip((self, other), pairs.tagged, strict=True))
        paired, initial = pair_fold(pairs)
        text = pairs.schema.text
        both = left.union(right).scan(
            paired, text, keys=pairs.keys, order_by=order_by, initial=initial, keeps_keys=True
        )
        return both._then(ops.Select, columns=pairs.columns)

    def top_k(
        self,
        k: TopRows,
        by: Columns,
        *,
        per: Keys = "window",
        rank: ColumnName = "rank",
        ties: Literal["row_number", "rank", "dense_rank"] = "row_number",
        ascending: bool = False,
    ) -> Stream:
        """Keep the ``k`` rows with the highest ``by`` per window (and other columns).

        ``per`` may have a window of rows: ``top_k(1, "ts", per=[hw.window("ts", "1 hour"), "machine"])`` keeps the last
        row of each machine and hour. ``ties``: with ``"row_number"``, rows of equal ``by`` are ordered by the remaining
        columns, highest first, so the result is deterministic; ``"rank"`` and ``"dense_rank"`` keep all rows of a rank
        up to ``k``, as in SQL. ``ascending``: keep the lowest.
        ``k`` is at most 100000, for the rows of a window are one array in one row of Spark.
        """
        keys, order = ("window",) if per == "window" else chained([per]), _tuple(by)
        names = {c.lower(): c for c in self.columns}
        where = f"top_k after '{self.operator.id}'"
        if computed := [key.text for key in keys if isinstance(key, KeyExpression)]:
            raise DataflowError(
                f"per has an expression: {cut(computed[0], 200)}",
                where=where,
                hint="compute it first: with_columns(...)",
            )
        plain = [key for key in keys if isinstance(key, str)]
        for name in (*plain, *order):
            if name.lower() not in names:
                raise DataflowError(
                    f"no column {shown(name)}", where=where, hint=f"the columns are {cut(', '.join(self.columns), 600)}"
                )
        first = [names[name.lower()] for name in order]
        grouped = {key.lower() for key in plain}
        rest = [*first, *(c for c in self.columns if c.lower() not in grouped | {f.lower() for f in first})]
        best = f"sort_array(collect_list({row_struct(rest)}), {str(ascending).lower()})"
        best = f"slice({best}, 1, {k})" if ties == "row_number" else best
        if len(best) > MOST_TEXT:
            raise DataflowError(
                f"rows of {len(self.columns)} columns are too wide", where=where, hint="select fewer columns before it"
            )
        rows, item, place = (free_name(name, names) for name in ("best", "item", "position"))
        found = self.group_by(*keys).agg(**{rows: best})
        windows = [c for c in found.columns[:-1] if c.lower() not in names]
        if ties == "row_number":
            ranked, row, placed = found.explode(rows, item, position=place), item, f"{place} + 1"
        else:
            found = found.with_columns(**{place: ranks(rows, first, k, distinct=ties == "dense_rank")})
            best = f"zip_with(slice({rows}, 1, size({place})), {place}, (x, r) -> named_struct('row', x, 'place', r))"
            ranked, row, placed = found.with_columns(**{rows: best}).explode(rows, item), f"{item}.row", f"{item}.place"
        rest = [c if c.lower() in grouped else f"{row}.{quoted(c)} AS {quoted(c)}" for c in self.columns]
        return ranked.select(*windows, *rest, f"{placed} AS {quoted(rank)}")

    def scan(
        self,
        function: Callable[..., Any],
        schema: SchemaOf,
        *,
        keys: Columns,
        order_by: Columns,
        initial: Any = None,
        keeps_keys: bool = False,
    ) -> Stream:
        """Fold a state over the rows of each key, in order, and output a row for each.

        ``function(state, row) -> (state, out)``: ``row`` and ``out`` are dicts, ``out=None`` gives no row; the state is
        any JSON value and starts as ``initial`` (at most 1 MiB as text). With the event time in ``order_by`` the order
        is exact wherever the operator runs. ``keeps_keys``: each output row has the keys of its input row; a scan of it
        by the same keys then costs little more.
        """
        try:
            begin = json.dumps(initial)
        except (TypeError, ValueError, RecursionError) as error:
            raise DataflowError(
                f"the initial state is not JSON: {error}",
                where=f"scan after '{self.operator.id}'",
                hint="use numbers, text, lists and dicts",
            ) from error
        return self._then(
            stateful.Scan,
            keys=_tuple(keys),
            order_by=_tuple(order_by),
            function=self._function(function, 2, "scan"),
            initial=begin,
            schema_text=schema_text(schema, f"scan after '{self.operator.id}'"),
            keeps_keys=keeps_keys,
        )

    def filter_acc(
        self,
        step: Callable[[Any, dict[str, Any]], Any],
        keep: Callable[[Any, dict[str, Any]], bool],
        *,
        keys: Columns,
        order_by: Columns,
        initial: Any = None,
    ) -> Stream:
        """Keep a row if ``keep(state, row)``; kept or not, the next state is ``step(state, row)``."""

        def filter_acc(state: Any, row: dict[str, Any]) -> tuple[Any, dict[str, Any] | None]:
            return step(state, row), row if keep(state, row) else None

        text = self.schema.text
        return self.scan(filter_acc, text, keys=keys, order_by=order_by, initial=initial, keeps_keys=True)

    def match_recognize(
        self,
        pattern: RowPatternText,
        *,
        measures: Measures,
        define: Definitions = {},  # noqa: B006 - never changed
        keys: Columns = (),
        order_by: Columns = (),
        within: Duration | None = None,
    ) -> Stream:
        """Find a pattern of rows in the order of event time, and return a row for each match, as SQL's MATCH_RECOGNIZE.

        ``pattern``: variables with ``|``, ``(...)``, ``*``, ``+``, ``?``, ``{n,m}``, and a further ``?`` for as few
        rows as possible. ``define``: each variable's condition, with ``PREV(v)``, ``FIRST(a.v)`` and ``LAST(a.v)`` on a
        side of a comparison; a variable without one takes any row. ``measures``: ``first``, ``last``, ``count``,
        ``sum``, ``avg``, ``min`` and ``max`` over a variable (``a.v``) or all rows of the match (``v``), and arithmetic
        on them. ``keys``: a match lies among the rows of a key. ``order_by``: the event time, and columns that order
        equal times. ``within``: the longest time from the first to the last row. The next match begins after the last.

        The result has the keys, the event time of the row that decided the match, and the measures.
        """
        where = self._place_of("match_recognize")
        grouped = _tuple(keys)
        found = recognition(
            pattern,
            self.shape,
            measures={name: text_of(text) for name, text in measures.items()},
            define={name: text_of(text) for name, text in define.items()},
            keys=grouped,
            order_by=_tuple(order_by),
            within=None if within is None else Span().seconds(within, "within"),
            where=where,
        )
        matched = self._then(ops.Select, columns=found.columns)._then(
            stateful.Scan,
            keys=grouped,
            order_by=found.order_by,
            function=BuiltinFunction("match_recognize", found.settings),
            initial=json.dumps(found.initial),
            schema_text=found.schema_text,
            keeps_keys=True,
        )
        return matched.explode(found.matches, found.result)._then(ops.Select, columns=found.outputs)

    # ------------------------------------------------------------ PySpark's names

    groupBy = groupby = group_by
    withWatermark = with_watermark
    dropDuplicates = dropDuplicatesWithinWatermark = drop_duplicates
    selectExpr = select
    unionByName = union

    def distinct(self) -> Stream:
        """Drop rows equal in all columns to one seen within the watermark's delay."""
        return self.drop_duplicates()

    def toDF(self, *names: ColumnName) -> Stream:
        """Give all columns new names, in their order."""
        if len(names) != len(self.columns):
            raise DataflowError(
                f"{len(names)} names for {len(self.columns)} columns",
                where=self._place_of("toDF"),
                hint=f"the columns are {cut(', '.join(self.columns), 600)}",
            )
        return self._then(ops.Select, columns=tuple(zip(names, map(quoted, self.columns), strict=True)))

    mapInArrow = map_batches
    printSchema = print_schema

    # ------------------------------------------------------------ sinks

    @property
    def write(self) -> Writer:
        """Sinks, as in ``df.writeStream``."""
        return Writer(self)

    writeStream = write

    def _has_time(self) -> bool:
        """Return whether the event time is a time, and not a window."""
        time = self.shape.event_time
        return time is not None and is_time(self.schema.column(time.column).type)

    def _then(self, cls: type[ops.Operator], others: Sequence[Stream] = (), **settings: Any) -> Stream:
        """Append an operator, checked against its inputs."""
        parents = (self, *others)
        for other in others:
            if other.builder is not self.builder:
                raise DataflowError(
                    f"the streams belong to two dataflows, '{self.builder.name}' and '{other.builder.name}'",
                    where=cls.kind,
                    hint="read both from one dataflow",
                )
        # Streams of two layers meet in the higher one, which only the continuum knows.
        layers = list(dict.fromkeys(p.next_layer for p in parents))
        layer = layers[0] if len(layers) == 1 else None
        requires = Requirement()
        for parent in parents:
            requires = requires & parent.next_requires
        operator = cls(
            id=self.builder.new_id(cls.kind),
            inputs=tuple(p.operator.id for p in parents),
            layer=layer,
            requires=requires,
            **settings,
        )
        return Stream(
            self.builder,
            operator,
            parents,
            operator.output(tuple(p.shape for p in parents)),
            next_layer=layer,
            next_requires=requires,
        )

    def _function(self, function: Callable[..., Any], arguments: int, what: str) -> PythonFunction:
        where = f"{what} after '{self.operator.id}'"
        captured = PythonFunction.of(function, where=where)
        if not accepts(function, arguments):
            raise DataflowError(
                f"function {captured.name} cannot be called with {arguments} argument(s)", where=where,
                hint="scan, WindowMaker: (state, row); apply: (rows); map_batches: (batches); transform: (df)",
            )  # fmt: skip
        return captured


@dataclass(frozen=True)
class Grouped(habits.NameGuard):
    """A grouped stream before its aggregates."""

    stream: Stream
    window: stateful.TimeWindow | stateful.SessionWindow | None
    keys: tuple[str, ...]

    def agg(self, *columns: AggregateItems, **aggregates: Aggregated) -> Stream:
        """Compute aggregates per group: ``agg(n="count(*)", mean="avg(v)")``, ``agg(F.avg("v").alias("mean"))``.

        Aggregates of plain columns may do without a name: ``avg(v)`` is then one, as in Spark; so in ``{"v": "avg"}``.
        """
        found = _aggregates(columns, aggregates, self._place_of("agg"))
        return self.stream._then(stateful.Aggregate, window=self.window, keys=self.keys, aggregates=found)

    def count(self) -> Stream:
        """Count the rows of each group, as column ``count``."""
        return self.agg(count="count(*)")

    def avg(self, *columns: ColumnName) -> Stream:
        """Return the means of columns, named ``avg(v)``."""
        return self._each("avg", columns)

    mean = avg

    def sum(self, *columns: ColumnName) -> Stream:
        """Return the sums of columns, named ``sum(v)``."""
        return self._each("sum", columns)

    def min(self, *columns: ColumnName) -> Stream:
        """Return the least values of columns, named ``min(v)``."""
        return self._each("min", columns)

    def max(self, *columns: ColumnName) -> Stream:
        """Return the greatest values of columns, named ``max(v)``."""
        return self._each("max", columns)

    def _each(self, function: str, columns: Sequence[str]) -> Stream:
        if not columns:
            raise DataflowError(
                f"{function}() of no columns", where=self._place_of(function), hint=f'name them: .{function}("v")'
            )
        return self.agg(**{f"{function}({c})": f"{function}({quoted(c)})" for c in columns})

    def _unknown(self, name: str) -> habits.UnknownName:
        return habits.missing(name, self, habits.GROUPED, where=f"group_by after '{self.stream.operator.id}'")

    def _place_of(self, method: str) -> str:
        return f"{method} after '{self.stream.operator.id}'"


@dataclass(frozen=True)
class Counted(ArgumentGuard):
    """A stream in count windows, before its aggregates."""

    stream: Stream
    size: int
    slide: int | None
    keys: tuple[str, ...]
    order_by: tuple[str, ...]

    def _place_of(self, method: str) -> str:
        return f"count_window.{method} after '{self.stream.operator.id}'"

    def agg(self, *columns: AggregateItems, **aggregates: Aggregated) -> Stream:
        """Compute aggregates per window."""
        return self.stream._then(
            stateful.CountWindow,
            keys=self.keys,
            order_by=self.order_by,
            size=self.size,
            slide=self.slide,
            aggregates=_aggregates(columns, aggregates, self._place_of("agg")),
        )

    def apply(self, function: Callable[..., Any], schema: SchemaOf) -> Stream:
        """Apply ``function(rows) -> rows`` to each window: a list of dicts in order, and any number of dicts.

        The columns of ``schema`` follow the keys.
        """
        stateful.check_slide(self.size, self.slide, self._place_of("apply"))
        return _applied(self, RowWindows(self.size, self.slide or self.size), function, schema, "count_window.apply")


@dataclass(frozen=True)
class Windowed(ArgumentGuard):
    """A stream in the windows of a maker, before its aggregates."""

    stream: Stream
    maker: Maker
    keys: tuple[str, ...]
    order_by: tuple[str, ...]

    def _place_of(self, method: str) -> str:
        return f"windowed.{method} after '{self.stream.operator.id}'"

    def agg(self, *columns: AggregateItems, **aggregates: Aggregated) -> Stream:
        """Compute aggregates per window, those of ``count_window``."""
        where, schema = self._place_of("agg"), self.stream.schema
        found = _aggregates(columns, aggregates, where)
        if not found:
            raise DataflowError("agg() computes nothing", where=where, hint="name an aggregate: .agg(n='count(*)')")
        rows = _rows_of_windows(self, self.maker, Column("rows", ArrayType(schema.struct)), None, "windowed.agg")
        array = rows.schema.columns[-1]
        keys = [(k, quoted(k)) for k in rows.columns[:-1]]
        return rows._then(ops.Select, columns=(*keys, *over_rows(found, schema, array, where=where)))

    def apply(self, function: Callable[..., Any], schema: SchemaOf) -> Stream:
        """Apply ``function(rows) -> rows`` to each window: a list of dicts in order, and any number of dicts.

        The columns of ``schema`` follow the keys.
        """
        return _applied(self, self.maker, function, schema, "windowed.apply")


def _applied(
    windows: Counted | Windowed, maker: Maker | RowWindows, function: Callable[..., Any], schema: str, method: str
) -> Stream:
    """Return the output rows of a function of each window, after the keys."""
    where = windows._place_of("apply")
    windows.stream._function(function, 1, method)
    columns = Schema.parse(schema_text(schema, where))
    made = _rows_of_windows(windows, maker, Column("row", columns.struct), function, method)
    *keys, row = made.columns
    if clash := {k.lower() for k in keys} & {n.lower() for n in columns.names}:
        raise DataflowError(
            f"the function's columns have the names of keys: {cut(', '.join(sorted(clash)), 200)}",
            where=where,
            hint="leave them out: the keys are put before the function's columns",
        )
    pairs = [(c, f"{quoted(row)}.{quoted(c)}") for c in columns.names]
    return made._then(ops.Select, columns=(*((k, quoted(k)) for k in keys), *pairs))


def _rows_of_windows(
    windows: Counted | Windowed,
    maker: Maker | RowWindows,
    item: Column,
    function: Callable[..., Any] | None,
    method: str,
) -> Stream:
    """Return the keys, and each result of a window as the column ``item``, by a scan that keeps open windows.

    The results of ``function`` of a window are rows; without it, the window is the result.
    """
    stream, where = windows.stream, windows._place_of(method.partition(".")[2])
    stream._require_columns(windows.keys, method)
    names = {c.lower(): c for c in stream.columns}
    keys = tuple(names[k.lower()] for k in windows.keys)
    if wide := [c.name for c in stream.schema.columns if has_map(c.type)]:
        raise DataflowError(
            f"windows hold no maps: {cut(', '.join(wide), 200)}",
            where=where,
            hint="select the other columns before it, or map_entries(...)",
        )
    column = free_name("closes", names)
    match maker:
        case Complete(until):
            check_condition(until, stream.schema, where=where)
            rows = stream.with_columns(**{column: f"coalesce({until}, false)"})
        case ChopTime() | SlidingTime():
            rows, time = stream, stream.shape.event_time
            if time is None or not windows.order_by or windows.order_by[0].lower() != time.column.lower():
                raise DataflowError(
                    "windows of a time need the order of the event time",
                    where=where,
                    hint=".with_watermark('ts', '10 seconds') before it, and order_by='ts'",
                )
            column = time.column
        case WindowMaker():
            rows = stream
            stream._function(maker.function, 2, method)
        case RowWindows():
            rows = stream
    step, initial = step_of(maker, column)
    taken = {k.lower() for k in keys}
    many, one = free_name("windows", taken), free_name(item.name, taken)
    # Open windows have the columns of the stream: with others the state is another one.
    state = {"state": initial, "rows of": {stream.schema.text: None}}
    out = Schema((*(stream.schema.column(k) for k in keys), Column(many, ArrayType(item.type))))
    fold = window_fold(step, keys, many, function)
    found = rows.scan(fold, out.text, keys=keys, order_by=windows.order_by, initial=state, keeps_keys=True)
    exploded = found.explode(quoted(many), one)
    return exploded._then(ops.Select, columns=tuple((c, quoted(c)) for c in (*keys, one)))


@dataclass(frozen=True)
class Writer(habits.NameGuard):
    """Sinks of a stream. Each returns the written stream, so ``.named("alarms")`` can name the sink."""

    stream: Stream

    def files(self, path: Place, *, format: Literal["csv", "json", "parquet"]) -> WrittenStream:
        """Write files, each row exactly once; files appear complete. ``{zone}`` in the path is replaced."""
        return self._sink(sinks.FileSink, path=path, format=format)

    def csv(self, path: Place) -> WrittenStream:
        """Write CSV files with a header."""
        return self.files(path, format="csv")

    def json(self, path: Place) -> WrittenStream:
        """Write JSON lines."""
        return self.files(path, format="json")

    def parquet(self, path: Place) -> WrittenStream:
        """Write Parquet files."""
        return self.files(path, format="parquet")

    def console(self, rows: ShownRows = 20) -> WrittenStream:
        """Print the newest rows of every batch where the dataflow was started, at most 10000."""
        return self._sink(sinks.ConsoleSink, rows=rows)

    def memory(self, name: Label) -> WrittenStream:
        """Keep the rows in memory under this name (tests, notebooks)."""
        return self._sink(sinks.MemorySink).named(name)

    def for_each_batch(self, function: Callable[..., Any], *, one_zone: bool = False) -> WrittenStream:
        """Call ``function(pyarrow.Table, batch_number)`` per batch; after a failure a batch may be repeated.

        Each zone numbers its own batches. With ``one_zone``, a plan that runs the sink in several zones is refused.
        """
        captured = self.stream._function(function, 2, "for_each_batch")
        return self._sink(sinks.CallbackSink, function=captured, one_zone=one_zone or None)

    def kafka(
        self,
        bootstrap_servers: Place,
        topic: Place,
        *,
        key: Computed | None = None,
        value: Computed | None = None,
        delivery: Literal["exactly_once", "at_least_once"] = "exactly_once",
        user_env: Place | None = None,
        password_env: Place | None = None,
        **options: Option,
    ) -> WrittenStream:
        """Write to a Kafka topic: expressions ``key`` and ``value``, or each row as one JSON object.

        ``options`` are librdkafka's, with ``_`` for ``.``: ``compression_type="zstd"``. ``user_env`` and
        ``password_env`` name secrets, ``HEADWATER_SECRET_...``.
        """
        columns = [f"{row_json(self.stream.columns) if value is None else value} AS value"]
        columns += [f"{key} AS key"] if key is not None else []
        return Writer(self.stream.select(*columns))._sink(
            sinks.KafkaSink,
            bootstrap_servers=bootstrap_servers,
            topic=topic,
            delivery=delivery,
            user_env=user_env,
            password_env=password_env,
            options=tuple(sorted((k.replace("_", "."), str(v)) for k, v in options.items())),
        )

    def jdbc(
        self,
        url: Place,
        table: Place,
        *,
        batch_column: ColumnName | None = "headwater_batch",
        user_env: Place | None = None,
        password_env: Place | None = None,
        driver: Place | None = None,
        **options: Option,
    ) -> WrittenStream:
        """Append to a table through JDBC. ``user_env``, ``password_env``: secrets, ``HEADWATER_SECRET_...``."""
        return self._sink(
            sinks.JdbcSink,
            url=url,
            table=table,
            batch_column=batch_column,
            user_env=user_env,
            password_env=password_env,
            driver=driver,
            options=tuple(sorted((k, str(v)) for k, v in options.items())),
        )

    def _unknown(self, name: str) -> habits.UnknownName:
        return habits.missing(name, self, habits.WRITER, where=f"write after '{self.stream.operator.id}'")

    def _place_of(self, method: str) -> str:
        return f"write.{method} after '{self.stream.operator.id}'"

    def _sink(self, cls: type[sinks.Sink], **settings: Any) -> WrittenStream:
        stream = self.stream._then(cls, **settings)
        self.stream.builder.add_sink(stream)
        return WrittenStream(stream)


@dataclass(frozen=True)
class WrittenStream(ArgumentGuard):
    """A stream that ends in a sink."""

    stream: Stream

    def _place_of(self, method: str) -> str:
        return f"{method} after '{self.stream.operator.id}'"

    def named(self, name: Label) -> WrittenStream:
        """Name the sink."""
        renamed = self.stream.named(name)
        self.stream.builder.replace_sink(self.stream, renamed)
        return WrittenStream(renamed)


def _tuple(columns: Columns) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _aggregates(
    columns: Sequence[AggregateItems], named: Mapping[str, Aggregated], where: str
) -> tuple[tuple[str, str], ...]:
    """Return aggregates as pairs of name and expression, those in the form ``avg(v) AS mean`` first."""
    found: list[tuple[str, str]] = []
    for column in chained(columns):
        try:
            node = parse_item(column)
        except DataflowError as error:
            raise DataflowError(error.what, where=where, hint=error.hint) from error
        value, name = (node.value, node.name) if isinstance(node, Alias) else (node, spark_name(node))
        if name is None:
            raise DataflowError(
                f"{canonical(node)} has no name", where=where, hint='give it one: .alias("name"), or agg(name=...)'
            )
        found.append((name, canonical(value)))
    return (*found, *((name, text_of(text)) for name, text in named.items()))


def schema_text(schema: str, where: str) -> str:
    """Return a schema in canonical form."""
    try:
        return Schema.parse(schema).text
    except DataflowError as error:
        raise DataflowError(error.what, where=where, hint=error.hint) from error
