"""Scans: folds over the rows of a key, in order, inside Spark's transformWithState.

There are two orders. With the event time first in ``order_by`` rows wait until the watermark has passed
them and are then folded in full order: the result does not depend on how rows arrived, nor on
cuts and placement. Otherwise the rows of each micro-batch are folded in the order of
``order_by``, batch after batch: exact where a key's rows arrive in that order.

All scans of one query are one stateful operator: Spark shuffles their rows once and calls one Python
process for each key. Rows come to it in a common form, by the columns named below. Each scan's state is stored
under its own tag, so that it can be extracted, or put beside others, as bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headwater.connectors.sparksql import column_of, expression
from headwater.connectors.sparktypes import MARK, known, spark_schema
from headwater.core.errors import UserCodeError
from headwater.dataflow import stateful
from headwater.dataflow.function import raised
from headwater.dataflow.types import StreamType
from headwater.plan.state import scan_tag
from headwater.query.statetext import state_text, state_value
from headwater.sql.lexer import quoted
from headwater.sql.rewrite import JSON_TIMES
from headwater.sql.schema import INT, Column, Schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ALL = "__all"
"""The key column of an operator without keys."""

KEYED, KEY, TIME = "__keyed", "__key", "__time"
"""Columns of rows for scans: the names of their key columns, the key as JSON, and the event time.

A row also has its own columns as a struct, ``i<n>`` for the n-th scanned stream, or ``p<n>`` for rows
that no scan takes and that pass unchanged: in these all three are NULL.
"""
COMMON = Schema.parse(f"{KEYED} string, {KEY} string, {TIME} timestamp", internal=True).columns
FROM = "__from"
"""The scan that gave an output row, whose columns are in ``s<n>``; rows that passed have -1 and ``p<n>``."""
_CHUNK = 16
"""Length of the prefix before a scan's tag in the key of pending rows."""

Fold = Callable[[Any, dict[str, Any]], tuple[Any, dict[str, Any] | None]]


@dataclass(frozen=True)
class Scanning:
    """One of several scans in one operator.

    ``reads``: the column of its input, or the index of the scan whose rows it takes directly. ``out``: whether
    its rows are output.
    """

    operator: stateful.Scan
    event_time: str | None
    reads: str | int
    out: bool = True


def keyed(operator: stateful.Scan) -> str:
    """Return the names of a scan's key columns as one text, equal for scans with equal keys."""
    return ",".join(k.lower() for k in operator.keys)


def key_text(operator: stateful.Scan, type_: StreamType, *, within: str | None = None) -> str:
    """Return the expression of a row's key: equal texts for equal keys, as Spark groups them.

    ``within``: the column that holds the row as a struct.
    """
    parts = []
    for key in operator.keys:
        column = type_.schema.column(key)
        text = quoted(column.name) if within is None else f"{within}.{quoted(column.name)}"
        if column.type.text in ("float", "double"):
            text = f"IF({text} = 0, CAST(0 AS {column.type.text}), {text})"  # 0.0 and -0.0
        parts.append(f"'{key.lower()}', {text}")
    formats = f"map({JSON_TIMES}, 'ignoreNullFields', 'false')"
    return f"to_json(named_struct({', '.join(parts)}), {formats})" if parts else "''"


def alone(operator: stateful.Scan, frame: DataFrame, type_: StreamType) -> DataFrame:
    """Apply one scan to a stream. The caller sets watermarks."""
    event_time = stateful.by_event_time(operator, type_)
    if event_time is not None:
        frame = frame.where(column_of(event_time).isNotNull())
    time = column_of(event_time) if event_time is not None else F.lit(None).cast("timestamp")
    rows = frame.select(
        F.lit(keyed(operator)).alias(KEYED),
        expression(key_text(operator, type_)).alias(KEY),
        time.alias(TIME, metadata={MARK: 0} if event_time is not None else {}),
        F.struct(*(column_of(c) for c in type_.schema.names)).alias("i0"),
    )
    rows = known(rows, spark_schema([*COMMON, Column("i0", type_.schema.struct)]))
    found = together(rows, [Scanning(operator, event_time, "i0")])
    return found.select(*(column_of("s0", c) for c in Schema.parse(operator.schema_text).names))


def together(rows: DataFrame, scans: Sequence[Scanning], passed: Sequence[Schema] = ()) -> DataFrame:
    """Apply several scans to rows in the common form; ``passed``: the schemas of rows that pass unchanged."""
    columns = [Column(FROM, INT)]
    columns += [Column(f"s{n}", Schema.parse(s.operator.schema_text).struct) for n, s in enumerate(scans) if s.out]
    columns += [Column(f"p{n}", schema.struct) for n, schema in enumerate(passed)]
    timed = any(s.event_time is not None for s in scans)
    return rows.groupBy(KEYED, KEY).transformWithState(
        statefulProcessor=ScanProcessor(scans, passed=len(passed)),
        outputStructType=spark_schema(columns),
        outputMode="Append",
        timeMode="EventTime" if timed else "None",
    )


def in_batch(operator: stateful.Scan, frame: DataFrame, type_: StreamType) -> DataFrame:
    """Fold all rows of each key at once."""
    event_time = stateful.by_event_time(operator, type_)
    schema = Schema.parse(operator.schema_text)
    target = spark_schema(schema.columns)
    if event_time is not None:
        frame = frame.where(column_of(event_time).isNotNull())
    function, initial, order, where = (
        operator.function.load(),
        operator.initial,
        operator.order_by,
        operator.where,
    )
    if not operator.keys:
        frame, function = frame.withColumn(ALL, F.lit(0)), _without_all(function)
    grouped_by = [column_of(k) for k in operator.keys or (ALL,)]
    names = list(schema.names)
    arrow = to_arrow_schema(target, timezone="UTC")

    def whole(group: pa.Table) -> pa.Table:
        import pyarrow as pa

        rows = sorted(group.to_pylist(), key=order_key(order))
        _, out = fold_rows(function, state_value(initial), rows, where=where)
        return pa.Table.from_pylist([{n: r.get(n) for n in names} for r in out], schema=arrow)

    return frame.groupBy(*grouped_by).applyInArrow(whole, target)


def _without_all(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, row: function(state, {k: v for k, v in row.items() if k != ALL})


def order_key(columns: Sequence[str]) -> Callable[[dict[str, Any]], Any]:
    """Make a sort key over rows; NULLs first as in Spark, ties by the whole row so that order is total."""

    def key(row: dict[str, Any]) -> Any:
        first = tuple((row[c] is not None, row[c]) for c in columns)
        return (first, tuple(repr(v) for v in row.values()))

    return key


def fold_rows(fold: Fold, state: Any, rows: list[dict[str, Any]], *, where: str) -> tuple[Any, list[dict[str, Any]]]:
    """Fold rows into a state; an exception of the user's function names operator and row."""
    out: list[dict[str, Any]] = []
    for row in rows:
        try:
            state, result = fold(state, row)
        except Exception as error:
            raise UserCodeError(
                f"the function raised {raised(error, row)}",
                where=where,
                hint="correct the function; the unit continues from its last batch",
            ) from error
        if result is not None:
            out.append(result)
    return state, out


def deadline_ms(time: Any) -> int:
    """Return the first whole millisecond at which a watermark has passed a time."""
    micros = _micros(time)
    return -(-micros // 1000)


def _micros(time: Any) -> int:
    aware = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    delta = aware - datetime(1970, 1, 1, tzinfo=UTC)
    micros: int = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    return micros


class _ScanWork:
    """A scan at work: its function, loaded once, and its pending rows of the current key."""

    def __init__(self, scan: Scanning, place: int) -> None:
        operator = scan.operator
        self.tag, self.reads, self.event_time = scan_tag(operator.id), scan.reads, scan.event_time
        self.place, self.name = place, f"s{place}" if scan.out else None
        self.keyed, self.keys = keyed(operator), operator.keys
        self.fold, self.initial, self.where = operator.function.load(), operator.initial, operator.where
        self.order = order_key(operator.order_by)
        self.schema = Schema.parse(operator.schema_text)
        self.columns = self.schema.names
        self.followers: list[_ScanWork] = []
        self.fresh: list[dict[str, Any]] = []
        self._arrow: Any = None

    def take(self, giver: _ScanWork, rows: list[dict[str, Any]], of: list[dict[str, Any]]) -> None:
        """Take another scan's output rows, as if they had come through Spark."""
        if not rows:
            return
        import pyarrow as pa

        keys = giver.keys
        if any(row.get(k) != of[0].get(k) for row in rows for k in keys):
            raise UserCodeError(
                f"the function changes the key of rows, but is declared to keep {', '.join(keys)}",
                where=giver.where,
                hint="return each row with its key, or leave keeps_keys out",
            )

        if self._arrow is None:
            self._arrow = to_arrow_schema(spark_schema(giver.schema.columns), timezone="UTC")
        given = pa.RecordBatch.from_pylist([{c: r.get(c) for c in giver.columns} for r in rows], self._arrow)
        self.fresh += [r for r in given.to_pylist() if self.event_time is None or r[self.event_time] is not None]

    def run(self, stored: str | None, rows: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
        """Fold rows; return the new state as JSON, and the output rows."""
        rows.sort(key=self.order)
        state, out = fold_rows(
            self.fold, state_value(self.initial if stored is None else stored), rows, where=self.where
        )
        try:
            return state_text(state), out
        except (TypeError, ValueError) as error:
            raise UserCodeError(
                f"the state cannot be stored as JSON: {error}",
                where=self.where,
                hint="use numbers, text, lists, dicts and values of rows in the state",
            ) from error


class ScanProcessor(StatefulProcessor):
    """Fold users' functions over the rows of each key."""

    def __init__(self, scans: Sequence[Scanning], *, passed: int = 0) -> None:
        self._scans = tuple(scans)
        self._passed = [f"p{n}" for n in range(passed)]

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: users' states as JSON by tag and, in event-time order, pending rows."""
        self._work = [_ScanWork(scan, n) for n, scan in enumerate(self._scans)]
        for work in self._work:
            if isinstance(work.reads, int):
                self._work[work.reads].followers.append(work)
        self._inputs = sorted({str(w.reads) for w in self._work if isinstance(w.reads, str)})
        self._timed = any(w.event_time is not None for w in self._work)
        names = [w.name for w in self._work if w.name is not None]
        self._empty: dict[str, Any] = dict.fromkeys([*names, *self._passed])
        self._handle = handle
        self._due: list[int] = []
        self._states = handle.getMapState("states", "tag string", "json string")
        # The chunk's key ends with the scan's tag.
        self._waiting = handle.getMapState("waiting", "chunk string", "rows binary") if self._timed else None

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        """Fold at once, or store rows until the watermark has passed them; pass other rows on."""
        if key[0] is None:
            return self._pass(rows)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in self._inputs}
        for row in rows:
            for name in self._inputs:
                if row[name] is not None:
                    found[name].append(row[name])
                    break
        work = [w for w in self._work if isinstance(w.reads, str) and w.keyed == key[0] and found[w.reads]]
        if self._waiting is None:
            for one in work:
                one.fresh = [dict(r) for r in found[str(one.reads)]]  # each may change its own
            return self._fold(key[0], {})
        for one in work:
            self._store(one, found[str(one.reads)])
        self._set_timer()
        return iter(())

    def _pass(self, rows: Iterator[Any]) -> Iterator[Row]:
        for row in rows:
            taken = {name: row[name] for name in self._passed if row[name] is not None}
            yield Row(**{FROM: -1, **self._empty, **taken})

    def _store(self, one: _ScanWork, rows: list[dict[str, Any]]) -> None:
        assert self._waiting is not None and one.event_time is not None
        self._waiting.updateValue((f"{uuid4().hex[:_CHUNK]}{one.tag}",), (pickle.dumps(rows),))
        self._due.append(deadline_ms(min(r[one.event_time] for r in rows)))

    def _set_timer(self) -> None:
        """Set one timer for the stored rows of a key, at the earliest time: it wakes all its scans."""
        if self._due:
            self._handle.registerTimer(min(self._due))
            self._due.clear()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Fold the rows that the watermark has passed."""
        assert self._waiting is not None
        waiting: dict[str, list[dict[str, Any]]] = {}
        for (chunk,), (data,) in list(self._waiting.iterator()):
            waiting.setdefault(chunk[_CHUNK:], []).extend(pickle.loads(data))
        self._waiting.clear()  # including rows of removed scans
        return self._fold(key[0], waiting, timerValues.getCurrentWatermarkInMs())

    def _fold(self, by: str, waiting: dict[str, list[dict[str, Any]]], passed: int | None = None) -> Iterator[Row]:
        """Fold the ready rows into a key's states, each scan before those that read its output."""
        mine = [w for w in self._work if w.keyed == by]
        states: dict[str, str] | None = None
        for one in mine:
            rows = one.fresh + waiting.get(one.tag, [])
            one.fresh = []
            if passed is not None and one.event_time is not None:
                rest = [r for r in rows if deadline_ms(r[one.event_time]) > passed]
                if rest:
                    self._store(one, rest)
                    rows = [r for r in rows if deadline_ms(r[one.event_time]) <= passed]
            if not rows:
                continue
            if states is None:
                states = self._stored(mine)
            state, out = one.run(states.get(one.tag), rows)
            self._states.updateValue((one.tag,), (state,))
            for other in one.followers:
                other.take(one, out, rows)
            if one.name is not None:
                for row in out:
                    found = Row(**{c: row.get(c) for c in one.columns})
                    yield Row(**{FROM: one.place, **self._empty, one.name: found})
        self._set_timer()

    def _stored(self, scans: Sequence[_ScanWork]) -> dict[str, str]:
        """Read the states of a key: a single one, or all at once."""
        if len(scans) == 1:
            found = self._states.getValue((scans[0].tag,))
            return {scans[0].tag: found[0]} if found else {}
        return {tag: state for (tag,), (state,) in self._states.iterator()}

    def close(self) -> None:
        """Release nothing: the state belongs to Spark."""
