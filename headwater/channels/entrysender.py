"""The messages of an entry that is sent to another zone: the bytes of its segments, then the entry itself.

Blocks (``linkstream``) are sent with columns that are not compressed, and the stream is compressed instead: then a
block can repeat those before it. The receiver stores them so; size and checksum in the entry are those of
this form. All other segments are sent as they are stored.
"""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import BinaryIO, Protocol

from headwater.channels.bytestream import MalformedBytes
from headwater.channels.entry import Entry, Floor
from headwater.channels.filelog import FileLog
from headwater.channels.followed import Begin, Bytes, RelayMessage
from headwater.channels.linkcompression import LinkCompressor
from headwater.channels.linkstream import LEVELS, uncompressed_blocks
from headwater.channels.segments import Segment, is_whole

CHUNK_BYTES = 256 * 1024
SMALL_BYTES, SMALL_CHUNKS = 64 * 1024, 16
"""Size and number of the first chunks of a segment: small, so that a slow link is measured soon."""

FIRST_BYTES, WORTH_BYTES = 4 * 1024, 16 * 1024
"""Size of the very first chunk, and the least size of a segment that has one. The time until the next chunk
arrives measures the link."""


class Note(Protocol):
    """Takes the bytes of an entry."""

    def __call__(self, *, stored: int, sent: int) -> None:
        """Take them."""


def message(*, floor: Floor | None = None, part: Bytes | None = None, entry: Entry | None = None) -> RelayMessage:
    """Return a message that is sent now."""
    return RelayMessage(sent=time.monotonic(), floor=floor, part=part, entry=entry)


class EntrySender:
    """The sending end of one stream; ``expands``: whether the receiver can read expanded segments (``Bytes``).

    ``note``: called with the stored and the sent bytes of each entry that is sent from its beginning on.
    """

    def __init__(self, *, expands: bool, note: Note = lambda *, stored, sent: None) -> None:
        self._expands = expands
        self._note = note
        self._compressor: LinkCompressor | None = None

    def send(self, log: FileLog, entry: Entry, begin: Begin) -> Iterator[RelayMessage]:
        """Yield the bytes of an entry's segments from a position on, the last ones with the entry.

        It counts at the receiver once all have arrived.
        """
        possible = self._expandable(log, entry)
        if any(not possible.get(piece, True) for piece in begin.expanded):
            begin = Begin()  # this version cannot go on with the form of the bytes that the receiver has
        # A segment of which the receiver has stored bytes, from an older version, goes on so.
        forms = {p: able and (p in begin.expanded or not begin.holds(p)) for p, able in possible.items()}
        held: Bytes | None = None
        sent = 0
        segments = list(entry.segments)
        for piece, expanded in forms.items():
            segment = segments[piece]
            if (piece < begin.piece and not expanded) or (source := log.open_published(segment)) is None:
                continue
            with source:
                offset = begin.offset if piece == begin.piece else 0
                if expanded:
                    counted = _Counted(uncompressed_blocks(source))
                    chunks = _chunks(counted, _sizes(segment.bytes), offset)
                else:
                    left = source.seek(0, os.SEEK_END) - source.seek(offset)
                    chunks = _read(source, _sizes(left))
                for chunk in chunks:
                    if piece >= begin.piece:
                        if held is not None:
                            yield message(part=held)
                        held = self._part(piece, offset, chunk, segment.level if expanded else None)
                        offset += len(chunk)
                        sent += len(held.data)
                if expanded:
                    segments[piece] = replace(segment, bytes=counted.bytes, crc32=counted.crc32)
        if begin == Begin():
            self._note(stored=entry.bytes, sent=sent)
        yield message(part=held, entry=replace(entry, segments=tuple(segments)))

    def _expandable(self, log: FileLog, entry: Entry) -> dict[int, bool]:
        """Return whether each segment can be sent expanded: one of blocks that is whole. Lost ones are missing.

        All others are sent as they are stored, so that readers find damaged ones damaged.
        """
        found = {}
        for piece, segment in enumerate(entry.segments):
            if (source := log.open_published(segment)) is None:
                continue
            with source:
                found[piece] = self._expands and segment.level in LEVELS and _has_blocks(source, segment)
        return found

    def _part(self, piece: int, offset: int, chunk: bytes, level: int | None) -> Bytes:
        if level is None:
            return Bytes(piece, offset, chunk)
        begins = self._compressor is None or self._compressor.level != level
        if self._compressor is None or begins:
            self._compressor = LinkCompressor(level)
        return Bytes(piece, offset, self._compressor.compress(chunk), expanded=True, begins=begins)


def _has_blocks(source: BinaryIO, segment: Segment) -> bool:
    """Return whether a file is a whole segment of blocks."""
    if not is_whole(source, segment):
        return False
    source.seek(0)
    try:
        return all(len(piece) for piece in uncompressed_blocks(source))
    except MalformedBytes:  # another zone has said that it has blocks
        return False


class _Counted:
    """Pieces of bytes, counted and checksummed while they pass."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self.bytes = self.crc32 = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.bytes += len(piece)
            self.crc32 = zlib.crc32(piece, self.crc32)
            yield piece


def _chunks(pieces: Iterable[bytes], sizes: Iterator[int], skip: int) -> Iterator[bytes]:
    """Yield the bytes of pieces in chunks of given sizes, without the first ``skip`` ones."""
    waiting, size = bytearray(), next(sizes)
    for piece in pieces:
        waiting += piece[skip:]
        skip = max(0, skip - len(piece))
        while len(waiting) >= size:
            yield bytes(waiting[:size])
            del waiting[:size]
            size = next(sizes)
    if waiting:
        yield bytes(waiting)


def _read(source: BinaryIO, sizes: Iterator[int]) -> Iterator[bytes]:
    while data := source.read(next(sizes)):
        yield data


def _sizes(left: int) -> Iterator[int]:
    """Yield the sizes of chunks: small ones first, to measure a slow link soon, then large ones."""
    if left > WORTH_BYTES:
        yield FIRST_BYTES
    yield from itertools.repeat(SMALL_BYTES, SMALL_CHUNKS)
    yield from itertools.repeat(CHUNK_BYTES)
