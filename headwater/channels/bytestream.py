"""Bytes written and read in sequence: numbers of variable length, and unsigned integers in as few bytes as they need.

Unsigned integers are stored as differences from their least value, either *split* (the lowest bytes of all values, then
the next ones, as Parquet's BYTE_STREAM_SPLIT does) or *packed* (as many bits for each value as the greatest needs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headwater.core.errors import ChannelError

if TYPE_CHECKING:
    import numpy as np

    Buffer = bytes | bytearray | memoryview
    UInts = np.ndarray[Any, np.dtype[np.uint64]]

MOST_VALUES = 1 << 28
MOST_BYTES = (1 << 31) - 1
"""Numbers of values and of bytes above which a stored number is taken for a damaged one."""
_SPLIT, _PACKED = 0, 1


class MalformedBytes(ChannelError):
    """Bytes that do not have the form of an encoded block."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"not an encoded block: {what}",
            where="channel",
            hint="the file is damaged, or a newer version of Headwater has written it: use the same version everywhere",
        )


class ByteWriter:
    """Bytes in sequence."""

    def __init__(self) -> None:
        self.data = bytearray()

    def number(self, value: int) -> None:
        """Write a number of 0 or more, 7 bits in each byte."""
        while value > 127:
            self.data.append(value & 127 | 128)
            value >>= 7
        self.data.append(value)

    def bytes(self, value: Buffer) -> None:
        """Write bytes after their number."""
        self.number(len(value))
        self.data += value

    def text(self, value: str) -> None:
        """Write a text."""
        self.bytes(value.encode())


class ByteReader:
    """Read what a ``ByteWriter`` has written; raise MalformedBytes where that is not possible."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data).cast("B")  # Arrow's buffers have signed bytes
        self._at = 0

    def number(self) -> int:
        """Read a number."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise MalformedBytes("a number is too long")

    def size(self, most: int = MOST_VALUES) -> int:
        """Read the number of values or bytes of something in memory."""
        if (found := self.number()) > most:
            raise MalformedBytes(f"{found} values or bytes")
        return found

    def take(self, count: int) -> memoryview:
        """Read some bytes."""
        end = self._at + count
        if end > len(self._data):
            raise MalformedBytes("it ends too early")
        found, self._at = self._data[self._at : end], end
        return found

    def bytes(self) -> memoryview:
        """Read bytes after their number."""
        return self.take(self.size(MOST_BYTES))

    def text(self) -> str:
        """Read a text."""
        try:
            return str(self.bytes(), "utf-8")
        except UnicodeDecodeError:
            raise MalformedBytes("a name is not UTF-8") from None

    @property
    def at_end(self) -> bool:
        """Whether all bytes were read."""
        return self._at == len(self._data)


def write_uints(out: ByteWriter, values: UInts, cost: Callable[[bytes], int]) -> None:
    """Write unsigned integers in the layout with the least ``cost``; their number is not written."""
    import numpy as np

    if not len(values):
        return
    least = values.min()
    rest = values - least
    bits = int(rest.max()).bit_length()
    out.number(int(least))
    out.data.append(bits)
    if not bits:
        return
    width = -(-bits // 8)
    cut = rest.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)[:, :width]
    split = np.ascontiguousarray(cut.T).tobytes()
    layout, data = _SPLIT, split
    if bits % 8:
        packed = _packed(cut, bits)
        if cost(packed) < cost(split):
            layout, data = _PACKED, packed
    out.data.append(layout)
    out.data += data


def _packed(cut: np.ndarray[Any, Any], bits: int) -> bytes:
    import numpy as np

    each = np.unpackbits(cut, axis=1, bitorder="little")[:, :bits]
    return np.packbits(each, bitorder="little").tobytes()


def read_uints(of: ByteReader, count: int) -> UInts:
    """Read unsigned integers; their number is known."""
    import numpy as np

    if not count:
        return np.zeros(0, dtype="<u8")
    least, bits = of.number(), of.take(1)[0]
    if bits > 64 or least >= 1 << 64:
        raise MalformedBytes(f"integers of {bits} bits from {least} on")
    found = np.full(count, np.uint64(least), dtype="<u8")
    if not bits:
        return found
    width = -(-bits // 8)
    wide = np.zeros((count, 8), dtype=np.uint8)
    match of.take(1)[0]:
        case 0:
            wide[:, :width] = np.frombuffer(of.take(count * width), dtype=np.uint8).reshape(width, count).T
        case 1:
            raw = np.frombuffer(of.take(-(-count * bits // 8)), dtype=np.uint8)
            each = np.unpackbits(raw, count=count * bits, bitorder="little").reshape(count, bits)
            wide[:, :width] = np.packbits(each, axis=1, bitorder="little")
        case layout:
            raise MalformedBytes(f"layout {layout}")
    found += wide.reshape(-1).view("<u8")
    return found
