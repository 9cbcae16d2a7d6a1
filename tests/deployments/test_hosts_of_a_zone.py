"""A zone of three hosts with an agent each: units move between hosts and are spread over several."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.agent.agents import Agents, running_agent
from headwater.app import deployments
from headwater.app.client import Client, PlanRequest
from headwater.channels.credential import TOKEN_ENV
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.plan.edit import Edit, Move, Spread
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.deployments.controllers import Controller, running
from tests.deployments.flows import SCHEMA, rows
from tests.deployments.test_handover import wait_until_read, written
from tests.deployments.test_replay import until

NAME = "moving"
ZONES = """
name: plant
layers: [edge, site]
zones:
  S1:
    layer: site
    hosts:
      big: {n_cpu: 2, memory: 1GiB, gpu: true, at: BIG}
      left: {n_cpu: 1, memory: 1GiB, at: local}
      right: {n_cpu: 1, memory: 1GiB, at: local}
  E1: {layer: edge, parent: S1, locations: [L1], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
"""
CONTINUUM = Continuum.from_text(ZONES.replace("BIG", "local"))


def flow(path: str, out: str) -> Dataflow:
    """Clean rows at the edge; at the site compute the highest value by key, all ranks, and a part for a GPU."""
    builder = hw.flow(NAME, locations=["L1"])
    read = builder.read.json(path, SCHEMA, location_as="location").named("read")
    clean = read.with_watermark("ts", "10 seconds").where("v IS NOT NULL").named("clean").to_layer("site")
    rising = clean.scan(_most, "id bigint, k string, most double", keys=["location", "k"], order_by=["ts", "id"]).named(
        "rising"
    )
    rising.write.parquet(f"{out}/rising").named("rises")
    ranks = clean.scan(_rank, "id bigint, rank bigint", keys=(), order_by=["ts", "id"], initial=0)
    ranks.named("ranks").write.parquet(f"{out}/ranks").named("ranked")
    windows = clean.require("gpu = true").group_by(hw.window("ts", "10 seconds"), "k")
    windows.agg(n="count(*)").named("counted").write.parquet(f"{out}/counts").named("counts")
    return builder.build()


def _most(state: float | None, row: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    most = row["v"] if state is None else max(state, row["v"])
    return most, {"id": row["id"], "k": row["k"], "most": most}


def _rank(state: int, row: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return state + 1, {"id": row["id"], "rank": state + 1}


def hosts_of(plan: DeploymentPlan, operator: str) -> set[str]:
    """Return the nodes on which a plan runs an operator."""
    return {u.node for u in plan.units if operator in u.operators}


def seen_at(place: Path, plan: DeploymentPlan, operator: str) -> set[str]:
    """Return the hosts of the zone whose agents report that they run an operator's unit."""
    agents, wanted = Agents(place), {u.id for u in plan.units if operator in u.operators}
    return {
        node.name
        for node in CONTINUUM.zone("S1").nodes
        for u in agents.find(node).progress(NAME).units
        if u.status == "running" and u.unit in wanted
    }


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running(NAME, tmp_path, seed=5) as started:
        yield started


@pytest.mark.parametrize(
    "whole", [pytest.param(whole, marks=pytest.mark.long) for whole in (False, True)], ids=["few", "all"]
)
def test_units_move_between_hosts_and_are_spread_over_them(
    whole: bool, endpoint: LocalEndpoint, tmp_path: Path, controller: Controller
) -> None:
    """Compare the sinks with the batch run; with all edits, kill the controller in each of them."""
    source = BoundedSource(tmp_path / "in", {"L1": rows(160, seed=31)["L1"]}, rows_per_file=10)
    dataflow = flow(source.path, str(tmp_path / "out"))
    store, released, count = str(tmp_path / "store.db"), iter(source.release()), 0
    client = Client(store)
    first = PlanRequest(dataflow=dataflow, continuum=CONTINUUM)
    edits: list[tuple[Edit | None, str, set[str]]] = [
        (None, "rising", {"big", "left", "right"}),  # all hosts of the zone share it by key
        (Spread(unit="rises", over=("left", "right")), "rising", {"left", "right"}),
        (Move(operator="ranks", to="left"), "ranks", {"left"}),
        (Move(operator="ranks", to="right"), "ranks", {"right"}),
        (Spread(unit="rises", over=("big",)), "rising", {"big"}),
        (Spread(unit="rises", over=("right", "big")), "rising", {"big", "right"}),
    ]
    for edit, operator, wanted in edits if whole else edits[:3]:
        request = first if edit is None else PlanRequest(of=NAME, edits=(edit,))
        proposal = client.propose(request)
        assert hosts_of(proposal.plan, operator) == wanted
        assert hosts_of(proposal.plan, "counted") == {"big"}, "only that host has what it needs"
        controller.carry_out(client.apply(proposal), kill=whole and edit is not None)
        assert seen_at(tmp_path, proposal.plan, operator) == wanted
        next(released)
        count += 10
        wait_until_read(tmp_path, proposal.plan, count)
    for _ in released:
        pass
    controller.carry_out(deployments.stop(NAME, store, how="finish"), kill=False)
    assert {d.name for d in (tmp_path / "zones").iterdir()} == {"E1", "big", "left", "right"}
    expected = batch_result(endpoint.session(), dataflow, CONTINUUM)
    for sink, folder in (("rises", "rising"), ("ranked", "ranks"), ("counts", "counts")):
        assert expected[sink].num_rows > 10
        assert not compare(expected[sink], written(tmp_path / "out" / folder)), sink


@contextmanager
def agent(place: Path, host: str, offer: str) -> Iterator[str]:
    """Run a host's agent that reports its capabilities; yield its address."""
    directory = place / "far" / host
    directory.mkdir(parents=True)
    command = [
        sys.executable,
        "-m",
        "headwater",
        "zone",
        host,
        "--dir",
        str(directory),
        "--quick",
        "--allow-read",
        "*",
        "--allow-write",
        "*",
        "--allow-connect",
        "*",
    ]
    with (place / "far.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--offer", offer],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: running_agent(directory) or process.poll() is not None, "the agent to start")
        found = running_agent(directory)
        assert found is not None, (place / "far.log").read_text()
        yield str(found["address"])
    finally:
        process.terminate()
        process.wait(60)


def test_a_host_that_offers_less_than_the_plan_claims_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_ENV, "a-site-secret-for-the-tests")
    monkeypatch.setenv("HEADWATER_STATE_STORE", str(tmp_path / "state"))
    (tmp_path / "in" / "L1").mkdir(parents=True)
    client = Client(str(tmp_path / "store.db"))
    with (
        agent(tmp_path, "big", "rack=1") as address,
        running(NAME, tmp_path, seed=1) as controller,
    ):
        continuum = Continuum.from_text(ZONES.replace("BIG", f"'{address}'"))
        dataflow = flow(str(tmp_path / "in" / "{location}"), str(tmp_path / "out"))
        version = client.apply(client.propose(PlanRequest(dataflow=dataflow, continuum=continuum)))
        change = controller.end_of(version, kill=False)
        assert change.outcome == "failed"
        assert "gpu" in change.message and "big" in change.message
        assert "nothing was stopped or started" in change.message
    assert not list((tmp_path / "out").rglob("*")), os.listdir(tmp_path)
