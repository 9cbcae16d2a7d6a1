"""Dataflows whose rows go down, or to zones by name, in one pool: operators run where they would alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

import headwater as hw
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build
from headwater.plan.edit import move
from headwater.plan.model import DeploymentPlan
from headwater.reuse.pool import Pool
from tests.deployments.downward import DOWNWARD
from tests.deployments.sideways import SIDEWAYS
from tests.unit.test_links import SCHEMA, ZONES, begin, where

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


def places_of(plan: DeploymentPlan, operator: str) -> dict[str, str]:
    own = plan.deployment.placement.of(operator)
    return {x: plan.continuum.host(hosts[0]).zone for x, hosts in sorted(own.items())}


@pytest.mark.parametrize(("moved", "first"), [("a", "b"), ("b", "a")])
def test_a_location_that_meets_a_moved_operator_follows_it(moved: str, first: str) -> None:
    """A location joins a zone, and then the zones' locations are regrouped: merged rows are not parted."""

    def zones(*own: str) -> Continuum:
        edges = [f"  E{n}: {{layer: edge, parent: S, locations: [{x}]}}\n" for n, x in enumerate(own)]
        head = "layers: [edge, site, cloud]\nzones:\n  C: {layer: cloud}\n  S: {layer: site, parent: C}\n"
        return Continuum.from_text(head + "".join(edges))

    builder = hw.flow("f")
    read = builder.read.json("/d/{location}", SCHEMA, location_as="location").named("read")
    a = read.with_watermark("ts", "5 seconds").drop_duplicates("location", "id").named("a")
    a.drop_duplicates("location", "k").named("b").write.memory("m")
    pool = Pool("p").submit(builder.build(), "team")
    before = zones("L1", "L2")
    plan = build(pool.dataflow, before, pool.deployment(before), pooled=True)
    deployment = move(plan, pool["f"].ids[moved], "site", location="L1")
    plan = build(pool.dataflow, before, deployment, pooled=True)
    assert places_of(plan, pool["f"].ids[moved]) == {"L1": "S", "L2": "E1"}

    came = zones("L0, L1", "L2")
    plan = build(pool.dataflow, came, pool.deployment(came, plan), pooled=True)
    assert places_of(plan, pool["f"].ids[moved]) == {"L0": "S", "L1": "S", "L2": "E1"}
    assert places_of(plan, pool["f"].ids["read"]) == {"L0": "E0", "L1": "E0", "L2": "E1"}
    expected = "S" if first == "b" else "E0"  # b comes behind a
    assert places_of(plan, pool["f"].ids[first]) == {"L0": expected, "L1": expected, "L2": "E1"}

    regrouped = zones("L0", "L1, L2")
    plan = build(pool.dataflow, regrouped, pool.deployment(regrouped, plan), pooled=True)
    assert places_of(plan, pool["f"].ids[moved]) == {"L0": "S", "L1": "S", "L2": "S"}
