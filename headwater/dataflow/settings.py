"""The kinds of settings of operators, each with its rule and bounds, for the fluent API and the JSON form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from headwater.core.errors import DataflowError
from headwater.core.rules import (
    ANYTHING,
    MOST_ITEMS,
    AnyOf,
    FileName,
    Interval,
    Kind,
    ListOf,
    Number,
    OneLine,
    Refused,
    Rule,
    Size,
    Span,
    Text,
    Whole,
    a_type,
)
from headwater.sql.columns import SparkColumn, column_text, column_tree, is_column
from headwater.sql.lexer import quoted
from headwater.sql.syntax import Name

MOST_WRITTEN = 2_000
"""Operators of a dataflow as it is written: Spark's planner needs minutes for far fewer in one unit."""
MOST_OPERATORS = 10_000
"""Operators of a dataflow in JSON, or merged from those of a pool."""

MOST_LOCATIONS = MOST_ITEMS
"""Locations of a dataflow: its sources run once for each."""


@contextmanager
def refused_argument(name: str) -> Iterator[None]:
    """Name the argument in errors of reading a Column."""
    try:
        yield
    except DataflowError as error:
        raise Refused(f"{name}: {error.what}", hint=error.hint) from error


@dataclass(frozen=True)
class ExpressionText(Text):
    """Expressions as Spark SQL text; a Column of PySpark becomes its text. ``alias``: with its name."""

    alias: bool = False

    def check(self, value: Any, name: str) -> str:
        if is_column(value):
            with refused_argument(name):
                value = column_text(value, alias=self.alias)
        return super().check(value, name)


@dataclass(frozen=True)
class ColumnText(OneLine):
    """Names of columns; a Column of PySpark that is only a column becomes its name."""

    def check(self, value: Any, name: str) -> str:
        return super().check(column_name(value, name) if is_column(value) else value, name)


def column_name(column: SparkColumn, name: str) -> str:
    """Return the name of a Column that computes nothing; raise Refused for others."""
    with refused_argument(name):
        node = column_tree(column)
    if not isinstance(node, Name) or len(node.parts) > 1:
        raise Refused(
            f"{name} is {column_text(column)}, an expression where the name of a column is wanted",
            hint='name it before: .with_columns(x="...")',
        )
    return node.parts[0]


@dataclass(frozen=True)
class Several(Rule):
    """One value, or a list of them: ``select("a", "b")`` and ``select(["a", "b"])``."""

    item: Rule

    def check(self, value: Any, name: str) -> tuple[Any, ...]:
        if isinstance(value, list | tuple):
            return ListOf(self.item).check(value, name)
        return (self.item.check(value, name),)


@dataclass(frozen=True)
class ByName(Rule):
    """Values by name, as ``{"twice": "v * 2"}``."""

    item: Rule

    def check(self, value: Any, name: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Refused(f"{name} is {a_type(value)}", hint=f'write {name} as {{"name": ...}}')
        keys = ListOf(OneLine()).check(value.keys(), name)
        return {key: self.item.check(value[key], key) for key in keys}


@dataclass(frozen=True)
class AggregateRule(Rule):
    """Aggregates as ``avg(v) AS mean``, or by column: ``{"v": "avg"}``."""

    item: Rule

    def check(self, value: Any, name: str) -> tuple[str, ...]:
        if not isinstance(value, Mapping):
            return (self.item.check(value, name),)
        found = ByName(OneLine()).check(value, name)
        return tuple(f"{function}({'*' if column == '*' else quoted(column)})" for column, function in found.items())


def chained(several: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values of arguments with the rule ``Several``."""
    return tuple(one for values in several for one in values)


def text_of(value: str | SparkColumn) -> str:
    """Return an expression: its rule has made text of a Column."""
    assert isinstance(value, str)
    return value


ColumnName = Annotated[str, ColumnText()]
Label = Annotated[str, FileName()]
Place = Annotated[str, OneLine()]
"""Paths, topics, URLs, addresses, tables, names of secrets."""

Statement = Annotated[str, Text(example='sql("SELECT id, v FROM readings WHERE v > 5")')]
Expression: TypeAlias = str | SparkColumn
"""Spark SQL text, or a Column of PySpark in its place."""
Columns = Annotated[str | Sequence[str], Several(ColumnText())]
Condition = Annotated[Expression, ExpressionText(example='where("v > 5")')]
Projections = Annotated[
    Expression | Sequence[Expression], Several(ExpressionText(example='select("id", "v * 2 AS twice")', alias=True))
]
Computed = Annotated[Expression, ExpressionText(example='with_columns(twice="v * 2")')]
ComputedByName = Annotated[Mapping[str, Expression], ByName(ExpressionText(example='withColumns({"twice": "v * 2"})'))]
RowPatternText = Annotated[str, Text(example='match_recognize("A B+ C", ...)')]
Definitions = Annotated[Mapping[str, Expression], ByName(ExpressionText(example='define={"A": "v > 5"}'))]
Measures = Annotated[Mapping[str, Expression], ByName(ExpressionText(example='measures={"n": "count(*)"}'))]
NewNames = Annotated[Mapping[str, str], ByName(ColumnText())]
Aggregated = Annotated[Expression, ExpressionText(example='agg(mean="avg(v)")')]
AggregateItems = Annotated[
    Expression | Mapping[str, str], AggregateRule(ExpressionText(example='agg("avg(v) AS mean")', alias=True))
]


@dataclass(frozen=True)
class SchemaText(Text):
    """Schemas as text; a StructType of PySpark becomes its text."""

    def check(self, value: Any, name: str) -> str:
        if isinstance(value, str) and value.strip():
            return super().check(value, name)
        fields = getattr(value, "fields", None)
        if type(value).__name__ == "StructType" and fields:
            return super().check(", ".join(f"{quoted(f.name)} {f.dataType.simpleString()}" for f in fields), name)
        what = "an empty schema" if isinstance(value, str) else a_type(value)
        raise Refused(f"{what} where a schema is wanted", hint='write "id int, ts timestamp, v double"')


@dataclass(frozen=True)
class StatementValues(Rule):
    """Values of a statement's parameters: by name, or in a list; None for none."""

    def check(self, value: Any, name: str) -> Mapping[str, Any] | tuple[Any, ...]:
        if value is None:
            return ()
        if isinstance(value, Mapping):
            names = ListOf(OneLine()).check(value.keys(), name)
            return {key: value[key] for key in names}
        return ListOf(ANYTHING).check(value, name)


ValuesOf = Annotated[Mapping[str, Any] | Sequence[Any] | None, StatementValues()]
SchemaOf = Annotated[str, SchemaText()]
Option = Annotated[str | float | bool, AnyOf((Text(), Kind(bool), Whole(), Number()))]
"""The value of a connector's option: text, or a value that becomes text."""

TopRows = Annotated[int, Whole(1, 100_000)]
"""The rows of a window are one array in one row of Spark, and its rows are copied through every operator after it."""
WindowRows = Annotated[int, Whole(1, 1_000_000)]
"""The rows of the open windows of a key are one value of Spark's state store."""
ShownRows = Annotated[int, Whole(1, 10_000)]
"""They are read into the memory of the process that prints them."""
RowsPerSecond = Annotated[int, Whole(1, 1_000_000_000)]
"""Spark counts rows in 64 bits: at this rate they last for 292 years."""
SensorRate = Annotated[float, Number(0, 1e9)]
Machines = Annotated[int, Whole(1, 100_000)]
"""Each generated instant has a row of every machine of a location."""
RowCount = Annotated[int, Whole(0)]
Seed = Annotated[int, Whole()]
QualityOfService = Annotated[int, Whole(0, 2)]

Duration = Annotated[str, Span()]
DurationOrNone = Annotated[str, Span(least=0)]
"""A duration that may be zero."""
FileSize = Annotated[str, Size(least=1)]
RealTimeBatch = Annotated[str, Span(least=5, most=600)]
Bound = Annotated[str, Interval()]

TableContent = Annotated[str, Text(most=2**21)]
"""A reference table's file in base64: each unit's order has a copy of it."""

StateText = Annotated[str, Text(most=2**20)]
"""The JSON of a first state: each key has a copy of it."""


def option_text(value: str | float | bool) -> str:
    """Write an option's value as Spark reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
