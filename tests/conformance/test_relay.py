"""Relays: the entries of one zone are in the next one, complete and once, under all conditions of the link."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import trustme

from headwater.channels.base import END, ChannelLimits
from headwater.channels.entry import Entry
from headwater.channels.filelog import FileLog
from headwater.channels.flight import FlightLog
from headwater.channels.kafkalog import KafkaLog
from headwater.channels.linkmeter import LinkMeter
from headwater.channels.log import Log
from headwater.channels.logserver import LogServer
from headwater.channels.open import open_log
from headwater.channels.relay import PolledLog, Relay, Remote
from headwater.channels.segments import FOR_LINK, Segment
from headwater.channels.streamhistory import ReceivedHistory
from headwater.channels.wire import Credentials, Wire
from headwater.core.errors import ChannelError, DeploymentError, Unavailable
from headwater.testing import CutLink
from tests.conformance.conftest import TS, ids, spec_of, table
from tests.conftest import ZONE
from tests.patience import PATIENCE


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "did not come about in time"
        time.sleep(0.02)


class Zones:
    """A log in one zone, its replica in another, and the link between them."""

    def __init__(self, source: Log, connect: Callable[[], Remote], replica: FileLog, link: CutLink | None) -> None:
        self.source = source
        self.replica = replica
        self.link = link
        self._connect = connect

    @contextlib.contextmanager
    def relay(self, max_bytes: int | None = None) -> Iterator[Relay]:
        relay = Relay(self._connect, "log", self.replica, reader="relay@up", max_bytes=max_bytes)
        relay.start()
        try:
            yield relay
        finally:
            relay.stop()

    def caught_up(self) -> bool:
        return self.replica.latest() == self.source.latest()


@pytest.fixture(params=["flight", "blocks", "kafka"])
def zones(request: pytest.FixtureRequest, tmp_path: Path, topic: str) -> Iterator[Zones]:
    replica = FileLog(tmp_path / "replica", fsync=False)
    if request.param == "kafka":
        broker = request.getfixturevalue("broker")
        source = open_log({**spec_of("kafka", tmp_path / "log", topic, broker), "event_time": "ts"})
        source.create()

        def polled() -> Remote:
            log = open_log(spec_of("kafka", tmp_path / "other", topic, broker))
            assert isinstance(log, KafkaLog)
            return PolledLog(log)

        yield Zones(source, polled, replica, None)
        return
    log: Log = FileLog(tmp_path / "log", event_time="ts", fsync=False)
    if request.param == "blocks":
        log.compression = FOR_LINK
    log.create()
    server = LogServer("127.0.0.1:0", credential=ZONE, find=lambda name: FileLog(tmp_path / name))
    link = CutLink()
    link.lead_to(f"127.0.0.1:{server.port}")
    history = ReceivedHistory()
    connect = lambda: FlightLog(Wire(link.address, Credentials(ZONE.order_token)), "log", history)  # noqa: E731
    yield Zones(log, connect, replica, link)
    link.close()
    server.shutdown()


def entries(log: Log) -> list[Entry]:
    """Return the entries of a log as readers see them: all fields but the storage details of the kind.

    Those are the size and the checksum of blocks: a copy has them in a form that is not compressed.
    """

    def seen(segment: Segment) -> Segment:
        segment = replace(segment, offsets=None)
        return segment if segment.level is None else replace(segment, bytes=0, crc32=0)

    found = log.entries(log.earliest(), log.latest())
    return [replace(e, segments=tuple(map(seen, e.segments))) for e in found]


def test_a_replica_is_the_same_log(zones: Zones) -> None:
    zones.source.register("other")  # the entries that the relay has fetched stay, for comparison
    zones.source.append(table([1, 2]), epoch=1, batch=0)
    with zones.relay():
        until(zones.caught_up)
        zones.source.append(table([3]), epoch=1, batch=1)
        zones.source.append(table([4]), epoch=2, batch=0)
        zones.source.end(2)
        until(zones.caught_up)
        assert zones.replica.frontier(zones.replica.latest()) == END
    assert ids(zones.replica) == [1, 2, 3, 4]
    assert entries(zones.replica) == entries(zones.source)
    assert zones.replica.stats().ended


def test_when_rows_came_to_their_source_crosses_with_them(zones: Zones) -> None:
    mark = Segment(file=None, rows=0, bytes=0, crc32=0, frontier=5)
    zones.source.commit(1, 0, [mark], ingested=(1795349607.2155, 1795349607.5))
    with zones.relay():
        until(zones.caught_up)
    (entry,) = entries(zones.replica)
    assert entry.ingested == (1795349607.2155, 1795349607.5)


def test_a_relay_tells_what_its_link_does(zones: Zones) -> None:
    rng = np.random.default_rng(1)
    big = pa.table({"id": rng.integers(0, 2**62, 50_000), "ts": pa.array([0] * 50_000, TS)})
    for batch in range(4):
        zones.source.append(big, epoch=1, batch=batch)
    size = zones.source.stats().bytes
    with zones.relay() as relay:
        until(zones.caught_up)
        heads = 16 * 8 * 4  # of the parts of compressed streams: random numbers do not shrink
        assert 0 < relay.meter.bytes_per_s <= size + heads
        if zones.link is not None:  # a broker is not asked
            until(lambda: relay.meter.delay_s is not None)
            assert relay.meter.capacity is not None and relay.meter.capacity > 100_000
        else:
            assert relay.meter.delay_s is None


def test_a_relay_goes_on_where_the_last_one_was(zones: Zones) -> None:
    for batch in range(3):
        zones.source.append(table([batch]), epoch=1, batch=batch)
        with zones.relay():
            until(zones.caught_up)
    zones.source.append(table([3]), epoch=1, batch=3)
    with zones.relay():
        until(zones.caught_up)
    assert ids(zones.replica) == [0, 1, 2, 3]


def test_what_has_arrived_is_reclaimed(zones: Zones) -> None:
    zones.source.register("relay@up")
    for batch in range(5):
        zones.source.append(table([batch]), epoch=1, batch=batch)
    zones.replica.create()
    zones.replica.register("unit")
    with zones.relay():
        until(lambda: zones.source.stats().unread["relay@up"].entries == 0)
    assert zones.source.earliest() == 5
    assert ids(zones.replica) == [0, 1, 2, 3, 4]


def test_a_new_replica_begins_at_the_floor(zones: Zones) -> None:
    zones.source.register("other")
    for batch in range(4):
        zones.source.append(table([batch]), epoch=1, batch=batch)
    zones.source.advance("other", 3)
    with zones.relay():
        until(zones.caught_up)
    assert ids(zones.replica) == [3]
    assert zones.replica.earliest() == 3
    assert zones.replica.totals(3) == zones.source.totals(3)
    assert zones.replica.frontier(3) == 2_000_000


def test_a_slow_reader_holds_the_relay_back(zones: Zones) -> None:
    zones.replica.create()
    zones.replica.register("unit")
    for batch in range(6):
        zones.source.append(table(list(range(100))), epoch=1, batch=batch)
    limit = zones.source.stats().bytes // 3
    with zones.relay(max_bytes=limit):
        until(lambda: zones.replica.stats().bytes >= limit)
        time.sleep(0.5)
        assert not zones.caught_up()
        zones.replica.advance("unit", zones.replica.latest())
        while not zones.caught_up():
            zones.replica.advance("unit", zones.replica.latest())
            time.sleep(0.02)
    assert zones.replica.stats().rows == 600


@pytest.mark.parametrize("zones", ["flight"], indirect=True)
def test_a_link_that_fails_again_and_again(zones: Zones) -> None:
    assert zones.link is not None
    rng = np.random.default_rng(4)
    noise = [rng.bytes(2_000_000) for _ in range(6)]  # does not compress: many chunks to be cut off in
    for batch, data in enumerate(noise):
        rows = pa.table({"id": pa.array([batch], pa.int64()), "ts": table([batch])["ts"], "data": [data]})
        zones.source.append(rows, epoch=1, batch=batch)
    zones.link.cut()
    with zones.relay() as relay:
        time.sleep(0.3)
        assert not relay.state.up
        for _ in range(5):
            zones.link.mend()
            before = relay.state.bytes
            until(lambda before=before: relay.state.bytes > before or zones.caught_up())
            zones.link.cut()
            time.sleep(0.1)
        zones.link.mend()
        until(zones.caught_up)
        until(lambda: relay.state.up)  # the link has reset its connection, perhaps only after the last byte
    assert ids(zones.replica) == list(range(6))
    # Every byte crossed once, except chunks that were cut off.
    assert relay.state.bytes < zones.source.stats().bytes + 5 * 2**20


@pytest.mark.parametrize("zones", ["blocks"], indirect=True)
def test_entries_repeat_those_before_a_break_of_the_link(zones: Zones) -> None:
    assert zones.link is not None
    words = [random.Random(n).randbytes(30).hex() for n in range(40)]
    costs, crossed = [], 0
    with zones.relay() as relay:
        for batch in range(4):
            rows = table([*range(40)]).append_column("text", pa.array(words))
            zones.source.append(rows, epoch=1, batch=batch)
            until(zones.caught_up)
            costs.append(relay.state.bytes - crossed)
            crossed = relay.state.bytes
            zones.link.cut()
            zones.link.mend()
    assert zones.replica.stats().rows == 160
    assert all(cost < costs[0] / 4 for cost in costs[1:]), costs


@pytest.mark.parametrize("zones", ["flight"], indirect=True)
def test_what_a_full_log_dropped_is_counted_here_as_well(zones: Zones) -> None:
    limits = ChannelLimits(max_bytes=1500, when_full="drop_oldest")
    full = FileLog(Path(zones.source.where), event_time="ts", fsync=False, limits=limits)
    full.register("relay@up")
    with zones.relay():
        full.append(table([0]), epoch=1, batch=0)
        until(zones.caught_up)
    for batch in range(1, 9):
        full.append(table([batch]), epoch=1, batch=batch)
    assert full.stats().dropped_rows > 0
    zones.replica.register("unit")
    with zones.relay():
        time.sleep(0.3)
        assert ids(zones.replica) == [0]  # kept until it is read
        zones.replica.advance("unit", 1)
        until(zones.caught_up)
    assert ids(zones.replica)[-1] == 8
    assert zones.replica.stats().dropped_rows == full.stats().dropped_rows


@pytest.mark.parametrize("zones", ["flight"], indirect=True)
def test_a_segment_lost_at_its_origin_is_counted(zones: Zones) -> None:
    zones.source.append(table([1]), epoch=1, batch=0)
    zones.source.append(table([2]), epoch=1, batch=1)
    first = next(iter(zones.source.entries(0, 1))).segments[0]
    (Path(zones.source.where) / "data" / str(first.file)).unlink()
    with zones.relay():
        until(zones.caught_up)
    assert ids(zones.replica) == [2]
    assert zones.replica.stats().lost_rows == 1


def test_a_replica_without_an_entry_counts_the_rows_before_its_floor(tmp_path: Path) -> None:
    source, replica = FileLog(tmp_path / "source", fsync=False), FileLog(tmp_path / "replica", fsync=False)
    source.create()
    source.register("other")
    for batch in range(3):
        source.append(table([batch]), epoch=1, batch=batch)
    source.advance("other", 2)
    replica.create()
    replica.register("unit")
    replica.begin_at(source.floor())
    found = replica.stats()
    assert (found.rows, found.bytes) == replica.totals(2) == source.totals(2)
    assert found.rows - replica.totals(replica.latest())[0] == 0  # the lag of a unit that has read all of it


def test_a_replica_takes_no_entry_out_of_turn(tmp_path: Path) -> None:
    replica = FileLog(tmp_path, fsync=False)
    replica.create()
    with pytest.raises(ChannelError, match="entry 3 comes after -1"):
        replica.mirror(Entry(seq=3, epoch=1, batch=0))


def test_an_entry_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "evil").mkdir()
    source = FileLog(tmp_path / "log", event_time="ts", fsync=False)
    source.append(table([1]), epoch=1, batch=0)
    entry = next(iter(source.entries(0, 1)))
    bad = replace(entry, segments=(replace(entry.segments[0], file="../../evil/x.arrow"),))
    relay = Relay(lambda: pytest.fail("not needed"), "log", FileLog(tmp_path / "copy"), reader="r")
    with pytest.raises(ChannelError, match="names a file outside the log"):
        relay._publish(bad)


# ---------------------------------------------------------------- who may ask, and how


def test_tls_and_tokens(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    pair = (
        b"".join(p.bytes() for p in certificate.cert_chain_pems).decode(),
        certificate.private_key_pem.bytes().decode(),
    )
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    FileLog(tmp_path / "log").create()
    server = LogServer("localhost:0", credential=ZONE, find=lambda name: FileLog(tmp_path / name), tls=pair)
    address = f"grpc+tls://localhost:{server.port}"
    try:
        trusted = FlightLog(Wire(address, Credentials(ZONE.order_token, ca)), "log")
        assert trusted.append(table([1]), epoch=1, batch=0)
        assert ids(trusted) == [1]
        with pytest.raises(DeploymentError, match="refuses the token"):
            FlightLog(Wire(address, Credentials("wrong", ca)), "log").latest()
        with pytest.raises(Unavailable):  # without encryption, or without trust, there is no exchange at all
            FlightLog(Wire(f"localhost:{server.port}", Credentials(ZONE.order_token)), "log").latest()
        with pytest.raises(Unavailable):
            FlightLog(Wire(address, Credentials(ZONE.order_token)), "log").latest()
    finally:
        server.shutdown()
    assert ZONE.order_token not in repr(Credentials(ZONE.order_token, ca)) and ZONE.text not in repr(ZONE)


@pytest.mark.parametrize(
    ("action", "body", "message"),
    [
        ("log", b"[]", "not a request"),
        ("log", b"{", "not a request"),
        ("log", b"{}", "without a log's name"),
        ("log", b'{"log": "log", "call": "__init__"}', "unknown request '__init__'"),
        ("dance", b"{}", "unknown request 'dance'"),
    ],
)
def test_bad_requests_are_refused(tmp_path: Path, action: str, body: bytes, message: str) -> None:
    import pyarrow.flight as flight

    FileLog(tmp_path / "log").create()
    server = LogServer("127.0.0.1:0", credential=ZONE, find=lambda name: FileLog(tmp_path / name))
    try:
        wire = Wire(f"127.0.0.1:{server.port}", Credentials(ZONE.order_token))
        with pytest.raises(ChannelError, match=message), wire.reading():
            list(wire._opened(5).do_action(flight.Action(action, body), wire._call(5)))
    finally:
        server.shutdown()


def test_only_durable_entries_are_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its publication and its sync, a power cut still takes an entry: its original must not be deleted yet."""
    log = FileLog(tmp_path / "log", fsync=False)
    log.create()
    server = LogServer("127.0.0.1:0", credential=ZONE, find=lambda name: FileLog(tmp_path / name))
    replica = FileLog(tmp_path / "replica", fsync=False)
    published, synced = threading.Event(), threading.Event()
    mirror = FileLog.mirror

    def slow(self: FileLog, entry: Entry) -> None:
        mirror(self, entry)
        if entry.seq == 1:
            published.set()
            assert synced.wait(60)

    monkeypatch.setattr(FileLog, "mirror", slow)
    address = f"127.0.0.1:{server.port}"
    connect = lambda: FlightLog(Wire(address, Credentials(ZONE.order_token)), "log")  # noqa: E731
    turns: list[None] = []

    class CountedMeter(LinkMeter):
        def may_ask(self) -> bool:
            turns.append(None)  # the thread that acknowledges asks in each of its turns
            return False

    relay = Relay(connect, "r", replica, reader="relay", meter=CountedMeter())
    for batch in range(2):
        log.append(table([batch]), epoch=1, batch=batch)
    relay.start()
    try:
        until(lambda: log.readers().get("relay", 0) == 1)
        assert published.wait(60)
        assert replica.latest() == 2
        before = len(turns)
        until(lambda: len(turns) >= before + 2)
        assert log.readers()["relay"] == 1
        synced.set()
        until(lambda: log.readers()["relay"] == 2)
    finally:
        synced.set()
        relay.stop()
        server.shutdown()
