"""``headwater plan --watch``: a new plan at each change, its differences, errors that do not end the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.files import changes
from tests.unit.terminal import Terminal

ROOT = Path(__file__).parents[2]
FLOW = """
import headwater as hw
from beside import ABOVE
f = hw.flow("tiny", locations=[{places}])
rows = f.read.csv("in/{{location}}", "id int, ts timestamp, v double", location_as="location")
low = rows.with_watermark("ts", "1 second").where(f"v > {{ABOVE}}").named("low").to_layer("site")
low.group_by(hw.window("ts", "1 minute"), "location").agg(m="avg(v)").named("high").write.memory("out")
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HEADWATER_STORE", raising=False)
    flow(tmp_path, "L1", "L4")
    (tmp_path / "beside.py").write_text("ABOVE = 1\n")
    (tmp_path / "zones.yaml").write_text((ROOT / "tests/unit/acme.yaml").read_text())
    return tmp_path


def flow(directory: Path, *places: str) -> None:
    """Write the dataflow as editors do: a new file replaces the old one."""
    (directory / "flow.new").write_text(FLOW.format(places=", ".join(map(repr, places))))
    os.replace(directory / "flow.new", directory / "flow.py")


ARGUMENTS = ["plan", "flow.py", "-c", "zones.yaml", "--watch"]


@contextmanager
def watching(directory: Path) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(
        [sys.executable, "-m", "headwater", *ARGUMENTS, "--json"],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    guard = threading.Timer(240, running.kill)
    guard.start()
    try:
        yield running
    finally:
        guard.cancel()
        running.kill()
        running.wait(20)
        for stream in (running.stdout, running.stderr):
            assert stream is not None
            stream.close()


def test_each_change_is_planned_and_compared(files: Path) -> None:
    with watching(files) as running:
        assert running.stdout is not None and running.stderr is not None

        def line() -> dict[str, Any]:
            assert running.stdout is not None
            found: dict[str, Any] = json.loads(running.stdout.readline())
            return found

        first = line()
        assert (first["dataflow"], first["changed"], first["differs"]) == ("tiny", [], None)
        assert len(first["units"]) == 4

        flow(files, "L1", "L4", "L5")
        second = line()
        assert second["changed"] == ["flow.py"] and len(second["units"]) == 5
        assert {u["unit"]: u["action"] for u in second["differs"]["units"]} == {
            "low@E5": "start",
            "out@S2": "update_inputs",
        }

        (files / "zones.yaml").write_text("name: [\n")
        wrong = line()
        assert wrong["changed"] == ["zones.yaml"] and "units" not in wrong
        assert wrong["error"][0]["exit_code"] == 3 and "zones.yaml" in wrong["error"][0]["where"]

        (files / "zones.yaml").write_text((ROOT / "tests/unit/acme.yaml").read_text())
        assert line()["differs"]["units"] == []  # compared with the last valid plan

        (files / "beside.py").write_text("ABOVE = 22\n")
        other = line()
        assert other["changed"] == ["beside.py"]
        assert {u["action"] for u in other["differs"]["units"]} == {"replace"}
        assert {u["unit"] for u in other["differs"]["units"]} == {"low@E1", "low@E4", "low@E5"}

        text = (files / "flow.py").read_text()
        (files / "flow.py").write_text(text.replace("avg(v)", "max(v)"))
        lost = line()
        assert lost["differs"] is None and len(lost["units"]) == 5
        assert "its state cannot be kept" in lost["cannot_follow"][0]["what"]

        (files / "flow.py").unlink()
        assert line()["error"][0]["what"] == "no such file"

        running.send_signal(signal.SIGINT)
        assert running.stdout.read() == ""
        assert running.wait(60) == 0 and running.stderr.read() == ""


def test_on_a_terminal_plan_difference_and_errors_are_shown(files: Path) -> None:
    with Terminal(ARGUMENTS, files, columns=150) as terminal:
        terminal.until(lambda text: "waiting for files to change" in text and "low@E4 on" in text)
        flow(files, "L1")
        since = len(terminal.text)
        text = terminal.until(
            lambda text: "Compared with the last plan" in text and "units change" in text, since=since
        )
        assert "flow.py changed" in text and "low@E1 on" in text
        assert "tiny: 2 units change, 2 stay as they are" in text
        flow(files, "L9")
        since = len(terminal.text)
        text = terminal.until(lambda text: "there are L1, L2" in text, since=since)
        assert "error: no zone covers location L9" in text
        flow(files, "L1")
        since = len(terminal.text)
        terminal.until(lambda text: "The same as the last plan" in text, since=since)
        terminal.type("\x03")  # the terminal turns it into a signal
        assert terminal.ended() == 0


def test_changes_are_given_once_and_none_is_missed(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1")
    stop = threading.Event()
    found = changes(lambda: sorted(tmp_path.iterdir()), stop, every=0.01)
    assert next(found) == ()
    two.write_text("2")  # while the caller was working
    assert next(found) == (two,)
    one.write_text("11")
    two.unlink()
    assert next(found) == (one, two)
    threading.Timer(0.1, stop.set).start()
    assert list(found) == []  # no more changes
