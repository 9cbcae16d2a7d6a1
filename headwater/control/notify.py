"""Detect writes to a store without reading it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from headwater.control import tables as t
from headwater.core.errors import HeadwaterError


class ChangeNotifier:
    """Detects writes to a store in a file; used and closed by one thread.

    It detects nothing for other stores, or while the file is missing: poll those.
    """

    def __init__(self, store_url: str | Path) -> None:
        self._file: Path | None = None
        with contextlib.suppress(HeadwaterError):
            url = t.url_of(store_url)
            if url.get_backend_name() == "sqlite" and url.database:
                self._file = Path(url.database).absolute()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._last: int | None = None

    def beats(self) -> bool:
        """Return whether the store was written since the last call; False at the first."""
        if self._file is None:
            return False
        try:
            inode = self._file.stat().st_ino
            if inode != self._inode or self._connection is None:  # the first call, or another file in its place
                self.close()
                self._connection = sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True, timeout=0)
                self._inode, self._last = inode, None
            ((now,),) = self._connection.execute("PRAGMA data_version").fetchall()
        except (OSError, sqlite3.Error):  # it is being written now, or is not a store: the next call tells
            return False
        last, self._last = self._last, now
        return last is not None and now != last

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
