"""For any cuts and placement, the sinks equal the result of one Spark batch run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.app.client import Client, PlanRequest
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import Watermark
from headwater.dataflow.sources import Source
from headwater.plan import build
from headwater.plan.deployment import Deployment
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import PAUSE, BoundedSource, batch_result, check_equivalent
from tests.deployments.flows import CONTINUUM, FLOWS, SCHEMA, TWO_EDGES, rows

DECISIONS = {
    "one unit": build.one_unit,
    "unit per layer": build.annotated,
    "unit per operator": build.unit_per_operator,
}


def cases_of(flows: Iterable[str], quick: str) -> Iterator[Any]:
    """Yield each decision for each dataflow; all but one of ``quick`` are long tests."""
    for name in flows:
        for decision in DECISIONS:
            is_quick = (name, decision) == (quick, "unit per layer")
            yield pytest.param(name, decision, marks=[] if is_quick else [pytest.mark.long])


def apart(flow: Dataflow, continuum: Continuum) -> Deployment:
    """Place the last location's operators in the cloud where they can run there."""
    timed = {o for o in flow.order if isinstance(flow[o], Watermark)}
    for id_ in reversed(flow.order):
        timed |= {id_} if timed & set(flow.consumers[id_]) else set()
    freely = [o for o in flow.order if o not in timed and not isinstance(flow[o], Source)]
    layers = build.marked_layers(flow, continuum)
    at = {flow.locations[-1]: dict.fromkeys(freely, continuum.root.layer)}
    return build.in_layers(flow, continuum, layers, at=at)


BY_LOCATION = {**DECISIONS, "a location apart": apart}
ROWS = {"flowunits": 700}


LIKE_OTHERS = ("stateless", "keyed", "python", "flowunits", "together", "windows")
"""Dataflows whose operators short tests elsewhere run."""


def _cases() -> Iterator[Any]:
    """Yield one way of each dataflow to be cut, over two edges; the others are long tests."""
    for name in FLOWS:
        quick = "unit per operator" if name == "acme" else "unit per layer"
        marks = [pytest.mark.long] if name in LIKE_OTHERS else []
        yield pytest.param(name, quick, TWO_EDGES, id=f"{name}-two edges", marks=marks)
        for decision in BY_LOCATION:
            yield pytest.param(name, decision, CONTINUUM, id=f"{name}-{decision}", marks=pytest.mark.long)


@pytest.mark.parametrize(("name", "decision", "zones"), list(_cases()))
def test_equals_one_batch_run(name: str, decision: str, zones: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", rows(ROWS.get(name, 60), seed=7), rows_per_file=ROWS.get(name, 60) // 3)
    source.release_all()
    flow = FLOWS[name](source.path).build()
    continuum = Continuum.from_text(zones)
    wanted = BY_LOCATION[decision](flow, continuum)
    outcome = check_equivalent(flow, continuum, endpoint, tmp_path / "run", decision=wanted)
    assert all(count > 0 for count in outcome.rows.values()), "an empty result proves nothing"
    if decision == "unit per layer":
        assert {u.layer for u in outcome.plan.units} >= {"edge", "cloud"}
    if decision == "unit per operator":
        assert len(outcome.plan.units) > len(build.build(flow, continuum).units)
    if decision == "a location apart":
        assert {u.locations for u in outcome.plan.units if u.node == "C1"} >= {("L4",)}


@pytest.mark.parametrize(
    ("name", "strategy"),
    [pytest.param(*case, marks=pytest.mark.long) for case in (("acme", "optimal"), ("joined", "aels"))],
)
def test_layers_that_a_strategy_chose(name: str, strategy: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", rows(60, seed=8), rows_per_file=20)
    source.release_all()
    flow, continuum = FLOWS[name](source.path).build(), Continuum.from_text(TWO_EDGES)
    request = PlanRequest(dataflow=flow, continuum=continuum, strategy=strategy)
    plan = Client(str(tmp_path / "store.db")).propose(request).plan
    assert plan.deployment != build.annotated(flow, continuum), "the strategy says what the marks say"
    outcome = check_equivalent(flow, continuum, endpoint, tmp_path / "run", decision=plan.deployment)
    assert all(count > 0 for count in outcome.rows.values())


HOSTS = """
name: hosts
layers: [edge, site, cloud]
zones:
  C1:
    layer: cloud
    hosts: {c1: {n_cpu: 8, gpu: true, at: local}, c2: {n_cpu: 4, at: local}, c3: {n_cpu: 4, at: local}}
  S1: {layer: site, parent: C1, hosts: {s1: {n_cpu: 4, at: local}, s2: {n_cpu: 2, at: local}}}
  E1: {layer: edge, parent: S1, locations: [L1, L2, L4]}
"""


@pytest.mark.parametrize("name", ["acme", pytest.param("joined", marks=pytest.mark.long)])
def test_units_shared_out_by_key(name: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", rows(60, seed=9), rows_per_file=20)
    source.release_all()
    flow, continuum = FLOWS[name](source.path).build(), Continuum.from_text(HOSTS)
    outcome = check_equivalent(flow, continuum, endpoint, tmp_path / "run")
    parts = [u for u in outcome.plan.units if u.part is not None]
    assert {u.zone for u in parts} & {"S1", "C1"}
    assert all(u.hosts == (u.node,) for u in parts)
    assert all(outcome.rows.values())


def test_the_file_of_a_row_is_a_column_for_any_operator(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", {"L1": rows(40, seed=4)["L1"]}, rows_per_file=10)
    source.release_all()
    builder = hw.flow("files", locations=["L1"])
    read = builder.read.json(source.path, SCHEMA, location_as="location", file_as="file").with_watermark("ts", "9 s")
    first = read.where("file LIKE '%/000000.json'").named("first")
    first.drop_duplicates("location", "file").to_layer("cloud").select("location", "file").write.memory("out")
    flow, continuum = builder.build(), Continuum.from_text(CONTINUUM)
    assert check_equivalent(flow, continuum, endpoint, tmp_path / "run").rows == {"out": 1}


def test_a_file_that_is_read_twice_in_one_unit_is_two_sources(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", {"L1": rows(20, seed=4)["L1"]}, rows_per_file=5)
    builder = hw.flow("twice", locations=["L1"])
    one, other = (builder.read.json(source.path, SCHEMA).with_watermark("ts", "5 seconds") for _ in range(2))
    both = one.where("v > 20").select("id", "ts").union(other.select("id", "ts"))
    both.group_by(hw.window("ts", "10 seconds")).agg(n="count(*)").write.memory("windows")
    flow, continuum = builder.build(), Continuum.from_text(TWO_EDGES)
    decision = build.one_unit(flow, continuum)
    assert len({build.build(flow, continuum, decision).tags[s.id] for s in flow.sources}) == 2
    outcome = check_equivalent(flow, continuum, endpoint, tmp_path / "run", decision=decision, source=source)
    assert outcome.rows["windows"]


@pytest.mark.long
def test_a_join_within_a_year_counts_by_the_calendar(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    asked = [{"id": 1, "ts": "2024-02-01T00:00:00Z"}, {"id": 2, "ts": "2025-02-01T00:00:00Z"}]
    told = [{"id": 1, "ts": "2025-02-01T00:00:00Z"}, {"id": 2, "ts": "2026-02-01T00:00:01Z"}]  # 366 days; 1 s too late
    sides = []
    builder = hw.flow("years", locations=["L1"])
    for name, items in (("asked", asked), ("told", told)):
        source = BoundedSource(tmp_path / name, {"L1": items})
        source.release_all()
        sides.append(builder.read.json(source.path, "id bigint, ts timestamp").with_watermark("ts", "1 day"))
    right = sides[1].select("id", "ts AS at")
    sides[0].join(right, "id", between=("0 days", "1 year"), how="left").to_layer("cloud").write.memory("out")
    flow, continuum = builder.build(), Continuum.from_text(CONTINUUM)
    check_equivalent(flow, continuum, endpoint, tmp_path / "run")
    found = batch_result(endpoint.session(), flow, continuum)["out"].to_pylist()
    assert sorted((row["id"], row["at"] is not None) for row in found) == [(1, True), (2, False)]


@pytest.mark.long
def test_a_zone_that_comes_later_is_not_late_behind_a_chain_of_units(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    made = rows(60, seed=5)
    later: dict[str, list[Any]] = {"L1": [PAUSE, *made["L1"]], "L2": made["L2"]}
    source = BoundedSource(tmp_path / "in", later, rows_per_file=60)
    builder = hw.flow("chain", locations=["L1", "L2"])
    read = builder.read.json(source.path, SCHEMA, location_as="location")
    readings = read.with_watermark("ts", "4 seconds")
    chain = readings.to_layer("cloud").where("v IS NULL OR v < 1e9").with_columns(double="v * 2")
    windows = chain.group_by(hw.window("ts", "5 seconds"), "location")
    windows.agg(n="count(*)", total="sum(id)").write.memory("out")
    flow, continuum = builder.build(), Continuum.from_text(CONTINUUM)
    wanted = build.unit_per_operator(flow, continuum)
    outcome = check_equivalent(flow, continuum, endpoint, tmp_path / "run", decision=wanted, source=source)
    assert len([u for u in outcome.plan.units if u.node == "C1"]) >= 4 and outcome.rows["out"] > 4
