"""Idempotency keys of an endpoint: the requests whose rows are in its log, so that one sent again is stored once.

The keys of a batch are durable, with its number, before the batch is committed to the log. After a crash those count
whose batch the log has: a key and its rows are there both, or neither is. The newest ``KEPT`` are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from headwater.core.errors import ChannelError
from headwater.disk.durable import make_directory, write_atomically

KEPT = 100_000
"""Number of requests that are remembered."""


class KnownRequest(NamedTuple):
    """A request with a key: hashes of the key and of the body, and the number of its rows."""

    key: str
    body: str
    rows: int


def digest(text: bytes) -> str:
    """Return the hash of a key or a body."""
    return hashlib.blake2b(text, digest_size=16).hexdigest()


class RequestKeys:
    """The remembered requests of one endpoint, in ``directory``; one process writes them.

    ``get`` and ``add`` need a lock of the caller; ``note`` may run beside them.
    """

    def __init__(self, directory: Path, *, epoch: int, fsync: bool = True, kept: int = KEPT) -> None:
        self._directory, self._epoch, self._fsync, self._kept = directory, epoch, fsync, kept
        self._file = directory / f"{epoch}.jsonl"
        self._known: dict[str, KnownRequest] = {}
        self._written = 0  # keys in the file
        self._size = 0
        self._open: int | None = None
        self._noted: tuple[int, int, list[KnownRequest]] | None = None  # batch, the file's size with it, its requests

    def load(self, stored: tuple[int, int] | None) -> None:
        """Read the keys of all batches up to ``stored``, the (epoch, batch) of the newest one in the log.

        A writer with an older epoch must be shut out of the log by now.
        """
        make_directory(self._directory, fsync=self._fsync)
        former = sorted((f for f in self._directory.glob("*.jsonl")), key=lambda f: int(f.stem))
        for file in former:
            for number, requests in _lines(file):
                if stored is not None and number <= stored:
                    self.add(requests)
        self._rewrite(stored or (0, -1))
        for file in former:
            if file != self._file:
                file.unlink()

    def get(self, key: str) -> KnownRequest | None:
        """Return the request of a key's hash."""
        return self._known.get(key)

    def add(self, requests: Iterable[KnownRequest]) -> None:
        """Remember requests whose rows are stored."""
        for request in requests:
            self._known.pop(request.key, None)
            self._known[request.key] = request
        while len(self._known) > self._kept:
            del self._known[next(iter(self._known))]

    def note(self, batch: int, requests: list[KnownRequest]) -> None:
        """Make the keys of a batch durable, before its commit. Calling it again for the batch replaces them."""
        self._noted = None
        if not requests:
            return
        assert self._open is not None
        line = _line((self._epoch, batch), requests)
        os.ftruncate(self._open, self._size)  # what an attempt before left there
        at = self._size
        while line:
            written = os.pwrite(self._open, line, at)
            line, at = line[written:], at + written
        if self._fsync:
            os.fsync(self._open)
        self._noted = batch, at, requests

    def commit(self) -> None:
        """Remember the requests of the batch that was noted last: the log has it now."""
        if self._noted is None:
            return
        batch, self._size, requests = self._noted
        self._noted = None
        self._written += len(requests)
        self.add(requests)
        if self._written > 2 * self._kept:
            with contextlib.suppress(OSError):  # a full disk: the file grows until there is room
                self._rewrite((self._epoch, batch))

    def close(self) -> None:
        """Close the file."""
        if self._open is not None:
            os.close(self._open)
            self._open = None

    def _rewrite(self, number: tuple[int, int]) -> None:
        """Write the remembered requests alone, as those of one batch."""
        lines = _line(number, list(self._known.values())) if self._known else b""
        write_atomically(self._file, lines, fsync=self._fsync)
        self.close()
        self._open = os.open(self._file, os.O_WRONLY)
        self._size, self._written = len(lines), len(self._known)


def _line(number: tuple[int, int], requests: list[KnownRequest]) -> bytes:
    return json.dumps([*number, requests], separators=(",", ":")).encode() + b"\n"


def _lines(file: Path) -> Iterator[tuple[tuple[int, int], list[KnownRequest]]]:
    """Yield number and requests of each batch; a last line that a crash has cut belongs to no stored batch."""
    *lines, _ = file.read_bytes().split(b"\n")
    for n, line in enumerate(lines):
        try:
            epoch, batch, requests = json.loads(line)
            found = (int(epoch), int(batch)), [KnownRequest(*request) for request in requests]
        except (ValueError, TypeError) as error:
            if n == len(lines) - 1:
                return  # its blocks reached the disk in another order
            raise ChannelError(
                f"line {n + 1} of the requests' keys is damaged",
                where=str(file),
                hint="restore the file, or delete it: requests from before that are sent again are then stored twice",
            ) from error
        yield found
