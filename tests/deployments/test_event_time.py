"""Event time advances for each location by itself: results do not depend on the grouping of locations into zones."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.stream import Stream
from headwater.disk.checkpoint import advances_watermark, newest_batch
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan import build
from headwater.query.unit import BEGINNING_OF_TIME, END_OF_TIME, WATERMARK
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import PAUSE, STOP, BoundedSource, check_equivalent
from tests.faults import until
from tests.patience import PATIENCE

BEGIN = 1_700_000_000
DAY = 86_400
SKEWS = {"A": 0, "B": DAY, "C": 3 * DAY + 1_800}
"""Seconds by which the event times of a location are ahead."""
GROUPINGS = ((("A", "B", "C"),), (("A", "B"), ("C",)), (("A",), ("B",), ("C",)))
SCHEMA = "id bigint, ts timestamp, v double"


def rows(count: int, seed: int, *, silent: Sequence[str] = ()) -> dict[str, list[Any]]:
    """Return rows a minute apart at each location, in three parts; silent locations have the first part only."""
    found: dict[str, list[Any]] = {}
    for n, (location, skew) in enumerate(SKEWS.items()):
        rng = random.Random(f"{seed}-{location}")
        made: list[Any] = []
        for i in range(count):
            at = datetime.fromtimestamp(BEGIN + skew + 60 * i + rng.uniform(0, 30), UTC)
            text = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            made.append({"id": 1000 * n + i, "ts": text, "v": rng.uniform(0, 10)})
        third = count // 3
        parts = [made[:third], made[third : 2 * third], made[2 * third :]]
        restart = [STOP] if location == "A" else []
        found[location] = (
            [*parts[0], PAUSE] if location in silent else [*parts[0], PAUSE, *parts[1], *restart, *parts[2]]
        )
    return found


def _named(groups: Sequence[Sequence[str]]) -> str:
    return "|".join("".join(locations) for locations in groups)


def continuum(groups: Sequence[Sequence[str]]) -> Continuum:
    """Return an edge zone for each group of locations, below one cloud."""
    zones: dict[str, Any] = {"C1": {"layer": "cloud"}}
    for n, locations in enumerate(groups):
        zones[f"E{n}"] = {"layer": "edge", "parent": "C1", "locations": list(locations)}
    return Continuum.from_data({"name": "grouped", "layers": ["edge", "cloud"], "zones": zones})


def continued(groups: Sequence[Sequence[str]], path: str, directory: Path, endpoint: LocalEndpoint) -> LocalRun:
    """Run windows over A and B, where a location is idle after two seconds."""
    builder = hw.flow("idle", locations=["A", "B"])
    read = builder.read.json(path, SCHEMA, location_as="location").with_watermark("ts", "1 minute", idle_after="2 s")
    read = read.where("v >= 0").named("timed")
    hours = read.to_layer("cloud").group_by(hw.window("ts", "10 minutes"), "location").agg(n="count(*)")
    hours.write.memory("out")
    settings = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False))
    return LocalRun(build.build(builder.build(), continuum(groups)), directory, endpoint, settings)


def windows(path: str) -> DataflowBuilder:
    """Count by the hour at the edge and over all locations in the cloud, with operators before the watermark."""
    builder = hw.flow("skewed", locations=list(SKEWS))
    read = builder.read.json(path, SCHEMA, location_as="location").where("v > 1").named("some")
    timed = read.select("id", "ts", "location", "v * 2 AS w").with_watermark("ts", "1 minute").named("timed")
    hours = timed.group_by(hw.window("ts", "1 hour"), "location").agg(n="count(*)", w="sum(w)").named("hours")
    hours.to_layer("cloud").write.memory("by_hour")
    return builder


def united(path: str) -> DataflowBuilder:
    """Declare event time behind a union of two streams of a source."""
    builder = hw.flow("skewed", locations=list(SKEWS))
    read = builder.read.json(path, SCHEMA, location_as="location").named("read")
    low = read.where("v < 5").select("id", "ts", "location", "'low' AS kind")
    high = read.where("v >= 5").select("id", "ts", "location", "'high' AS kind")
    both: Stream = low.union(high).with_watermark("ts", "1 minute")
    both.group_by(hw.window("ts", "1 hour"), "location", "kind").agg(n="count(*)").write.memory("kinds")
    return builder


@pytest.mark.long
@pytest.mark.parametrize("groups", GROUPINGS, ids=_named)
def test_no_location_makes_rows_of_another_late(
    groups: Sequence[Sequence[str]], endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    source = BoundedSource(tmp_path / "in", rows(90, seed=3), rows_per_file=15)
    flow = windows(source.path).build()
    outcome = check_equivalent(flow, continuum(groups), endpoint, tmp_path / "run", source=source)
    assert outcome.rows["by_hour"] >= 6


@pytest.mark.long
def test_a_silent_location_loses_no_row(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", rows(90, seed=4, silent=["B"]), rows_per_file=15)
    flow = windows(source.path).build()
    outcome = check_equivalent(flow, continuum((("A", "B", "C"),)), endpoint, tmp_path / "run", source=source)
    assert outcome.rows["by_hour"] >= 5


@pytest.mark.long
def test_streams_of_a_union_have_watermarks_of_their_own(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", rows(90, seed=5), rows_per_file=15)
    flow = united(source.path).build()
    zones = continuum((("A", "B", "C"),))
    outcome = check_equivalent(
        flow, zones, endpoint, tmp_path / "run", decision=build.annotated(flow, zones), source=source
    )
    assert outcome.rows["kinds"] >= 6


def test_closed_windows_come_out_without_more_input(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(
        tmp_path / "in",
        {x: [r for r in made if r is not PAUSE and r is not STOP] for x, made in rows(90, 6).items()},
        rows_per_file=90,
    )
    source.release_all()
    builder = hw.flow("closed", locations=list(SKEWS))
    read = builder.read.json(source.path, SCHEMA, location_as="location").with_watermark("ts", "1 minute")
    hours = read.to_layer("cloud").group_by(hw.window("ts", "10 minutes"), "location").agg(n="count(*)")
    hours.write.memory("out")
    plan = build.build(builder.build(), continuum((("A", "B"), ("C",))))
    settings = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False))
    run = LocalRun(plan, tmp_path / "run", endpoint, settings)
    run.start()
    try:
        # The least watermark is that of A: all its windows but the last one or two are closed.
        closed = 90 * 60 // 600 - 2
        deadline = time.monotonic() + PATIENCE
        while run.sink_rows("out").num_rows < closed:
            assert time.monotonic() < deadline, "closed windows wait for more input"
            run.look()
            time.sleep(0.2)
    finally:
        run.stop()


HOUR = datetime.fromtimestamp(BEGIN - BEGIN % 3600, UTC)


def _minute(at: datetime) -> float:
    return (at.astimezone(UTC) - HOUR).total_seconds() / 60


def _minutes(*minutes: int) -> list[dict[str, Any]]:
    """Return a row at each of these minutes."""
    times = (HOUR + timedelta(minutes=m) for m in minutes)
    return [{"id": n, "ts": at.isoformat(), "v": 1.0} for n, at in enumerate(times)]


def _await(run: LocalRun, found: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < deadline, what
        run.look()
        time.sleep(0.2)


@pytest.mark.parametrize(
    "groups",
    [pytest.param((("A", "B"),), id="AB", marks=pytest.mark.long), pytest.param((("A",), ("B",)), id="A|B")],
)
def test_an_idle_location_is_left_out(groups: Sequence[Sequence[str]], endpoint: LocalEndpoint, tmp_path: Path) -> None:
    # A is silent, then comes back with two rows that are late, in one window, and one that is not.
    a = [*_minutes(0), PAUSE, *_minutes(5, 6, 65)]
    source = BoundedSource(tmp_path / "in", {"A": a, "B": [*_minutes(1, 42), PAUSE, *_minutes(66)]})
    run = continued(groups, source.path, tmp_path / "run", endpoint)
    run.start()
    try:
        steps = iter(source.release())
        for _ in range(2):
            next(steps)
        run.settle()
        assert run.sink_rows("out").num_rows == 0
        _await(run, lambda: run.sink_rows("out").num_rows == 2, "B's window waits for A, which is idle")
        idle = {location for unit in run.progress().units for location in unit.idle}
        assert idle & {"A", "E0"}, idle
        list(steps)
        run.settle()
        run.drain()
        rows = {(r["location"], _minute(r["window"]["start"]), r["n"]) for r in run.sink_rows("out").to_pylist()}
        assert rows == {("A", 0, 1), ("B", 0, 1), ("B", 40, 1), ("A", 60, 1), ("B", 60, 1)}
        assert sum(u.late_rows for u in run.progress().units) == 2
    finally:
        run.stop()


@pytest.mark.long
def test_rows_are_joined_in_a_batch_in_which_the_other_side_has_only_a_signal(
    endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    builder = hw.flow("paired", locations=["A"])
    sides = [
        builder.read.json(f"{tmp_path}/{side}/{{location}}", f"{side} bigint, ts timestamp, v double")
        .with_watermark("ts", "1 minute")
        .named(side)
        for side in ("id", "other")
    ]
    sides[0].join(sides[1].select("other", "ts AS at", "v"), on="v", within="5 minutes").write.memory("out")
    plan = build.build(builder.build(), continuum((("A",),)))
    (unit,) = plan.units
    settings = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False))
    for side in ("id", "other"):
        (tmp_path / side / "A").mkdir(parents=True)
    (tmp_path / "id/A/0.json").write_text(json.dumps({"id": 1, "ts": HOUR.isoformat(), "v": 2.5}))
    run = LocalRun(plan, tmp_path / "run", endpoint, settings)
    run.start()
    run.settle()
    run.stop()
    control = run.layout.control(unit)
    (control / "again-0.json").write_text(json.dumps({WATERMARK: BEGINNING_OF_TIME}))
    (tmp_path / "other/A/0.json").write_text(json.dumps({"other": 7, "ts": HOUR.isoformat(), "v": 2.5}))
    run = LocalRun(plan, tmp_path / "run", endpoint, settings)
    run.start()
    try:
        run.drain()
        assert [(r["id"], r["other"]) for r in run.sink_rows("out").to_pylist()] == [(1, 7)]
    finally:
        run.stop()


def test_windows_close_although_the_query_ends_behind_the_end_of_its_input(
    endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    source = BoundedSource(tmp_path / "in", {"A": _minutes(0, 1, 30)})
    source.release_all()
    builder = hw.flow("ended", locations=["A"])
    read = builder.read.json(source.path, SCHEMA).with_watermark("ts", "1 minute")
    read.group_by(hw.window("ts", "10 minutes")).agg(n="count(*)").write.memory("out")
    plan = build.build(builder.build(), continuum((("A",),)))
    (unit,) = plan.units
    channel = ChannelSettings(fsync=False)

    def begun(trigger: str) -> LocalRun:
        run = LocalRun(plan, tmp_path / "run", endpoint, UnitSettings(trigger=trigger, channel=channel))
        run.start()
        return run

    run = begun("100 milliseconds")
    run.settle()
    run.stop()
    # As a drain does; the batch that then closes the windows would come an hour later.
    (run.layout.control(unit) / "end-0.json").write_text(json.dumps({WATERMARK: END_OF_TIME}))
    checkpoint = run.layout.checkpoint(unit)
    before = newest_batch(checkpoint / "commits")
    run = begun("1 hour")
    until(lambda: newest_batch(checkpoint / "commits") == before + 1)
    run.stop()
    assert advances_watermark(checkpoint, before + 1)
    run = begun("100 milliseconds")
    try:
        run.drain()
        assert sorted(_minute(r["window"]["start"]) for r in run.sink_rows("out").to_pylist()) == [0, 30]
    finally:
        run.stop()
