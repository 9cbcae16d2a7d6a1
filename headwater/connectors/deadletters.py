"""Dead letters: records that do not fit their source's schema, stored with a reason and their position.

A sink writer of kind ``deadletters`` gets rows of text columns ``operator, format, schema, record,
source, location, reason`` (NULL where it is found here) and writes JSON lines ``time, unit, operator, location,
source, line, offset, reason, record, truncated``, each row exactly once, as the sink writer for files does.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import mmap
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from headwater.connectors.filewriter import FileSinkWriter
from headwater.disk.durable import read_note

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.channels.segments import Segment

MAX_RECORD = 64 * 1024
"""Bytes of a record that are stored; the rest is cut."""

_MAX_FILE = 1 << 30  # bytes of the largest source file that is searched
_SECONDS = 5.0  # seconds that one task may spend on finding positions
_OPEN_FILES = 8
_REPLACED = "\ufffd"
_ID_LENGTH = 16  # hexadecimal digits
_NAME = re.compile(r"(?:.*-)?part-(\d+)-(\d+)-(\d+)\.json")


def explain(record: str, *, format: str, schema: str, options: Mapping[str, str] | None = None) -> str:
    """Return why ``record`` does not fit ``schema`` (DDL), read as ``format`` with the reader's options."""
    # Loaded only when there is a dead letter: workers that see none start faster.
    from headwater.connectors import reasons

    return reasons.explain(record, format=format, schema=schema, options=options)


def misfit(record: str, *, format: str, schema: str, options: Mapping[str, str] | None = None) -> str | None:
    """Return why ``record`` does not fit ``schema``; None where no reason is found."""
    from headwater.connectors import reasons

    return reasons.misfit(record, format=format, schema=schema, options=options)


# ---------------------------------------------------------------- positions


@dataclass(frozen=True)
class RecordPosition:
    """Position of a record in its file: its line, from 1, and the offset of its first byte, from 0."""

    line: int
    offset: int


class Locator:
    """Find records in their files; equal records of a file get successive positions.

    Made for records that come in the order of their file, as those of one Spark task do: then a
    file is read once. Tasks do not know of each other: of equal lines in two parts of a
    file that Spark has split (from 4 MiB on), both tasks may name the first. The result is None
    for files that are remote, compressed or over 1 GiB, and after ``seconds`` altogether.
    """

    def __init__(self, *, seconds: float = _SECONDS) -> None:
        self._left = seconds
        self._files: dict[str, _SearchedFile | None] = {}

    def locate(self, record: str, source: str | None) -> RecordPosition | None:
        """Find the next line of ``source`` (a path or file: URI) equal to ``record``; None when there is none."""
        path = local_path(source) if source and record else None
        if path is None or self._left <= 0:
            return None
        began = time.monotonic()
        try:
            file = self._open(path)
            return file.find(record, began + self._left) if file else None
        except (OSError, ValueError):
            return None
        finally:
            self._left -= time.monotonic() - began

    def _open(self, path: str) -> _SearchedFile | None:
        if path not in self._files:
            if len(self._files) >= _OPEN_FILES:
                self._files.pop(next(iter(self._files)))  # the last reference ends its mapping
            self._files[path] = _SearchedFile.open(path)
        return self._files[path]


def local_path(source: str) -> str | None:
    """Return the path of a file: URI or plain path; None for anything but a local file."""
    if source.startswith("file:"):
        rest = source.removeprefix("file:")
        return unquote(rest[2:] if rest.startswith("//") else rest)
    return source if source.startswith("/") else None


_IN_TOPIC = re.compile(r"kafka:([^/]+)/(\d+)@(\d+)")


def topic_position(source: object) -> tuple[str, int, int] | None:
    """Return topic, partition and offset of a record of Kafka; None for other sources.

    >>> topic_position("kafka:readings/3@17")
    ('readings', 3, 17)
    """
    found = _IN_TOPIC.fullmatch(str(source))
    return None if found is None else (found[1], int(found[2]), int(found[3]))


def offset_of(source: object) -> int | None:
    """Return the offset of a record in its partition; None for sources other than Kafka."""
    found = topic_position(source)
    return None if found is None else found[2]


class _SearchedFile:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._next = 0  # where the search for the next record begins
        self._counted = (0, 1)  # an offset, and its line
        self._found: dict[int, int] = {}  # by a record's hash: where the next equal one may begin

    @classmethod
    def open(cls, path: str) -> _SearchedFile | None:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            if not 0 < size <= _MAX_FILE:
                return None
            return cls(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def find(self, record: str, deadline: float) -> RecordPosition | None:
        key = hash(record)
        earliest = self._found.get(key, 0)
        start = max(self._next, earliest)
        span = self._search(record, start, deadline)
        if span is None and start > earliest:
            span = self._search(record, earliest, deadline)
        if span is None:
            return None
        self._next = self._found[key] = span[1]
        return RecordPosition(self._line(span[0]), span[0])

    def _search(self, record: str, start: int, deadline: float) -> tuple[int, int] | None:
        needle = record.encode(errors="surrogatepass")
        # Spark replaces invalid UTF-8 by U+FFFD: it matches any bytes of the line.
        pattern = None
        if _REPLACED in record:
            parts = [re.escape(p.encode(errors="surrogatepass")) for p in re.split(f"{_REPLACED}+", record)]
            pattern = re.compile(rb"[^\n]{1,64}?".join(parts))
        while time.monotonic() < deadline:
            if pattern is not None:
                match = pattern.search(self._data, start)
                span = match.span() if match else None
            else:
                at = self._data.find(needle, start)
                span = (at, at + len(needle)) if at >= 0 else None
            if span is None:
                return None
            if self._whole_lines(*span):
                return span
            start = span[0] + 1
        return None

    def _whole_lines(self, start: int, end: int) -> bool:
        """Return whether the same lines hold only blanks besides."""
        first = self._data.rfind(b"\n", 0, start) + 1
        last = self._data.find(b"\n", end)
        before, after = self._data[first:start], self._data[end : len(self._data) if last < 0 else last]
        return not before.removeprefix(b"\xef\xbb\xbf").strip() and not after.strip()

    def _line(self, offset: int) -> int:
        counted, line = self._counted
        if offset < counted:
            counted, line = 0, 1
        while counted < offset:
            upto = min(offset, counted + (1 << 20))
            line += self._data[counted:upto].count(b"\n")
            counted = upto
        self._counted = (counted, line)
        return line


# ---------------------------------------------------------------- the sink writer


class _ExplainTask(Protocol):
    """Writes the file; writers.SinkWriterTask without the import, which would be a cycle."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> Segment | None: ...

    def abandon(self) -> None: ...


class DeadLetterWriter(FileSinkWriter):
    """Write dead letters: ``path``, ``unit``, and ``options`` of the readers by operator."""

    def __init__(self, spec: Mapping[str, Any], epoch: int) -> None:
        super().__init__({**spec, "format": "json"}, epoch)
        self._unit = spec.get("unit")
        self._options: Mapping[str, Mapping[str, str]] = spec.get("options") or {}

    def open(self) -> _DeadLetterTask:  # type: ignore[override]  # wraps FileSinkWriter's task
        """Start a file in staging."""
        return _DeadLetterTask(super().open(), self._unit, self._options)


class _DeadLetterTask:
    """Turn rows into dead letters on their way to the file."""

    def __init__(self, inner: _ExplainTask, unit: str | None, options: Mapping[str, Mapping[str, str]]) -> None:
        self._inner = inner
        self._unit = unit
        self._options = options
        self._locator = Locator()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        import pyarrow as pa

        if batch.num_rows == 0:
            return
        now = datetime.datetime.now(datetime.UTC)
        letters = [self._letter(row, now) for row in batch.to_pylist()]
        text, number = pa.string(), pa.int64()
        types = {"line": number, "offset": number, "truncated": pa.bool_()}
        types["time"] = pa.timestamp("us", tz="UTC")
        schema = pa.schema([(name, types.get(name, text)) for name in letters[0]])
        self._inner.write(pa.RecordBatch.from_pylist(letters, schema=schema))

    def close(self) -> Segment | None:
        """Finish the file."""
        return self._inner.close()

    def abandon(self) -> None:
        """Remove the file."""
        self._inner.abandon()

    def _letter(self, row: Mapping[str, Any], now: datetime.datetime) -> dict[str, Any]:
        record, source, operator = row.get("record") or "", row.get("source"), row.get("operator")
        options = self._options.get(operator or "")
        place = self._locator.locate(record, source)
        offset = place.offset if place else offset_of(source)
        kept = record.encode(errors="replace")[: MAX_RECORD + 1]
        truncated = len(kept) > MAX_RECORD
        return {
            "time": now,
            "unit": self._unit,
            "operator": operator,
            "location": row.get("location"),
            "source": source,
            "line": place.line if place else None,
            "offset": offset,
            "reason": row.get("reason")
            or explain(record, format=row.get("format") or "", schema=row.get("schema") or "", options=options),
            "record": kept[:MAX_RECORD].decode(errors="ignore"),
            "truncated": truncated,
        }


# ---------------------------------------------------------------- reading


@dataclass(frozen=True)
class DeadLetter:
    """A stored dead letter: ``data`` as written, ``home`` is its directory."""

    id: str
    home: Path
    data: Mapping[str, Any]


def dead_letters_of(directory: str | Path) -> Iterator[DeadLetter]:
    """Yield the dead letters below ``directory``, unit by unit, each unit's in the order of its batches.

    A letter's id is made of its unit, file and line: it stays the same.
    """
    found = []
    for path in Path(directory).rglob("*.json"):
        name = _NAME.fullmatch(path.name)
        if name and ".headwater" not in path.parts[len(Path(directory).parts) :]:
            batch, part, epoch = map(int, name.groups())
            found.append((str(path.parent), epoch, batch, part, path))
    for *_, path in sorted(found):
        with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                # A user may have edited the file.
                with contextlib.suppress(ValueError):
                    data = json.loads(line)
                    if isinstance(data, dict):
                        place = f"{path.parent.name}/{path.name}:{number}"
                        id_ = hashlib.sha256(place.encode()).hexdigest()[:_ID_LENGTH]
                        yield DeadLetter(id_, path.parent, data)


def read_dead_letters(directory: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the dead letters below ``directory``, each with its id and its last replay."""
    known: dict[Path, set[str]] = {}
    for letter in dead_letters_of(directory):
        if letter.home not in known:
            notes = notes_at(letter.home)
            known[letter.home] = {f.stem for f in notes.iterdir()} if notes.is_dir() else set()
        replayed = None
        if letter.id in known[letter.home]:
            replayed = read_note(notes_at(letter.home) / f"{letter.id}.json") or None
        yield {"id": letter.id, **letter.data, "replayed": replayed}


def notes_at(home: Path) -> Path:
    """Return the directory of replay records for the letters in ``home``: one file for each replayed letter."""
    return home / ".headwater" / "replayed"
