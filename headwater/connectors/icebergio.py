"""Files of Iceberg tables, synced when they are closed: data and metadata are on disk before the catalog names them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from headwater.disk.durable import make_directory, sync_directory


class TableFiles(PyArrowFileIO):
    """The local file system through Arrow; ``new_output`` gives files that are synced."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write; the directories above it are made, durably."""
        made = super().new_output(location)
        return _SyncedFile(made)


class _SyncedFile(PyArrowFile):
    def __init__(self, file: PyArrowFile) -> None:
        super().__init__(location=file.location, path=file._path, fs=file._filesystem, buffer_size=file._buffer_size)

    def create(self, overwrite: bool = False) -> Any:
        path = Path(self._path)
        make_directory(path.parent)
        return _SyncedStream(super().create(overwrite), path)


class _SyncedStream:
    """A stream that syncs its file when it is closed."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream = stream
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> _SyncedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._stream.closed:
            return
        self._stream.close()
        fd = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_directory(self._path.parent)
