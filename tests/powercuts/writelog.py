"""Record the calls of processes that change the files of a directory, by ``strace``.

Calls are in the order in which they returned. A call to sync tells how many calls had returned when it began: only
their changes are surely on disk when it returns.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_OPEN = ("open", "openat", "creat")
_WRITE = ("write", "writev", "pwrite64", "pwritev", "pwritev2")
_SIZE = ("truncate", "ftruncate", "fallocate")
_NAMES = ("rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "mkdir", "mkdirat")
_GONE = ("unlink", "unlinkat", "rmdir")
_SYNC = ("fsync", "fdatasync", "sync", "syncfs")
_COPIES = ("sendfile", "copy_file_range")  # refused: their callers then read and write, and the data are in the log
TRACED = (*_OPEN, *_WRITE, *_SIZE, *_NAMES, *_GONE, *_SYNC, *_COPIES)
# Not traced: `sync_file_range` makes nothing durable; `lseek` and `mmap` are slow to trace, and writes after them
# show as a difference between the emulated disk and the real one in the end.
_MOST = 64 << 20  # bytes of one write

_LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>(.*)|(\w+)\((.*))", re.DOTALL)
_RESULT = re.compile(r"\) += (-?\d+)(?:<([^<>]*)>)?[^\"]*$")
_TEXT = re.compile(r'"([^"]*)"(\.\.\.)?')
_DESCRIPTOR = re.compile(r"^(-?\d+|AT_FDCWD)(?:<([^<>]*)>(\(deleted\))?)?")
_UNFINISHED = " <unfinished ...>"


@dataclass(frozen=True)
class Open:
    """A file that was opened, made, or emptied; ``descriptor`` is the number that later writes name."""

    path: str
    descriptor: int
    made: bool = False
    emptied: bool = False
    appends: bool = False
    syncs: bool = False


@dataclass(frozen=True)
class Write:
    """Bytes written at a position of a file; None: behind the last bytes written with this descriptor."""

    path: str
    descriptor: int
    data: bytes
    at: int | None = None


@dataclass(frozen=True)
class Resize:
    """A file that was cut off, or made longer by zeros; ``grows``: only made longer."""

    path: str
    size: int
    grows: bool = False


@dataclass(frozen=True)
class Rename:
    """A new name for a file or a directory."""

    path: str
    to: str


@dataclass(frozen=True)
class Link:
    """A further name for a file."""

    path: str
    to: str


@dataclass(frozen=True)
class MakeDirectory:
    """A new directory."""

    path: str


@dataclass(frozen=True)
class Remove:
    """A name that was removed."""

    path: str


@dataclass(frozen=True)
class Sync:
    """A file or directory that was synced: with all calls before number ``began``. ``path`` None: all of the disk.

    ``path`` is empty for a file that had no name any more.
    """

    path: str | None
    began: int


Call = Open | Write | Resize | Rename | Link | MakeDirectory | Remove | Sync


def available() -> bool:
    """Return whether there is a ``strace`` that may trace."""
    if shutil.which("strace") is None:
        return False
    command = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", os.devnull, "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


def record(command: Sequence[str], root: Path, log: Path, *, timeout: float, env: Mapping[str, str]) -> list[Call]:
    """Run a command with all its processes; return their calls that changed files below ``root``, an empty directory.

    ``log`` is the file for the text of ``strace``. Raise CalledProcessError where the command fails.
    """
    options = ["-f", "--seccomp-bpf", "-qq", "-y", "-xx", "--signal=none", "-s", str(_MOST), "-o", str(log)]
    options += ["-e", f"trace={','.join(TRACED)}", "-e", f"inject={','.join(_COPIES)}:error=EINVAL"]
    traced = subprocess.Popen(["strace", *options, *command], env=dict(env), start_new_session=True)
    try:
        code = traced.wait(timeout)
    except BaseException:
        os.killpg(traced.pid, 9)
        traced.wait()
        raise
    if code:
        raise subprocess.CalledProcessError(code, command)
    with log.open(encoding="ascii", errors="replace") as lines:
        return list(calls_in(lines, str(root.resolve())))


def calls_in(lines: Iterable[str], root: str) -> Iterator[Call]:
    """Return the calls in a log of ``strace`` that changed files below ``root``; their paths are relative to it."""
    wanted = _hex(root)
    begun: dict[tuple[str, str], tuple[str, int]] = {}
    count = 0
    for line in lines:
        match = _LINE.match(line.rstrip("\n"))
        if match is None:
            continue
        process, resumed, rest, name, arguments = match.groups()
        if resumed is not None:
            name = resumed
            if (first := begun.pop((process, name), None)) is None:
                continue
            arguments, began = first[0] + rest, first[1]
        elif arguments.endswith(_UNFINISHED):
            if wanted in arguments or name == "sync":
                begun[process, name] = (arguments.removesuffix(_UNFINISHED), count)
            continue
        else:
            began = count
            if wanted not in arguments and name != "sync":
                continue
        result = _RESULT.search(arguments)
        if result is not None and int(result[1]) >= 0 and name not in _COPIES:
            for call in _Parsed(name, arguments[: result.start()], int(result[1]), root).calls(began):
                count += 1
                yield call


class _Parsed:
    """One line of ``strace``."""

    def __init__(self, name: str, arguments: str, result: int, root: str) -> None:
        self.name = name
        self.arguments = arguments
        self.result = result
        self.root = root
        self.texts = [bytes.fromhex(t.replace("\\x", "")) for t, _ in _TEXT.findall(arguments)]
        if any(cut for _, cut in _TEXT.findall(arguments)):
            raise ValueError(f"a string of {name} was cut short by strace")

    def calls(self, began: int) -> Iterator[Call]:
        """Return what a successful call did below the root."""
        name, flags = self.name, set(re.findall(r"\b[A-Z][A-Z_]+\b", _TEXT.sub("", self.arguments)))
        paths = [self._below(p) for p in self._paths()]
        if name in _OPEN and paths[0] is not None:
            if name == "creat":
                flags |= {"O_CREAT", "O_TRUNC"}
            yield Open(
                paths[0],
                self.result,
                made="O_CREAT" in flags,
                emptied="O_TRUNC" in flags,
                appends="O_APPEND" in flags,
                syncs=bool({"O_SYNC", "O_DSYNC"} & flags),
            )
        elif name in _WRITE:
            yield from self._write()
        elif name in _SIZE:
            yield from self._size(paths, flags)
        elif name in _SYNC:
            descriptor = self._descriptor()
            if name in ("sync", "syncfs"):
                yield Sync(None, began)
            elif descriptor is not None and (below := self._below(descriptor[1])) is not None:
                yield Sync("" if descriptor[2] else below, began)
        elif name.startswith(("rename", "link", "symlink")):
            yield from self._names(paths, flags)
        elif name.startswith("mkdir") and paths[0] is not None:
            yield MakeDirectory(paths[0])
        elif name in _GONE and paths[0] is not None:
            yield Remove(paths[0])

    def _names(self, paths: list[str | None], flags: set[str]) -> Iterator[Call]:
        source, target = paths
        if "RENAME_EXCHANGE" in flags or self.name.startswith("symlink") or None in (source, target):
            raise ValueError(f"{self.name} that is not emulated: {self.texts}")
        assert source is not None and target is not None
        yield Rename(source, target) if self.name.startswith("rename") else Link(source, target)

    def _write(self) -> Iterator[Call]:
        found = self._descriptor()
        if found is None or found[2] or (path := self._below(found[1])) is None or not self.result:
            return
        at = None
        if self.name.startswith("p"):
            numbers = re.findall(r", (\d+)", _TEXT.sub("", self.arguments))
            at = int(numbers[-1])
        yield Write(path, found[0], b"".join(self.texts)[: self.result], at)

    def _size(self, paths: list[str | None], flags: set[str]) -> Iterator[Call]:
        numbers = [int(n) for n in re.findall(r", (\d+)", _TEXT.sub("", self.arguments))]
        if self.name == "truncate":
            if paths[0] is not None:
                yield Resize(paths[0], numbers[-1])
            return
        found = self._descriptor()
        if found is None or found[2] or (path := self._below(found[1])) is None:
            return
        if self.name == "ftruncate":
            yield Resize(path, numbers[-1])
        elif not flags - {"FALLOC_FL_KEEP_SIZE"}:
            if not flags:
                yield Resize(path, numbers[-2] + numbers[-1], grows=True)
        else:
            raise ValueError(f"fallocate that is not emulated: {flags}")

    def _descriptor(self) -> tuple[int, str, bool] | None:
        """Return the first argument's number, its path, and whether the file has no name any more."""
        match = _DESCRIPTOR.match(self.arguments)
        if match is None or match[2] is None:
            return None
        number = -1 if match[1] == "AT_FDCWD" else int(match[1])
        return number, bytes.fromhex(match[2].replace("\\x", "")).decode(errors="replace"), bool(match[3])

    def _paths(self) -> list[str]:
        """Return the paths among the arguments, absolute where the log shows their directories."""
        directories = re.findall(r"(?:^|, )(?:-?\d+|AT_FDCWD)<([^<>]*)>", self.arguments)
        found = []
        for n, text in enumerate(self.texts):
            path = text.decode(errors="replace")
            if not path.startswith("/") and n < len(directories):
                path = f"{bytes.fromhex(directories[n].replace(chr(92) + 'x', '')).decode()}/{path}"
            found.append(path)
        return found

    def _below(self, path: str) -> str | None:
        path = os.path.normpath(path)
        if path == self.root:
            return "."
        return path[len(self.root) + 1 :] if path.startswith(f"{self.root}/") else None


def _hex(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode())
