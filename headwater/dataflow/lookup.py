"""Reference tables: rows that do not stream, and the operator that joins a stream with them."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self, TypeAlias

from headwater.core.errors import DataflowError
from headwater.core.text import cut
from headwater.dataflow import habits
from headwater.dataflow.columnmethods import ColumnMethods
from headwater.dataflow.databaserows import DatabaseRows
from headwater.dataflow.operators import Operator, checked_schema
from headwater.dataflow.settings import Condition, Duration, Place, Projections, TableContent, chained, text_of
from headwater.dataflow.tablesources import Version
from headwater.dataflow.types import StreamType
from headwater.sql.expressions import Expression, check, check_condition, parse_projection
from headwater.sql.rewrite import substitute
from headwater.sql.schema import Column, Schema
from headwater.sql.statement import JoinKind

TableFormat: TypeAlias = Literal["csv", "json", "parquet", "delta", "jdbc"]

MOST_EMBEDDED = 2**20
"""Bytes of a table's file that becomes part of the dataflow: stored plans and each unit's order have a copy of it."""

_UNEQUAL = ("float", "double")
"""Types of which equal values may compare as unequal, or the other way round, from one engine to the next."""


@dataclass(frozen=True, kw_only=True)
class ReferenceTable(ColumnMethods):
    """A reference table: its files or its database, with the columns.

    ``embedded``: the file itself (base64), where it is part of the dataflow; else each zone reads ``path``, which is
    the directory of a Delta table, and the JDBC URL of a ``database``. ``version``: that of a Delta table; None: the
    newest one. ``refresh``: how often a zone looks for a change; None: never. ``condition``: the rows that are kept,
    ``projection``: the columns computed of these, both over the columns of ``schema_text``; None: all.
    """

    format: TableFormat
    path: Place
    schema_text: str
    options: tuple[tuple[str, str], ...] = ()
    embedded: TableContent | None = None
    refresh: Duration | None = None
    version: Version | None = None
    database: DatabaseRows | None = None
    condition: str | None = None
    projection: tuple[tuple[str, str], ...] | None = None

    def _unknown(self, name: str) -> habits.UnknownName:
        return habits.missing(name, self, habits.TABLE, where=f"table '{self._shown}'", columns=self.columns)

    def _place_of(self, method: str) -> str:
        return f"{method} of table '{self._shown}'"

    @property
    def _shown(self) -> str:
        return cut(self.path, 200)

    @property
    def schema(self) -> Schema:
        """The columns and their types."""
        return table_schema(self, where=f"table '{self._shown}'")

    def where(self, condition: Condition) -> Self:
        """Keep the rows for which the condition is true."""
        where = self._place_of("where")
        found = check_condition(text_of(condition), self.schema, where=where)
        _require_deterministic(found, where)
        text = found.text if self.projection is None else self._over_file(found.text)
        return replace(self, condition=text if self.condition is None else f"({self.condition}) AND ({text})")

    filter = where

    def select(self, *columns: Projections) -> Self:
        """Compute columns: ``select("id", "upper(kind) AS kind")``."""
        where, schema = self._place_of("select"), self.schema
        items = [item for text in chained(columns) for item in parse_projection(text, schema, where=where)]
        return self._computed(tuple((name, found.text) for name, found in items))

    selectExpr = select

    def _computed(self, columns: tuple[tuple[str, str], ...]) -> Self:
        where, schema = self._place_of("select"), self.schema
        checked = [(name, check(text, schema, where=where)) for name, text in columns]
        for _, found in checked:
            _require_deterministic(found, where)
        pairs = tuple((n, e.text if self.projection is None else self._over_file(e.text)) for n, e in checked)
        made = replace(self, projection=pairs)
        _ = made.schema  # raises for names that are there twice
        return made

    def _over_file(self, text: str) -> str:
        """Return an expression over the columns of the file."""
        return substitute(text, dict(self.projection or ()), Schema.parse(self.schema_text))

    def with_file(self) -> ReferenceTable:
        """Return the table with its file in it, where that is one small local file that is not to be refreshed."""
        path = Path(self.path)
        try:
            if self.refresh is not None or self.format in ("delta", "jdbc") or not path.is_file():
                return self
            if path.stat().st_size > MOST_EMBEDDED:
                return self
            # By its name alone: the same table from elsewhere is the same operator.
            return replace(self, path=path.name, embedded=base64.b64encode(path.read_bytes()).decode())
        except (OSError, ValueError):
            return self  # such as a path that only the zones have


def table_schema(table: ReferenceTable | Lookup, *, where: str) -> Schema:
    """Return the columns of a table's rows; raise DataflowError where they cannot be computed of its file's columns."""
    schema = Schema.parse(table.schema_text)
    if table.condition is not None:
        _require_deterministic(check_condition(table.condition, schema, where=where), where)
    if table.projection is None:
        return schema
    if not table.projection:
        raise DataflowError("no columns are left", where=where, hint="keep or compute at least one")
    columns = []
    for name, text in table.projection:
        found = check(text, schema, where=where)
        _require_deterministic(found, where)
        columns.append(Column(name, found.type))
    try:
        return Schema(tuple(columns))
    except DataflowError as error:
        raise DataflowError(error.what, where=where, hint=error.hint or "name each column once") from error


def _require_deterministic(found: Expression, where: str) -> None:
    if not found.deterministic or "input_file_name(" in found.text:
        raise DataflowError(
            f"{cut(found.text, 300)} gives a new value in each evaluation",
            where=where,
            hint="take the value from the table: each zone reads it by itself",
        )


@dataclass(frozen=True, kw_only=True)
class Lookup(Operator):
    """Add the columns of a reference table's rows with equal keys; a row has a result for each of them.

    ``how="left"``: rows without one are kept, with NULLs. ``left_semi`` and ``left_anti`` keep the rows that have one,
    or have none, as they are. A NULL key equals none, as in SQL. The settings of the table are those of
    ``ReferenceTable``.
    """

    kind: ClassVar[str] = "lookup"
    shown: ClassVar[tuple[str, ...]] = ("on", "path")
    newer: ClassVar[frozenset[str]] = frozenset({"version", "database", "condition", "projection"})
    on: tuple[str, ...]
    how: JoinKind = "inner"
    format: TableFormat
    path: Place
    schema_text: str
    options: tuple[tuple[str, str], ...] = ()
    embedded: TableContent | None = None
    refresh: Duration | None = None
    version: Version | None = None
    database: DatabaseRows | None = None
    condition: str | None = None
    projection: tuple[tuple[str, str], ...] | None = None

    @property
    def table(self) -> Schema:
        """The table's columns."""
        return table_schema(self, where=self.where)

    @property
    def adds_columns(self) -> bool:
        """Whether rows get the table's columns; otherwise some are dropped, and the others stay as they are."""
        return self.how in ("inner", "left")

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        source = inputs[0]
        try:
            table = self.table
        except DataflowError as error:
            raise self.error(error.what, error.hint or "write the schema as 'id bigint, v double'") from error
        if not self.on:
            raise self.error("a join with a table needs key columns", "join(table, on='machine')")
        self._check_place()
        keys = {k.lower() for k in self.on}
        if len(keys) < len(self.on):
            raise self.error(f"duplicate keys: {cut(', '.join(self.on), 200)}", "names ignore case: name each once")
        for key in self.on:
            mine, other = source.schema.find(key), table.find(key)
            if mine is None or other is None:
                side, columns = ("stream", source.schema) if mine is None else ("table", table)
                raise self.error(
                    f"the {side} has no column '{key}'", f"its columns are {cut(', '.join(columns.names), 200)}"
                )
            if mine.type != other.type:
                raise self.error(
                    f"'{key}' is {mine.type.text} in the stream and {other.type.text} in the table", "cast one of them"
                )
            if mine.type.text in _UNEQUAL or mine.type.text.startswith(("struct", "array", "map")):
                raise self.error(
                    f"'{key}' is {mine.type.text}: such values are no keys", "use a whole number or a text"
                )
        if self.embedded is not None:
            try:
                base64.b64decode(self.embedded, validate=True)
            except ValueError:
                raise self.error("the table's content is not base64", "build the dataflow again") from None
        rest = [c for c in table.columns if c.name.lower() not in keys] if self.adds_columns else []
        clash = {c.name.lower() for c in rest} & {c.name.lower() for c in source.schema.columns}
        if clash:
            raise self.error(
                f"stream and table both have: {cut(', '.join(sorted(clash)), 200)}",
                "rename them in the stream, or leave them out of the table's schema",
            )
        schema = checked_schema(self, [*source.schema.columns, *rest])
        return StreamType(schema, source.event_time, source.located_by)

    def _check_place(self) -> None:
        """Raise DataflowError where the table's rows cannot be read from what is given."""
        if (self.format == "jdbc") != (self.database is not None):
            raise self.error("a table behind JDBC, and no other, has a database", "write f.table.jdbc(url, table, ...)")
        if self.database is not None:
            self.database.check(self.path, where=self.where)
        if self.version is not None and self.format != "delta":
            raise self.error(f"{self.format} has no versions", "leave version out")
        if self.version is not None and self.refresh is not None:
            raise self.error("a version of a table does not change", "leave out version, or refresh")
        if self.format == "delta" and "://" in self.path and not self.path.lower().startswith("file:"):
            raise self.error(f"'{self.path}' is not a directory", "give a local directory, or one of a shared disk")
