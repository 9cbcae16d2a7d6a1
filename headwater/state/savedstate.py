"""Saved state of stopped units, in a store from which other zones fetch it.

A store is a directory, or any location that fsspec opens by its URI. Of a unit it holds only the files that
the last version of its state needs; RocksDB's files never change under a name, so existing ones
are not sent again. ``saved.json`` is written last, when the others are durable: without it nothing is saved.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath

import fsspec

from headwater.core.errors import RuntimeFailure, Unavailable
from headwater.disk.checkpoint import announce, needed_of, newest_batch
from headwater.disk.syncing import sync_paths

_NOTE, _EARLY = "saved.json", "early.json"
_IMMUTABLE = ".sst"
_OLD = 5  # batches after which a running unit's state is stored anew, so that little is left to send after the stop
_TRIES = 3  # attempts to copy files that a running query may delete meanwhile


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Batch, positions and watermarks of a unit that was stopped after ``batch``; -1 where it never had one.

    Of a unit that runs, the state is that after ``batch``; ``ended``: the newest batch that it has done since.
    """

    batch: int = -1
    ended: int = -1
    watermark: int = 0
    next_watermark: int = 0
    """The watermark that its next batch would have had, in milliseconds like the other."""
    timestamp: int = 0
    conf: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    """Offset of each of its sources, in Spark's form, by name."""
    recent: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """The same for each of its newest batches; of a unit that runs, also for the one that it is about to do."""
    outputs: Mapping[str, int] = field(default_factory=dict)
    """End positions of the channels that it writes."""
    files: tuple[str, ...] = ()
    sinks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Files of memory sinks, by sink: of their logs."""
    bytes: int = 0
    rows_in: int = 0
    late_rows: int = 0

    @property
    def newest(self) -> int:
        """The newest batch that the unit has done."""
        return max(self.batch, self.ended)


class StateStore:
    """The store through which zones exchange state.

    Fetched RocksDB files are cached in the directory ``kept``, if there is one.
    """

    def __init__(self, uri: str, *, kept: Path | None = None) -> None:
        self.uri = uri
        self._fs, self._root = fsspec.core.url_to_fs(uri)
        self._kept = kept

    def keeping(self, kept: Path) -> StateStore:
        """Return the same store with a directory that caches fetched files."""
        return StateStore(self.uri, kept=kept)

    def put(self, name: str, files: Mapping[str, Path]) -> int:
        """Store files under a unit's name; return the number of bytes sent."""
        sent, written = 0, []
        with self._reached():
            for place, file in files.items():
                target, size = self._path(name, place), file.stat().st_size
                if place.endswith(_IMMUTABLE) and self._has(target, size):
                    continue
                self._fs.makedirs(str(PurePosixPath(target).parent), exist_ok=True)
                self._fs.put_file(str(file), target)
                written.append(target)
                sent += size
            self._sync(written)
        return sent

    def get(self, name: str, place: str, target: Path) -> None:
        """Fetch one file."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._kept is None or not place.endswith(_IMMUTABLE):
            self._fetch(name, place, target)
            return
        kept = self._kept / name / place
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            draft = kept.with_name(f".{kept.name}")
            self._fetch(name, place, draft)
            draft.replace(kept)
        shutil.copyfile(kept, target)

    def _fetch(self, name: str, place: str, target: Path) -> None:
        with self._reached():
            self._fs.get_file(self._path(name, place), str(target))

    def note(self, name: str, saved: Saved, *, early: bool = False) -> None:
        """Record that a unit's files are complete; ``early``: for an earlier batch, while it still runs."""
        note = _EARLY if early else _NOTE
        with self._reached():
            self._fs.makedirs(self._path(name), exist_ok=True)
            draft = self._path(name, f".{note}")
            self._fs.pipe_file(draft, json.dumps(asdict(saved)).encode())
            self._sync([draft])
            self._fs.mv(draft, self._path(name, note))
            self._sync([self._path(name, note)])

    def has_early(self, name: str) -> bool:
        """Return whether state was stored while the unit ran."""
        with self._reached():
            return bool(self._fs.exists(self._path(name, _EARLY)))

    def saved(self, name: str, *, early: bool = False) -> Saved:
        """Read the record of a unit's saved state."""
        try:
            with self._reached():
                note = json.loads(self._fs.cat_file(self._path(name, _EARLY if early else _NOTE)))
            return Saved(**{**note, "recent": {int(n): ends for n, ends in note.get("recent", {}).items()}})
        except (ValueError, TypeError, AttributeError) as error:
            raise RuntimeFailure(
                f"the saved state is damaged: {error}", where=self._path(name), hint="save it again"
            ) from error

    def remove(self, name: str) -> None:
        """Delete a unit's saved state."""
        with self._reached():
            if self._fs.exists(self._path(name)):
                self._fs.rm(self._path(name), recursive=True)

    def check(self) -> None:
        """Raise Unavailable where the store cannot be written."""
        with self._reached():
            self._fs.makedirs(self._root, exist_ok=True)
            probe = f"{self._root}/.{uuid.uuid4().hex}"
            self._fs.pipe_file(probe, b"")
            self._fs.rm_file(probe)

    def _sync(self, files: Sequence[str]) -> None:
        """Make files in a directory of this machine durable, with their names; other stores do that by themselves."""
        if self._fs.protocol != "file" and "file" not in self._fs.protocol:
            return
        above = {str(p) for file in files for p in PurePosixPath(file).parents if p.is_relative_to(self._root)}
        sync_paths(sorted({*files, *above, str(PurePosixPath(self._root).parent)}))

    def _path(self, *parts: str) -> str:
        return "/".join([self._root, *parts])

    def _has(self, path: str, size: int) -> bool:
        try:
            return bool(self._fs.info(path)["size"] == size)
        except FileNotFoundError:
            return False

    def _reached(self) -> _Reached:
        return _Reached(self.uri)


class _Reached:
    """Translate errors of the file system into Unavailable."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise Unavailable(
                f"the state store cannot be used: {error}",
                where=self._uri,
                hint="check that this zone reaches it",
            ) from error


# ---------------------------------------------------------------- from a checkpoint


def describe(
    checkpoint: Path, outputs: Mapping[str, int], *, rows_in: int, late_rows: int
) -> tuple[Saved, dict[str, Path]]:
    """Describe a stopped query's checkpoint, and list the files that a successor needs.

    Raise Unavailable where a batch was interrupted: it has to be repeated first.
    """
    done, planned = newest_batch(checkpoint / "commits"), newest_batch(checkpoint / "offsets")
    if planned > done:
        raise Unavailable(
            f"batch {planned} was interrupted",
            where=str(checkpoint),
            hint="let the unit run until it has repeated the batch",
        )
    if done < 0:
        return Saved(outputs=dict(outputs), rows_in=rows_in, late_rows=late_rows), {}
    saved, files = _as_of(checkpoint, done, done)
    return replace(saved, outputs=dict(outputs), rows_in=rows_in, late_rows=late_rows), files


def put_early(checkpoint: Path, name: str, store: StateStore) -> Saved | None:
    """Store a running query's state as of its newest batch; None where there is none yet.

    The query must not be stopped meanwhile: the batch that it is about to do counts as certain from now on.
    """
    for _ in range(_TRIES):
        done = newest_batch(checkpoint / "commits")
        if done < 0:
            return None
        planned = _announced(checkpoint, done)
        # Meanwhile the query may continue and delete this version.
        with contextlib.suppress(FileNotFoundError, Unavailable):
            saved, files = _as_of(checkpoint, done, planned)
            files = {p: f for p, f in files.items() if p.startswith("state/")}
            store.put(name, files)
            saved = replace(saved, files=tuple(files))
            store.note(name, saved, early=True)
            return saved
    return None


def put_batches(checkpoint: Path, name: str, store: StateStore) -> bool:
    """Add a running query's newest batches to the record of its state, which stays as it is.

    Return False where none was stored, or where it is of an old batch. As in ``put_early``, the query must run on.
    """
    if not store.has_early(name):
        return False
    early, done = store.saved(name, early=True), newest_batch(checkpoint / "commits")
    if not 0 <= early.batch <= done <= early.batch + _OLD:
        return False
    known = batch_ends(checkpoint, _announced(checkpoint, done))
    store.note(name, replace(early, ended=done, recent=known), early=True)
    return True


def _announced(checkpoint: Path, done: int) -> int:
    """Return the newest batch that a running query has planned; it is not taken back."""
    planned = max(done, newest_batch(checkpoint / "offsets"))
    if planned > done:
        announce(checkpoint, planned)
    return planned


def _as_of(checkpoint: Path, done: int, planned: int) -> tuple[Saved, dict[str, Path]]:
    """Describe a checkpoint as of a batch, with the positions of batches up to a planned one, and list its files."""
    files = {str(f.relative_to(checkpoint)): f for f in _files(checkpoint, done + 1)}
    saved = stood_at(checkpoint, done)
    size = sum(f.stat().st_size for f in files.values())
    return replace(saved, recent=batch_ends(checkpoint, planned), files=tuple(files), bytes=size), files


def stood_at(checkpoint: Path, done: int) -> Saved:
    """Return the positions and watermarks of a query after a batch."""
    version, header, *lines = (checkpoint / "offsets" / str(done)).read_text().splitlines()
    if version != "v2":
        raise RuntimeFailure(
            f"the checkpoint has unknown format {version}",
            where=str(checkpoint),
            hint="another version of Spark made it: use that version",
        )
    metadata = json.loads(header)
    commit = json.loads((checkpoint / "commits" / str(done)).read_text().splitlines()[1])
    return Saved(
        batch=done,
        watermark=int(metadata["batchWatermarkMs"]),
        next_watermark=int(commit.get("nextBatchWatermarkMs", 0)),
        timestamp=int(metadata["batchTimestampMs"]),
        conf=metadata["conf"],
        sources=_sources(lines),
    )


def batch_ends(checkpoint: Path, newest: int) -> dict[int, dict[str, str]]:
    """Return the offsets of each batch up to one that the checkpoint has kept."""
    found = {}
    for file in (checkpoint / "offsets").glob("[0-9]*"):
        if file.name.isdigit() and int(file.name) <= newest:
            with contextlib.suppress(FileNotFoundError):  # a running query forgets old ones
                found[int(file.name)] = _sources(file.read_text().splitlines()[2:])
    return found


def _sources(lines: Iterable[str]) -> dict[str, str]:
    return dict(line.split(":", 1) for line in lines)


def operators(checkpoint: Path) -> dict[int, str]:
    """Return the names of a query's stateful operators, by Spark's numbers; raise RuntimeFailure for a damaged file."""
    found = {}
    for place in (checkpoint / "state").glob("[0-9]*"):
        file = _operator_file(place)
        try:
            data = json.loads(file.read_text().splitlines()[1])
            found[int(place.name)] = str(data["operatorInfo"]["operatorName"])
        except (IndexError, KeyError, TypeError, ValueError, FileNotFoundError):
            raise RuntimeFailure(
                "a file of the checkpoint is damaged or missing",
                where=str(file),
                hint="start the unit: it is repaired, or the message names what to put back",
            ) from None
    return found


def _operator_file(place: Path) -> Path:
    versioned = place / "_metadata" / "v2"
    if versioned.is_dir():
        return versioned / str(newest_batch(versioned))
    return place / "_metadata" / "metadata"


def _files(checkpoint: Path, version: int) -> Iterator[Path]:
    """Yield the files of a version of the state, and the logs of file sources."""
    for place in sorted((checkpoint / "state").glob("[0-9]*")):
        yield _operator_file(place)
        yield from _plain((place / "_stateSchema").rglob("*"))
        for store in sorted({z.parent for z in place.rglob("*.zip")}):
            image = store / f"{version}.zip"
            yield image
            with zipfile.ZipFile(image) as packed:
                listed = json.loads(packed.read("metadata").decode().split("\n", 1)[1])
            for kind, directory in (("sstFiles", "SSTs"), ("logFiles", "logs")):
                for entry in listed.get(kind, ()):
                    yield store / directory / entry.get("dfsSstFileName", entry.get("dfsLogFileName"))
        for schema in sorted(place.glob("[0-9]*/**/_metadata")):
            yield from _plain(schema.rglob("*"))
    for log in sorted((checkpoint / "sources").glob("*")):
        yield from needed_of(log)


def _plain(paths: Iterable[Path]) -> Iterator[Path]:
    return (p for p in sorted(paths) if p.is_file() and not p.name.startswith("."))
