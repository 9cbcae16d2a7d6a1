"""Begin a batch when there is input, at most one in each interval.

With Spark's trigger a batch begins at multiples of the interval, so rows wait for half of it on average, in each zone
again. A query with one source is started with a trigger of 0 seconds instead, and its source waits here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from headwater.channels.base import Offset
from headwater.disk.notefile import NoteFile
from headwater.disk.pace import Pace, read_pace

_LOOK = 0.01  # seconds between two looks for input, shortly after there was some
_SELDOM = 0.05  # and later
_SHORTLY = 3.0
_LATE = 0.2  # share of an interval for which a late entry is awaited before a batch without rows may begin
_LONGEST = 1.0  # seconds that a query without input waits, before Spark may plan a batch without rows


class BatchPace:
    """The begin of each batch of one query, as the source plans it."""

    def __init__(self, file: Path) -> None:
        self._file = NoteFile(file, read_pace)
        self._due = 0.0  # earliest begin of the next batch (monotonic)
        self._newest = 0.0  # begin of the last batch with input
        self._follows = True  # the last call began a batch

    def next_end(self, start: Offset, plan: Callable[[], Offset], look: float = 0.0) -> Offset:
        """Wait until a batch is due and has input; return its end, or ``start`` where there is no input for long.

        ``plan`` returns the end of a batch that began now; ``look``: least seconds between two calls of it. A call that
        follows a batch returns soon after the next one is due, with or without input, because Spark may have to close
        windows in a batch without rows.
        """
        begun, looked = time.monotonic(), 0.0
        while (pace := self._file.now()) is not None:
            now = time.monotonic()
            if pace.ending:
                return start
            if (now >= self._due or pace.draining) and now - looked >= look:
                looked, end = now, plan()
                if end != start or not (pace.on_arrival or pace.draining):
                    self._begin(now, pace, has_input=end != start)
                    return end
                late = _LATE * pace.seconds
                if now >= (self._due + late if self._follows else begun + _LONGEST):
                    self._follows = False
                    return start
            time.sleep(_LOOK if now - self._newest < _SHORTLY else _SELDOM)
        return plan()

    def _begin(self, now: float, pace: Pace, *, has_input: bool) -> None:
        """Note the begin of a batch, or of a trigger without input."""
        self._follows = True
        if has_input:
            self._newest = now
        wait = pace.seconds
        if not pace.on_arrival and pace.seconds:
            wait -= time.time() % pace.seconds
        self._due = now + wait
