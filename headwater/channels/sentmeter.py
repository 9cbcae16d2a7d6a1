"""Bytes that streams to other zones take, in relation to the stored ones: known where the streams are sent."""

from __future__ import annotations

import threading

_RECENT = 4 * 2**20
"""Stored bytes from which older ones count half, so that a share follows the data."""


class SentMeter:
    """Sums of the bytes of each log's entries, as stored and as sent; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, tuple[float, float]] = {}

    def note(self, log: str, *, stored: int, sent: int) -> None:
        """Count a sent entry."""
        with self._lock:
            before, crossed = self._sums.get(log, (0.0, 0.0))
            if before >= _RECENT:
                before, crossed = before / 2, crossed / 2
            self._sums[log] = (before + stored, crossed + sent)

    def share(self, log: str) -> float | None:
        """Return the sent bytes for each stored one; None before the first entry."""
        with self._lock:
            stored, sent = self._sums.get(log, (0.0, 0.0))
        return sent / stored if stored else None
