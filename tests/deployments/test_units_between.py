"""A unit comes between a stream and its reader, changes its name and goes while rows flow: each row counts once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result
from tests.conftest import on_spark
from tests.deployments.controllers import Controller, check_sinks, running
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
    plans = [build(flow_of(source.path, between), continuum) for between in order]
    controller.go_through(plans, source, files=6)
    assert controller.kills >= len(order)
    check_sinks(tmp_path, NAME, batch_result(endpoint.session(), flow_of(source.path, order[-1]), continuum))
