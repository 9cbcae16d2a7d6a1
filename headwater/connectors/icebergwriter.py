"""The Iceberg sink writer: every batch is one commit of a snapshot and of the batch's number, a property of the table.

The property ``headwater.<id>`` has the epoch and the newest batch of a sink writer; it stays when snapshots expire. A
batch that Spark repeats after a crash is found there and left out, and a writer of an older epoch is refused. Every
commit requires the snapshot that it was made from to be the newest one. So of two writers, also of a process thought
dead and its replacement, one is refused by the catalog, and looks at the table again.

Files are synced before the catalog names them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwater.channels.segments import Segment
from headwater.connectors.icebergtable import IcebergAddress, existing, opened
from headwater.connectors.staged import StagedSinkWriter
from headwater.connectors.tablefiles import (
    TARGET_BYTES,
    TRIES,
    bytes_to_compact,
    forestalled,
    library,
    not_written,
    out_of_date,
    wait_for_turn,
)
from headwater.core.errors import HeadwaterError, RuntimeFailure

if TYPE_CHECKING:
    import pyarrow as pa

_PREFIX = "headwater."
_PROPERTY = re.compile(r"headwater\.headwater-\d+-.+")
_UNIT = "headwater.unit"
_NEW_TABLE = {
    # Each commit writes all metadata anew: without these, old metadata and manifests would pile up.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "commit.manifest-merge.enabled": "true",
}


class IcebergSinkWriter(StagedSinkWriter):
    """Write to a table, described as an IcebergAddress: ``id`` (of this sink writer alone), ``partition_by``.

    ``compact_after``: so many small files of similar size are compacted; 0: never. ``unit``: its name, for the log.
    """

    def __init__(self, spec: Mapping[str, Any], epoch: int) -> None:
        super().__init__(spec)
        self._epoch = epoch
        self._address = IcebergAddress.from_data(spec)
        self._key = f"{_PREFIX}{spec['id']}"
        self._unit = str(spec.get("unit", ""))
        self._partition_by: tuple[str, ...] = tuple(spec.get("partition_by") or ())
        self._compact_after = int(spec.get("compact_after", 0))
        self._where = f"operator {spec.get('operator', 'iceberg')!r}, {self._address.where}"

    def commit(self, segments: Sequence[Segment], batch: int) -> None:
        """Append a batch unless the table has it: a property of the table shows that."""
        import pyarrow as pa

        files = [p for p in segments if p.file]
        if not files:
            return
        rows = as_stored(pa.Table.from_batches(self.batches(files)))
        with opened(self._address) as catalog:
            for turn in range(TRIES):
                table = self._opened(catalog, rows)
                epoch, last = self._numbers(table)
                if epoch is not None and epoch > self._epoch:
                    raise out_of_date(self._epoch, epoch, where=self._where)
                if last is not None and last >= batch:
                    # A process of the older epoch that is left may not go on.
                    if epoch == self._epoch or self._append(table, rows.slice(0, 0), last):
                        break
                    continue
                commits = int(table.metadata.last_sequence_number)
                if self._append(table, rows, batch):
                    if self._compact_after and (commits + 1) % self._compact_after == 0:
                        self._compact(catalog)
                    break
                wait_for_turn(turn)
            else:
                raise forestalled(where=self._where)
        self.abort(files)

    def newest(self) -> int | None:
        """Return the newest batch in the table."""
        with opened(self._address) as catalog:
            table = existing(catalog, self._address)
            return None if table is None else self._numbers(table)[1]

    def _numbers(self, table: Any) -> tuple[int | None, int | None]:
        """Return the newest epoch and batch of this sink writer in a table."""
        text = table.properties.get(self._key)
        if text is None:
            return None, None
        epoch, batch = text.split()
        return int(epoch), int(batch)

    def _append(self, table: Any, rows: pa.Table, batch: int) -> bool:
        """Commit rows and number together; return False where another writer was first."""
        errors = library("pyiceberg.exceptions", where=self._where)
        told = {_UNIT: self._unit, "headwater.epoch": str(self._epoch), "headwater.batch": str(batch)}
        try:
            transaction = _once(table).transaction()
            transaction.append(rows, snapshot_properties=told)
            transaction.set_properties({self._key: f"{self._epoch} {batch}"})
            transaction.commit_transaction()
        except errors.CommitFailedException:
            return False
        except HeadwaterError:
            raise
        except Exception as error:
            raise not_written(error, where=self._where) from error
        return True

    def _opened(self, catalog: Any, rows: pa.Table) -> Any:
        """Return the table; a missing one is made without rows."""
        for turn in range(TRIES):
            if (table := existing(catalog, self._address)) is not None:
                return self._fitting(table)
            if turn:  # another unit makes it at the same moment
                wait_for_turn(turn)
            self._make(catalog, rows)
        raise forestalled(where=self._where)

    def _make(self, catalog: Any, rows: pa.Table) -> None:
        """Make the table unless another unit is just making it, or its namespace."""
        errors = library("pyiceberg.exceptions", where=self._where)
        alchemy = library("sqlalchemy.exc", where=self._where)
        others = (errors.TableAlreadyExistsError, errors.NamespaceAlreadyExistsError, errors.CommitFailedException)
        name = self._address.table
        try:
            catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
            with (
                catalog.create_table_transaction(name, rows.schema, properties=_NEW_TABLE) as transaction,
                transaction.update_spec() as spec,
            ):
                for column in self._partition_by:
                    spec.add_identity(column)
        except (*others, alchemy.IntegrityError):
            return
        except Exception as error:
            raise not_written(error, where=self._where) from error

    def _fitting(self, table: Any) -> Any:
        """Return a table; raise RuntimeFailure where it has other partitions than asked for."""
        spec, schema = table.spec(), table.schema()
        there = [f"{f.transform}({schema.find_column_name(f.source_id)})" for f in spec.fields]
        if self._partition_by and there != [f"identity({column})" for column in self._partition_by]:
            raise RuntimeFailure(
                f"the table is partitioned by {', '.join(there) or 'nothing'}",
                where=self._where,
                hint="leave partition_by out, which takes the table's own partitions, or write to another table",
            )
        return table

    def _compact(self, catalog: Any) -> None:
        """Write the rows of small files into larger ones, partition by partition, in one commit."""
        table = existing(catalog, self._address)
        assert table is not None
        tasks = [task for task in table.scan().plan_files() if not task.delete_files]
        found = [(repr(task.file.partition), int(task.file.file_size_in_bytes)) for task in tasks]
        most = bytes_to_compact(found, self._compact_after)
        if most is None:
            return
        groups: dict[str, list[Any]] = {}
        for task, (partition, size) in zip(tasks, found, strict=True):
            if size < most and sum(t.file.file_size_in_bytes for t in groups.get(partition, ())) < TARGET_BYTES:
                groups.setdefault(partition, []).append(task)
        arrow, errors = (library(f"pyiceberg.{name}", where=self._where) for name in ("io.pyarrow", "exceptions"))
        everything = library("pyiceberg.expressions", where=self._where).AlwaysTrue()
        transaction = _once(table).transaction()
        try:
            with transaction.update_snapshot(snapshot_properties={_UNIT: self._unit}).overwrite() as change:
                for several in groups.values():
                    if len(several) < 2:
                        continue
                    rows = arrow.ArrowScan(table.metadata, table.io, table.schema(), everything).to_table(several)
                    for task in several:
                        change.delete_data_file(task.file)
                    for file in arrow._dataframe_to_data_files(table.metadata, rows, table.io):
                        change.append_data_file(file)
            transaction.commit_transaction()
        except (errors.CommitFailedException, errors.ValidationException):
            return  # another unit was first; there will be other times


def _once(table: Any) -> Any:
    """Return a table whose commits are tried once: the library's own repetition does not look for the batch first."""
    table.metadata.properties["commit.retry.num-retries"] = "0"
    return table


def as_stored(rows: pa.Table) -> pa.Table:
    """Return rows in the types that Iceberg has: it has no numbers of 8 and 16 bits."""
    import pyarrow as pa

    def kind(type_: pa.DataType) -> pa.DataType:
        if type_ in (pa.int8(), pa.int16()):
            return pa.int32()
        if pa.types.is_struct(type_):
            return pa.struct([pa.field(f.name, kind(f.type)) for f in type_])
        if pa.types.is_list(type_):
            return pa.list_(pa.field("element", kind(type_.value_type)))
        if pa.types.is_map(type_):
            return pa.map_(kind(type_.key_type), kind(type_.item_type))
        return type_

    return rows.cast(pa.schema([pa.field(f.name, kind(f.type)) for f in rows.schema]))


def has_output(address: IcebergAddress) -> bool:
    """Return whether a table holds rows, and records of any sink writer."""
    with opened(address) as catalog:
        table = existing(catalog, address)
        if table is None or not any(map(_PROPERTY.fullmatch, table.properties)):
            return False
        return any(True for _ in table.scan().plan_files())


def holds_rows_of_others(address: IcebergAddress) -> bool:
    """Return whether other programs have changed rows of a table, or may have: snapshots expire."""
    with opened(address) as catalog:
        table = existing(catalog, address)
        if table is None:
            return False
        snapshots = table.snapshots()
        if any(s.parent_snapshot_id is None for s in snapshots) != bool(snapshots):
            return True
        return any(s.summary is None or _UNIT not in s.summary.additional_properties for s in snapshots)


def remove_output(address: IcebergAddress) -> None:
    """Delete all rows of a table in one commit; earlier snapshots keep them until they expire."""
    with opened(address) as catalog:
        table = existing(catalog, address)
        if table is not None:
            table.delete(snapshot_properties={_UNIT: ""})
