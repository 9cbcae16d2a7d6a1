"""Retention of a filelog: its readers' positions and its floor, changed under one lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import TypeVar

from headwater.channels.entry import Floor
from headwater.channels.readerid import check_reader
from headwater.core.compatible import known
from headwater.core.errors import ChannelError
from headwater.disk.durable import make_directory, read_sealed, sealed, write_atomically

T = TypeVar("T")
_FLOOR = frozenset(f.name for f in fields(Floor))


class Retention:
    """Read and write the registered readers and the floor of one log directory."""

    def __init__(self, log: Path) -> None:
        self.directory = log / "readers"
        self._log = log

    def create(self) -> None:
        """Make the directory of readers."""
        make_directory(self.directory)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from changing readers and floor meanwhile."""
        try:
            file = open(self._log / "lock", "w")  # noqa: SIM115 (closed below)
        except FileNotFoundError:
            raise ChannelError("the log does not exist", where=str(self._log), hint="register a reader first") from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed, also by a kill
            yield

    def change(self, do: Callable[[], T]) -> T:
        """Run ``do`` under the lock."""
        with self.lock():
            return do()

    def floor(self) -> Floor:
        """Return the first readable position and the totals before it."""
        record = read_sealed(self._log / "floor.json", _FLOOR)
        return Floor(**known(Floor, record)) if record else Floor()

    def write_floor(self, floor: Floor, *, fsync: bool) -> None:
        """Replace the floor."""
        write_atomically(self._log / "floor.json", sealed(asdict(floor)), scratch=self.directory, fsync=fsync)

    def readers(self) -> dict[str, int]:
        """Return every registered reader's position."""
        try:
            names = sorted(name[:-5] for name in os.listdir(self.directory) if name.endswith(".json"))
        except FileNotFoundError:
            return {}
        return {name: at for name in names if (at := self.position(name)) is not None}

    def forget(self, reader: str) -> None:
        """Remove a reader's registration."""
        self._file(reader).unlink(missing_ok=True)

    def _file(self, reader: str) -> Path:
        return self.directory / f"{check_reader(reader, str(self._log))}.json"

    def position(self, reader: str) -> int | None:
        """Return a reader's position; None when it is not registered."""
        try:
            record = read_sealed(self._file(reader), ("position",))
        except ChannelError:
            if not self._file(reader).exists():
                raise
            return self.floor().seq  # unreadable after a power cut: keep everything until the reader reports again
        return None if record is None else int(record["position"])

    def place(self, reader: str, position: int) -> None:
        """Record a reader's position."""
        # Not synced: a position that falls back only keeps more.
        write_atomically(self._file(reader), sealed({"position": position}), scratch=self.directory, fsync=False)
