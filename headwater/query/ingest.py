"""When the rows that led to a batch came to a source: told by what the query says it has read.

Spark writes down, before it does a batch, how far the batch goes in every source. From that and the
number before follows what it reads:

- entries of channels and of spools of messages, which carry their own word (see ``channels.arrival``);
- files: they came when they were last written, which Spark's list of them tells;
- anything else: it came between the planning of the batch before and that of this one.

A batch that reads nothing new (windows that close) is counted to the rows of the one before it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.channels.arrival import Times, joined, word_of
from headwater.channels.open import LogSpec
from headwater.disk.durable import read_note

_BACK = 5  # batches without rows after one that had some
_FILES = 100  # steps of a file source in one batch
_TAIL = 64 * 1024  # bytes of a list of files that are read at a time, from its end
_CONTROL = "e_"  # begins the name of a source that only tells of the end (see unit)


class Unknown(Exception):
    """It cannot be told."""


@dataclass(frozen=True)
class IngestTimes:
    """When the rows came that led to a batch; ``fresh``: it is this batch that has read them."""

    oldest: float
    newest: float
    fresh: bool


@dataclass(frozen=True)
class Inputs:
    """Where it stands what a query reads: its ``checkpoint``, and the members files of its channels."""

    checkpoint: Path
    members: tuple[Path, ...] = ()

    def logs(self) -> dict[str, LogSpec]:
        """Describe the logs that the query reads, and those taken out that it may still read."""
        found: dict[str, LogSpec] = {}
        for file in self.members:
            content = read_note(file)
            found |= {**content.get("retired", {}), **content.get("writers", {})}
        return found


def ingested_of(inputs: Inputs, batch: int) -> IngestTimes | None:
    """Tell when the rows came that led to a batch that is planned; None where that is not to be had.

    Never an error: what is missing or odd is left to those whose business it is.
    """
    try:
        for back in range(min(_BACK, batch) + 1):
            times = _read_by(inputs, batch - back)
            if times is not None:
                return IngestTimes(times.oldest, times.newest, times.fresh and back == 0)
    except Exception:  # neither a batch nor a look at a unit may fail for it
        return None
    return None


def _read_by(inputs: Inputs, batch: int) -> IngestTimes | None:
    """Tell when the rows came that one batch has read; None when it has read nothing. Raise Unknown."""
    offsets = inputs.checkpoint / "offsets"
    now = sources_at((offsets / str(batch)).read_text())
    before = sources_at((offsets / str(batch - 1)).read_text()) if batch else {}
    if not now:
        raise Unknown("no query is without a source")
    found: list[Times] = []
    marks: list[Times] = []
    for name, (begin, end) in moved(before, now).items():
        if (files := files_between(begin, end)) is not None:
            found += arrivals(inputs.checkpoint / "sources" / name, *files)
        elif is_of_channels(end):
            word = next((w for file in inputs.members if (w := word_of(file, end)) is not None), None)
            if word is None or not word.known:
                raise Unknown("rows of which nobody has said when they came")
            if word.times is not None:
                (found if word.rows else marks).append(word.times)
        else:
            planned = offsets / str(batch - 1) if batch else inputs.checkpoint / "metadata"
            found.append((os.stat(planned).st_mtime, os.stat(offsets / str(batch)).st_mtime))
    whole = joined(found or marks)
    return None if whole is None else IngestTimes(*whole, fresh=bool(found))


# ------------------------------------------------------------ what an offset log says


def sources_at(text: str) -> dict[str, str]:
    """Read how far every named source is from a file of Spark's offset log (of version 2)."""
    parts = (line.partition(":") for line in text.splitlines()[2:])
    return {name: offset for name, colon, offset in parts if colon}


def moved(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[Any, Any]]:
    """Give the offsets of the sources that have moved on, None before the first one."""
    return {
        name: (_parsed(before.get(name)), _parsed(end))
        for name, end in now.items()
        if before.get(name) != end and not name.startswith(_CONTROL)
    }


def _parsed(offset: str | None) -> Any:
    try:
        return None if offset is None else json.loads(offset)
    except ValueError:
        return offset


def files_between(begin: Any, end: Any) -> tuple[int, int] | None:
    """Give the steps of a file source between two offsets, the first one left out; None of another source."""
    if not isinstance(end, dict) or "logOffset" not in end:
        return None
    return (int(begin["logOffset"]) if begin else -1, int(end["logOffset"]))


def is_of_channels(end: Any) -> bool:
    """Tell whether an offset is one of channels."""
    return isinstance(end, dict) and bool(end) and all("@" in key for key in end)


# ------------------------------------------------------------ files


def arrivals(log: Path, after: int, upto: int) -> list[Times]:
    """Tell when the files came that a file source took in the steps after one, up to another."""
    times: list[float] = []
    for step in range(max(after + 1, upto - _FILES + 1), upto + 1):
        plain = log / str(step)
        for entry in _newest_first(plain if plain.exists() else log / f"{step}.compact"):
            if entry["batchId"] < step:
                break  # of a compact list that begins with all there was before
            times.append(entry["timestamp"] / 1000)
    return [(min(times), max(times))] if times else []


def _newest_first(file: Path) -> Iterator[dict[str, Any]]:
    """Give the files in a list of a file source, its last one first; the list may be very long."""
    with open(file, "rb") as source:
        at = source.seek(0, os.SEEK_END)
        rest = b""
        while at > 0:
            begin = max(0, at - _TAIL)
            source.seek(begin)
            lines = (source.read(at - begin) + rest).split(b"\n")
            rest, at = lines[0], begin  # the first one may be cut; at last it is the list's version
            for line in reversed(lines[1:]):
                if line:
                    yield json.loads(line)
