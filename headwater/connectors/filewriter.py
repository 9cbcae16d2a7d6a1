"""A directory of ordinary files (parquet, csv, JSON lines) that users read with any tool.

Tasks write whole files into ``<path>/.headwater/staging``, which every reader skips. A commit
records the batch in ``.headwater/log`` and then renames its files to their visible names,
``[<name>-]part-<batch>-<n>-<epoch>[-<run>].<ext>``. Several writers share a directory by
name. The record commits the batch: after a crash before the rename, the next writer rolls forward,
and a replayed batch finds its record and adds nothing.
Spark's own ``_spark_metadata`` cannot do this: its batches must begin at 0.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import decimal
import itertools
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headwater.channels.journal import Journal
from headwater.channels.segments import Segment, conform, normal_schema
from headwater.core.errors import ChannelError
from headwater.core.jsonform import time_text
from headwater.dataflow.partitions import MOST_BYTES, directory_name, partition_text
from headwater.disk.durable import make_directory, naming, sweep, sweep_staged, sync_directory

if TYPE_CHECKING:
    import pyarrow as pa

_KEPT = 100  # records kept for inspection; only the newest is needed
_ROW_GROUP = 100_000
_MOST_OPEN = 64  # files that a task with partitions writes at once
_INDEX = ".index"
_EXTENSIONS = {"parquet": "parquet", "csv": "csv", "json": "json"}


class FileSinkWriter:
    """Write files: ``path``, ``format`` (parquet, csv, json), ``partition_by``, ``fsync`` and the writer's ``name``.

    ``lineage`` names the numbering of the batches (a checkpoint): a batch that another epoch has recorded
    under the same lineage and number is a repetition. Output of another lineage in the same epoch is refused.
    """

    def __init__(self, spec: Mapping[str, Any], epoch: int) -> None:
        self._epoch = epoch
        self._format = str(spec.get("format", "parquet"))
        if self._format not in _EXTENSIONS:
            raise ChannelError(
                f"unknown file format {self._format!r}",
                where=str(spec["path"]),
                hint="use parquet, csv or json",
            )
        self._fsync = bool(spec.get("fsync", True))
        self.path = Path(spec["path"])
        self._partition_by: tuple[str, ...] = tuple(spec.get("partition_by") or ())
        self._name = str(spec.get("name", ""))
        self._lineage: str | None = spec.get("lineage")
        home = self.path / ".headwater" / self._name
        self._staging = home / "staging"
        self._journal = Journal(home / "log", scratch=self._staging, fsync=self._fsync)

    def open(self) -> _FileTask | _PartitionedTask:
        """Start a file in staging, or one for each partition."""
        if self._partition_by:
            return _PartitionedTask(self._staging, self._format, self._partition_by, fsync=self._fsync)
        return _FileTask(self._staging, self._format, fsync=self._fsync)

    def commit(self, segments: Sequence[Segment], batch: int) -> None:
        """Record a batch, then make its files visible."""
        self._journal.create()
        while True:
            last, number = self._last()
            self._refuse_zombie(last)
            self._refuse_other(last)
            if last and self._is_in(last, batch):
                self.recover()
                self.abort(segments)
                return
            files = [p for p in segments if p.file]
            if not files:
                return
            rows = sum(p.rows for p in files)
            run = int((last or {}).get("run", 0))
            staged = [(name, below) for p in files for name, below in self._staged_of(str(p.file)).items()]
            record = {
                "epoch": self._epoch,
                "batch": batch,
                "files": {
                    name: os.path.join(below, self._visible_name(batch, n, run))
                    for n, (name, below) in enumerate(staged)
                },
                "rows": rows,
                "total_rows": rows + (last["total_rows"] if last else 0),
                **_of_former_runs(last),
                **({"lineage": self._lineage} if self._lineage else {}),
            }
            if self._publish(number + 1, record):
                for p in files:
                    if str(p.file).endswith(_INDEX):
                        (self._staging / str(p.file)).unlink(missing_ok=True)
                return

    def _staged_of(self, file: str) -> dict[str, str]:
        """Return the staged files of a segment, and the directory of each below that of the sink."""
        if not file.endswith(_INDEX):
            return {file: ""}
        try:
            found: dict[str, str] = json.loads((self._staging / file).read_text(encoding="utf-8"))
        except FileNotFoundError:  # the segment was committed, or aborted, before
            return {}
        return found

    def fence(self, epoch: int) -> tuple[int, int] | None:
        """Shut out every writer older than ``epoch``; return the last (epoch, batch) that counts."""
        self._journal.create()
        while True:
            last, number = self._last()
            if last and last["epoch"] >= epoch:
                self._refuse_zombie(last, epoch)
                break
            record: dict[str, Any] = {
                "epoch": epoch,
                "batch": -1,
                "files": {},
                "rows": 0,
                "total_rows": last["total_rows"] if last else 0,
                "previous": _counts(last),
                **_of_former_runs(last),
                **({"lineage": last["lineage"]} if last and "lineage" in last else {}),
            }
            last = record
            if self._publish(number + 1, record):
                break
        counts = _counts(last)
        return (counts[0], counts[1]) if counts else None

    def append(self) -> None:
        """Let another lineage go on after the rows that are there; its files get names of their own."""
        self._journal.create()
        while True:
            last, number = self._last()
            if last is None:
                return
            record = {
                "epoch": -1,
                "batch": -1,
                "files": {},
                "rows": 0,
                "total_rows": 0,
                "run": int(last.get("run", 0)) + 1,
                "former_rows": self.all_rows(),
            }
            if self._publish(number + 1, record):
                return

    def abort(self, segments: Sequence[Segment]) -> None:
        """Delete the staged files of a failed batch."""
        for segment in segments:
            if segment.file:
                for file in (*self._staged_of(segment.file), segment.file):
                    (self._staging / file).unlink(missing_ok=True)

    def recover(self) -> None:
        """Make the newest record's files visible, if a crash prevented that, and let their names last.

        A unit that has finished makes no further batch that would find them.
        """
        last, _ = self._last()
        moved = set()
        for staged, visible in (last["files"] if last else {}).items():
            source, target = self._staging / staged, self.path / visible
            with contextlib.suppress(FileNotFoundError):
                if target.parent != self.path and source.exists():
                    make_directory(target.parent, fsync=self._fsync)
                os.rename(source, target)
                moved.add(target.parent)
        if self._fsync:
            for directory in moved:
                sync_directory(directory)

    def sweep(self) -> None:
        """Delete what interrupted batches have left in staging."""
        self.recover()
        sweep_staged(self._staging)

    def newest(self) -> int | None:
        """Return the newest batch of its lineage in the directory."""
        last, _ = self._last()
        counts = _counts(last)
        return counts[1] if counts and self._lineage and last and last.get("lineage") == self._lineage else None

    def rows(self) -> int:
        """Return the number of rows committed since the directory, or this run in it, began."""
        last, _ = self._last()
        return int(last["total_rows"]) if last else 0

    def all_rows(self) -> int:
        """Return the number of rows committed, those of former runs included."""
        last, _ = self._last()
        return self.rows() + int((last or {}).get("former_rows", 0))

    def _publish(self, number: int, record: Mapping[str, Any]) -> bool:
        self.recover()
        before = self._journal.modified(number - 1) if number else None
        if self._fsync:
            sync_directory(self.path)
            sync_directory(self._staging)
        if not self._journal.publish(number, record):
            return False
        self.recover()
        sweep(self._staging, before)
        if number >= _KEPT:
            self._journal.discard(number - _KEPT, number - _KEPT + 1)
        return True

    def _last(self) -> tuple[dict[str, Any] | None, int]:
        number = self._journal.last()
        return (self._journal.get(number) if number >= 0 else None), number

    def _is_in(self, last: Mapping[str, Any], batch: int) -> bool:
        if last["epoch"] == self._epoch and last["batch"] >= batch:
            return True
        counts = _counts(last)
        same = self._lineage is not None and last.get("lineage") == self._lineage
        return same and counts is not None and counts[1] >= batch

    def _refuse_zombie(self, last: Mapping[str, Any] | None, epoch: int | None = None) -> None:
        epoch = self._epoch if epoch is None else epoch
        if last and last["epoch"] > epoch:
            other = self._lineage and last.get("lineage") not in (None, self._lineage)
            raise ChannelError(
                f"the writer of epoch {epoch} is out of date: epoch {last['epoch']} has taken over",
                where=str(self.path),
                hint="stop this writer; its unit runs elsewhere now"
                + (", or write to another path if this is output of another run" if other else ""),
            )

    def _refuse_other(self, last: Mapping[str, Any] | None) -> None:
        """Refuse batches of another numbering: those already written would be taken for them, and these be lost."""
        if last is None or last["epoch"] != self._epoch or last["batch"] < 0:
            return
        if last.get("lineage") not in (None, self._lineage):
            raise ChannelError(
                "the directory holds output of another run: of another state directory, deployment or dataflow",
                where=str(self.path),
                hint="write to another path, or remove the directory with its .headwater if its rows may go",
            )

    def _visible_name(self, batch: int, part: int, run: int) -> str:
        prefix = f"{self._name}-" if self._name else ""
        later = f"-{run}" if run else ""
        return f"{prefix}part-{batch:08d}-{part}-{self._epoch}{later}.{_EXTENSIONS[self._format]}"


def committed_rows(path: Path, name: str | None = None) -> int:
    """Count the rows a writer has committed to a directory; 0 where there is none."""
    if not (path / ".headwater" / (name or "") / "log").is_dir():
        return 0
    return FileSinkWriter({"path": path, "name": name or ""}, 0).rows()


def writers_in(path: Path) -> dict[str, int]:
    """Return the writers with output in a directory, and the numbers of their rows."""
    names = [log.parent.name for log in (path / ".headwater").glob("*/log")]
    rows = {name: FileSinkWriter({"path": path, "name": name}, 0).all_rows() for name in sorted(names)}
    return {name: count for name, count in rows.items() if count}


def remove_output(path: Path) -> None:
    """Remove all files that writers made in a directory, and no other file."""
    for name in writers_in(path):
        ours = re.compile(rf"{re.escape(name)}-part-\d{{8,}}-\d+-\d+(-\d+)?\.({'|'.join(_EXTENSIONS.values())})")
        _remove_files(path, ours)
        # The records last: after a crash they still tell that there is something to remove.
        shutil.rmtree(path / ".headwater" / name)


def _remove_files(path: Path, names: re.Pattern[str]) -> None:
    """Remove the files with some names in a directory and its partitions, and partitions that are empty then."""
    for at, below, files in os.walk(path):
        below[:] = [name for name in below if "=" in name]
        for file in files:
            if names.fullmatch(file):
                os.unlink(os.path.join(at, file))
    for at, _, _ in os.walk(path, topdown=False):
        if "=" in os.path.basename(at) and at != str(path):
            with contextlib.suppress(OSError):  # others' files are in it
                os.rmdir(at)


def _of_former_runs(record: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (record or {}).items() if key in ("run", "former_rows")}


def _counts(record: Mapping[str, Any] | None) -> list[int] | None:
    if record is None:
        return None
    return [record["epoch"], record["batch"]] if record["batch"] >= 0 else record.get("previous")


class _Format(Protocol):
    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


class _FileTask:
    """Write one task's rows to one staged file."""

    def __init__(self, staging: Path, kind: str, *, fsync: bool) -> None:
        self._staging = staging
        self._kind = kind
        self._fsync = fsync
        self._path: Path | None = None
        self._out: _Format | None = None
        self._schema: pa.Schema | None = None
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if self._out is None:
            make_directory(self._staging, fsync=self._fsync)
            self._path = self._staging / f"{uuid.uuid4().hex}.{_EXTENSIONS[self._kind]}"
            self._schema = normal_schema(batch.schema)
            self._out = _FORMATS[self._kind](self._path, self._schema)
        assert self._path is not None
        with naming(self._path):
            self._out.write(conform(batch, self._schema))
        self._rows += batch.num_rows

    def close(self) -> Segment | None:
        if self._out is None or self._path is None:
            return None
        with naming(self._path):
            self._out.close()
        if self._fsync:
            with open(self._path, "rb") as file:
                os.fsync(file.fileno())
        return Segment(file=self._path.name, rows=self._rows, bytes=self._path.stat().st_size, crc32=0)

    def abandon(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)  # first: on a full disk the file cannot be finished
        if self._out is not None:
            with contextlib.suppress(OSError):
                self._out.close()


class _PartitionedTask:
    """Write one task's rows to one staged file or more for each partition."""

    def __init__(self, staging: Path, kind: str, columns: tuple[str, ...], *, fsync: bool) -> None:
        self._staging = staging
        self._kind = kind
        self._columns = columns
        self._fsync = fsync
        self._open: dict[str, _FileTask] = {}
        """By directory below the sink's; those written to last come last."""
        self._closed: list[tuple[str, Segment]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        for directory, rows in split(batch, self._columns):
            task = self._open.pop(directory, None)
            if task is None:
                if len(self._open) >= _MOST_OPEN:
                    self._close_file(next(iter(self._open)))
                task = _FileTask(self._staging, self._kind, fsync=self._fsync)
            self._open[directory] = task
            task.write(rows)

    def _close_file(self, directory: str) -> None:
        segment = self._open[directory].close()
        if segment is not None:
            self._closed.append((directory, segment))
        del self._open[directory]

    def close(self) -> Segment | None:
        for directory in list(self._open):
            self._close_file(directory)
        if not self._closed:
            return None
        index = self._staging / f"{uuid.uuid4().hex}{_INDEX}"
        with naming(index):
            index.write_text(json.dumps({str(s.file): directory for directory, s in self._closed}), encoding="utf-8")
        rows, size = (sum(sizes) for sizes in zip(*((s.rows, s.bytes) for _, s in self._closed), strict=True))
        return Segment(file=index.name, rows=rows, bytes=size, crc32=0)

    def abandon(self) -> None:
        for _, segment in self._closed:
            (self._staging / str(segment.file)).unlink(missing_ok=True)
        for task in self._open.values():
            task.abandon()


def split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Split rows by the values of columns: yield the directory of each value, and its rows without the columns."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if batch.num_rows == 0:
        return
    at = {name.lower(): n for n, name in enumerate(batch.schema.names)}
    indexes = [at[name.lower()] for name in columns]
    codes = np.zeros(batch.num_rows, np.int64)
    names: list[list[str | None]] = []
    for column in (batch.column(n) for n in indexes):
        encoded = column.dictionary_encode()
        texts = [partition_text(v) for v in encoded.dictionary.to_pylist()]
        values = pc.fill_null(encoded.indices, len(texts)).to_numpy(zero_copy_only=False)
        codes = codes * (len(texts) + 1) + values
        names.append([*texts, None])
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    sorted_rows = batch.take(pa.array(order)) if len(starts) > 2 else batch
    kept = [n for n in range(batch.num_columns) if n not in indexes]
    found: dict[str, list[pa.RecordBatch]] = {}
    for begin, end in itertools.pairwise(starts):
        code, parts = int(ordered[begin]), []
        for name, texts in zip(reversed(columns), reversed(names), strict=True):
            code, digit = divmod(code, len(texts))
            parts.append(_directory(name, texts[digit]))
        rows = sorted_rows.slice(begin, end - begin).select(kept)
        # NULL and an empty text have one directory.
        found.setdefault(os.path.join(*reversed(parts)), []).append(rows)
    for directory, several in found.items():
        for rows in several:
            yield directory, rows


def _directory(column: str, text: str | None) -> str:
    name = directory_name(column, text)
    if len(name.encode()) > MOST_BYTES:
        raise ChannelError(
            f"a value of '{column}' is too long for a directory: '{str(text)[:40]}..'",
            where=f"partition_by={column}",
            hint="partition by a shorter column, such as a hash or the beginning of the text",
        )
    return name


class _Parquet:
    """Write Parquet; gather rows into groups worth compressing."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(str(path), schema)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= _ROW_GROUP:
            self._flush()

    def close(self) -> None:
        if self._waiting:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._rows = [], 0


class _Csv:
    """Write CSV with a header; times in the form that Spark's reader accepts."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        import pyarrow as pa
        from pyarrow import csv

        nested = [f.name for f in schema if pa.types.is_nested(f.type)]
        if nested:
            raise ChannelError(
                f"CSV cannot hold the nested columns {', '.join(nested)}",
                where=str(path.parent.parent.parent),
                hint="select their fields, or use json or parquet",
            )
        self._writer = csv.CSVWriter(str(path), schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _Json:
    """Write one JSON object per line, values in the forms that Spark's reader accepts."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._out = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by close)

    def write(self, batch: pa.RecordBatch) -> None:
        self._out.writelines(_json_lines(batch))

    def close(self) -> None:
        self._out.close()


def _json_lines(batch: pa.RecordBatch) -> Iterator[str]:
    for row in batch.to_pylist(maps_as_pydicts="lossy"):
        yield json.dumps(row, default=_json_value, ensure_ascii=False) + "\n"


def _json_value(value: object) -> str:
    if isinstance(value, datetime.datetime):
        return time_text(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return str(value)
    return str(value)


_FORMATS: dict[str, Any] = {"parquet": _Parquet, "csv": _Csv, "json": _Json}
