"""A unit for which a change waits does its batches before its trigger is due, on a real Spark."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import headwater as hw
from headwater.agent.haste import hurry, keep_pace, level
from headwater.agent.units import Units
from headwater.continuum.model import Continuum
from headwater.disk.checkpoint import newest_batch
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.plan.spec import spec_of
from headwater.spark.endpoint import LocalEndpoint

CONTINUUM = Continuum.from_text("""
name: one
layers: [edge]
zones:
  E1: {layer: edge, locations: [L1], hosts: {e1: {n_cpu: 2, memory: 1GiB}}}
""")
PATIENCE = 120.0


def test_a_unit_that_drains_does_not_wait_for_its_trigger(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    builder = hw.flow("seldom", locations=["L1"])
    builder.read.json(str(place), "id bigint").write.json(str(tmp_path / "out"))
    plan = build(builder.build(), CONTINUUM)
    spec = spec_of(plan, plan.units[0].id)
    units = Units(Layout(tmp_path / "zone"), endpoint, UnitSettings(trigger="10 hours"))

    def release(number: int) -> None:
        (tmp_path / "draft").write_text(json.dumps({"id": number}))
        (tmp_path / "draft").rename(place / f"{number}.json")

    def wait(rows: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while units[spec.id].rows_in < rows:
            running = units[spec.id].running
            assert running is not None
            assert running.failure(spec.id) is None
            assert time.monotonic() < deadline, running.query.status
            running.observe()
            time.sleep(0.05)

    release(0)
    units.start(spec)
    wait(1)
    release(1)
    hurry(units, spec.id)
    wait(2)
    hurry(units, spec.id)  # asked again, it goes on
    release(2)
    wait(3)
    # Another agent does not adopt the query, and starts it with the trigger.
    found = LocalEndpoint.attach(endpoint.directory)
    assert found is not None
    other = Units(units.layout, found, units.settings)
    other.adopt(spec)
    assert other.get(spec.id) is None
    other.start(spec)
    running = other[spec.id].running
    assert running is not None and not running.unpaced
    keep_pace(other, spec.id)
    assert other[spec.id].running is running
    other.stop(spec.id)
    found.session().client.close()
    lines = [line for f in (tmp_path / "out").glob("*.json") for line in f.read_text().splitlines()]
    assert sorted(json.loads(line)["id"] for line in lines) == [0, 1, 2]


def test_a_change_that_is_called_off_gives_the_unit_its_trigger_back(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    builder = hw.flow("again", locations=["L1"])
    builder.read.rate(10).write.memory("out")
    plan = build(builder.build(), CONTINUUM)
    spec = spec_of(plan, plan.units[0].id)
    units = Units(Layout(tmp_path / "zone"), endpoint, UnitSettings(trigger="10 hours"))
    units.start(spec)
    for change, unpaced in ((hurry, True), (keep_pace, False)):
        change(units, spec.id)
        running = units[spec.id].running
        assert running is not None and running.unpaced == unpaced
    units.stop(spec.id)
    work = units[spec.id]
    work.finished = True
    hurry(units, spec.id)
    assert units[spec.id] is work, "it has used up its input"


def test_a_unit_that_has_read_an_input_unequally_far_does_not_wait_for_its_trigger_to_stop(
    endpoint: LocalEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "in"
    place.mkdir()
    (place / "0.json").write_text(json.dumps({"id": 0}))
    builder = hw.flow("unequal", locations=["L1"])
    builder.read.json(str(place), "id bigint").write.json(str(tmp_path / "out"))
    plan = build(builder.build(), CONTINUUM)
    spec = spec_of(plan, plan.units[0].id)
    units = Units(Layout(tmp_path / "zone"), endpoint, UnitSettings(trigger="10 hours"))
    units.start(spec)
    commits, deadline = units.layout.checkpoint(spec.unit) / "commits", time.monotonic() + PATIENCE
    while newest_batch(commits) < 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (place / "1.json").write_text(json.dumps({"id": 1}))
    monkeypatch.setattr("headwater.agent.haste.reads_agree", lambda checkpoint: newest_batch(commits) > 0)
    level(units, spec.id)
    units.stop(spec.id, level=True)
    assert newest_batch(commits) == 1
    lines = [line for f in (tmp_path / "out").glob("*.json") for line in f.read_text().splitlines()]
    assert sorted(json.loads(line)["id"] for line in lines) == [0, 1]
