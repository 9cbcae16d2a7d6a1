"""Dataflows of different locations share operators: each has the output of a run alone, for its own locations."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
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
from headwater.testing.compare import Difference
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
    """Return a dataflow that filters at the edge, and counts in the cloud over all its locations.

    That of one name also sends the rows before the filter to the cloud: no other dataflow reads them.
    """
    builder = hw.flow(name, locations=list(places))
    rows = builder.read.json(path, SCHEMA, location_as="site").with_watermark("ts", "2 seconds").named("rows")
    good = rows.where("v > 0").named("good").to_layer("cloud")
    good.select("id", "site", "v").named("picked").write.memory("out")
    counted = good.group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)", s="sum(v)").named("counted")
    counted.select("window.start AS begin", "k", "n", "s").named("shaped").write.memory("counts")
    if name == "one":
        rows.to_layer("cloud").select("id").named("ids").write.memory("every")
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


class World:
    """A pool over two locations that are released piece by piece, and the runs of its dataflows alone."""

    def __init__(self, place: Path, controller: Controller, endpoint: LocalEndpoint, zones: Continuum, *, kill: bool):
        self._place, self._controller, self._endpoint, self._zones, self._kill = (
            place,
            controller,
            endpoint,
            zones,
            kill,
        )
        self.store = str(place / "store.db")
        self._source = bounded(place / "in", dict.fromkeys(PLACES, range(4)))
        self._released = iter(self._source.release())
        self._number = count()

    def more(self) -> None:
        """Release a piece of each location."""
        next(self._released)

    def submit(self, name: str, *places: str) -> None:
        made = flow(self._source.path, name, *places)
        self._carry_out(pools.plan_submission(made, self._zones, "team", self.store).apply().version)

    def remove(self, name: str) -> None:
        self._carry_out(pools.plan_removal(name, "team", self.store).apply().version)

    def finish(self) -> None:
        self._carry_out(deployments.stop(pools.POOL, self.store, how="finish"))

    def _carry_out(self, version: int) -> None:
        self._controller.carry_out(version, kill=self._kill)

    def plan(self) -> DeploymentPlan:
        with closing(StoreReader.open(self.store)) as reader:
            found = reader.active_plan(pools.POOL)
        assert found is not None
        return found

    def check(self, name: str, sink: str, **pieces: range) -> None:
        """Wait until a sink has the rows of a run alone over some pieces of each of its locations."""
        alone = bounded(self._place / "alone" / str(next(self._number)), pieces)
        alone.release_all()
        expected = batch_result(self._endpoint.session(), flow(alone.path, name, *pieces), self._zones)[sink]
        deadline = time.monotonic() + PATIENCE
        (pool,) = pools.pools(self.store)
        while True:
            found = self._difference(expected, pool[name].sinks[sink])
            if not found:
                return
            assert time.monotonic() < deadline and not found.duplicated, (name, sink, pieces, found)
            time.sleep(0.3)

    def _difference(self, expected: pa.Table, sink: str) -> Difference:
        try:
            got = sink_rows(self._place, pools.POOL, sink)
        except ChannelError:  # nothing was written yet
            got = []
        return compare(expected, got) if got else Difference(len(expected), 0, ())


@pytest.mark.long
def test_a_zone_sends_only_what_is_read_of_its_location(
    endpoint: LocalEndpoint, spark_address: str, tmp_path: Path, controller: Controller
) -> None:
    world = World(tmp_path, controller, endpoint, continuum(APART, spark_address), kill=False)
    world.more()
    world.submit("one", "L1")
    world.submit("both", "L1", "L2")
    sent = {unit.zone: set(unit.outputs) for unit in world.plan().units if unit.layer == "edge"}
    assert "one.good" in sent["E2"] and sent["E1"] == sent["E2"] | {"one.rows"} != sent["E2"]
    world.more()
    world.finish()
    world.check("one", "every", L1=range(2))
    for sink in ("out", "counts"):
        world.check("both", sink, L1=range(1, 2), L2=range(2))


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("named", [PLACES, ()], ids=["named", "all"])
@pytest.mark.parametrize("edges", [APART, TOGETHER], ids=["apart", "together"])
def test_a_location_comes_and_goes_with_its_dataflow(
    endpoint: LocalEndpoint,
    spark_address: str,
    tmp_path: Path,
    controller: Controller,
    edges: str,
    named: tuple[str, ...],
) -> None:
    world = World(tmp_path, controller, endpoint, continuum(edges, spark_address), kill=True)
    apart = edges == APART
    world.submit("one", "L1")
    world.more()
    world.check("one", "out", L1=range(1))
    world.submit("both", *named)
    assert ("both.good" not in world.plan().dataflow) == apart
    mine = 1 if apart else 0  # operators of its own read L1 from its beginning
    world.check("both", "out", L1=range(mine, 1), L2=range(1))
    world.submit("late", "L2")  # shares those of two locations
    assert "late.good" not in world.plan().dataflow and "late.counted" in world.plan().dataflow
    world.more()
    world.check("one", "every", L1=range(2))
    world.check("both", "out", L1=range(mine, 2), L2=range(2))
    world.check("late", "out", L2=range(1, 2))
    world.remove("both")
    units = world.plan().units
    assert all(unit.locations == ("L1",) for unit in units if set(unit.operators) & {"one.ids", "one.counted"})
    assert all(len(unit.locations) == 1 for unit in units if unit.layer == "edge")
    world.more()
    world.check("one", "out", L1=range(3))
    world.check("late", "out", L2=range(1, 3))
    world.submit("both", *named)
    world.remove("one")
    world.more()
    world.finish()
    world.check("late", "counts", L2=range(1, 4))
    first = 3 if apart else 0
    for sink in ("out", "counts"):
        world.check("both", sink, L1=range(first, 4), L2=range(first, 4))
    assert controller.kills > 3
