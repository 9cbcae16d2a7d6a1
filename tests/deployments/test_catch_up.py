"""A unit that moves catches up with the running one before it takes over: the sinks equal the batch run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.app import deployments
from headwater.control.store import Store
from headwater.plan.steps import CatchUp, Load
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.deployments.controllers import Controller, apply, running
from tests.deployments.flows import rows
from tests.deployments.test_handover import CONTINUUM, NAME, planned, wait_until_read, written


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running(NAME, tmp_path, seed=7, share_spark=False) as started:
        yield started


def notes(place: Path) -> dict[str, str]:
    """Return the notes of the newest change's steps by which a unit takes over."""
    store = Store(str(place / "store.db"))
    journal = store.journal(store.changes(NAME)[-1].id)
    return {e.step.kind: e.note for e in journal if isinstance(e.step, CatchUp | Load)}


def test_a_unit_takes_over_when_it_has_caught_up(
    endpoint: LocalEndpoint, tmp_path: Path, controller: Controller
) -> None:
    source = BoundedSource(tmp_path / "in", {"L1": rows(160, seed=21)["L1"]}, rows_per_file=10)
    out, store, released = tmp_path / "out", str(tmp_path / "store.db"), iter(source.release())
    below = planned(source.path, str(out), "list", ("once", "rising"))  # the fold and the windows at the edge
    above = planned(source.path, str(out), "rising", ("counted", "list"))  # in the cloud
    count, caught_up = 0, []
    for plan in (below, above, below):
        before = count > 0
        controller.carry_out(apply(plan, store), kill=False)
        if before:
            caught_up.append(notes(tmp_path)["load"].endswith("has caught up"))
        for _ in range(2):
            next(released)
        count += 20
        wait_until_read(tmp_path, plan, count)
    for _ in released:
        pass
    controller.carry_out(deployments.stop(NAME, store, how="finish"), kill=False)
    assert any(caught_up), "on a machine this busy neither did in time"
    expected = batch_result(endpoint.session(), below.dataflow, CONTINUUM)["out"]
    assert expected.num_rows > 10
    assert not compare(expected, written(out))
