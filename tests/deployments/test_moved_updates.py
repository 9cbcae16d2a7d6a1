"""Units with a reference table and with early results are moved, split and fused like others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater.app import deployments
from headwater.plan.deployment import Edge
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from headwater.testing.readback import rows_in
from tests.deployments.controllers import Controller, apply, running
from tests.deployments.flows import SCHEMA, lifted, rows
from tests.deployments.test_handover import CONTINUUM, NAME, wait_until_read

pytest.importorskip("deltalake")


def planned(place: Path, source: str, first_in_cloud: str, *cuts: Edge) -> DeploymentPlan:
    """Plan a join with a table and windows as they change; the cloud runs the operators from one on."""
    builder = hw.flow(NAME, locations=["L1"])
    table = builder.table.json(str(place / "machines.json"), "k string, factor double", refresh="1 second")
    read = builder.read.json(source, SCHEMA, location_as="location").named("read")
    timed = read.with_watermark("ts", "10 seconds").named("timed")
    known = timed.join(table, "k").named("known")
    counted = known.group_by(hw.window("ts", "20 seconds"), "k").agg(n="count(*)", most="max(v * factor)")
    shown = counted.named("counted").select("window.start AS begin", "k", "n", "most")
    shown.write.output_mode("update").delta(str(place / "out"), keys=["begin", "k"]).named("out")
    return lifted(builder.build(), CONTINUUM, first_in_cloud, *cuts)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running(NAME, tmp_path, seed=6) as started:
        yield started


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_table_and_early_results_go_along(endpoint: LocalEndpoint, tmp_path: Path, controller: Controller) -> None:
    keys = [{"k": f"k{n}", "factor": n / 2} for n in range(4)]
    (tmp_path / "machines.json").write_text("".join(json.dumps(key) + "\n" for key in keys))
    source = BoundedSource(tmp_path / "in", {"L1": rows(240, seed=28)["L1"]}, rows_per_file=8)
    store, released = str(tmp_path / "store.db"), iter(source.release())

    def plan(first_in_cloud: str, *cuts: Edge) -> DeploymentPlan:
        return planned(tmp_path, source.path, first_in_cloud, *cuts)

    changes = [
        plan("out"),  # all but the sink at the edge
        plan("known"),  # the table, the windows and their results go to the cloud
        plan("known", ("known", "counted-updates")),
        plan("counted-updates"),  # the table goes back
        plan("out"),
    ]
    count = 0
    for number, change in enumerate(changes):
        controller.carry_out(apply(change, store), kill=number > 0)
        for _ in range(2):
            next(released)
            count += 8
            wait_until_read(tmp_path, change, count)
    for _ in released:
        pass
    controller.carry_out(deployments.stop(NAME, store, how="finish"), kill=False)
    flow = changes[0].dataflow
    expected = batch_result(endpoint.session(), flow, CONTINUUM)["out"]
    (sink,) = flow.sinks
    assert expected.num_rows > 20 and controller.kills > 0
    assert not compare(expected, rows_in(sink, expected.schema))
