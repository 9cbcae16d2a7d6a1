"""Grouped streams: aggregates of each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from headwater.core.errors import DataflowError
from headwater.core.text import cut
from headwater.dataflow import habits, stateful
from headwater.dataflow.settings import (
    Aggregated,
    AggregateItems,
    ColumnName,
    chained,
    text_of,
)
from headwater.dataflow.streambase import S
from headwater.sql.columnnames import spark_name
from headwater.sql.lexer import quoted
from headwater.sql.parser import parse_item
from headwater.sql.printer import canonical
from headwater.sql.syntax import Alias


@dataclass(frozen=True)
class Grouped(habits.NameGuard, Generic[S]):
    """A grouped stream before its aggregates."""

    stream: S
    window: stateful.TimeWindow | stateful.SessionWindow | None
    keys: tuple[str, ...]

    def agg(self, *columns: AggregateItems, **aggregates: Aggregated) -> S:
        """Compute aggregates per group: ``agg(n="count(*)", mean="avg(v)")``, ``agg(F.avg("v").alias("mean"))``.

        Aggregates of plain columns may do without a name: ``avg(v)`` is then one, as in Spark; so in ``{"v": "avg"}``.
        """
        found = aggregates_of(columns, aggregates, self._place_of("agg"))
        return self.stream._then(stateful.Aggregate, window=self.window, keys=self.keys, aggregates=found)

    def count(self) -> S:
        """Count the rows of each group, as column ``count``."""
        return self.agg(count="count(*)")

    def avg(self, *columns: ColumnName) -> S:
        """Return the means of columns, named ``avg(v)``."""
        return self._each("avg", columns)

    mean = avg

    def sum(self, *columns: ColumnName) -> S:
        """Return the sums of columns, named ``sum(v)``."""
        return self._each("sum", columns)

    def min(self, *columns: ColumnName) -> S:
        """Return the least values of columns, named ``min(v)``."""
        return self._each("min", columns)

    def max(self, *columns: ColumnName) -> S:
        """Return the greatest values of columns, named ``max(v)``."""
        return self._each("max", columns)

    def _each(self, function: str, columns: Sequence[str]) -> S:
        if not columns:
            raise DataflowError(
                f"{function}() of no columns", where=self._place_of(function), hint=f'name them: .{function}("v")'
            )
        return self.agg(**{f"{function}({c})": f"{function}({quoted(c)})" for c in columns})

    def _unknown(self, name: str) -> habits.UnknownName:
        return habits.missing(name, self, habits.GROUPED, where=f"group_by after '{self.stream.operator.id}'")

    def _place_of(self, method: str) -> str:
        return f"{method} after '{self.stream.operator.id}'"


def aggregates_of(
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
                f"{cut(canonical(node), 300)} has no name",
                where=where,
                hint='give it one: .alias("name"), or agg(name=...)',
            )
        found.append((name, canonical(value)))
    return (*found, *((name, text_of(text)) for name, text in named.items()))
