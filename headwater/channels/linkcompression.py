"""Compression of a stream that crosses a link: each part may repeat any of the last MiB before it.

A block that is compressed by itself pays for the names and types of its columns and for each word again. One stream has
one history at both ends, and a part is sent as soon as it is there. Tables are smaller than those of zstd's own levels:
a compressor takes 5 MB instead of 85, a decompressor 1 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.channels.bytestream import MalformedBytes

if TYPE_CHECKING:
    import zstandard

    from headwater.channels.bytestream import Buffer

HISTORY_LOG = 20
"""Logarithm of the bytes that both ends remember."""
MOST_PART = 8 * 2**20
"""Bytes of an uncompressed part above which it is refused."""
_HASH_LOG, _CHAIN_LOG = 18, 19
LEAST_BEFORE = 256 * 1024
"""Number of bytes before a *short* stream, zeros first: zstd sizes its tables by them. With few bytes before it, a
stream would take up to twice as many bytes, to its end."""
_FED = 1024  # compressed bytes at a time: they give 32 MiB at most


class LinkCompressor:
    """Compress the parts of a stream in order; ``level`` is that of zstd.

    ``before``: bytes that parts may repeat, as if they had been sent before them. ``short``: the stream lacks the four
    bytes that name zstd's format, and the bytes before it are filled up (``LEAST_BEFORE``).
    """

    def __init__(self, level: int, before: bytes = b"", *, short: bool = False) -> None:
        import zstandard

        self.level = level
        usual = zstandard.ZstdCompressionParameters.from_level(level, window_log=HISTORY_LOG)
        parameters = zstandard.ZstdCompressionParameters.from_level(
            level,
            format=_format(short),
            window_log=HISTORY_LOG,
            hash_log=min(usual.hash_log, _HASH_LOG),
            chain_log=min(usual.chain_log, _CHAIN_LOG),
        )
        self._stream = zstandard.ZstdCompressor(
            compression_params=parameters, dict_data=_dictionary(before, short)
        ).compressobj()
        self._flush = zstandard.COMPRESSOBJ_FLUSH_BLOCK

    def compress(self, part: Buffer) -> bytes:
        """Return a part as it is sent: whole, so that the other end can read it at once."""
        return self._stream.compress(part) + self._stream.flush(self._flush)


class LinkDecompressor:
    """Read the parts of a stream that a ``LinkCompressor`` has compressed, in the same order.

    ``before``, ``short``: as there.
    """

    def __init__(self, before: bytes = b"", *, short: bool = False) -> None:
        import zstandard

        self._stream = zstandard.ZstdDecompressor(
            dict_data=_dictionary(before, short), max_window_size=1 << HISTORY_LOG, format=_format(short)
        ).decompressobj()

    def decompress(self, part: Buffer) -> bytes:
        """Return a part as it was; raise MalformedBytes where that is not possible."""
        import zstandard

        found = bytearray()
        part = memoryview(part)
        try:
            for first in range(0, len(part), _FED):
                found += self._stream.decompress(part[first : first + _FED])
                if len(found) > MOST_PART:
                    raise MalformedBytes(f"a part of more than {MOST_PART} bytes")
        except zstandard.ZstdError as error:
            raise MalformedBytes(str(error)) from None
        return bytes(found)


def _format(short: bool) -> int:
    import zstandard

    return zstandard.FORMAT_ZSTD1_MAGICLESS if short else zstandard.FORMAT_ZSTD1


def _dictionary(before: bytes, short: bool) -> zstandard.ZstdCompressionDict | None:
    import zstandard

    if not before:
        return None
    filled = bytes(max(0, LEAST_BEFORE - len(before))) + before if short else before
    return zstandard.ZstdCompressionDict(filled, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
