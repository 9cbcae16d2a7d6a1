"""Latency tracking of a unit: the age of rows at their commit, and the age of uncommitted ones.

The commit of a batch appends a line to a small file beside the unit's other notes: the batch's input
may be deleted a moment later, so it is the last chance to measure.
"""

from __future__ import annotations

import contextlib
import json
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.channels.log import Log
from headwater.channels.open import open_log
from headwater.core.errors import HeadwaterError
from headwater.core.metrics import Latency
from headwater.disk.checkpoint import cut_off, newest_batch, positions
from headwater.disk.durable import write_atomically
from headwater.query.batchtrace import BatchTrace, traced
from headwater.query.ingest import IngestTimes, Inputs, ingested_of

WINDOW = 10.0
"""Seconds over which the latency is computed."""

_LINES = 100  # lines kept when the file is shortened: more batches than a query runs in that time
_MOST_BYTES = 32 * 1024
_ENTRIES = 16  # entries searched for the first one with rows


@dataclass(frozen=True)
class Passed:
    """A batch that gave rows: commit time, and ingest times of the rows that led to it; s since 1970."""

    batch: int
    at: float
    rows: int
    oldest: float
    newest: float
    trace: Mapping[str, Any] | None = None
    """The JSON form of its ``BatchTrace``, where it is traced."""


@dataclass(frozen=True)
class LatencyTracking:
    """A query's inputs, and the ``file`` that records its committed batches.

    ``late``: its output has waited for event time, which the rows of the batch before have advanced. ``unit`` is that
    of the query, and ``share`` that of its batches with which a trace begins.
    """

    inputs: Inputs
    file: Path
    late: bool = False
    unit: str = ""
    share: float = 0.0

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        members = [str(m) for m in self.inputs.members]
        return {
            "checkpoint": str(self.inputs.checkpoint),
            "members": members,
            "file": str(self.file),
            "late": self.late,
            "unit": self.unit,
            "share": self.share,
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> LatencyTracking:
        """Rebuild it from its JSON form (``to_data``)."""
        inputs = Inputs(Path(data["checkpoint"]), tuple(map(Path, data["members"])))
        unit, share = str(data.get("unit", "")), float(data.get("share", 0.0))
        return cls(inputs, Path(data["file"]), bool(data.get("late")), unit, share)

    def ingested(self, batch: int) -> IngestTimes | None:
        """Return the ingest times of the rows that led to a batch's output; None where they are unknown."""
        return ingested_of(self.inputs, batch - 1 if self.late and batch else batch)

    def trace(self, batch: int, ingested: IngestTimes | None) -> BatchTrace | None:
        """Return the trace of a batch that is about to be published; None where it is not traced."""
        now = planned = time.time()
        with contextlib.suppress(OSError):
            planned = (self.inputs.checkpoint / "offsets" / str(batch)).stat().st_mtime
        return traced(self.unit, batch, ingested, share=self.share, planned=planned, publishing=now)

    def note(self, batch: int, rows: int, ingested: IngestTimes | None, trace: BatchTrace | None = None) -> None:
        """Record a batch that has just been committed; a failure to write is ignored."""
        if not rows or ingested is None:
            return
        parts = [batch, time.time(), rows, ingested.oldest, ingested.newest]
        line = json.dumps(parts if trace is None else [*parts, trace.to_data()])
        with contextlib.suppress(OSError, ValueError):  # a full disk, or a file that was damaged
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.file, "ab") as out:
                out.write(f"{line}\n".encode())
                size = out.tell()
            if size > _MOST_BYTES:
                kept = self.file.read_text(encoding="utf-8").splitlines()[-_LINES:]
                write_atomically(self.file, "".join(f"{line}\n" for line in kept), fsync=False)

    def passed(self, since: float) -> list[Passed]:
        """Return the batches committed after a time; a repeated batch counts at its first commit."""
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
        """Return the latency of the last ``WINDOW`` seconds; None without a committed batch."""
        return latency(self.passed(now - WINDOW))

    def oldest_s(self, reader: str, now: float) -> float | None:
        """Return the age in seconds of the oldest row that is not committed; None when there is none.

        The row is in a log behind the last committed batch's position, or in a batch that
        is running. ``reader``: the id at the logs of a query that has not run a batch yet.
        """
        began = [*_waiting(self.inputs, reader), *_under_way(self.inputs)]
        return max(0.0, now - min(began)) if began else None


def latency(passed: Sequence[Passed], over_s: float = WINDOW) -> Latency | None:
    """Compute the latency of batches, assuming that the rows of each came evenly between its oldest and newest.

    >>> found = latency([Passed(batch=1, at=10.0, rows=100, oldest=8.0, newest=9.0)])
    >>> found.p50, round(found.p95, 2)
    (1.5, 1.95)
    """
    if not passed:
        return None
    # A clock that is behind another one would give negative ages.
    parts = [(max(0.0, p.at - p.newest), max(0.0, p.at - p.oldest), p.rows) for p in passed]
    rows = sum(p.rows for p in passed)
    return Latency(p50=quantile(parts, 0.5), p95=quantile(parts, 0.95), rows=rows, over_s=over_s)


def quantile(parts: Sequence[tuple[float, float, float]], share: float) -> float:
    """Return the value below which a share of the weight of uniform parts (low, high, weight) lies.

    >>> quantile([(0.0, 1.0, 1.0), (4.0, 4.0, 1.0)], 0.25), quantile([(0.0, 1.0, 1.0), (4.0, 4.0, 1.0)], 0.95)
    (0.5, 4.0)
    """
    wanted = share * sum(weight for _, _, weight in parts)

    def below(x: float) -> float:
        """Return the weight at or below a value."""
        return sum(w if x >= high else w * (x - low) / (high - low) for low, high, w in parts if x >= low)

    edges = sorted({edge for low, high, _ in parts for edge in (low, high)})
    at = bisect_left(edges, wanted, key=below)
    if at == 0 or at >= len(edges):
        return edges[min(at, len(edges) - 1)]
    # Between two edges the weight grows evenly, except for parts that lie on the upper edge alone.
    left, right = edges[at - 1], edges[at]
    start = below(left)
    slope = sum(w / (high - low) for low, high, w in parts if low <= left and high >= right and high > low)
    return min(right, left + (wanted - start) / slope) if slope else right


def _waiting(inputs: Inputs, reader: str) -> list[float]:
    """Return, for each log with uncommitted rows, the ingest time of the oldest of them."""
    found: list[float] = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, HeadwaterError):  # missing, damaged
        at = positions(inputs.checkpoint)
        for id_, spec in inputs.logs().items():
            log = open_log(spec)
            stop = log.latest()
            # A log that is no longer in the offsets was read to its end, unless it is new.
            start = at[id_] if id_ in at else log.readers().get(reader, stop if at else 0)
            found += first_came(log, start, stop)
    return found


def first_came(log: Log, start: int, stop: int) -> list[float]:
    """Return the ingest time of the first row of a log's entries; an empty list where they have no rows."""
    for entry in log.entries(start, min(stop, max(start, log.earliest()) + _ENTRIES)):
        if entry.rows:
            return [entry.ingested[0] if entry.ingested else entry.written]
    return []


def _under_way(inputs: Inputs) -> list[float]:
    """Return the ingest time of the oldest row in a batch that is not committed."""
    if not cut_off(inputs.checkpoint):
        return []
    ingested = ingested_of(inputs, newest_batch(inputs.checkpoint / "offsets"))
    return [ingested.oldest] if ingested is not None and ingested.fresh else []
