"""Log messages as lines of JSON: the form, and the messages of an agent and a controller."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headwater.core.logs import JsonFormatter
from headwater.plan.spec import spec_of
from tests.conftest import SITE_TEXT
from tests.patience import PATIENCE
from tests.unit.changes import FIRST

ROOT = Path(__file__).parents[2]


def line(*arguments: Any, error: bool = False, **extra: object) -> dict[str, Any]:
    record = logging.LogRecord("headwater.agent", logging.WARNING, "", 1, arguments[0], arguments[1:], None)
    if error:
        try:
            raise ValueError("two\nlines")
        except ValueError:
            record.exc_info = sys.exc_info()
    vars(record).update(extra)
    text = JsonFormatter(zone="E1").format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_message_is_one_line_with_what_it_is_about() -> None:
    plan = FIRST.plan()
    spec = spec_of(plan, plan.units[0].id)
    found = line("unit %s failed: %s", spec.id, 'cause\n  -> "hint" ü', extra_field=1, **spec.named)
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "level": "warning",
        "message": f'unit {spec.id} failed: cause\n  -> "hint" ü',
        "logger": "headwater.agent",
        "zone": "E1",
        "deployment": plan.dataflow.name,
        "unit": spec.id,
        "epoch": spec.unit.epoch,
    }
    assert "ValueError: two\nlines" in line("deployment f", error=True)["exception"]
    assert "exception" not in line("x") and "unit" not in line("x")


def test_messages_about_units_and_deployments_name_them() -> None:
    """Each such message of agents and controllers has its fields, not only its text."""
    seen = 0
    for file in sorted((ROOT / "headwater").glob("agent/*.py")) + sorted((ROOT / "headwater").glob("control/*.py")):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("_LOG."):
                text = ast.unparse(call.args[0])
                if re.match(r"'(unit|deployment) %s", text):
                    seen += 1
                    assert any(k.arg == "extra" for k in call.keywords), f"{file.name}:{call.lineno}: {text}"
    assert seen >= 4


@pytest.mark.parametrize(
    ("command", "begin", "end"),
    [
        (("zone", "E1", "--dir", "E1", "--listen", "127.0.0.1:0", "--stand-in"), "E1 listens at", "ending with"),
        (("up", "--listen", "none"), "acting on", "stopped; all units keep running"),
    ],
)
def test_a_service_writes_lines_of_json(command: tuple[str, ...], begin: str, end: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HEADWATER_TOKEN": SITE_TEXT, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "headwater", *command, "--log-format", "json"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        lines: list[str] = []
        try:
            assert process.stderr is not None
            for text in process.stderr:
                lines.append(text)
                if begin in text:
                    break
            process.send_signal(signal.SIGTERM)
            out, rest = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    told = [json.loads(text) for text in [*lines, *rest.splitlines()]]
    assert process.returncode == 0 and out == ""
    assert any(end in one["message"] for one in told)
    zones = {one.get("zone") for one in told}
    assert zones == ({"E1"} if command[0] == "zone" else {None})
    assert SITE_TEXT not in json.dumps(told)
