"""Reference tables of a unit: versions of their rows in its directory, each kept until no batch needs it.

A query is planned with one version, and so is the repetition of its interrupted batch: the version changes only while
no query runs and no batch is unfinished. A version is a directory of Parquet files, written once.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.core.errors import RuntimeFailure
from headwater.dataflow.lookup import Lookup
from headwater.disk.checkpoint import cut_off
from headwater.disk.durable import make_directory, read_note, write_atomically
from headwater.disk.layout import full_path
from headwater.disk.syncing import sync_checkpoint
from headwater.sql.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOTE = "version.json"


def rows_of_table(spark: SparkSession, operator: Lookup, scratch: Path) -> DataFrame:
    """Read a table's rows; ``scratch``: a directory for a file that is part of the dataflow. All rows must fit."""
    path = full_path(operator.path)
    if operator.embedded is not None:
        make_directory(scratch)
        file = scratch / f"table.{operator.format}"
        file.write_bytes(base64.b64decode(operator.embedded))
        path = str(file)
    reader: Any = spark.read.schema(Schema.parse(operator.schema_text).text).format(operator.format)
    if operator.format != "parquet":
        reader = reader.option("mode", "FAILFAST")
    for name, value in operator.options:
        reader = reader.option(name, value)
    frame: DataFrame = reader.load(path)
    return frame


class TableVersions:
    """The versions of one table, below ``directory``."""

    def __init__(self, directory: Path, operator: Lookup) -> None:
        self._directory, self._operator = directory, operator

    def begin(self, spark: SparkSession, checkpoint: Path) -> Path:
        """Return the version for the next batch: a new one if the files have changed and no batch is unfinished."""
        note = read_note(self._directory / _NOTE)
        current = self._directory / str(note["version"]) if "version" in note else None
        if current is not None and (cut_off(checkpoint) or note.get("seen") == self._seen()):
            return current
        if current is not None:
            sync_checkpoint(checkpoint)  # else a power cut could bring a batch of the old version back
        return self._take(spark, int(note.get("version", -1)) + 1)

    def current(self, spark: SparkSession) -> Path:
        """Return the version of the next batch without looking for changed files."""
        note = read_note(self._directory / _NOTE)
        return self._directory / str(note["version"]) if "version" in note else self._take(spark, 0)

    def has_changed(self) -> bool:
        """Return whether the files are others than those of the current version."""
        note = read_note(self._directory / _NOTE)
        return "version" in note and note.get("seen") != self._seen()

    def _take(self, spark: SparkSession, number: int) -> Path:
        seen, target = self._seen(), self._directory / str(number)
        shutil.rmtree(target, ignore_errors=True)  # of a process that was killed
        try:
            rows = rows_of_table(spark, self._operator, self._directory)
            rows.coalesce(1).write.parquet(str(target))
        except Exception as error:
            raise RuntimeFailure(
                f"the table {self._operator.path} was not read: {str(error).splitlines()[0]}",
                where=self._operator.where,
                hint="correct the file or the schema given to table(...); the unit starts again by itself",
            ) from error
        write_atomically(self._directory / _NOTE, json.dumps({"version": number, "seen": seen}))
        for old in self._directory.iterdir():
            if old.is_dir() and old.name.isdigit() and int(old.name) < number:
                shutil.rmtree(old, ignore_errors=True)
        return target

    def _seen(self) -> str:
        """Return a fingerprint of the files: their names, sizes and times; of a table in the dataflow, its content."""
        if self._operator.embedded is not None:
            return hashlib.sha256(self._operator.embedded.encode()).hexdigest()
        path = full_path(self._operator.path)
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
