"""Compare generated dataflows with their batch runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, check_equivalent
from tests.deployments.flows import CONTINUUM, rows
from tests.deployments.generated import dataflows
from tests.deployments.test_oracle import BY_LOCATION


def law(examples: int) -> settings:
    """Set the number of generated dataflows, the same ones every time; a failing one is shown, not shrunk for hours."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def repeated(source: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Repeat every ninth row two rows later."""
    return {
        at: [r for n, row in enumerate(made) for r in ((row, made[n - 2]) if n % 9 == 2 else (row,))]
        for at, made in source.items()
    }


def hold(
    data: st.DataObject,
    endpoint: LocalEndpoint,
    place: Path,
    wanted: Callable[[Dataflow], bool] = lambda flow: True,
    ways: Iterable[str] = tuple(BY_LOCATION),
) -> bool:
    """Draw a dataflow and compare it, cut in each way, with its batch run; return False if it is not ``wanted``."""
    number = len(list(place.iterdir()))
    source = BoundedSource(place / f"{number}" / "in", repeated(rows(40, seed=number)), rows_per_file=25)
    flow = data.draw(dataflows(source.path)).build()
    if not wanted(flow):
        return False
    source.release_all()
    for id_ in flow.order:  # shown with a failure
        config = {k: v for k, v in flow[id_].config().items() if k not in ("function", "schema_text")}
        note(f"{id_}: {flow[id_].kind} of {flow[id_].inputs} in {flow[id_].layer}: {config}")
    continuum = Continuum.from_text(CONTINUUM)
    expected = batch_result(endpoint.session(), flow, continuum)
    for n, way in enumerate(ways):
        check_equivalent(
            flow,
            continuum,
            endpoint,
            place / f"{number}" / f"run{n}",
            decision=BY_LOCATION[way](flow, continuum),
            expected=expected,
        )
    return True


@law(50)
@given(data=st.data())
def test_any_dataflow_can_be_planned_in_every_way(data: st.DataObject) -> None:
    check_plans(data)


@pytest.mark.long
@law(500)
@given(data=st.data())
def test_many_dataflows_can_be_planned_in_every_way(data: st.DataObject) -> None:
    check_plans(data)


def check_plans(data: st.DataObject) -> None:
    """Draw a dataflow, and plan it cut in each way."""
    flow = data.draw(dataflows("/data/{location}")).build()
    continuum = Continuum.from_text(CONTINUUM)
    for decide in BY_LOCATION.values():
        plan = build(flow, continuum, decide(flow, continuum))
        assert {o for unit in plan.units for o in unit.operators} == set(flow.order)


def test_made_up_dataflows_equal_one_batch_run(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    @law(1)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        hold(data, endpoint, tmp_path, ways=("a location apart",))

    check()


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_many_made_up_dataflows_equal_one_batch_run(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    @law(20)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        hold(data, endpoint, tmp_path)

    check()
