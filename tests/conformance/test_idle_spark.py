"""The Spark of a node without units ends, and starts again for the next unit, which goes on where it stopped."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.agent.agent import Agent
from headwater.agent.agents import AgentClient
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.plan.port import Stamp
from headwater.plan.spec import spec_of
from headwater.spark.sparks import Sparks
from tests.conformance.test_warmup import CONTINUUM
from tests.patience import PATIENCE


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    sparks, settings = Sparks(tmp_path / "spark", quick=True), UnitSettings(trigger="200 milliseconds")
    started = Agent("E1", tmp_path / "agent", sparks, settings, idle=0.5)
    started.begin()
    yield started
    started.end(units=True)


@pytest.mark.long
def test_a_spark_without_units_ends_and_starts_again(agent: Agent, tmp_path: Path) -> None:
    builder = hw.flow("f", locations=["L1"])
    builder.read.json(str(tmp_path / "in"), "id bigint").named("rows").write.memory("out")
    plan = build(builder.build(), CONTINUUM)
    spec, numbers = spec_of(plan, plan.units[0].id), itertools.count()
    actions = agent.actions()

    def ask(call: str, body: Any, seconds: float) -> Any:
        return json.loads(json.dumps(actions[call](json.loads(json.dumps(body)))))

    node = AgentClient("E1", ask, lambda: Stamp(store="s", term=1, number=next(numbers)))

    def read(rows: int) -> Callable[[], bool]:
        return lambda: node.progress("f").units[0].rows_in == rows

    def spark() -> bool:
        known = agent._sparks.known()
        return known is not None and known[1].alive

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"id": 1}\n{"id": 2}\n')
    node.prepare(spec)
    node.start(spec)
    until(read(2))
    first = agent._sparks.known()
    assert first is not None
    process = first[1].generation
    node.stop(spec)
    until(lambda: not spark())
    assert node.progress("f").units[0].status == "stopped"  # a look does not start it
    (tmp_path / "in" / "2.json").write_text('{"id": 3}\n')
    node.start(spec)
    until(read(3))
    assert spark() and first[1].generation != process
    (unit,) = node.progress("f").units
    assert (unit.status, unit.rows_out, unit.error) == ("running", 3, None)


def until(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
