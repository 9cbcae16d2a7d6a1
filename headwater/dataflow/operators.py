"""The closed set of core operators, as frozen data: the common base, and the stateless ones.

An operator describes a transformation of its input streams; it knows no places and no Spark. Each has
``output(inputs)``: it checks the operator against the types of its inputs and returns the type of its output, or
raises DataflowError. Every other operation of the fluent API is composed of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar, Literal, get_type_hints

from headwater.core.errors import DataflowError
from headwater.core.requirement import Requirement
from headwater.core.rules import ANYTHING, OneLine, Refused, Rule, Span, rule_of
from headwater.core.text import cut
from headwater.dataflow.builtin import BuiltinFunction
from headwater.dataflow.function import PythonFunction
from headwater.dataflow.settings import ColumnName, Duration, DurationOrNone
from headwater.dataflow.types import EventTime, StreamType, idle_together, is_time
from headwater.sql.expressions import check, check_condition
from headwater.sql.lexer import quoted
from headwater.sql.schema import ArrayType, Column, DataType, Schema


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Base of all operators: a name, inputs by name, and the requested place."""

    kind: ClassVar[str]
    arity: ClassVar[tuple[int, int | None]] = (1, 1)
    ordered_inputs: ClassVar[bool] = True
    stateful: ClassVar[bool] = False
    shown: ClassVar[tuple[str, ...]] = ()  # the settings in the label
    newer: ClassVar[frozenset[str]] = frozenset()  # settings that stored keys do not have: left out while None

    id: str
    inputs: tuple[str, ...] = ()
    layer: str | None = None
    """The place of the last mark before it: a layer, or ``zone NAME`` (``headwater.core.place``)."""
    requires: Requirement = Requirement()

    def __post_init__(self) -> None:
        cls: Any = type(self)  # mypy takes no class of a dataclass for the Hashable that cache wants
        for name, rule in _rules(cls).items():
            try:
                rule.check(getattr(self, name), name)
            except Refused as error:
                raise self.error(error.what, error.hint or "correct this setting") from error

    def config(self) -> dict[str, Any]:
        """Return the operator's settings as JSON-able data, without name, inputs and place."""
        found = {f.name: _data(getattr(self, f.name)) for f in fields(self) if f.name not in _PLACEMENT}
        return {name: value for name, value in found.items() if value is not None or name not in self.newer}

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        """Check the operator against its inputs' types and return its output's type."""
        raise NotImplementedError

    def content(self, inputs: tuple[StreamType, ...]) -> dict[str, Any]:
        """Return ``config()`` with expressions in canonical form: the content of the operator's key."""
        return self.config()

    @property
    def where(self) -> str:
        """The operator's name in error messages."""
        return f"operator '{cut(str(self.id), 120)}' ({self.kind})"

    @property
    def label(self) -> str:
        """The operator's name with its telling settings, for people: ``where-2(v > 5)``."""
        text = ", ".join(part for name in self.shown if (part := _shown(getattr(self, name))))
        if len(text) > _LONGEST:
            half = _LONGEST // 2 - 2
            text = f"{text[:half]} .. {text[-half:]}"
        return f"{self.id}({text})" if text else self.id

    def error(self, what: str, hint: str) -> DataflowError:
        return DataflowError(what, where=self.where, hint=hint)

    def duration(self, text: str, name: str) -> float:
        """Parse a duration setting into seconds."""
        try:
            return Span(least=0).seconds(text, name)
        except Refused as error:
            raise self.error(error.what, error.hint or "write it as '30 seconds'") from error

    def partition_keys(self) -> tuple[str, ...] | None:
        """Columns by which rows meet in this operator; () = all rows meet; None = rows never meet."""
        return None


@cache
def _rules(cls: Any) -> dict[str, Rule]:
    """Return the rule of each setting of an operator, from its annotation."""
    hints = get_type_hints(cls, include_extras=True)
    found = {f.name: rule_of(hints[f.name]) for f in fields(cls)}
    return {name: rule for name, rule in found.items() if rule is not ANYTHING}


_PLACEMENT = {"id", "inputs", "layer", "requires"}
_COLUMN = OneLine()
_LONGEST = 44  # characters of the settings in a label


def _shown(value: Any) -> str:
    if isinstance(value, PythonFunction | BuiltinFunction):
        return value.name
    if isinstance(value, tuple):
        return ", ".join(item if isinstance(item, str) else item[0] for item in value)
    if hasattr(value, "__dataclass_fields__"):
        return " ".join(str(v) for f in fields(value) if (v := getattr(value, f.name)) is not None)
    return "" if value is None else " ".join(str(value).split())


def _data(value: Any) -> Any:
    if isinstance(value, PythonFunction):
        return {"name": value.name, "fingerprint": value.fingerprint, "pickled": value.pickled}
    if isinstance(value, tuple):
        return [_data(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        return {f.name: _data(getattr(value, f.name)) for f in fields(value)}
    return value


@dataclass(frozen=True, kw_only=True)
class Where(Operator):
    """Keep the rows for which ``condition`` (Spark SQL) is true."""

    kind: ClassVar[str] = "where"
    shown: ClassVar[tuple[str, ...]] = ("condition",)
    condition: str

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        require_deterministic(self, check_condition(self.condition, inputs[0].schema, where=self.where))
        return inputs[0]

    def content(self, inputs: tuple[StreamType, ...]) -> dict[str, Any]:
        return {"condition": check(self.condition, inputs[0].schema, where=self.where).text}


@dataclass(frozen=True, kw_only=True)
class Select(Operator):
    """Compute columns: pairs of name and Spark SQL expression."""

    kind: ClassVar[str] = "select"
    shown: ClassVar[tuple[str, ...]] = ("columns",)
    columns: tuple[tuple[str, str], ...]

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        (source,) = inputs
        if not self.columns:
            raise self.error("no columns are left", "keep or compute at least one")
        columns: list[Column] = []
        kept: dict[str, str] = {}  # input column -> its output name
        for name, text in self.columns:
            expression = check(text, source.schema, where=self.where)
            require_deterministic(self, expression)
            columns.append(Column(name, expression.type))
            origin = plain_column(text)
            if origin is not None:
                kept.setdefault(origin.lower(), name)
            elif source.event_time is not None and _is_window_time(text, source.event_time.column):
                kept.setdefault(source.event_time.column.lower(), name)
        time = source.event_time
        if time is not None:
            name_now = kept.get(time.column.lower())
            time = replace(time, column=name_now) if name_now else None
        located = frozenset(kept[c.lower()] for c in source.located_by if c.lower() in kept)
        return StreamType(checked_schema(self, columns), event_time=time, located_by=located)

    def content(self, inputs: tuple[StreamType, ...]) -> dict[str, Any]:
        schema = inputs[0].schema
        return {"columns": [[name, check(text, schema, where=self.where).text] for name, text in self.columns]}


@dataclass(frozen=True, kw_only=True)
class Explode(Operator):
    """One row per element of an array (or map entry); the other columns are repeated."""

    kind: ClassVar[str] = "explode"
    shown: ClassVar[tuple[str, ...]] = ("expression",)
    expression: str
    alias: str
    position: str | None = None
    outer: bool = False

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        (source,) = inputs
        value = check(self.expression, source.schema, where=self.where)
        require_deterministic(self, value)
        if not isinstance(value.type, ArrayType):
            raise self.error(
                f"explode needs an array, but {self.expression} is {value.type.text}",
                "give an array column, or build one with array(...) or map_entries(...)",
            )
        columns = list(source.schema.columns)
        if self.position is not None:
            columns.append(Column(self.position, DataType.parse("int")))
        columns.append(Column(self.alias, value.type.element))
        return StreamType(checked_schema(self, columns), event_time=source.event_time, located_by=source.located_by)

    def content(self, inputs: tuple[StreamType, ...]) -> dict[str, Any]:
        value = check(self.expression, inputs[0].schema, where=self.where)
        return {**self.config(), "expression": value.text}


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
            known = [t for t in times if t is not None]
            time = EventTime(known[0].column, max(t.delay for t in known), idle_together(known))
        located = frozenset.intersection(*(t.located_by for t in inputs))
        return StreamType(first.schema, event_time=time, located_by=located)

    def content(self, inputs: tuple[StreamType, ...]) -> dict[str, Any]:
        # The inputs' order is irrelevant, unless it determines the order of the columns.
        return {"columns": list(inputs[0].schema.names)}


@dataclass(frozen=True, kw_only=True)
class ToLocations(Operator):
    """Give rows to locations: each row to the one that its ``column`` names, or with ``copies`` a copy to each one.

    Rows that name no location of the dataflow go nowhere. With ``copies``, ``column`` is a new one that holds the
    location's name. Run at a location, the operator gives the rows of that location only.
    """

    kind: ClassVar[str] = "to_locations"
    shown: ClassVar[tuple[str, ...]] = ("column",)
    column: ColumnName
    copies: bool

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        source, column = inputs[0], self.column
        known = {c.name.lower(): c for c in source.schema.columns}
        if self.copies:
            if column.lower() in known:
                raise self.error(f"location_as='{column}' names an existing column", "choose another name")
            columns = [*source.schema.columns, Column(column, DataType.parse("string"))]
            return StreamType(checked_schema(self, columns), source.event_time, frozenset((column,)))
        check(quoted(column), source.schema, where=self.where)
        found = known[column.lower()]
        if found.type.text != "string":
            raise self.error(
                f"by='{column}' is {found.type.text}: it must hold the names of locations",
                "make it a string: with_columns(place='CAST(... AS STRING)')",
            )
        return StreamType(source.schema, source.event_time, frozenset((found.name,)))


@dataclass(frozen=True, kw_only=True)
class MapBatches(Operator):
    """A function from an iterator of Arrow record batches to record batches of ``schema_text``."""

    kind: ClassVar[str] = "map_batches"
    shown: ClassVar[tuple[str, ...]] = ("function",)
    function: PythonFunction | BuiltinFunction
    schema_text: str

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        if isinstance(self.function, BuiltinFunction):
            self.function.check(self.where, over="batches")
        return opaque_output(self, inputs[0], self.schema_text)


@dataclass(frozen=True, kw_only=True)
class Transform(Operator):
    """A function from DataFrame to DataFrame, or a model of Spark ML; row by row, without state of its own."""

    kind: ClassVar[str] = "transform"
    shown: ClassVar[tuple[str, ...]] = ("function",)
    function: PythonFunction | BuiltinFunction
    schema_text: str

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        if isinstance(self.function, BuiltinFunction):
            self.function.check(self.where, over="frames")
        return opaque_output(self, inputs[0], self.schema_text)


_LONGEST_DISORDER = 300 * 86_400
"""Seconds by which the time after all history is in front of the year 10000, where Spark's times end."""


@dataclass(frozen=True, kw_only=True)
class Watermark(Operator):
    """Declare the event-time column and how much later than the newest row a row may arrive.

    ``idle_after``: how long a location without rows holds back the others; None: until it has rows, or has ended.
    ``history``: the input is history, which holds back the others until all of it has been read. "unordered": its rows
    come in any order, so no time passes before; "ordered": as late as ``delay``.
    """

    kind: ClassVar[str] = "watermark"
    shown: ClassVar[tuple[str, ...]] = ("column", "delay", "history")
    newer: ClassVar[frozenset[str]] = frozenset({"idle_after", "history"})
    column: str
    delay: DurationOrNone
    idle_after: Duration | None = None
    history: Literal["ordered", "unordered"] | None = None

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        (source,) = inputs
        if source.event_time is not None:
            raise self.error(
                f"the stream already has an event time: '{source.event_time.column}'",
                "declare it once; select '... AS name' to rename it, window_time(window) AS t after a window",
            )
        column = check(self.column, source.schema, where=self.where)
        if not is_time(column.type) or plain_column(self.column) is None:
            raise self.error(
                f"event time must be a timestamp column, but {self.column} is {column.type.text}",
                f"select to_timestamp({self.column}) AS {self.column} first",
            )
        seconds = self.duration(self.delay, "the watermark's delay")
        if self.history is not None and (self.idle_after is not None or seconds > _LONGEST_DISORDER):
            raise self.error(
                "history is never idle, and at most 300 days out of order", "leave disorder out: any order"
            )
        idle = None if self.idle_after is None else self.duration(self.idle_after, "idle_after")
        (name,) = column.columns
        return StreamType(source.schema, EventTime(name, seconds, idle), source.located_by)

    def content(self, inputs: tuple[StreamType, ...]) -> dict[str, Any]:
        return {**self.config(), "column": column_named(self, self.column, inputs[0].schema)}


STATELESS_SQL = (Where, Select)


def column_named(operator: Operator, name: str, schema: Schema) -> str:
    """Resolve a plain column name, or raise DataflowError that lists all columns."""
    expression = check(quoted(_unquoted(name)), schema, where=operator.where)
    (column,) = expression.columns
    return column


def _unquoted(name: str) -> str:
    if len(name) > 2 and name[0] == name[-1] == "`":
        return name[1:-1].replace("``", "`")
    return name


def plain_column(text: str) -> str | None:
    """Return the column if ``text`` is only a column's name."""
    bare = text.strip()
    if len(bare) > 2 and bare[0] == bare[-1] == "`" and "`" not in bare[1:-1]:
        return bare[1:-1]
    return bare if bare.isidentifier() else None


def _is_window_time(text: str, column: str) -> bool:
    bare = text.replace(" ", "").replace("`", "").lower()
    return bare == f"window_time({column.lower()})"


def require_deterministic(operator: Operator, expression: Any) -> None:
    if "input_file_name(" in expression.text:
        raise operator.error(
            "input_file_name() has no value behind a channel",
            "name a column for it at the source: read.csv(path, schema, file_as='file')",
        )
    if not expression.deterministic:
        raise operator.error(
            f"{cut(expression.text, 300)} gives a new value in each evaluation",
            "take the value from the data: a batch repeated after a failure must give the same rows",
        )


def checked_schema(operator: Operator, columns: list[Column]) -> Schema:
    """Return the schema of an operator's output; its names appear in plans, messages and files."""
    try:
        schema = Schema(tuple(columns))
    except DataflowError as error:
        raise operator.error(error.what, error.hint or "name every column once") from error
    for name in schema.names:
        try:
            _COLUMN.check(name, "the column's name")
        except Refused as error:
            raise operator.error(error.what, f"{error.hint}; AS gives it another name") from error
    return schema


def _typed(schema: Schema) -> Mapping[str, DataType]:
    return {c.name.lower(): c.type for c in schema.columns}


def opaque_output(operator: Operator, source: StreamType, schema_text: str) -> StreamType:
    """Return the output type of a Python function: columns of equal name and type keep their meaning."""
    try:
        parsed = Schema.parse(schema_text)
    except DataflowError as error:
        raise operator.error(error.what, error.hint or "write the schema as 'id bigint, v double'") from error
    schema = checked_schema(operator, list(parsed.columns))
    same = {c.name for c in schema.columns} & {c.name for c in source.schema.columns if c in schema.columns}
    time = source.event_time if source.event_time and source.event_time.column in same else None
    return StreamType(schema, time, frozenset(c for c in source.located_by if c in same))
