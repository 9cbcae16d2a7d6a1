"""Segments: the Arrow IPC files of a filelog, written in a task and read back checked.

A segment is one Arrow stream, compressed (lz4 or zstd), or, where it crosses a link, blocks of encoded columns
(``linkstream``); its first bytes say which. Its schema is normalised so that a log means the same for every session
that wrote it: timestamps with a zone are UTC microseconds, every field is nullable, no metadata.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from headwater.channels.blocks import encodable
from headwater.channels.bytestream import MalformedBytes
from headwater.channels.linkstream import MAGIC, LinkStream, arrow_stream, read_blocks
from headwater.core.errors import ChannelError

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.channels.bytestream import Buffer


FOR_LINK = "link"
"""The compression of segments that cross a link, by the link's speed; the others are those of Arrow's format."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Name, size and checksum of one segment file.

    ``frontier`` is the segment's event-time frontier in microseconds.
    ``file`` is None for a segment with a frontier and no rows. ``offsets`` are the first and
    the last Kafka offset of its bytes in a log that keeps no files. ``level``: that of zstd at which its rows cross a
    link, compressed together with those before them (``entrysender``); None: they cross it as they are stored.
    """

    file: str | None
    rows: int
    bytes: int
    crc32: int
    frontier: int | None = None
    offsets: tuple[int, int] | None = None
    level: int | None = None


class CorruptSegment(ChannelError):
    """A segment's bytes differ from the published ones."""


def normal_type(kind: pa.DataType) -> pa.DataType:
    """Return the type a segment stores for ``kind``."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz is not None else None)
    if pa.types.is_struct(kind):
        return pa.struct([normal_field(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", normal_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(normal_type(kind.key_type), normal_type(kind.item_type))
    return kind


def normal_field(field: pa.Field) -> pa.Field:
    """Return the field a segment stores for ``field``."""
    import pyarrow as pa

    return pa.field(field.name, normal_type(field.type))


def normal_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema a segment stores for ``schema``."""
    import pyarrow as pa

    return pa.schema([normal_field(field) for field in schema])


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch in exactly ``schema``; nothing is copied where only zone or nullability differ."""
    import pyarrow as pa

    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = [
        column if column.type.equals(field.type, check_metadata=True) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def conformed(rows: pa.Table) -> pa.Table:
    """Return rows with the types that segments store, in one piece."""
    import pyarrow as pa

    schema = normal_schema(rows.schema)
    return pa.Table.from_batches([conform(batch, schema) for batch in rows.combine_chunks().to_batches()], schema)


def event_time_max(column: pa.Array) -> int | None:
    """Return the frontier of a column of timestamps, or of Spark windows, in microseconds.

    A window is past when its end is, so it stands for the last microsecond inside it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(column.type):
        # flatten, not field(): a null window must not show the values stored under it
        ends = column.flatten()[column.type.get_field_index("end")]
        value = pc.max(ends).value
        return None if value is None else int(value) - 1
    value = pc.max(column).value
    return None if value is None else int(value)


def check_event_time(schema: pa.Schema, name: str, *, where: str) -> None:
    """Refuse an event-time column that is neither a timestamp nor a window."""
    import pyarrow as pa

    index = schema.get_field_index(name)
    kind = schema.field(index).type if index >= 0 else None
    if kind is not None and pa.types.is_struct(kind) and kind.get_field_index("end") >= 0:
        kind = kind.field(kind.get_field_index("end")).type
    if kind is None or not pa.types.is_timestamp(kind):
        raise ChannelError(
            f"event-time column {name!r} is {kind or 'missing'}; columns: {', '.join(schema.names)}",
            where=where,
            hint="name a timestamp column, or a struct column with a timestamp field 'end'",
        )


class SegmentWriter:
    """Write batches to one segment file as they come; without batches there is no file.

    ``bytes_per_s``: speed of the link that the file crosses, for compression ``FOR_LINK``; None: unknown. ``streamed``:
    it crosses it in a stream that is compressed as one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        event_time: str | None = None,
        fsync: bool = True,
        compression: str = "lz4",
        bytes_per_s: float | None = None,
        streamed: bool = False,
    ) -> None:
        self._directory = directory
        self._event_time = event_time
        self._fsync = fsync
        self._compression = compression
        self._bytes_per_s = bytes_per_s
        self._streamed = streamed
        self._schema: pa.Schema | None = None
        self._stream: Any = None
        self._file: _CountingFile | None = None
        self._rows = 0
        self._frontier: int | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch; batches without rows leave no trace."""
        if batch.num_rows == 0:
            return
        if self._stream is None:
            self._open(batch.schema)
        assert self._schema is not None
        batch = conform(batch, self._schema)
        self._stream.write_batch(batch)
        self._rows += batch.num_rows
        if self._event_time is not None:
            index = self._schema.get_field_index(self._event_time)
            self.raise_frontier(event_time_max(batch.column(index)))

    def raise_frontier(self, micros: int | None) -> None:
        """Raise the frontier above that of the rows."""
        if micros is not None and (self._frontier is None or micros > self._frontier):
            self._frontier = micros

    def close(self) -> Segment | None:
        """Finish the file and describe it; None when there are neither rows nor a frontier."""
        if self._file is None:
            if self._frontier is None:
                return None
            return Segment(file=None, rows=0, bytes=0, crc32=0, frontier=self._frontier)
        self._stream.close()
        self._file.finish(fsync=self._fsync)
        return Segment(
            file=self._file.path.name,
            rows=self._rows,
            bytes=self._file.bytes,
            crc32=self._file.crc32,
            frontier=self._frontier,
            level=self._stream.level if isinstance(self._stream, LinkStream) else None,
        )

    def abandon(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.remove()

    def _open(self, schema: pa.Schema) -> None:
        self._schema = normal_schema(schema)
        if self._event_time is not None:
            check_event_time(self._schema, self._event_time, where=str(self._directory))
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file = _CountingFile(self._directory / f"{uuid.uuid4().hex}.arrow")
        if self._compression != FOR_LINK:
            self._stream = arrow_stream(self._file, self._schema, self._compression)
        elif encodable(self._schema):
            self._stream = LinkStream(self._file, self._schema, self._bytes_per_s, streamed=self._streamed)
        else:
            self._stream = arrow_stream(self._file, self._schema, "zstd")


class _CountingFile:
    """A file that counts and checksums its bytes while they are written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = 0
        self.crc32 = 0
        self._out = open(path, "wb", buffering=1 << 20)  # noqa: SIM115 (closed by finish)

    def write(self, data: Any) -> int:
        self.crc32 = zlib.crc32(data, self.crc32)
        self.bytes += len(data)
        return self._out.write(data)

    def flush(self) -> None:
        self._out.flush()

    def close(self) -> None:  # pyarrow closes the file; finish() makes it durable
        pass

    @property
    def closed(self) -> bool:
        return self._out.closed

    def remove(self) -> None:
        """Delete the file, also on a full disk, where its last bytes cannot be written."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._out.close()

    def finish(self, *, fsync: bool) -> None:
        if self._out.closed:
            return
        self._out.flush()
        if fsync:
            os.fsync(self._out.fileno())
        self._out.close()


def map_file(file: BinaryIO) -> memoryview:
    """Map the content of a file into memory; the file may be closed meanwhile."""
    if not os.fstat(file.fileno()).st_size:
        return memoryview(b"")
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def damage_of(data: Buffer, segment: Segment) -> str | None:
    """Return the difference between a segment's bytes and its size or checksum; None if there is none."""
    if len(data) != segment.bytes or not data:
        return f"has {len(data)} bytes instead of {segment.bytes}"
    if (found := zlib.crc32(data)) != segment.crc32:
        return f"has checksum {found:08x} instead of {segment.crc32:08x}"
    return None


def read_segment(path: Path, segment: Segment) -> Iterator[pa.RecordBatch]:
    """Yield a segment's batches, after the whole of it was checked.

    Raise FileNotFoundError when there is no such file, CorruptSegment when its size,
    checksum or row count is wrong; no row of a bad segment is ever given.
    """
    import pyarrow as pa

    with open(path, "rb") as file:
        mapped = map_file(file)
    if (damage := damage_of(mapped, segment)) is not None:
        raise CorruptSegment(damage, where=str(path))
    data = bytes(mapped) if mapped[: len(MAGIC)] == MAGIC else None
    del mapped
    if data is not None:
        yield from _decoded(data, where=str(path))
        return
    # Arrow keeps its own mapping: batches may outlive this function.
    with pa.memory_map(str(path)) as source:
        yield from pa.ipc.open_stream(source)


def decode_segment(data: bytes, segment: Segment, *, where: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a segment that is in memory, after the whole of it was checked."""
    import pyarrow as pa

    if (damage := damage_of(data, segment)) is not None:
        raise CorruptSegment(damage, where=where)
    if data[: len(MAGIC)] == MAGIC:
        yield from _decoded(data, where=where)
    else:
        yield from pa.ipc.open_stream(pa.BufferReader(data))


def _decoded(data: bytes, *, where: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from read_blocks(data)
    except MalformedBytes as error:
        raise CorruptSegment(f"is {error.what}", where=where, hint=error.hint) from None
