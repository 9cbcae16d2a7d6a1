"""Compare the FlowUnits experiment's dataflow with the expected result, on one machine and without a lab."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwater as hw
from benchmarks import pipeline
from benchmarks.flowunits.flow import flow
from benchmarks.flowunits.workload import BATCH_ROWS, EDGES, Arrivals, Burst, continuum_text
from benchmarks.flowunits.zones import Zones
from headwater.app.local import LocalRun
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint


@pytest.mark.long
def test_two_bursts_come_out_as_expected(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    for location in EDGES.values():
        (tmp_path / location / "events").mkdir(parents=True)
    variant = Zones(None, tmp_path)  # type: ignore[arg-type]  # no lab is asked
    dataflow = flow(str(tmp_path / "{location}" / "events"), str(tmp_path / "out"), batch_rows=BATCH_ROWS)
    plan = build(dataflow, hw.Continuum.from_text(continuum_text()))
    deployment = LocalRun(plan, tmp_path / "deployment", endpoint)
    deployment.start()
    try:
        arrivals = Arrivals(tmp_path / "out")
        for burst in (Burst(0, 2400), Burst(2400, 1200)):
            variant.prepare(burst)
            variant.release(burst)
            deployment.settle()
            wanted = burst.expected()
            assert arrivals.look() == wanted.num_rows
            pipeline.check("headwater", pipeline.written(list(arrivals.new), ("location",)), wanted)
            arrivals.turn()
    finally:
        deployment.stop()
