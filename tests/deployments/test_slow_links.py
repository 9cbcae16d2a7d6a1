"""Remove a location while its last rows are still on the link: they are read nevertheless."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import headwater as hw
from headwater.channels.filelog import FileLog
from headwater.continuum.model import Continuum
from headwater.core.errors import Unavailable
from headwater.plan.build import build
from headwater.plan.diff import diff
from headwater.plan.model import DeploymentPlan
from headwater.plan.spec import spec_of
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, ZoneRun, batch_result, compare
from tests.deployments.flows import SCHEMA, rows
from tests.patience import PATIENCE

CONTINUUM = Continuum.from_text(
    """
name: two
layers: [edge, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 2, memory: 1GiB}}}
  E1: {layer: edge, parent: C1, locations: [L1], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
  E2: {layer: edge, parent: C1, locations: [L2], hosts: {e2: {n_cpu: 1, memory: 1GiB}}}
"""
)


def planned(path: str, *locations: str) -> DeploymentPlan:
    builder = hw.flow("leaving", locations=list(locations))
    read = builder.read.json(path, SCHEMA, location_as="location").named("read")
    clean = read.where("v IS NOT NULL").named("clean")
    clean.to_layer("cloud").write.memory("out")
    return build(builder.build(), CONTINUUM)


def entries(home: Path) -> int:
    """Count the entries that E2 has written on its disk: no call over its link is answered."""
    logs = [p.parent for p in (home / "zones" / "E2").rglob("floor.json") if "clean-" in str(p)]
    return sum(FileLog(log).latest() for log in logs)


@pytest.mark.long
def test_what_has_still_to_come_is_waited_for(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    made = {k: v for k, v in rows(60, seed=9).items() if k in ("L1", "L2")}
    source = BoundedSource(tmp_path / "in", made, rows_per_file=20)
    plan, home = planned(source.path, "L1", "L2"), tmp_path / "home"
    wanted = diff(plan, planned(source.path, "L1")).wanted
    out = next(u for u in plan.units if u.node == "C1")
    with ZoneRun(plan, home) as run:
        run.start()
        released = iter(source.release())
        next(released)
        run.settle()
        before = entries(home)
        run.links["E2"].cut()
        for _ in released:
            pass
        deadline = time.monotonic() + PATIENCE
        while entries(home) == before:
            assert time.monotonic() < deadline, "E2 writes nothing"
            time.sleep(0.2)
        with pytest.raises(Unavailable):
            run.node("C1").update_inputs(spec_of(wanted, out.id))
        run.links["E2"].mend()
        (gone,) = (u for u in plan.units if u.node == "E2")
        run.insist(lambda: run.node("E2").finish(spec_of(plan, gone.id)))

        def fed() -> bool:
            run.node("C1").update_inputs(spec_of(wanted, out.id))
            return True

        run.insist(fed)
        run.plan = wanted
        run.finish()
        got = run.rows()["out"]
    expected = batch_result(endpoint.session(), plan.dataflow, plan.continuum)["out"]
    assert expected.num_rows > 60
    assert not compare(expected, got)
