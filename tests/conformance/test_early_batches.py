"""A unit for which a change waits does its batches before its trigger is due, on a real Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headwater as hw
from headwater.agent.earlybatches import begin_early, keep_interval, level_reads
from headwater.agent.units import Units
from headwater.disk.checkpoint import newest_batch
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from headwater.plan.spec import UnitSpec
from headwater.query.query import Running
from headwater.spark.endpoint import LocalEndpoint
from tests.conformance.test_warmup import planned
from tests.faults import until


@pytest.fixture
def units(endpoint: LocalEndpoint, tmp_path: Path) -> Units:
    return Units(Layout(tmp_path / "zone"), endpoint, UnitSettings(trigger="10 hours"))


def copying(place: Path, name: str) -> UnitSpec:
    """Plan a unit that copies files."""
    (place / "in").mkdir()
    builder = hw.flow(name, locations=["L1"])
    builder.read.json(str(place / "in"), "id bigint").write.json(str(place / "out"))
    return planned(builder)


def release(place: Path, number: int) -> None:
    (place / "draft").write_text(json.dumps({"id": number}))
    (place / "draft").rename(place / "in" / f"{number}.json")


def copied(place: Path) -> list[int]:
    lines = [line for file in (place / "out").glob("*.json") for line in file.read_text().splitlines()]
    return sorted(json.loads(line)["id"] for line in lines)


def running(units: Units, spec: UnitSpec) -> Running:
    found = units[spec.id].running
    assert found is not None and found.failure(spec.id) is None
    return found


def wait(units: Units, spec: UnitSpec, rows: int) -> None:
    def read() -> bool:
        running(units, spec).observe()
        return units[spec.id].rows_in >= rows

    until(read)


def test_a_unit_that_drains_does_not_wait_for_its_trigger(units: Units, tmp_path: Path) -> None:
    spec = copying(tmp_path, "drained")
    release(tmp_path, 0)
    units.start(spec)
    wait(units, spec, 1)
    for number in (1, 2):  # asked again, it goes on
        release(tmp_path, number)
        begin_early(units, spec.id)
        wait(units, spec, number + 1)
    # Another agent does not adopt the query, and starts it with the trigger.
    found = LocalEndpoint.attach(units.endpoint.directory)
    assert found is not None
    other = Units(units.layout, found, units.settings)
    other.adopt(spec)
    assert other.get(spec.id) is None
    other.start(spec)
    started = running(other, spec)
    assert not started.back_to_back
    keep_interval(other, spec.id)
    assert running(other, spec) is started
    other.stop(spec.id)
    found.session().client.close()
    assert copied(tmp_path) == [0, 1, 2]


def test_a_change_that_is_called_off_gives_the_unit_its_trigger_back(units: Units) -> None:
    builder = hw.flow("again", locations=["L1"])
    builder.read.rate(10).write.memory("out")
    spec = planned(builder)
    units.start(spec)
    for change, back_to_back in ((begin_early, True), (keep_interval, False)):
        change(units, spec.id)
        assert running(units, spec).back_to_back == back_to_back
    units.stop(spec.id)
    work = units[spec.id]
    work.finished = True
    begin_early(units, spec.id)
    assert units[spec.id] is work, "it has used up its input"


def test_a_unit_whose_reads_differ_does_not_wait_for_its_trigger_to_stop(
    units: Units, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = copying(tmp_path, "unequal")
    release(tmp_path, 0)
    units.start(spec)
    commits = units.layout.checkpoint(spec.unit) / "commits"
    until(lambda: newest_batch(commits) == 0)
    release(tmp_path, 1)
    monkeypatch.setattr("headwater.agent.earlybatches.reads_agree", lambda checkpoint: newest_batch(commits) > 0)
    level_reads(units, spec.id)
    units.stop(spec.id, level=True)
    assert newest_batch(commits) == 1
    assert copied(tmp_path) == [0, 1]


def test_a_start_of_the_old_version_leaves_the_compiled_new_one(
    units: Units, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = copying(tmp_path, "replaced")
    builder = hw.flow("replaced", locations=["L1"])
    builder.read.json(str(tmp_path / "in"), "id bigint").where("id > 0").write.json(str(tmp_path / "out"))
    new = planned(builder)
    assert new.id == old.id and new.digest != old.digest
    units.start(old)
    units.check(new)
    begin_early(units, old.id)
    units.stop(old.id)
    units.forget(old.unit)
    monkeypatch.setattr(units, "compile", lambda *_, **__: pytest.fail("it was compiled before"))
    units.start(new)
    units.stop(new.id)
