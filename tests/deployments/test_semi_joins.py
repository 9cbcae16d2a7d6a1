"""A semi-join is put in front of a link while rows flow, and taken away again, by a controller that is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build
from headwater.plan.optimise import optimise
from headwater.plan.profile import OperatorProfile, Profile
from headwater.rewrite.semijoins import SEMI_JOIN
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result
from tests.conftest import on_spark
from tests.deployments.controllers import Controller, check_sinks, running
from tests.deployments.flows import SCHEMA, rows, write_names

CONTINUUM = Continuum.from_text("""
name: small
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [L1]}
  E2: {layer: edge, parent: C1, locations: [L2]}
""")
NAME = "partners"
PROFILE = Profile(dataflow=NAME, operators={"named": OperatorProfile(selectivity=0.4, bytes_out=400.0)})


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running(NAME, tmp_path, seed=5) as started:
        yield started


def joined(path: str, table: Path) -> Dataflow:
    """Count by name in the cloud; a key has two names, and most have none."""
    builder = hw.flow(NAME, locations=["L1", "L2"])
    timed = builder.read.json(path, SCHEMA, location_as="location").with_watermark("ts", "5 seconds").named("timed")
    named = (
        timed.to_layer("cloud")
        .join(builder.table.json(str(write_names(table)), "k string, name string"), "k")
        .named("named")
    )
    named.select("id", "k", "name", "location").write.memory("rows")
    named.group_by(hw.window("ts", "10 seconds"), "name").agg(n="count(*)").named("counts").write.memory("windows")
    return builder.build()


@pytest.mark.long
def test_a_semi_join_comes_and_goes_while_rows_flow(
    endpoint: LocalEndpoint, spark_address: str, tmp_path: Path, controller: Controller
) -> None:
    made = rows(90, seed=21)
    source = BoundedSource(tmp_path / "in", {"L1": made["L1"], "L2": made["L2"]}, rows_per_file=10)
    flow, continuum = joined(source.path, tmp_path / "names.json"), on_spark(CONTINUUM, spark_address)
    found = optimise(flow, continuum, PROFILE, (SEMI_JOIN,))
    written, rewritten = build(flow, continuum), build(found.dataflow, continuum, found.deployment)
    assert {unit.layer for unit in rewritten.units if "named.partners" in unit.operators} == {"edge"}
    controller.go_through((written, rewritten, written, rewritten), source, files=4)
    assert controller.kills >= 3
    check_sinks(tmp_path, NAME, batch_result(endpoint.session(), flow, continuum))
