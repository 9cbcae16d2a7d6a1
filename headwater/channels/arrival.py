"""Ingest times of a batch: when its rows came to their sources, read from the entries it consists of.

Planning a batch reads its entries and writes their ingest times beside the members file. Committing it
reads them back from there and asks neither a log nor a broker.
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
"""Ingest times of the oldest and the newest row, in seconds since 1970."""

MOST_TRACES = 8
"""Traced entries of a batch that are recorded."""
_KEPT = 12  # batches noted; a query keeps fewer
_MOST_BYTES = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """Ingest times of several entries. ``rows``: some entries have rows; ``known``: all of those have a time.

    Where no entry has rows, ``times`` are those of the marks that moved the event time. ``traces``: the
    ``traceparent`` of each that is traced.
    """

    times: Times | None
    rows: bool
    known: bool = True
    traces: tuple[str, ...] = ()


def joined(times: Iterable[Times]) -> Times | None:
    """Return the span of several times; None of an empty list."""
    known = list(times)
    return (min(t[0] for t in known), max(t[1] for t in known)) if known else None


def arrival_of(entries: Iterable[Entry]) -> Arrival:
    """Return the ingest times of entries' rows."""
    entries = list(entries)
    full = [e for e in entries if e.rows]
    times = joined(e.ingested for e in full or entries if e.ingested is not None)
    traces = tuple(e.trace for e in full or entries if e.trace is not None)[:MOST_TRACES]
    return Arrival(times=times, rows=bool(full), known=all(e.ingested is not None for e in full), traces=traces)


def record_arrival(members: Path, end: Mapping[str, int], arrival: Arrival) -> None:
    """Record the arrival of the batch that ends at an offset; a failure to write is ignored."""
    line = json.dumps({"end": dict(end), **asdict(arrival)}) + "\n"
    file = _file(members)
    with contextlib.suppress(OSError, ValueError):  # a full disk, or a file that was damaged
        with open(file, "ab") as out:
            out.write(line.encode())
            size = out.tell()
        if size > _MOST_BYTES + 2 * _KEPT * len(line):
            kept = file.read_text(encoding="utf-8").splitlines(keepends=True)[-_KEPT:]
            write_atomically(file, "".join(kept), fsync=False)


def recorded_arrival(members: Path, end: Mapping[str, int]) -> Arrival | None:
    """Return the recorded arrival of the batch that ends at an offset; None where there is none."""
    try:
        lines = _file(members).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # cut off by a full disk, or by a crash
            record = json.loads(line)
            if record["end"] == end:
                times = record["times"]
                return Arrival(
                    times=None if times is None else (float(times[0]), float(times[1])),
                    rows=bool(record["rows"]),
                    known=bool(record["known"]),
                    traces=tuple(map(str, record.get("traces", ()))),
                )
    return None


def _file(members: Path) -> Path:
    return members.with_suffix(".born")
