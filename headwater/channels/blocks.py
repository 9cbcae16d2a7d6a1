"""Rows as blocks of encoded columns: fewer bytes than Arrow's own format, above all for small batches.

A block is the names and types of its columns, in a few bytes each, and then the columns, each by the encoding that
suits it (``columncodes``), compressed together. Arrow's format costs some 200 bytes for each batch and as many for the
schema, and compresses each buffer by itself. Types are those that Spark gives, as ``normal_schema`` leaves them; rows
of any other type are stored in Arrow's format.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from headwater.channels import columncodes as codes
from headwater.channels.bytestream import ByteReader, ByteWriter, MalformedBytes, read_uints, write_uints

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.channels.bytestream import Buffer

_STORED, _ZSTD = 0, 1
_APART = 16 * 1024
"""Bytes of a column from which it is compressed by itself: its own statistics are worth their place."""
_DEEPEST = 40  # levels of nested types


class ColumnKind(IntEnum):
    """The ways to encode values. The numbers of those of types with parameters are part of the format."""

    INTS = 0
    FLOATS = 1
    WORDS = 2
    BITS = 3
    NOTHING = 4
    DECIMAL = 64
    STRUCT = 65
    LIST = 66
    MAP = 67


@cache
def _simple() -> dict[pa.DataType, ColumnKind]:
    """Return the coding of each type without parameters; their order is part of the format."""
    import pyarrow as pa

    ints = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    times = [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.duration("us")]
    return {
        **dict.fromkeys([*ints, *times], ColumnKind.INTS),
        **dict.fromkeys([pa.float32(), pa.float64()], ColumnKind.FLOATS),
        **dict.fromkeys([pa.string(), pa.binary()], ColumnKind.WORDS),
        pa.bool_(): ColumnKind.BITS,
        pa.null(): ColumnKind.NOTHING,
    }


@cache
def _numbers() -> dict[pa.DataType, int]:
    return {kind: number for number, kind in enumerate(_simple())}


def encodable(schema: pa.Schema) -> bool:
    """Return whether rows of a schema can be encoded, and come back with the same one."""
    writer = ByteWriter()
    try:
        _write_schema(writer, schema)
        same = _read_schema(ByteReader(writer.data)).equals(schema, check_metadata=True)
        return bool(same) and len(schema) > 0
    except (KeyError, MalformedBytes):
        return False


def encode_block(table: pa.Table, *, level: int) -> bytes:
    """Return the rows of a table as a block; ``level`` is that of zstd."""
    import pyarrow as pa

    head = ByteWriter()
    _write_schema(head, table.schema)
    head.number(table.num_rows)
    codec = pa.Codec("zstd", level)
    near = bytearray()
    far: list[bytes] = []
    for column in table.columns:
        one = ByteWriter()
        _write_column(one, _whole(column))
        if len(one.data) >= _APART:
            head.data.append(1)
            far.append(_compressed(codec, one.data))
        else:
            head.data.append(0)
            near += one.data
    return b"".join((_compressed(codec, head.data + near), *far))


def decode_block(data: Buffer) -> pa.RecordBatch:
    """Return the rows of a block; raise MalformedBytes if that is not possible."""
    import pyarrow as pa

    of = ByteReader(data)
    near = ByteReader(_decompressed(of))
    schema = _read_schema(near)
    rows = near.size()
    apart = list(near.take(len(schema)))
    columns = []
    try:
        for field, far in zip(schema, apart, strict=True):
            column = ByteReader(_decompressed(of)) if far else near
            columns.append(_read_column(column, field.type, rows))
            if far and not column.at_end:
                raise MalformedBytes("bytes behind a column")
        if not near.at_end or not of.at_end:
            raise MalformedBytes("bytes behind the last column")
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        batch.validate(full=True)
    except (ValueError, IndexError, OverflowError, pa.ArrowException) as error:
        raise MalformedBytes(str(error).splitlines()[0]) from None
    return batch


def uncompressed_block(data: Buffer) -> bytes:
    """Return a block with the same columns, none of them compressed; raise MalformedBytes if that is not possible."""
    of, out = ByteReader(data), ByteWriter()
    while not of.at_end:
        out.data.append(_STORED)
        out.bytes(_decompressed(of))
    return bytes(out.data)


def _compressed(codec: pa.Codec, data: bytearray) -> bytes:
    smaller = codec.compress(bytes(data), asbytes=True)
    out = ByteWriter()
    if len(smaller) < len(data):
        out.data.append(_ZSTD)
        out.number(len(data))
        out.bytes(smaller)
    else:
        out.data.append(_STORED)
        out.bytes(data)
    return bytes(out.data)


def _decompressed(of: ByteReader) -> bytes | memoryview:
    import pyarrow as pa

    match of.take(1)[0]:
        case 0:
            return of.bytes()
        case 1:
            size = of.size()
            try:
                found = pa.Codec("zstd").decompress(bytes(of.bytes()), size, asbytes=True)
            except (OSError, pa.ArrowException) as error:
                raise MalformedBytes(str(error).splitlines()[0]) from None
            if len(found) != size:
                raise MalformedBytes("it is shorter than it says")
            return bytes(found)
        case code:
            raise MalformedBytes(f"compression {code}")


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    import pyarrow as pa

    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


# ------------------------------------------------------------ types


def _write_schema(out: ByteWriter, schema: pa.Schema) -> None:
    out.number(len(schema))
    for field in schema:
        out.text(field.name)
        _write_type(out, field.type)


def _write_type(out: ByteWriter, kind: pa.DataType) -> None:
    import pyarrow as pa

    if pa.types.is_decimal128(kind):
        out.data += bytes([ColumnKind.DECIMAL, kind.precision, kind.scale & 255])
    elif pa.types.is_struct(kind):
        out.data.append(ColumnKind.STRUCT)
        out.number(kind.num_fields)
        for number in range(kind.num_fields):
            out.text(kind.field(number).name)
            _write_type(out, kind.field(number).type)
    elif pa.types.is_list(kind):
        out.data.append(ColumnKind.LIST)
        _write_type(out, kind.value_type)
    elif pa.types.is_map(kind):
        out.data.append(ColumnKind.MAP)
        _write_type(out, kind.key_type)
        _write_type(out, kind.item_type)
    else:
        out.data.append(_numbers()[kind])


def _read_schema(of: ByteReader) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(of.text(), _read_type(of)) for _ in range(of.size())])


def _read_type(of: ByteReader, depth: int = 0) -> pa.DataType:
    import pyarrow as pa

    if depth > _DEEPEST:
        raise MalformedBytes("types nested too deeply")
    number = of.take(1)[0]
    if number < len(_simple()):
        return list(_simple())[number]
    match number:
        case ColumnKind.DECIMAL:
            precision, scale = of.take(2)
            if not 1 <= precision <= 38:
                raise MalformedBytes(f"a decimal of {precision} digits")
            return pa.decimal128(precision, scale - 256 if scale > 127 else scale)
        case ColumnKind.STRUCT:
            return pa.struct([pa.field(of.text(), _read_type(of, depth + 1)) for _ in range(of.size())])
        case ColumnKind.LIST:
            return pa.list_(pa.field("element", _read_type(of, depth + 1)))
        case ColumnKind.MAP:
            return pa.map_(_read_type(of, depth + 1), _read_type(of, depth + 1))
        case _:
            raise MalformedBytes(f"type {number}")


# ------------------------------------------------------------ columns


def _write_column(out: ByteWriter, column: pa.Array) -> None:
    """Write the bits of the rows that are not NULL, if any is, and then the values of those."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_null(column.type):
        return
    out.data.append(1 if column.null_count else 0)
    if column.null_count:
        write_uints(out, column.is_valid().to_numpy(zero_copy_only=False).astype("<u8"), codes.cost)
        column = column.drop_null()
    kind = column.type
    if pa.types.is_decimal128(kind):
        _write_decimals(out, column)
    elif pa.types.is_struct(kind):
        for child in column.flatten():
            _write_column(out, child)
    elif pa.types.is_list(kind):
        codes.write_ints(out, column.value_lengths().to_numpy(zero_copy_only=False).astype("<i8"))
        _write_column(out, column.flatten())
    elif pa.types.is_map(kind):
        ends = column.offsets.to_numpy(zero_copy_only=False)
        codes.write_ints(out, np.diff(ends).astype("<i8"))
        first, count = int(ends[0]), int(ends[-1] - ends[0])
        _write_column(out, column.keys.slice(first, count))
        _write_column(out, column.items.slice(first, count))
    else:
        match _simple()[kind]:
            case ColumnKind.INTS:
                stored = column.view(_stored_int(kind))
                codes.write_ints(out, stored.to_numpy(zero_copy_only=False).astype("<i8"))
            case ColumnKind.FLOATS:
                codes.write_floats(out, column.to_numpy(zero_copy_only=False))
            case ColumnKind.WORDS:
                codes.write_words(out, column)
            case ColumnKind.BITS:
                write_uints(out, column.to_numpy(zero_copy_only=False).astype("<u8"), codes.cost)


def _stored_int(kind: pa.DataType) -> pa.DataType:
    """Return the integers of which a type's values consist."""
    import pyarrow as pa

    return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width]


def _read_column(of: ByteReader, kind: pa.DataType, rows: int) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    if pa.types.is_null(kind):
        return pa.nulls(rows)
    match of.take(1)[0]:
        case 0:
            return _read_values(of, kind, rows)
        case 1:
            valid = _read_bits(of, rows)
            places = np.cumsum(valid) - 1
            values = _read_values(of, kind, int(valid.sum()))
            if not len(values):
                return pa.nulls(rows, kind)
            return values.take(pa.array(places, mask=~valid))
        case code:
            raise MalformedBytes(f"column of kind {code}")


def _read_bits(of: ByteReader, rows: int) -> Any:
    bits = read_uints(of, rows)
    if len(bits) and int(bits.max()) > 1:
        raise MalformedBytes("a bit is neither 0 nor 1")
    return bits.astype(bool)


def _read_values(of: ByteReader, kind: pa.DataType, count: int) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_decimal128(kind):
        return _read_decimals(of, kind, count)
    if pa.types.is_struct(kind):
        children = [_read_column(of, kind.field(n).type, count) for n in range(kind.num_fields)]
        if not children:
            return pa.array([{}] * count, kind)
        return pa.StructArray.from_arrays(children, fields=[kind.field(n) for n in range(kind.num_fields)])
    if pa.types.is_list(kind):
        ends = codes.read_offsets(of, count)
        return pa.ListArray.from_arrays(pa.array(ends), _read_column(of, kind.value_type, int(ends[-1])), type=kind)
    if pa.types.is_map(kind):
        ends = codes.read_offsets(of, count)
        keys = _read_column(of, kind.key_type, int(ends[-1]))
        items = _read_column(of, kind.item_type, int(ends[-1]))
        return pa.MapArray.from_arrays(pa.array(ends), keys, items, type=kind)
    match _simple()[kind]:
        case ColumnKind.INTS:
            stored = _stored_int(kind)
            return pa.array(codes.read_ints(of, count)).cast(stored).view(kind)
        case ColumnKind.FLOATS:
            return pa.array(codes.read_floats(of, count, kind.bit_width // 8), from_pandas=False)
        case ColumnKind.WORDS:
            return codes.read_words(of, count, kind)
        case _:
            return pa.array(_read_bits(of, count))


def _write_decimals(out: ByteWriter, column: pa.Array) -> None:
    """Write decimals of 128 bits: as integers where the upper half is the sign of the lower one, else both halves."""
    import numpy as np

    words = np.frombuffer(column.buffers()[1] or b"", dtype="<i8")
    words = words[2 * column.offset : 2 * (column.offset + len(column))].reshape(-1, 2)
    low, high = np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])
    small = bool((high == low >> 63).all())
    out.data.append(0 if small else 1)
    codes.write_ints(out, low)
    if not small:
        codes.write_ints(out, high)


def _read_decimals(of: ByteReader, kind: pa.DataType, count: int) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    wide = of.take(1)[0]
    if wide > 1:
        raise MalformedBytes(f"decimals of kind {wide}")
    low = codes.read_ints(of, count)
    high = codes.read_ints(of, count) if wide else low >> 63
    words = np.ascontiguousarray(np.stack((low, high), axis=1))
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(words.tobytes())])
