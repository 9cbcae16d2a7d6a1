"""Watch files for changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

EVERY = 0.5
"""Seconds between two checks."""

Stamp = tuple[int, int, int]


def stamps(paths: Iterable[Path]) -> dict[Path, Stamp | None]:
    """Return a file's modification time, size and inode; None where it is missing."""
    return {path: _stamp(path) for path in paths}


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def changes(
    paths: Callable[[], Iterable[Path]], stop: threading.Event, *, every: float = EVERY
) -> Iterator[tuple[Path, ...]]:
    """Yield nothing at once, then the changed files after each change, until ``stop`` is set.

    ``paths`` is called at each check, so that files may come and go. Changes during the caller's work are yielded next.
    A file that an editor replaces by a new one counts as changed.
    """
    before = stamps(paths())
    yield ()
    while not stop.wait(every):
        now = stamps(paths())
        changed = tuple(sorted(p for p in now.keys() | before.keys() if now.get(p) != before.get(p)))
        before = now
        if changed:
            yield changed
