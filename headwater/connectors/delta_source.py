"""``headwater_delta``: a Delta table as a Spark data source in Arrow, as a stream or as a batch.

Options: ``path``, ``schema`` (DDL; columns of the table), ``version`` or ``timestamp`` (ISO, with a zone), ``follow``,
``ignore_changes``, ``max_files_per_batch``.

Streaming: an offset ``{"base": b, "version": v, "index": n, "whole": 0}`` stands behind the first ``n`` files of
version ``v``; "whole" is 1 where these are all. The files of the base version are all that it has, in the order of
their times and paths; the files of a later one are those that its commit adds with changed data. So compaction gives no
rows, and a batch depends on its offsets alone.
``base`` is -1 for a table that did not exist yet.

Files are read only below the table's directory: a log may name others.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from headwater.connectors import deltalog
from headwater.connectors.tablefiles import library
from headwater.core.errors import HeadwaterError, RuntimeFailure
from headwater.core.permissions import is_below

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME = "headwater_delta"
_ROWS_PER_ARROW_BATCH = 65_536
_FEATURES = frozenset({"timestampNtz"})

_Offset = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class DeltaOptions:
    """The source's options."""

    path: str
    schema: str
    version: int | None = None
    timestamp: str | None = None
    follow: bool = True
    ignore_changes: bool = False
    max_files_per_batch: int = 1000

    @property
    def where(self) -> str:
        return f"table {self.path}"

    @classmethod
    def of(cls, given: Mapping[str, str]) -> DeltaOptions:
        """Parse the options from Spark's strings."""
        options = {name.lower(): value for name, value in given.items()}
        return cls(
            path=options["path"],
            schema=options["schema"],
            version=int(options["version"]) if "version" in options else None,
            timestamp=options.get("timestamp"),
            follow=options.get("follow", "true").lower() == "true",
            ignore_changes=options.get("ignore_changes", "false").lower() == "true",
            max_files_per_batch=int(options.get("max_files_per_batch", 1000)),
        )


class DeltaDataSource(DataSource):
    """Read a Delta table."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return NAME

    def schema(self) -> str:
        """Return the columns to read."""
        return DeltaOptions.of(self.options).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        return DeltaReader(DeltaOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the streaming reader."""
        return DeltaStreamReader(DeltaOptions.of(self.options), schema)


@dataclass(frozen=True)
class TableFile:
    """A file of the table: its path as the log has it, and its partition values by column."""

    path: str
    partition: tuple[tuple[str, Any], ...]


@dataclass
class FilePartition(InputPartition):
    """Files that one Spark task reads."""

    files: tuple[TableFile, ...]


@dataclass
class _Reading:
    """What both readers share: files of versions, and their rows."""

    options: DeltaOptions
    declared: StructType

    def opened(self, version: int | None = None) -> Any:
        """Load the table at a version, or as it is now; raise RuntimeFailure where that is impossible."""
        deltalake = library("deltalake", where=self.options.where)
        try:
            table = deltalake.DeltaTable(self.options.path, version=version)
        except Exception as error:
            text = str(error).strip() or type(error).__name__
            what = "the table" if version is None else f"version {version} of the table"
            raise RuntimeFailure(
                f"{what} cannot be read: {text.splitlines()[0]}",
                where=self.options.where,
                hint="check that the table is there, and that its log still has the version",
            ) from error
        protocol = table.protocol()
        more = set(protocol.reader_features or ()) - _FEATURES
        if more or protocol.min_reader_version == 2:
            raise RuntimeFailure(
                f"the table needs a reader with {', '.join(sorted(more)) or 'columnMapping'}",
                where=self.options.where,
                hint="turn the feature off for this table, or read a copy of it",
            )
        there = {f.name.lower() for f in table.schema().fields}
        for name in self.declared.names if version is None else ():  # an older version may lack a column
            if name.lower() not in there:
                raise RuntimeFailure(
                    f"the table has no column '{name}'",
                    where=self.options.where,
                    hint=f"its columns are {', '.join(f.name for f in table.schema().fields)}",
                )
        return table

    def chosen(self) -> int:
        """Return the version that is read first; -1 where the table is not there yet."""
        if self.options.version is not None:
            return self.options.version
        if not deltalog.is_table(Path(self.options.path)):
            return -1
        table = self.opened()
        if self.options.timestamp is not None:
            table.load_as_version(datetime.datetime.fromisoformat(self.options.timestamp))
        return int(table.version())

    def all_files(self, version: int) -> list[TableFile]:
        """List the files that a version has, oldest first."""
        import pyarrow as pa

        if version < 0:
            return []
        self.opened()  # refuses columns that it does not have
        adds = pa.table(self.opened(version).get_add_actions()).to_pylist()
        adds.sort(key=lambda add: (add["modification_time"], add["path"]))
        return [TableFile(add["path"], tuple((add.get("partition") or {}).items())) for add in adds]

    def rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files in the declared columns."""
        from pyspark.sql.pandas.types import to_arrow_schema

        if not isinstance(partition, FilePartition):  # Spark asks for the rows of None where there is no file
            return
        schema = to_arrow_schema(self.declared, timezone="UTC")
        for file in partition.files:
            yield from _rows(self.path_of(file), dict(file.partition), schema)

    def path_of(self, file: TableFile) -> str:
        """Return the file's path; raise RuntimeFailure where it is outside of the table's directory."""
        path = os.path.join(self.options.path, unquote(file.path))
        if "://" in file.path or not is_below(os.path.realpath(path), (os.path.realpath(self.options.path),)):
            raise RuntimeFailure(
                f"the file '{file.path}' is outside of the table's directory",
                where=self.options.where,
                hint="read the table that has the file, or a copy of both",
            )
        return path


class DeltaReader(DataSourceReader):
    """Read one version."""

    def __init__(self, options: DeltaOptions, schema: StructType) -> None:
        self._reading = _Reading(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Make a task of each file."""
        version = self._reading.chosen()
        return [FilePartition((file,)) for file in self._reading.all_files(version)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return self._reading.rows(partition)


class DeltaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read a version, and what later ones add."""

    def __init__(self, options: DeltaOptions, schema: StructType) -> None:
        self.options = options
        self._reading = _Reading(options, schema)
        self._known: dict[int, list[TableFile]] = {}
        """Files by version, so that a log is read once."""
        self._frozen: int | None = None  # AvailableNow: the newest version of the input

    def initialOffset(self) -> _Offset:
        """Return the beginning of the version that is read first."""
        base = self._reading.chosen()
        return {"base": base, "version": base, "index": 0, "whole": int(base < 0)}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the admission limit of one batch."""
        return ReadMaxFiles(self.options.max_files_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the input."""
        self._frozen = self._newest()

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:
        """Return the offset up to which the next batch may read."""
        left = limit.max_files if isinstance(limit, ReadMaxFiles) else self.options.max_files_per_batch
        everything = isinstance(limit, ReadAllAvailable)
        at, newest = dict(start), self._newest() if self._frozen is None else self._frozen
        while True:
            # The log of a version that was read may be gone by now.
            if not at["whole"]:
                count = len(self._files(at["base"], at["version"]))
                take = count - at["index"] if everything else min(left, count - at["index"])
                left -= take
                at |= {"index": at["index"] + take, "whole": int(at["index"] + take == count)}
            if not at["whole"] or at["version"] >= newest or not self.options.follow:
                return at
            at |= {"version": at["version"] + 1, "index": 0, "whole": 0}

    def partitions(self, start: _Offset, end: _Offset) -> list[InputPartition]:
        """Make a task of each file of one batch."""
        found: list[InputPartition] = []
        for version in range(start["version"] + start["whole"], end["version"] + 1):
            files = self._files(end["base"], version)
            begin = start["index"] if version == start["version"] else 0
            upto = end["index"] if version == end["version"] else len(files)
            found += [FilePartition((file,)) for file in files[begin:upto]]
        for known in [version for version in self._known if version < start["version"]]:
            del self._known[known]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return self._reading.rows(partition)

    def _newest(self) -> int:
        found = deltalog.commits(Path(self.options.path))
        return found[-1] if found else -1

    def _files(self, base: int, version: int) -> list[TableFile]:
        """List the files of the base version, or those that a later version adds."""
        if version not in self._known:
            self._known[version] = self._reading.all_files(base) if version == base else self._added(version)
        return self._known[version]

    def _added(self, version: int) -> list[TableFile]:
        table = Path(self.options.path)
        try:
            actions = deltalog.actions(table, version)
        except FileNotFoundError:
            raise RuntimeFailure(
                f"version {version} is not in the table's log any more, and its rows were not read",
                where=self.options.where,
                hint="keep the log for longer than the unit stands still (delta.logRetentionDuration); to go on "
                "without these rows, name the source otherwise, which begins with the newest version",
            ) from None
        changed = [a["remove"]["path"] for a in actions if a.get("remove", {}).get("dataChange")]
        if changed and not self.options.ignore_changes:
            raise RuntimeFailure(
                f"version {version} deletes or changes rows, which a stream cannot take back",
                where=self.options.where,
                hint="with ignore_changes=True new files are read, and rows that were only moved come again; or read "
                "a table to which rows are only added",
            )
        adds = [a["add"] for a in actions if a.get("add", {}).get("dataChange")]
        if any(add.get("deletionVector") for add in adds) or any("protocol" in a for a in actions):
            self._reading.opened()  # refuses what cannot be read
        return [TableFile(add["path"], tuple((add.get("partitionValues") or {}).items())) for add in adds]


def _rows(path: str, partition: Mapping[str, Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in a schema: partition columns are constants, columns younger than the file NULL."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise HeadwaterError(
            "a file of the table is gone",
            where=path,
            hint="keep files that versions no longer have (delta.deletedFileRetentionDuration) until they are read",
        ) from error
    with file:
        there = {name.lower(): name for name in file.schema_arrow.names}
        constant = {name.lower(): value for name, value in partition.items()}
        wanted = [there[f.name.lower()] for f in schema if f.name.lower() in there]
        for batch in file.iter_batches(_ROWS_PER_ARROW_BATCH, columns=wanted):
            columns = []
            for target in schema:
                name = there.get(target.name.lower())
                if name is not None:
                    columns.append(batch.column(name).cast(target.type))
                else:
                    columns.append(_constant(constant.get(target.name.lower()), target.type, batch.num_rows))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _constant(value: Any, type_: pa.DataType, count: int) -> pa.Array:
    """Return a column of one value, which may be a text of the log."""
    import pyarrow as pa

    if value is None or value == "":
        return pa.nulls(count, type_)
    one = pa.array([value])
    if isinstance(value, str) and pa.types.is_timestamp(type_) and type_.tz is not None:
        one = one.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    return pa.repeat(one.cast(type_)[0], count)
