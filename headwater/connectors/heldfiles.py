"""Files of a directory sink that wait, out of readers' sight, until they are large or old enough to be put together.

A reader that lists a directory sees the files of one moment. To replace small files by a large one under its eyes would
give it rows twice, or not at all. So small files are never visible: they wait in the writer's own directory, and the
file that is made of them is the first that readers see with their rows.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.connectors.fileformats import ParquetFormat
from headwater.disk.durable import naming

MOST_HELD = 1000
"""Most files that wait: each record of a batch lists them. Beyond them the partitions with most files are published."""
_CHUNK = 2**20


@dataclass(frozen=True, kw_only=True)
class HeldFile:
    """A file that waits: its name, its directory below that of the sink, its size, and since when (seconds of 1970)."""

    name: str
    below: str
    size: int
    since: float

    def to_data(self) -> list[Any]:
        """Return the JSON form, without the name."""
        return [self.below, self.size, self.since]


def held_in(record: Mapping[str, Any] | None) -> list[HeldFile]:
    """Return the files that wait as of a record."""
    held = (record or {}).get("held", {})
    return [HeldFile(name=n, below=below, size=size, since=since) for n, (below, size, since) in held.items()]


def due(files: Iterable[HeldFile], *, target: int, age: float, now: float) -> list[list[HeldFile]]:
    """Return the files to publish, each group as one file: of a partition with enough bytes, or with an old file.

    ``target`` in bytes, ``age`` in seconds. A file from the future is old: the clock was set back.

    >>> files = [HeldFile(name=n, below=n[0], size=40, since=s) for n, s in (("a1", 1.0), ("a2", 5.0), ("b1", 5.0))]
    >>> [[f.name for f in group] for group in due(files, target=80, age=9.0, now=6.0)]
    [['a1', 'a2']]
    >>> [[f.name for f in group] for group in due(files, target=99, age=1.0, now=6.0)]
    [['a1', 'a2'], ['b1']]
    """
    groups: dict[tuple[str, str], list[HeldFile]] = {}
    for file in files:
        groups.setdefault((file.below, Path(file.name).suffix), []).append(file)
    found: list[list[HeldFile]] = []
    waiting: list[list[HeldFile]] = []
    for group in groups.values():
        old = any(not 0 <= now - file.since < age for file in group)
        (found if old or sum(file.size for file in group) >= target else waiting).append(group)
    waiting.sort(key=len)
    while sum(len(group) for group in waiting) > MOST_HELD:
        found.append(waiting.pop())
    return found


def joined(files: Sequence[Path], scratch: Path, *, fsync: bool) -> list[Path]:
    """Write the rows of files of one format to a new file in ``scratch``, or to several where their columns differ."""
    made: list[Path] = []
    try:
        for group in _alike(files).values():
            path = scratch / f"{uuid.uuid4().hex}{files[0].suffix}"
            made.append(path)
            with naming(path):
                _JOIN[path.suffix](group, path)
                if fsync:
                    with open(path, "rb") as file:
                        os.fsync(file.fileno())
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise
    return made


def _alike(files: Sequence[Path]) -> dict[Any, list[Path]]:
    """Group files by their columns."""
    groups: dict[Any, list[Path]] = {}
    for file in files:
        groups.setdefault(_COLUMNS[file.suffix](file), []).append(file)
    return groups


def _schema_of(file: Path) -> bytes:
    import pyarrow.parquet as pq

    return bytes(pq.read_schema(file).remove_metadata().serialize())


def _header_of(file: Path) -> bytes:
    """Return the first record of a CSV file; a quoted name may have line breaks."""
    header, quoted = b"", False
    with open(file, "rb") as rows:
        for line in rows:
            header += line
            quoted ^= line.count(b'"') % 2 == 1
            if not quoted:
                break
    return header


def _join_parquet(files: Sequence[Path], path: Path) -> None:
    import pyarrow.parquet as pq

    out = ParquetFormat(path, pq.read_schema(files[0]))
    try:
        for file in files:
            with pq.ParquetFile(file) as rows:
                for batch in rows.iter_batches():
                    out.write(batch)
    finally:
        out.close()


def _join_csv(files: Sequence[Path], path: Path) -> None:
    with open(path, "wb") as out:
        header = _header_of(files[0])
        out.write(header)
        for file in files:
            _copy(file, out, len(header))


def _join_json(files: Sequence[Path], path: Path) -> None:
    with open(path, "wb") as out:
        for file in files:
            _copy(file, out, 0)


def _copy(file: Path, out: Any, begin: int) -> None:
    with open(file, "rb") as rows:
        rows.seek(begin)
        while chunk := rows.read(_CHUNK):
            out.write(chunk)


_COLUMNS: Mapping[str, Any] = {".parquet": _schema_of, ".csv": _header_of, ".json": lambda file: None}
_JOIN: Mapping[str, Any] = {".parquet": _join_parquet, ".csv": _join_csv, ".json": _join_json}
