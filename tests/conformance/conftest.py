"""The channel kinds under test. A new kind joins the suite by one more entry in KINDS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.runtime.broker import LocalBroker
from headwater.runtime.channels.base import Channel
from headwater.runtime.channels.log import Log
from headwater.runtime.channels.open import open_log

KINDS = ("filelog", "kafka")


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Give a topic's name that no other test has."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]


def spec_of(kind: str, path: Path, topic: str, broker: LocalBroker | None) -> dict[str, Any]:
    """Describe a log of a kind."""
    if broker is None:
        return {"kind": kind, "path": str(path), "fsync": False}
    return {"kind": kind, "servers": broker.address, "topic": topic, "staging": str(path / "staging")}


@pytest.fixture(params=KINDS)
def spec(request: pytest.FixtureRequest, tmp_path: Path, topic: str) -> dict[str, Any]:
    """Describe an empty log, once for each kind."""
    broker = request.getfixturevalue("broker") if request.param == "kafka" else None
    return spec_of(request.param, tmp_path / "log", topic, broker)


TS = pa.timestamp("us", tz="UTC")


def table(ids: Sequence[int]) -> pa.Table:
    """Make rows whose event time is their id in seconds."""
    return pa.table({"id": pa.array(ids, pa.int64()), "ts": pa.array([i * 1_000_000 for i in ids], TS)})


def ids(channel: Channel, start: int | None = None, end: int | None = None) -> list[int]:
    """Read the ids between two positions."""
    first = channel.earliest() if start is None else start
    last = channel.latest() if end is None else end
    return [i for batch in channel.read(first, last) for i in batch.column("id").to_pylist()]


@pytest.fixture
def reopen(spec: dict[str, Any]) -> Callable[[], Log]:
    """Give a function that opens the same channel anew, as another process would."""
    return lambda: open_log(spec, event_time="ts")


@pytest.fixture
def channel(reopen: Callable[[], Log]) -> Log:
    """Give an empty channel."""
    return reopen()
