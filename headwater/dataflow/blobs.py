"""Contents of files by their names, over Arrow batches: the function of ``map_batches`` that downloads blobs.

The container is part of the dataflow, so that agents check it against their permissions; a name comes from outside,
and names a file in the container only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headwater.core.errors import DataflowError

if TYPE_CHECKING:
    import pyarrow as pa

_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^:]+(:\d+)?(/[^:]*)?", re.I)


@dataclass(frozen=True, kw_only=True)
class BlobContainer:
    """The settings of a download: where the files are, the column of names, the columns to add, the largest file."""

    path: str
    name: str
    into: str
    error: str
    most_bytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not (os.path.isabs(self.path) or _URL.fullmatch(self.path)):
            raise DataflowError(
                f"'{self.path}' is no container",
                where="download_blobs",
                hint="give an absolute path, the same on all hosts, or one URI: s3://bucket/models",
            )
        if not isinstance(self.most_bytes, int) or not 0 < self.most_bytes <= 1 << 30:
            raise DataflowError(
                f"most_bytes={self.most_bytes}", where="download_blobs", hint="give 1 byte to 1 GiB, in bytes"
            )

    @property
    def settings(self) -> str:
        """The settings as JSON."""
        return json.dumps(vars(self), sort_keys=True)

    def read(self, name: str | None) -> tuple[bytes | None, str | None]:
        """Return a file's content, or why there is none. An unreachable container raises OSError."""
        if name is None:
            return None, None
        if not name or name.startswith("/") or re.search(r"\\|::|://|\x00", name) or ".." in name.split("/"):
            return None, "the name is none of a file in the container"
        import fsspec

        store, root = fsspec.core.url_to_fs(self.path)
        place = f"{root.rstrip('/')}/{name}"
        if _is_local(store) and not _is_in(place, root):
            return None, "the name leads out of the container"
        try:
            with store.open(place, "rb") as file:
                content: bytes = file.read(self.most_bytes + 1)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as problem:
            return None, f"{type(problem).__name__}: {name}"
        if len(content) > self.most_bytes:
            return None, f"more than {self.most_bytes} bytes"
        return content, None


@lru_cache(maxsize=16)
def container_of(settings: str) -> BlobContainer:
    """Read settings of a download; raise an error for malformed ones."""
    return BlobContainer(**json.loads(settings))


def downloading(settings: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that adds contents to batches."""

    def download(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        made = container_of(settings)
        for batch in batches:
            read = [made.read(name) for name in batch.column(made.name).to_pylist()]
            columns = [pa.array([c for c, _ in read], pa.binary()), pa.array([e for _, e in read], pa.string())]
            names = [*batch.schema.names, made.into, made.error]
            yield pa.RecordBatch.from_arrays([*batch.columns, *columns], names=names)

    return download


def _is_local(store: Any) -> bool:
    protocols = (store.protocol,) if isinstance(store.protocol, str) else store.protocol
    return "file" in protocols


def _is_in(place: str, root: str) -> bool:
    """Return whether a path, links resolved, lies below a directory."""
    real, below = os.path.realpath(place), os.path.realpath(root)
    return os.path.commonpath([real, below]) == below
