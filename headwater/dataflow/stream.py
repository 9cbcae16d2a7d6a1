"""The fluent API for dataflows, in the style of PySpark.

Every method checks itself against the schema and returns a new Stream; nothing runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Literal

from headwater.core.errors import DataflowError
from headwater.core.rules import MOST_TEXT, Span
from headwater.core.text import cut, shown
from headwater.dataflow import operators as ops
from headwater.dataflow import stateful
from headwater.dataflow.backfill import backfilled
from headwater.dataflow.builtin import BuiltinFunction
from headwater.dataflow.grouped import Grouped
from headwater.dataflow.keys import KeyExpression, Keys
from headwater.dataflow.lookup import Lookup, ReferenceTable
from headwater.dataflow.pairs import pair_fold, pairing
from headwater.dataflow.recognition import recognition
from headwater.dataflow.rowwindows import Counted, Windowed
from headwater.dataflow.settings import (
    Bound,
    ColumnName,
    Columns,
    Definitions,
    Duration,
    DurationOrNone,
    Measures,
    Place,
    RowPatternText,
    TopRows,
    WindowRows,
    chained,
    text_of,
)
from headwater.dataflow.streambase import StreamBase, tuple_of
from headwater.dataflow.windowmakers import (
    Maker,
)
from headwater.dataflow.writer import Writer
from headwater.sql.columnnames import free_name
from headwater.sql.lexer import quoted
from headwater.sql.rewrite import ranks, row_struct
from headwater.sql.statement import JoinKind

_NUMBER = re.compile(r"([0-9.]+)")


class Stream(StreamBase):
    """A stream of rows with a known schema; methods return new streams and change nothing."""

    # ------------------------------------------------------------ of several rows or streams

    def union(self, *others: Stream) -> Stream:
        """Return all rows of this stream and the others, columns matched by name."""
        if not others:
            raise DataflowError(
                "union without other streams", where=f"union after '{self.operator.id}'", hint="write a.union(b, ...)"
            )
        return self._then(ops.Union, others)

    merge = union

    def with_watermark(
        self, column: ColumnName, delay: DurationOrNone, *, idle_after: Duration | None = None
    ) -> Stream:
        """Declare the event-time column, and how late a row may arrive after the newest.

        A location without rows for ``idle_after`` ("5 minutes") no longer holds back the event time of the others;
        rows that it sends later may be late. Without it, a location holds back the others until it has rows.
        Durations are at most 365250 days, and at least a microsecond, as Spark's times; a delay may be 0.
        """
        return self._then(ops.Watermark, column=column, delay=delay, idle_after=idle_after)

    def backfill(
        self, history: Stream, *, until: Place | None = None, disorder: DurationOrNone | None = None
    ) -> Stream:
        """Read history first, then go on with this stream, in event time: each row once, and none late for the other.

        ``history``: files, a table or a topic, read to the end that it has then; it gets this stream's event time.
        ``until``: where both overlap, history has the rows before this time ("2026-01-31T00:00:00Z"), this stream those
        from it on. ``disorder``: how late a row of history may be after the newest; windows then close while history
        is read. Without it, rows of history come in any order.
        """
        return backfilled(self, history, until=until, disorder=disorder, where=self._place_of("backfill"))

    def group_by(self, *keys: Keys) -> Grouped[Stream]:
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
    ) -> Counted[Stream]:
        """Return windows of ``size`` rows of each key in the order of ``order_by``, one every ``slide`` rows.

        At most 1000000 rows: those of a key are one value in Spark's state.
        """
        return Counted(self, size, slide, tuple_of(keys), tuple_of(order_by))

    def windowed(self, maker: Maker, *, keys: Columns = (), order_by: Columns) -> Windowed[Stream]:
        """Return the windows that a maker makes from the rows of each key in the order of ``order_by``.

        Makers: ``hw.complete("v > 90")``, ``hw.chop_time("1 hour")``, ``hw.sliding_time("30 minutes")``, or
        ``hw.WindowMaker(function, initial)`` with ``function(state, row) -> (state, windows)``. The state has the
        rows of open windows. The order is that of ``scan``; windows of a time need the event time.
        """
        return Windowed(self, maker, tuple_of(keys), tuple_of(order_by))

    def drop_duplicates(self, *columns: Columns) -> Stream:
        """Drop rows equal in these columns (default all) to one seen within the watermark's delay."""
        return self._then(stateful.Dedup, keys=chained(columns) or tuple(self.columns))

    drop_duplicates_within_watermark = drop_duplicates

    def join(
        self,
        other: Stream | ReferenceTable,
        on: Columns,
        *,
        within: Bound | None = None,
        between: tuple[Bound, Bound] | None = None,
        how: JoinKind = "inner",
    ) -> Stream:
        """Pair rows of equal keys whose event times are near.

        ``within="1 minute"``: the maximum distance. ``between=("-10 seconds", "1 minute")``: the other stream's time
        minus this one's, as intervals of Spark SQL, such as ``"1 hour 30 minutes"`` or, by the calendar, ``"-1 year"``.
        Bounds are at most 1000 years. ``how="left"`` also returns unpaired rows of this stream. Two streams of windows
        are joined without a bound, by equal windows and other keys: ``join(other, ["window", "machine"])``.

        With a reference table (``f.table.csv(...)``), add the columns of its rows of equal keys, without a bound.
        ``how="left_semi"`` keeps the rows with such a key as they are, ``how="left_anti"`` those without.
        """
        if isinstance(other, ReferenceTable):
            if within is not None or between is not None:
                raise DataflowError(
                    "a table's rows have no time",
                    where=f"join after '{self.operator.id}'",
                    hint="leave out within and between",
                )
            return self._then(Lookup, on=tuple_of(on), how=how, **vars(other))
        if how not in ("inner", "left"):
            raise DataflowError(
                f"how='{how}' is for tables",
                where=f"join after '{self.operator.id}'",
                hint="join streams with how='inner' or how='left'",
            )
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
        return self._then(stateful.Join, (other,), on=tuple_of(on), earliest=earliest, latest=latest, how=how)

    def zip(self, other: Stream, *, keys: Columns = (), order_by: Columns) -> Stream:
        """Pair the n-th row of each key with the n-th row of this key in the other stream, in their orders.

        Both streams have the columns ``keys`` and ``order_by``; those of a pair are this stream's. Rows without a
        partner wait for it in the state. With the event time in ``order_by`` the order is exact wherever it runs.
        """
        pairs = pairing(self.shape, other.shape, tuple_of(keys), tuple_of(order_by), where=self._place_of("zip"))
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
        keys, order = ("window",) if per == "window" else chained([per]), tuple_of(by)
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
        grouped = tuple_of(keys)
        found = recognition(
            pattern,
            self.shape,
            measures={name: text_of(text) for name, text in measures.items()},
            define={name: text_of(text) for name, text in define.items()},
            keys=grouped,
            order_by=tuple_of(order_by),
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

    unionByName = union
    groupBy = groupby = group_by
    withWatermark = with_watermark
    dropDuplicates = dropDuplicatesWithinWatermark = drop_duplicates

    def distinct(self) -> Stream:
        """Drop rows equal in all columns to one seen within the watermark's delay."""
        return self.drop_duplicates()

    # ------------------------------------------------------------ sinks

    @property
    def write(self) -> Writer[Stream]:
        """Sinks, as in ``df.writeStream``."""
        return Writer(self)

    writeStream = write
