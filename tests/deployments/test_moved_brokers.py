"""Channels come to a broker and leave it in the very change that moves their reader, memory sinks included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater.app import deployments
from headwater.continuum.model import Continuum
from headwater.plan.build import build, in_layers
from headwater.plan.deployment import Edge
from headwater.plan.model import DeploymentPlan
from headwater.spark.broker import LocalBroker
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.deployments.controllers import Controller, apply, running, sink_rows
from tests.deployments.flows import SCHEMA, lifted, rows
from tests.deployments.test_handover import wait_until_read

NAME = "moving"
CONTINUUM = """
name: two
layers: [edge, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 2, memory: 1GiB}}CLOUD}
  E1: {layer: edge, parent: C1, locations: [L1], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
"""


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running(NAME, tmp_path, seed=4) as started:
        yield started


def planned(path: str, broker: str | None, first_in_cloud: str, *cuts: Edge) -> DeploymentPlan:
    """Plan windows and a memory sink behind a filter; with a broker all channels upwards are there."""
    continuum = Continuum.from_text(CONTINUUM.replace("CLOUD", f", broker: '{broker}'" if broker else ""))
    builder = hw.flow(NAME, locations=["L1"])
    read = builder.read.json(path, SCHEMA, location_as="location").named("read")
    clean = read.with_watermark("ts", "10 seconds").where("v IS NOT NULL").named("clean")
    counted = clean.group_by(hw.window("ts", "10 seconds"), "location", "k").agg(n="count(*)", s="sum(v)")
    listed = counted.named("counted").select("window.start AS begin", "location", "k", "n", "s").named("list")
    listed.write.memory("out")
    return lifted(builder.build(), continuum, first_in_cloud, *cuts)


def below(path: str, broker: str) -> DeploymentPlan:
    """Plan all at the edge, with the sink."""
    plan = planned(path, broker, "counted", ("clean", "counted"))
    layers = dict.fromkeys(plan.dataflow.order, "edge")
    decided = in_layers(plan.dataflow, plan.continuum, layers, cuts=frozenset([("clean", "counted")]))
    return build(plan.dataflow, plan.continuum, decided)


@pytest.mark.long
def test_a_channel_comes_to_a_broker_when_its_reader_moves(
    broker: LocalBroker, endpoint: LocalEndpoint, tmp_path: Path, controller: Controller
) -> None:
    source = BoundedSource(tmp_path / "in", {"L1": rows(360, seed=9)["L1"]}, rows_per_file=10)
    store, released, at = str(tmp_path / "store.db"), iter(source.release()), broker.address
    cut: Edge = ("clean", "counted")
    changes = [
        planned(source.path, None, "list", cut),  # the windows at the edge, read from a filelog
        planned(source.path, at, "counted", cut),  # in the cloud, read from the broker
        planned(source.path, None, "list", cut),  # and back
        planned(source.path, at, "list", cut),  # the channel below them alone goes to the broker
        planned(source.path, at, "counted", cut),  # the unit with Kafka channels and the memory sink moves
        planned(source.path, at, "list", cut),
        below(source.path, at),  # the memory sink goes to the edge, with its rows
        planned(source.path, at, "counted", cut),
    ]
    count = 0
    for plan in changes:
        controller.carry_out(apply(plan, store), kill=False)
        for _ in range(2):
            next(released)
        count += 20
        wait_until_read(tmp_path, plan, count)
    for _ in released:
        pass
    controller.carry_out(deployments.stop(NAME, store, how="finish"), kill=False)
    expected = batch_result(endpoint.session(), changes[0].dataflow, changes[0].continuum)["out"]
    assert expected.num_rows > 20
    assert not compare(expected, sink_rows(tmp_path, NAME, "out"))
