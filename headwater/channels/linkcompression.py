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
_FED = 1024  # compressed bytes at a time: they give 32 MiB at most


class LinkCompressor:
    """Compress the parts of a stream in order; ``level`` is that of zstd.

    ``before``: bytes that parts may repeat, as if they had been sent before them.
    """

    def __init__(self, level: int, before: bytes = b"") -> None:
        import zstandard

        self.level = level
        usual = zstandard.ZstdCompressionParameters.from_level(level, window_log=HISTORY_LOG)
        parameters = zstandard.ZstdCompressionParameters.from_level(
            level,
            window_log=HISTORY_LOG,
            hash_log=min(usual.hash_log, _HASH_LOG),
            chain_log=min(usual.chain_log, _CHAIN_LOG),
        )
        self._stream = zstandard.ZstdCompressor(
            compression_params=parameters, dict_data=_dictionary(before)
        ).compressobj()
        self._flush = zstandard.COMPRESSOBJ_FLUSH_BLOCK

    def compress(self, part: Buffer) -> bytes:
        """Return a part as it is sent: whole, so that the other end can read it at once."""
        return self._stream.compress(part) + self._stream.flush(self._flush)


class LinkDecompressor:
    """Read the parts of a stream that a ``LinkCompressor`` has compressed, in the same order; ``before``: its bytes."""

    def __init__(self, before: bytes = b"") -> None:
        import zstandard

        self._stream = zstandard.ZstdDecompressor(
            dict_data=_dictionary(before), max_window_size=1 << HISTORY_LOG
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


def _dictionary(before: bytes) -> zstandard.ZstdCompressionDict | None:
    import zstandard

    raw = zstandard.DICT_TYPE_RAWCONTENT
    return zstandard.ZstdCompressionDict(before, dict_type=raw) if before else None
