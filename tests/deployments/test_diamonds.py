"""Units that read an input more than once, for branches that meet again, are moved, split and fused like others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater.app import deployments
from headwater.plan.deployment import Edge
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.deployments.controllers import Controller, apply, running
from tests.deployments.flows import SCHEMA, lifted, rows
from tests.deployments.test_handover import CONTINUUM, NAME, malformed, wait_until_read, written


def planned(path: str, out: str, first_in_cloud: str, *cuts: Edge) -> DeploymentPlan:
    """Plan a stream that is joined with itself, and windows; the cloud runs the operators from one on."""
    builder = hw.flow(NAME, locations=["L1"])
    read = builder.read.json(path, SCHEMA, location_as="location").named("read")
    clean = read.with_watermark("ts", "10 seconds").where("v IS NOT NULL").named("clean")
    calm = clean.where("v <= 3").select("id AS calm", "ts AS since", "location", "k").named("calm")
    high = clean.where("v > 1").named("high")
    pairs = high.join(calm, ["location", "k"], between=("-20 seconds", "5 seconds")).named("pairs")
    counted = pairs.group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)", calm="sum(calm)").named("counted")
    counted.select("window.start AS begin", "k", "n", "calm").write.parquet(out).named("out")
    return lifted(builder.build(), CONTINUUM, first_in_cloud, *cuts)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running(NAME, tmp_path, seed=5) as started:
        yield started


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kills", [False, True])
def test_a_join_of_a_stream_with_itself_moves(
    endpoint: LocalEndpoint, tmp_path: Path, controller: Controller, kills: bool
) -> None:
    made = rows(240, seed=26)["L1"]
    broken = [{**row, "v": f"broken {i}"} if i % 13 == 0 else row for i, row in enumerate(made)]
    source = BoundedSource(tmp_path / "in", {"L1": broken}, rows_per_file=8)
    out, store = tmp_path / "out", str(tmp_path / "store.db")
    released = iter(source.release())

    def plan(first_in_cloud: str, *cuts: Edge) -> DeploymentPlan:
        return planned(source.path, str(out), first_in_cloud, *cuts)

    fork = (("clean", "calm"), ("clean", "high"))
    changes = [
        plan("out"),  # one unit at the edge, which reads the files once for each branch
        plan("calm"),  # join and windows go to the cloud, where the stream of the edge is read twice
        plan("calm", ("pairs", "counted")),  # the windows are split off
        plan("counted"),  # the join goes back to the edge
        plan("counted", *fork),  # cut before the fork
        plan("counted"),  # fused
        plan("calm"),
    ]
    count = 0
    for number, change in enumerate(changes):
        controller.carry_out(apply(change, store), kill=kills and number > 0)
        for _ in range(2):
            next(released)
            count += 8
            wait_until_read(tmp_path, change, count)
    for _ in released:
        pass
    controller.carry_out(deployments.stop(NAME, store, how="finish"), kill=False)
    expected = batch_result(endpoint.session(), changes[0].dataflow, changes[0].continuum)["out"]
    assert expected.num_rows > 20
    assert not compare(expected, written(out))
    assert malformed(tmp_path) == sorted(str(row["v"]) for row in broken if "broken" in str(row["v"]))
    assert not kills or controller.kills > 0
