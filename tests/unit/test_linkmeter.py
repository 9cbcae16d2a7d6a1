"""The capacity, use and delay of a link, measured from the times at which relays receive data."""

from __future__ import annotations

import random

import pytest

from headwater.channels.linkmeter import ASK_SECONDS, WINDOW, Line, LinkMeter

PIECE = 64 * 1024
A, B = "relay a", "relay b"


class Receiving:
    """A meter with its own clock, and a link that sends data to it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.meter = LinkMeter(lambda: self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def backlog(self, size: int, rate: float, *, relay: str = A, piece: int = PIECE) -> None:
        """Receive a backlog at a rate until no data is left; the first piece is small."""
        self.meter.came(relay, 4096, 1.0)
        left = size - 4096
        while left > 0:
            count = min(piece, left)
            self.wait(count / rate)
            self.meter.came(relay, count, count / rate)
            left -= count
        self.meter.broke(relay)


@pytest.fixture
def receiving() -> Receiving:
    return Receiving()


def test_nothing_is_known_while_nothing_has_waited(receiving: Receiving) -> None:
    for _ in range(100):
        receiving.wait(0.2)
        receiving.meter.came(A, 50_000, 0.2)
        receiving.meter.broke(A)
    assert receiving.meter.capacity is None
    assert receiving.meter.bytes_per_s == pytest.approx(250_000, rel=0.02)
    receiving.wait(WINDOW + 1)
    assert receiving.meter.bytes_per_s == 0


@pytest.mark.parametrize("size", [40 * 1024, 500_000, 50_000_000])
def test_what_waits_comes_as_fast_as_the_link_is(receiving: Receiving, size: int) -> None:
    receiving.backlog(size, 2e6)
    assert receiving.meter.capacity == pytest.approx(2e6)
    receiving.wait(3600)
    receiving.meter.came(A, 1000, 1.0)
    receiving.meter.broke(A)
    assert receiving.meter.capacity == pytest.approx(2e6)  # the last known capacity


def test_a_few_bytes_tell_nothing(receiving: Receiving) -> None:
    receiving.backlog(20_000, 2e6)
    assert receiving.meter.capacity is None


def test_small_entries_that_wait_tell_it_together(receiving: Receiving) -> None:
    receiving.backlog(200_000, 1e5, piece=1000)
    assert receiving.meter.capacity == pytest.approx(1e5)


@pytest.mark.parametrize("busy", [True, False])
def test_it_falls_when_a_link_is_throttled_and_rises_when_it_recovers(receiving: Receiving, busy: bool) -> None:
    """Test with data all the time, and with a little data now and then."""

    def at(rate: float, seconds: float) -> None:
        until = receiving.now + seconds
        while receiving.now < until:
            receiving.backlog(int(rate) if busy else 100_000, rate)
            receiving.wait(0 if busy else 0.5)

    at(20e6, 15)
    assert receiving.meter.capacity == pytest.approx(20e6)
    at(100e3, 4)
    assert receiving.meter.capacity == pytest.approx(100e3, rel=0.2)
    at(20e6, 2 if busy else WINDOW)
    assert receiving.meter.capacity == pytest.approx(20e6, rel=0.2)


def test_a_piece_that_does_not_come_tells_that_the_link_is_slow(receiving: Receiving) -> None:
    receiving.backlog(2_000_000, 20e6)
    receiving.meter.came(A, PIECE, 1.0)
    receiving.wait(2)
    assert receiving.meter.capacity == pytest.approx(PIECE / 2)
    receiving.meter.broke(A)  # the link is down, or all data has arrived
    assert receiving.meter.capacity == pytest.approx(20e6)


def test_behind_a_token_bucket_the_burst_is_not_the_capacity(receiving: Receiving) -> None:
    meter = receiving.meter
    for _ in range(5):
        receiving.wait(1)
        meter.came(A, 4096, 1.0)
        for _ in range(2):  # the burst of the bucket
            receiving.wait(0.0005)
            meter.came(A, PIECE, 0.0005)
        for _ in range(4):
            receiving.wait(PIECE / 400e3)
            meter.came(A, PIECE, PIECE / 400e3)
        meter.broke(A)
    assert meter.capacity is not None and 400e3 < meter.capacity < 650e3


def test_what_comes_and_leaves_nothing_waiting_fits(receiving: Receiving) -> None:
    receiving.backlog(200_000, 50e3)
    for _ in range(30):
        receiving.wait(0.1)
        receiving.meter.came(A, 15_000, 0.1)
        receiving.meter.broke(A)
    assert receiving.meter.capacity == pytest.approx(150e3, rel=0.1)
    receiving.wait(3600)
    assert receiving.meter.capacity == pytest.approx(50e3, rel=0.05)


def test_two_relays_have_their_link_in_common(receiving: Receiving) -> None:
    meter = receiving.meter
    for relay in (A, B):
        meter.came(relay, PIECE, 1.0)
    for _ in range(20):
        for relay in (A, B):
            receiving.wait(PIECE / 1e6)
            meter.came(relay, PIECE, 0.05)
    assert meter.capacity == pytest.approx(1e6, rel=0.1)
    meter.broke(A)
    receiving.wait(2 * PIECE / 1e6)
    meter.came(B, 2 * PIECE, 1.0)
    assert meter.capacity == pytest.approx(1e6, rel=0.1)


def test_a_slow_receiver_is_no_slow_link(receiving: Receiving) -> None:
    """The receiver takes 30 ms to store an entry; the next entries arrive meanwhile."""
    meter = receiving.meter

    def stored(count: int) -> None:
        meter.came(A, 10_000, 0.05)
        for _ in range(count):
            receiving.wait(0.03)
            meter.came(A, 10_000, 0.0001)
        meter.broke(A)

    stored(50)
    assert meter.capacity is None
    receiving.backlog(1_000_000, 5e6)
    stored(50)
    assert meter.capacity == pytest.approx(5e6)


def test_a_slow_receiver_behind_a_slower_link_measures_the_link(receiving: Receiving) -> None:
    rng, meter = random.Random(1), receiving.meter
    meter.came(A, 10_000, 1.0)
    for _ in range(100):
        storing = rng.choice([0.03, 0.15])  # the link takes 0.1 s per entry: some entries have arrived already
        lag = max(0.0, 0.1 - storing)
        receiving.wait(storing + lag)
        meter.came(A, round(100e3 * (storing + lag)), lag)
    assert meter.capacity == pytest.approx(100e3, rel=0.05)


def test_what_was_held_back_here_does_not_count(receiving: Receiving) -> None:
    meter = receiving.meter
    receiving.backlog(1_000_000, 1e6)
    meter.broke(A, held=True)
    receiving.wait(5)
    for _ in range(50):  # data from buffers of this machine
        meter.came(A, PIECE, 0.0)
        receiving.wait(0.001)
    for _ in range(8):
        receiving.wait(PIECE / 1e6)
        meter.came(A, PIECE, PIECE / 1e6)
    assert meter.capacity == pytest.approx(1e6, rel=0.02)


def test_memory_is_bounded(receiving: Receiving) -> None:
    for _ in range(20_000):
        receiving.wait(0.01)
        receiving.meter.came(A, 100, 0.01)
    assert len(receiving.meter._slices) < 2 * WINDOW / 0.1


def test_the_delay_is_half_the_least_of_the_last_trips(receiving: Receiving) -> None:
    meter = receiving.meter
    assert meter.delay_s is None and meter.may_ask() and not meter.may_ask()
    receiving.wait(ASK_SECONDS)
    assert meter.may_ask()
    for seconds in (0.04, 0.9, 0.05, 0.06):
        meter.took(seconds)
    assert meter.delay_s == 0.02
    meter.took(0.07)
    assert meter.delay_s == 0.025


# ------------------------------------------------------------ queues that no machine reports


class Queue:
    """Messages between two machines with unrelated clocks."""

    def __init__(self, receiving: Receiving, *, rate: float, trip: float = 0.05) -> None:
        self.receiving = receiving
        self.line = Line(lambda: receiving.now)
        self.rate, self._trip = rate, trip
        self._free = receiving.now
        self._apart = 12_345.0

    def send(self, count: int, at: float) -> None:
        """Send a piece, then the message that there is no more; receive both as they arrive."""
        for size in (count, 0):
            asked = self.receiving.now
            self._free = max(self._free, at) + (size + 400) / self.rate
            self.receiving.now = max(asked, self._free + self._trip)
            waited = self.receiving.now - asked
            since = self.line.busy_since(at + self._apart, waited)
            if size:
                self.receiving.meter.came(A, size, waited, since)
            else:
                self.receiving.meter.broke(A)


def test_small_pieces_that_stand_in_line_tell_the_capacity(receiving: Receiving) -> None:
    queue = Queue(receiving, rate=1e6)
    begun = receiving.now
    for n in range(100):
        queue.send(8000, begun + 0.1 * n)
    assert receiving.meter.capacity is None  # no message had to queue
    queue.rate = 50e3
    for n in range(100, 130):
        queue.send(8000, begun + 0.1 * n)
    assert receiving.meter.capacity == pytest.approx(50e3, rel=0.15)
    assert receiving.meter.capacity < 50e3  # the other messages use a part of the capacity
    queue.rate = 1e6
    for n in range(130, 400):
        queue.send(8000, begun + 0.1 * n)
    assert receiving.meter.capacity is not None and receiving.meter.capacity >= 80e3


def test_a_pause_is_not_counted_to_what_comes_after_it(receiving: Receiving) -> None:
    queue = Queue(receiving, rate=50e3)
    begun = receiving.now
    for n in range(200):  # pairs: the second message of each has to queue
        queue.send(8000, begun + 2.0 * (n // 2))
    assert receiving.meter.capacity == pytest.approx(50e3, rel=0.15)


def test_messages_that_were_there_when_asked_for_tell_nothing(receiving: Receiving) -> None:
    line = Line(lambda: receiving.now)
    assert line.busy_since(receiving.now, 1.0) is None
    for _ in range(10):
        receiving.wait(0.03)
        assert line.busy_since(receiving.now - 0.04, 0.0) is None
    assert line.busy_since(None, 1.0) is None


def test_the_least_trip_is_forgotten_after_a_few_streams(receiving: Receiving) -> None:
    """The other side's clock has gone ahead meanwhile: messages that do not queue seem to take longer."""
    line = Line(lambda: receiving.now)
    line.busy_since(receiving.now, 1.0)

    def late() -> bool:
        receiving.wait(1.0)
        line.busy_since(receiving.now - 1.1, 1.0)
        return line.busy_since(receiving.now - 0.1, 1.0) is not None

    assert late()
    for _ in range(3):
        line.began()
        receiving.wait(1.0)
        line.busy_since(receiving.now - 1.1, 1.0)
    assert not late()
