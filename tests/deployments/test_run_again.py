"""Edit a dataflow between two runs in the same directory: it continues with its state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.app.client import Client, PlanRequest, Proposal
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError
from headwater.dataflow.graph import Dataflow
from headwater.disk.layout import RUN_STORE
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan.build import build, one_unit, unit_per_operator
from headwater.plan.edit import Fuse, Move, Split
from headwater.plan.model import DeploymentPlan
from headwater.plan.steps import FormerOutputChoice
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.deployments.flows import LOCATIONS, SCHEMA, rows

CONTINUUM = Continuum.from_text("""
name: small
layers: [edge, site, cloud]
zones:
  C1: {layer: cloud}
  S1: {layer: site, parent: C1}
  E1: {layer: edge, parent: S1, locations: [L1]}
  E2: {layer: edge, parent: S1, locations: [L2]}
  E4: {layer: edge, parent: S1, locations: [L4]}
""")
NAME = "again"


def flow(path: str, *, least: int = -1000, also: bool = False, size: str = "20 seconds") -> Dataflow:
    """Return the highest values so far by key, and counted windows.

    ``least`` changes a filter and not the output; ``also`` adds a filter and a sink behind the state.
    """
    builder = hw.flow(NAME, locations=LOCATIONS)
    read = builder.read.json(path, SCHEMA, location_as="location").named("read")
    clean = read.with_watermark("ts", "5 seconds").where(f"v > {least}").named("clean").to_layer("site")
    rising = clean.scan(_most, "id bigint, k string, most double", keys=["location", "k"], order_by=["ts", "id"]).named(
        "rising"
    )
    above = rising.to_layer("cloud")
    above.write.memory("rises")
    if also:
        above.where("most > 50").named("high").write.memory("highs")
    counted = clean.group_by(hw.window("ts", size), "location", "k").agg(n="count(*)", low="min(v)")
    counted.named("counted").to_layer("cloud").write.memory("counts")
    return builder.build()


def _most(state: float | None, row: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    most = row["v"] if state is None else max(state, row["v"])
    return most, {"id": row["id"], "k": row["k"], "most": most}


class Runs:
    """Runs in one directory, one after the other, as ``headwater run`` starts them."""

    def __init__(self, directory: Path, endpoint: LocalEndpoint) -> None:
        self.directory = directory
        self.client = Client(str(directory / RUN_STORE))
        self._endpoint = endpoint

    def propose(self, **asked: Any) -> Proposal:
        found = self.client.propose(PlanRequest(**{"continuum": CONTINUUM, **asked}))
        _ = found.change
        return found

    @contextmanager
    def run(self, plan: DeploymentPlan, former_output: FormerOutputChoice = "refuse") -> Iterator[LocalRun]:
        settings = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False))
        one = LocalRun(plan, self.directory, self._endpoint, settings)
        try:
            one.start(former_output=former_output)
            yield one
        finally:
            one.stop()

    def settled(self, found: Proposal) -> None:
        """Run until the rows that have arrived are processed, and stop."""
        with self.run(found.plan) as one:
            one.settle()

    def drained(self, found: Proposal) -> dict[str, pa.Table]:
        """Run to the end of all input; return the rows in the sinks."""
        with self.run(found.plan) as one:
            one.drain()
            return {sink.id: one.sink_rows(sink.id) for sink in found.plan.dataflow.sinks}


@pytest.fixture
def source(tmp_path: Path) -> BoundedSource:
    return BoundedSource(tmp_path / "in", rows(60, seed=17), rows_per_file=10)


@pytest.fixture
def runs(endpoint: LocalEndpoint, tmp_path: Path) -> Runs:
    return Runs(tmp_path / "run", endpoint)


def some(released: Iterator[Any], count: int) -> None:
    """Release more files."""
    for _ in range(count):
        next(released)


def differences(runs: Runs, flow: Dataflow, got: dict[str, pa.Table], endpoint: LocalEndpoint) -> dict[str, Any]:
    expected = batch_result(endpoint.session(), flow, CONTINUUM)
    assert all(table.num_rows > 20 for table in expected.values())
    return {sink: found for sink, table in got.items() if (found := compare(expected[sink], table))}


def test_an_edited_dataflow_goes_on_with_its_state(runs: Runs, source: BoundedSource, endpoint: LocalEndpoint) -> None:
    released = iter(source.release())
    some(released, 3)
    first = runs.propose(dataflow=flow(source.path))
    runs.settled(first)
    some(released, 3)
    edited = flow(source.path, least=-1001, also=True)  # a filter is changed, another added, with a sink
    second = runs.propose(dataflow=edited)
    assert {u.action for u in second.change.diff.units} >= {"unchanged", "replace"}
    runs.settled(second)
    some(released, 3)
    runs.settled(runs.propose(dataflow=edited))  # the first dataflow again
    for _ in released:
        pass
    got = runs.drained(runs.propose(dataflow=edited))
    highs = got.pop("highs")
    assert differences(runs, edited, got, endpoint) == {}
    # New operators have the rows since their start, on the former state.
    found = compare(batch_result(endpoint.session(), edited, CONTINUUM)["highs"], highs)
    assert highs.num_rows > 10 and not found.duplicated and found.lost


@pytest.mark.long
def test_a_source_without_locations_goes_on_whatever_the_locations_are(
    runs: Runs, endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    place = tmp_path / "in"
    place.mkdir()
    builder = hw.flow(NAME)
    read = builder.read.json(str(place), "id bigint, v double").where("v > 0").named("good").to_layer("cloud")
    read.write.memory("kept")
    written = builder.build()

    def at(zone: str, locations: str) -> Continuum:
        edge = f"{zone}: {{layer: edge, parent: C1, locations: [{locations}]}}"
        return Continuum.from_text(f"name: c\nlayers: [edge, cloud]\nzones:\n  C1: {{layer: cloud}}\n  {edge}")

    places = [("E1", "L1"), ("E1", "L0, L1"), ("E1", "L0"), ("E1", "L2, L0"), ("E9", "L2, L0"), ("E1", "L4")]
    for n, (zone, locations) in enumerate(places):
        (place / f"{n}.json").write_text("".join(f'{{"id": {n * 10 + i}, "v": {i}}}\n' for i in range(10)))
        runs.settled(runs.propose(dataflow=written, continuum=at(zone, locations)))
    got = runs.drained(runs.propose(dataflow=written, continuum=at("E1", "L4")))
    assert not compare(batch_result(endpoint.session(), written, at("E1", "L4"))["kept"], got["kept"])


def divided(*edges: str, cloud: str = "C1") -> Continuum:
    """Return a continuum of two sites, with edge zones written as ``zone parent locations``."""
    zones = "".join(f"\n  {z}: {{layer: edge, parent: {p}, locations: [{x}]}}" for z, p, x in map(str.split, edges))
    sites = "".join(f"\n  {site}: {{layer: site, parent: {cloud}}}" for site in ("S1", "S2"))
    top = f"name: d\nlayers: [edge, site, cloud]\nzones:\n  {cloud}: {{layer: cloud}}"
    return Continuum.from_text(top + sites + zones)


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["E1 S1 L1", "E2 S1 L2", "E4 S1 L4"], ["E1 S1 L1,L2", "E4 S1 L4"]),
        (["E1 S1 L1,L2", "E4 S1 L4"], ["E1 S1 L1", "E4 S1 L4,L2"]),
        (["E1 S1 L1,L2", "E4 S1 L4"], ["E4 S1 L4", "E2 S1 L2", "E1 S1 L1"]),
        (["E1 S1 L1,L2", "E4 S2 L4"], ["E1 S1 L1", "E4 S2 L4,L2"]),
        (["E1 S1 L1", "E2 S1 L2", "E4 S2 L4"], ["E1 S1 L1", "E2 S2 L2", "E4 S2 L4"]),
        (["E1 S1 L1,L2,L4"], ["E9 S2 L4,L1,L2"]),
    ],
    ids=["zones become one", "to another zone", "a zone is divided", "to another site", "another parent", "renamed"],
)
@pytest.mark.parametrize("cloud", ["C1", "C2"])
def test_a_location_that_moves_to_another_zone_is_read_on(
    runs: Runs, source: BoundedSource, endpoint: LocalEndpoint, before: list[str], after: list[str], cloud: str
) -> None:
    """``cloud``: the name of the uppermost zone meanwhile; its sinks keep their rows in memory."""
    released, written = iter(source.release()), flow(source.path)
    for edges, name in ((before, "C1"), (after, cloud), (before, "C1")):
        some(released, 3)
        runs.settled(runs.propose(dataflow=written, continuum=divided(*edges, cloud=name)))
    for _ in released:
        pass
    got = runs.drained(runs.propose(dataflow=written, continuum=divided(*before)))
    assert differences(runs, written, got, endpoint) == {}


@pytest.mark.long
def test_a_sink_that_is_added_does_not_mix_its_rows_with_another_runs(
    source: BoundedSource, endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    released, out = iter(source.release()), tmp_path / "out"

    def written(name: str, *, files: bool) -> Dataflow:
        builder = hw.flow(name, locations=LOCATIONS)
        stream = builder.read.json(source.path, SCHEMA, location_as="location").named("read").to_layer("cloud")
        stream.where("v > 0").write.memory("shown")
        if files:
            stream.write.json(str(out)).named("kept")
        return builder.build()

    def visible() -> int:
        return sum(len(file.read_text().splitlines()) for file in out.glob("*.json"))

    some(released, 3)
    stranger = build(written("stranger", files=True), CONTINUUM)
    with Runs(tmp_path / "stranger", endpoint).run(stranger) as one:
        one.settle()
    theirs = visible()
    assert theirs > 0
    runs = Runs(tmp_path / "run", endpoint)
    runs.settled(runs.propose(dataflow=written(NAME, files=False)))
    added = runs.propose(dataflow=written(NAME, files=True)).plan
    with pytest.raises(HeadwaterError, match=f"'kept' holds {theirs} rows of another run") as refused, runs.run(added):
        pass
    assert "--append" in str(refused.value) and visible() == theirs
    with runs.run(added, "append") as one:
        some(released, 3)
        one.settle()
    ours = visible() - theirs
    assert ours > 0
    with runs.run(added) as one:  # its own rows are no reason to refuse
        for _ in released:
            pass
        one.drain()
    assert visible() > theirs + ours


@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=pytest.mark.long) for w in ("moved", "cut and fused", "by operator, then one")]
)
def test_what_is_placed_otherwise_goes_on_with_its_state(
    way: str, runs: Runs, source: BoundedSource, endpoint: LocalEndpoint
) -> None:
    released, dataflow = iter(source.release()), flow(source.path)
    asked: dict[str, list[dict[str, Any]]] = {
        "moved": [
            {"edits": (Move(operator="rising", to="cloud"),)},
            {"edits": (Move(operator="counted", to="cloud"),)},
        ],
        "cut and fused": [
            {"edits": (Split(unit="clean@E1", after="read"),)},
            {"edits": (Fuse(first="rising", second="rises", to="cloud"),)},
        ],
        "by operator, then one": [
            {"decided": unit_per_operator(dataflow, CONTINUUM)},
            {"decided": one_unit(dataflow, CONTINUUM)},
        ],
    }
    some(released, 3)
    runs.settled(runs.propose(dataflow=dataflow))
    for one in asked[way]:
        some(released, 3)
        found = runs.propose(dataflow=dataflow, **one)
        assert not found.change.same
        runs.settled(found)
    for _ in released:
        pass
    last = runs.client.in_force(NAME)
    got = runs.drained(runs.propose(dataflow=dataflow, decided=last.deployment))
    assert differences(runs, dataflow, got, endpoint) == {}


@pytest.mark.long
def test_state_that_an_edit_would_lose_is_given_up_only_where_that_is_said(
    runs: Runs, source: BoundedSource, endpoint: LocalEndpoint
) -> None:
    released = iter(source.release())
    some(released, 3)
    runs.settled(runs.propose(dataflow=flow(source.path)))
    wider = flow(source.path, size="40 seconds")
    with pytest.raises(HeadwaterError, match="--reset-state counted@S1"):
        runs.propose(dataflow=wider)
    plan = runs.client.in_force(NAME)
    with (
        pytest.raises(HeadwaterError, match="--reset-state counted@S1"),
        runs.run(build(wider, CONTINUUM)),  # without a proposal before
    ):
        pass
    for _ in released:
        pass
    got = runs.drained(runs.propose(dataflow=flow(source.path)))  # nothing was touched
    assert runs.client.in_force(NAME).units == plan.units
    assert differences(runs, flow(source.path), got, endpoint) == {}
