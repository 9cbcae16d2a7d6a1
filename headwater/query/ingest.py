"""Ingest times of the rows that led to a batch, derived from the query's offset log.

Before a batch, Spark records the end offset of every source. This and the offset
of the batch before give the batch's input:

- entries of channels and of message spools carry their ingest times (see ``channels.arrival``);
- files came when they were last written, which Spark's list of files records;
- all other rows came between the planning of the previous batch and that of this one.

A batch without new input (windows that close) gets the ingest times of the batch before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headwater.channels.arrival import Times, joined, recorded_arrival
from headwater.channels.open import LogSpec
from headwater.disk.checkpoint import AGAIN, sources_at
from headwater.disk.durable import read_note

_BACK = 5  # most batches without rows after one with rows
_FILES = 100  # most steps of a file source in one batch
_TAIL = 64 * 1024  # bytes of a list of files read at a time, from its end
_CONTROL = "e_"  # prefix of a source that only signals the end of input (see unit)


class Unknown(Exception):
    """The ingest times cannot be determined."""


@dataclass(frozen=True)
class IngestTimes:
    """Ingest times of the rows that led to a batch; ``fresh``: this batch itself has read them.

    ``traces``: the ``traceparent`` of each traced entry of a channel that they came in.
    """

    oldest: float
    newest: float
    fresh: bool
    traces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """Files that record a query's input: its ``checkpoint``, and the members files of its channels."""

    checkpoint: Path
    members: tuple[Path, ...] = ()

    def logs(self) -> dict[str, LogSpec]:
        """Describe the logs that the query reads, and retired ones that it may still read."""
        found: dict[str, LogSpec] = {}
        for file in self.members:
            content = read_note(file)
            found |= {**content.get("retired", {}), **content.get("writers", {})}
        return found


def ingested_of(inputs: Inputs, batch: int) -> IngestTimes | None:
    """Return the ingest times of the rows that led to a planned batch; None where they are unknown.

    Never raise: missing or damaged files are reported where they are needed.
    """
    try:
        for back in range(min(_BACK, batch) + 1):
            times = _read_by(inputs, batch - back)
            if times is not None:
                return replace(times, fresh=times.fresh and back == 0)
    except Exception:  # neither a batch nor a unit's report may fail for it
        return None
    return None


def _read_by(inputs: Inputs, batch: int) -> IngestTimes | None:
    """Return the ingest times of one batch's input; None when it has read nothing. Raise Unknown."""
    offsets = inputs.checkpoint / "offsets"
    now = sources_at((offsets / str(batch)).read_text())
    before = sources_at((offsets / str(batch - 1)).read_text()) if batch else {}
    if not now:
        raise Unknown("the query has no source")
    found: list[Times] = []
    marks: list[Times] = []
    traces: list[str] = []
    for name, (begin, end) in moved(before, now).items():
        if (files := files_between(begin, end)) is not None:
            found += arrivals(inputs.checkpoint / "sources" / name, *files)
        elif is_of_channels(end):
            arrival = next((a for file in inputs.members if (a := recorded_arrival(file, end)) is not None), None)
            if arrival is None or not arrival.known:
                raise Unknown("some entries carry no ingest time")
            traces += arrival.traces
            if arrival.times is not None:
                (found if arrival.rows else marks).append(arrival.times)
        else:
            planned = offsets / str(batch - 1) if batch else inputs.checkpoint / "metadata"
            found.append((os.stat(planned).st_mtime, os.stat(offsets / str(batch)).st_mtime))
    whole = joined(found or marks)
    return None if whole is None else IngestTimes(*whole, fresh=bool(found), traces=tuple(dict.fromkeys(traces)))


# ------------------------------------------------------------ the offset log


def moved(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[Any, Any]]:
    """Return begin and end offset of each source that has advanced; None begins the first batch."""
    return {
        name: (_parsed(before.get(name)), _parsed(end))
        for name, end in now.items()
        if before.get(name) != end and not name.startswith(_CONTROL)
    }


def has_nothing_new(checkpoint: Path, batch: int, source: str) -> bool:
    """Return whether a planned batch found nothing new in any read of a source, after at least one batch.

    Spark asks all sources for what is new when it plans a batch.
    """
    try:
        now, before = (sources_at((checkpoint / "offsets" / str(n)).read_text()) for n in (batch, batch - 1))
    except FileNotFoundError:
        return False
    return all(now.get(name) == before.get(name) for name in now if name == source or name.startswith(source + AGAIN))


def _parsed(offset: str | None) -> Any:
    try:
        return None if offset is None else json.loads(offset)
    except ValueError:
        return offset


def files_between(begin: Any, end: Any) -> tuple[int, int] | None:
    """Return the steps of a file source between two offsets, without the first one; None for other sources."""
    if not isinstance(end, dict) or not isinstance(end.get("logOffset"), int):
        return None
    return (int(begin["logOffset"]) if begin else -1, int(end["logOffset"]))


def is_of_channels(end: Any) -> bool:
    """Return whether an offset is that of channels."""
    return isinstance(end, dict) and bool(end) and all("@" in key for key in end)


# ------------------------------------------------------------ files


def arrivals(log: Path, after: int, upto: int) -> list[Times]:
    """Return the ingest times of a file source's files in the steps ``after`` (without it) to ``upto``."""
    times: list[float] = []
    for step in range(max(after + 1, upto - _FILES + 1), upto + 1):
        plain = log / str(step)
        for entry in _newest_first(plain if plain.exists() else log / f"{step}.compact"):
            if entry["batchId"] < step:
                break  # a compact list begins with all earlier files
            times.append(entry["timestamp"] / 1000)
    return [(min(times), max(times))] if times else []


def entries_of(log: Path, after: int, upto: int) -> Iterator[dict[str, Any]]:
    """Yield the entries of a file source's log in the steps ``after`` (without it) to ``upto``."""
    for step in range(after + 1, upto + 1):
        plain = log / str(step)
        for entry in _newest_first(plain if plain.exists() else log / f"{step}.compact"):
            if entry["batchId"] < step:
                break  # a compact list begins with all earlier files
            yield entry


def _newest_first(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the files in a file source's list, from its end on; the list may be very long."""
    with open(file, "rb") as source:
        at = source.seek(0, os.SEEK_END)
        rest = b""
        while at > 0:
            begin = max(0, at - _TAIL)
            source.seek(begin)
            lines = (source.read(at - begin) + rest).split(b"\n")
            rest, at = lines[0], begin  # the first line may be cut; in the end it is the list's version
            for line in reversed(lines[1:]):
                if line:
                    yield json.loads(line)
