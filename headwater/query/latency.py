"""What has gone through a unit of late: how old it was then, and how old is what waits.

Whoever commits a batch leaves a line in a small file beside the unit's other notes: what the batch read
may be deleted a moment later, so nobody else could tell.
"""

from __future__ import annotations

import contextlib
import json
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.channels.log import Log
from headwater.channels.open import open_log
from headwater.core.errors import HeadwaterError
from headwater.core.metrics import Latency
from headwater.disk.checkpoint import cut_off, newest_batch, positions
from headwater.disk.durable import write_atomically
from headwater.query.ingest import IngestTimes, Inputs, ingested_of

WINDOW = 10.0
"""Seconds of batches of which a latency is told."""

_LINES = 100  # kept when the file is made shorter: more than a query does in that time
_MOST_BYTES = 32 * 1024
_ENTRIES = 16  # looked at for the first one with rows


@dataclass(frozen=True)
class Passed:
    """A batch that gave rows: when it was committed, and when those came that led to it; s since 1970."""

    batch: int
    at: float
    rows: int
    oldest: float
    newest: float


@dataclass(frozen=True)
class LatencyTracking:
    """What a query reads, and the ``file`` in which it is noted what has gone through.

    ``late``: what it gives has waited for event time, which the rows of the batch before have moved.
    """

    inputs: Inputs
    file: Path
    late: bool = False

    def to_data(self) -> dict[str, Any]:
        """Give it as JSON-able data."""
        members = [str(m) for m in self.inputs.members]
        return {
            "checkpoint": str(self.inputs.checkpoint),
            "members": members,
            "file": str(self.file),
            "late": self.late,
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> LatencyTracking:
        """Read what ``to_data`` gave."""
        inputs = Inputs(Path(data["checkpoint"]), tuple(map(Path, data["members"])))
        return cls(inputs, Path(data["file"]), bool(data.get("late")))

    def ingested(self, batch: int) -> IngestTimes | None:
        """Tell when the rows came that led to what a batch gives; None where that is not to be had."""
        return ingested_of(self.inputs, batch - 1 if self.late and batch else batch)

    def note(self, batch: int, rows: int, ingested: IngestTimes | None) -> None:
        """Note a batch that has just been committed; a note that cannot be written is not."""
        if not rows or ingested is None:
            return
        line = json.dumps([batch, time.time(), rows, ingested.oldest, ingested.newest])
        with contextlib.suppress(OSError, ValueError):  # a full disk, or a file that was damaged
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.file, "ab") as out:
                out.write(f"{line}\n".encode())
                size = out.tell()
            if size > _MOST_BYTES:
                kept = self.file.read_text(encoding="utf-8").splitlines()[-_LINES:]
                write_atomically(self.file, "".join(f"{line}\n" for line in kept), fsync=False)

    def passed(self, since: float) -> list[Passed]:
        """Give the batches committed after a time; one that was repeated counts when it was first."""
        try:
            lines = self.file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return []
        found: dict[int, Passed] = {}
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):  # cut off by a full disk, or by a crash
                one = Passed(*json.loads(line))
                if one.at > since and (one.batch not in found or one.at < found[one.batch].at):
                    found[one.batch] = one
        return list(found.values())

    def latency(self, now: float) -> Latency | None:
        """Tell how old was what has gone through in the last ``WINDOW`` seconds; None when nothing has."""
        return latency(self.passed(now - WINDOW))

    def oldest_s(self, reader: str, now: float) -> float | None:
        """Tell the age of the oldest row that has come and has not gone through; None when none waits.

        It is in a log before the position that the last committed batch has reached, or in a batch that
        is under way. ``reader``: by which the logs know a query that has not done a batch yet.
        """
        began = [*_waiting(self.inputs, reader), *_under_way(self.inputs)]
        return max(0.0, now - min(began)) if began else None


def latency(passed: Sequence[Passed], over_s: float = WINDOW) -> Latency | None:
    """Put batches together: the rows of each came evenly between its oldest and its newest one.

    >>> found = latency([Passed(batch=1, at=10.0, rows=100, oldest=8.0, newest=9.0)])
    >>> found.p50, round(found.p95, 2)
    (1.5, 1.95)
    """
    if not passed:
        return None
    # A clock that goes behind another one would make rows older than their source.
    parts = [(max(0.0, p.at - p.newest), max(0.0, p.at - p.oldest), p.rows) for p in passed]
    rows = sum(p.rows for p in passed)
    return Latency(p50=quantile(parts, 0.5), p95=quantile(parts, 0.95), rows=rows, over_s=over_s)


def quantile(parts: Sequence[tuple[float, float, float]], share: float) -> float:
    """Give the value below which a share of the weight of uniform parts (low, high, weight) lies.

    >>> quantile([(0.0, 1.0, 1.0), (4.0, 4.0, 1.0)], 0.25), quantile([(0.0, 1.0, 1.0), (4.0, 4.0, 1.0)], 0.95)
    (0.5, 4.0)
    """
    wanted = share * sum(weight for _, _, weight in parts)

    def below(x: float) -> float:
        """Give the weight at or below a value."""
        return sum(w if x >= high else w * (x - low) / (high - low) for low, high, w in parts if x >= low)

    edges = sorted({edge for low, high, _ in parts for edge in (low, high)})
    at = bisect_left(edges, wanted, key=below)
    if at == 0 or at >= len(edges):
        return edges[min(at, len(edges) - 1)]
    # Between two edges the weight grows evenly, but for what lies on the upper one alone.
    left, right = edges[at - 1], edges[at]
    start = below(left)
    slope = sum(w / (high - low) for low, high, w in parts if low <= left and high >= right and high > low)
    return min(right, left + (wanted - start) / slope) if slope else right


def _waiting(inputs: Inputs, reader: str) -> list[float]:
    """Tell for each log that has rows nobody committed when the oldest of these came to a source."""
    found: list[float] = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, HeadwaterError):  # not there, damaged
        at = positions(inputs.checkpoint)
        for id_, spec in inputs.logs().items():
            log = open_log(spec)
            stop = log.latest()
            # One that the batches have left has been read to its end, if it is not a new one.
            start = at[id_] if id_ in at else log.readers().get(reader, stop if at else 0)
            found += first_came(log, start, stop)
    return found


def first_came(log: Log, start: int, stop: int) -> list[float]:
    """Tell when the first row of a log's entries came to a source; nothing where none has any."""
    for entry in log.entries(start, min(stop, max(start, log.earliest()) + _ENTRIES)):
        if entry.rows:
            return [entry.ingested[0] if entry.ingested else entry.written]
    return []


def _under_way(inputs: Inputs) -> list[float]:
    """Tell when the oldest row came that a batch has taken which is not committed."""
    if not cut_off(inputs.checkpoint):
        return []
    ingested = ingested_of(inputs, newest_batch(inputs.checkpoint / "offsets"))
    return [ingested.oldest] if ingested is not None and ingested.fresh else []
