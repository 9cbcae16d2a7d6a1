"""Streams of files of JSON lines, written at a constant rate."""

from __future__ import annotations

import json
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Feed(threading.Thread, ABC):
    """Write ``rate`` rows a second to each of some streams, a file every second, until it is ended."""

    every = 1.0
    """Seconds between two files of a stream."""

    def __init__(self, place: Path, streams: Iterable[str], rate: float) -> None:
        super().__init__(daemon=True)
        self._place, self._streams, self._rate = place, tuple(streams), rate
        self._drawn, self._over = random.Random(1), threading.Event()
        for name in self._streams:
            (place / name).mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        number, due, owed = 0, time.monotonic(), 0.0
        while not self._over.is_set():
            number += 1
            due += self.every
            self._over.wait(max(0.0, due - time.monotonic()))
            owed += self._rate * self.every
            count = int(owed)
            owed -= count
            if count:
                for name in self._streams:
                    self.write(name, number, count, time.time())

    def write(self, name: str, number: int, count: int, now: float) -> None:
        """Write a file of rows, whose times are those of the last ``every`` seconds."""
        lines = [json.dumps(self.row(name, now - self.every * (count - n) / count)) for n in range(count)]
        draft = self._place / name / f".{number:08d}"
        draft.write_text("\n".join(lines) + "\n")
        draft.rename(self._place / name / f"{number:08d}.json")

    @abstractmethod
    def row(self, name: str, at: float) -> dict[str, Any]:
        """Draw a row of a stream; ``at``: its time, in seconds since 1970."""

    def end(self) -> None:
        """Stop writing."""
        self._over.set()
        self.join()
