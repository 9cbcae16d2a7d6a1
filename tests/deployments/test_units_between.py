"""A unit comes between a stream and its reader, changes its name and goes while rows flow: each row counts once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import headwater as hw
from headwater.app import deployments
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.conftest import on_spark
from tests.deployments.controllers import Controller, apply, running, sink_rows
from tests.deployments.flows import SCHEMA, TWO_EDGES, rows

NAME = "between"
Between = Literal["filter", "other name", "duplicates", "nothing"]


def flow_of(path: str, between: Between) -> Dataflow:
    """Filter at the edge and count in the cloud; all rows pass the operator at the site."""
    builder = hw.flow(NAME, locations=["L1", "L2", "L4"])
    timed = builder.read.json(path, SCHEMA, location_as="location").with_watermark("ts", "5 seconds")
    found = timed.where("v > 20").named("warm")
    if between == "duplicates":
        found = found.to_layer("site").drop_duplicates("id", "ts").named("once")
    elif between != "nothing":
        found = found.to_layer("site").where("v > 10").named("same" if between == "filter" else "all")
    above = found.to_layer("cloud")
    above.select("id", "k", "location").named("kept").write.memory("rows")
    above.group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)").named("counts").write.memory("windows")
    return builder.build()


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running(NAME, tmp_path, seed=3) as started:
        yield started


@pytest.mark.long
@pytest.mark.parametrize(
    "order",
    [("nothing", "filter", "other name", "nothing"), ("filter", "nothing", "duplicates", "filter", "duplicates")],
    ids=["filter", "duplicates"],
)
def test_no_row_is_lost_or_doubled(
    order: tuple[Between, ...], endpoint: LocalEndpoint, spark_address: str, tmp_path: Path, controller: Controller
) -> None:
    source = BoundedSource(tmp_path / "in", rows(70, seed=len(order)), rows_per_file=7)
    continuum = on_spark(Continuum.from_text(TWO_EDGES), spark_address)
    released = iter(source.release())

    def change(plan: DeploymentPlan, *, kill: bool) -> None:
        controller.carry_out(apply(plan, str(tmp_path / "store.db")), kill=kill)
        for _ in range(6):
            next(released, None)

    for number, between in enumerate(order):
        change(build(flow_of(source.path, between), continuum), kill=number > 0)
    for _ in released:
        pass
    controller.carry_out(deployments.stop(NAME, str(tmp_path / "store.db"), how="finish"), kill=True)
    assert controller.kills >= len(order)
    wanted = batch_result(endpoint.session(), flow_of(source.path, order[-1]), continuum)
    for sink, expected in wanted.items():
        got = sink_rows(tmp_path, NAME, sink)
        assert got.num_rows > 3 and not compare(expected, got), sink
