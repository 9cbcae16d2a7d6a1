"""JSON from every command: one document, or one line at a time from a command that keeps running."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import headwater
from headwater.app import stores
from headwater.cli.app import app
from headwater.control import tables
from headwater.control.tables import STORE, NoStore
from headwater.testing.nodes import SimulatedNodes
from tests.unit.test_cli_control import controller, tiny

WITHOUT_JSON: dict[str, str] = {}
"""Commands without --json, with the reason; there are none now."""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    monkeypatch.delenv(STORE, raising=False)
    return tmp_path


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command that keeps running; always end it."""
    command = [sys.executable, "-m", "headwater", *arguments]
    found = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    guard = threading.Timer(120, found.kill)
    guard.start()
    try:
        yield found
    finally:
        guard.cancel()
        found.kill()
        found.communicate()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def commands(group: Any, *names: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *names, name)
        else:
            yield " ".join((*names, name)), command


def test_every_command_has_json() -> None:
    root = typer.main.get_command(app)
    found = dict(commands(root))
    assert len(found) > 25 and set(WITHOUT_JSON) <= set(found)
    for name, command in found.items():
        flags = [p for p in command.params if "--json" in p.opts and getattr(p, "is_flag", False)]
        assert bool(flags) is (name not in WITHOUT_JSON), f"{name}: {WITHOUT_JSON.get(name, 'has no --json')}"


def test_version_and_down_as_json() -> None:
    assert json.loads(CliRunner().invoke(app, ["version", "--json"]).stdout) == {"version": headwater.__version__}
    result = CliRunner().invoke(app, ["down", "--json"])
    assert (json.loads(result.stdout), result.stderr) == ({"ended": []}, "")


def test_stop_as_json() -> None:
    with controller(SimulatedNodes()):
        assert CliRunner().invoke(app, ["apply", *tiny(), "--yes", "--wait"]).exit_code == 0
        result = CliRunner().invoke(app, ["stop", "tiny", "--forget", "--json"])
        assert result.exit_code == 2 and "--yes" in result.stderr
        result = CliRunner().invoke(app, ["stop", "tiny", "--forget", "--yes", "--json"])
        assert json.loads(result.stdout) == {"name": "tiny", "version": 2, "goal": "forget"}
    assert result.stderr == ""


def test_status_as_a_line_for_each_look() -> None:
    assert CliRunner().invoke(app, ["apply", *tiny(), "--yes"]).exit_code == 0
    with running("status", "--watch", "--json") as watched:
        assert watched.stdout is not None
        looks = [json.loads(watched.stdout.readline()) for _ in range(2)]
        watched.send_signal(signal.SIGINT)
        _, said = watched.communicate(timeout=60)
    assert [[s["name"] for s in look] for look in looks] == [["tiny"], ["tiny"]]
    assert (watched.returncode, said) == (0, "")


def test_up_says_what_it_says_as_json() -> None:
    def led() -> bool:
        try:
            with stores.existing(None) as store:
                return store.lease() is not None
        except NoStore:
            return False

    with running("up", "--json") as up:
        until(led)
        up.send_signal(signal.SIGINT)
        out, said = up.communicate(timeout=60)
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[-1]["text"] == "stopped; all units keep running" and lines[-1]["at"] > 0
    assert (up.returncode, said) == (0, "")


def test_what_a_flow_file_prints_is_not_among_the_results(place: Path) -> None:
    arguments = tiny()
    text = (place / "flow.py").read_text()
    noisy = "import os, sys\nprint('a banner')\nos.system('echo a program')\nsys.__stdout__.write('a library\\n')\n"
    (place / "flow.py").write_text(noisy + text)
    command = [sys.executable, "-m", "headwater", "plan", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout)["dataflow"]
    assert {"a banner", "a program", "a library"} <= set(done.stderr.splitlines())
