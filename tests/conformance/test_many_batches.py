"""Thousands of small batches over a link: files, handles, threads and memory stay level."""

from __future__ import annotations

import os
import threading
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median

import psutil
import pytest

from headwater.channels.arrival import Arrival, record_arrival
from headwater.channels.filelog import FileLog
from headwater.channels.flight import FlightLog
from headwater.channels.logserver import LogServer
from headwater.channels.relay import Relay
from headwater.channels.wire import Credentials, Wire
from tests.conformance.conftest import ids, table
from tests.conftest import ZONE
from tests.faults import until

EVERY = 20
"""Batches between two measurements."""


@dataclass(frozen=True)
class Used:
    """What the process and its directories use at one time."""

    files: int
    handles: int
    threads: int
    memory_mb: float


SLACK = Used(files=3, handles=3, threads=1, memory_mb=6.0)
"""Differences that are no growth: measurements fall between two steps of a relay."""


def used(place: Path) -> Used:
    files = sum(len(names) for _, _, names in os.walk(place))
    memory = psutil.Process().memory_info().rss / 2**20
    return Used(files, len(os.listdir("/proc/self/fd")), threading.active_count(), memory)


def growth(seen: list[Used]) -> Used:
    """Return by how much the medians of the last quarter are above those of the second one."""
    quarter = len(seen) // 4
    early, late = (zip(*map(astuple, part), strict=True) for part in (seen[quarter : 2 * quarter], seen[-quarter:]))
    return Used(*(median(b) - median(a) for a, b in zip(early, late, strict=True)))


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("batches", [300, pytest.param(40_000, marks=pytest.mark.long)])
def test_a_week_of_small_batches_leaves_nothing_behind(tmp_path: Path, batches: int) -> None:
    path, members = tmp_path / "log", tmp_path / "in.members.json"
    server = LogServer("127.0.0.1:0", credential=ZONE, find=lambda name: FileLog(tmp_path / name, fsync=False))
    connect = lambda: FlightLog(Wire(f"127.0.0.1:{server.port}", Credentials(ZONE.order_token)), "log")  # noqa: E731
    FileLog(path).create()
    FileLog(path).register("relay")
    replica = FileLog(tmp_path / "replica", fsync=False)
    replica.register("unit")
    pulling = Relay(connect, "log", replica, reader="relay")
    pulling.start()
    seen: list[Used] = []
    rows = 0
    try:
        for batch in range(batches):
            # A query's writer opens the log anew for every batch.
            FileLog(path, event_time="ts", fsync=False).append(table([batch]), epoch=1, batch=batch)
            if batch % EVERY == 0:
                until(lambda: replica.latest() == FileLog(path).latest())
                at = replica.register("unit")
                rows += len(ids(replica, at))
                record_arrival(members, {"log@E1": at}, Arrival(times=(1.0, 2.0), rows=True))
                replica.advance("unit", replica.latest())
                # The relay has acknowledged all entries, and the deletion that this began has ended.
                until(lambda: FileLog(path).floor().swept == FileLog(path).latest() - 1)
                seen.append(used(tmp_path))
        until(lambda: replica.latest() == batches)
        rows += len(ids(replica, replica.register("unit")))
    finally:
        pulling.stop()
        server.shutdown()
    assert rows == batches
    found = growth(seen)
    assert all(a <= b for a, b in zip(astuple(found), astuple(SLACK), strict=True)), found
    # The middle one: a single measurement may fall between the end of a read and the deletion of its files.
    assert median(one.files for one in seen[-len(seen) // 4 :]) < 30
