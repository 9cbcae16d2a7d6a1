"""Kill agents, and end or start units behind the controller's back: the sinks still equal the batch run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headwater.agent.agents import AgentClient, Agents, running_agent
from headwater.app import deployments
from headwater.control.stamps import Stamps
from headwater.control.store import StoreReader
from headwater.plan.model import DeploymentPlan
from headwater.plan.spec import UnitSpec, spec_of
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.deployments.controllers import Controller, apply, running, sink_rows
from tests.deployments.flows import rows
from tests.deployments.test_live import CONTINUUM, NAME, planned
from tests.deployments.test_replay import until


class Deployed:
    """A deployment with its store and its agents, which tests inspect and disturb."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.store = str(place / "store.db")

    @property
    def plan(self) -> DeploymentPlan:
        with closing(StoreReader.open(self.store)) as store:
            found = store.active_plan(NAME)
        assert found is not None
        return found

    def unit(self, operator: str) -> UnitSpec:
        (unit,) = [u for u in self.plan.units if operator in u.operators]
        return spec_of(self.plan, unit.id)

    def told(self, text: str) -> bool:
        with closing(StoreReader.open(self.store)) as store:
            return any(text in event.text for event in store.events(NAME))

    def behind(self, spec: UnitSpec) -> AgentClient:
        """Return a client of a unit's agent that belongs to no controller of this store."""
        return Agents(self.place).open(CONTINUUM.node(spec.unit.node), Stamps("another store", 1))

    def runs(self, spec: UnitSpec) -> bool:
        agents = Agents(self.place)
        if running_agent(self.place / "zones" / spec.unit.node) is None:
            return False
        seen = agents.find(CONTINUUM.node(spec.unit.node)).progress(NAME).units
        return any(u.unit == spec.id and u.status == "running" for u in seen)

    def kill_agent(self, node: str) -> int:
        """Kill a node's agent; return its process id."""
        found = running_agent(self.place / "zones" / node)
        assert found is not None
        process = int(found["pid"])
        os.kill(process, signal.SIGKILL)
        return process

    def is_back(self, node: str, process: int) -> bool:
        """Return whether another agent has replaced a process."""
        found = running_agent(self.place / "zones" / node)
        return found is not None and int(found["pid"]) != process


@pytest.fixture
def controller(tmp_path: Path, spark_address: str) -> Iterator[Controller]:
    with running(NAME, tmp_path, seed=3) as started:
        yield started


@pytest.mark.long
def test_what_is_killed_ended_or_started_is_put_right(
    endpoint: LocalEndpoint, spark_address: str, tmp_path: Path, controller: Controller
) -> None:
    source = BoundedSource(tmp_path / "in", {"L1": rows(160, seed=8)["L1"]}, rows_per_file=8)
    released, here = iter(source.release()), Deployed(tmp_path)

    def more() -> None:
        for _ in range(2):
            next(released)

    more()
    controller.carry_out(apply(planned(source.path, ["L1"], spark_address), here.store), kill=False)
    kept = here.unit("rising")

    # An agent is killed while its units run, and another in the middle of a change.
    killed = here.kill_agent(kept.unit.node)
    more()
    until(lambda: here.is_back(kept.unit.node, killed) and here.runs(kept), "the agent to come back")
    until(lambda: here.told(f"agent of {kept.unit.node} has ended (process {killed})"), "the history to tell it")
    more()
    edited = planned(source.path, ["L1"], spark_address, least="-1001")
    version = apply(edited, here.store)
    killed = here.kill_agent("E1")
    controller.carry_out(version, kill=False)
    until(lambda: here.is_back("E1", killed) and here.runs(here.unit("clean")), "the unit to run again")
    more()

    # A unit is ended behind the controller's back.
    here.behind(kept).stop(kept)
    until(lambda: here.told(f"drift: {kept.id} did not run on {kept.unit.node}; started"), "its start")
    until(lambda: here.runs(kept), "the unit to run again")
    more()

    # Everything is stopped, and a unit is started behind the controller's back.
    controller.carry_out(deployments.stop(NAME, here.store), kill=False)
    assert not here.runs(kept)
    here.behind(kept).start(kept)
    until(
        lambda: here.told(f"drift: {kept.id} ran on {kept.unit.node} although it was to be stopped"),
        "the end of the unit",
    )
    until(lambda: not here.runs(kept), "the unit to end")

    controller.carry_out(apply(edited, here.store), kill=False)
    for _ in released:
        pass
    controller.carry_out(deployments.stop(NAME, here.store, how="finish"), kill=False)
    expected = batch_result(endpoint.session(), edited.dataflow, CONTINUUM)["out"]
    got = sink_rows(tmp_path, NAME, "out")
    assert not compare(expected, got) and got.num_rows > 10
