"""When the rows of a batch came to the sources they are from, as the entries it is made of say.

Whoever plans a batch has its entries at hand, and leaves word beside its members file. Whoever commits
it finds the word there, and need ask neither a log nor a broker.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from headwater.channels.entry import Entry
from headwater.disk.durable import write_atomically

Times: TypeAlias = tuple[float, float]
"""Of the oldest and of the newest row, in seconds since 1970."""

_KEPT = 12  # words; a query keeps fewer batches than that
_MOST_BYTES = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """What entries say together. ``rows``: some have rows; ``known``: all that have say when these came.

    Where none has rows, ``times`` are those of marks: of what moved the event time.
    """

    times: Times | None
    rows: bool
    known: bool = True


def joined(times: Iterable[Times]) -> Times | None:
    """Give the oldest and the newest of several; None of none."""
    known = list(times)
    return (min(t[0] for t in known), max(t[1] for t in known)) if known else None


def arrival_of(entries: Iterable[Entry]) -> Arrival:
    """Tell when the rows of entries came."""
    entries = list(entries)
    full = [e for e in entries if e.rows]
    times = joined(e.ingested for e in full or entries if e.ingested is not None)
    return Arrival(times=times, rows=bool(full), known=all(e.ingested is not None for e in full))


def leave_word(members: Path, end: Mapping[str, int], arrival: Arrival) -> None:
    """Note what the batch that ends at an offset holds; a word that cannot be written is not."""
    line = json.dumps({"end": dict(end), **asdict(arrival)}) + "\n"
    file = _file(members)
    with contextlib.suppress(OSError, ValueError):  # a full disk, or a file that was damaged
        with open(file, "ab") as out:
            out.write(line.encode())
            size = out.tell()
        if size > _MOST_BYTES + 2 * _KEPT * len(line):
            kept = file.read_text(encoding="utf-8").splitlines(keepends=True)[-_KEPT:]
            write_atomically(file, "".join(kept), fsync=False)


def word_of(members: Path, end: Mapping[str, int]) -> Arrival | None:
    """Give the word on the batch that ends at an offset; None where nobody has left one."""
    try:
        lines = _file(members).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # cut off by a full disk, or by a crash
            word = json.loads(line)
            if word["end"] == end:
                times = word["times"]
                return Arrival(
                    times=None if times is None else (float(times[0]), float(times[1])),
                    rows=bool(word["rows"]),
                    known=bool(word["known"]),
                )
    return None


def _file(members: Path) -> Path:
    return members.with_suffix(".born")
