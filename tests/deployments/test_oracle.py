"""The law: whatever the cuts and the placement, the sinks hold what one Spark batch run gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.continuum import Continuum
from headwater.plan import build
from headwater.runtime.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, check_equivalent
from tests.deployments.flows import CONTINUUM, FLOWS, rows

DECISIONS = {
    "one unit": build.one_unit,
    "unit per layer": build.annotated,
    "unit per operator": build.unit_per_operator,
}
ROWS = {"flowunits": 700}


@pytest.mark.parametrize("decision", list(DECISIONS))
@pytest.mark.parametrize("name", list(FLOWS))
def test_equals_one_batch_run(name: str, decision: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(
        tmp_path / "in", rows(ROWS.get(name, 60), seed=7), rows_per_file=ROWS.get(name, 60) // 3
    )
    source.release_all()
    flow = FLOWS[name](source.path).build()
    continuum = Continuum.from_text(CONTINUUM)
    wanted = DECISIONS[decision](flow, continuum)
    outcome = check_equivalent(flow, continuum, endpoint, tmp_path / "run", decision=wanted)
    assert all(count > 0 for count in outcome.rows.values()), "an empty result proves nothing"
    if decision == "unit per layer":
        assert {u.layer for u in outcome.plan.units} >= {"edge", "cloud"}
    if decision == "unit per operator":
        assert len(outcome.plan.units) > len(build.build(flow, continuum).units)
