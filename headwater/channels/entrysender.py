"""The messages of an entry that is sent to another zone: the bytes of its segments, then the entry itself.

Blocks (``linkstream``) are sent with columns that are not compressed, and the stream is compressed instead: then a
block can repeat those before it. The receiver stores them so; size and checksum in the entry are those of
this form. All other segments are sent as they are stored.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from headwater.channels.bytestream import MalformedBytes
from headwater.channels.entry import Entry, Floor
from headwater.channels.filelog import FileLog
from headwater.channels.followed import Begin, Bytes, RelayMessage
from headwater.channels.linkstream import LEVELS, uncompressed_blocks
from headwater.channels.segments import Segment, damage_of, map_file
from headwater.channels.streamhistory import SentHistory

if TYPE_CHECKING:
    from headwater.channels.bytestream import Buffer

CHUNK_BYTES = 256 * 1024
SMALL_BYTES, SMALL_CHUNKS = 64 * 1024, 16
"""Size and number of the first chunks of a segment: small, so that a slow link is measured soon."""

FIRST_BYTES, WORTH_BYTES = 4 * 1024, 16 * 1024
"""Size of the very first chunk, and the least size of a segment that has one. The time until the next chunk
arrives measures the link."""


def message(*, floor: Floor | None = None, part: Bytes | None = None, entry: Entry | None = None) -> RelayMessage:
    """Return a message that is sent now."""
    return RelayMessage(sent=time.monotonic(), floor=floor, part=part, entry=entry)


class EntrySender:
    """The sending end of a stream; ``expands``: whether the receiver can read expanded segments (``Bytes``).

    ``history``: of the streams before it.
    """

    def __init__(self, *, expands: bool, history: SentHistory | None = None) -> None:
        self._expands = expands
        self._history = history or SentHistory()

    def send(self, log: FileLog, entry: Entry, begin: Begin) -> Iterator[RelayMessage]:
        """Yield the bytes of an entry's segments from a position on, the last ones with the entry.

        It counts at the receiver once all have arrived.
        """
        expanded = self._expanded(log, entry)
        if not begin.expanded <= expanded.keys():
            begin = Begin()  # the receiver has bytes of a form in which this version cannot go on
        # A segment of which the receiver has stored bytes, from an older version, goes on in that form.
        expanded = {p: s for p, s in expanded.items() if p in begin.expanded or not begin.holds(p)}
        held: Bytes | None = None
        for piece, segment in enumerate(entry.segments):
            if piece < begin.piece or (data := _content(log, segment)) is None:
                continue
            offset = begin.offset if piece == begin.piece else 0
            sizes = _sizes(len(data) - offset)
            for chunk in _chunks(uncompressed_blocks(data) if piece in expanded else [data], sizes, offset):
                if held is not None:
                    yield message(part=held)
                held = self._part(piece, offset, chunk, segment.level if piece in expanded else None)
                offset += len(chunk)
        segments = tuple(expanded.get(piece, segment) for piece, segment in enumerate(entry.segments))
        yield message(part=held, entry=replace(entry, segments=segments))

    def _expanded(self, log: FileLog, entry: Entry) -> dict[int, Segment]:
        """Return the expanded form of each segment that can be sent so.

        All others are sent as they are stored, so that readers find damaged ones damaged.
        """
        found = {}
        for piece, segment in enumerate(entry.segments):
            if not self._expands or segment.level not in LEVELS:
                continue
            if (data := _content(log, segment)) is not None and (form := _expanded_form(data, segment)) is not None:
                found[piece] = form
        return found

    def _part(self, piece: int, offset: int, chunk: bytes, level: int | None) -> Bytes:
        if level is None:
            return Bytes(piece, offset, chunk)
        data, begins, known = self._history.compress(chunk, level)
        return Bytes(piece, offset, data, expanded=True, begins=begins, known=known)


def _content(log: FileLog, segment: Segment) -> memoryview | None:
    """Return the stored bytes of a segment; None if it is lost or has no rows."""
    if (source := log.open_published(segment)) is None:
        return None
    with source:
        return map_file(source)


def _expanded_form(data: memoryview, segment: Segment) -> Segment | None:
    """Return size and checksum of the expanded segment; None if it is damaged, or has no blocks."""
    if damage_of(data, segment) is not None:
        return None
    size = crc32 = 0
    try:
        for piece in uncompressed_blocks(data):
            size, crc32 = size + len(piece), zlib.crc32(piece, crc32)
    except MalformedBytes:  # another zone has said that it has blocks
        return None
    return replace(segment, bytes=size, crc32=crc32)


def _chunks(pieces: Iterable[Buffer], sizes: Iterator[int], skip: int) -> Iterator[bytes]:
    """Yield the bytes of pieces in chunks of given sizes, without the first ``skip`` ones."""
    waiting, size = bytearray(), next(sizes)
    for piece in pieces:
        rest = memoryview(piece)[skip:]
        skip = max(0, skip - len(piece))
        while len(waiting) + len(rest) >= size:
            least = size - len(waiting)
            yield bytes(waiting + rest[:least])
            waiting, rest, size = bytearray(), rest[least:], next(sizes)
        waiting += rest
    if waiting:
        yield bytes(waiting)


def _sizes(left: int) -> Iterator[int]:
    """Yield the sizes of chunks: small ones first, to measure a slow link soon, then large ones."""
    if left > WORTH_BYTES:
        yield FIRST_BYTES
    yield from itertools.repeat(SMALL_BYTES, SMALL_CHUNKS)
    yield from itertools.repeat(CHUNK_BYTES)
