"""A live stream behind its history: each row once, none of them late, equal to one batch over both."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.dataflow.builder import DataflowBuilder
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, compare
from tests.deployments.flows import CONTINUUM, LOCATIONS
from tests.deployments.test_oracle import DECISIONS
from tests.faults import until

BEGIN, UNTIL, LAST = 1_700_000_000, 1_700_000_600, 1_700_000_900
SCHEMA = "id bigint, ts timestamp, k string"
SETTINGS = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False))


def text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def rows(begin: int, end: int, step: int, *, first: int) -> list[dict[str, Any]]:
    return [{"id": first + n, "ts": text(t), "k": f"k{n % 3}"} for n, t in enumerate(range(begin, end, step))]


class Input:
    """A directory of JSON files for each location, which are put there one by one."""

    def __init__(self, directory: Path) -> None:
        self.directory, self._count = directory, 0
        for location in LOCATIONS:
            (directory / location).mkdir(parents=True)

    def put(self, location: str, found: Sequence[dict[str, Any]]) -> None:
        self._count += 1
        draft = self.directory / location / f".{self._count}"
        draft.write_text("".join(json.dumps(row) + "\n" for row in found))
        os.utime(draft, (self._count + 1.7e9, self._count + 1.7e9))  # Spark takes files in the order of their times
        draft.rename(draft.with_name(f"{self._count}.json"))


def windows(history: str, live: str, locations: Sequence[str] = LOCATIONS, **more: Any) -> DataflowBuilder:
    """Backfill with history of each location, or of one place, whose event time has another name."""
    builder = hw.flow("backfill", locations=locations)
    columns, setting = "id bigint, k string, at timestamp", {"location_as": "location"}
    if "{location}" not in history:
        columns, setting = f"{columns}, location string", {"layer": "cloud"}
    old = builder.read.json(history, columns, maxFilesPerTrigger="2", **setting)
    new = builder.read.json(live, SCHEMA, location_as="location").with_watermark("ts", "5 seconds")
    both = new.backfill(old.where("id IS NOT NULL").withColumnRenamed("at", "ts"), until=text(UNTIL), **more)
    both.select("id", "ts").write.memory("rows")
    cloud = both.to_layer("cloud").group_by(hw.window("ts", "30 seconds"), "k").agg(n="count(*)", least="min(id)")
    cloud.write.memory("windows")
    return builder


def begun(plan: DeploymentPlan, directory: Path, endpoint: LocalEndpoint) -> LocalRun:
    run = LocalRun(plan, directory, endpoint, SETTINGS)
    run.start()
    return run


def newest_window(run: LocalRun) -> float:
    """Return the end of the newest window that has closed."""
    run.look()
    ends = [row["window"]["end"].timestamp() for row in run.sink_rows("windows").to_pylist()]
    return max(ends, default=0.0)


def put_history(place: Input, found: Sequence[dict[str, Any]], location: str) -> None:
    for at in range(0, len(found), 7):
        place.put(
            location, [{"id": r["id"], "at": r["ts"], "k": r["k"], "location": location} for r in found[at : at + 7]]
        )


def check(run: LocalRun, endpoint: LocalEndpoint, count: int) -> None:
    """Compare a drained run with one batch over both inputs."""
    late = {unit.unit: unit.late_rows for unit in run.progress().units}
    assert not any(late.values()), late
    expected = batch_result(endpoint.session(), run.plan.dataflow, run.plan.continuum)
    for name in ("rows", "windows"):
        assert not compare(expected[name], run.sink_rows(name)), name
    ids = run.sink_rows("rows").column("id").to_pylist()
    assert len(ids) == len(set(ids)) == count


@pytest.mark.parametrize("disorder", [None, pytest.param("10 seconds", marks=pytest.mark.long)])
def test_history_comes_first_and_then_holds_back_nothing(
    disorder: str | None, endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    old, new = Input(tmp_path / "old"), Input(tmp_path / "new")
    found = rows(BEGIN, UNTIL + 100, 20, first=0)
    if disorder is None:
        random.Random(7).shuffle(found)
    more = {} if disorder is None else {"disorder": disorder}
    flow = windows(f"{old.directory}/{{location}}", f"{new.directory}/{{location}}", ["L1"], **more).build()
    plan = build(flow, Continuum.from_text("name: c\nlayers: [cloud]\nzones:\n  C: {layer: cloud, locations: [L1]}\n"))
    live = [rows(begin, begin + 100, 20, first=100_000 + begin) for begin in range(UNTIL - 100, LAST, 100)]
    new.put("L1", live[0] + live[1])  # ahead of history from the first batch on
    put_history(old, found[:7], "L1")
    run = begun(plan, tmp_path / "run", endpoint)
    try:
        for at in range(7, len(found), 7):  # each after the watermark that the part before led to
            run.settle()
            put_history(old, found[at : at + 7], "L1")
        for part in live[2:]:
            new.put("L1", part)
        until(lambda: newest_window(run) > UNTIL + 200, "a window after the end of history")
        run.drain()
        check(run, endpoint, 30 + 15)
    finally:
        run.stop()


@pytest.mark.long
@pytest.mark.parametrize("decision", ["unit per layer", "unit per operator", "one unit"])
@pytest.mark.parametrize("apart", [True, False])
def test_equals_one_batch_with_spark_killed(
    decision: str, apart: bool, endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    old, new = Input(tmp_path / "old"), Input(tmp_path / "new")
    for number, location in enumerate(LOCATIONS):
        found = rows(BEGIN, UNTIL + 100, 20, first=number * 1000)
        random.Random(location).shuffle(found)
        put_history(old, found, location)

    def live(begin: int, end: int) -> None:
        for number, location in enumerate(LOCATIONS):
            new.put(location, rows(begin, end, 20, first=100_000 * (number + 1) + begin - BEGIN))

    history = f"{old.directory}/{{location}}" if apart else f"{old.directory}/*"
    flow = windows(history, f"{new.directory}/{{location}}").build()
    continuum = Continuum.from_text(CONTINUUM)
    plan = build(flow, continuum, DECISIONS[decision](flow, continuum))
    live(UNTIL - 100, UNTIL + 100)
    run = begun(plan, tmp_path / "run", endpoint)
    try:
        until(lambda: run.sink_rows("rows").num_rows > 0, "a row")  # killed while history is read, and after its end
        for end in (UNTIL + 200, LAST):
            endpoint.kill()
            endpoint.restart()
            run = begun(plan, tmp_path / "run", endpoint)
            live(end - 100, end)
            until(lambda: newest_window(run) > end - 60, "a window behind the end of history")  # noqa: B023
        run.drain()
        check(run, endpoint, 3 * (30 + 15))
    finally:
        run.stop()
