"""Spark's state server, which knows no secret, listens at no port."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import headwater as hw
from headwater.agent.units import Units
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.plan.spec import spec_of
from headwater.query.query import Running
from headwater.spark.endpoint import LocalEndpoint
from tests.conformance.test_spark_ports import listening
from tests.conformance.test_warmup import CONTINUUM
from tests.patience import PATIENCE

BATCHES = 5


def counted(state: int | None, row: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    count = (state or 0) + 1
    return count, {"k": row["k"], "n": count}


def wait(running: Running, rows: int, ports: set[int], endpoint: LocalEndpoint) -> None:
    """Wait until this number of rows has been processed; note the ports at which Spark listens meanwhile."""
    deadline = time.monotonic() + PATIENCE
    while running.rows_in < rows:
        assert running.failure("unit") is None
        assert time.monotonic() < deadline, running.query.status
        ports.update(listening(endpoint.processes))
        running.observe()


def test_no_port_is_opened_for_state(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    rows = [{"id": i, "k": f"k{i % 3}"} for i in range(6)]

    def release(number: int) -> None:
        (tmp_path / "draft").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "draft").rename(place / f"{number}.json")

    builder = hw.flow("stateful", locations=["L1"])
    read = builder.read.json(str(place), "id bigint, k string")
    folded = read.scan(counted, "k string, n bigint", keys=["k"], order_by=["id"])
    folded.write.json(str(tmp_path / "out"))
    plan = build(builder.build(), CONTINUUM)
    spec = spec_of(plan, plan.units[0].id)
    units = Units(Layout(tmp_path / "zone"), endpoint, UnitSettings(trigger="200 milliseconds"))
    endpoint.session().range(10).count()
    before, during = set(listening(endpoint.processes)), set[int]()
    release(0)
    units.start(spec)
    running = units[spec.unit.id].running
    assert running is not None
    for files in range(1, BATCHES + 1):
        wait(running, files * len(rows), during, endpoint)
        if files < BATCHES:
            release(files)
    units.stop(spec.unit.id)
    lines = [line for f in (tmp_path / "out").glob("*.json") for line in f.read_text().splitlines()]
    expected = [(k, n) for k in ("k0", "k1", "k2") for n in range(1, 2 * BATCHES + 1)]
    assert sorted((r["k"], r["n"]) for r in map(json.loads, lines)) == expected
    assert during == before
    assert set(listening(endpoint.processes)) == before
