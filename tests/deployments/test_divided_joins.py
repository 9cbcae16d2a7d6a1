"""A join of two streams whose state is divided while it runs: over hosts by key, over zones by location."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import headwater as hw
from headwater.app import deployments
from headwater.app.client import Client, PlanRequest
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.plan.edit import Edit, Spread
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.deployments import test_handover
from tests.deployments.controllers import Controller, apply, running
from tests.deployments.flows import SCHEMA, lifted, rows
from tests.deployments.test_handover import wait_until_read, written
from tests.deployments.test_hosts_of_a_zone import hosts_of, seen_at

NAME = "moving"
HOSTS = Continuum.from_text("""
name: plant
layers: [edge, site]
zones:
  S1:
    layer: site
    hosts:
      big: {n_cpu: 2, memory: 1GiB, at: local}
      left: {n_cpu: 1, memory: 1GiB, at: local}
      right: {n_cpu: 1, memory: 1GiB, at: local}
  E1: {layer: edge, parent: S1, locations: [L1], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
""")


def flow(path: str, out: Path, locations: list[str], how: Literal["inner", "left"]) -> Dataflow:
    """Join rows with those of the same key and location that come at most 20 s before or after them.

    The two keys are of one type, and half of the rows on the left have no ``k``: they never meet others.
    """
    builder = hw.flow(NAME, locations=locations)
    sides = [
        builder.read.json(path, SCHEMA, location_as="location").named(name).with_watermark("ts", "10 seconds")
        for name in ("read", "again")
    ]
    left = sides[0].select("id", "ts", "if(id % 2 = 0, k, NULL) AS k", "location").named("left")
    right = sides[1].select("location", "k", "id AS other", "ts AS at").named("right")
    if locations == ["L1"]:
        left, right = left.to_layer("site"), right.to_layer("site")
    pairs = left.join(right, ["location", "k"], within="20 seconds", how=how).named("pairs")
    pairs.select("id", "other", "k", "location").named("list").write.parquet(str(out)).named("out")
    return builder.build()


def across(pairs: list[dict[str, Any]], rows_per_file: int) -> set[tuple[int, str]]:
    """Return the file that ends between the two rows of each pair, if one does, and the pair's key.

    Where the deployment is changed after that file, the pair needs state that was taken over.
    """
    found = set()
    for row in pairs:
        older, newer = sorted(row[side] % 1_000_000 // rows_per_file for side in ("id", "other"))
        found |= {(file, row["k"]) for file in range(older, newer)}
    return found


EVERY = {(file, f"k{n}") for file in range(3) for n in range(4)}


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running(NAME, tmp_path, seed=7) as started:
        yield started


@pytest.mark.long
@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_join_is_spread_over_hosts_and_joined_back(
    endpoint: LocalEndpoint, tmp_path: Path, controller: Controller, how: Literal["inner", "left"]
) -> None:
    """The controller is killed in each change."""
    source = BoundedSource(tmp_path / "in", {"L1": rows(160, seed=41)["L1"]}, rows_per_file=10)
    dataflow = flow(source.path, tmp_path / "out", ["L1"], how)
    store, released, count = str(tmp_path / "store.db"), iter(source.release()), 0
    client = Client(store)
    edits: list[tuple[Edit | None, set[str]]] = [
        (None, {"big", "left", "right"}),
        (Spread(unit="out", over=("big",)), {"big"}),
        (Spread(unit="out", over=("left", "right")), {"left", "right"}),
        (Spread(unit="out", over=("left", "right", "big")), {"big", "left", "right"}),
    ]
    for edit, wanted in edits:
        request = (
            PlanRequest(dataflow=dataflow, continuum=HOSTS) if edit is None else PlanRequest(of=NAME, edits=(edit,))
        )
        proposal = client.propose(request)
        assert hosts_of(proposal.plan, "pairs") == wanted
        parts = {u.part.column for u in proposal.plan.units if "pairs" in u.operators and u.part is not None}
        assert parts == ({"k"} if len(wanted) > 1 else set())
        controller.carry_out(client.apply(proposal), kill=edit is not None)
        assert seen_at(tmp_path, proposal.plan, "pairs") == wanted
        next(released)
        count += 10
        wait_until_read(tmp_path, proposal.plan, count)
    for _ in released:
        pass
    controller.carry_out(deployments.stop(NAME, store, how="finish"), kill=False)
    expected = batch_result(endpoint.session(), dataflow, HOSTS)["out"]
    pairs = [row for row in expected.to_pylist() if row["other"] is not None]
    assert across(pairs, 10) >= EVERY, "there is a key and a change without a pair that needs state taken over"
    assert how == "inner" or len(pairs) < expected.num_rows
    assert not compare(expected, written(tmp_path / "out"))


@pytest.mark.long
def test_a_join_is_divided_over_zones_and_joined_back(
    endpoint: LocalEndpoint, tmp_path: Path, controller: Controller
) -> None:
    """The controller is killed in each change."""
    made = rows(120, seed=34)
    source = BoundedSource(tmp_path / "in", {n: made[n][:60] for n in ("L1", "L2")}, rows_per_file=12)
    dataflow = flow(source.path, tmp_path / "out", ["L1", "L2"], "left")
    store, released, count = str(tmp_path / "store.db"), iter(source.release()), 0
    for first in ("pairs", "list", "pairs", "list"):
        plan = lifted(dataflow, test_handover.CONTINUUM, first)
        controller.carry_out(apply(plan, store), kill=count > 0)
        next(released)
        count += 12
        wait_until_read(tmp_path, plan, count)
    for _ in released:
        pass
    controller.carry_out(deployments.stop(NAME, store, how="finish"), kill=False)
    expected = batch_result(endpoint.session(), dataflow, test_handover.CONTINUUM)["out"]
    pairs = [row for row in expected.to_pylist() if row["other"] is not None]
    assert across(pairs, 12) >= EVERY, "there is a key and a change without a pair that needs state taken over"
    assert len(pairs) < expected.num_rows
    assert not compare(expected, written(tmp_path / "out"))
