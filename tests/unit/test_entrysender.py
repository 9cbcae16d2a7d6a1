"""Streams of a log to another zone: whatever is cut off, and whichever version sends, the copy has the same rows."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.channels import entrysender, streamhistory
from headwater.channels.bytestream import MalformedBytes
from headwater.channels.entry import Entry
from headwater.channels.entrysender import EntrySender
from headwater.channels.filelog import FileLog
from headwater.channels.flight import Follower
from headwater.channels.followed import Begin, Bytes, RelayMessage
from headwater.channels.linkcompression import MOST_PART, LinkCompressor, LinkDecompressor
from headwater.channels.linkstream import LEVELS
from headwater.channels.logserver import LogService
from headwater.channels.relay import Following, Relay, Remote
from headwater.channels.segments import FOR_LINK, Segment
from headwater.channels.streamhistory import Continuation, ReceivedHistory, SentHistories, SentHistory
from headwater.core.errors import ChannelError

WORDS = [random.Random(n).randbytes(30).hex() for n in range(40)]


def rows(seed: int, count: int) -> pa.Table:
    """Return rows whose texts repeat from batch to batch."""
    rng = random.Random(seed)
    texts = [rng.choice(WORDS) + str(rng.randrange(count)) for _ in range(count)]
    return pa.table({"id": range(count), "text": texts})


@dataclass
class Chunk:
    """A message as Flight gives it."""

    app_metadata: bytes


class Stream:
    """Messages of a service, of which the stream breaks after some; the last ones are lost on the way."""

    def __init__(self, service: LogService, request: dict[str, Any], messages: int, lost: int) -> None:
        self._service, self._request, self._messages, self._lost = service, request, messages, lost

    def __iter__(self) -> Iterator[Chunk]:
        waiting: deque[Chunk] = deque()
        for _, data in itertools.islice(self._service.follow(self._request), self._messages):
            if RelayMessage.from_bytes(memoryview(data)).items == (None,):
                break
            waiting.append(Chunk(data.to_pybytes()))
            if len(waiting) > self._lost:
                yield waiting.popleft()

    def cancel(self) -> None:
        """Do nothing: the stream ends by itself."""


class Reading:
    """The part of a ``Wire`` that a stream needs."""

    def reading(self) -> AbstractContextManager[None]:
        """Do nothing about errors."""
        return nullcontext()


class Connection:
    """The log of a service, followed for some messages; ``knows``: as a version that knows expanded segments."""

    def __init__(self, service: LogService) -> None:
        self.service = service
        self.history = ReceivedHistory()
        self.knows, self.messages, self.lost = True, 10**9, 0

    def follow(self, seq: int, begin: Begin = Begin()) -> Following:  # noqa: B008 - frozen
        """Open a stream; an older version takes the position for that of stored bytes."""
        request: dict[str, Any] = {"log": "log", "follow": seq, "expands": True, **begin.to_request()}
        if self.knows:
            request |= self.history.next_stream().to_request()
        else:
            request = {**request, "expands": False, "expanded": ()}
        stream = Stream(self.service, request, self.messages, self.lost)
        return Follower(cast(Any, Reading()), stream, self.history)


class OldSender(EntrySender):
    """The sender of a version without expanded segments: it sends from the position that it is asked for."""

    def send(self, log: FileLog, entry: Entry, begin: Begin) -> Iterator[RelayMessage]:
        self._expands = False
        return super().send(log, entry, Begin(begin.piece, begin.offset))


def publish(log: FileLog, batch: int, tables: list[tuple[pa.Table, str]], level: int = 19) -> None:
    """Append a batch of several segments in given compressions; ``level``: at which blocks cross the link."""
    segments = []
    for table, compression in tables:
        log.compression = compression
        writer = log.open_segment(table.schema)
        for part in table.to_batches():
            writer.write(part)
        segment = writer.close()
        assert isinstance(segment, Segment)
        segments.append(segment if segment.level is None else replace(segment, level=level))
    assert log.commit(1, batch, segments)


@pytest.fixture(autouse=True)
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send segments in parts of some hundred bytes, so that streams break inside them."""
    for name in ("FIRST_BYTES", "WORTH_BYTES", "SMALL_BYTES", "CHUNK_BYTES"):
        monkeypatch.setattr(entrysender, name, 300)


def made(place: Path) -> tuple[FileLog, FileLog, Connection, Relay]:
    """Return a log, its copy, the connection and the relay between them."""
    log, copy = FileLog(place / "log", fsync=False), FileLog(place / "copy", fsync=False, on_corrupt="stop")
    log.create()
    copy.create()
    connection = Connection(LogService(lambda name: log))
    return log, copy, connection, Relay(lambda: cast(Remote, connection), "log", copy, reader="r")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from([0, 3, 30, 200]), st.sampled_from([FOR_LINK, "lz4"])), min_size=1),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 2)), max_size=12),
    st.sampled_from([1, 50, 1000, streamhistory.REPEATABLE]),
    st.randoms(use_true_random=False),
)
def test_a_copy_has_the_rows_however_streams_break(
    batches: list[list[tuple[int, str]]], cuts: list[tuple[bool, int, int]], repeatable: int, rng: random.Random
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamhistory, "REPEATABLE", repeatable)
        place = Path(name)
        log, copy, connection, relay = made(place)
        expected = []
        for batch, parts in enumerate(batches):
            tables = [(rows(rng.randrange(100), count + 1), compression) for count, compression in parts]
            publish(log, batch, tables, rng.choice(LEVELS))
            expected += [table for table, _ in tables]
        for connection.knows, connection.messages, connection.lost in [*cuts, (True, 10**9, 0)]:
            for _ in range(2):  # a discarded entry is asked for again
                try:
                    relay._follow(cast(Remote, connection))
                    break
                except ChannelError as error:
                    assert error.hint is not None and "fetched again" in error.hint
                    assert not all(knows for knows, *_ in cuts), "versions that are alike fetch nothing again"
        assert copy.latest() == log.latest()
        assert pa.Table.from_batches(copy.read(0, copy.latest())).equals(pa.concat_tables(expected))
        assert not list((copy.path / "incoming").iterdir())


def test_a_downgrade_in_the_middle_of_an_entry_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, copy, connection, relay = made(tmp_path)
    tables = [rows(seed, 100) for seed in range(3)]
    publish(log, 0, [(table, FOR_LINK) for table in tables])
    entry = log.tail()
    assert entry is not None
    whole = len(list(EntrySender(expands=True).send(log, entry, Begin())))
    assert whole > 9
    for messages in range(1, whole):
        connection.messages = messages
        relay._follow(cast(Remote, connection))
        with monkeypatch.context() as patched:
            patched.setattr("headwater.channels.logserver.EntrySender", OldSender)
            connection.messages = 10**9
            for _ in range(2):
                try:
                    relay._follow(cast(Remote, connection))
                    break
                except ChannelError as error:
                    assert error.hint is not None and "fetched again" in error.hint
        assert pa.Table.from_batches(copy.read(0, 1)).equals(pa.concat_tables(tables)), messages
        for file in copy.path.rglob("*"):
            if file.is_file() and file.parent.name in ("data", "log", "staging", "incoming"):
                file.unlink()


def test_a_stream_repeats_nothing(tmp_path: Path) -> None:
    log, copy, connection, relay = made(tmp_path)
    for batch in range(20):
        publish(log, batch, [(rows(batch, 50), FOR_LINK)])
    relay._follow(cast(Remote, connection))
    assert copy.latest() == 20
    alone = log.totals(20)[1]
    assert relay.state.bytes < alone / 2
    assert copy.totals(20) == log.totals(20), "the copy counts the bytes of the original"
    # The copy is the original of the next zone's.
    further = FileLog(tmp_path / "further", fsync=False, on_corrupt="stop")
    further.create()
    onward = Connection(LogService(lambda name: copy))
    second = Relay(lambda: cast(Remote, onward), "log", further, reader="r")
    second._follow(cast(Remote, onward))
    assert second.state.bytes == relay.state.bytes
    assert pa.Table.from_batches(further.read(0, 20)).equals(pa.Table.from_batches(log.read(0, 20)))


def bytes_of_streams(place: Path, lost: int = 0) -> tuple[int, int]:
    """Return the bytes of ten entries over as many streams, and those of the first one."""
    log, copy, connection, relay = made(place)
    connection.lost = lost
    found = []
    for batch in range(10):
        publish(log, batch, [(rows(batch, 50), FOR_LINK)])
        relay._follow(cast(Remote, connection))
        found.append(relay.state.bytes)
    connection.lost = 0
    relay._follow(cast(Remote, connection))
    assert pa.Table.from_batches(copy.read(0, 10)).equals(pa.concat_tables([rows(n, 50) for n in range(10)]))
    return relay.state.bytes, found[0]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_stream_goes_on_with_the_parts_of_the_last_one_that_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    continued, first = bytes_of_streams(tmp_path / "continued", lost)
    monkeypatch.setattr(streamhistory, "KEPT_SECONDS", 0.0)
    anew, same = bytes_of_streams(tmp_path / "anew", lost)
    assert first == same and anew > 1.5 * continued


def test_a_history_is_given_up_after_an_error_about_a_message(tmp_path: Path) -> None:
    log, copy, connection, relay = made(tmp_path)
    publish(log, 0, [(rows(0, 50), FOR_LINK)])
    follower = connection.follow(0)
    for item in follower:
        if isinstance(item, Entry):
            break  # as on an error about it
    asked = connection.history.next_stream()
    assert asked.after == "" and asked.parts > 0
    relay._follow(cast(Remote, connection))
    assert connection.history.next_stream().after != ""
    assert copy.latest() == 1


def first_part(data: pa.Buffer) -> Bytes | None:
    """Return the part of a message."""
    return RelayMessage.from_bytes(memoryview(data)).part


def test_a_receiver_may_go_on_while_the_stream_before_is_open(tmp_path: Path) -> None:
    """As over a link that breaks without a word: the sender sends on, and learns of it by the next request."""
    log, _, connection, _ = made(tmp_path)
    publish(log, 0, [(rows(0, 50), FOR_LINK)])
    request = {"log": "log", "follow": 0, "expands": True, **Continuation("first").to_request()}
    open_one = connection.service.follow(request)
    parts = list(itertools.takewhile(lambda part: part is not None, (first_part(data) for _, data in open_one)))
    publish(log, 1, [(rows(1, 50), FOR_LINK)])
    into_the_void = first_part(next(open_one)[1])
    assert into_the_void is not None and not into_the_void.begins
    sizes = []
    for stream, after in (("second", "first"), ("third", "nobody")):
        request |= {"follow": 1, **Continuation(stream, after, len(parts)).to_request()}
        part = first_part(next(connection.service.follow(request))[1])
        assert part is not None and part.begins
        sizes.append(len(part.data))
    assert sizes[0] < sizes[1] / 1.5


def sent(*parts: bytes) -> tuple[SentHistories, SentHistory]:
    """Return histories, and the one of the stream 'a', which has sent some parts."""
    histories = SentHistories()
    history = histories.begin("log", Continuation("a"))
    for part in parts:
        history.compress(part, LEVELS[0])
    return histories, history


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize(
    ("log", "asked", "known"),
    [
        ("log", Continuation("b", "a", 2), b"onetwo"),
        ("log", Continuation("b", "a", 1), b"one"),
        ("log", Continuation("b", "a", 0), b""),
        ("log", Continuation("b", "a", 3), b""),
        ("log", Continuation("b", "a", -1), b""),
        ("log", Continuation("b", "c", 2), b""),
        ("log", Continuation("b", "", 2), b""),
        ("other", Continuation("b", "a", 2), b""),
    ],
)
def test_a_stream_begins_with_what_has_arrived(log: str, asked: Continuation, known: bytes, ended: bool) -> None:
    histories, history = sent(b"one", b"two")
    if ended:
        histories.end("log", Continuation("a"), history)
    found = histories.begin(log, asked)
    assert found.up_to(0) == known
    begins = [found.compress(*part)[1] for part in ((b"three", LEVELS[0]), (b"four", LEVELS[0]), (b"five", LEVELS[1]))]
    assert begins == [True, False, True]
    assert histories.begin(log, Continuation("c", "b", 1)).up_to(0) == known + b"three"


def test_a_sender_keeps_some_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamhistory, "SENT", 8)
    monkeypatch.setattr(streamhistory, "REPEATABLE", 5)
    _, history = sent(b"abc", b"def", b"ghi", b"jkl")
    assert [history.up_to(parts) for parts in range(6)] == [None, None, None, b"efghi", b"hijkl", None]


def test_the_receiver_of_an_older_version_gets_nothing_to_repeat() -> None:
    history, text = SentHistories().begin("log", Continuation()), random.Random(0).randbytes(100)
    parts = [history.compress(text, level)[0] for level in LEVELS[:2]]
    assert LinkDecompressor().decompress(parts[1]) == text
    assert len(parts[1]) > 100


def test_histories_of_ended_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    histories, _ = sent(b"open")
    for number in range(streamhistory.KEPT + 1):
        asked = Continuation(f"s{number}")
        history = histories.begin("log", asked)
        history.compress(b"part", LEVELS[0])
        histories.end("log", asked, history)
    assert histories.begin("log", Continuation("b", "s0", 1)).up_to(0) == b""
    assert histories.begin("log", Continuation("c", "s1", 1)).up_to(0) == b"part"
    monkeypatch.setattr(streamhistory, "KEPT_SECONDS", 0.0)
    assert histories.begin("log", Continuation("d", "s2", 1)).up_to(0) == b"", "the receiver has been away for too long"
    assert histories.begin("log", Continuation("e", "a", 1)).up_to(0) == b"open"


def test_a_stream_that_the_next_one_has_replaced_leaves_nothing() -> None:
    histories, first = sent(b"one")
    histories.begin("log", Continuation("b", "a", 1))
    histories.end("log", Continuation("a"), first)
    assert histories.begin("log", Continuation("c", "a", 1)).up_to(0) == b""
    assert histories.begin("log", Continuation("d", "b", 0)).up_to(0) == b"one"


def test_an_older_version_gets_stored_bytes_whatever_it_asks(tmp_path: Path) -> None:
    log, _, connection, _ = made(tmp_path)
    publish(log, 0, [(rows(0, 50), FOR_LINK)])
    request = {"log": "log", "follow": 0, "expands": False, "stream": "b", "after": "a", "parts": 0}
    part = first_part(next(connection.service.follow(request))[1])
    assert part is not None and not part.expanded


def test_a_damaged_segment_is_found_damaged_by_the_readers_of_the_copy(tmp_path: Path) -> None:
    log, copy, connection, relay = made(tmp_path)
    publish(log, 0, [(rows(1, 50), FOR_LINK), (rows(2, 50), FOR_LINK)])
    (file,) = [f for f in (tmp_path / "log" / "data").iterdir() if f.name == log.tail().segments[0].file]  # type: ignore[union-attr]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    relay._follow(cast(Remote, connection))
    lenient = FileLog(copy.path)
    assert pa.Table.from_batches(lenient.read(0, 1)).equals(rows(2, 50))
    assert lenient.stats().lost_rows == 50


def test_a_segment_that_is_damaged_while_it_is_sent_costs_no_other_rows(tmp_path: Path) -> None:
    log, copy, connection, relay = made(tmp_path)
    tables = [rows(seed, 100) for seed in range(3)]
    publish(log, 0, [(table, FOR_LINK) for table in tables])
    entry = log.tail()
    assert entry is not None
    messages = list(EntrySender(expands=True).send(log, entry, Begin()))
    parts = [message.part for message in messages if message.part is not None]
    connection.messages = next(n for n, part in enumerate(parts) if part.piece == 1) + 2  # in the middle of the second
    relay._follow(cast(Remote, connection))
    file = tmp_path / "log" / "data" / str(entry.segments[1].file)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    connection.messages = 10**9
    relay._follow(cast(Remote, connection))
    lenient = FileLog(copy.path)
    assert pa.Table.from_batches(lenient.read(0, 1)).equals(pa.concat_tables([tables[0], tables[2]]))
    assert lenient.stats().lost_rows == 100


def test_another_level_begins_a_new_history(tmp_path: Path) -> None:
    log, _, _, _ = made(tmp_path)
    for batch, level in enumerate([19, 19, 1, 1, 19]):
        publish(log, batch, [(rows(1, 3), FOR_LINK)], level)
    sender = EntrySender(expands=True)
    sent = [message for entry in log.entries(0, 5) for message in sender.send(log, entry, Begin())]
    assert [message.part.begins for message in sent if message.part is not None] == [True, False, True, False, True]


def test_a_segment_without_blocks_is_sent_as_it_is(tmp_path: Path) -> None:
    log, copy, connection, relay = made(tmp_path)
    log.compression = "lz4"
    writer = log.open_segment(rows(1, 50).schema)
    writer.write(rows(1, 50).to_batches()[0])
    segment = writer.close()
    assert segment is not None and segment.level is None
    assert log.commit(1, 0, [replace(segment, level=19)])  # as an untrusted agent might
    relay._follow(cast(Remote, connection))
    assert pa.Table.from_batches(copy.read(0, 1)).equals(rows(1, 50))


def test_a_level_from_outside_is_not_used(tmp_path: Path) -> None:
    log, _, _, _ = made(tmp_path)
    publish(log, 0, [(rows(1, 50), FOR_LINK)])
    entry = log.tail()
    assert entry is not None
    odd = cast(Any, "19; no number")
    changed = replace(entry, segments=(replace(entry.segments[0], level=odd),))
    sent = list(EntrySender(expands=True).send(log, changed, Begin()))
    assert all(part.part is None or not part.part.expanded for part in sent)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=8), st.sampled_from([1, 9, 19]), st.data())
def test_parts_come_back_and_damaged_ones_are_refused(parts: list[bytes], level: int, data: st.DataObject) -> None:
    one, other = LinkCompressor(level), LinkDecompressor()
    sent = [one.compress(part) for part in parts]
    assert [other.decompress(part) for part in sent] == parts
    at = data.draw(st.integers(0, len(sent) - 1))
    damaged = bytearray(sent[at])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    again = LinkDecompressor()
    try:
        for number, part in enumerate(sent):
            again.decompress(bytes(damaged) if number == at else part)
    except MalformedBytes as error:
        assert error.hint is not None and "damaged" in error.hint


def test_a_part_that_would_fill_the_memory_is_refused() -> None:
    part = LinkCompressor(19).compress(bytes(4 * MOST_PART))
    assert len(part) < 10_000
    with pytest.raises(MalformedBytes, match="a part of more than"):
        LinkDecompressor().decompress(part)
