"""Begin a batch when there is input, at most one in each interval.

With Spark's trigger a batch begins at multiples of the interval, so rows wait for half of it on average, in each zone
again. A query with one source is started with a trigger of 0 seconds instead, and its source waits here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from headwater.channels.base import Offset
from headwater.disk.filewatch import FileWatch
from headwater.disk.notefile import NoteFile
from headwater.disk.pace import Pace, read_pace

_LOOK = 0.01  # seconds between two looks for input that the system does not report, shortly after there was some
_SELDOM = 0.05  # and later
_SHORTLY = 3.0
_LATE = 0.2  # share of an interval for which a late entry is awaited before a batch without rows may begin
_LONGEST = 1.0  # seconds that a query without input waits, before Spark may plan a batch without rows


class Waits(Protocol):
    """A wait for new files; `disk.filewatch.FileWatch` is one."""

    def wait(self, directories: Collection[Path], seconds: float, *, look: float) -> None:
        """Return when a file has appeared in a directory, or some seconds are over; perhaps after ``look`` seconds."""


class BatchPace:
    """The begin of each batch of one query, as the source plans it."""

    def __init__(self, file: Path, waits: Waits | None = None) -> None:
        self._directory = file.parent
        self._file = NoteFile(file, read_pace)
        self._waits = waits or FileWatch()
        self._due = 0.0  # earliest begin of the next batch (monotonic)
        self._newest = 0.0  # begin of the last batch with input
        self._follows = True  # the last call began a batch

    def next_end(
        self,
        start: Offset,
        plan: Callable[[], Offset],
        look: float = 0.0,
        places: Callable[[], Collection[Path] | None] = lambda: None,
    ) -> Offset:
        """Wait until a batch is due and has input; return its end, or ``start`` where there is no input for long.

        ``plan`` returns the end of a batch that began now; ``look``: least seconds between two calls of it. ``places``
        returns the directories in which new input appears as a file; None: input appears elsewhere. A call that
        follows a batch returns soon after the next one is due, with or without input, because Spark may have to close
        windows in a batch without rows.
        """
        begun, looked = time.monotonic(), 0.0
        while (pace := self._file.now()) is not None:
            now = time.monotonic()
            if pace.ending:
                return start
            if pace.finishing:
                return plan()
            late = _LATE * pace.seconds
            ends = self._due + late if self._follows else begun + _LONGEST
            if (now >= self._due or pace.draining) and now - looked >= look:
                looked, end = now, plan()
                if end != start or not (pace.on_arrival or pace.draining):
                    self._begin(now, pace, has_input=end != start)
                    return end
                if now >= ends:
                    self._follows = False
                    return start
            self._wait(now, ends, places())
        return plan()

    def _wait(self, now: float, ends: float, places: Collection[Path] | None) -> None:
        """Wait for input, for a new pace, or for the moment at which something is due without either."""
        is_recent = now - self._newest < _SHORTLY
        look = _LOOK if is_recent else _SELDOM
        seconds = min((moment - now for moment in (self._due, ends) if moment > now), default=look)
        if places is None:
            time.sleep(min(seconds, look))
            return
        # Shortly after input, a batch may be due without a file: see ``AGAIN_AFTER``.
        longest = _SELDOM if is_recent and now >= self._due else seconds
        self._waits.wait((self._directory, *places), min(seconds, longest), look=look)

    def _begin(self, now: float, pace: Pace, *, has_input: bool) -> None:
        """Note the begin of a batch, or of a trigger without input."""
        self._follows = True
        if has_input:
            self._newest = now
        wait = pace.seconds
        if not pace.on_arrival and pace.seconds:
            wait -= time.time() % pace.seconds
        self._due = now + wait
