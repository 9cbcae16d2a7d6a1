"""Move operators with their state between units and zones while rows flow: the sinks equal the batch run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headwater as hw
from headwater.agent.agents import Agents
from headwater.app import deadletters, deployments
from headwater.continuum.model import Continuum
from headwater.plan import edit
from headwater.plan.build import annotated, build, in_layers, marked_layers
from headwater.plan.deployment import Edge
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.deployments.controllers import Controller, apply, running
from tests.deployments.flows import SCHEMA, lifted, rows
from tests.patience import PATIENCE

CONTINUUM = Continuum.from_text("""
name: two
layers: [edge, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 2, memory: 1GiB}}}
  E1: {layer: edge, parent: C1, locations: [L1], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
  E2: {layer: edge, parent: C1, locations: [L2], hosts: {e2: {n_cpu: 1, memory: 1GiB}}}
""")
NAME = "moving"
CHAIN = ("clean", "once", "rising", "counted", "list")


def planned(
    path: str,
    out: str,
    first_in_cloud: str,
    *cuts: Edge,
    locations: tuple[str, ...] = ("L1",),
) -> DeploymentPlan:
    """Plan filter, duplicates, ordered fold, windows and a projection; the cloud runs the last of them, from one on."""
    builder = hw.flow(NAME, locations=list(locations))
    read = builder.read.json(path, SCHEMA, location_as="location").named("read")
    timed = read.with_watermark("ts", "10 seconds").where("v IS NOT NULL").named("clean")
    once = timed.drop_duplicates("id", "location").named("once")
    rising = once.scan(
        _most,
        "id bigint, ts timestamp, location string, k string, most double",
        keys=["location", "k"],
        order_by=["ts", "id"],
    ).named("rising")
    windows = rising.group_by(hw.window("ts", "10 seconds"), "location", "k")
    counted = windows.agg(n="count(*)", most="max(most)", levels="count(DISTINCT most)").named("counted")
    listed = counted.select("window.start AS begin", "location", "k", "n", "most", "levels").named("list")
    listed.write.parquet(out).named("out")
    return lifted(builder.build(), CONTINUUM, first_in_cloud, *cuts)


def _most(state: float | None, row: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    most = row["v"] if state is None else max(state, row["v"])
    return most, {**{n: row[n] for n in ("id", "ts", "location", "k")}, "most": most}


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running(NAME, tmp_path, seed=3) as started:
        yield started


def written(out: Path) -> pa.Table:
    files = [f for f in out.rglob("*.parquet") if not f.name.startswith((".", "_"))]
    return pa.concat_tables([pq.ParquetFile(f).read() for f in files])


def malformed(place: Path, name: str = NAME) -> list[str]:
    """Return the values in a deployment's dead letters."""
    letters = deadletters.dead_letters(name, str(place / "store.db"), home=place)
    return sorted(str(json.loads(letter["record"])["v"]) for letter in letters)


def wait_until_read(place: Path, plan: DeploymentPlan, count: int) -> None:
    """Wait until each unit with the source has read this number of rows."""
    deadline = time.monotonic() + PATIENCE
    for unit in plan.units:
        while "read" in unit.operators:
            seen = Agents(place).find(plan.continuum.node(unit.node)).progress(NAME)
            if any(u.unit == unit.id and u.rows_in >= count for u in seen.units):
                break
            assert time.monotonic() < deadline, seen
            time.sleep(0.2)


@pytest.mark.long
@pytest.mark.parametrize("kill", [pytest.param(False, id="calm"), pytest.param(True, id="killed")])
def test_a_unit_with_two_inputs_reads_them_before_its_trigger_is_due(
    endpoint: LocalEndpoint, tmp_path: Path, *, kill: bool
) -> None:
    made = rows(240, seed=22)["L1"]
    sources = [BoundedSource(tmp_path / n, {"L1": made[i::2]}, rows_per_file=12) for i, n in enumerate("ab")]
    out = tmp_path / "out"
    builder = hw.flow(NAME, locations=["L1"])
    read = [builder.read.json(s.path, SCHEMA, location_as="location").named(f"read_{n}") for n, s in enumerate(sources)]
    timed = [one.with_watermark("ts", "1 minute").where(f"id % 5 != {n}") for n, one in enumerate(read)]
    both = timed[0].union(timed[1]).named("both").drop_duplicates("id", "location").named("once")
    counted = both.group_by(hw.window("ts", "10 seconds"), "location", "k").agg(n="count(*)").named("counted")
    counted.select("window.start AS begin", "location", "k", "n").named("list").write.parquet(str(out)).named("out")
    flow = builder.build()
    with running(NAME, tmp_path, seed=4, trigger="10 seconds") as controller:
        released = zip(*(s.release() for s in sources), strict=True)
        for first in ("both", "list", "both", "counted"):
            step = lifted(flow, CONTINUUM, first)
            controller.carry_out(apply(step, str(tmp_path / "store.db")), kill=kill)
            next(released)
        for _ in released:
            pass
        controller.carry_out(deployments.stop(NAME, str(tmp_path / "store.db"), how="finish"), kill=False)
    expected = batch_result(endpoint.session(), flow, CONTINUUM)["out"]
    assert expected.num_rows > 20
    assert not compare(expected, written(out))


@pytest.mark.long
@pytest.mark.parametrize("every", [pytest.param(1, id="one by one"), pytest.param(4, id="in strides")])
def test_operators_go_from_unit_to_unit(
    endpoint: LocalEndpoint, tmp_path: Path, controller: Controller, every: int
) -> None:
    made = rows(200, seed=21)["L1"]
    repeated = [row for i, row in enumerate(made) for row in ([row, row] if i % 5 == 0 else [row])]
    broken = [{**row, "v": f"broken {i}"} if i % 11 == 0 else row for i, row in enumerate(repeated)]
    source = BoundedSource(tmp_path / "in", {"L1": broken}, rows_per_file=12)
    out = tmp_path / "out"
    released = iter(source.release())

    def plan(first_in_cloud: str, *cuts: Edge) -> DeploymentPlan:
        return planned(source.path, str(out), first_in_cloud, *cuts)

    changes = [
        plan("once"),
        plan("rising"),  # duplicates go to the edge
        plan("rising", ("rising", "counted")),  # the cloud's unit is split behind the fold
        plan("counted"),  # the fold goes to the edge
        plan("list"),  # all state is at the edge, in one unit
        plan("once"),  # and back in the cloud, in one unit
        plan("once", ("once", "rising"), ("rising", "counted")),  # it is split into three
        plan("once", ("rising", "counted")),  # two of them are fused
    ]
    count = 0
    for step in changes[::every]:
        version = apply(step, str(tmp_path / "store.db"))
        controller.carry_out(version, kill=False)
        next(released)
        count += 12
        wait_until_read(tmp_path, step, count)
    for _ in released:
        pass
    controller.carry_out(deployments.stop(NAME, str(tmp_path / "store.db"), how="finish"), kill=False)
    expected = batch_result(endpoint.session(), changes[0].dataflow, CONTINUUM)["out"]
    assert expected.num_rows > 20
    assert not compare(expected, written(out))
    assert malformed(tmp_path) == sorted(str(row["v"]) for row in broken if "broken" in str(row["v"]))


@pytest.mark.long
def test_state_of_several_zones_becomes_one_and_is_divided_again(
    endpoint: LocalEndpoint, tmp_path: Path, controller: Controller
) -> None:
    made = rows(160, seed=22)
    source = BoundedSource(tmp_path / "in", {n: made[n][:80] for n in ("L1", "L2")}, rows_per_file=10)
    out = tmp_path / "out"
    released = iter(source.release())
    count = 0
    plans = [
        planned(source.path, str(out), first, locations=("L1", "L2")) for first in ("list", "once", "counted", "rising")
    ]
    for plan in plans:
        version = apply(plan, str(tmp_path / "store.db"))
        controller.carry_out(version, kill=False)
        next(released)
        count += 10
        wait_until_read(tmp_path, plan, count)
    for _ in released:
        pass
    controller.carry_out(deployments.stop(NAME, str(tmp_path / "store.db"), how="finish"), kill=False)
    expected = batch_result(endpoint.session(), plans[0].dataflow, CONTINUUM)["out"]
    assert expected.num_rows > 20
    assert not compare(expected, written(out))


@pytest.mark.long
def test_pairs_of_several_zones_become_those_of_one(
    endpoint: LocalEndpoint, tmp_path: Path, controller: Controller
) -> None:
    made = rows(80, seed=27)
    source = BoundedSource(tmp_path / "in", {n: made[n][:40] for n in ("L1", "L2")}, rows_per_file=20)
    builder = hw.flow(NAME, locations=["L1", "L2"])
    sides = [
        builder.read.json(source.path, schema, location_as="location").named(name).with_watermark("ts", "10 seconds")
        for name, schema in {"read": SCHEMA, "again": "id bigint, ts timestamp"}.items()
    ]
    left, right = sides[0].select("id", "ts", "location"), sides[1].select("id AS other", "ts AS at", "location")
    pairs = left.join(right, "location", within="30 seconds").named("pairs")
    pairs.select("id", "other", "location").named("list").write.parquet(str(tmp_path / "out")).named("out")
    flow, store = builder.build(), str(tmp_path / "store.db")
    released = iter(source.release())
    for first in ("list", "pairs"):
        next(released)
        plan = lifted(flow, CONTINUUM, first)
        controller.carry_out(apply(plan, store), kill=False)
        if first == "list":
            wait_until_read(tmp_path, plan, 2 * 20)
    controller.carry_out(deployments.stop(NAME, store, how="finish"), kill=False)
    expected = batch_result(endpoint.session(), flow, CONTINUUM)["out"]
    across = [r for r in expected.to_pylist() if (r["id"] % 1_000_000 < 20) != (r["other"] % 1_000_000 < 20)]
    assert across, "no pair needs the state that was taken over"
    assert not compare(expected, written(tmp_path / "out"))


@pytest.mark.long
def test_all_rows_that_wait_go_along_where_state_is_divided(
    endpoint: LocalEndpoint, tmp_path: Path, controller: Controller
) -> None:
    """The waiting rows are in a list under one key, with an entry for each batch."""
    made = rows(120, seed=25)
    source = BoundedSource(tmp_path / "in", {n: made[n][:60] for n in ("L1", "L2")}, rows_per_file=4)
    builder = hw.flow(NAME, locations=["L1", "L2"])
    read = builder.read.json(source.path, SCHEMA, location_as="location").with_watermark("ts", "20 seconds")
    cloud = read.named("read").to_layer("cloud")
    numbered = cloud.count_window(4, keys="location", order_by=["ts", "id"]).agg(first="first(id)", n="sum(id)")
    numbered.named("counted").write.parquet(str(tmp_path / "out")).named("out")
    flow, count = builder.build(), 0
    together = build(flow, CONTINUUM, annotated(flow, CONTINUUM))
    released, store = iter(source.release()), str(tmp_path / "store.db")
    controller.carry_out(apply(together, store), kill=False)
    for _ in range(4):
        next(released)
        count += 4
        wait_until_read(tmp_path, together, count)
        time.sleep(1.0)  # a unit that reads them from there takes them as a separate batch
    apart = build(flow, CONTINUUM, edit.move(together, "counted", "edge", location="L2"))
    controller.carry_out(apply(apart, store), kill=False)
    for _ in released:
        pass
    controller.carry_out(deployments.stop(NAME, store, how="finish"), kill=False)
    expected = batch_result(endpoint.session(), flow, CONTINUUM)["out"]
    assert expected.num_rows == 30
    assert not compare(expected, written(tmp_path / "out"))


@pytest.mark.long
def test_windows_of_rows_and_pairs_move_with_their_rows(
    endpoint: LocalEndpoint, tmp_path: Path, controller: Controller
) -> None:
    made = rows(160, seed=26)
    source = BoundedSource(tmp_path / "in", {n: made[n][:80] for n in ("L1", "L2")}, rows_per_file=10)
    out, store, count = tmp_path / "out", str(tmp_path / "store.db"), 0
    plans = [
        _of_rows(source.path, out, places)
        for places in (
            {"windows": "cloud", "medians": "cloud", "pairs": "cloud"},
            {"windows": "edge", "medians": "cloud", "pairs": "edge"},
            {"windows": "edge", "medians": "edge", "pairs": "cloud"},
            {"windows": "cloud", "medians": "cloud", "pairs": "edge"},
        )
    ]
    released = iter(source.release())
    for plan in plans:
        controller.carry_out(apply(plan, store), kill=False)
        next(released)
        count += 10
        wait_until_read(tmp_path, plan, count)
    for _ in released:
        pass
    controller.carry_out(deployments.stop(NAME, store, how="finish"), kill=False)
    wanted = batch_result(endpoint.session(), plans[0].dataflow, CONTINUUM)
    for sink, expected in wanted.items():
        assert expected.num_rows > 10
        found = written(out / sink)
        assert not compare(expected, found), (sink, compare(expected, found))


def _of_rows(path: str, out: Path, places: dict[str, str]) -> DeploymentPlan:
    """Plan windows that a condition ends, medians of every five rows, and pairs, each in the layer of its name."""
    builder = hw.flow(NAME, locations=["L1", "L2"])
    read = builder.read.json(path, SCHEMA, location_as="location").named("read")
    timed = read.with_watermark("ts", "10 seconds").where("v IS NOT NULL").named("timed")
    order = ["ts", "id"]
    windows = timed.windowed(hw.complete("v > 60"), keys=["location", "k"], order_by=order)
    medians = timed.count_window(5, 2, keys="location", order_by=order).apply(_median, "id bigint, median double")
    # Pairs have a source of their own: a unit that reads one channel for two branches cannot hand over its state.
    again = builder.read.json(path, SCHEMA, location_as="location").named("again").with_watermark("ts", "10 seconds")
    left = timed.where("v < 30").select("id", "ts", "location", "v")
    right = again.where("v >= 30").select("ts", "location", "id AS other", "v AS w", "tags")
    streams = {
        "windows": windows.agg(n="count(*)", first="first(id)", ids="collect_list(id)"),
        "medians": medians,
        "pairs": left.zip(right, keys="location", order_by="ts"),
    }
    for name, stream in streams.items():
        stream.named(f"last-{name}").write.parquet(str(out / name)).named(name)
    flow = builder.build()
    layers = dict(marked_layers(flow, CONTINUUM))
    for name, layer in places.items():
        todo = [name]
        while todo:
            id_ = todo.pop()
            if id_ not in ("read", "timed", "again") and flow[id_].kind != "watermark":
                layers[id_] = layer
                todo += flow[id_].inputs
    return build(flow, CONTINUUM, in_layers(flow, CONTINUUM, layers))


def _median(window: list[dict[str, Any]]) -> list[dict[str, Any]]:
    values = sorted(row["v"] for row in window)
    return [{"id": window[0]["id"], "median": values[len(values) // 2]}]
