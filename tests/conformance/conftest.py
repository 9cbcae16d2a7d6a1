"""The channel kinds under test. A new kind joins the suite by one more entry in KINDS."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.runtime.channels.base import Channel
from headwater.runtime.channels.filelog import FileLog
from headwater.runtime.channels.flight import FlightLog
from headwater.runtime.logserver import LogServer
from headwater.runtime.wire import Credentials, Wire

Open = Callable[[], Channel]


@contextlib.contextmanager
def filelog(path: Path) -> Iterator[Open]:
    """Give a log on this disk."""
    yield lambda: FileLog(path / "log", event_time="ts", fsync=False)


@contextlib.contextmanager
def flight(path: Path) -> Iterator[Open]:
    """Give a log that another process would serve."""
    server = LogServer(
        "127.0.0.1:0",
        token="secret",
        find=lambda name: FileLog(path / name, event_time="ts", fsync=False),
    )
    try:
        yield lambda: FlightLog(Wire(f"127.0.0.1:{server.port}", Credentials("secret")), "log")
    finally:
        server.shutdown()


KINDS: dict[str, Callable[[Path], AbstractContextManager[Open]]] = {"filelog": filelog, "flight": flight}

TS = pa.timestamp("us", tz="UTC")


def table(ids: Sequence[int]) -> pa.Table:
    """Make rows whose event time is their id in seconds."""
    return pa.table({"id": pa.array(ids, pa.int64()), "ts": pa.array([i * 1_000_000 for i in ids], TS)})


def ids(channel: Channel, start: int | None = None, end: int | None = None) -> list[int]:
    """Read the ids between two positions."""
    first = channel.earliest() if start is None else start
    last = channel.latest() if end is None else end
    return [i for batch in channel.read(first, last) for i in batch.column("id").to_pylist()]


@pytest.fixture(params=sorted(KINDS))
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Give a function that opens the same channel anew, as another process would."""
    with KINDS[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture
def channel(reopen: Open) -> Channel:
    """Give an empty channel."""
    return reopen()
