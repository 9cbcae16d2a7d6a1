"""The file that tells the source of a running query when its next batch may begin.

Spark begins the batches of such a query one after another, and its source waits: see ``channels.batchpace``.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from headwater.disk.durable import read_note, write_atomically


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When batches begin.

    ``seconds``: least time from the begin of a batch to that of the next. ``on_arrival``: a batch begins when there is
    input, else at multiples of that time, as with Spark's trigger. ``ending``: the query is about to be stopped, and
    begins no batch.
    """

    seconds: float
    on_arrival: bool
    ending: bool = False


def write_pace(file: Path, pace: Pace) -> None:
    """Replace the file. It is written at each start of a query, so it need not survive a power cut."""
    write_atomically(file, json.dumps(asdict(pace)), fsync=False)


def set_ending(file: Path, *, ending: bool) -> None:
    """Let a query begin no further batch, so that it can be stopped at once, or let it go on after all."""
    if (note := read_note(file)) and note["ending"] != ending:
        write_pace(file, replace(Pace(**note), ending=ending))


class PaceFile:
    """The file as a source sees it, read again where it has changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stamp: tuple[int, int, int] | None = None
        self._found: Pace | None = None

    def now(self) -> Pace | None:
        """Return the present content; None where Spark's own trigger is in use."""
        try:
            status = os.stat(self._file)
        except FileNotFoundError:
            return None
        stamp = status.st_mtime_ns, status.st_ino, status.st_size
        if stamp != self._stamp:
            note = read_note(self._file)
            self._found, self._stamp = Pace(**note) if note else None, stamp
        return self._found
