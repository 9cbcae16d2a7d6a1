"""Readers of reference tables, as ``f.table``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from headwater.core.errors import DataflowError
from headwater.core.text import cut
from headwater.dataflow import habits
from headwater.dataflow.databaserows import DatabaseRows
from headwater.dataflow.deltaschema import delta_schema
from headwater.dataflow.lookup import ReferenceTable, TableFormat
from headwater.dataflow.settings import Duration, Option, Place, SchemaOf, Statement, option_text
from headwater.dataflow.streambase import schema_text
from headwater.dataflow.tablesources import Version


@dataclass(frozen=True)
class TableReader(habits.NameGuard):
    """Reference tables: rows that do not stream.

    A single local file of at most a mebibyte becomes part of the dataflow; else each zone reads the path: a file, a
    directory or a glob, or a table of a database. With ``refresh`` a zone looks that often for a change, and its units
    go on with the new rows at the boundary of a batch.
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

    def delta(
        self,
        path: Place,
        schema: SchemaOf | None = None,
        *,
        version: Version | None = None,
        refresh: Duration | None = None,
    ) -> ReferenceTable:
        """Read a Delta table: its newest version, or ``version``. Without ``schema`` the table's is read now."""
        if schema is None:
            schema = delta_schema(path, where=self._place_of("delta"))
        return self._table("delta", path, schema, refresh, {}, version=version)

    def jdbc(
        self,
        url: Place,
        table: Place | None = None,
        schema: SchemaOf | None = None,
        *,
        query: Statement | None = None,
        user_env: Place | None = None,
        password_env: Place | None = None,
        refresh: Duration | None = None,
        **options: Option,
    ) -> ReferenceTable:
        """Read a table of a database through JDBC, or the result of ``query``, one SELECT statement.

        ``user_env``, ``password_env``: secrets, ``HEADWATER_SECRET_...``, which the zones read. With ``refresh`` a zone
        reads the rows that often, and takes them up where they differ. Options: ``fetchsize``, ``queryTimeout``.
        """
        if schema is None:
            raise DataflowError(
                "the columns of a table in a database are not known before a zone reads it",
                where=self._place_of("jdbc"),
                hint="give the schema: f.table.jdbc(url, 'machines', 'machine string, most double')",
            )
        rows = DatabaseRows(table=table, query=query, user_env=user_env, password_env=password_env)
        return self._table("jdbc", url, schema, refresh, options, database=rows)

    def _unknown(self, name: str) -> habits.UnknownName:
        return habits.missing(name, self, habits.READER, where=f"table of dataflow '{self.dataflow}'")

    def _place_of(self, method: str) -> str:
        return f"table.{method} of dataflow '{self.dataflow}'"

    def _table(
        self,
        format: TableFormat,
        path: str,
        schema: str,
        refresh: str | None,
        options: Mapping[str, Any],
        *,
        version: int | None = None,
        database: DatabaseRows | None = None,
    ) -> ReferenceTable:
        text = schema_text(schema, f"table.{format}('{cut(path, 200)}')")
        settings = tuple(sorted((k, option_text(v)) for k, v in options.items()))
        table = ReferenceTable(
            format=format,
            path=path,
            schema_text=text,
            options=settings,
            refresh=refresh,
            version=version,
            database=database,
        )
        return table.with_file()
