"""Dataflows of different locations share operators: each has the output of a run alone, for its own locations."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.app import deployments, pools
from headwater.continuum.model import Continuum
from headwater.control.store import StoreReader
from headwater.core.errors import ChannelError
from headwater.dataflow.graph import Dataflow
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.conftest import on_spark
from tests.deployments.controllers import Controller, running, sink_rows
from tests.patience import PATIENCE

APART = """
  E1: {layer: edge, parent: C1, locations: [L1], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
  E2: {layer: edge, parent: C1, locations: [L2], hosts: {e2: {n_cpu: 1, memory: 1GiB}}}
"""
TOGETHER = """
  E1: {layer: edge, parent: C1, locations: [L1, L2], hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
"""
SCHEMA = "id bigint, ts timestamp, k string, v double"
PLACES = ("L1", "L2")
PIECE = 12


def continuum(edges: str, address: str) -> Continuum:
    text = "name: shared\nlayers: [edge, cloud]\nzones:\n  C1: {layer: cloud, hosts: {c1: {n_cpu: 2}}}" + edges
    return on_spark(Continuum.from_text(text), address)


def flow(path: str, name: str, *places: str) -> Dataflow:
    """Return a dataflow that filters at the edge, and counts in the cloud over all its locations."""
    builder = hw.flow(name, locations=list(places))
    rows = builder.read.json(path, SCHEMA, location_as="site").with_watermark("ts", "2 seconds").named("rows")
    good = rows.where("v > 0").named("good").to_layer("cloud")
    good.select("id", "site", "v").named("picked").write.memory("out")
    counted = good.group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)", s="sum(v)").named("counted")
    counted.select("window.start AS begin", "k", "n", "s").named("shaped").write.memory("counts")
    return builder.build()


def rows(piece: int, place: str) -> list[dict[str, Any]]:
    """Return rows of a piece, which begins a minute after the one before it."""
    first = 1_700_000_000 + piece * 60
    return [
        {
            "id": piece * 100 + n + 10_000 * PLACES.index(place),
            "ts": datetime.fromtimestamp(first + n, UTC).isoformat(),
            "k": f"k{n % 3}",
            "v": float(n % 5) - 1,
        }
        for n in range(PIECE)
    ]


def bounded(place: Path, pieces: Mapping[str, range]) -> BoundedSource:
    """Return a source with some pieces of each location, a file each."""
    made = {x: [row for piece in own for row in rows(piece, x)] for x, own in pieces.items()}
    return BoundedSource(place, made, rows_per_file=PIECE)


@pytest.fixture
def controller(tmp_path: Path, spark_address: str) -> Iterator[Controller]:
    with running(pools.POOL, tmp_path, seed=11) as started:
        yield started


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("edges", [APART, TOGETHER], ids=["apart", "together"])
def test_a_location_comes_and_goes_with_its_dataflow(
    endpoint: LocalEndpoint, spark_address: str, tmp_path: Path, controller: Controller, edges: str
) -> None:
    store, zones = str(tmp_path / "store.db"), continuum(edges, spark_address)
    source = bounded(tmp_path / "in", dict.fromkeys(PLACES, range(4)))
    released = iter(source.release())

    def submit(name: str, *places: str) -> None:
        change = pools.plan_submission(flow(source.path, name, *places), zones, "team", store)
        controller.carry_out(change.apply().version, kill=False)

    def plan() -> DeploymentPlan:
        with closing(StoreReader.open(store)) as reader:
            found = reader.active_plan(pools.POOL)
        assert found is not None
        return found

    def wanted(name: str, sink: str, **pieces: range) -> Any:
        place = tmp_path / "alone" / f"{name}-{sink}-{pieces}"
        alone = bounded(place, pieces)
        alone.release_all()
        return batch_result(endpoint.session(), flow(alone.path, name, *pieces), continuum(edges, spark_address))[sink]

    def check(name: str, sink: str, **pieces: range) -> None:
        """Wait until a sink has the rows of a run alone over some pieces of each of its locations."""
        expected, deadline = wanted(name, sink, **pieces), time.monotonic() + PATIENCE
        (pool,) = pools.pools(store)
        while True:
            try:
                found = compare(expected, sink_rows(tmp_path, pools.POOL, pool[name].sinks[sink]))
            except ChannelError:
                found = None
            if found is not None and not found:
                return
            assert time.monotonic() < deadline and not (found and found.duplicated), found
            time.sleep(0.3)

    submit("one", "L1")
    next(released)
    check("one", "out", L1=range(1))
    submit("both", "L1", "L2")
    shared = {o for unit in plan().units if unit.zone == "E1" for o in unit.operators if o.startswith("one.")}
    assert ("both.good" not in plan().dataflow) == (edges == APART), shared
    check("both", "out", L1=range(1, 1), L2=range(1))
    next(released)
    check("one", "out", L1=range(2))
    check("both", "out", L1=range(1, 2), L2=range(2))
    controller.carry_out(pools.plan_removal("both", "team", store).apply().version, kill=False)
    assert plan().locations == ("L1",) and all("L2" not in unit.locations for unit in plan().units)
    next(released)
    check("one", "out", L1=range(3))
    submit("both", "L1", "L2")
    controller.carry_out(pools.plan_removal("one", "team", store).apply().version, kill=False)
    next(released, None)
    controller.carry_out(deployments.stop(pools.POOL, store, how="finish"), kill=False)
    for sink in ("out", "counts"):
        check("both", sink, L1=range(3, 4), L2=range(4))
