"""Streams over links beside the tree, to zones by name: the sinks equal the result of one batch run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import headwater as hw
from headwater.app import deployments
from headwater.continuum.model import Continuum
from headwater.plan import build, edit
from headwater.plan.model import DeploymentPlan
from headwater.plan.optimise import optimise
from headwater.rewrite.rules import rules_without
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, ZoneRun, batch_result, check_equivalent, compare
from tests.deployments.controllers import apply, running
from tests.deployments.flows import SCHEMA, rows
from tests.deployments.sideways import PAST_A_SITE, SIDEWAYS, TWO_CLOUDS, clouds
from tests.deployments.test_handover import written
from tests.deployments.test_oracle import DECISIONS, cases_of


@pytest.mark.parametrize(("name", "decision"), list(cases_of(SIDEWAYS, "clouds")))
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


TWO_TREES = """
name: two-trees
layers: [edge, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 1, memory: 1GiB}}}
  C2: {layer: cloud, hosts: {c2: {n_cpu: 1, memory: 1GiB}}}
  E1: {layer: edge, parent: C1, locations: [L1], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
  E2: {layer: edge, parent: C2, locations: [L2], hosts: {e2: {n_cpu: 1, memory: 1GiB}}}
links:
  - {between: [C1, C2], latency: 20ms}
  - {between: [E1, E2]}
"""


@pytest.mark.long
def test_failures_of_zones_on_both_sides_of_a_sideways_link_lose_nothing(
    endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    """Two trees: rows go from edge to edge, to both clouds, and down to an edge of the other tree."""
    source = BoundedSource(tmp_path / "in", _rows_of("L1", "L2"), rows_per_file=10)
    f = hw.flow("trees", locations=["L1", "L2"])
    read = f.read.json(source.path, SCHEMA, location_as="location").with_watermark("ts", "5 seconds")
    counts = read.to_zone("E2").group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)", s="sum(id)")
    counts = counts.named("counts")
    total = counts.to_zone("C1").group_by(hw.window("window", "20 seconds")).agg(n="sum(n)").named("total")
    total.write.memory("totals")
    total.to_zone("E1").where("n > 0").write.memory("acts")
    counts.to_zone("C2").write.memory("kept")
    plan = build.build(f.build(), Continuum.from_text(TWO_TREES))
    ways = {(c.node, r): links for c in plan.channels for r, links in c.routes.items()}
    assert ways[("E1", "counts@E2")] == ("E1-E2",)
    assert ways[("E2", "total@C1")] == ("E2-C2", "C1-C2")
    assert ways[("E2", "kept@C2")] == ("E2-C2",)
    _hold_under_failures(
        plan,
        source,
        endpoint,
        tmp_path / "home",
        edge="E1",
        killed=("E2", "C1"),
        crossed={"E1-E2", "E2-C2", "C1-C2", "E1-C1"},
    )


@pytest.mark.long
def test_failures_of_zones_on_both_sides_of_a_link_past_a_site_lose_nothing(
    endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    """Rows of one edge reach the cloud past its site, those of another through it, and results go back past it."""
    source = BoundedSource(tmp_path / "in", _rows_of("L1", "L4"), rows_per_file=10)
    f = hw.flow("past", locations=["L1", "L4"])
    read = f.read.json(source.path, SCHEMA, location_as="location").with_watermark("ts", "5 seconds")
    counts = read.to_zone("C1").group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)", s="sum(id)")
    counts = counts.named("counts")
    counts.write.memory("kept")
    counts.to_zone("E4").where("n > 0").write.memory("acts")
    plan = build.build(f.build(), Continuum.from_text(PAST_A_SITE))
    ways = {(c.node, r): links for c in plan.channels for r, links in c.routes.items()}
    assert ways[("E4", "counts@C1")] == ("E4-C1",)
    assert ways[("E1", "counts@C1")] == ("E1-S1", "S1-C1")
    assert ways[("C1", "acts@E4")] == ("E4-C1",)
    _hold_under_failures(
        plan, source, endpoint, tmp_path / "home", edge="E4", killed=("C1", "E4"), crossed={"E4-C1", "E1-S1", "S1-C1"}
    )


def _rows_of(*locations: str) -> Mapping[str, Sequence[Mapping[str, object]]]:
    return {k: v for k, v in rows(80, seed=29).items() if k in locations}


def _hold_under_failures(
    plan: DeploymentPlan,
    source: BoundedSource,
    endpoint: LocalEndpoint,
    home: Path,
    *,
    edge: str,
    killed: tuple[str, str],
    crossed: set[str],
) -> None:
    """Run a plan while the links of ``edge`` are cut, and agents and Sparks of the two ``killed`` zones end.

    ``crossed``: the links that carry rows.
    """
    with ZoneRun(plan, home) as run:
        run.start()
        harm: Iterator[object] = iter(
            (
                lambda: run.links[edge].cut(),
                lambda: run.kill_agent(killed[0]),
                lambda: run.kill_spark(killed[1]),
                lambda: run.links[edge].mend(),
                lambda: run.kill_agent(killed[1]),
                lambda: run.kill_spark(killed[0]),
            )
        )
        for number, _ in enumerate(source.release()):
            step = next(harm, None) if number else None
            if callable(step):
                step()
            elif number == 0:
                run.settle()
        assert next(harm, None) is None, "all failures happened"
        run.finish()
        got = run.rows()
        nodes = {unit.node for unit in plan.units}
        progress = [run.node(node).progress(plan.dataflow.name) for node in sorted(nodes)]
    assert {link.link for one in progress for link in one.links if link.bytes} == crossed
    expected = batch_result(endpoint.session(), plan.dataflow, plan.continuum)
    assert {s: compare(expected[s], t) for s, t in got.items() if compare(expected[s], t)} == {}
    assert all(t.num_rows for t in got.values())


@pytest.mark.long
@pytest.mark.parametrize("name", SIDEWAYS)
def test_rewritten_dataflows_keep_their_zones_and_results(name: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", rows(60, seed=31), rows_per_file=20)
    source.release_all()
    flow, continuum = SIDEWAYS[name](source.path).build(), Continuum.from_text(TWO_CLOUDS)
    found = optimise(flow, continuum, None, rules_without(frozenset()))
    assert any(use.applied for use in found.rewriting.rules)
    assert {"zone S2", "zone S1"} & {o.layer for o in found.dataflow.operators}
    outcome = check_equivalent(found.dataflow, continuum, endpoint, tmp_path / "run", decision=found.deployment)
    expected = batch_result(endpoint.session(), flow, continuum)
    assert {sink: table.num_rows for sink, table in expected.items()} == outcome.rows


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
