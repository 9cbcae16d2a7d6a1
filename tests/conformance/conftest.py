"""The channel kinds under test. A new kind joins the suite by one more entry in KINDS."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.channels.filelog import FileLog
from headwater.channels.flight import FlightLog
from headwater.channels.log import Log
from headwater.channels.logserver import LogServer
from headwater.channels.open import open_log
from headwater.channels.wire import Credentials, Wire
from headwater.spark.broker import LocalBroker
from tests.conftest import ZONE

KINDS = ("filelog", "kafka")


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return the name of a topic that no other test uses."""
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
    """Return rows whose event time is their id in seconds."""
    return pa.table({"id": pa.array(ids, pa.int64()), "ts": pa.array([i * 1_000_000 for i in ids], TS)})


def ids(channel: Log | FlightLog, start: int | None = None, end: int | None = None) -> list[int]:
    """Return the ids between two positions."""
    first = channel.earliest() if start is None else start
    last = channel.latest() if end is None else end
    return [i for batch in channel.read(first, last) for i in batch.column("id").to_pylist()]


@pytest.fixture(params=(*KINDS, "flight"))
def reopen(request: pytest.FixtureRequest, tmp_path: Path, topic: str) -> Iterator[Callable[[], Log | FlightLog]]:
    """Return a function that opens the same channel again, as another process would."""
    if request.param == "flight":
        server = LogServer(
            "127.0.0.1:0",
            credential=ZONE,
            find=lambda name: FileLog(tmp_path / name, event_time="ts", fsync=False),
        )
        yield lambda: FlightLog(Wire(f"127.0.0.1:{server.port}", Credentials(ZONE.order_token)), "log")
        server.shutdown()
        return
    broker = request.getfixturevalue("broker") if request.param == "kafka" else None
    spec = spec_of(request.param, tmp_path / "log", topic, broker)
    yield lambda: open_log({**spec, "event_time": "ts"})


@pytest.fixture
def channel(reopen: Callable[[], Log | FlightLog]) -> Log | FlightLog:
    """Return an empty channel."""
    return reopen()
