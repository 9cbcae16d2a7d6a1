"""The disks of the simulated hosts: directories below one root, whose every change is an effect that may fail.

A change below the root is counted as an effect of the running process, so that this can be killed before it. Files
get the simulated time. ``full`` hosts have no space.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.simulation.kernel import Kernel, Process

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC


class Disk:
    """All disks: ``root/<host>/...`` is on a host's."""

    def __init__(self, kernel: Kernel, root: Path) -> None:
        self._kernel = kernel
        self._root = os.path.realpath(root) + "/"
        self.full: dict[str, int] = {}
        """By host: how many more writes fail for want of space."""
        self._locked: dict[Process, list[Any]] = {}
        self._real: dict[str, Callable[..., Any]] = {}
        self._files: dict[int, str] = {}

    def host_of(self, path: str) -> str:
        return path[len(self._root) :].partition("/")[0]

    def _place(self, path: Any) -> str | None:
        """Return the absolute path of a file of the simulated disks; None for others."""
        if isinstance(path, int):
            return None
        name = os.fspath(path)
        if isinstance(name, bytes) or not name.startswith(self._root):
            return None
        return name

    def _change(self, path: str, *, grows: bool) -> None:
        """Account for a change of the disk; raise OSError where there is no space for it."""
        self._kernel.effect()
        if grows and (left := self.full.get(host := self.host_of(path))):
            self.full[host] = left - 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _stamp(self, path: str) -> None:
        """Give a file the simulated time."""
        now = self._kernel.time()
        with contextlib.suppress(OSError):
            os.utime(path, (now, now))

    # ------------------------------------------------------------ calls of the system

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        real = self._real["os.open"]
        place = self._place(path)
        if place is None or not flags & _WRITES:
            return real(path, flags, mode, dir_fd=dir_fd)
        self._change(place, grows=True)
        found = real(path, flags, mode)
        self._stamp(place)
        return found

    def _io_open(self, file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        real = self._real["io.open"]
        place = self._place(file)
        if place is None or not set(mode) & set("wax+"):
            return real(file, mode, *args, **options)
        if os.path.basename(place) != "lock":
            self._change(place, grows=True)
        found = real(file, mode, *args, **options)
        self._stamp(place)
        return found

    def _fsync(self, fd: int) -> None:
        place = self._place(os.readlink(f"/proc/self/fd/{fd}"))
        if place is None:
            self._real["os.fsync"](fd)
            return
        self._change(place, grows=False)

    def _two(self, name: str, *, grows: bool) -> Callable[..., None]:
        def call(source: Any, target: Any, **options: Any) -> None:
            place = self._place(target)
            if place is not None:
                self._change(place, grows=grows)
            self._real[name](source, target, **options)

        return call

    def _one(self, name: str, *, grows: bool) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **options: Any) -> Any:
            place = self._place(path)
            if place is not None:
                self._change(place, grows=grows)
            return self._real[name](path, *args, **options)

        return call

    def _flock(self, file: Any, operation: int) -> None:
        real = self._real["fcntl.flock"]
        if operation & (fcntl.LOCK_NB | fcntl.LOCK_UN) or not self._kernel.inside:
            real(file, operation)
            return
        while True:
            try:
                real(file, operation | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                self._kernel.sleep(0.005)
        process = self._kernel.process
        if process not in self._locked:
            self._locked[process] = []
            process.ended.append(lambda: self._unlock(process))
        self._locked[process] = [f for f in self._locked[process] if not f.closed] + [file]

    def _unlock(self, process: Process) -> None:
        for file in self._locked.pop(process, ()):
            if not file.closed:
                self._real["fcntl.flock"](file, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let the calls of the system that change files go through this disk."""
        patches: list[tuple[Any, str, Any]] = [
            (os, "open", self._open),
            (io, "open", self._io_open),
            (builtins, "open", self._io_open),
            (os, "fsync", self._fsync),
            (os, "link", self._two("os.link", grows=True)),
            (os, "replace", self._two("os.replace", grows=False)),
            (os, "rename", self._two("os.rename", grows=False)),
            (os, "unlink", self._one("os.unlink", grows=False)),
            (os, "remove", self._one("os.remove", grows=False)),
            (os, "mkdir", self._mkdir),
            (os, "rmdir", self._one("os.rmdir", grows=False)),
            (shutil, "_use_fd_functions", False),
            (fcntl, "flock", self._flock),
        ]
        for owner, name, _ in patches:
            self._real[f"{owner.__name__}.{name}"] = getattr(owner, name)
        for owner, name, value in patches:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, _ in patches:
                setattr(owner, name, self._real[f"{owner.__name__}.{name}"])

    def _mkdir(self, path: Any, mode: int = 0o777, **options: Any) -> None:
        # No effect of its own where it exists: the product makes directories again and again.
        place = self._place(path)
        if place is not None and not os.path.isdir(place):
            self._change(place, grows=True)
        self._real["os.mkdir"](path, mode, **options)
