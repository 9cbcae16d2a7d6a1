"""Rewritten dataflows give the results of the original: rule by rule as a batch, and deployed over zones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater as hw
from headwater.app.client import Client, PlanRequest
from headwater.continuum.model import Continuum
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.operators import Operator
from headwater.dataflow.stateful import Aggregate, Dedup
from headwater.plan.build import build
from headwater.plan.optimise import optimise
from headwater.plan.profile import OperatorProfile, Profile
from headwater.rewrite.rule import RewriteRule, Rewritten
from headwater.rewrite.rules import RULES
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, check_equivalent
from headwater.testing.compare import compare
from headwater.testing.oracle import batch_frames
from tests.deployments.flows import CONTINUUM, FLOWS, LOCATIONS, SCHEMA, rows, write_names
from tests.deployments.generated import dataflows
from tests.deployments.test_generated import law, repeated

ZONES = Continuum.from_text(CONTINUUM)
EVERY = {
    "n": "count(*)",
    "known": "count(v)",
    "total": "sum(id)",
    "exact": "cast(avg(cast(v AS decimal(12, 4))) AS double)",
    "cents": "sum(cast(v AS decimal(12, 4)))",
    "mean": "avg(v)",
    "ids": "avg(id)",
    "span": "max(v) - min(v)",
    "spread": "stddev(v)",
    "square": "var_pop(v)",
    "high": "count_if(v > 50)",
    "odd": "sum(id) FILTER (WHERE id % 2 = 1)",
    "any": "bool_or(v > 95)",
    "last": "max_by(id, struct(ts, id))",
    "none": "sum(if(id < 0, id, NULL))",
}


def up(stream: hw.Stream, marked: bool) -> hw.Stream:
    return stream.to_layer("cloud") if marked else stream


def begun(path: str) -> tuple[DataflowBuilder, hw.Stream]:
    builder = hw.flow("everything", locations=LOCATIONS)
    read = builder.read.json(path, SCHEMA, location_as="location").with_watermark("ts", "5 seconds")
    return builder, read.named("timed")


def windows(read: hw.Stream, *, marked: bool) -> None:
    """Filter behind a projection and behind groups; merge every kind of aggregate, over panes of sliding windows."""
    wide = read.with_columns(w="v * 2", letter="upper(k)").named("wide")
    warm = up(wide, marked).where("w > 20 AND letter <> 'K3'").named("warm")
    told = warm.group_by(hw.window("ts", "20 seconds", "15 seconds"), "letter").agg(**EVERY)
    told.where("letter <> 'K1' AND n > 1").named("told").write.memory("windows")


def everything(path: str) -> Dataflow:
    """Build a dataflow with work for every rule."""
    builder, read = begun(path)
    windows(read, marked=True)
    slid = (
        read.where("v > 5")
        .where("id % 7 <> 0")
        .to_layer("cloud")
        .group_by(hw.window("ts", "20 seconds", "15 seconds"), "k")
    )
    slid.agg(**EVERY).write.memory("slid")
    halves = [read.where(f"id % 2 = {n}").select("id", "ts", "location", "k", "v").to_layer("cloud") for n in (0, 1)]
    halves[0].union(halves[1]).where("k = 'k2'").named("some").select("id", "k").write.memory("some_written")
    unique = read.select("id", "ts", "k").to_layer("cloud").drop_duplicates("id", "ts", "k").named("once")
    unique.where("k <> 'k1'").write.memory("once_written")
    other = up(read, True).where("v > 30").select("id AS other", "ts AS at", "k", "v AS w")
    pairs = read.where("v < 30").named("low").to_layer("cloud").select("id", "ts", "k", "v")
    joined = pairs.join(other, "k", within="1 second")
    joined.where("k <> 'k0' AND v < 25 AND w > 40").select("id", "other").write.memory("pairs")
    up(read, True).group_by(hw.window("ts", "30 seconds"), "k").agg(n="count(*)").top_k(2, "n").write.memory("top")
    fives = read.select("ts", "k", "v", "id % 5 AS five").to_layer("cloud").named("fives")
    kinds = {"n": "count(DISTINCT five)", "near": "approx_count_distinct(five)", "mid": "median(five)"}
    kinds |= {"share": "percentile(five, array(0.1D, 0.8D))", "sum": "sum(DISTINCT five)", "mean": "avg(v)"}
    fives.group_by(hw.window("ts", "20 seconds", "15 seconds"), "k").agg(**kinds).write.memory("values")
    last = read.select("ts", "id", "v").to_layer("cloud").top_k(3, "id", per=[hw.window("ts", "30 seconds")])
    last.write.memory("newest")
    table = write_names(Path(path.split("{")[0]).parent / "names.json")
    known = up(read, True).join(builder.table.json(str(table), "k string, name string"), "k")
    known.named("known").select("id", "name").write.memory("names")
    return builder.build()


def everywhere(rule: RewriteRule, flow: Dataflow) -> tuple[Dataflow, int]:
    """Apply a rule wherever it applies, whether it saves something or not; return how often it did."""
    times, todo = 0, list(flow.order)
    while todo and times < 40:
        found = rule.apply(flow, todo.pop(0))
        if isinstance(found, Rewritten):
            flow, times = found.dataflow, times + 1
            todo = [*found.moved, *todo]
    return flow, times


def same(endpoint: LocalEndpoint, one: Dataflow, expected: dict[str, Any], before: Dataflow) -> list[str]:
    """Compare the sinks above which a rule has changed an operator of the dataflow from before; return them."""
    changed = [sink for sink in expected if above(one, sink) != above(before, sink)]
    frames = batch_frames(endpoint.session(), one, ZONES)
    found = {sink: frames[sink].toArrow() for sink in changed}
    assert {sink: compare(expected[sink], found[sink]) for sink in changed} == {
        sink: compare(expected[sink], expected[sink]) for sink in changed
    }
    return changed


def above(flow: Dataflow, sink: str) -> dict[str, Operator]:
    """Return the operators that a sink's rows pass."""
    found: dict[str, Operator] = {}
    todo = [sink]
    while todo:
        one = flow[todo.pop()]
        found[one.id] = one
        todo += one.inputs
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> BoundedSource:
    made = BoundedSource(tmp_path_factory.mktemp("in"), repeated(rows(60, seed=3)), rows_per_file=40)
    made.release_all()
    return made


@pytest.fixture(scope="module")
def expected(source: BoundedSource, endpoint: LocalEndpoint) -> dict[str, Any]:
    found = batch_result(endpoint.session(), everything(source.path), ZONES)
    assert all(table.num_rows for table in found.values()), "an empty result proves nothing"
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_keeps_the_result(
    rule: RewriteRule, source: BoundedSource, expected: dict[str, Any], endpoint: LocalEndpoint
) -> None:
    flow = everything(source.path)
    found, times = everywhere(rule, flow)
    assert times, "the rule had nothing to do"
    assert same(endpoint, found, expected, flow), "no rows pass what the rule has changed"


@pytest.mark.long
def test_all_rules_together_keep_the_result_over_zones(
    source: BoundedSource, expected: dict[str, Any], endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    flow = everything(source.path)
    for rule in RULES:
        flow, _ = everywhere(rule, flow)
    assert any(isinstance(o, Aggregate) and o.partial for o in flow.operators)
    assert any(isinstance(o, Dedup) and o.partial for o in flow.operators)
    outcome = check_equivalent(flow, ZONES, endpoint, tmp_path / "run", expected=expected)
    partial = [u for u in outcome.plan.units if any(o.endswith(".partial") for o in u.operators)]
    assert {u.layer for u in partial} == {"edge"}


def test_a_dataflow_without_marks_is_placed_and_rewritten(
    source: BoundedSource, expected: dict[str, Any], endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    builder, read = begun(source.path)
    windows(read, marked=False)
    flow = builder.build()
    profile = Profile(dataflow="everything", operators={"aggregate": OperatorProfile(selectivity=0.02)})
    request = PlanRequest(dataflow=flow, continuum=ZONES, rewrite=True, profiles={"everything": profile})
    found = Client(str(tmp_path / "store.db")).propose(request)
    assert found.rewriting is not None and found.rewriting.placed
    assert {use.rule for use in found.rewriting.rules if use.applied} >= {"filter-down", "split-aggregate"}
    layers = found.plan.layers
    assert (layers["aggregate.partial"], layers["aggregate"], layers["windows"]) == ("edge", "cloud", "cloud")
    assert sum(found.rewriting.after.values()) < 0.5 * sum(found.rewriting.before.values())
    decision = found.plan.deployment
    run = tmp_path / "run"
    outcome = check_equivalent(found.plan.dataflow, ZONES, endpoint, run, decision=decision, expected=expected)
    assert outcome.rows["windows"] > 3


@law(30)
@given(data=st.data())
def test_any_dataflow_can_be_rewritten(data: st.DataObject) -> None:
    flow = data.draw(dataflows("/data/{location}")).build()
    found = optimise(flow, ZONES, None, RULES)
    plan = build(found.dataflow, ZONES, found.deployment)
    assert plan.units
    assert sum(found.rewriting.after.values()) <= sum(found.rewriting.before.values())
    assert {s.id for s in flow.sinks} == {s.id for s in found.dataflow.sinks}
    assert {s.id for s in flow.sources} == {s.id for s in found.dataflow.sources}
    for id_ in flow.order:
        kept = id_ in found.dataflow and flow[id_].layer is not None and flow[id_].kind not in ("where", "select")
        assert not kept or found.dataflow[id_].layer == flow[id_].layer
    again = optimise(found.dataflow, ZONES, None, RULES)
    assert not any(use.applied for use in again.rewriting.rules), "there was more to save"


@pytest.mark.long
@pytest.mark.parametrize("name", list(FLOWS))
def test_rewritten_flows_equal_one_batch_run(name: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    many = 700 if name == "flowunits" else 60
    source = BoundedSource(tmp_path / "in", rows(many, seed=7), rows_per_file=many // 3)
    source.release_all()
    flow = FLOWS[name](source.path).build()
    found = optimise(flow, ZONES, None, RULES)
    wanted = batch_result(endpoint.session(), flow, ZONES)
    check_equivalent(found.dataflow, ZONES, endpoint, tmp_path / "run", decision=found.deployment, expected=wanted)


@pytest.mark.long
@law(25)
@given(data=st.data())
def test_generated_dataflows_keep_their_results(
    data: st.DataObject, endpoint: LocalEndpoint, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("generated")
    source = BoundedSource(place / "in", repeated(rows(40, seed=11)), rows_per_file=25)
    flow = data.draw(dataflows(source.path)).build()
    source.release_all()
    expected = batch_result(endpoint.session(), flow, ZONES)
    found = flow
    for rule in RULES:
        before = found
        found, times = everywhere(rule, before)
        if times:
            same(endpoint, found, expected, before)
    better = optimise(flow, ZONES, None, RULES)
    check_equivalent(better.dataflow, ZONES, endpoint, place / "run", decision=better.deployment, expected=expected)
