"""Progress bars of long work: only on a terminal's standard error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.app import loading, simulation
from headwater.app.client import Client, PlanRequest
from headwater.cli.app import Screen
from headwater.cli.bars import Bar
from headwater.continuum.model import Continuum
from headwater.control import tables
from headwater.control.tables import STORE
from headwater.core.metrics import Progress, UnitProgress
from headwater.plan.place import PlacementRequest
from headwater.testing.nodes import SimulatedNodes
from tests.unit.terminal import Terminal
from tests.unit.test_cli_control import controller

ROOT = Path(__file__).parents[2]
CONTINUUM = str(ROOT / "tests/unit/acme.yaml")
FLOW = """
import headwater as hw
f = hw.flow("tiny", locations=["L1", "L4"])
rows = f.read.csv("in/{location}", "id int, ts timestamp, v double", location_as="location").named("rows")
low = rows.with_watermark("ts", "1 second").where("v > 1").named("low").to_layer("site")
low.group_by(hw.window("ts", "1 minute"), "location").agg(m="avg(v)").named("high").write.memory("out")
"""
STEPS = 6


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    monkeypatch.delenv(STORE, raising=False)
    (tmp_path / "flow.py").write_text(FLOW)
    rates = [f"{step},rows,L1,{100 + step}" for step in range(STEPS)]
    (tmp_path / "rates.csv").write_text("\n".join(["time,source,location,rate", *rates]) + "\n")
    return ["flow.py", "-c", CONTINUUM]


def piped(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "headwater", *arguments], capture_output=True, text=True, timeout=120)


def test_a_bar_is_on_the_terminal_and_never_in_the_result(files: list[str], tmp_path: Path) -> None:
    simulate = ["simulate", *files, "--trace", "rates.csv", "--strategy", "fog_only,annotated", "--json"]
    plain = piped(*simulate)
    assert plain.returncode == 0 and plain.stderr == ""
    with (tmp_path / "out").open("wb") as out, Terminal(simulate, tmp_path, stdout=out.fileno()) as terminal:
        assert terminal.ended() == 0
        assert "simulating" in terminal.text and "━" in terminal.text
        assert "\x1b[2K" in terminal.raw.decode()  # the bar disappears when the work ends
    shown = (tmp_path / "out").read_text()
    assert set(json.loads(shown)["strategies"]) == set(json.loads(plain.stdout)["strategies"])


def test_a_change_is_followed_with_a_bar(files: list[str], tmp_path: Path) -> None:
    with controller(SimulatedNodes()):
        with Terminal(["apply", *files, "--yes", "--wait"], tmp_path) as terminal:
            assert terminal.ended() == 0, terminal.text
        assert "tiny: version 1 is wanted" in terminal.text and "━" in terminal.text
        assert "version 1: done" in terminal.text
        with (tmp_path / "out").open("wb") as out:
            stop = ["stop", "tiny", "--wait", "--json"]
            with Terminal(stop, tmp_path, stdout=out.fileno()) as terminal:
                assert terminal.ended() == 0, terminal.text
        assert json.loads((tmp_path / "out").read_text()) == {"name": "tiny", "version": 2, "goal": "stop"}


def test_nothing_is_drawn_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with Bar("working", total=3) as bar:
        bar.at(1)
        bar.say("one is done")
        bar.at(3, what="still working")
    assert capfd.readouterr() == ("", "one is done\n")
    with Screen("acme", as_json=False, quiet=True) as screen:
        screen.wait("starting Spark")
        unit = UnitProgress(unit="a@E1", zone="E1", layer="edge", status="running")
        screen.show(Progress(seconds=1.0, units=(unit,)))
        screen.say("half of it is done")
    assert capfd.readouterr() == ("", "")


def test_long_work_tells_how_far_it_is(files: list[str]) -> None:
    dataflow, zones = loading.load_dataflow("flow.py").dataflow, Continuum.from_yaml(CONTINUUM)
    seen: list[tuple[str, int, int]] = []

    def observe(what: str, done: int, of: int) -> None:
        seen.append((what, done, of))

    desired_states = [PlacementRequest(strategy="fog_only"), PlacementRequest(strategy="annotated")]
    simulation.simulate(dataflow, zones, "rates.csv", desired_states, observe=observe)
    assert [s[0] for s in seen] == ["fog_only"] * STEPS + ["annotated"] * STEPS
    assert [s[1:] for s in seen] == [(n, 2 * STEPS) for n in range(2 * STEPS)]
    seen.clear()
    asked = PlanRequest(dataflow=dataflow, continuum=zones, strategy="annotated", compare=True)
    found = Client().propose(asked, observe=observe).others
    assert [s[0] for s in seen] == list(found) and [s[1:] for s in seen] == [(n, len(found)) for n in range(len(found))]
