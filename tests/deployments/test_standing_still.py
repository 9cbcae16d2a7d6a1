"""Agents and Sparks that stand still, or lack file descriptors: status tells, other zones go on, rows are exact."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwater as hw
from headwater.agent.agents import running_agent
from headwater.app import deployments, observe
from headwater.continuum.model import Continuum
from headwater.core.errors import ChannelError
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.deployments.controllers import apply, running, sink_rows
from tests.deployments.flows import SCHEMA, rows
from tests.faults import no_descriptors, standing_still, until

CONTINUUM = Continuum.from_text("""
name: three
layers: [edge, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 2, memory: 1GiB}}}
  E1: {layer: edge, parent: C1, locations: [L1], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
  E2: {layer: edge, parent: C1, locations: [L2], hosts: {e2: {n_cpu: 1, memory: 1GiB}}}
""")
NAME = "still"


def planned(path: str) -> DeploymentPlan:
    """Plan rows cleaned at the edge, and in the cloud the rows themselves and their numbers in windows."""
    builder = hw.flow(NAME, locations=["L1", "L2"])
    read = builder.read.json(path, SCHEMA, location_as="location").with_watermark("ts", "5 seconds")
    clean = read.where("v IS NOT NULL").named("clean").to_layer("cloud")
    clean.select("id", "location", "v").write.memory("out")
    clean.group_by(hw.window("ts", "20 seconds"), "location").agg(n="count(*)").write.memory("counted")
    return build(builder.build(), CONTINUUM)


class Zones:
    """The processes of zones, and the state that the controller's store has of them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.store = str(place / "store.db")

    def agent(self, zone: str) -> int:
        record = running_agent(self.place / "zones" / zone)
        assert record is not None
        return int(record["pid"])

    def spark(self, zone: str) -> int:
        (directory,) = (self.place / "zones" / zone / "spark").iterdir()
        found = LocalEndpoint.attach(directory)
        assert found is not None
        return found.pid

    def unreachable(self) -> set[str]:
        (status,) = observe.status(NAME, self.store)
        return {unit.zone for unit in status.units if unit.status == "unreachable"}

    def arrived(self, location: str) -> int:
        try:
            table = sink_rows(self.place, NAME, "out")
        except ChannelError:  # there is no log before the first batch
            return 0
        return sum(at == location for at in table["location"].to_pylist()) if table.num_rows else 0

    def log(self, zone: str) -> str:
        return (self.place / "zones" / zone / "agent.log").read_text(errors="replace")


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_zones_that_stand_still_are_told_and_lose_nothing(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    made = {k: v for k, v in rows(160, seed=3).items() if k in ("L1", "L2")}
    source = BoundedSource(tmp_path / "in", made, rows_per_file=10)
    plan, zones = planned(source.path), Zones(tmp_path)
    released = iter(source.release())
    with running(NAME, tmp_path, seed=1, share_spark=False) as controller:
        controller.carry_out(apply(plan, zones.store), kill=False)
        next(released)
        until(lambda: zones.arrived("L1") and zones.arrived("L2"), "the first rows")
        for stands in (zones.agent, zones.spark):
            with standing_still(stands("E1")):
                before = zones.arrived("L2")
                next(released)
                until(lambda: zones.unreachable() == {"E1"}, "the status")
                until(lambda before=before: zones.arrived("L2") > before, "the rows of the other zone")  # type: ignore[misc]
            until(lambda: not zones.unreachable(), "the return")
        for lacks, told in ((zones.agent, "Too many open files"), (zones.spark, "no file descriptor is left")):
            before = len(zones.log("E1"))
            with no_descriptors(lacks("E1")):
                next(released)
                next(released)
                until(lambda told=told, at=before: told in zones.log("E1")[at:], told)  # type: ignore[misc]
        for _ in released:
            pass
        controller.carry_out(deployments.stop(NAME, zones.store, how="finish"), kill=False)
        got = {sink: sink_rows(tmp_path, NAME, sink) for sink in ("out", "counted")}
    expected = batch_result(endpoint.session(), plan.dataflow, plan.continuum)
    assert all(table.num_rows > 10 for table in got.values())
    assert {s: compare(expected[s], t) for s, t in got.items() if compare(expected[s], t)} == {}
