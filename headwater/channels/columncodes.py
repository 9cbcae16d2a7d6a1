"""The values of one column as bytes, by the encoding that is smallest for them after compression.

Integers, dates and times: as they are, as differences, as differences of differences, or as numbers in a sorted list of
the distinct ones. Floating-point numbers: their bits, as integers; the bits XOR those of the value before; or, where
nearly all values are decimal fractions, the integers of which they are the quotients by a power of ten (Afroozeh,
Kuffo, Boncz: "ALP: Adaptive Lossless floating-Point Compression", SIGMOD 2024, section 3.1). Text: lengths and bytes,
or numbers in a list of the distinct ones. Values come back bit by bit, -0.0 and the bits of NaN included.

The encoding is chosen by the compressed size of a run of values, for each column and block. A reader finds the number
of an encoding, its place in the list of the writer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headwater.channels.bytestream import ByteReader, ByteWriter, MalformedBytes, read_uints, write_uints

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from headwater.channels.bytestream import UInts

    Array = np.ndarray[Any, Any]

SAMPLE = 4096
"""Values whose compressed size decides on the encoding: a run from the middle, since differences need neighbours."""
_LEAST_SHARE = 0.5  # of distinct values, above which a list of them is not tried
_MOST_DIGITS = 9  # behind the point of decimal fractions
_MOST_EXCEPTIONS = 0.1  # share of values that are no such fractions
_MOST_WHOLE = float(1 << 52)  # whole numbers that doubles hold exactly
_PROBE_LEVEL = 1  # of zstd

_Encoder = Callable[[ByteWriter, Any], bool]
"""Writes values; returns False if it does not suit them. The first of a list suits all."""


def cost(data: bytes | bytearray) -> int:
    """Return the compressed size of some bytes."""
    import pyarrow as pa

    return min(len(data), pa.Codec("zstd", _PROBE_LEVEL).compress(bytes(data)).size) if data else 0


def _write_smallest(out: ByteWriter, values: Any, encoders: Sequence[_Encoder]) -> None:
    """Write the number of the best encoding, then the values with it."""
    first = max(0, (len(values) - SAMPLE) // 2)
    run = values[first : first + SAMPLE]
    found: dict[int, ByteWriter] = {}
    for code, encode in enumerate(encoders):
        trial = ByteWriter()
        if encode(trial, run):
            found[code] = trial
    best = min(found, key=lambda code: cost(found[code].data))
    if len(values) > SAMPLE:
        found = {best: ByteWriter()}
        if not encoders[best](found[best], values):
            best, found = 0, {0: ByteWriter()}
            encoders[0](found[0], values)
    out.data.append(best)
    out.data += found[best].data


# ------------------------------------------------------------ integers


def write_ints(out: ByteWriter, values: Array) -> None:
    """Write signed integers of 64 bits."""
    _write_smallest(out, values, (_plain_ints, _differences, _second_differences, _listed_ints))


def _plain_ints(out: ByteWriter, values: Array) -> bool:
    write_uints(out, _zigzag(values), cost)
    return True


def _differences(out: ByteWriter, values: Array) -> bool:
    return len(values) > 1 and _write_deltas(out, values, 1)


def _second_differences(out: ByteWriter, values: Array) -> bool:
    return len(values) > 2 and _write_deltas(out, values, 2)


def _listed_ints(out: ByteWriter, values: Array) -> bool:
    import numpy as np

    distinct = np.unique(values)
    if not len(distinct) or len(distinct) > _LEAST_SHARE * len(values):
        return False
    out.number(len(distinct))
    _write_deltas(out, distinct, 1)
    write_uints(out, np.searchsorted(distinct, values).astype("<u8"), cost)
    return True


def _write_deltas(out: ByteWriter, values: Array, order: int) -> bool:
    """Write differences, after the first values of each order; their arithmetic is that modulo 2^64."""
    import numpy as np

    rest = values.view("<u8")
    for _ in range(order):
        out.number(int(_zigzag(rest[:1].view("<i8"))[0]))
        rest = np.diff(rest)
    write_uints(out, _zigzag(rest.view("<i8")), cost)
    return True


def _read_deltas(of: ByteReader, count: int, order: int) -> Array:
    import numpy as np

    if count < order:
        raise MalformedBytes("differences without values")
    firsts = [of.number() for _ in range(order)]
    if any(first >= 1 << 64 for first in firsts):
        raise MalformedBytes("an integer of more than 64 bits")
    rest = _unzigzag(read_uints(of, count - order)).view("<u8")
    for first in reversed(firsts):
        start = _unzigzag(np.array([first], dtype="<u8")).view("<u8")
        rest = np.cumsum(np.concatenate((start, rest)), dtype="<u8")
    return rest.view("<i8")


def _zigzag(values: Array) -> UInts:
    """Return integers as unsigned ones, small for values near 0."""
    return ((values << 1) ^ (values >> 63)).view("<u8")


def _unzigzag(values: UInts) -> Array:
    import numpy as np

    return ((values >> np.uint64(1)) ^ (np.uint64(0) - (values & np.uint64(1)))).view("<i8")


def read_ints(of: ByteReader, count: int) -> Array:
    """Read signed integers of 64 bits."""
    match of.take(1)[0]:
        case 0:
            return _unzigzag(read_uints(of, count))
        case 1:
            return _read_deltas(of, count, 1)
        case 2:
            return _read_deltas(of, count, 2)
        case 3:
            distinct = _read_deltas(of, of.size(), 1)
            return distinct[_within(read_uints(of, count), len(distinct))]
        case code:
            raise MalformedBytes(f"encoding {code} of integers")


def _within(places: UInts, count: int) -> Array:
    if len(places) and int(places.max()) >= count:
        raise MalformedBytes("a number outside its list")
    return places.astype("<i8")


# ------------------------------------------------------------ floating-point numbers


def write_floats(out: ByteWriter, values: Array) -> None:
    """Write floating-point numbers of 32 or 64 bits."""
    _write_smallest(out, values, (_plain_floats, _changed_bits, _decimals))


def _bits(values: Array) -> UInts:
    return values.view(f"<u{values.dtype.itemsize}").astype("<u8")


def _plain_floats(out: ByteWriter, values: Array) -> bool:
    write_ints(out, _bits(values).view("<i8"))
    return True


def _changed_bits(out: ByteWriter, values: Array) -> bool:
    import numpy as np

    bits = _bits(values)
    write_uints(out, np.concatenate((bits[:1], bits[1:] ^ bits[:-1])), cost)
    return True


def _decimals(out: ByteWriter, values: Array) -> bool:
    import numpy as np

    for digits in range(_MOST_DIGITS + 1):
        whole, wrong = _whole(values, digits)
        if len(wrong) <= _MOST_EXCEPTIONS * len(values):
            break
    else:
        return False
    out.data.append(digits)
    out.number(len(wrong))
    write_uints(out, wrong.astype("<u8"), cost)
    write_uints(out, _bits(values)[wrong], cost)
    write_ints(out, np.delete(whole, wrong))
    return True


def _whole(values: Array, digits: int) -> tuple[Array, Array]:
    """Return the nearest whole numbers, and the positions where their quotient is another number."""
    import numpy as np

    with np.errstate(all="ignore"):
        whole = np.rint(values.astype("<f8") * 10.0**digits)
        whole = np.where(np.abs(whole) < _MOST_WHOLE, whole, 0.0).astype("<i8")
        back = (whole / 10.0**digits).astype(values.dtype)
    return whole, np.flatnonzero(_bits(back) != _bits(values))


def read_floats(of: ByteReader, count: int, size: int) -> Array:
    """Read floating-point numbers of ``size`` bytes."""
    import numpy as np

    match of.take(1)[0]:
        case 0:
            bits = read_ints(of, count).view("<u8")
        case 1:
            bits = np.bitwise_xor.accumulate(read_uints(of, count)) if count else np.zeros(0, dtype="<u8")
        case 2:
            digits, exceptions = of.take(1)[0], of.size()
            if digits > _MOST_DIGITS or exceptions > count:
                raise MalformedBytes(f"{digits} digits, {exceptions} exceptions")
            wrong = _within(read_uints(of, exceptions), count)
            odd = read_uints(of, exceptions)
            right = np.ones(count, dtype=bool)
            right[wrong] = False
            if int(right.sum()) != count - exceptions:
                raise MalformedBytes("an exception is there twice")
            values = (read_ints(of, count - exceptions) / 10.0**digits).astype(f"<f{size}")
            bits = np.zeros(count, dtype="<u8")
            bits[right] = _bits(values)
            bits[wrong] = odd
        case code:
            raise MalformedBytes(f"encoding {code} of floating-point numbers")
    return bits.astype(f"<u{size}").view(f"<f{size}")


# ------------------------------------------------------------ text and binaries


def write_words(out: ByteWriter, values: pa.Array) -> None:
    """Write an array of strings or binaries without NULLs."""
    _write_smallest(out, values, (_plain_words, _listed_words))


def _listed_words(out: ByteWriter, values: pa.Array) -> bool:
    import numpy as np

    encoded = values.dictionary_encode()
    if not len(values) or len(encoded.dictionary) > _LEAST_SHARE * len(values):
        return False
    out.number(len(encoded.dictionary))
    _plain_words(out, encoded.dictionary)
    write_ints(out, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64))
    return True


def _plain_words(out: ByteWriter, values: pa.Array) -> bool:
    import numpy as np

    if len(values):
        offsets = np.frombuffer(values.buffers()[1], dtype="<i4")[values.offset : values.offset + len(values) + 1]
        write_ints(out, np.diff(offsets).astype("<i8"))
        data = values.buffers()[2]
        out.bytes(b"" if data is None else memoryview(data)[int(offsets[0]) : int(offsets[-1])])
    return True


def read_words(of: ByteReader, count: int, kind: pa.DataType) -> pa.Array:
    """Read an array of strings or binaries."""
    import pyarrow as pa

    match of.take(1)[0]:
        case 0:
            return _read_plain_words(of, count, kind)
        case 1:
            words = _read_plain_words(of, of.size(), kind)
            return words.take(pa.array(_within(read_ints(of, count).view("<u8"), len(words))))
        case code:
            raise MalformedBytes(f"encoding {code} of texts")


def _read_plain_words(of: ByteReader, count: int, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if not count:
        return pa.array([], kind)
    ends = read_offsets(of, count)
    data = of.bytes()
    if int(ends[-1]) != len(data):
        raise MalformedBytes("the lengths of texts are not those of their bytes")
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(bytes(data))]
    return pa.Array.from_buffers(kind, count, buffers)


def read_offsets(of: ByteReader, count: int) -> Array:
    """Read lengths, and return the offsets of 32 bits that they give."""
    import numpy as np

    lengths = read_ints(of, count)
    if len(lengths) and (int(lengths.min()) < 0 or float(lengths.sum(dtype="f8")) > np.iinfo("<i4").max):
        raise MalformedBytes("lengths of texts or arrays")
    return np.concatenate((np.zeros(1, dtype="<i4"), np.cumsum(lengths).astype("<i4")))
