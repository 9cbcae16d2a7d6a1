"""Streams that go down the tree: for any cuts and placement, the sinks equal the result of one batch run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.app import deployments
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.plan import build, edit
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, check_equivalent, compare
from tests.deployments.controllers import apply, running
from tests.deployments.downward import DOWNWARD, limits
from tests.deployments.flows import CONTINUUM, rows
from tests.deployments.test_generated import hold, law
from tests.deployments.test_handover import written
from tests.deployments.test_oracle import DECISIONS, cases_of


@pytest.mark.long
@pytest.mark.parametrize(("name", "decision"), list(cases_of(DOWNWARD, "limits")))
def test_equals_one_batch_run(name: str, decision: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", rows(60, seed=11), rows_per_file=20)
    source.release_all()
    flow, continuum = DOWNWARD[name](source.path).build(), Continuum.from_text(CONTINUUM)
    outcome = check_equivalent(
        flow, continuum, endpoint, tmp_path / "run", decision=DECISIONS[decision](flow, continuum)
    )
    assert all(count > 0 for count in outcome.rows.values()), "an empty result proves nothing"
    down = [c for c in outcome.plan.channels if c.zone == "C1" and any(links for links in c.routes.values())]
    assert bool(down) == (decision != "one unit")
    assert build.build(flow, continuum, outcome.plan.deployment).units == outcome.plan.units


@pytest.mark.long
def test_made_up_dataflows_that_go_down_equal_one_batch_run(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    held = []

    @law(40)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        if len(held) < 12 and hold(data, endpoint, tmp_path, wanted=goes_down):
            held.append(1)

    check()
    assert len(held) == 12


def goes_down(flow: Dataflow) -> bool:
    layers = build.marked_layers(flow, Continuum.from_text(CONTINUUM))
    order = ("edge", "site", "cloud")
    return any(order.index(layers[i]) > order.index(layers[o]) for o in flow.order for i in flow[o].inputs)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_state_below_a_way_down_moves_under_kills(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    """Agents of four zones: what reads from above goes to the cloud and back, its controller and Sparks killed."""
    source = BoundedSource(tmp_path / "in", rows(60, seed=13), rows_per_file=10)
    flow, continuum = limits(source.path, str(tmp_path / "out")).build(), Continuum.from_text(CONTINUUM)
    plan = build.build(flow, continuum)
    up = build.build(flow, continuum, edit.move(plan, "alarms", "cloud"))
    released, store = iter(source.release()), str(tmp_path / "store.db")
    with running(flow.name, tmp_path, seed=5) as controller:
        for step in (plan, up, plan, up):
            controller.carry_out(apply(step, store), kill=step is not plan)
            next(released, None)
        for _ in released:
            pass
        controller.carry_out(deployments.stop(flow.name, store, how="finish"), kill=False)
    expected = batch_result(endpoint.session(), flow, continuum)
    for sink, table in expected.items():
        assert table.num_rows, sink
        assert not compare(table, written(tmp_path / "out" / sink)), sink
