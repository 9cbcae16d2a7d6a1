"""The channel kinds under test. A new kind joins the suite by one more entry in KINDS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.runtime.channels.base import Channel
from headwater.runtime.channels.filelog import FileLog

KINDS: dict[str, Callable[[Path], Channel]] = {
    "filelog": lambda path: FileLog(path / "log", event_time="ts", fsync=False),
}

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
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Channel]:
    """Give a function that opens the same channel anew, as another process would."""
    make = KINDS[request.param]
    return lambda: make(tmp_path)


@pytest.fixture
def channel(reopen: Callable[[], Channel]) -> Channel:
    """Give an empty channel."""
    return reopen()
