"""``headwater_iceberg``: one snapshot of an Iceberg table as a Spark data source in Arrow, as a stream or as a batch.

Options: ``address`` (JSON of an IcebergAddress), ``schema`` (DDL; columns of the table), ``snapshot`` (its id; as a
default the newest one when the query first starts), ``max_files_per_batch``.

Streaming: an offset ``{"snapshot": s, "index": n, "whole": 0}`` stands behind the first ``n`` files of the snapshot, in
the order of their paths; "whole" is 1 where these are all. ``snapshot`` is -1 for a table without any. Later
snapshots are not read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from headwater.connectors.icebergtable import IcebergAddress, existing, local_path, opened
from headwater.connectors.tablefiles import library
from headwater.core.errors import RuntimeFailure
from headwater.core.permissions import is_below

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME = "headwater_iceberg"
_TASKS = 8
"""Tasks that read a batch's files: each opens the catalog."""

_Offset = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class IcebergOptions:
    """The source's options."""

    address: IcebergAddress
    schema: str
    snapshot: int | None = None
    max_files_per_batch: int = 1000

    @classmethod
    def of(cls, given: Mapping[str, str]) -> IcebergOptions:
        """Parse the options from Spark's strings."""
        options = {name.lower(): value for name, value in given.items()}
        return cls(
            address=IcebergAddress.from_data(json.loads(options["address"])),
            schema=options["schema"],
            snapshot=int(options["snapshot"]) if "snapshot" in options else None,
            max_files_per_batch=int(options.get("max_files_per_batch", 1000)),
        )


class IcebergDataSource(DataSource):
    """Read a snapshot of an Iceberg table."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return NAME

    def schema(self) -> str:
        """Return the columns to read."""
        return IcebergOptions.of(self.options).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        return IcebergReader(IcebergOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the streaming reader."""
        return IcebergStreamReader(IcebergOptions.of(self.options), schema)


@dataclass
class SnapshotPartition(InputPartition):
    """Files of a snapshot that one Spark task reads."""

    snapshot: int
    files: tuple[str, ...]


@dataclass
class _Snapshots:
    """What both readers share: the files of a snapshot, and their rows."""

    options: IcebergOptions
    declared: StructType

    def newest(self) -> int:
        """Return the snapshot to read; -1 where there is none."""
        if self.options.snapshot is not None:
            return self.options.snapshot
        with opened(self.options.address) as catalog:
            table = existing(catalog, self.options.address)
            snapshot = table.current_snapshot() if table is not None else None
            return int(snapshot.snapshot_id) if snapshot is not None else -1

    def files(self, snapshot: int) -> list[str]:
        """List the files of a snapshot."""
        if snapshot < 0:
            return []
        with opened(self.options.address) as catalog:
            return sorted(task.file.file_path for task in self._scan(catalog, snapshot)[1].plan_files())

    def _scan(self, catalog: Any, snapshot: int) -> tuple[Any, Any]:
        """Return the table, and the scan of a snapshot."""
        where = self.options.address.where
        table = existing(catalog, self.options.address)
        if table is None or table.snapshot_by_id(snapshot) is None:
            raise RuntimeFailure(
                f"the table has no snapshot {snapshot} (any more)",
                where=where,
                hint="keep snapshots until they are read, or name the source otherwise, which reads the newest one",
            )
        scan = table.scan(snapshot_id=snapshot)
        there = {field.name.lower(): field.name for field in scan.projection().fields}
        for name in self.declared.names:
            if name.lower() not in there:
                raise RuntimeFailure(
                    f"the table has no column '{name}'",
                    where=where,
                    hint=f"its columns are {', '.join(there.values())}",
                )
        return table, scan.select(*(there[name.lower()] for name in self.declared.names))

    def rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files in the declared columns."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        if not isinstance(partition, SnapshotPartition):  # Spark asks for the rows of None where there is no file
            return
        schema = to_arrow_schema(self.declared, timezone="UTC")
        where, roots = self.options.address.where, (os.path.realpath(self.options.address.warehouse),)
        arrow = library("pyiceberg.io.pyarrow", where=where)
        everything = library("pyiceberg.expressions", where=where).AlwaysTrue()
        wanted = set(partition.files)
        with opened(self.options.address) as catalog:
            table, scan = self._scan(catalog, partition.snapshot)
            tasks = [task for task in scan.plan_files() if task.file.file_path in wanted]
            for task in tasks:
                for file in (task.file, *task.delete_files):
                    if not is_below(os.path.realpath(local_path(file.file_path)), roots):
                        raise RuntimeFailure(
                            f"the file '{file.file_path}' is outside of the warehouse",
                            where=where,
                            hint="give the directory of the table's files as warehouse=",
                        )
            reading = arrow.ArrowScan(table.metadata, table.io, scan.projection(), everything)
            for batch in reading.to_record_batches(tasks):
                at = {name.lower(): n for n, name in enumerate(batch.schema.names)}
                columns = [batch.column(at[field.name.lower()]).cast(field.type) for field in schema]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _tasks(snapshot: int, files: Sequence[str]) -> list[InputPartition]:
    """Share files out to tasks."""
    shares = (tuple(files[n::_TASKS]) for n in range(_TASKS))
    return [SnapshotPartition(snapshot, share) for share in shares if share]


class IcebergReader(DataSourceReader):
    """Read one snapshot."""

    def __init__(self, options: IcebergOptions, schema: StructType) -> None:
        self._snapshots = _Snapshots(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Share the files out to tasks."""
        snapshot = self._snapshots.newest()
        return _tasks(snapshot, self._snapshots.files(snapshot))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return self._snapshots.rows(partition)


class IcebergStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read one snapshot, in batches of files."""

    def __init__(self, options: IcebergOptions, schema: StructType) -> None:
        self.options = options
        self._snapshots = _Snapshots(options, schema)
        self._listed: tuple[int, list[str]] | None = None

    def initialOffset(self) -> _Offset:
        """Return the beginning of the snapshot that is read."""
        snapshot = self._snapshots.newest()
        return {"snapshot": snapshot, "index": 0, "whole": int(snapshot < 0)}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the admission limit of one batch."""
        return ReadMaxFiles(self.options.max_files_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: a snapshot has an end."""

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:
        """Return the offset up to which the next batch may read."""
        if start["whole"]:  # the snapshot may have expired by now
            return start
        count = len(self._files(start["snapshot"]))
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else self.options.max_files_per_batch
        index = count if isinstance(limit, ReadAllAvailable) else min(start["index"] + most, count)
        return {"snapshot": start["snapshot"], "index": index, "whole": int(index == count)}

    def partitions(self, start: _Offset, end: _Offset) -> list[InputPartition]:
        """Share the files of one batch out to tasks."""
        if start["index"] == end["index"]:
            return []
        return _tasks(end["snapshot"], self._files(end["snapshot"])[start["index"] : end["index"]])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return self._snapshots.rows(partition)

    def _files(self, snapshot: int) -> list[str]:
        if self._listed is None or self._listed[0] != snapshot:
            self._listed = (snapshot, self._snapshots.files(snapshot))
        return self._listed[1]
