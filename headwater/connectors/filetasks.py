"""The rows of one task as staged files of a directory sink: one file, or one or more for each partition."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.channels.segments import Segment, conform, normal_schema
from headwater.connectors.fileformats import FORMATS, FileFormat
from headwater.core.errors import ChannelError
from headwater.dataflow.partitions import MOST_BYTES, directory_name, partition_text
from headwater.disk.durable import make_directory, naming

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_OPEN = 64  # files that a task with partitions writes at once
INDEX = ".index"
"""Extension of the file that lists the files of a task with partitions."""


class FileTask:
    """Write one task's rows to one staged file."""

    def __init__(self, staging: Path, kind: str, *, fsync: bool) -> None:
        self._staging = staging
        self._kind = kind
        self._fsync = fsync
        self._path: Path | None = None
        self._out: FileFormat | None = None
        self._schema: pa.Schema | None = None
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if self._out is None:
            make_directory(self._staging, fsync=self._fsync)
            self._path = self._staging / f"{uuid.uuid4().hex}.{self._kind}"
            self._schema = normal_schema(batch.schema)
            self._out = FORMATS[self._kind](self._path, self._schema)
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


class PartitionedTask:
    """Write one task's rows to one staged file or more for each partition."""

    def __init__(self, staging: Path, kind: str, columns: tuple[str, ...], *, fsync: bool) -> None:
        self._staging = staging
        self._kind = kind
        self._columns = columns
        self._fsync = fsync
        self._open: dict[str, FileTask] = {}
        """By directory below the sink's; those written to last come last."""
        self._closed: list[tuple[str, Segment]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        for directory, rows in split(batch, self._columns):
            task = self._open.pop(directory, None)
            if task is None:
                if len(self._open) >= _MOST_OPEN:
                    self._close_file(next(iter(self._open)))
                task = FileTask(self._staging, self._kind, fsync=self._fsync)
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
        index = self._staging / f"{uuid.uuid4().hex}{INDEX}"
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
