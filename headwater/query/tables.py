"""Reference tables of a unit: versions of their rows in its directory, each kept until no batch needs it.

A query is planned with one version, and so is the repetition of its interrupted batch: the version changes only while
no query runs and no batch is unfinished. A version is a directory of Parquet files, written once, and on disk before
the note that names it.

What a version was made from is its *content*: of files their names, sizes and times, of a Delta table the version of
its log, of a table in a database the rows. So a database is asked for all rows to see whether they have changed.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.connectors import deltalog
from headwater.connectors.delta_source import DeltaDataSource
from headwater.connectors.jdbctable import content_of, database_rows, jdbc_failure
from headwater.connectors.sparkformats import own_format
from headwater.connectors.sparksql import expression
from headwater.core.errors import HeadwaterError, RuntimeFailure
from headwater.dataflow.lookup import Lookup
from headwater.disk.checkpoint import cut_off
from headwater.disk.durable import make_directory, read_note, write_atomically
from headwater.disk.layout import full_path
from headwater.disk.syncing import sync_checkpoint, sync_tree
from headwater.sql.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOTE = "version.json"
_LOG = logging.getLogger(__name__)


def rows_of_table(spark: SparkSession, operator: Lookup, scratch: Path, *, version: int | None = None) -> DataFrame:
    """Read a table's rows; ``scratch``: a directory for a file that is part of the dataflow. All rows must fit.

    ``version``: that of a Delta table; None: the one that the operator names, or the newest.
    """
    rows = _whole_table(spark, operator, scratch, version)
    if operator.condition is not None:
        rows = rows.where(expression(operator.condition))
    if operator.projection is not None:
        rows = rows.select(*(expression(text).alias(name) for name, text in operator.projection))
    return rows


def _whole_table(spark: SparkSession, operator: Lookup, scratch: Path, version: int | None) -> DataFrame:
    if operator.format == "jdbc":
        return database_rows(spark, operator)
    path = full_path(operator.path)
    schema = Schema.parse(operator.schema_text).text
    if operator.format == "delta":
        version = operator.version if version is None else version
        rows: Any = spark.read.format(own_format(spark, DeltaDataSource)).option("path", path).option("schema", schema)
        return _frame(rows.load() if version is None else rows.option("version", str(version)).load())
    if operator.embedded is not None:
        make_directory(scratch)
        file = scratch / f"table.{operator.format}"
        file.write_bytes(base64.b64decode(operator.embedded))
        path = str(file)
    reader: Any = spark.read.schema(schema).format(operator.format)
    if operator.format != "parquet":
        reader = reader.option("mode", "FAILFAST")
    for name, value in operator.options:
        reader = reader.option(name, value)
    return _frame(reader.load(path))


def _frame(found: Any) -> DataFrame:
    frame: DataFrame = found
    return frame


class TableVersions:
    """The versions of one table, below ``directory``."""

    def __init__(self, directory: Path, operator: Lookup) -> None:
        self._directory, self._operator = directory, operator

    def begin(self, spark: SparkSession, checkpoint: Path) -> Path:
        """Return the version for the next batch: a new one if the table has changed and no batch is unfinished.

        While a database does not answer, the version that is there stays.
        """
        note, current = self._noted()
        if current is None:
            return self._take(spark, 0)
        if cut_off(checkpoint) or (self._operator.database is None and note.get("seen") == self._seen()):
            return current
        sync_checkpoint(checkpoint)  # else a power cut could bring a batch of the old version back
        try:
            return self._take(spark, int(note["version"]) + 1, current=note)
        except HeadwaterError as error:
            if self._operator.database is None:
                raise
            self._warn(error)
            return current

    def current(self, spark: SparkSession) -> Path:
        """Return the version of the next batch without looking for a change."""
        _, current = self._noted()
        return current if current is not None else self._take(spark, 0)

    def has_changed(self, spark: Callable[[], SparkSession]) -> bool:
        """Return whether the table is another than in the current version; a database that is away has not changed."""
        note, current = self._noted()
        if current is None:
            return False
        if self._operator.database is None:
            return note.get("seen") != self._seen()
        try:
            return note.get("seen") != content_of(rows_of_table(spark(), self._operator, self._directory))
        except Exception as error:
            self._warn(error if isinstance(error, HeadwaterError) else jdbc_failure(error, self._operator))
            return False

    def _noted(self) -> tuple[dict[str, Any], Path | None]:
        note = read_note(self._directory / _NOTE)
        return note, self._directory / str(note["version"]) if "version" in note else None

    def _take(self, spark: SparkSession, number: int, *, current: dict[str, Any] | None = None) -> Path:
        """Write a version; return that of ``current`` where its rows are the same."""
        target = self._directory / str(number)
        shutil.rmtree(target, ignore_errors=True)  # of a process that was killed
        try:
            seen = self._write(spark, target)
        except HeadwaterError:
            raise
        except Exception as error:
            raise self._unread(error) from error
        if current is not None and current.get("seen") == seen:
            shutil.rmtree(target, ignore_errors=True)
            return self._directory / str(current["version"])
        sync_tree(target)
        write_atomically(self._directory / _NOTE, json.dumps({"version": number, "seen": seen}))
        for old in self._directory.iterdir():
            if old.is_dir() and old.name.isdigit() and int(old.name) < number:
                shutil.rmtree(old, ignore_errors=True)
        return target

    def _write(self, spark: SparkSession, target: Path) -> str:
        """Write the table's rows to a directory; return their content."""
        if self._operator.database is not None:
            rows_of_table(spark, self._operator, self._directory).coalesce(1).write.parquet(str(target))
            return content_of(spark.read.parquet(str(target)))
        seen, version = self._seen(), None
        if self._operator.format == "delta" and (version := int(seen)) < 0:
            raise RuntimeFailure(
                f"{self._operator.path} is not a Delta table",
                where=self._operator.where,
                hint="write the table first, or correct the path; the unit starts again by itself",
            )
        rows = rows_of_table(spark, self._operator, self._directory, version=version)
        rows.coalesce(1).write.parquet(str(target))
        return seen

    def _unread(self, error: Exception) -> Exception:
        if self._operator.database is not None:
            return jdbc_failure(error, self._operator)
        return RuntimeFailure(
            f"the table {self._operator.path} was not read: {str(error).splitlines()[0]}",
            where=self._operator.where,
            hint="correct the file or the schema given to table(...); the unit starts again by itself",
        )

    def _warn(self, error: Exception) -> None:
        _LOG.warning("the unit goes on with the rows that it has: %s", error)

    def _seen(self) -> str:
        """Return the content of files or of a Delta table; of a table in the dataflow, its fingerprint."""
        if self._operator.embedded is not None:
            return hashlib.sha256(self._operator.embedded.encode()).hexdigest()
        path = full_path(self._operator.path)
        if self._operator.format == "delta":
            fixed = self._operator.version
            return str(fixed if fixed is not None else max(deltalog.commits(Path(path)), default=-1))
        found = []
        for root in sorted(glob.glob(path, recursive=True)) or [path]:
            inside = [os.path.join(at, name) for at, _, names in os.walk(root) for name in names]
            for file in sorted(inside or [root]):
                try:
                    seen = os.stat(file)
                except OSError:
                    continue
                found.append([file, seen.st_size, seen.st_mtime_ns])
        return hashlib.sha256(json.dumps(found).encode()).hexdigest()
