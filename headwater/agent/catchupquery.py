"""The query of a unit that catches up. It is started in a thread: the unit is told of further batches meanwhile.

A query's first batches are slow: their code is loaded. So it is to repeat some before it takes over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headwater.core.errors import HeadwaterError, RuntimeFailure
from headwater.query.query import Running

_MOST = 60.0  # seconds to start a query
_WARM = 2  # repeated batches after which a query is as quick as later
_PATIENCE = 2.0  # seconds without another batch to repeat after which these are not awaited


class CatchUpQuery:
    """A query that is being started, runs, or has failed; ``begun`` is the batch after which it begins.

    ``rare_batches``: further batches of the other unit are too far apart to be awaited.
    """

    def __init__(self, unit: str, start: Callable[[], Running], begun: int, *, rare_batches: bool = False) -> None:
        self._unit = unit
        self._start = start
        self._begun = self._done = begun
        self._patience = 0.0 if rare_batches else _PATIENCE
        self._since = time.monotonic()
        self._running: Running | None = None
        self._error: HeadwaterError | None = None
        self._thread = threading.Thread(target=self._begin, name=f"catch up {unit}", daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        try:
            self._running = self._start()
        except HeadwaterError as error:
            self._error = error
        except Exception as error:
            self._error = RuntimeFailure(f"{type(error).__name__}: {error}", where=f"unit {self._unit}")

    @property
    def error(self) -> HeadwaterError | None:
        """Why it does not run; None while it does, or is being started."""
        return self._error or (self._running.failure(self._unit) if self._running is not None else None)

    def left(self, done: int, *, in_progress: bool = True) -> int:
        """Return how many batches it should still repeat after ``done``; none where no more of them come.

        ``in_progress``: the other unit is doing a batch that this query knows already. It should be stopped then:
        between two batches it may begin one of which this query learns late.
        """
        now = time.monotonic()
        if self._running is None or done != self._done:
            self._done, self._since = done, now
        return 0 if now - self._since > self._patience else max(0 if in_progress else 1, self._begun + _WARM - done)

    def started(self) -> Running | None:
        """Wait until it has been started; return None where it does not run."""
        self._thread.join(_MOST)
        return None if self._thread.is_alive() or self.error is not None else self._running
