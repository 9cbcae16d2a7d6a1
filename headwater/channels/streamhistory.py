"""Histories of compressed streams: the next stream of a log to the same receiver goes on with what this one has sent.

A stream ends after a while, or with its link. The request for the next stream names the stream before, with the number
of its compressed parts that have arrived. Both ends know the content of these parts, and the next stream may repeat the
last bytes of it. The history is empty where the sender no longer has these bytes. A stream without one before it, the
first or the first after an end was restarted, may repeat the description of the channel's columns, if both ends have
the same (``linkstream.description``).
"""

from __future__ import annotations

import secrets
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from headwater.channels.bytestream import MalformedBytes
from headwater.channels.linkcompression import LinkCompressor, LinkDecompressor

if TYPE_CHECKING:
    from headwater.channels.followed import Bytes

REPEATABLE = 256 * 1024
"""Number of bytes that a stream may repeat of those before it."""
SENT = 2**20
"""Number of bytes that a sender keeps: the last ones may not have arrived."""
KEPT, KEPT_SECONDS = 16, 600.0
"""Number of ended streams whose bytes a sender keeps, and the seconds for which it does."""


@dataclass(frozen=True)
class Continuation:
    """The name of a stream, and the stream before it, of which so many compressed parts have arrived.

    ``described``: the checksum of the columns' description, 0 where the receiver has none; None of an older receiver,
    which cannot read short streams (``linkcompression``).
    """

    stream: str = ""
    after: str = ""
    parts: int = 0
    described: int | None = None

    def to_request(self) -> dict[str, Any]:
        """Return the fields of a request."""
        return asdict(self)

    @classmethod
    def from_request(cls, body: Mapping[str, Any]) -> Continuation:
        """Read the fields of a request, which may lack them."""
        described = body.get("described")
        return cls(
            str(body.get("stream", "")),
            str(body.get("after", "")),
            int(body.get("parts", 0)),
            None if described is None else int(described),
        )


class ReceivedHistory:
    """The receiving end: the last bytes that the streams of a log have brought.

    ``description``: of the channel's columns, as far as it is known.
    """

    def __init__(self, description: bytes = b"") -> None:
        self._description = description
        self._stream = ""
        self._parts = 0
        self._text = bytearray()
        self._decompressor: LinkDecompressor | None = None
        self.accepted = True
        """Whether all messages were taken: an error about one of them may be due to this history."""

    def next_stream(self) -> Continuation:
        """Name the next stream, which is to go on where this one ended."""
        after = self._stream if self.accepted else ""
        if not after:
            self._text[:] = self._description
        asked = Continuation(secrets.token_hex(8), after, self._parts, zlib.crc32(self._description))
        self._stream, self._parts, self.accepted = asked.stream, 0, True
        return asked

    def decompressed(self, part: Bytes) -> Bytes:
        """Return a part as it was; raise MalformedBytes where that is not possible."""
        if part.known is not None:
            if part.known > len(self._text):
                raise MalformedBytes(f"it may repeat {part.known} bytes, of which {len(self._text)} are known here")
            self._decompressor = LinkDecompressor(bytes(self._text[len(self._text) - part.known :]), short=True)
        elif part.begins or self._decompressor is None:
            # More than an older sender refers to does no harm: references count from the end.
            self._decompressor = LinkDecompressor(bytes(self._text))
        self._parts += 1
        data = self._decompressor.decompress(part.data)
        self._text += data
        del self._text[:-REPEATABLE]
        return replace(part, data=data, compressed=len(part.data))


class SentHistory:
    """The sending end of one stream, which the receiver has ``asked`` for; ``text``: what both ends know before it.

    An older receiver names no stream, and can go on with nothing.
    """

    def __init__(self, text: bytes = b"", asked: Continuation = Continuation()) -> None:
        self._lock = threading.Lock()
        self._most = SENT if asked.stream else 0
        self._short = asked.described is not None
        self._text = bytearray(text)
        self._dropped = 0
        """Number of bytes that are no longer in the text."""
        self._ends = [len(text)]
        """Where the text before the stream ended, and each of its parts; in bytes since the text's beginning."""
        self._compressor: LinkCompressor | None = None
        self.ended: float | None = None
        """When the stream ended; None while it is open."""

    def compress(self, part: bytes, level: int) -> tuple[bytes, bool, int | None]:
        """Return a part as it is sent, and whether a compressor begins with it.

        Also return the number of bytes before it that it may repeat, if a short stream begins.
        """
        known = None
        with self._lock:
            begins = self._compressor is None or self._compressor.level != level
            if self._compressor is None or begins:
                before = bytes(self._text[-REPEATABLE:])
                known = len(before) if self._short else None
                self._compressor = LinkCompressor(level, before, short=self._short)
            self._text += part
            self._ends.append(self._ends[-1] + len(part))
            if (surplus := len(self._text) - self._most) > 0:
                del self._text[:surplus]
                self._dropped += surplus
            return self._compressor.compress(part), begins, known

    def up_to(self, parts: int) -> bytes | None:
        """Return the bytes that the next stream may repeat if so many parts have arrived; None if they are gone."""
        with self._lock:
            if not 0 <= parts < len(self._ends):
                return None
            end = self._ends[parts]
            if (begin := max(0, end - REPEATABLE)) < self._dropped:
                return None
            return bytes(self._text[begin - self._dropped : end - self._dropped])

    def close(self) -> None:
        """End the stream; its bytes are kept."""
        with self._lock:
            self._compressor, self.ended = None, time.monotonic()


class SentHistories:
    """The histories of open streams, and of some that have ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._histories: dict[tuple[str, str], SentHistory] = {}

    def begin(self, log: str, asked: Continuation, description: bytes = b"") -> SentHistory:
        """Return the history of a new stream, which goes on with that of the stream before if both ends can.

        ``description``: of the log's columns.
        """
        with self._lock:
            self._drop()
            before = self._histories.pop((log, asked.after), None)
            text = None if before is None else before.up_to(asked.parts)
            if not asked.after and asked.described == zlib.crc32(description):
                text = description
            found = SentHistory(text or b"", asked)
            self._histories[log, asked.stream] = found
            return found

    def end(self, log: str, asked: Continuation, history: SentHistory) -> None:
        """Keep the history of a stream that ends, unless the next one has begun."""
        history.close()
        with self._lock:
            if self._histories.pop((log, asked.stream), None) is not None:
                self._histories[log, asked.stream] = history  # the last one to end is the last one to be dropped
            self._drop()

    def _drop(self) -> None:
        """Drop the histories of streams that ended long ago, or before many others."""
        ended = [(key, one.ended) for key, one in self._histories.items() if one.ended is not None]
        for place, (key, at) in enumerate(reversed(ended)):
            if place >= KEPT or at < time.monotonic() - KEPT_SECONDS:
                del self._histories[key]
