"""Blocks of encoded columns: any rows come back equal, damage is refused, and the link decides on the effort."""

from __future__ import annotations

import datetime
import io
import math
import random
import struct
import zlib
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headwater.channels.blocks import decode_block, encodable, encode_block
from headwater.channels.bytestream import MalformedBytes
from headwater.channels.filelog import FileLog
from headwater.channels.linkstream import LEVELS, MAGIC, SMALL_ROWS, LinkStream, choose_level, read_blocks
from headwater.channels.log import Log
from headwater.channels.open import open_log
from headwater.channels.segments import FOR_LINK, CorruptSegment, Segment, SegmentWriter, decode_segment, normal_schema
from headwater.core.errors import ChannelError

MICROS = st.integers(-(2**62), 2**62)
INTS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
SIMPLE: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **{kind: st.integers(-(2**bits), 2**bits - 1) for kind, bits in INTS.items()},
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats() | st.decimals(-1000, 1000, places=2).map(float),
    pa.string(): st.text(max_size=8) | st.sampled_from(["pump", "fan", ""]),
    pa.binary(): st.binary(max_size=8),
    pa.date32(): st.integers(-(2**31), 2**31 - 1),
    pa.timestamp("us"): MICROS,
    pa.timestamp("us", tz="UTC"): MICROS,
    pa.duration("us"): MICROS,
    pa.decimal128(9, 2): st.decimals(-1000, 1000, places=2),
    pa.decimal128(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    pa.null(): st.none(),
}


def kinds(depth: int = 2) -> st.SearchStrategy[pa.DataType]:
    """Return types as ``normal_schema`` leaves them."""
    simple = st.sampled_from(list(SIMPLE))
    if not depth:
        return simple
    inner = kinds(depth - 1)
    return st.one_of(
        simple,
        simple,
        st.lists(inner, max_size=3).map(lambda found: pa.struct([(f"f{n}", k) for n, k in enumerate(found)])),
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        st.tuples(st.sampled_from([pa.string(), pa.int32()]), inner).map(lambda pair: pa.map_(*pair)),
    )


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Return values of a type, NULLs among them."""
    if pa.types.is_struct(kind):
        fields = [kind.field(n) for n in range(kind.num_fields)]
        return st.fixed_dictionaries({field.name: values(field.type) for field in fields}) | st.none()
    if pa.types.is_list(kind):
        return st.lists(values(kind.value_type), max_size=4) | st.none()
    if pa.types.is_map(kind):
        found = st.dictionaries(SIMPLE[kind.key_type], values(kind.item_type), max_size=3)
        return found.map(lambda pairs: list(pairs.items())) | st.none()
    return SIMPLE[kind] | st.none()


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Return tables of any types, as slices in several chunks."""
    columns = draw(st.lists(kinds(), min_size=1, max_size=4))
    rows = draw(st.integers(0, 30))
    arrays = [pa.array(draw(st.lists(values(k), min_size=rows, max_size=rows)), k) for k in columns]
    table = pa.table(arrays, names=[f"c{n} ä" for n in range(len(columns))])
    first, cut = draw(st.integers(0, rows)), draw(st.integers(0, rows))
    return pa.concat_tables([table.slice(first, cut), table.slice(cut)])


def bits(value: Any) -> Any:
    """Return the bits of a floating-point number, other values as they are."""
    return struct.pack("<d", value) if isinstance(value, float) else value


def flat(array: pa.Array) -> Iterator[list[Any]]:
    """Yield lists of simple values that say all that is in an array; times as integers, numbers as bits."""
    yield array.is_valid().to_pylist()
    kind, array = array.type, array.drop_null()
    if pa.types.is_struct(kind):
        for child in array.flatten():
            yield from flat(child)
    elif pa.types.is_list(kind):
        yield array.value_lengths().to_pylist()
        yield from flat(array.flatten())
    elif pa.types.is_map(kind):
        yield [end - first for first, end in pairwise(array.offsets.to_pylist())]
        first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        yield from flat(array.keys.slice(first, end - first))
        yield from flat(array.items.slice(first, end - first))
    elif pa.types.is_temporal(kind):
        yield array.view(pa.int32() if kind == pa.date32() else pa.int64()).to_pylist()
    else:
        yield [bits(value) for value in array.to_pylist()]


def same(left: pa.Table, right: pa.Table) -> bool:
    """Return whether two tables are equal bit by bit, NaN included."""
    columns = zip(left.columns, right.columns, strict=True)
    return left.schema.equals(right.schema, check_metadata=True) and all(
        list(flat(a.combine_chunks())) == list(flat(b.combine_chunks())) for a, b in columns
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables(), st.sampled_from(LEVELS))
def test_any_rows_come_back_equal(table: pa.Table, level: int) -> None:
    assert normal_schema(table.schema).equals(table.schema)
    assert encodable(table.schema)
    found = decode_block(encode_block(table, level=level))
    assert same(pa.table(found), table)


def numbers(rows: int) -> pa.Table:
    """Return columns that each suit another encoding, with odd values among them, longer than a sample."""
    chance = random.Random(3)
    walk = [1_700_000_000_000_000 + 1_000_000 * n + chance.choice([0, 0, 7]) for n in range(rows)]
    noise = [chance.gauss(20, 5) for _ in range(rows)]
    nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_1234))[0]
    tenths = [round(value, 1) for value in noise]
    tenths[5:9] = [-0.0, math.inf, nan, 1e300]
    return pa.table(
        {
            "ts": pa.array(walk, pa.timestamp("us", tz="UTC")),
            "noise": noise,
            "tenths": tenths,
            "narrow": pa.array([value if n % 3 else None for n, value in enumerate(tenths)], pa.float32()),
            "few": [chance.choice([-(2**63), 0, 2**63 - 1]) for _ in range(rows)],
            "far": pa.array([chance.randrange(-(2**63), 2**63) for _ in range(rows)], pa.int64()),
            "machine": [f"pump {chance.randrange(5)}" for _ in range(rows)],
            "text": [str(chance.random()) for _ in range(rows)],
            "late": [0] * (rows - 5) + [n << 40 for n in range(5)],
            "words": ["same"] * (rows // 2) + [str(n) for n in range(rows - rows // 2)],
        }
    )


@pytest.mark.parametrize("rows", [0, 1, 2, 9, SMALL_ROWS - 1, 3 * SMALL_ROWS + 1])
def test_each_encoding_keeps_every_bit(rows: int) -> None:
    table = numbers(max(rows, 9)).slice(0, rows)
    data = encode_block(table, level=1)
    assert same(pa.table(decode_block(data)), table)
    if rows > SMALL_ROWS:
        assert len(data) < 0.7 * arrow_size(table), "the encodings must be worth it"


def arrow_size(table: pa.Table) -> int:
    """Return the bytes of a table in Arrow's format, compressed by zstd."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return len(out.getvalue())


def test_a_small_batch_takes_a_fraction_of_arrows_format() -> None:
    table = numbers(12).select(["ts", "tenths", "machine"])
    assert len(encode_block(table, level=LEVELS[-1])) < 0.25 * arrow_size(table)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_damaged_bytes_give_a_clear_error_or_other_rows(data: st.DataObject) -> None:
    whole = bytearray(encode_block(numbers(40), level=1))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    whole = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        decode_block(whole).validate(full=True)
    except MalformedBytes as error:
        assert error.hint is not None and "version" in error.hint


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
@example(MAGIC)
@example(MAGIC + bytes(2))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedBytes):
        list(read_blocks(data))


def test_rows_in_several_blocks_come_back_in_order() -> None:
    out = io.BytesIO()
    table = pa.table({"n": range(200_000), "text": ["x" * 90] * 200_000})
    stream = LinkStream(out, table.schema, 1_000.0)
    for batch in table.to_batches(max_chunksize=30_000):
        stream.write_batch(batch)
    stream.close()
    found = list(read_blocks(out.getvalue()))
    assert len(found) > 2
    assert pa.Table.from_batches(found).equals(table)


def test_a_single_row_that_is_too_large_for_a_block_is_written() -> None:
    out = io.BytesIO()
    table = pa.table({"picture": pa.array([b"a", bytes(40 * 2**20), b"b"])})
    stream = LinkStream(out, table.schema, None)
    stream.write_batch(table.to_batches()[0])
    stream.close()
    assert pa.Table.from_batches(list(read_blocks(out.getvalue()))).equals(table)


class Clock:
    """Time that passes by a given step at each look."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_a_slow_link_is_worth_the_highest_level_and_a_fast_one_none() -> None:
    rows = numbers(3 * SMALL_ROWS)
    assert choose_level(rows, 10_000.0, Clock(0.01)) in LEVELS[1:]
    assert choose_level(rows, 10e9, Clock(0.01)) is None
    assert choose_level(rows.slice(0, SMALL_ROWS), 10e9, Clock(1.0)) == LEVELS[-1], "small batches are not measured"
    assert choose_level(rows, 1e6, Clock(10.0)) is None, "a busy processor saves its time"


def test_a_small_batch_of_a_stream_takes_the_highest_level_on_a_slow_link_only() -> None:
    rows = numbers(SMALL_ROWS)
    assert [choose_level(rows, speed, streamed=True) for speed in (1_250.0, 1.25e6, None)] == [19, 9, 9]


def test_a_streams_blocks_are_stored_at_the_lowest_level(tmp_path: Path) -> None:
    rows = numbers(SMALL_ROWS).combine_chunks()
    stored = {}
    for streamed in (False, True):
        writer = SegmentWriter(tmp_path, fsync=False, compression=FOR_LINK, bytes_per_s=1_000.0, streamed=streamed)
        writer.write(rows.to_batches()[0])
        segment = writer.close()
        assert segment is not None and segment.level == LEVELS[-1]
        stored[streamed] = (tmp_path / str(segment.file)).read_bytes()
    blocks = {False: encode_block(rows, level=LEVELS[-1]), True: encode_block(rows, level=LEVELS[0])}
    assert all(data.endswith(blocks[streamed]) for streamed, data in stored.items())
    assert blocks[False] != blocks[True]


SCHEMA = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])


def some(first: int) -> pa.Table:
    """Return rows of ``SCHEMA``."""
    return pa.table([[first, first + 1], [first * 10**6, (first + 1) * 10**6]], schema=SCHEMA)


def files_of(log: FileLog) -> list[Path]:
    """Return the segment files of a log, oldest first."""
    found = []
    for entry in log.entries(0, log.latest()):
        for segment in entry.segments:
            if (source := log.open_published(segment)) is not None:
                with source:
                    found.append(Path(source.name))
    return found


def test_a_log_may_hold_both_formats(tmp_path: Path) -> None:
    spec = {"kind": "filelog", "path": str(tmp_path), "fsync": False, "event_time": "ts"}
    for batch, compression in enumerate(["lz4", FOR_LINK, "zstd", FOR_LINK]):
        log = open_log({**spec, "compression": compression, "bytes_per_s": 1000})
        assert log.append(some(batch), epoch=1, batch=batch)
    log = FileLog(tmp_path)
    assert [path.read_bytes()[:4] == MAGIC for path in files_of(log)] == [False, True, False, True]
    assert pa.Table.from_batches(log.read(0, 4)).equals(pa.concat_tables(some(n) for n in range(4)))
    assert log.frontier(2) == 2_000_000


def test_rows_that_cannot_be_encoded_are_written_in_arrows_format(tmp_path: Path) -> None:
    table = pa.table({"odd": pa.array([datetime.time(1), None], pa.time64("us"))})
    assert not encodable(table.schema)
    log: Log = FileLog(tmp_path, fsync=False)
    log.compression = FOR_LINK
    log.append(table, epoch=1, batch=0)
    assert pa.Table.from_batches(log.read(0, 1)).equals(table)


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, fsync=False, compression=FOR_LINK)
    writer.write(some(0).to_batches()[0])
    segment = writer.close()
    assert isinstance(segment, Segment)
    data = bytearray((tmp_path / str(segment.file)).read_bytes())
    data[len(MAGIC)] = 9
    changed = Segment(file="x", rows=2, bytes=len(data), crc32=zlib.crc32(data))
    with pytest.raises(CorruptSegment, match="block of kind 9") as caught:
        list(decode_segment(bytes(data), changed, where="here"))
    assert caught.value.hint is not None and "same version" in caught.value.hint


def test_an_unknown_compression_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match="unknown compression 'gzip'"):
        open_log({"kind": "filelog", "path": str(tmp_path), "compression": "gzip"})
