"""A journal: numbered JSON entries, each published once and whole, by one of several writers.

An entry is written to a temporary file and hard-linked to its number. A link fails when the
name exists, so two writers can never both take one number, and a reader never sees half an
entry. Entries are contiguous; the oldest may be discarded, the newest never is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwater.core.errors import ChannelError
from headwater.disk.durable import checksum, make_directory, write_atomically, write_first

_CACHED = 2048  # entries kept in memory; they never change


class Journal:
    """Publish and read numbered entries in one directory.

    A hint file remembers the newest number, so that finding it costs a few probes and not a
    listing, however many entries there are. It may be stale or missing, never too high.
    ``scratch`` holds unfinished files after a crash; its owner sweeps it.
    """

    def __init__(self, directory: Path, *, scratch: Path, fsync: bool = True) -> None:
        self.directory = directory
        self.scratch = scratch
        self.fsync = fsync
        self._hint = directory.parent / f"{directory.name}.hint"
        self._prefix = f"{directory}{os.sep}"
        self._last = -1
        self._cache: dict[int, dict[str, Any]] = {}

    def path(self, number: int) -> Path:
        """Return the path of an entry's file."""
        return Path(self._text(number))

    def create(self) -> None:
        """Make the directories."""
        make_directory(self.directory, fsync=self.fsync)
        make_directory(self.scratch, fsync=self.fsync)

    def last(self) -> int:
        """Return the newest entry's number, -1 when there is none."""
        low = self._last
        if low < 0 or not self._exists(low):
            low = self._start()
        if low < 0:
            return -1
        step = 1
        while self._exists(low + step):
            low += step
            step *= 2
        while step > 1:
            step //= 2
            if self._exists(low + step):
                low += step
        self._last = low
        return low

    def get(self, number: int) -> dict[str, Any]:
        """Read one entry, checked against its checksum."""
        if (known := self._cache.get(number)) is not None:
            return known
        path = self.path(number)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            raise ChannelError(
                "the entry does not exist (reclaimed, or deleted by hand)",
                where=str(path),
                hint="read from the log's earliest position",
            ) from None
        try:
            record = json.loads(raw)
            body = record["entry"]
            sound = isinstance(body, dict) and record["crc32"] == checksum(body)
        except (ValueError, TypeError, KeyError):
            sound = False
        if not sound:
            raise ChannelError(
                f"damaged entry ({len(raw)} bytes do not match their checksum)",
                where=str(path),
                hint="restore the file from a backup; if it is the newest entry, its batch may instead be "
                "written again: stop writer and readers, delete the file, restart the writer",
            )
        if len(self._cache) >= _CACHED:
            del self._cache[next(iter(self._cache))]
        self._cache[number] = body
        return dict(body)

    def modified(self, number: int) -> float | None:
        """Return the time of an entry's publication by the file system's clock; None when the entry is gone."""
        try:
            return self.path(number).stat().st_mtime
        except FileNotFoundError:
            return None

    def publish(self, number: int, body: Mapping[str, Any]) -> bool:
        """Publish an entry; return False when another writer has taken the number."""
        text = json.dumps({"entry": body, "crc32": checksum(body)}, separators=(",", ":"))
        if not write_first(self.path(number), text, scratch=self.scratch, fsync=self.fsync):
            return False
        self._last = number
        write_atomically(self._hint, str(number), scratch=self.scratch, fsync=False)
        return True

    def discard(self, first: int, stop: int) -> None:
        """Delete entries ``first`` .. ``stop - 1``; the newest must not be among them."""
        for number in range(first, stop):
            self.path(number).unlink(missing_ok=True)
            self._cache.pop(number, None)

    def _exists(self, number: int) -> bool:
        return os.path.exists(self._text(number))

    def _text(self, number: int) -> str:
        return f"{self._prefix}{number:012d}"

    def _start(self) -> int:
        try:
            number = int(self._hint.read_text())
            if self._exists(number):
                return number
        except (FileNotFoundError, ValueError):
            pass
        try:
            return max((int(name) for name in os.listdir(self.directory) if name.isdigit()), default=-1)
        except FileNotFoundError:
            return -1
