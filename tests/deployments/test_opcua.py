"""A loop over a real OPC UA server: values are read at the edge, judged, and written back to a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from tests.conformance.test_opcua import Plc
from tests.faults import until

pytest.importorskip("asyncua")

CONTINUUM = """
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [L1]}
"""


@pytest.fixture
def plc() -> Iterator[Plc]:
    plc = Plc()
    try:
        yield plc.start("open")
    finally:
        plc.kill()


@pytest.mark.long
def test_values_go_up_and_setpoints_come_back(plc: Plc, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    f = hw.flow("loop", locations=["L1"])
    nodes = ["nsu=urn:plant;s=Temp", "nsu=urn:plant;s=Name"]
    read = f.read.opcua(plc.url, nodes, interval="100 milliseconds", location_as="at")
    hot = read.where("quality = 'good' AND value > 50")
    back = hot.to_layer("cloud").select("at", "CAST(value AS int) AS count").to_layer("edge", by="at")
    back.write.opcua(plc.url, "nsu=urn:plant;s=Count", value="count")
    read.to_layer("cloud").write.memory("out")
    plan = build(f.build(), Continuum.from_text(CONTINUUM))
    run = LocalRun(plan, tmp_path / "run", endpoint, UnitSettings(trigger="200 milliseconds"))
    run.start()
    try:
        until(lambda: any(v == 20.0 for v in run.sink_rows("out")["value"].to_pylist()), "the present value")
        plc.write("Temp", 40.0, 60.0, 70.0)
        until(lambda: plc.read("Count") == 70, "the setpoint")
        until(lambda: run.sink_rows("out").num_rows == 4, "all values")
        rows = run.sink_rows("out").select(["value", "gap", "status", "source_time"]).to_pylist()
        letters = list(run.dead_letters())
        assert not any(u.waits for u in run.progress().units)
        plc.kill()
        until(lambda: any("no OPC UA server" in str(u.waits) for u in run.progress().units), "the unit's problem")
    finally:
        run.stop()
    assert [(r["value"], r["gap"], r["status"]) for r in rows] == [
        (20.0, True, "Good"),
        (40.0, False, "Good"),
        (60.0, False, "Good"),
        (70.0, False, "Good"),
    ]
    assert all(r["source_time"] is not None for r in rows)
    (letter,) = letters
    assert letter["source"] == f"opcua:{plc.url}" and '"saw" is not a double' in letter["reason"]
