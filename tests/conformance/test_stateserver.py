"""A foreign connection to the port of Spark's state server only delays a batch."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.agent.units import Units
from headwater.core.errors import SparkStumbled
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.plan.spec import spec_of
from headwater.query.query import Running
from headwater.spark.endpoint import LocalEndpoint
from tests.conformance.test_warmup import CONTINUUM
from tests.patience import PATIENCE


def listening(pid: int) -> set[int]:
    """Return the ports at which a process accepts connections."""
    places = (f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd"))
    own = {os.readlink(place)[len("socket:[") : -1] for place in places if os.path.islink(place)}
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in own}


def counted(state: int | None, row: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    count = (state or 0) + 1
    return count, {"k": row["k"], "n": count}


def wait(running: Running, rows: int) -> None:
    """Wait until this number of rows has been processed, or the query has failed."""
    deadline = time.monotonic() + PATIENCE
    while running.rows_in < rows and running.failure("unit") is None:
        assert time.monotonic() < deadline, running.query.status
        running.observe()
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="it looks for ports in /proc")
def test_a_stranger_knocks(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    rows = [{"id": i, "k": f"k{i % 3}"} for i in range(6)]

    def release(number: int) -> None:
        (tmp_path / "draft").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "draft").rename(place / f"{number}.json")

    builder = hw.flow("knocked", locations=["L1"])
    read = builder.read.json(str(place), "id bigint, k string")
    folded = read.scan(counted, "k string, n bigint", keys=["k"], order_by=["id"])
    folded.write.json(str(tmp_path / "out"))
    plan = build(builder.build(), CONTINUUM)
    spec = spec_of(plan, plan.units[0].id)
    unit = spec.unit
    units = Units(Layout(tmp_path / "zone"), endpoint, UnitSettings(trigger="200 milliseconds"))
    release(0)
    units.start(spec)
    running = units[unit.id].running
    assert running is not None
    wait(running, len(rows))
    for files in range(2, 12):  # the worker may connect before the foreign client
        known = listening(endpoint.pid)
        release(files - 1)
        deadline = time.monotonic() + PATIENCE
        while not (fresh := listening(endpoint.pid) - known):
            assert time.monotonic() < deadline
        socket.create_connection(("127.0.0.1", fresh.pop()), 10).close()
        wait(running, files * len(rows))
        if running.failure(unit.id) is not None:
            break
    assert isinstance(running.failure(unit.id), SparkStumbled)
    units.stop(unit.id)
    units.start(spec)
    running = units[unit.id].running
    assert running is not None
    wait(running, len(rows))
    units.stop(unit.id)
    lines = [line for f in (tmp_path / "out").glob("*.json") for line in f.read_text().splitlines()]
    expected = [(k, n) for k in ("k0", "k1", "k2") for n in range(1, 2 * files + 1)]
    assert sorted((r["k"], r["n"]) for r in map(json.loads, lines)) == expected
