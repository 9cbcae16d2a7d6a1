"""Compare the measured latency of a deployment with other clocks' times of the same batches."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.core.metrics import UnitProgress
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.plan.model import Unit
from headwater.plan.spec import spec_of
from headwater.query.latency import LatencyTracking, latency
from headwater.query.unit import tracking_of
from headwater.spark.broker import LocalBroker
from headwater.spark.endpoint import LocalEndpoint
from tests.faults import until

PAUSE = 2.0  # seconds without a reader
TICK = 0.01  # seconds by which file times may be off: Spark keeps milliseconds, kernels a coarse clock
CONTINUUM = """
name: latency
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [L1]}
"""


class Run:
    """Rows from files, cleaned at the edge and counted by the cloud."""

    def __init__(self, place: Path, endpoint: LocalEndpoint, continuum: str = CONTINUUM) -> None:
        self._in = place / "in"
        self._in.mkdir()
        flow = hw.flow(place.name, locations=["L1"])
        rows = flow.read.json(str(self._in), "id bigint")
        rows.where("id >= 0").to_layer("cloud").where("id >= 0").write.memory("out")
        self.plan = build(flow.build(), Continuum.from_text(continuum))
        self.deployment = LocalRun(self.plan, place / "run", endpoint, UnitSettings(trigger="100 milliseconds"))
        self.edge, self.cloud = sorted(self.plan.units, key=lambda u: u.node, reverse=True)
        self._files = 0

    def feed(self, rows: int) -> float:
        """Write a file and return its time by the file system's clock."""
        self._files += 1
        file = self._in / f"{self._files}.json"
        hidden = file.with_name(f".{file.name}")
        hidden.write_text("".join(json.dumps({"id": n}) + "\n" for n in range(rows)))
        os.replace(hidden, file)
        return file.stat().st_mtime

    def seen(self, unit: Unit) -> UnitProgress:
        return next(u for u in self.deployment.progress().units if u.unit == unit.id)

    def batches(self, unit: Unit) -> list[tuple[int, int]]:
        """Return the batches that gave rows, and their numbers of rows."""
        return [(p.batch, p.rows) for p in self.tracking(unit).passed(0.0)]

    def tracking(self, unit: Unit) -> LatencyTracking:
        return tracking_of(spec_of(self.plan, unit.id), self.deployment.layout)

    def check(self, unit: Unit, came: float) -> None:
        """Compare the newest batch with the times of its files in the checkpoint."""
        newest = self.tracking(unit).passed(0.0)[-1]
        checkpoint = self.deployment.layout.checkpoint(unit)
        planned, done = ((checkpoint / log / str(newest.batch)).stat().st_mtime for log in ("offsets", "commits"))
        assert newest.oldest == newest.newest == pytest.approx(came, abs=TICK)
        found = latency([newest])
        assert found is not None
        assert planned - came - TICK <= found.p50 <= found.p95 <= done - came + TICK


def follow(run: Run) -> None:
    came = run.feed(20)
    run.deployment.start()
    run.deployment.settle()
    end = run.seen(run.cloud)
    assert end.latency is not None and end.latency.rows == 20 and end.oldest_s is None
    assert run.seen(run.edge).oldest_s is None
    run.check(run.edge, came)
    run.check(run.cloud, came)
    edge, cloud = (latency(run.tracking(u).passed(0.0)) for u in (run.edge, run.cloud))
    assert edge is not None and cloud is not None and 0 < edge.p95 < cloud.p50

    deployed = run.deployment._deployed
    assert deployed is not None
    deployed.stop(spec_of(run.plan, run.cloud.id))
    came = run.feed(30)
    deployed.settle(spec_of(run.plan, run.edge.id))
    # What a broker has is asked for at times.
    until(lambda: run.seen(run.cloud).oldest_s is not None, "a row that waits")
    ages = []
    for _ in range(2):
        before = time.time()
        age = run.seen(run.cloud).oldest_s
        assert age is not None and before - came - TICK <= age <= time.time() - came + TICK
        ages.append(age)
        time.sleep(PAUSE)
    assert ages[1] - ages[0] >= PAUSE - TICK and run.seen(run.edge).oldest_s is None
    deployed.start(spec_of(run.plan, run.cloud.id))
    run.deployment.settle()
    run.check(run.cloud, came)
    after = run.seen(run.cloud)
    assert after.oldest_s is None and after.latency is not None and after.latency.p95 >= 2 * PAUSE
    assert [rows for _, rows in run.batches(run.cloud)] == [20, 30]


@pytest.mark.long
def test_a_chain_of_units(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    run = Run(tmp_path, endpoint)
    try:
        follow(run)
    finally:
        run.deployment.stop()


@pytest.mark.long
def test_a_chain_of_units_over_kafka(broker: LocalBroker, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    at = f"broker: '{broker.address}'"
    run = Run(tmp_path, endpoint, CONTINUUM.replace("{layer: cloud}", f"{{layer: cloud, {at}}}"))
    assert all(c.broker == "C1" for c in run.plan.channels)
    try:
        follow(run)
    finally:
        run.deployment.stop()
