"""Streams over links beside the tree, to zones by name: the sinks equal the result of one batch run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.app import deployments
from headwater.continuum.model import Continuum
from headwater.plan import build, edit
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, check_equivalent, compare
from tests.deployments.controllers import apply, running
from tests.deployments.flows import rows
from tests.deployments.sideways import SIDEWAYS, TWO_CLOUDS, clouds
from tests.deployments.test_handover import written
from tests.deployments.test_oracle import DECISIONS


def _cases() -> Iterator[Any]:
    for name in SIDEWAYS:
        for decision in DECISIONS:
            quick = (name, decision) == ("clouds", "unit per layer")
            yield pytest.param(name, decision, marks=[] if quick else [pytest.mark.long])


@pytest.mark.parametrize(("name", "decision"), list(_cases()))
def test_equals_one_batch_run(name: str, decision: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", rows(60, seed=19), rows_per_file=20)
    source.release_all()
    flow, continuum = SIDEWAYS[name](source.path).build(), Continuum.from_text(TWO_CLOUDS)
    outcome = check_equivalent(
        flow, continuum, endpoint, tmp_path / "run", decision=DECISIONS[decision](flow, continuum)
    )
    assert all(count > 0 for count in outcome.rows.values()), "an empty result proves nothing"
    crossed = {link for channel in outcome.plan.channels for link in channel.links}
    assert ({"C1-C2", "S1-S2"} <= crossed) == (decision != "one unit")


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_an_operator_moves_to_the_other_cloud_and_back_under_kills(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    """Agents of six zones: windows go from one cloud to the other and back, the controller and Sparks killed."""
    source = BoundedSource(tmp_path / "in", rows(60, seed=23), rows_per_file=10)
    flow, continuum = clouds(source.path, str(tmp_path / "out")).build(), Continuum.from_text(TWO_CLOUDS)
    plan = build.build(flow, continuum)
    first = build.build(flow, continuum, edit.move(plan, "total", "cloud"))
    assert [u.zone for u in first.units if "total" in u.operators] == ["C1"]
    assert build.build(flow, continuum, edit.move(first, "total", "C2")).units == plan.units
    released, store = iter(source.release()), str(tmp_path / "store.db")
    with running(flow.name, tmp_path, seed=5) as controller:
        for step in (plan, first, plan, first, plan):
            controller.carry_out(apply(step, store), kill=step is not plan)
            next(released, None)
        for _ in released:
            pass
        controller.carry_out(deployments.stop(flow.name, store, how="finish"), kill=False)
    expected = batch_result(endpoint.session(), flow, continuum)
    for sink, table in expected.items():
        assert table.num_rows, sink
        assert not compare(table, written(tmp_path / "out" / sink)), sink
