"""Streams that begin with the description of their columns, whatever each end knows of the other."""

from __future__ import annotations

import random
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.agent.relays import described_columns
from headwater.channels.bytestream import MalformedBytes
from headwater.channels.followed import Bytes, RelayMessage
from headwater.channels.linkcompression import LEAST_BEFORE, LinkCompressor, LinkDecompressor
from headwater.channels.linkstream import LEVELS, description
from headwater.channels.logserver import LogService
from headwater.channels.relay import Remote
from headwater.channels.segments import FOR_LINK, normal_schema
from headwater.channels.streamhistory import Continuation, ReceivedHistory, SentHistories
from headwater.dataflow.builder import flow
from tests.unit.test_entrysender import made, publish, rows

DESCRIBED = description(rows(0, 1).schema)


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=400),
    st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=6),
    st.sampled_from(LEVELS),
)
def test_parts_come_back(before: bytes, parts: list[bytes], level: int) -> None:
    one, other = LinkCompressor(level, before, short=True), LinkDecompressor(before, short=True)
    assert [other.decompress(one.compress(part)) for part in parts] == parts
    named, same = LinkCompressor(level, before), LinkDecompressor(before)
    assert [same.decompress(named.compress(part)) for part in parts] == parts
    first = [len(LinkCompressor(level, short=short).compress(parts[0])) for short in (True, False)]
    assert first[0] + 4 == first[1], "the name of the format"


@pytest.mark.parametrize("level", LEVELS)
def test_a_stream_is_not_larger_for_what_is_known_before_it(level: int) -> None:
    """Zstd sizes its tables by the bytes before a stream: with a few hundred alone it would be larger, to its end."""
    drawn = random.Random(7)
    names = [f"https://www.example.com/{drawn.randbytes(12).hex()}?id=" for _ in range(3_000)]
    text = "".join(f"{drawn.choice(names)}{drawn.randrange(10**6)}" for _ in range(20_000)).encode()
    alone, after, unfilled = (
        len(LinkCompressor(level, known, short=short).compress(text))
        for known, short in ((b"", True), (DESCRIBED, True), (DESCRIBED, False))
    )
    assert after <= alone * (1.03 if level == LEVELS[0] else 1.001)
    assert unfilled > alone * 1.4
    assert len(DESCRIBED) < LEAST_BEFORE


def test_a_message_tells_the_bytes_before_a_short_stream() -> None:
    for known in (None, 0, 5, 300_000):
        part = Bytes(1, 2, b"abc", expanded=True, begins=True, known=known)
        (found,) = RelayMessage.from_bytes(RelayMessage(sent=1.0, part=part).to_bytes()).items
        assert isinstance(found, Bytes)
        assert (found.known, found.begins, bytes(found.data)) == (known, True, b"abc")


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        (Continuation("a", described=zlib.crc32(DESCRIBED)), len(DESCRIBED)),
        (Continuation("a", described=zlib.crc32(b"other columns")), 0),
        (Continuation("a", described=0), 0),
        (Continuation("a", "lost", 1, zlib.crc32(DESCRIBED)), 0),
        (Continuation("a"), None),
        (Continuation.from_request({"stream": "a"}), None),
    ],
)
def test_a_first_stream_repeats_the_description_that_both_ends_have(asked: Continuation, known: int | None) -> None:
    history = SentHistories().begin("log", Continuation.from_request(asked.to_request()), DESCRIBED)
    part, begins, found = history.compress(DESCRIBED, LEVELS[0])
    assert (begins, found) == (True, known)
    short = LinkDecompressor(DESCRIBED if known else b"", short=True) if known is not None else LinkDecompressor()
    assert short.decompress(part) == DESCRIBED
    assert history.compress(b"more", LEVELS[0])[1:] == (False, None)


def test_bytes_that_the_receiver_does_not_have_are_refused() -> None:
    history = ReceivedHistory(DESCRIBED)
    history.next_stream()
    part = LinkCompressor(LEVELS[0], DESCRIBED, short=True).compress(DESCRIBED)
    longer = Bytes(0, 0, part, expanded=True, begins=True, known=len(DESCRIBED) + 1)
    with pytest.raises(MalformedBytes, match="are known here"):
        history.decompressed(longer)
    assert history.decompressed(replace(longer, known=len(DESCRIBED))).data == DESCRIBED


def test_a_described_stream_takes_fewer_bytes(tmp_path: Path) -> None:
    sizes = []
    for known in (DESCRIBED, b"", b"other columns"):
        log, copy, connection, relay = made(tmp_path / str(len(sizes)))
        connection.history = ReceivedHistory(known)
        publish(log, 0, [(rows(0, 4), FOR_LINK)])
        relay._follow(cast(Remote, connection))
        assert pa.Table.from_batches(copy.read(0, 1)).equals(rows(0, 4))
        sizes.append(relay.state.bytes)
    assert sizes[0] < sizes[1] - 10 and sizes[1] == sizes[2]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["", "sender", "receiver", "other columns", "older"]), st.integers(0, 6)),
        max_size=8,
    ),
    st.integers(0, 1000),
)
def test_rows_arrive_whichever_end_begins_anew(breaks: list[tuple[str, int]], seed: int) -> None:
    """An end that begins anew has no history; an older receiver does not tell that it knows short streams."""
    with tempfile.TemporaryDirectory() as name:
        log, copy, connection, relay = made(Path(name))
        connection.history = ReceivedHistory(DESCRIBED)
        drawn, expected = random.Random(seed), []
        for number, (event, messages) in enumerate([*breaks, ("", 10**9)]):
            expected.append(rows(drawn.randrange(50), drawn.choice([1, 40])))
            publish(log, number, [(expected[-1], FOR_LINK)], drawn.choice(LEVELS))
            connection.knows, connection.messages = event != "older", messages
            if event == "sender":
                connection.service = LogService(lambda name: log)
            elif event in ("receiver", "other columns"):
                connection.history = ReceivedHistory(DESCRIBED if event == "receiver" else b"other columns")
            relay._follow(cast(Remote, connection))
        assert pa.Table.from_batches(copy.read(0, copy.latest())).equals(pa.concat_tables(expected))


def test_the_plan_and_the_log_describe_columns_alike() -> None:
    columns = {
        "a": ("boolean", pa.bool_()),
        "b": ("tinyint", pa.int8()),
        "c": ("bigint", pa.int64()),
        "d": ("double", pa.float64()),
        "e": ("string", pa.string()),
        "f": ("timestamp", pa.timestamp("ns", tz="Europe/Berlin")),
        "g": ("timestamp_ntz", pa.timestamp("us")),
        "h": ("decimal(12,3)", pa.decimal128(12, 3)),
        "i": ("array<int>", pa.list_(pa.field("item", pa.int32(), nullable=False))),
        "j": ("map<string,date>", pa.map_(pa.string(), pa.date32())),
        "k": ("struct<x:float,y:binary>", pa.struct([("x", pa.float32()), ("y", pa.binary())])),
    }
    builder = flow("all", locations=["L1"])
    read = builder.read.parquet("/in/{location}", ", ".join(f"{n} {sql}" for n, (sql, _) in columns.items()))
    read.named("rows").write.memory("out")
    stored = normal_schema(pa.schema([(name, arrow) for name, (_, arrow) in columns.items()]))
    found = described_columns(builder.build(), "rows")
    assert found == description(stored) and len(found) > 60
