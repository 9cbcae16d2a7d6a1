"""Dataflows whose rows go down, or to zones by name, in one pool: operators run where they would alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.reuse.pool import Pool
from tests.deployments.downward import DOWNWARD
from tests.deployments.sideways import SIDEWAYS
from tests.unit.test_links import ZONES, begin, where

SHAPES = {**DOWNWARD, **SIDEWAYS}


def pooled(pool: Pool, running: DeploymentPlan | None = None) -> DeploymentPlan:
    return build(pool.dataflow, ZONES, pool.deployment(ZONES, running))


@pytest.mark.parametrize("shape", SHAPES)
def test_dataflows_in_a_pool_run_where_they_would_alone(shape: str) -> None:
    flow = SHAPES[shape]("/d/{location}").build()
    builder, read = begin()
    read.where("v > 1").to_layer("site").select("id", "v").write.memory("m")
    beside = builder.build()
    alone = build(flow, ZONES)
    pool, plan = Pool("p"), None
    for name, one in (("x", beside), ("a", flow), ("b", flow), ("a", None), ("c", flow), ("b", None)):
        pool = pool.submit(replace(one, name=name), "team") if one is not None else pool.remove(name)
        plan = pooled(pool, plan)
        for submission in pool.submissions:
            own = alone if submission.name != "x" else build(beside, ZONES)
            assert all(where(plan, submission.ids[o]) == where(own, o) for o in submission.ids if where(own, o))
    assert plan is not None and len(plan.dataflow.operators) < 2 * len(flow.operators)


def test_operators_in_different_zones_by_name_are_not_shared() -> None:
    def flow(name: str, zone: str) -> Dataflow:
        builder, read = begin()
        read.with_watermark("ts", "5 seconds").where("v > 1").to_zone(zone).dropDuplicates(["location", "id"]).named(
            "d"
        ).write.parquet(f"/o/{name}")
        return replace(builder.build(), name=name)

    pool = Pool("p").submit(flow("a", "C2"), "t").submit(flow("b", "S2"), "t").submit(flow("c", "C2"), "t")
    plan = pooled(pool, pooled(pool.remove("c")))
    assert pool["a"].ids["d"] == pool["c"].ids["d"] != pool["b"].ids["d"]
    assert where(plan, pool["a"].ids["d"]) == {"C2"} and where(plan, pool["b"].ids["d"]) == {"S2"}
    assert pool["a"].ids["where"] == pool["b"].ids["where"], "the filter before them is shared"
