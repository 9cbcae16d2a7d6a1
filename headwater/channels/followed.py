"""Messages of a followed log, in few bytes: an idle channel sends one each second, and a busy one one for each entry.

A message is the metadata of a record batch without columns: Arrow would describe columns in some hundred bytes. Entries
are JSON, compressed with a sample of an entry as a dictionary, so that the names of their fields cost nothing.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headwater.channels.bytestream import ByteReader, ByteWriter, MalformedBytes
from headwater.channels.entry import Entry, Floor
from headwater.channels.segments import Segment
from headwater.core.compatible import known

_HEAD = struct.Struct("<dB")
_FLOOR, _BYTES, _ENTRY, _EXPANDED, _BEGINS, _KNOWN = 1, 2, 4, 8, 16, 32
_MOST = 64 * 2**20
"""Bytes of an entry above which its message is taken for a damaged one."""


@dataclass(frozen=True)
class Begin:
    """The position in an entry from which a stream begins: a segment, and a byte of it.

    ``expanded``: the segments up to this one of which the receiver has bytes in that form (``Bytes``).
    """

    piece: int = 0
    offset: int = 0
    expanded: frozenset[int] = frozenset()

    def holds(self, piece: int) -> bool:
        """Return whether the receiver has bytes of a segment."""
        return piece < self.piece or (piece == self.piece and self.offset > 0)

    def to_request(self) -> dict[str, Any]:
        """Return the fields of a request."""
        return {"piece": self.piece, "offset": self.offset, "expanded": sorted(self.expanded)}

    @classmethod
    def from_request(cls, body: Mapping[str, Any]) -> Begin:
        """Read the fields of a request, which may lack them."""
        expanded = frozenset(int(piece) for piece in body.get("expanded", ()))
        return cls(int(body.get("piece", 0)), int(body.get("offset", 0)), expanded)


@dataclass(frozen=True)
class Bytes:
    """A part of an entry's segment.

    ``expanded``: of the segment with columns that are not compressed (``linkstream.uncompressed_blocks``), which
    ``offset`` counts; a message holds such a part in the form of a ``LinkCompressor``, a new one where it ``begins``:
    it may repeat the last bytes before it (``streamhistory``). ``known``: the number of these bytes where a short
    stream begins; None of an older sender.
    """

    piece: int
    offset: int
    data: memoryview | bytes
    expanded: bool = False
    begins: bool = False
    known: int | None = None
    compressed: int | None = None
    """The bytes that crossed the link for a part that was decompressed."""

    @property
    def link_bytes(self) -> int:
        """The bytes that cross the link."""
        return len(self.data) if self.compressed is None else self.compressed


@dataclass(frozen=True, kw_only=True)
class RelayMessage:
    """A new floor, bytes of a segment, or an entry, in this order; nothing of them is a keep-alive.

    ``sent``: seconds of the sender's monotonic clock.
    """

    sent: float
    floor: Floor | None = None
    part: Bytes | None = None
    entry: Entry | None = None

    @property
    def items(self) -> tuple[Floor | Bytes | Entry | None, ...]:
        """The content in order; None for a keep-alive."""
        found = tuple(item for item in (self.floor, self.part, self.entry) if item is not None)
        return found or (None,)

    def to_bytes(self) -> bytes:
        """Return the bytes to send."""
        kinds = zip((_FLOOR, _BYTES, _ENTRY), (self.floor, self.part, self.entry), strict=True)
        out = ByteWriter()
        flags = sum(kind for kind, item in kinds if item is not None)
        if self.part is not None:
            flags += _EXPANDED * self.part.expanded + _BEGINS * self.part.begins
            flags += _KNOWN * (self.part.known is not None)
        out.data += _HEAD.pack(self.sent, flags)
        if self.floor is not None:
            out.bytes(_squeezed(asdict(self.floor)))
        if self.entry is not None:
            out.bytes(_squeezed(self.entry.to_record()))
        if self.part is not None:
            out.number(self.part.piece)
            out.number(self.part.offset)
            if self.part.known is not None:
                out.number(self.part.known)
            out.bytes(self.part.data)
        return bytes(out.data)

    @classmethod
    def from_bytes(cls, data: memoryview | bytes) -> RelayMessage:
        """Read a message; raise MalformedBytes where that is not possible."""
        of = ByteReader(data)
        sent, kinds = _HEAD.unpack(of.take(_HEAD.size))
        try:
            floor = Floor(**known(Floor, _parsed(of.bytes()))) if kinds & _FLOOR else None
            entry = Entry.from_record(_parsed(of.bytes())) if kinds & _ENTRY else None
        except (ValueError, TypeError, KeyError, zlib.error) as error:
            raise MalformedBytes(f"{error}") from None
        part = None
        if kinds & _BYTES:
            piece, offset, known_bytes = of.number(), of.number(), of.size() if kinds & _KNOWN else None
            part = Bytes(piece, offset, of.bytes(), bool(kinds & _EXPANDED), bool(kinds & _BEGINS), known_bytes)
        if not of.at_end:
            raise MalformedBytes("bytes behind a message")
        return cls(sent=sent, floor=floor, part=part, entry=entry)


def _json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()


def _squeezed(record: Mapping[str, Any]) -> bytes:
    packer = zlib.compressobj(9, wbits=-15, zdict=_SAMPLE)
    return packer.compress(_json(record)) + packer.flush()


def _parsed(data: memoryview) -> dict[str, Any]:
    unpacker = zlib.decompressobj(wbits=-15, zdict=_SAMPLE)
    text = unpacker.decompress(data, _MOST)
    if not unpacker.eof:
        raise MalformedBytes("an entry without its end")
    found = json.loads(text)
    if not isinstance(found, dict):
        raise MalformedBytes("not an entry")
    return found


_SAMPLE = _json(asdict(Floor())) + _json(
    Entry(
        seq=1,
        epoch=1,
        batch=1,
        segments=(Segment(file="0123456789abcdef.arrow", rows=1, bytes=1, crc32=1, frontier=1_700_000_000_000_000),),
        rows=1,
        high=1_700_000_000_000_000,
        written=1_700_000_000.0,
        lineage="0123456789abcdef",
        ingested=(1_700_000_000.0, 1_700_000_000.0),
    ).to_record()
)
"""The dictionary: both sides need the same, so a change of it is a change of the protocol."""
