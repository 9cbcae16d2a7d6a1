"""Full garbage collections at quiet moments: with 500 zones one stops the process for 0.3 s.

Python starts one when enough objects have outlived younger collections, so most often in the middle of a read of new
figures. Here it waits until a read has found nothing new, or for three minutes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

QUIET_SECONDS, MOST_SECONDS = 60.0, 180.0
"""Least seconds between two full collections at quiet moments, and at any others."""
_NEVER = 1_000_000_000


class QuietCollector:
    """Decides when a process collects all garbage, while started."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, collect: Callable[[], object] = gc.collect) -> None:
        self._clock = clock
        self._collect = collect
        self._former: tuple[int, int, int] | None = None
        self._last = clock()

    def start(self) -> None:
        """Leave young collections to Python, and full ones to ``rest``."""
        self._former = gc.get_threshold()
        gc.set_threshold(*self._former[:2], _NEVER)
        self._last = self._clock()

    def stop(self) -> None:
        """Leave all collections to Python again."""
        if self._former is not None:
            gc.set_threshold(*self._former)
            self._former = None

    def rest(self, *, quiet: bool) -> None:
        """Collect if it is time; ``quiet``: nobody waits for figures now."""
        if self._clock() - self._last >= (QUIET_SECONDS if quiet else MOST_SECONDS):
            self._collect()
            self._last = self._clock()
