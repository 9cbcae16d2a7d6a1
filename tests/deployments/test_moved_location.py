"""Move operators to another layer for one location, and back, while rows flow: the sinks equal the batch run."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.app import deployments
from headwater.plan import edit
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.deployments.controllers import Controller, apply
from tests.deployments.flows import rows
from tests.deployments.test_handover import (
    CONTINUUM,
    controller,  # noqa: F401
    planned,
    wait_until_read,
    written,
)

AHEAD = 60
"""Seconds by which the rows of one location are later than those of the other."""


@pytest.mark.long
def test_one_location_goes_up_and_down(
    endpoint: LocalEndpoint,
    tmp_path: Path,
    controller: Controller,  # noqa: F811
) -> None:
    """The fold of L2 is in the cloud; that of L1 joins it, far behind in event time, and leaves it."""
    made = rows(160, seed=25)
    source = BoundedSource(
        tmp_path / "in", {"L1": made["L1"][:80], "L2": made["L2"][AHEAD : AHEAD + 80]}, rows_per_file=10
    )
    out, store = tmp_path / "out", str(tmp_path / "store.db")
    released = iter(source.release())
    cut = ("rising", "counted")
    plan = planned(source.path, str(out), "counted", cut, locations=("L1", "L2"))
    flow = plan.dataflow
    for count, (layer, location) in enumerate([("cloud", "L2"), ("cloud", "L1"), ("edge", "L1")], 1):
        plan = build(flow, CONTINUUM, edit.move(plan, "rising", layer, location=location))
        controller.carry_out(apply(plan, store), kill=False)
        next(released)
        wait_until_read(tmp_path, plan, 10 * count)
    assert plan.unit("rising@E1").locations == ("L1",) and plan.unit("rising@C1").locations == ("L2",)
    for _ in released:
        pass
    controller.carry_out(deployments.stop(flow.name, store, how="finish"), kill=False)
    expected = batch_result(endpoint.session(), flow, CONTINUUM)["out"]
    assert expected.num_rows > 40
    assert not compare(expected, written(out))
