"""Methods that choose and compute columns, of streams and of reference tables alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from headwater.core.errors import DataflowError
from headwater.core.text import cut
from headwater.dataflow import habits
from headwater.dataflow.settings import ColumnName, Computed, ComputedByName, Condition, NewNames, Projections, text_of
from headwater.sql.lexer import quoted
from headwater.sql.schema import Schema


class ColumnMethods(habits.NameGuard):
    """Rows with a known schema, of which each column can be computed from others."""

    @property
    def schema(self) -> Schema:
        """The columns and their types."""
        raise NotImplementedError

    def where(self, condition: Condition) -> Self:
        """Keep the rows for which the condition is true."""
        raise NotImplementedError

    def select(self, *columns: Projections) -> Self:
        """Compute columns."""
        raise NotImplementedError

    def _computed(self, columns: tuple[tuple[str, str], ...]) -> Self:
        """Return rows of these columns: pairs of name and Spark SQL expression."""
        raise NotImplementedError

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """The names of the columns and their types, as text."""
        return [(column.name, column.type.text) for column in self.schema.columns]

    def print_schema(self) -> None:
        """Print the columns and their types as PySpark does."""
        print("root")
        for column in self.schema.columns:
            print(f" |-- {column.name}: {column.type.text}")

    def with_columns(self, **columns: Computed) -> Self:
        """Add columns, or replace those of the same name: ``with_columns(twice="v * 2")``."""
        given = {k.lower(): (k, text_of(v)) for k, v in columns.items()}
        if len(given) < len(columns):
            raise DataflowError(
                "two columns differ only by case",
                where=self._place_of("with_columns"),
                hint="names ignore case: name each once",
            )
        pairs = [given.pop(c.lower(), (c, quoted(c))) for c in self.columns]
        return self._computed((*pairs, *given.values()))

    def withColumn(self, name: ColumnName, column: Computed) -> Self:
        """Add a column, or replace that of the same name: ``withColumn("twice", F.col("v") * 2)``."""
        return self.withColumns({name: column})

    def withColumns(self, columns: ComputedByName) -> Self:
        """Add columns, or replace those of the same name: ``withColumns({"twice": F.col("v") * 2})``."""
        return self.with_columns(**columns)

    def withColumnRenamed(self, existing: ColumnName, new: ColumnName) -> Self:
        """Rename a column."""
        return self.withColumnsRenamed({existing: new})

    def withColumnsRenamed(self, names: NewNames) -> Self:
        """Rename columns: ``withColumnsRenamed({"v": "value"})``."""
        self._require_columns(names, "withColumnsRenamed")
        new = {existing.lower(): name for existing, name in names.items()}
        return self._computed(tuple((new.get(c.lower(), c), quoted(c)) for c in self.columns))

    def toDF(self, *names: ColumnName) -> Self:
        """Give all columns new names, in their order."""
        if len(names) != len(self.columns):
            raise DataflowError(
                f"{len(names)} names for {len(self.columns)} columns",
                where=self._place_of("toDF"),
                hint=f"the columns are {cut(', '.join(self.columns), 600)}",
            )
        return self._computed(tuple(zip(names, map(quoted, self.columns), strict=True)))

    def drop(self, *columns: ColumnName) -> Self:
        """Drop columns."""
        self._require_columns(columns, "drop")
        gone = {c.lower() for c in columns}
        return self._computed(tuple((c, quoted(c)) for c in self.columns if c.lower() not in gone))

    def _require_columns(self, names: Iterable[str], method: str) -> None:
        unknown = {c.lower() for c in names} - {c.lower() for c in self.columns}
        if unknown:
            raise DataflowError(
                f"no column {cut(', '.join(sorted(unknown)), 200)}",
                where=self._place_of(method),
                hint=f"the columns are {cut(', '.join(self.columns), 600)}",
            )

    printSchema = print_schema
