"""The closed set of core operators, as frozen data.

An operator says what happens to its input streams and what comes out; it knows no places and
no Spark. Each has ``output(inputs)``: it checks the operator against the types of its inputs
and gives the type of its output, or raises DataflowError. Every other operation of the fluent
API composes these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from headwater.dataflow.expressions import check, check_aggregate, check_condition
from headwater.dataflow.function import PythonFunction
from headwater.dataflow.rewrite import row_aggregates
from headwater.dataflow.schema import Column, DataType, Schema
from headwater.dataflow.types import EventTime, StreamType, is_time
from headwater.errors import DataflowError, HeadwaterError
from headwater.quantity import parse_duration
from headwater.requirement import Requirement

WINDOW_TYPE = DataType.parse("struct<start:timestamp,end:timestamp>")


@dataclass(frozen=True, kw_only=True)
class Operator:
    """What all operators have: a name, inputs by name, and where they want to run."""

    kind: ClassVar[str]
    arity: ClassVar[tuple[int, int | None]] = (1, 1)
    ordered_inputs: ClassVar[bool] = True
    stateful: ClassVar[bool] = False

    id: str
    inputs: tuple[str, ...] = ()
    layer: str | None = None
    requires: Requirement = Requirement()

    def config(self) -> dict[str, Any]:
        """Return what the operator does as JSON-able data, without name, inputs and place."""
        return {f.name: _data(getattr(self, f.name)) for f in fields(self) if f.name not in _PLACEMENT}

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        """Check the operator against its inputs' types and give its output's type."""
        raise NotImplementedError

    @property
    def where(self) -> str:
        """The operator as error messages name it."""
        return f"operator '{self.id}' ({self.kind})"

    def error(self, what: str, hint: str) -> DataflowError:
        return DataflowError(what, where=self.where, hint=hint)

    def duration(self, text: str, name: str) -> float:
        """Parse a duration setting into seconds."""
        try:
            return parse_duration(text)
        except HeadwaterError as error:
            raise self.error(f"{name} is not a duration: {text!r}", "write it as '30 seconds'") from error

    def partition_keys(self) -> tuple[str, ...] | None:
        """Columns by which rows meet in this operator; () = all rows meet; None = they never meet."""
        return None


_PLACEMENT = {"id", "inputs", "layer", "requires"}


def _data(value: Any) -> Any:
    if isinstance(value, PythonFunction):
        return {"name": value.name, "fingerprint": value.fingerprint, "pickled": value.pickled}
    if isinstance(value, tuple):
        return [_data(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        return {f.name: _data(getattr(value, f.name)) for f in fields(value)}
    return value


# ---------------------------------------------------------------- sources


@dataclass(frozen=True, kw_only=True)
class Source(Operator):
    """Where a stream is born. ``location_as`` adds the location's name as a column."""

    arity: ClassVar[tuple[int, int | None]] = (0, 0)
    bounded: ClassVar[bool] = False

    location_as: str | None = None

    def schema(self) -> Schema:
        raise NotImplementedError

    @property
    def per_location(self) -> bool:
        """Tell whether each location has its own data (so the source runs once per location)."""
        return True

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        schema = self.schema()
        if self.location_as is None:
            return StreamType(schema)
        if self.location_as.lower() in {n.lower() for n in schema.names}:
            raise self.error(
                f"location_as='{self.location_as}' names a column that the data has already",
                "choose another name",
            )
        columns = (*schema.columns, Column(self.location_as, DataType.parse("string")))
        return StreamType(Schema(columns), located_by=frozenset({self.location_as}))


@dataclass(frozen=True, kw_only=True)
class FileSource(Source):
    """Files of CSV, JSON lines or Parquet that appear below ``path`` ('{location}' is filled in)."""

    kind: ClassVar[str] = "files"
    bounded: ClassVar[bool] = True

    path: str
    format: Literal["csv", "json", "parquet"]
    schema_text: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def per_location(self) -> bool:
        return "{location}" in self.path

    def schema(self) -> Schema:
        return Schema.parse(self.schema_text)


@dataclass(frozen=True, kw_only=True)
class RateSource(Source):
    """Spark's rate source: ``timestamp`` and a counting ``value``, so many rows per second."""

    kind: ClassVar[str] = "rate"
    rows_per_second: int = 1

    def schema(self) -> Schema:
        if self.rows_per_second < 1:
            raise self.error(f"rows_per_second is {self.rows_per_second}", "give at least 1")
        return Schema.parse("timestamp timestamp, value bigint")


@dataclass(frozen=True, kw_only=True)
class SensorSource(Source):
    """A seeded generator of machine temperatures with labelled anomalies (``headwater.sensors``)."""

    kind: ClassVar[str] = "sensors"

    seed: int = 0
    machines: int = 1
    interval: str = "5 minutes"
    rows_per_second: float = 10.0
    rows: int | None = None

    @property
    def is_bounded(self) -> bool:
        return self.rows is not None

    def schema(self) -> Schema:
        if self.machines < 1 or self.rows_per_second < 0 or (self.rows is not None and self.rows < 0):
            raise self.error("machines, rows_per_second and rows must not be negative", "correct them")
        self.duration(self.interval, "interval")
        return Schema.parse("machine string, ts timestamp, temperature double, label boolean, seq bigint")


@dataclass(frozen=True, kw_only=True)
class MqttSource(Source):
    """Messages of an MQTT topic ('{location}' is filled in), each one JSON object."""

    kind: ClassVar[str] = "mqtt"

    broker: str
    topic: str
    schema_text: str
    qos: int = 1
    username_env: str | None = None
    password_env: str | None = None
    tls: bool = False

    @property
    def per_location(self) -> bool:
        return "{location}" in self.topic or "{location}" in self.broker

    def schema(self) -> Schema:
        if self.qos not in (0, 1, 2):
            raise self.error(f"qos is {self.qos}", "MQTT has 0, 1 and 2")
        return Schema.parse(self.schema_text)


# ---------------------------------------------------------------- stateless operators


@dataclass(frozen=True, kw_only=True)
class Where(Operator):
    """Keep the rows for which ``condition`` (Spark SQL) is true."""

    kind: ClassVar[str] = "where"
    condition: str

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        _deterministic(self, check_condition(self.condition, inputs[0].schema, where=self.where))
        return inputs[0]


@dataclass(frozen=True, kw_only=True)
class Select(Operator):
    """Compute columns: pairs of name and Spark SQL expression."""

    kind: ClassVar[str] = "select"
    columns: tuple[tuple[str, str], ...]

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        (source,) = inputs
        columns: list[Column] = []
        kept: dict[str, str] = {}  # input column -> the name it goes on under
        for name, text in self.columns:
            expression = check(text, source.schema, where=self.where)
            _deterministic(self, expression)
            columns.append(Column(name, expression.type))
            origin = plain_column(text)
            if origin is not None:
                kept.setdefault(origin.lower(), name)
            elif source.event_time is not None and _is_window_time(text, source.event_time.column):
                kept.setdefault(source.event_time.column.lower(), name)
        time = source.event_time
        if time is not None:
            name_now = kept.get(time.column.lower())
            time = EventTime(name_now, time.delay) if name_now else None
        located = frozenset(kept[c.lower()] for c in source.located_by if c.lower() in kept)
        return StreamType(_schema(self, columns), event_time=time, located_by=located)


@dataclass(frozen=True, kw_only=True)
class Explode(Operator):
    """One row per element of an array (or map entry); the other columns are repeated."""

    kind: ClassVar[str] = "explode"
    expression: str
    alias: str
    position: str | None = None
    outer: bool = False

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        (source,) = inputs
        value = check(self.expression, source.schema, where=self.where)
        element = value.type.element
        if element is None:
            raise self.error(
                f"explode needs an array, but {self.expression} is {value.type.text}",
                "give an array column, or build one with array(...) or map_entries(...)",
            )
        columns = list(source.schema.columns)
        if self.position is not None:
            columns.append(Column(self.position, DataType.parse("int")))
        columns.append(Column(self.alias, element))
        return StreamType(_schema(self, columns), event_time=source.event_time, located_by=source.located_by)


@dataclass(frozen=True, kw_only=True)
class Union(Operator):
    """All rows of several streams of one schema, columns matched by name."""

    kind: ClassVar[str] = "union"
    arity: ClassVar[tuple[int, int | None]] = (2, None)
    ordered_inputs: ClassVar[bool] = False

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        first = inputs[0]
        for other in inputs[1:]:
            mine, theirs = _typed(first.schema), _typed(other.schema)
            if mine != theirs:
                raise self.error(
                    f"the streams differ: {first.schema.text} and {other.schema.text}",
                    "select the same columns, cast to the same types, on every input",
                )
        times = [t.event_time for t in inputs]
        time = None
        if all(t is not None for t in times):
            columns = {t.column.lower() for t in times if t is not None}
            if len(columns) > 1:
                raise self.error(
                    f"the streams have different event-time columns: {', '.join(sorted(columns))}",
                    "give the event time the same name on every input before with_watermark",
                )
            time = EventTime(times[0].column, max(t.delay for t in times if t))  # type: ignore[union-attr]
        located = frozenset.intersection(*(t.located_by for t in inputs))
        return StreamType(first.schema, event_time=time, located_by=located)


@dataclass(frozen=True, kw_only=True)
class MapBatches(Operator):
    """A Python function from an iterator of Arrow record batches to record batches of ``schema_text``."""

    kind: ClassVar[str] = "map_batches"
    function: PythonFunction
    schema_text: str

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        return _opaque(self, inputs[0], self.schema_text)


@dataclass(frozen=True, kw_only=True)
class Transform(Operator):
    """A Python function from DataFrame to DataFrame; row by row, without state of its own."""

    kind: ClassVar[str] = "transform"
    function: PythonFunction
    schema_text: str

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        return _opaque(self, inputs[0], self.schema_text)


@dataclass(frozen=True, kw_only=True)
class Watermark(Operator):
    """Declare the event-time column and how much later than the newest row a row may come."""

    kind: ClassVar[str] = "watermark"
    column: str
    delay: str

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        (source,) = inputs
        if source.event_time is not None:
            raise self.error(
                f"the stream has an event time already: '{source.event_time.column}'",
                "declare it once; select '... AS name' to rename it, window_time(window) AS t after a window",
            )
        column = check(self.column, source.schema, where=self.where)
        if not is_time(column.type) or plain_column(self.column) is None:
            raise self.error(
                f"event time must be a timestamp column, but {self.column} is {column.type.text}",
                f"select to_timestamp({self.column}) AS {self.column} first",
            )
        seconds = self.duration(self.delay, "the watermark's delay")
        return StreamType(source.schema, EventTime(self.column, seconds), source.located_by)


# ---------------------------------------------------------------- stateful operators


@dataclass(frozen=True)
class TimeWindow:
    """Windows of ``size``, a new one every ``slide`` (``slide`` = None: tumbling)."""

    column: str
    size: str
    slide: str | None = None


@dataclass(frozen=True)
class SessionWindow:
    """Windows that end when a key was silent for ``gap``."""

    column: str
    gap: str


@dataclass(frozen=True, kw_only=True)
class Aggregate(Operator):
    """Aggregates per window and keys; a window's row comes out once, when the watermark passes its end."""

    kind: ClassVar[str] = "aggregate"
    stateful: ClassVar[bool] = True
    window: TimeWindow | SessionWindow | None = None
    keys: tuple[str, ...] = ()
    aggregates: tuple[tuple[str, str], ...]

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        (source,) = inputs
        time = source.event_time
        if time is None:
            raise self.error(
                "an aggregate over a stream never ends without a watermark",
                ".with_watermark(<timestamp column>, '10 seconds') before .group_by(...)",
            )
        columns: list[Column] = []
        if self.window is None:
            if time.column.lower() not in {k.lower() for k in self.keys}:
                raise self.error(
                    f"group_by has no window and not the event time '{time.column}', so no group ever ends",
                    f"add hw.window('{time.column}', '1 minute') or '{time.column}' to group_by(...)",
                )
            out = time
        else:
            if self.window.column.lower() != time.column.lower():
                raise self.error(
                    f"the window is over '{self.window.column}', but the event time is '{time.column}'",
                    f"use hw.window('{time.column}', ...)",
                )
            name = self._check_window(self.window)
            columns.append(Column(name, WINDOW_TYPE))
            out = EventTime(name, 0.0)
        columns += [source.schema.column(self._key(k, source)) for k in self.keys]
        columns += aggregate_columns(self, self.aggregates, source)
        located = frozenset(k for k in self.keys if k.lower() in {c.lower() for c in source.located_by})
        return StreamType(_schema(self, columns), event_time=out, located_by=located)

    def _check_window(self, window: TimeWindow | SessionWindow) -> str:
        if isinstance(window, SessionWindow):
            gap = self.duration(window.gap, "the session's gap")
            if gap <= 0:
                raise self.error("the session's gap is not positive", "write it as '5 minutes'")
            return "session_window"
        size = self.duration(window.size, "the window's size")
        slide = self.duration(window.slide, "the window's slide") if window.slide else size
        if size <= 0 or not 0 < slide <= size:
            raise self.error(f"window of {window.size} every {window.slide}", "0 < slide <= size")
        return "window"

    def _key(self, key: str, source: StreamType) -> str:
        return column_named(self, key, source.schema)

    def partition_keys(self) -> tuple[str, ...] | None:
        return self.keys


@dataclass(frozen=True, kw_only=True)
class Dedup(Operator):
    """Drop rows whose keys were seen before within the watermark's delay."""

    kind: ClassVar[str] = "dedup"
    stateful: ClassVar[bool] = True
    keys: tuple[str, ...]

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        (source,) = inputs
        if source.event_time is None:
            raise self.error(
                "dropping duplicates needs a watermark, or every key ever seen must be remembered",
                ".with_watermark(<timestamp column>, '10 seconds') before .drop_duplicates(...)",
            )
        if not self.keys:
            raise self.error("no columns to compare", "name them: .drop_duplicates('id')")
        for key in self.keys:
            column_named(self, key, source.schema)
        return source

    def partition_keys(self) -> tuple[str, ...] | None:
        return self.keys


@dataclass(frozen=True, kw_only=True)
class Join(Operator):
    """Pair rows of two streams with equal keys and event times within bounds.

    ``earliest`` and ``latest`` bound right event time - left event time.
    """

    kind: ClassVar[str] = "join"
    arity: ClassVar[tuple[int, int | None]] = (2, 2)
    stateful: ClassVar[bool] = True
    on: tuple[str, ...]
    earliest: str
    latest: str
    how: Literal["inner", "left"] = "inner"

    def bounds(self) -> tuple[float, float]:
        """Give the bounds in seconds."""
        low = self.duration(self.earliest.removeprefix("-"), "the join's bound")
        high = self.duration(self.latest.removeprefix("-"), "the join's bound")
        low = -low if self.earliest.startswith("-") else low
        high = -high if self.latest.startswith("-") else high
        if low > high:
            raise self.error(f"no time is between {self.earliest} and {self.latest}", "swap the bounds")
        return low, high

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        left, right = inputs
        low, high = self.bounds()
        for side, stream in (("left", left), ("right", right)):
            if stream.event_time is None:
                raise self.error(
                    f"the {side} stream has no watermark, so its rows must be remembered for ever",
                    f".with_watermark(<timestamp column>, '10 seconds') on the {side} stream",
                )
            if not is_time(stream.schema.column(stream.event_time.column).type):
                raise self.error(
                    f"the {side} stream's event time is a window",
                    "select window_time(window) AS t, and the other columns, first",
                )
        assert left.event_time is not None and right.event_time is not None
        if not self.on:
            raise self.error("a join of streams needs key columns", "join(other, on='id', within='1 minute')")
        for key in self.on:
            a = left.schema.column(column_named(self, key, left.schema)).type
            b = right.schema.column(column_named(self, key, right.schema)).type
            if a != b:
                raise self.error(f"'{key}' is {a.text} on the left and {b.text} on the right", "cast one side")
        keys = {k.lower() for k in self.on}
        rest = [c for c in right.schema.columns if c.name.lower() not in keys]
        clash = {c.name.lower() for c in rest} & {c.name.lower() for c in left.schema.columns}
        if clash:
            raise self.error(
                f"both streams have: {', '.join(sorted(clash))}",
                "rename them on one side: .select('ts AS right_ts', ...)",
            )
        # A joined row may come as late as its older side waited for the younger one.
        delay = max(left.event_time.delay, right.event_time.delay) + max(abs(low), abs(high))
        located = frozenset(k for k in left.located_by if k.lower() in keys and k in right.located_by)
        schema = _schema(self, [*left.schema.columns, *rest])
        return StreamType(schema, EventTime(left.event_time.column, delay), located)

    def partition_keys(self) -> tuple[str, ...] | None:
        return self.on


@dataclass(frozen=True, kw_only=True)
class CountWindow(Operator):
    """Aggregates over every ``size`` rows of a key, a new window every ``slide`` rows."""

    kind: ClassVar[str] = "count_window"
    stateful: ClassVar[bool] = True
    keys: tuple[str, ...]
    order_by: tuple[str, ...]
    size: int
    slide: int | None = None
    aggregates: tuple[tuple[str, str], ...]

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        (source,) = inputs
        if self.size < 1 or (self.slide is not None and not 1 <= self.slide <= self.size):
            raise self.error(f"window of {self.size} rows every {self.slide}", "1 <= slide <= size")
        order_columns(self, source)
        columns = [source.schema.column(column_named(self, k, source.schema)) for k in self.keys]
        columns += aggregate_columns(self, self.aggregates, source)
        row_aggregates(self.aggregates, source.schema, where=self.where)
        located = frozenset(k for k in self.keys if k in source.located_by)
        return StreamType(_schema(self, columns), None, located)

    def partition_keys(self) -> tuple[str, ...] | None:
        return self.keys


@dataclass(frozen=True, kw_only=True)
class Scan(Operator):
    """Per key, in order: ``state, out = function(state, row)``; every row gives one output row.

    ``function`` takes the state (``initial`` as JSON first) and the row as a dict, and returns
    the new state and a dict of the columns of ``schema_text``, or None for no output row.
    """

    kind: ClassVar[str] = "scan"
    stateful: ClassVar[bool] = True
    keys: tuple[str, ...]
    order_by: tuple[str, ...]
    function: PythonFunction
    initial: str
    schema_text: str

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        (source,) = inputs
        order_columns(self, source)
        for key in self.keys:
            column_named(self, key, source.schema)
        out = _opaque(self, source, self.schema_text)
        for key in self.keys:
            name = key.lower()
            if name in {n.lower() for n in out.schema.names} and out.schema.column(key) != source.schema.column(key):
                raise self.error(f"the key '{key}' has another type in the output", "keep keys as they are")
        return out

    def partition_keys(self) -> tuple[str, ...] | None:
        return self.keys


STATELESS_SQL = (Where, Select)


def column_named(operator: Operator, name: str, schema: Schema) -> str:
    """Resolve a plain column name, or raise DataflowError that lists what there is."""
    expression = check(f"`{name.strip('`')}`", schema, where=operator.where)
    (column,) = expression.columns
    return column


def aggregate_columns(
    operator: Operator, aggregates: tuple[tuple[str, str], ...], source: StreamType
) -> list[Column]:
    """Check aggregates and give the columns they make."""
    columns = []
    for alias, text in aggregates:
        aggregate = check_aggregate(text, source.schema, where=operator.where)
        _deterministic(operator, aggregate)
        columns.append(Column(alias, aggregate.type))
    if not columns:
        raise operator.error("agg() computes nothing", "name an aggregate: .agg(n='count(*)')")
    return columns


def order_columns(operator: CountWindow | Scan, source: StreamType) -> tuple[str, ...]:
    """Check ``order_by`` and give the columns as declared in the stream."""
    if not operator.order_by:
        raise operator.error(
            "rows of a key have no order without order_by",
            "order_by='ts' (the event time: exact wherever it runs) or a counter the rows carry",
        )
    columns = tuple(column_named(operator, c, source.schema) for c in operator.order_by)
    time = source.event_time
    if time is not None and columns[0] == time.column and not is_time(source.schema.column(columns[0]).type):
        raise operator.error(
            f"'{columns[0]}' is a window, not a time",
            "select('*', 'window_time(window) AS t') and order by t",
        )
    return columns


def by_event_time(operator: CountWindow | Scan, source: StreamType) -> str | None:
    """Give the event-time column if the operator works in its order, so that arrival does not matter."""
    first = order_columns(operator, source)[0]
    time = source.event_time
    return first if time is not None and time.column.lower() == first.lower() else None


def plain_column(text: str) -> str | None:
    """Give the column if ``text`` is nothing but a column's name."""
    bare = text.strip()
    if len(bare) > 2 and bare[0] == bare[-1] == "`" and "`" not in bare[1:-1]:
        return bare[1:-1]
    return bare if bare.isidentifier() else None


def _is_window_time(text: str, column: str) -> bool:
    bare = text.replace(" ", "").replace("`", "").lower()
    return bare == f"window_time({column.lower()})"


def _deterministic(operator: Operator, expression: Any) -> None:
    if not expression.deterministic:
        raise operator.error(
            f"{expression.text} gives another value each time it is computed",
            "take the value from the data: after a failure a batch is computed again and must come out the same",
        )


def _schema(operator: Operator, columns: list[Column]) -> Schema:
    try:
        return Schema(tuple(columns))
    except DataflowError as error:
        raise operator.error(error.what, error.hint or "name every column once") from error


def _typed(schema: Schema) -> Mapping[str, DataType]:
    return {c.name.lower(): c.type for c in schema.columns}


def _opaque(operator: Operator, source: StreamType, schema_text: str) -> StreamType:
    """Type the output of a Python function: what keeps its name and type keeps its meaning."""
    try:
        schema = Schema.parse(schema_text)
    except DataflowError as error:
        raise operator.error(error.what, error.hint or "write the schema as 'id bigint, v double'") from error
    same = {c.name for c in schema.columns} & {
        c.name for c in source.schema.columns if c in schema.columns
    }
    time = source.event_time if source.event_time and source.event_time.column in same else None
    return StreamType(schema, time, frozenset(c for c in source.located_by if c in same))
