"""What a link does, as whoever pulls data over it sees it: bytes, and how fast they come while more waits.

While data waits at the far end it is sent without a break, and the far end says when nothing more
waits. So the time from one piece to the next, as long as nothing of the kind was said, is what the link
took for it: bytes by that time are its capacity. The first piece after a break tells nothing, for nobody
here knows when it was sent. Nor do pieces that had come before they were asked for: then it was this side
that was slow. They count with the next one that had to be waited for, or not at all.

Small pieces may wait where nobody can say so: in the buffers of both machines and of what is between
them. These are told by the time at which they were sent (``Line``).

Several channels share a link. While any of them has data waiting the link is busy, and what comes by all
of these counts. What other deployments, or others altogether, take of the link is seen by none of them: each
one sees its own share.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

WINDOW = 10.0
"""Seconds over which bytes are counted, and after which a measure of capacity gives way to newer ones."""

ENOUGH_SECONDS = 2.0
ENOUGH_BYTES = 1024 * 1024
"""A capacity is told from the newest pieces that took this long, or are this much together.

A sum, not the best of them: behind a token bucket the first pieces after a break come faster than the
link would go on."""

LEAST_BYTES = 32 * 1024
"""Fewer bytes tell nothing."""

ASK_SECONDS = 5.0
"""Between two requests that measure the delay."""

_LINE_SECONDS = 0.003  # by which a message must have been late, and waited for, to have stood in line
_STREAMS = 3  # of half a minute, in which clocks do not drift apart by much
_TRIPS = 4  # round trips kept: the least of them is told, for the others have waited behind data
_SLICE = 0.1  # seconds whose pieces are kept as one
_WAITED = 0.25  # share of the time for a piece for which it was waited, or this side was the slow one


class Line:
    """Tell which messages of a stream have stood in line behind the one before.

    The far end's clock is another one. But the least that a message has ever taken, by the two clocks, is
    what one takes that need not wait, whatever they show: one that was sent that long before the last
    one came has found the link busy. ``began`` forgets what is too old to trust: clocks drift.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._least: deque[float] = deque([float("inf")], maxlen=_STREAMS)
        self._before = self._free = float("-inf")

    def began(self) -> None:
        """Begin with the next stream."""
        self._least.append(float("inf"))
        self._before = self._free = float("-inf")

    def busy_since(self, sent: float | None, waited: float) -> float | None:
        """Take a message as it comes; tell since when there has always been one in line, None if it was not.

        ``waited``: seconds for which it was asked for. One that was there already tells nothing.
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
    """What came in a short time: ``told`` bytes while the link was ``busy`` for as many seconds."""

    began: float
    bytes: int = 0
    told: int = 0
    busy: float = 0.0


class LinkMeter:
    """Take what the relays of one link have received; may be used from many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began = self._last = clock()
        self._slices: deque[_Slice] = deque()
        self._largest = 0
        self._waiting: set[object] = set()
        """The relays for which more may wait."""
        self._told, self._busy = 0, 0.0  # of pieces that had come before they were asked for
        self._held = False
        self._trips: deque[float] = deque(maxlen=_TRIPS)
        self._asked = float("-inf")

    # ------------------------------------------------------------ what relays tell

    def came(self, relay: object, count: int, waited: float, since: float | None = None) -> None:
        """Take bytes for which a relay has waited some seconds; more may be to come.

        ``since``: by this clock, from when on the link is known to have been busy (see ``Line``).
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
        """Note that nothing waits for a relay; ``held``: that it does not take what waits."""
        with self._lock:
            self._held = self._held or held
            if relay not in self._waiting:
                return
            self._waiting.remove(relay)
            if self._waiting:
                return
            # This side was the slow one: the link does that much at least.
            known = self._measured()
            if not self._held and known is not None and self._busy and self._told / self._busy > known:
                self._count(self._slice(self._clock()))
            self._told, self._busy = 0, 0.0

    def may_ask(self) -> bool:
        """Tell whether it is time to measure the delay again; who is told so does it."""
        with self._lock:
            now = self._clock()
            if now - self._asked < ASK_SECONDS:
                return False
            self._asked = now
            return True

    def took(self, seconds: float) -> None:
        """Take what a small request and its answer took."""
        with self._lock:
            self._trips.append(seconds)

    # ------------------------------------------------------------ what is seen

    @property
    def delay_s(self) -> float | None:
        """One way; None before the first answer."""
        with self._lock:
            return min(self._trips) / 2 if self._trips else None

    @property
    def bytes_per_s(self) -> float:
        """What has come in the last ``WINDOW`` seconds, or since the beginning."""
        with self._lock:
            now = self._clock()
            return self._rate(now, min(WINDOW, max(now - self._began, 1.0)))

    @property
    def capacity(self) -> float | None:
        """Bytes/s at which data came while more was waiting; None as long as that was never so."""
        with self._lock:
            found, now = self._measured(), self._clock()
            if found is None or (self._waiting and now <= self._last):
                return found
            if self._waiting:  # of a piece that is long in coming, all but the last bit may be here
                return min(found, self._largest / (now - self._last))
            return max(found, self._rate(now, ENOUGH_SECONDS))  # what comes and leaves nothing waiting fits

    # ------------------------------------------------------------ the sums

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
        """Let go what is older than the window; while nothing newer has waited, the last measure stays."""
        newer = sum(s.told for s in self._slices if now - s.began <= WINDOW) >= LEAST_BYTES
        kept = (s for s in self._slices if now - s.began <= WINDOW or (s.told and not newer))
        self._slices = deque(kept)
