"""The kinds of settings of operators, each with its rule and bounds, for the fluent API and the JSON form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

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
    Span,
    Text,
    Whole,
    a_type,
)

MOST_WRITTEN = 2_000
"""Operators of a dataflow as it is written: Spark's planner needs minutes for far fewer in one unit."""
MOST_OPERATORS = 10_000
"""Operators of a dataflow in JSON, or merged from those of a pool."""

MOST_LOCATIONS = MOST_ITEMS
"""Locations of a dataflow: its sources run once for each."""

ColumnName = Annotated[str, OneLine()]
Label = Annotated[str, FileName()]
Place = Annotated[str, OneLine()]
"""Paths, topics, URLs, addresses, tables, names of secrets."""

Condition = Annotated[str, Text(example='where("v > 5")')]
Projection = Annotated[str, Text(example='select("id", "v * 2 AS twice")')]
Computed = Annotated[str, Text(example='with_columns(twice="v * 2")')]
Statement = Annotated[str, Text(example='sql("SELECT id, v FROM readings WHERE v > 5")')]
Aggregated = Annotated[str, Text(example='agg(mean="avg(v)")')]


@dataclass(frozen=True)
class SchemaText(Text):
    """Schemas as text; a StructType is answered with its text."""

    def check(self, value: Any, name: str) -> str:
        if isinstance(value, str) and value.strip():
            return super().check(value, name)
        fields = getattr(value, "fields", None)
        if type(value).__name__ == "StructType" and fields is not None:
            text = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in fields)
            raise Refused("a StructType where text is wanted", hint=f'write the schema as "{text}"')
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
Bound = Annotated[str, Interval()]

StateText = Annotated[str, Text(most=2**20)]
"""The JSON of a first state: each key has a copy of it."""
