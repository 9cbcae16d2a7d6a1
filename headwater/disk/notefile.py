"""A small file that another process replaces, read again only where it has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class NoteFile(Generic[T]):
    """The file, and its content as it was read last."""

    def __init__(self, file: Path, read: Callable[[Path], T | None]) -> None:
        self._file = file
        self._read = read
        self._stamp: tuple[int, int, int] | None = None
        self._found: T | None = None

    def now(self) -> T | None:
        """Return the present content; None where there is no file."""
        try:
            status = os.stat(self._file)
        except FileNotFoundError:
            return None
        stamp = status.st_mtime_ns, status.st_ino, status.st_size
        if stamp != self._stamp:
            self._found, self._stamp = self._read(self._file), stamp
        return self._found
