"""Put small files of a Delta table together, in a commit that changes no row.

The library's own compaction does not notice that another one has replaced the same files meanwhile: both commits
succeed, and rows are doubled. So the commit is written here: it takes the next version with a hard link, which only
one writer can make, after a look at all commits since the files were listed. Files are synced before the commit.
"""

from __future__ import annotations

import datetime
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from headwater.connectors import deltalog
from headwater.connectors.tablefiles import bytes_to_compact, library, sync_files
from headwater.dataflow.partitions import partition_text
from headwater.disk.durable import write_first

if TYPE_CHECKING:
    import pyarrow as pa

_FEATURES = frozenset({"timestampNtz", "appendOnly", "invariants"})
"""What a writer must support of a table that is compacted; others, such as row tracking, need more in a commit."""
_LONGEST = 32  # characters of texts in statistics
_TRIES = 10
_WRITER_VERSIONS = (1, 2, 7)
"""Versions of the protocol without further duties for a writer, or with a list of them."""


@dataclass(frozen=True, kw_only=True)
class _File:
    """A file of a table: its path as the log has it, size in bytes, and partition values as text by column."""

    path: str
    size: int
    partition: tuple[tuple[str, str | None], ...]


def compact(root: Path, partition_by: Sequence[str], *, least: int, told: Mapping[str, str], where: str) -> bool:
    """Compact a table's small files of similar size if a partition has ``least``; return whether a commit was made."""
    table = library("deltalake", where=where).DeltaTable(str(root))
    protocol = table.protocol()
    knows = protocol.min_writer_version in _WRITER_VERSIONS and set(protocol.writer_features or ()) <= _FEATURES
    if not knows or table.metadata().partition_columns != list(partition_by):
        return False
    files, version = _files(table), table.version()
    most = bytes_to_compact([(file.partition, file.size) for file in files], least)
    if most is None:
        return False
    groups: dict[tuple[tuple[str, str | None], ...], list[_File]] = {}
    for file in files:
        if file.size < most:
            groups.setdefault(file.partition, []).append(file)
    merged = [group for group in groups.values() if len(group) > 1]
    now = int(time.time() * 1000)
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": now, "operation": "OPTIMIZE", "operationParameters": {}, **told}},
        *({"remove": _removed(file, now)} for group in merged for file in group),
    ]
    made: list[Path] = []
    for group in merged:
        path, add = _merge(root, group, now)
        made.append(path)
        actions.append({"add": add})
    sync_files(made, root)
    if merged and _committed(root, version, {file.path for group in merged for file in group}, actions):
        return True
    for path in made:
        path.unlink(missing_ok=True)
    return False


def _files(table: Any) -> list[_File]:
    """List the files of a table."""
    import pyarrow as pa

    found = []
    for add in pa.table(table.get_add_actions()).to_pylist():
        partition = tuple((name, partition_text(value)) for name, value in (add.get("partition") or {}).items())
        found.append(_File(path=add["path"], size=int(add["size_bytes"]), partition=partition))
    return found


def _removed(file: _File, now: int) -> dict[str, Any]:
    return {
        "path": file.path,
        "deletionTimestamp": now,
        "dataChange": False,
        "extendedFileMetadata": True,
        "partitionValues": dict(file.partition),
        "size": file.size,
    }


def _merge(root: Path, group: Sequence[_File], now: int) -> tuple[Path, dict[str, Any]]:
    """Write the rows of files of one partition into one; return its path, and its entry for the log."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pq.ParquetFile(root / unquote(file.path)).read() for file in group]
    # A file from before a column was added lacks it.
    rows = pa.concat_tables(tables, promote_options="default")
    directory = (root / unquote(group[0].path)).parent
    path = directory / f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
    pq.write_table(rows, path, compression="zstd")
    add = {
        "path": quote(str(path.relative_to(root)), safe="/=-_.~"),
        "partitionValues": dict(group[0].partition),
        "size": path.stat().st_size,
        "modificationTime": now,
        "dataChange": False,
        "stats": json.dumps(_statistics(rows)),
    }
    return path, add


def _statistics(rows: pa.Table) -> dict[str, Any]:
    """Return the statistics of a file, by which readers leave out files: of columns with an exact JSON form only."""
    import pyarrow as pa
    import pyarrow.compute as pc

    least, most, nulls = {}, {}, {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        if column.null_count == len(column):
            continue
        if pa.types.is_integer(column.type) or pa.types.is_date32(column.type) or pa.types.is_string(column.type):
            ends = pc.min_max(column).as_py()
            texts = [end.isoformat() if isinstance(end, datetime.date) else end for end in (ends["min"], ends["max"])]
            if not any(isinstance(text, str) and len(text) > _LONGEST for text in texts):
                least[name], most[name] = texts
    return {"numRecords": rows.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _committed(root: Path, version: int, removed: set[str], actions: Sequence[Mapping[str, Any]]) -> bool:
    """Commit after a version and all that follow it; return False where one of them has removed a file, or more."""
    text = "".join(json.dumps(action) + "\n" for action in actions)
    for _ in range(_TRIES):
        newer = [v for v in deltalog.commits(root) if v > version]
        for number in newer:
            for action in deltalog.actions(root, number):
                if "metaData" in action or "protocol" in action or action.get("remove", {}).get("path") in removed:
                    return False
            version = number
        if write_first(deltalog.commit_file(root, version + 1), text, scratch=_scratch(root)):
            return True
    return False


def _scratch(root: Path) -> Path:
    """Return a directory on the table's disk that readers skip."""
    scratch = root / ".headwater"
    scratch.mkdir(exist_ok=True)
    return scratch
