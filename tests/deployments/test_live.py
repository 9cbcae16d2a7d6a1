"""Change a deployment while it runs, with a controller that is killed again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater.agent.agents import Agents
from headwater.app import deadletters, deployments
from headwater.app.client import Client
from headwater.continuum.model import Continuum
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.conftest import on_spark
from tests.deployments.controllers import Controller, apply, running, sink_rows
from tests.deployments.flows import SCHEMA, rows
from tests.patience import PATIENCE

CONTINUUM = Continuum.from_text("""
name: small
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 2, memory: 1GiB}}}
  S1: {layer: site, parent: C1, hosts: {s1: {n_cpu: 1, memory: 1GiB}}}
  E1: {layer: edge, parent: S1, locations: [L1], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
  E2: {layer: edge, parent: S1, locations: [L2], hosts: {e2: {n_cpu: 1, memory: 1GiB}}}
""")
NAME = "live"


def planned(
    path: str, locations: list[str], address: str, *, least: str = "-1000", also: bool = False
) -> DeploymentPlan:
    """Plan rows cleaned at the edge, level changes kept at the site, and their results in the cloud.

    ``address`` is the Spark of all zones. ``least`` changes the edge's code and not its output; ``also`` adds a sink
    to the cloud's unit, which changes the unit's name.
    """
    builder = hw.flow(NAME, locations=locations)
    rows = builder.read.json(path, SCHEMA, location_as="location").where(f"v > {least}").named("clean")
    changes = rows.to_layer("site").filter_acc(
        lambda last, row: row["v"],
        lambda last, row: last is None or row["v"] > last,
        keys=["location", "k"],
        order_by="id",
    )
    double = changes.named("rising").to_layer("cloud").select("id", "location", "v * 2 AS w")
    if also:
        double.where("w > 0").write.memory("also")
    double.write.memory("out")
    return build(builder.build(), on_spark(CONTINUUM, address))


@pytest.fixture
def controller(tmp_path: Path, spark_address: str) -> Iterator[Controller]:
    with running(NAME, tmp_path, seed=11) as started:
        yield started


def changed(place: Path, controller: Controller, plan: DeploymentPlan, *, kill: bool) -> dict[str, str]:
    """Apply a plan; return the former query of each unit whose query has changed."""
    store = str(place / "store.db")
    before = runs(place)
    controller.carry_out(apply(plan, store), kill=kill)
    after = runs(place)
    return {unit: run for unit, run in before.items() if after.get(unit) != run}


def runs(place: Path) -> dict[str, str]:
    """Return each unit's query, as the zones report it."""
    if not Client(str(place / "store.db")).holds(NAME):
        return {}
    agents = Agents(place)
    found = {}
    for node in CONTINUUM.nodes:
        if (place / "zones" / node.name).exists():
            for unit in agents.find(node).progress(NAME).units:
                found[unit.unit] = unit.run or ""
    return found


@pytest.mark.parametrize("each", [pytest.param(True, marks=pytest.mark.long), False], ids=["one by one", "at once"])
def test_changes_by_a_controller_that_is_killed(
    endpoint: LocalEndpoint, spark_address: str, tmp_path: Path, controller: Controller, each: bool
) -> None:
    made = rows(90, seed=8)
    source = BoundedSource(tmp_path / "in", {"L1": made["L1"], "L2": made["L2"]}, rows_per_file=10)
    (tmp_path / "in/L1").mkdir(parents=True, exist_ok=True)
    (tmp_path / "in/L1/bad.json").write_text('{"id": "many"}\n')
    released = iter(source.release())

    def more(count: int) -> None:
        for _ in range(count):
            next(released, None)

    def plan(*locations: str, least: str = "-1000", also: bool = False) -> DeploymentPlan:
        return planned(source.path, list(locations), spark_address, least=least, also=also)

    steps: list[tuple[Callable[[], DeploymentPlan], set[str]]] = [
        (lambda: plan("L1"), set()),
        (lambda: plan("L1", "L2"), set()),  # a location is added: no unit restarts
        (lambda: plan("L1", "L2", least="-1001"), {"clean@E1", "clean@E2"}),  # one unit's code is replaced
        (lambda: plan("L1", least="-1001"), {"clean@E2"}),  # a location is removed, with its unread rows
        (lambda: plan("L1", least="-1001", also=True), {"out@C1"}),  # a sink is added: the unit's name changes
    ]
    if not each:  # a location is added, a unit's code replaced and a sink added by one change
        steps[1:] = [(lambda: plan("L1", "L2", least="-1001", also=True), {"clean@E1", "out@C1"})]
    assert controller.kills == 0
    for number, (make, restarted) in enumerate(steps):
        if number == 3:
            more(1000)  # all of L2's rows are read before it is removed
            wait_for_rows(tmp_path, "clean@E2", len(made["L2"]))
        stopped = changed(tmp_path, controller, make(), kill=number > 0)
        assert stopped.keys() == restarted, number
        more(2)
    controller.carry_out(deployments.stop(NAME, str(tmp_path / "store.db"), how="finish"), kill=True)
    assert controller.kills >= 2
    got = sink_rows(tmp_path, NAME, "out")
    expected = batch_result(endpoint.session(), plan("L1", "L2").dataflow, CONTINUUM)["out"]
    assert not compare(expected, got)
    assert got.num_rows > 20
    letters = list(deadletters.dead_letters(NAME, str(tmp_path / "store.db"), home=tmp_path))
    assert [(x["unit"], x["operator"]) for x in letters] == [("clean@E1", "files")]


def wait_for_rows(place: Path, unit: str, rows_in: int) -> None:
    """Wait until a unit has read this number of rows."""
    agent = Agents(place).find(CONTINUUM.node(unit.partition("@")[2]))
    deadline = time.monotonic() + PATIENCE
    while not any(u.unit == unit and u.rows_in >= rows_in for u in agent.progress(NAME).units):
        assert time.monotonic() < deadline, "its rows were not read in time"
        time.sleep(0.2)
