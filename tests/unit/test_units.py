"""Logs that an agent's units open."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import headwater as hw
from headwater.agent.units import Units
from headwater.channels.filelog import FileLog
from headwater.channels.kafkalog import KafkaLog
from headwater.continuum.model import Continuum
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.plan.spec import spec_of
from headwater.query.query import Running

CONTINUUM = """
name: c
layers: [edge, cloud]
zones:
  C1: {{layer: cloud{cloud}}}
  E1: {{layer: edge, parent: C1, locations: [L1]{edge}}}
"""
BROKER = ", broker: '127.0.0.1:9'"


def test_a_writer_opens_the_topic_that_its_reader_reads(tmp_path: Path) -> None:
    endpoint: Any = SimpleNamespace(generation="1")
    builder = hw.flow("f", locations=["L1"])
    rows = builder.read.json(f"{tmp_path}/in/{{location}}", "k string")
    rows.to_layer("cloud").where("k IS NOT NULL").write.memory("out")
    found = {}
    for case, brokers in {"none": ("", ""), "cloud": (BROKER, ""), "edge": ("", BROKER)}.items():
        plan = build(builder.build(), Continuum.from_text(CONTINUUM.format(cloud=brokers[0], edge=brokers[1])))
        (channel,) = plan.channels
        logs = [
            Units(Layout(tmp_path / case / name), endpoint, UnitSettings()).channels.log(spec_of(plan, name), channel)
            for name in (channel.producer, *channel.consumers)
        ]
        found[case] = [log.topic if isinstance(log, KafkaLog) else type(log) for log in logs]
    assert found["none"] == [FileLog, FileLog], "the original, and a replica"
    writer, reader = found["cloud"]
    assert writer == reader and isinstance(writer, str), "one topic"
    assert isinstance(found["edge"][0], str) and found["edge"][1] is FileLog, "a topic, and a replica"


def test_totals_are_written_again_only_when_they_have_changed(tmp_path: Path) -> None:
    endpoint: Any = SimpleNamespace(generation="1")
    builder = hw.flow("f", locations=["L1"])
    builder.read.json(f"{tmp_path}/in/{{location}}", "k string").write.memory("out")
    plan = build(builder.build(), Continuum.from_text(CONTINUUM.format(cloud="", edge="")))
    units = Units(Layout(tmp_path / "node"), endpoint, UnitSettings())
    work = units.enter(spec_of(plan, plan.units[0].id))
    work.running = Running(None)  # type: ignore[arg-type]
    file = units.layout.state(work.unit)

    def saved() -> int:
        """Save the totals; return the file's identity, which a write changes."""
        units.save()
        return file.stat().st_ino

    first = saved()
    assert saved() == first
    work.running.done += 1
    second = saved()
    assert second != first and saved() == second
    assert json.loads(file.read_text())["done"] == 1
