"""Streams of several zones are gathered in the zone between: as chosen, and coming and going while rows flow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.plan.optimise import optimise
from headwater.plan.profile import OperatorProfile, Profile
from headwater.rewrite.gathering import GATHER_STREAMS
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, check_equivalent
from tests.conftest import on_spark
from tests.deployments.controllers import Controller, check_sinks, running
from tests.deployments.flows import SCHEMA, rows

CONTINUUM = Continuum.from_text("""
name: thin
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1, link: {bandwidth: 100kbit/s}}
  E1: {layer: edge, parent: S1, link: {bandwidth: 100kbit/s}, locations: [L1]}
  E2: {layer: edge, parent: S1, link: {bandwidth: 100kbit/s}, locations: [L2]}
""")
NAME = "gathering"
# All rows of a location are sent on, since what is made of them takes more bytes.
OPERATORS = {name: OperatorProfile(bytes_out=60.0) for name in ("select", "aggregate", "count_window")}
PROFILE = Profile(
    dataflow=NAME,
    operators={**OPERATORS, "warm": OperatorProfile(selectivity=0.5, bytes_out=30.0, repeated=0.5)},
)


def flow_of(path: str, *, marked: bool) -> Dataflow:
    """Filter at the edge; in the cloud list the rows, count in windows of time, and in windows of rows."""
    builder = hw.flow(NAME, locations=["L1", "L2"])
    timed = builder.read.json(path, SCHEMA, location_as="location").with_watermark("ts", "5 seconds")
    warm = timed.where("v > 20").named("warm")
    above = warm.to_layer("cloud") if marked else warm
    above.select("id", "k", "location").write.memory("rows")
    above.group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(DISTINCT id)").write.memory("windows")
    above.count_window(3, keys=["location", "k"], order_by=["ts", "id"]).agg(first="min(id)").write.memory("threes")
    return builder.build()


def gathered_in(plan: DeploymentPlan) -> set[str]:
    return {unit.layer for unit in plan.units if any(".gathered" in o for o in unit.operators)}


def test_a_gathered_deployment_equals_one_batch_run(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    made = rows(60, seed=4)
    source = BoundedSource(tmp_path / "in", {"L1": made["L1"], "L2": made["L2"]}, rows_per_file=20)
    source.release_all()
    flow = flow_of(source.path, marked=False)
    found = optimise(flow, CONTINUUM, PROFILE, (GATHER_STREAMS,))
    assert gathered_in(build(found.dataflow, CONTINUUM, found.deployment)) == {"site"}
    expected = batch_result(endpoint.session(), flow, CONTINUUM)
    run = tmp_path / "run"
    outcome = check_equivalent(found.dataflow, CONTINUUM, endpoint, run, decision=found.deployment, expected=expected)
    assert all(count > 3 for count in outcome.rows.values())


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running(NAME, tmp_path, seed=11) as started:
        yield started


@pytest.mark.long
def test_streams_are_gathered_and_apart_again_while_rows_flow(
    endpoint: LocalEndpoint, spark_address: str, tmp_path: Path, controller: Controller
) -> None:
    made = rows(90, seed=22)
    source = BoundedSource(tmp_path / "in", {"L1": made["L1"], "L2": made["L2"]}, rows_per_file=10)
    flow, continuum = flow_of(source.path, marked=True), on_spark(CONTINUUM, spark_address)
    found = optimise(flow, continuum, PROFILE, (GATHER_STREAMS,))
    written, gathered = build(flow, continuum), build(found.dataflow, continuum, found.deployment)
    assert (gathered_in(written), gathered_in(gathered)) == (set(), {"site"})
    controller.go_through((written, gathered, written, gathered), source, files=4)
    assert controller.kills >= 3
    check_sinks(tmp_path, NAME, batch_result(endpoint.session(), flow, continuum))
