"""Deployments whose files wait to be put together: they appear in time, at the end, and when a unit stops or moves."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import KILL, BoundedSource, batch_result, check_equivalent, compare
from headwater.testing.readback import rows_in
from tests.deployments.flows import LOCATIONS, SCHEMA, rows
from tests.deployments.test_run_again import CONTINUUM as SMALL
from tests.deployments.test_run_again import Runs, some
from tests.faults import until

ONE = Continuum.from_text("name: c\nlayers: [cloud]\nzones:\n  C: {layer: cloud, locations: [L1]}\n")
SETTINGS = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False), max_rows_per_batch=5)


def flow_to(out: Path, source: str, *, layer: str = "cloud", locations: Any = ("L1",), **sizes: str) -> Dataflow:
    builder = hw.flow("held", locations=locations)
    read = builder.read.json(source, SCHEMA, location_as="location", maxFilesPerTrigger="1").named("read")
    kept = read.where("v IS NULL OR v > -1000").named("kept").to_layer(layer)
    kept.write.parquet(str(out / "plain"), **sizes).named("plain")
    kept.write.parquet(str(out / "by_k"), partition_by="k", **sizes).named("by_k")
    return builder.build()


def visible(out: Path) -> list[Path]:
    return [f for f in out.rglob("*.parquet") if ".headwater" not in f.parts]


def seen(out: Path) -> int:
    return sum(pq.ParquetFile(f).metadata.num_rows for f in visible(out))


def test_files_appear_when_a_unit_stops_when_they_are_old_and_at_the_end(
    endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    source, out = BoundedSource(tmp_path / "in", {"L1": rows(56, seed=3)["L1"]}, rows_per_file=4), tmp_path / "out"
    released = iter(source.release())
    flow = flow_to(out, source.path, max_file_age="1 hour")

    def begun(flow: Dataflow) -> LocalRun:
        run = LocalRun(build(flow, ONE), tmp_path / "run", endpoint, SETTINGS)
        run.start()
        return run

    run = begun(flow)
    some(released, 5)
    run.settle()
    assert visible(out) == [] and list(out.glob("plain/.headwater/*/held/*")), "they wait"
    run.stop()
    assert seen(out / "plain") == seen(out / "by_k") == 20
    assert len(visible(out / "plain")) == 1, "one file of several batches"
    some(released, 2)
    run = begun(flow)
    try:
        run.settle()
        assert seen(out / "plain") == 20
        run.drain()
        assert seen(out / "plain") == 28
    finally:
        run.stop()
    expected = batch_result(endpoint.session(), flow, ONE)
    for sink in flow.sinks:
        assert not compare(expected[sink.id], rows_in(sink, expected[sink.id].schema)), sink.id


@pytest.mark.long
def test_an_idle_unit_publishes_files_that_are_old(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source, out = BoundedSource(tmp_path / "in", {"L1": rows(40, seed=4)["L1"]}), tmp_path / "out"
    flow = flow_to(out, source.path, max_file_age="3 seconds")
    run = LocalRun(build(flow, ONE), tmp_path / "run", endpoint, SETTINGS)
    run.start()
    try:
        source.release_all()
        run.settle()

        def all_seen() -> bool:
            run.look()
            return seen(out / "plain") == seen(out / "by_k") == 20

        until(all_seen, "the files of an idle unit")
    finally:
        run.stop()


@pytest.mark.long
@pytest.mark.parametrize("size", ["1B", "6KiB", "1GiB"])
def test_equals_one_batch_with_spark_killed(size: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    made: dict[str, list[Any]] = rows(120, seed=12)
    chance = random.Random(size)
    for at in sorted(chance.sample(range(10, 58), 4), reverse=True):
        made["L1"].insert(at, KILL)
    source = BoundedSource(tmp_path / "in", made, rows_per_file=8)
    flow = flow_to(tmp_path / "out", source.path, layer="site", locations=LOCATIONS, target_file_size=size)
    outcome = check_equivalent(flow, SMALL, endpoint, tmp_path / "run", source=source)
    assert all(outcome.rows.values())


@pytest.mark.long
def test_files_of_a_unit_that_moves_appear(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source, out = BoundedSource(tmp_path / "in", rows(60, seed=17), rows_per_file=10), tmp_path / "out"
    runs, released = Runs(tmp_path / "run", endpoint), iter(source.release())
    sizes = {"locations": LOCATIONS, "max_file_age": "1 hour"}
    some(released, 2)
    runs.settled(runs.propose(dataflow=flow_to(out, source.path, layer="edge", **sizes)))
    first = seen(out / "plain")
    assert first > 0
    some(released, 2)
    flow = flow_to(out, source.path, layer="site", **sizes)
    runs.settled(runs.propose(dataflow=flow))
    for _ in released:
        pass
    with runs.run(runs.propose(dataflow=flow).plan) as one:
        one.drain()
    expected = batch_result(endpoint.session(), flow, SMALL)
    for sink in flow.sinks:
        assert not compare(expected[sink.id], rows_in(sink, expected[sink.id].schema)), sink.id
