"""The disks of the simulated hosts: directories below one root, whose every change is an effect that may fail.

A change below the root is counted as an effect of the running process, so that this can be killed before it. Files
get the simulated time. ``full`` hosts have no space. A power cut takes the changes that were not synced: of each
directory, the last ones since its sync; of a file that was never synced, its content or nothing of it. Directories
themselves, and their renaming, are taken to last.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.simulation.kernel import Kernel, Process

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC


@dataclass(eq=False)
class _File:
    """A file, under whichever names: the content that a power cut leaves; None: it was never synced."""

    synced: bytes | None = None


class Disk:
    """All disks: ``root/<host>/...`` is on a host's."""

    def __init__(self, kernel: Kernel, root: Path) -> None:
        self._kernel = kernel
        self._root = os.path.realpath(root) + "/"
        self.full: dict[str, int] = {}
        """By host: how many more writes fail for want of space."""
        self._locked: dict[Process, list[Any]] = {}
        self._real: dict[str, Callable[..., Any]] = {}
        self._files: dict[str, _File] = {}
        """By path: the files as processes see them."""
        self._lasting: dict[str, dict[str, _File]] = {}
        """By directory and name: the files as a power cut leaves them."""
        self._pending: dict[str, list[dict[str, _File | None]]] = {}
        """By directory: the changes since its last sync."""

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

    # ------------------------------------------------------------ power cuts

    def _make(self, path: str) -> None:
        if path not in self._files:
            self._enter(path, _File())

    def _enter(self, path: str, file: _File) -> None:
        self._files[path] = file
        directory, name = os.path.split(path)
        self._pending.setdefault(directory, []).append({name: file})

    def _leave(self, path: str) -> _File | None:
        directory, name = os.path.split(path)
        self._pending.setdefault(directory, []).append({name: None})
        return self._files.pop(path, None)

    def _move(self, source: str, target: str) -> None:
        if os.path.isdir(target):
            for known in (self._files, self._lasting, self._pending):
                inside = [p for p in known if p == source or p.startswith(source + "/")]
                known.update({target + p[len(source) :]: known.pop(p) for p in inside})
            return
        file = self._files.pop(source, None) or _File()
        self._files[target] = file
        (before, old), (directory, name) = os.path.split(source), os.path.split(target)
        if before == directory:
            self._pending.setdefault(directory, []).append({old: None, name: file})
        else:
            self._pending.setdefault(directory, []).append({name: file})
            self._pending.setdefault(before, []).append({old: None})

    def _settle(self, directory: str, count: int | None = None) -> None:
        """Make the first changes of a directory last."""
        lasting = self._lasting.setdefault(directory, {})
        for change in self._pending.pop(directory, [])[:count]:
            for name, file in change.items():
                if file is None:
                    lasting.pop(name, None)
                else:
                    lasting[name] = file

    def cut_power(self, host: str) -> None:
        """Take from a host's disk what was not synced; its processes have ended."""
        chance, top = self._kernel.random, self._root + host
        contents = {file: Path(p).read_bytes() for p, file in self._files.items() if p.startswith(top + "/")}
        for directory in [d for d in self._pending if d.startswith(top)]:
            self._settle(directory, chance.randint(0, len(self._pending[directory])))
        for path in [p for p in self._files if p.startswith(top + "/")]:
            self._real["os.unlink"](path)
            del self._files[path]
        for directory, files in self._lasting.items():
            if not directory.startswith(top) or not os.path.isdir(directory):
                continue
            for name, file in files.items():
                if file.synced is None:
                    file.synced = chance.choice((b"", contents.get(file, b"")))
                path = os.path.join(directory, name)
                with self._real["io.open"](path, "wb") as out:
                    out.write(file.synced)
                self._stamp(path)
                self._files[path] = file

    # ------------------------------------------------------------ calls of the system

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        real = self._real["os.open"]
        place = self._place(path)
        if place is None or not flags & _WRITES:
            return real(path, flags, mode, dir_fd=dir_fd)
        self._change(place, grows=True)
        found = real(path, flags, mode)
        self._make(place)
        self._stamp(place)
        return found

    def _io_open(self, file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        real = self._real["io.open"]
        if mode in ("r", "rb") or (place := self._place(file)) is None or not set(mode) & set("wax+"):
            return real(file, mode, *args, **options)
        if os.path.basename(place) != "lock":
            self._change(place, grows=True)
        found = real(file, mode, *args, **options)
        self._make(place)
        self._stamp(place)
        return found

    def _fsync(self, fd: int) -> None:
        place = self._place(os.readlink(f"/proc/self/fd/{fd}"))
        if place is None:
            self._real["os.fsync"](fd)
            return
        self._change(place, grows=False)
        if os.path.isdir(place):
            self._settle(place)
        elif (file := self._files.get(place)) is not None:
            file.synced = Path(place).read_bytes()

    def _renamed(self, name: str) -> Callable[..., None]:
        def call(source: Any, target: Any, **options: Any) -> None:
            place = self._place(target)
            if place is not None:
                self._change(place, grows=False)
            self._real[name](source, target, **options)
            if place is not None:
                self._move(os.fspath(source), place)

        return call

    def _link(self, source: Any, target: Any, **options: Any) -> None:
        place = self._place(target)
        if place is not None:
            self._change(place, grows=True)
        self._real["os.link"](source, target, **options)
        if place is not None:
            self._enter(place, self._files.setdefault(os.fspath(source), _File()))

    def _removed(self, name: str) -> Callable[..., None]:
        def call(path: Any, **options: Any) -> None:
            place = self._place(path)
            if place is not None:
                self._change(place, grows=False)
            self._real[name](path, **options)
            if place is None:
                return
            if name == "os.rmdir":
                self._pending.pop(place, None)
                self._lasting.pop(place, None)
            else:
                self._leave(place)

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
            (os, "link", self._link),
            (os, "replace", self._renamed("os.replace")),
            (os, "rename", self._renamed("os.rename")),
            (os, "unlink", self._removed("os.unlink")),
            (os, "remove", self._removed("os.remove")),
            (os, "mkdir", self._mkdir),
            (os, "rmdir", self._removed("os.rmdir")),
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
