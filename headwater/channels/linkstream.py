"""Rows for a link: in the encoding with the least time to make and to send, measured over the rows themselves.

A small batch is always encoded as a block: Arrow's format would be several times as long. For larger ones a sample is
encoded in Arrow's format and as blocks at rising levels of zstd, and the time that this takes is added to the time that
the link takes for the result. A slow link is worth a high level; a fast one, or a busy processor, is not.

Where a stream is compressed on its way (``linkcompression``), the level is that of the stream, and blocks are stored at
the lowest one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from headwater.channels.blocks import decode_block, encodable, encode_block, uncompressed_block
from headwater.channels.bytestream import ByteReader, ByteWriter, MalformedBytes

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.channels.bytestream import Buffer

MAGIC = b"HWB1"
"""The first bytes of rows in blocks, with the format's version. Arrow's streams begin with FFFFFFFF."""
LEVELS = (1, 9, 19)
"""Levels of zstd that are tried."""
SLOW_BYTES_PER_S = 62_500
"""Speed of a link below which streams have the highest level: it saves 5 % of the bytes and takes 30 us per row."""
SMALL_ROWS = 4096
"""Rows that are encoded without a measurement, and rows of the sample that is measured."""
ASSUMED_BYTES_PER_S = 1.25e6
"""Speed of a link of which the bandwidth is not declared: 10 Mbit/s, that of a radio link."""
_BLOCK_ROWS = 65_536
_BLOCK_BYTES = 8 * 2**20
_MOST_BYTES = 4 * _BLOCK_BYTES
"""Bytes of a single row above which it is written in Arrow's format: a block is read into memory whole."""
_COLUMNS, _ARROW = 0, 1

_Encode = Callable[[], int]


class ByteSink(Protocol):
    """A file that is written in sequence."""

    def write(self, data: Any) -> int:
        """Append bytes."""


def choose_level(
    rows: pa.Table, bytes_per_s: float | None, clock: Callable[[], float] = time.perf_counter, *, streamed: bool = False
) -> int | None:
    """Return the level of zstd for rows that cross a link of a speed; None: they are sent in Arrow's format.

    No slower encoding is tried once sending takes less time than encoding. ``streamed``: they are compressed together
    with those before them.
    """
    if rows.num_rows <= SMALL_ROWS:
        slow = (bytes_per_s or ASSUMED_BYTES_PER_S) < SLOW_BYTES_PER_S
        return LEVELS[-1] if slow or not streamed else LEVELS[-2]
    sample = rows.slice((rows.num_rows - SMALL_ROWS) // 2, SMALL_ROWS).combine_chunks()
    tries: list[tuple[int | None, _Encode]] = [(None, lambda: len(_arrow(sample)))]
    tries += [(level, lambda level=level: len(encode_block(sample, level=level))) for level in LEVELS]  # type: ignore[misc]
    best, least = None, float("inf")
    for level, encode in tries:
        began = clock()
        size = encode()
        took = clock() - began
        sending = size / (bytes_per_s or ASSUMED_BYTES_PER_S)
        if took + sending < least:
            best, least = level, took + sending
        if sending < took:
            break
    return best


def arrow_stream(out: ByteSink, schema: pa.Schema, compression: str) -> pa.RecordBatchStreamWriter:
    """Return a writer of Arrow's own format."""
    import pyarrow as pa

    options = pa.ipc.IpcWriteOptions(compression=compression)
    return pa.ipc.new_stream(pa.PythonFile(out, mode="w"), schema, options=options)


def _arrow(rows: pa.Table) -> bytes:
    import io

    out = io.BytesIO()
    with arrow_stream(out, rows.schema, "zstd") as stream:
        stream.write_table(rows)
        stream.close()
        return out.getvalue()


class LinkStream:
    """Write batches of one schema (``blocks.encodable``) for a link of a speed in bytes per second; None: unknown.

    ``streamed``: see ``choose_level``.
    """

    def __init__(self, out: ByteSink, schema: pa.Schema, bytes_per_s: float | None, *, streamed: bool = False) -> None:
        self._out = out
        self._schema = schema
        self._bytes_per_s = bytes_per_s
        self._streamed = streamed
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._begun = False
        self.level: int | None = None
        """That of zstd for the link; None before the first block, and in Arrow's format."""
        self._arrow: pa.RecordBatchStreamWriter | None = None

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        if self._arrow is not None:
            self._arrow.write_batch(batch)
            return
        parts = -(-batch.nbytes // _BLOCK_BYTES)
        each = max(1, min(_BLOCK_ROWS, batch.num_rows // max(1, parts)))
        for first in range(0, batch.num_rows, each):
            part = batch.slice(first, each)
            if self._rows + part.num_rows > _BLOCK_ROWS or self._bytes + part.nbytes > _BLOCK_BYTES:
                self._flush()
            self._waiting.append(part)
            self._rows += part.num_rows
            self._bytes += part.nbytes

    def close(self) -> None:
        """Write the rest."""
        self._flush()
        if self._arrow is not None:
            self._arrow.close()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting, self._schema)
        self._waiting, self._rows, self._bytes = [], 0, 0
        if not self._begun:
            self._begun = True
            self.level = choose_level(rows, self._bytes_per_s, streamed=self._streamed)
            if self.level is None:
                self._arrow = arrow_stream(self._out, self._schema, "zstd")
            else:
                self._out.write(MAGIC)
        if self._arrow is not None:
            self._arrow.write_table(rows)
            return
        assert self.level is not None
        if rows.nbytes > _MOST_BYTES:
            self._put(_ARROW, _arrow(rows))
        else:
            self._put(_COLUMNS, encode_block(rows, level=LEVELS[0] if self._streamed else self.level))

    def _put(self, kind: int, data: bytes) -> None:
        self._out.write(_head(kind, len(data)))
        self._out.write(data)


def description(schema: pa.Schema) -> bytes:
    """Return the bytes with which the rows of a schema begin as blocks; none for one that has no blocks."""
    if not encodable(schema):
        return b""
    block = uncompressed_block(encode_block(schema.empty_table(), level=LEVELS[0]))
    return MAGIC + _head(_COLUMNS, len(block)) + block


def read_blocks(data: Buffer) -> Iterator[pa.RecordBatch]:
    """Yield the rows of blocks, one after the other; raise MalformedBytes at a damaged one."""
    for kind, block in _blocks(data):
        if kind == _COLUMNS:
            yield decode_block(block)
        else:
            yield from _from_arrow(bytes(block))


def uncompressed_blocks(data: Buffer) -> Iterator[Buffer]:
    """Yield the bytes of blocks with columns that are not compressed; raise MalformedBytes at a damaged block."""
    yield MAGIC
    for kind, block in _blocks(data):
        plain = uncompressed_block(block) if kind == _COLUMNS else block
        yield _head(kind, len(plain))
        yield plain


def _blocks(data: Buffer) -> Iterator[tuple[int, memoryview]]:
    """Yield the kind and the bytes of each block."""
    of = ByteReader(data)
    if bytes(of.take(len(MAGIC))) != MAGIC:
        raise MalformedBytes("it begins with other bytes")
    if of.at_end:
        raise MalformedBytes("it has no rows")
    while not of.at_end:
        kind, block = of.take(1)[0], of.bytes()
        if kind not in (_COLUMNS, _ARROW):
            raise MalformedBytes(f"block of kind {kind}")
        yield kind, block


def _head(kind: int, size: int) -> bytes:
    head = ByteWriter()
    head.data.append(kind)
    head.number(size)
    return bytes(head.data)


def _from_arrow(data: bytes) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    try:
        yield from pa.ipc.open_stream(pa.BufferReader(data))
    except (OSError, pa.ArrowException) as error:
        raise MalformedBytes(str(error).splitlines()[0]) from None
