"""Throughput, capacity and delay of a link, measured at the receiving end.

While data waits at the far end it is sent without a break, and the far end reports when no more
waits. Until that report, the time between two chunks is the link's transmission time: bytes divided by it
are the capacity. The first chunk after a break measures nothing, because its time of sending is unknown.
Nor do chunks that had arrived before they were asked for: then the receiver was slow. They count
with the next chunk that the receiver waited for, or not at all.

Small chunks may also queue in the buffers of both machines and of the network between
them. Their time of sending reveals that (``Line``).

Several channels share a link. While any of them has data waiting the link is busy, and the bytes of all
channels count. Traffic of other deployments and programs is not seen: the meter sees its own share of
the link.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

WINDOW = 10.0
"""Seconds over which bytes are counted, and after which newer measurements replace one of the capacity."""

ENOUGH_SECONDS = 2.0
ENOUGH_BYTES = 1024 * 1024
"""The newest chunks that together took this long, or have this many bytes, give the capacity.

It is their mean, not their maximum: behind a token bucket the first chunks after a break arrive faster than
the link's lasting rate."""

LEAST_BYTES = 32 * 1024
"""Fewer bytes give no capacity."""

ASK_SECONDS = 5.0
"""Seconds between two requests that measure the delay."""

_LINE_SECONDS = 0.003  # a message that was late, and waited for, by this long has queued
_STREAMS = 3  # streams of half a minute, in which clocks drift little
_TRIPS = 4  # round trips kept: the shortest counts, because the others have waited behind data
_SLICE = 0.1  # seconds whose chunks are summed
_WAITED = 0.25  # least share of a chunk's time spent waiting for it; below, the receiver was slow


class Line:
    """Find the messages of a stream that have queued behind the one before.

    The far end has another clock. But the least difference between a message's arrival here and its sending
    there is the time of one that did not queue, plus the clocks' offset: a message sent earlier than that
    before the last arrival found the link busy. ``began`` drops old measurements, because clocks drift.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._least: deque[float] = deque([float("inf")], maxlen=_STREAMS)
        self._before = self._free = float("-inf")

    def began(self) -> None:
        """Start the next stream."""
        self._least.append(float("inf"))
        self._before = self._free = float("-inf")

    def busy_since(self, sent: float | None, waited: float) -> float | None:
        """Record a message's arrival; return since when the link has been busy, None if the message did not queue.

        ``waited``: seconds that the receiver waited for it. A message that had arrived already gives None.
        """
        now = self._clock()
        before, self._before = self._before, now
        if sent is not None:
            self._least[-1] = min(self._least[-1], now - sent)
            if sent + min(self._least) + _LINE_SECONDS < before:
                return self._free if waited >= _LINE_SECONDS else None
        self._free = now
        return None


@dataclass
class _Slice:
    """Bytes of a short time: ``told`` of them came while the link was ``busy`` for that many seconds."""

    began: float
    bytes: int = 0
    told: int = 0
    busy: float = 0.0


class LinkMeter:
    """Measure one link from the bytes that its relays receive; safe to use from many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began = self._last = clock()
        self._slices: deque[_Slice] = deque()
        self._largest = 0
        self._waiting: set[object] = set()
        """The relays with data waiting at the far end."""
        self._told, self._busy = 0, 0.0  # of chunks that had arrived before they were asked for
        self._held = False
        self._trips: deque[float] = deque(maxlen=_TRIPS)
        self._asked = float("-inf")

    # ------------------------------------------------------------ reported by relays

    def came(self, relay: object, count: int, waited: float, since: float | None = None) -> None:
        """Count bytes for which a relay has waited ``waited`` seconds; more may wait.

        ``since``: time from which the link is known to have been busy (see ``Line``).
        """
        with self._lock:
            now = self._clock()
            slice_ = self._slice(now)
            slice_.bytes += count
            self._largest = max(self._largest, count)
            if self._waiting or since is not None:
                took = now - (self._last if self._waiting or since is None else max(self._last, since))
                self._busy += took
                self._told += count
                if waited >= _WAITED * took:
                    if not self._held:
                        self._count(slice_)
                    self._told, self._busy, self._held = 0, 0.0, False
            self._waiting.add(relay)
            self._last = now

    def broke(self, relay: object, *, held: bool = False) -> None:
        """Record that no data waits for a relay; ``held``: the relay has paused and does not take it."""
        with self._lock:
            self._held = self._held or held
            if relay not in self._waiting:
                return
            self._waiting.remove(relay)
            if self._waiting:
                return
            # The receiver was slow: the link has at least this capacity.
            known = self._measured()
            if not self._held and known is not None and self._busy and self._told / self._busy > known:
                self._count(self._slice(self._clock()))
            self._told, self._busy = 0, 0.0

    def may_ask(self) -> bool:
        """Return whether the delay is due to be measured; a caller that gets True measures it."""
        with self._lock:
            now = self._clock()
            if now - self._asked < ASK_SECONDS:
                return False
            self._asked = now
            return True

    def took(self, seconds: float) -> None:
        """Record the round-trip time of a small request in seconds."""
        with self._lock:
            self._trips.append(seconds)

    # ------------------------------------------------------------ results

    @property
    def delay_s(self) -> float | None:
        """One-way delay; None before the first answer."""
        with self._lock:
            return min(self._trips) / 2 if self._trips else None

    @property
    def bytes_per_s(self) -> float:
        """Throughput in the last ``WINDOW`` seconds, or since the beginning."""
        with self._lock:
            now = self._clock()
            return self._rate(now, min(WINDOW, max(now - self._began, 1.0)))

    @property
    def capacity(self) -> float | None:
        """Bytes/s while more data was waiting; None until that was ever so."""
        with self._lock:
            found, now = self._measured(), self._clock()
            if found is None or (self._waiting and now <= self._last):
                return found
            if self._waiting:  # all but the last bit of an overdue chunk may be here
                return min(found, self._largest / (now - self._last))
            return max(found, self._rate(now, ENOUGH_SECONDS))  # the link carries at least the current rate

    # ------------------------------------------------------------ sums

    def _rate(self, now: float, over: float) -> float:
        return sum(s.bytes for s in self._slices if now - s.began <= over) / over

    def _slice(self, now: float) -> _Slice:
        if not self._slices or now - self._slices[-1].began > _SLICE:
            self._slices.append(_Slice(now))
            self._forget(now)
        return self._slices[-1]

    def _count(self, slice_: _Slice) -> None:
        slice_.told += self._told
        slice_.busy += self._busy

    def _measured(self) -> float | None:
        told, busy = 0, 0.0
        for one in reversed(self._slices):
            told += one.told
            busy += one.busy
            if busy >= ENOUGH_SECONDS or told >= ENOUGH_BYTES:
                break
        return told / busy if told >= LEAST_BYTES and busy > 0 else None

    def _forget(self, now: float) -> None:
        """Drop slices older than the window; the last measurement stays until there is a newer one."""
        newer = sum(s.told for s in self._slices if now - s.began <= WINDOW) >= LEAST_BYTES
        kept = (s for s in self._slices if now - s.began <= WINDOW or (s.told and not newer))
        self._slices = deque(kept)
