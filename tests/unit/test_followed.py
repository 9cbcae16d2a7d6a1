"""Messages of a followed log: they come back equal, and damaged ones are refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.channels.bytestream import MalformedBytes
from headwater.channels.entry import Entry, Floor
from headwater.channels.followed import Bytes, RelayMessage
from headwater.channels.segments import Segment

NUMBERS = st.integers(0, 2**60)
TIMES = st.none() | st.integers(-(2**60), 2**60)
SEGMENTS = st.builds(
    Segment, file=st.none() | st.text(max_size=40), rows=NUMBERS, bytes=NUMBERS, crc32=NUMBERS, frontier=TIMES
)
ENTRIES = st.builds(
    Entry,
    seq=NUMBERS,
    epoch=NUMBERS,
    batch=st.integers(-1, 2**60),
    segments=st.lists(SEGMENTS, max_size=3).map(tuple),
    rows=NUMBERS,
    total_bytes=NUMBERS,
    high=TIMES,
    ended_by=st.none() | NUMBERS,
    previous=st.none() | st.tuples(NUMBERS, NUMBERS),
    lineage=st.none() | st.text(max_size=20),
    ingested=st.none() | st.tuples(st.floats(0, 1e10), st.floats(0, 1e10)),
)
MESSAGES = st.builds(
    RelayMessage,
    sent=st.floats(0, 1e9),
    floor=st.none() | st.builds(Floor, seq=NUMBERS, rows=NUMBERS, frontier=TIMES),
    part=st.none() | st.builds(Bytes, NUMBERS, NUMBERS, st.binary(max_size=200), st.booleans(), st.booleans()),
    entry=st.none() | ENTRIES,
)


@settings(max_examples=100, deadline=None)
@given(MESSAGES)
def test_a_message_comes_back_equal(message: RelayMessage) -> None:
    sent = message.to_bytes()
    found = RelayMessage.from_bytes(sent)
    assert found == message == RelayMessage.from_bytes(memoryview(pa.py_buffer(sent)))
    assert found.items == message.items


def test_an_entry_and_its_rows_are_one_small_message() -> None:
    segment = Segment(
        file="d3b07384d113edec49eaa6238ad5ff00.arrow", rows=8, bytes=90, crc32=123_456_789, frontier=10**15
    )
    values: dict[str, Any] = {"epoch": 3, "batch": 77, "total_rows": 900, "high": 10**15, "written": 1_783_000_000.25}
    entry = Entry(seq=77, segments=(segment,), rows=8, bytes=90, lineage="5f0c", **values)
    assert len(RelayMessage(sent=12.5, part=Bytes(0, 0, bytes(90)), entry=entry).to_bytes()) < 90 + 170
    assert len(RelayMessage(sent=12.5).to_bytes()) < 10


@settings(max_examples=100, deadline=None)
@given(MESSAGES, st.data())
def test_damaged_messages_give_a_clear_error_or_another_message(message: RelayMessage, data: st.DataObject) -> None:
    whole = bytearray(message.to_bytes())
    for _ in range(data.draw(st.integers(0, 2))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        RelayMessage.from_bytes(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    except MalformedBytes as error:
        assert error.hint is not None and "version" in error.hint


def test_no_bytes_are_no_message() -> None:
    with pytest.raises(MalformedBytes, match="too early"):
        RelayMessage.from_bytes(b"")
