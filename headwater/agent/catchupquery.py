"""The query of a unit that catches up. It is started in a thread: the unit is told of further batches meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headwater.core.errors import HeadwaterError, RuntimeFailure
from headwater.query.query import Running

_MOST = 60.0  # seconds to start a query


class CatchUpQuery:
    """A query that is being started, runs, or has failed."""

    def __init__(self, unit: str, start: Callable[[], Running]) -> None:
        self._unit = unit
        self._start = start
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

    def started(self) -> Running | None:
        """Wait until it has been started; return None where it does not run."""
        self._thread.join(_MOST)
        return None if self._thread.is_alive() or self.error is not None else self._running
