"""Sync a query's checkpoint to disk: Spark renames its files into place without ``fsync``.

After a power cut such a file may be missing or empty, also one that is seconds old. So everything in the checkpoint
is synced before a batch publishes output, and before the input of a committed batch is deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from headwater.disk.durable import read_note, write_atomically

SYNCED = "publishing/synced"
"""File of a checkpoint that names what was synced. It is not synced itself: without it, all is synced again."""

_THREADS = 8  # the file system writes several requests at once: ten files take little longer than one
_DRAFT = ".tmp"

Stamp: TypeAlias = list[int]


def sync_checkpoint(checkpoint: Path) -> int:
    """Make all of a checkpoint durable; return the number of files and directories that were not."""
    note = checkpoint / SYNCED
    note.parent.mkdir(parents=True, exist_ok=True)
    known = read_note(note)
    found = stamps(checkpoint)
    new = [name for name, stamp in found.items() if known.get(name) != stamp]
    if not new:
        return 0
    paths = {str(checkpoint / name) for name in new}
    paths |= {os.path.dirname(path) for path in paths}
    if not known:  # its own name may be new as well
        paths |= {str(checkpoint.parent), str(checkpoint.parent.parent)}
    sync_paths(sorted(paths))
    write_atomically(note, json.dumps(found), fsync=False)
    return len(paths)


def note_synced(checkpoint: Path) -> None:
    """Note that all of a checkpoint is durable, so that it is not synced again."""
    write_atomically(checkpoint / SYNCED, json.dumps(stamps(checkpoint)), fsync=False)


def sync_tree(directory: Path) -> None:
    """Make a directory with all that is in it, and its own name, durable."""
    sync_paths([*(str(directory / name) for name in stamps(directory)), str(directory), str(directory.parent)])


def stamps(directory: Path) -> dict[str, Stamp]:
    """Return all files and directories, each with a stamp that differs once it is another file, or another text."""
    return dict(_entries(directory, ""))


def sync_paths(paths: Iterable[str]) -> None:
    """Sync files and directories side by side; skip those that are gone."""
    paths = list(paths)
    if len(paths) < 2:
        for path in paths:
            _sync(path)
        return
    with ThreadPoolExecutor(min(_THREADS, len(paths))) as pool:
        for _ in pool.map(_sync, paths):
            pass


def _sync(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # Spark deletes old versions meanwhile
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _entries(root: Path, below: str) -> Iterator[tuple[str, Stamp]]:
    try:
        listing = os.scandir(root / below)
    except FileNotFoundError:
        return
    with listing:
        for entry in listing:
            name = f"{below}/{entry.name}" if below else entry.name
            if name == SYNCED or entry.name.endswith(_DRAFT):
                continue
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    yield name, [entry.inode()]
                    yield from _entries(root, name)
                else:
                    stat = entry.stat(follow_symlinks=False)
                    yield name, [stat.st_ino, stat.st_mtime_ns, stat.st_size]
