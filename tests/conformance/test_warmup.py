"""Warm up a unit on a real Spark: it writes no output, leaves no files, and reports faults."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.agent.units import Units
from headwater.agent.warmup import warm_up
from headwater.continuum.model import Continuum
from headwater.core.errors import UserCodeError
from headwater.dataflow.builder import DataflowBuilder
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.plan.spec import UnitSpec, spec_of
from headwater.spark.endpoint import LocalEndpoint
from tests.faults import until

CONTINUUM = Continuum.from_text("""
name: one
layers: [edge]
zones:
  E1: {layer: edge, locations: [L1], hosts: {e1: {n_cpu: 2, memory: 1GiB}}}
""")


@pytest.fixture
def units(endpoint: LocalEndpoint, tmp_path: Path) -> Units:
    return Units(Layout(tmp_path / "zone"), endpoint, UnitSettings(trigger="200 milliseconds"))


@pytest.fixture
def builder() -> DataflowBuilder:
    return hw.flow("tried", locations=["L1"])


def planned(builder: DataflowBuilder) -> UnitSpec:
    """Return the description of a dataflow's only unit."""
    plan = build(builder.build(), CONTINUUM)
    (unit,) = plan.units
    return spec_of(plan, unit.id)


def files(place: Path, count: int) -> str:
    """Write a file of rows; return its directory."""
    (place / "in").mkdir()
    (place / "in" / "rows.json").write_text("".join(json.dumps({"id": i}) + "\n" for i in range(count)))
    return str(place / "in")


def stored(place: Path) -> list[Path]:
    return [p for p in place.rglob("*") if p.is_file()] if place.exists() else []


def test_nothing_comes_out_and_nothing_stays(units: Units, builder: DataflowBuilder, tmp_path: Path) -> None:
    told = tmp_path / "told"

    def tell(table: Any, batch: int) -> None:
        told.write_text(f"{batch}")

    read = builder.read.json(files(tmp_path, 10), "id bigint")
    read.map_batches(_marking(tmp_path / "seen"), "id bigint").write.for_each_batch(tell)
    spec = planned(builder)
    assert not units.run_history.knows(spec.unit)
    warm_up(units, spec)
    assert (tmp_path / "seen").exists(), "the very plan is run"
    assert not told.exists()
    assert units.run_history.knows(spec.unit)
    assert stored(units.layout.root / "warm_ups") == []
    assert units.get(spec.unit.id) is None

    (tmp_path / "seen").unlink()
    warm_up(units, spec)  # its Spark knows it
    assert not (tmp_path / "seen").exists()


def _marking(mark: Path) -> Any:
    def same(batches: Any) -> Any:
        for batch in batches:
            mark.touch()
            yield batch

    return same


def test_one_that_is_asked_for_again_waits_for_the_first(
    units: Units, builder: DataflowBuilder, tmp_path: Path
) -> None:
    builder.read.json(files(tmp_path, 10), "id bigint").write.memory("out")
    spec = planned(builder)
    with ThreadPoolExecutor() as pool:
        for asked in [pool.submit(warm_up, units, spec) for _ in range(2)]:
            asked.result(60)
    assert units.run_history.knows(spec.unit) and stored(units.layout.root / "warm_ups") == []


def test_what_fails_on_the_first_rows_is_seen(units: Units, builder: DataflowBuilder, tmp_path: Path) -> None:
    def failing(batches: Any) -> Any:
        for batch in batches:
            yield batch if not batch.num_rows else 1 // 0

    builder.read.json(files(tmp_path, 3), "id bigint").map_batches(failing, "id bigint").write.memory("out")
    spec = planned(builder)
    with pytest.raises(UserCodeError, match="ZeroDivision"):
        warm_up(units, spec)
    assert not units.run_history.knows(spec.unit)
    assert stored(units.layout.root / "warm_ups") == []


def test_a_source_without_an_end_is_tried_too(units: Units, builder: DataflowBuilder) -> None:
    builder.read.rate(1000).where("value % 2 = 0").write.memory("out")
    spec = planned(builder)
    warm_up(units, spec)
    assert units.run_history.knows(spec.unit)


def test_no_broker_of_messages_is_asked(units: Units, builder: DataflowBuilder) -> None:
    asked = threading.Event()
    with socket.socket() as broker:
        broker.bind(("127.0.0.1", 0))
        broker.listen()
        broker.settimeout(30)
        address = f"127.0.0.1:{broker.getsockname()[1]}"

        def listen() -> None:
            try:
                broker.accept()
                asked.set()
            except OSError:
                pass

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        builder.read.mqtt(address, "a/{location}", "id bigint").where("id > 1").write.memory("out")
        spec = planned(builder)
        warm_up(units, spec)
        assert units.run_history.knows(spec.unit)
        assert not asked.is_set()
        broker.shutdown(socket.SHUT_RDWR)
    listener.join(30)


def test_where_batches_are_rare_one_batch_is_enough(
    endpoint: LocalEndpoint, builder: DataflowBuilder, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.json").write_text(json.dumps({"ts": "2026-01-01T00:00:00Z"}) + "\n")
    read = builder.read.json(str(tmp_path / "in"), "ts timestamp").with_watermark("ts", "1 second")
    counted = read.group_by(hw.window("ts", "10 seconds")).agg(n="count(*)").select("n")
    counted.map_batches(_marking(tmp_path / "closed"), "n bigint").write.memory("out")
    spec = planned(builder)
    for number, trigger in enumerate(("1 minute", "1 second")):
        units = Units(Layout(tmp_path / f"zone {number}"), endpoint, UnitSettings(trigger=trigger))
        warm_up(units, spec)
        assert units.run_history.knows(spec.unit)
        assert (tmp_path / "closed").exists() == (number == 1), "the second batch closes windows"
        assert stored(units.layout.root / "warm_ups") == []
        assert not endpoint.session().streams.active


def test_where_batches_are_rare_known_operators_are_not_tried_in_another_unit(
    endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    where = files(tmp_path, 10)

    def unit(*conditions: str) -> UnitSpec:
        builder = hw.flow("several", locations=["L1"])
        read = builder.read.json(where, "id bigint").map_batches(_marking(tmp_path / "seen"), "id bigint")
        for number, condition in enumerate(conditions):
            read.where(condition).write.json(str(tmp_path / f"out{number}"))
        return planned(builder)

    for trigger, again in (("1 minute", False), ("1 second", True)):
        units = Units(Layout(tmp_path / trigger), endpoint, UnitSettings(trigger=trigger))
        seen = []
        for spec in (unit("id > 1", "id > 2"), unit("id > 2"), unit("id > 2", "id > 3")):
            warm_up(units, spec)
            seen.append((tmp_path / "seen").exists())
            (tmp_path / "seen").unlink(missing_ok=True)
        assert seen == [True, again, True], trigger
    both, one = unit("id > 4", "id > 5"), unit("id > 5")
    units = Units(Layout(tmp_path / "running"), endpoint, UnitSettings(trigger="1 minute"))
    units.start(both)
    until(lambda: _has_done_a_batch(units, both))
    (tmp_path / "seen").unlink()
    warm_up(units, one)
    units.stop(both.id)
    assert not (tmp_path / "seen").exists(), "it runs these operators"


def _has_done_a_batch(units: Units, spec: UnitSpec) -> bool:
    running = units[spec.id].running
    assert running is not None
    running.observe()
    return running.last_batch >= 0
