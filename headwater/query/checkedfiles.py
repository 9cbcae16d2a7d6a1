"""The files that a batch has read, checked against the permissions before the batch becomes visible.

The agent checks directories and patterns before a unit starts. A symbolic link in them, put there before or after,
can lead to any file; Spark follows it. So each batch's files, which Spark's log of the source names, are resolved
again, and rows of a file outside the permitted directories reach neither a channel, a sink, nor the dead letters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from headwater.connectors.permitted import PermittedPaths
from headwater.core.errors import DeploymentError
from headwater.disk.checkpoint import needed_of, sources_at
from headwater.query.ingest import entries_of, files_between, moved

_HINT = "remove the file or link, or let dataflows use its directory (--allow-read, --allow-write, access: of the zone)"


@dataclass(frozen=True)
class CheckedFiles:
    """A query's checkpoint, and the paths that it may use; directories that it writes, and ``tables`` that it reads."""

    checkpoint: Path
    paths: PermittedPaths
    sinks: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        directories = {"sinks": self.sinks, "tables": self.tables}
        return {"checkpoint": str(self.checkpoint), "paths": self.paths.to_data(), **directories}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> CheckedFiles:
        """Read the JSON form."""
        paths, tables = PermittedPaths.from_data(data["paths"]), tuple(data.get("tables", ()))
        return cls(Path(data["checkpoint"]), paths, tuple(data["sinks"]), tables)

    def check_sinks(self) -> None:
        """Raise DeploymentError where a directory to write is not permitted any more: it may be a link by now."""
        for path in self.sinks:
            if (reason := self.paths.refuse_file("write", path)) is not None:
                raise DeploymentError(reason, where=path, hint=_HINT)

    def check_batch(self, batch: int) -> None:
        """Raise DeploymentError where a batch has read a file that is not permitted."""
        self.check_sinks()
        for path in (*self.tables, *self._read_by(batch)):  # files of a table are below its directory
            if (reason := self.paths.refuse_file("read", path)) is not None:
                raise DeploymentError(reason, where=path, hint=_HINT)

    def _read_by(self, batch: int) -> Iterator[str]:
        """Yield the files that a planned batch reads."""
        offsets = self.checkpoint / "offsets"
        now = sources_at((offsets / str(batch)).read_text())
        try:
            before = sources_at((offsets / str(batch - 1)).read_text()) if batch else {}
        except FileNotFoundError:  # the first batch of a checkpoint that was put together
            before = {}
        for name, (begin, end) in moved(before, now).items():
            if (steps := files_between(begin, end)) is not None:
                yield from map(local_file, _files(self.checkpoint / "sources" / name, *steps))


def _files(log: Path, after: int, upto: int) -> Iterator[str]:
    """Yield the URIs of the files in steps of a source's log."""
    try:
        yield from [entry["path"] for entry in entries_of(log, after, upto)]
    except FileNotFoundError:  # Spark has compacted the step, and removed its file
        for file in needed_of(log):
            for line in file.read_text().splitlines()[1:]:
                entry = json.loads(line)
                if after < entry["batchId"] <= upto:
                    yield entry["path"]


def local_file(uri: str) -> str:
    """Return the path of a file's URI as Spark's log has it; a URI of another file system stays."""
    if uri.startswith("file:"):
        return unquote("/" + uri.removeprefix("file:").lstrip("/"))
    return uri
