"""A disk after a power cut, from the calls that were made: what was synced is sure, of all else anything may be there.

Two kinds of disks are emulated:

- ``ordered``, as ext4 with its defaults: changes of names reach the disk in their order, each whole. Every sync, of
  whatever, takes all changes of names before it along. The data of a file that was not synced may be missing, all or
  from any byte on: a new name may belong to an empty file.
- ``weakest``, the least that POSIX promises: a change of names is on disk when its directory was synced. Until then any
  of them may be there, in any order, except that a renamed file has one of its names. The file's own sync says nothing
  about its name. Of the writes to a file since its sync any may be there, each whole or in part, with zeros for the
  others.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.powercuts import writelog as log

Kind = Literal["ordered", "weakest"]


@dataclass(frozen=True)
class Survival:
    """The share of unsynced changes that a cut leaves; between 0 and 1, each is drawn."""

    names: float
    data: float


SURVIVALS: Mapping[str, Survival] = {
    "nothing": Survival(0, 0),
    "all": Survival(1, 1),
    "names": Survival(1, 0),
    "some": Survival(0.5, 0.5),
    "most": Survival(0.9, 0.7),
}
"""``names`` is the file system that writes an empty file under its new name; ``all`` is no more than a kill."""


@dataclass(frozen=True)
class _Change:
    """Bytes written to a file, or its new size, by the call of a number."""

    number: int
    at: int
    data: bytes | None = None

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.at :]
            content.extend(bytes(self.at - len(content)))
        else:
            content.extend(bytes(max(0, self.at - len(content))))
            content[self.at : self.at + len(self.data)] = self.data


@dataclass(eq=False)
class File:
    """A file under whichever names: its content, and its changes since its sync."""

    content: bytearray = field(default_factory=bytearray)
    sure: bytearray = field(default_factory=bytearray)
    changes: list[_Change] = field(default_factory=list)

    def change(self, change: _Change, *, syncs: bool = False) -> None:
        change.apply(self.content)
        self.changes.append(change)
        if syncs:
            self.sync(change.number + 1)

    def sync(self, before: int) -> None:
        """Make the changes of calls before a number sure."""
        for change in self.changes:
            if change.number < before:
                change.apply(self.sure)
        self.changes = [change for change in self.changes if change.number >= before]

    def after_cut(self, kind: Kind, share: float, rng: random.Random) -> bytes:
        """Return what a power cut leaves."""
        content = bytearray(self.sure)
        whole = len(self.changes) if share >= 1 else 0 if share <= 0 else rng.randint(0, len(self.changes))
        for n, change in enumerate(self.changes):
            if (n < whole) if kind == "ordered" or share in (0, 1) else rng.random() < share:
                change.apply(content)
            elif 0 < share < 1 and change.data and (n == whole or kind == "weakest") and rng.random() < 0.5:
                _Change(change.number, change.at, change.data[: rng.randrange(len(change.data))]).apply(content)
        return bytes(content)


@dataclass(eq=False)
class Directory:
    """The names in a directory now, and those that are surely on disk."""

    names: dict[str, File | Directory] = field(default_factory=dict)
    sure: dict[str, File | Directory] = field(default_factory=dict)


@dataclass(frozen=True)
class _Edit:
    """A name of a directory that gets another file, or none."""

    directory: Directory
    name: str
    node: File | Directory | None

    def apply(self, names: dict[str, File | Directory]) -> None:
        if self.node is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.node


@dataclass(eq=False)
class _Step:
    """A change of names that reaches the disk as a whole, by the call of a number, after another step."""

    number: int
    edits: tuple[_Edit, ...]
    after: _Step | None = None

    def touches(self, directory: Directory) -> bool:
        return any(edit.directory is directory for edit in self.edits)

    @property
    def chain(self) -> Iterator[_Step]:
        """This step behind the ones that it needs."""
        if self.after is not None:
            yield from self.after.chain
        yield self


class Disk:
    """A directory, while calls change it."""

    def __init__(self, kind: Kind, calls: Iterable[log.Call] = ()) -> None:
        self.kind = kind
        self.root = Directory()
        self._count = 0
        self._waiting: list[_Step] = []
        self._handles: dict[tuple[int, File], log.Open] = {}
        self._positions: dict[tuple[int, File], int] = {}
        for call in calls:
            self.apply(call)

    def apply(self, call: log.Call) -> None:
        """Carry out a call."""
        match call:
            case log.Open():
                self._open(call)
            case log.Write():
                self._write(call)
            case log.Resize():
                file = self._file(call.path)
                if not call.grows or call.size > len(file.content):
                    file.change(_Change(self._count, call.size))
            case log.MakeDirectory():
                self._edit((_place(self, call.path), Directory()))
            case log.Remove():
                self._edit((_place(self, call.path), None))
            case log.Link():
                self._edit((_place(self, call.to), self._file(call.path)))
            case log.Rename():
                self._rename(call)
            case log.Sync():
                self._sync(call)
        self._count += 1

    # ------------------------------------------------------------ calls

    def find(self, path: str) -> File | Directory | None:
        """Return what has a path now."""
        node: File | Directory | None = self.root
        for part in () if path == "." else path.split("/"):
            node = node.names.get(part) if isinstance(node, Directory) else None
        return node

    def _file(self, path: str) -> File:
        node = self.find(path)
        if not isinstance(node, File):
            raise ValueError(f"call {self._count}: no file {path}")
        return node

    def _open(self, call: log.Open) -> None:
        node = self.find(call.path)
        if node is None:
            if not call.made:
                raise ValueError(f"call {self._count}: no file {call.path}")
            node = File()
            self._edit((_place(self, call.path), node))
        if isinstance(node, File):
            if call.emptied and node.content:
                node.change(_Change(self._count, 0))
            self._handles[call.descriptor, node] = call
            self._positions[call.descriptor, node] = 0

    def _write(self, call: log.Write) -> None:
        file = self._file(call.path)
        key = (call.descriptor, file)
        handle = self._handles.get(key)
        if call.at is not None:
            at = call.at
        elif handle is None:
            raise ValueError(f"call {self._count}: {call.path} was not opened as {call.descriptor}")
        else:
            at = len(file.content) if handle.appends else self._positions[key]
            self._positions[key] = at + len(call.data)
        file.change(_Change(self._count, at, call.data), syncs=handle is not None and handle.syncs)

    def _rename(self, call: log.Rename) -> None:
        node = self.find(call.path)
        if node is None:
            raise ValueError(f"call {self._count}: nothing has the name {call.path}")
        old, new = _place(self, call.path), _place(self, call.to)
        if self.find(call.to) is not node:
            self._edit((new, node), (old, None))

    def _edit(self, *edits: tuple[tuple[Directory, str], File | Directory | None]) -> None:
        made = [_Edit(directory, name, node) for (directory, name), node in edits]
        for edit in made:
            edit.apply(edit.directory.names)
        if self.kind == "ordered" or len({id(edit.directory) for edit in made}) == 1:
            self._waiting.append(_Step(self._count, tuple(made)))
            return
        step = None
        for edit in made:  # the new name first: a file with neither name is lost
            step = _Step(self._count, (edit,), after=step)
            self._waiting.append(step)

    def _sync(self, call: log.Sync) -> None:
        node = self.find(call.path) if call.path else None
        before = call.began
        if call.path is None:
            for file in _files(self.root, set()):
                file.sync(before)
        elif isinstance(node, File):
            node.sync(before)
        if self.kind == "ordered" or call.path is None:
            sure = [step for step in self._waiting if step.number < before]
        elif isinstance(node, Directory):
            own = [step for step in self._waiting if step.number < before and step.touches(node)]
            needed = {id(s) for step in own for s in step.chain}
            sure = [step for step in self._waiting if id(step) in needed]
        else:
            return
        for step in sure:
            for edit in step.edits:
                edit.apply(edit.directory.sure)
        made = {id(step) for step in sure}
        self._waiting = [step for step in self._waiting if id(step) not in made]

    # ------------------------------------------------------------ power cuts

    def content(self) -> dict[str, bytes | None]:
        """Return all files by path, with their content; None for a directory."""
        return {path: bytes(n.content) if isinstance(n, File) else None for path, n in _walk(self.root, "", {})}

    def cut_power(self, survival: Survival, rng: random.Random, target: Path) -> None:
        """Make in ``target``, an empty directory, what a power cut leaves now."""
        names: dict[int, dict[str, File | Directory]] = {}
        for step in self._kept(survival.names, rng):
            for edit in step.edits:
                edit.apply(names.setdefault(id(edit.directory), dict(edit.directory.sure)))
        made: dict[File, str] = {}
        for path, node in _walk(self.root, "", names, sure=True):
            place = target / path
            if isinstance(node, Directory):
                place.mkdir()
            elif node in made:
                os.link(target / made[node], place)
            else:
                place.write_bytes(node.after_cut(self.kind, survival.data, rng))
                made[node] = path

    def _kept(self, share: float, rng: random.Random) -> list[_Step]:
        if share in (0, 1):
            return self._waiting if share else []
        if self.kind == "ordered":
            return self._waiting[: rng.randint(0, len(self._waiting))]
        drawn = {id(s) for step in self._waiting if rng.random() < share for s in step.chain}
        return [step for step in self._waiting if id(step) in drawn]


def _place(disk: Disk, path: str) -> tuple[Directory, str]:
    above, _, name = path.rpartition("/")
    directory = disk.find(above or ".")
    if not isinstance(directory, Directory):
        raise ValueError(f"no directory {above}")
    return directory, name


def _walk(
    directory: Directory, above: str, names: Mapping[int, Mapping[str, File | Directory]], *, sure: bool = False
) -> Iterator[tuple[str, File | Directory]]:
    found = names.get(id(directory), directory.sure if sure else directory.names)
    for name, node in sorted(found.items()):
        yield f"{above}{name}", node
        if isinstance(node, Directory):
            yield from _walk(node, f"{above}{name}/", names, sure=sure)


def _files(directory: Directory, seen: set[int]) -> Iterator[File]:
    for node in directory.names.values():
        if isinstance(node, Directory):
            yield from _files(node, seen)
        elif id(node) not in seen:
            seen.add(id(node))
            yield node


def content_of(directory: Path) -> dict[str, bytes | None]:
    """Return all files of a directory by path, with their content; None for a directory."""
    found = sorted(directory.rglob("*"))
    return {str(p.relative_to(directory)): p.read_bytes() if p.is_file() else None for p in found}
