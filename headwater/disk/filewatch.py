"""Wait until a file appears in a directory, without looking for it again and again.

Linux reports new and renamed files (inotify). It reports the changes of this machine only, so directories of network
file systems are left out, as are all directories where the system has no watches left: callers look at intervals then.
A process has one connection to the system, made at its first wait, because a user may have few of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import struct
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path

_HEAD = struct.Struct("iIII")  # watch, events, cookie, length of the name
_CREATED, _MOVED_HERE = 0x100, 0x80
_GONE, _OVERFLOW = 0x8000, 0x4000  # the directory is not watched any more; events were dropped
_WANTED = _CREATED | _MOVED_HERE | 0x01000000  # the last: fail unless it is a directory
_READ = 1 << 16
_MOUNTS = Path("/proc/self/mounts")
_OCTAL = re.compile(r"\\(\d{3})")
_REMOTE = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "gluster", "lustre", "afs", "virtiofs", "beegfs", "gpfs", "ocfs")
"""Beginnings of the types of file systems that other machines may change."""


class FileWatch:
    """Wakes one waiting thread when a file has appeared in one of some directories."""

    def __init__(self) -> None:
        self._woken = threading.Event()
        self._watched: dict[Path, int] = {}
        """The directories of the last call that are watched, each with its watch."""

    def __reduce__(self) -> tuple[type[FileWatch], tuple[()]]:
        """Pickle it without its watches: Spark sends a source to its tasks, with all that it has."""
        return FileWatch, ()

    def wait(self, directories: Collection[Path], seconds: float, *, look: float) -> None:
        """Wait until a file has appeared in one of some directories since the last call, or some seconds are over.

        Where one of them is not watched, return after ``look`` seconds. Where a watch is new, return at once: a file
        may have appeared before it.
        """
        if seconds <= 0:
            return
        before = dict(self._watched)
        if not self._watch(directories):
            time.sleep(min(seconds, look))
        elif self._watched.items() <= before.items():
            self._woken.wait(seconds)
        self._woken.clear()

    def wake(self) -> None:
        """Let the present wait return, or the next one."""
        self._woken.set()

    def close(self) -> None:
        """Watch nothing any more; a later `wait` watches again."""
        self._watch(())

    def _watch(self, directories: Collection[Path]) -> bool:
        """Watch these directories and no others; return whether all are watched."""
        system = _inotify()
        if system is None:
            self._watched = {}
            return False
        wanted = set(directories)
        for gone in self._watched.keys() - wanted:
            system.leave(self._watched.pop(gone), self._woken)
        for directory in wanted:
            at = self._watched.get(directory)
            if at is None or not system.has(at, self._woken):
                at = system.join(directory, self._woken)
                if at is None:
                    self._watched.pop(directory, None)
                else:
                    self._watched[directory] = at
        return len(self._watched) == len(wanted)


class _Inotify:
    """This process's connection to the system, with a thread that reads its events."""

    def __init__(self, libc: ctypes.CDLL, fd: int) -> None:
        self._libc, self._fd = libc, fd
        self._lock = threading.Lock()
        self._waiting: dict[int, set[threading.Event]] = {}
        threading.Thread(target=self._read, name="file watch", daemon=True).start()

    def join(self, directory: Path, woken: threading.Event) -> int | None:
        """Set an event whenever a file appears in a directory; None where the system does not report that."""
        if is_remote(directory):
            return None
        with self._lock:  # a directory has one watch, whoever asks for it
            at: int = self._libc.inotify_add_watch(self._fd, os.fsencode(directory), _WANTED)
            if at < 0:
                return None
            self._waiting.setdefault(at, set()).add(woken)
            return at

    def has(self, at: int, woken: threading.Event) -> bool:
        """Return whether a watch still sets an event."""
        return woken in self._waiting.get(at, ())

    def leave(self, at: int, woken: threading.Event) -> None:
        """Set an event no longer."""
        with self._lock:
            others = self._waiting.get(at, set())
            others.discard(woken)
            if not others and self._waiting.pop(at, None) is not None:
                self._libc.inotify_rm_watch(self._fd, at)

    def _read(self) -> None:
        while True:
            data, begin = os.read(self._fd, _READ), 0
            while begin < len(data):
                at, events, _, name = _HEAD.unpack_from(data, begin)
                begin += _HEAD.size + name
                self._tell(at, events)

    def _tell(self, at: int, events: int) -> None:
        with self._lock:
            found = self._waiting.values() if events & _OVERFLOW else [self._waiting.get(at, set())]
            for woken in set().union(*found):
                woken.set()
            if events & _GONE:
                self._waiting.pop(at, None)


_known: dict[int, _Inotify | None] = {}
"""By process: a fork has its own."""
_making = threading.Lock()


def _inotify() -> _Inotify | None:
    """Return this process's connection; None where the system has none."""
    pid = os.getpid()
    if pid not in _known:
        with _making:
            if pid not in _known:
                _known[pid] = _connected()
    return _known[pid]


def _connected() -> _Inotify | None:
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError, AttributeError):  # a C library without inotify
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_CLOEXEC)
        if fd >= 0:
            return _Inotify(libc, fd)
    return None


def is_remote(directory: Path, mounts: Path = _MOUNTS) -> bool:
    """Return whether other machines may change a directory's file system; True where that is unknown."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return True
    where = f"{os.path.realpath(directory)}/"
    best, kind = -1, ""
    for line in lines:
        at, type_ = line.split(" ")[1:3]
        at = _OCTAL.sub(lambda found: chr(int(found[1], 8)), at)
        if where.startswith(f"{at.rstrip('/')}/") and len(at) >= best:
            best, kind = len(at), type_
    return best < 0 or kind.startswith(_REMOTE)
