"""The Delta sink writer: every batch is one commit to the table's log, which also records the batch's number.

The commit has two application transactions of the Delta protocol: ``<id>``, whose version is the batch, and
``<id>/epoch``. A batch that Spark repeats after a crash is found there and left out, and a writer of an older epoch is
refused. Two commits with one application id conflict by the protocol: of a process thought dead and its replacement the
first to commit wins, and the other one looks at the log again. Commits of other units do not conflict, unless rows
replace each other: with ``keys`` a batch is one merge, which keeps of two rows of a key the one with more
``headwater_rows``, and is made again if another unit has committed meanwhile.

The library syncs no files. So the files of a commit are synced after it, before Spark learns that the batch is done. A
power cut in between may leave a newest commit that is cut short: without it the table is whole, and the batch is
written again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from headwater.channels.segments import Segment
from headwater.connectors import deltalog
from headwater.connectors.deltacompact import compact
from headwater.connectors.staged import StagedSinkWriter
from headwater.connectors.tablefiles import (
    TRIES,
    forestalled,
    library,
    not_written,
    out_of_date,
    sync_files,
    wait_for_turn,
)
from headwater.dataflow.stateful import ROWS

if TYPE_CHECKING:
    import pyarrow as pa

_ID = re.compile(r"headwater-\d+-[^/]+")
_EPOCH = "/epoch"
_UNIT = "headwater.unit"
"""In the information of a commit: the unit that made it."""
_PLACE = "headwater_place"
_CHANGING = frozenset({"WRITE", "MERGE", "UPDATE", "DELETE", "STREAMING UPDATE", "CREATE TABLE AS SELECT"})


class DeltaSinkWriter(StagedSinkWriter):
    """Write to the table in the directory ``table``: ``id`` (of this sink writer alone), ``partition_by``, ``keys``.

    ``compact_after``: so many small files of similar size are compacted; 0: never. ``unit``: its name, for the log.
    """

    def __init__(self, spec: Mapping[str, Any], epoch: int) -> None:
        super().__init__(spec)
        self._epoch = epoch
        self.table = Path(spec["table"])
        self._id = str(spec["id"])
        self._unit = str(spec.get("unit", ""))
        self._partition_by = list(spec.get("partition_by") or ())
        self._keys = tuple(spec.get("keys") or ())
        self._compact_after = int(spec.get("compact_after", 0))
        self._fsync = bool(spec.get("fsync", True))
        self._where = f"operator {spec.get('operator', 'delta')!r}, table {self.table}"

    def commit(self, segments: Sequence[Segment], batch: int) -> None:
        """Append a batch unless the table has it: its application transaction shows that."""
        files = [p for p in segments if p.file]
        if not files:
            return
        rows = self._rows(files)
        for turn in range(TRIES):
            table = self._opened(rows)
            last, epoch = self._numbers(table)
            if last is not None and last >= batch:
                # A process of the older epoch that is left may not go on.
                if epoch == self._epoch or self._append(table, rows.slice(0, 0), last):
                    break
                continue
            before = table.version()
            if self._append(table, rows, batch):
                self._compact(before)
                break
            wait_for_turn(turn)
        else:
            raise forestalled(where=self._where)
        if self._fsync:
            self._sync()
        self.abort(files)

    def newest(self) -> int | None:
        """Return the newest batch in the table."""
        table = self._existing()
        return None if table is None else table.transaction_version(self._id)

    def _rows(self, files: Sequence[Segment]) -> pa.Table:
        import pyarrow as pa

        return pa.Table.from_batches(self.batches(files))

    def _append(self, table: Any, rows: pa.Table, batch: int) -> bool:
        """Commit rows and numbers together; return False where another writer of this id was first."""
        deltalake = library("deltalake", where=self._where)
        settings: dict[str, Any] = {"mode": "append", "partition_by": self._partition_by or None}
        numbers = [deltalake.Transaction(self._id, batch), deltalake.Transaction(self._id + _EPOCH, self._epoch)]
        told = {_UNIT: self._unit, "headwater.epoch": str(self._epoch), "headwater.batch": str(batch)}
        properties = deltalake.CommitProperties(custom_metadata=told, app_transactions=numbers)
        try:
            if self._keys and rows.num_rows:
                merge(table, rows, self._keys, properties)
            else:
                deltalake.write_deltalake(table, rows, commit_properties=properties, **settings)
        except deltalake.exceptions.CommitFailedError:
            return False
        except Exception as error:
            raise not_written(error, where=self._where) from error
        return True

    def _numbers(self, table: Any) -> tuple[int | None, int | None]:
        """Return the newest batch and epoch in the table; raise ChannelError where a newer writer has the table."""
        last, epoch = (table.transaction_version(name) for name in (self._id, self._id + _EPOCH))
        if epoch is not None and epoch > self._epoch:
            raise out_of_date(self._epoch, epoch, where=self._where)
        return last, epoch

    def _existing(self) -> Any | None:
        deltalake = library("deltalake", where=self._where)
        try:
            return deltalake.DeltaTable(str(self.table))
        except deltalake.exceptions.TableNotFoundError:
            return None
        except Exception as error:
            raise not_written(error, where=self._where) from error

    def _opened(self, rows: pa.Table) -> Any:
        """Return the table; a missing one is made without rows."""
        deltalake = library("deltalake", where=self._where)
        if (table := self._existing()) is not None:
            return table
        try:
            deltalake.DeltaTable.create(
                str(self.table), schema=rows.schema, mode="ignore", partition_by=self._partition_by or None
            )
        except Exception as error:  # another unit may have made it at the same moment
            if (table := self._existing()) is None:
                raise not_written(error, where=self._where) from error
            return table
        return deltalake.DeltaTable(str(self.table))

    def _compact(self, before: int) -> None:
        """Compact small files once in as many commits as small files are left alone."""
        if not self._compact_after:
            return
        deltalake = library("deltalake", where=self._where)
        table = deltalake.DeltaTable(str(self.table))
        if table.version() // self._compact_after == before // self._compact_after:
            return
        compact(
            self.table,
            self._partition_by,
            least=self._compact_after,
            told={_UNIT: self._unit},
            where=self._where,
        )

    def _sync(self) -> None:
        """Make the newest commits durable, back to the one of this writer, with the files that they add."""
        found: list[Path] = []
        for version in reversed(deltalog.commits(self.table)):
            lines = deltalog.actions(self.table, version)
            found.append(deltalog.commit_file(self.table, version))
            found += [self.table / unquote(a["add"]["path"]) for a in lines if "add" in a]
            if any(a.get("txn", {}).get("appId") == self._id for a in lines):
                break
        sync_files([file for file in found if file.exists()], self.table.parent)


def quoted(name: str) -> str:
    """Quote a column's name for the library's predicates.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def merge(table: Any, rows: pa.Table, keys: Sequence[str], properties: Any) -> None:
    """Replace the rows of equal keys that were computed from fewer rows; NULL keys are equal."""
    newest = rows.sort_by([(ROWS, "descending")])
    first = newest.append_column(_PLACE, [range(newest.num_rows)]).group_by(list(keys)).aggregate([(_PLACE, "min")])
    kept = newest.take(first.column(f"{_PLACE}_min"))
    same = " AND ".join(f"(new.{quoted(key)} IS NOT DISTINCT FROM old.{quoted(key)})" for key in keys)
    merger = table.merge(kept, predicate=same, source_alias="new", target_alias="old", commit_properties=properties)
    more = f"new.{ROWS} > old.{ROWS}"
    merger.when_matched_update_all(predicate=more).when_not_matched_insert_all().execute()


def has_output(table: Path) -> bool:
    """Return whether a table holds rows, and records of any sink writer."""
    if not deltalog.is_table(table) or not any(map(_ID.fullmatch, deltalog.transactions(table))):
        return False
    deltalake = library("deltalake", where=str(table))
    return bool(deltalake.DeltaTable(str(table)).get_add_actions().num_rows > 0)


def holds_rows_of_others(table: Path) -> bool:
    """Return whether other programs have changed rows of a table, or may have: a log does not reach back for ever."""
    deltalake = library("deltalake", where=str(table))
    history = deltalake.DeltaTable(str(table)).history()
    if min(int(entry["version"]) for entry in history) > 0:
        return True
    return any(entry.get("operation") in _CHANGING and _UNIT not in entry for entry in history)


def remove_output(table: Path) -> None:
    """Delete all rows of a table in one commit; earlier versions of the table keep them until they are vacuumed."""
    deltalake = library("deltalake", where=str(table))
    told = deltalake.CommitProperties(custom_metadata={_UNIT: ""})
    deltalake.DeltaTable(str(table)).delete(commit_properties=told)
