"""Files that a command looks at again when they have changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

EVERY = 0.5
"""Seconds between two looks."""

Stamp = tuple[int, int, int]


def stamps(paths: Iterable[Path]) -> dict[Path, Stamp | None]:
    """Give what changes with a file: time of the last change, size, number; None where there is none."""
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
    """Give nothing at once, then the files that have changed, each time some have, until ``stop`` is set.

    ``paths`` is asked at each look, so that files may come and go. Changes that come while the caller is
    at work are given next. Editors that put a new file in the place of the old one are no exception.
    """
    before = stamps(paths())
    yield ()
    while not stop.wait(every):
        now = stamps(paths())
        changed = tuple(sorted(p for p in now.keys() | before.keys() if now.get(p) != before.get(p)))
        before = now
        if changed:
            yield changed
