"""Readers of reference tables, as ``f.table``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from headwater.core.errors import DataflowError
from headwater.core.text import cut
from headwater.dataflow import habits
from headwater.dataflow.lookup import ReferenceTable
from headwater.dataflow.settings import Duration, Option, Place, SchemaOf
from headwater.dataflow.streambase import schema_text


@dataclass(frozen=True)
class TableReader(habits.NameGuard):
    """Reference tables: rows that do not stream.

    A single local file of at most a mebibyte becomes part of the dataflow; else each zone reads the path: a file, a
    directory or a glob. With ``refresh`` a zone looks that often for changed files, and its units go on with the new
    rows at the boundary of a batch.
    """

    dataflow: str
    """The dataflow's name, for messages."""

    def __call__(self, name: str) -> NoReturn:
        """Refuse PySpark's ``spark.table("t")`` with the line to write."""
        raise DataflowError(
            f"there is no catalog with a table '{cut(str(name), 200)}'",
            where=f"table of dataflow '{self.dataflow}'",
            hint='write f.read.parquet("in/{location}", "id int, ts timestamp") for a stream, or '
            'f.table.parquet("machines.parquet", "machine string, most double") for rows to join with',
        )

    def csv(
        self, path: Place, schema: SchemaOf, *, refresh: Duration | None = None, **options: Option
    ) -> ReferenceTable:
        """Read CSV files; Spark's options (``header``, ``sep``, ``timestampFormat`` ...) by name."""
        return self._table("csv", path, schema, refresh, options)

    def json(
        self, path: Place, schema: SchemaOf, *, refresh: Duration | None = None, **options: Option
    ) -> ReferenceTable:
        """Read files of JSON lines."""
        return self._table("json", path, schema, refresh, options)

    def parquet(self, path: Place, schema: SchemaOf, *, refresh: Duration | None = None) -> ReferenceTable:
        """Read Parquet files."""
        return self._table("parquet", path, schema, refresh, {})

    def _unknown(self, name: str) -> habits.UnknownName:
        return habits.missing(name, self, habits.READER, where=f"table of dataflow '{self.dataflow}'")

    def _place_of(self, method: str) -> str:
        return f"table.{method} of dataflow '{self.dataflow}'"

    def _table(
        self,
        format: Literal["csv", "json", "parquet"],
        path: str,
        schema: str,
        refresh: str | None,
        options: Mapping[str, Any],
    ) -> ReferenceTable:
        text = schema_text(schema, f"table.{format}('{cut(path, 200)}')")
        settings = tuple(sorted((k, str(v)) for k, v in options.items()))
        table = ReferenceTable(format=format, path=path, schema_text=text, options=settings, refresh=refresh)
        return table.with_file()
