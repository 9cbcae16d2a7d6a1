"""The local broker of ``headwater broker``: it outlives the command, and the command ends no other process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headwater.channels.open import open_log
from headwater.cli import app
from headwater.core.errors import DeploymentError, Unavailable
from headwater.spark import brokerprocess
from tests.conftest import free_port

from .conftest import ids, table


def headwater(*words: str, code: int = 0, apart: bool = False) -> Any:
    """Run ``headwater broker``: here, or in a separate process."""
    command = ["broker", *words]
    if apart:
        done = subprocess.run(
            [sys.executable, "-m", "headwater", *command], capture_output=True, text=True, timeout=120
        )
        status, out, err = done.returncode, done.stdout, done.stderr
    else:
        result = CliRunner().invoke(app, command)
        status, out, err = result.exit_code, result.stdout, result.stderr
    assert status == code, err
    return json.loads(out) if out else err


@pytest.mark.usefixtures("broker")  # where there is none, there can be none
def test_a_broker_outlives_the_command_and_keeps_its_data(tmp_path: Path) -> None:
    where, port = ("--dir", str(tmp_path / "kafka"), "--json"), str(free_port())
    try:
        started = headwater("start", *where, "--port", port, apart=True)
        assert started["address"] == f"127.0.0.1:{port}"
        assert headwater("status", *where) == started
        spec = {"kind": "kafka", "servers": started["address"], "topic": "t", "staging": str(tmp_path / "s")}
        open_log(spec).append(table([1, 2]), epoch=1, batch=0)
        assert "a broker runs already" in headwater("start", *where, "--port", port, code=6)
        assert headwater("stop", *where) == started
        assert headwater("status", *where)["pid"] is None
        assert headwater("stop", *where)["pid"] is None
        brokerprocess.start(tmp_path / "kafka", port=int(port))
        assert ids(open_log(spec)) == [1, 2]
    finally:
        brokerprocess.stop(tmp_path / "kafka")


def test_a_process_that_is_no_broker_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text(json.dumps({"pid": os.getpid(), "port": 1}))
    assert brokerprocess.status(tmp_path) is None
    assert brokerprocess.stop(tmp_path) is None
    assert brokerprocess.stop(tmp_path / "nowhere") is None


def test_a_port_that_is_taken_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = socket.create_server(("127.0.0.1", 0))
    with other, pytest.raises(Unavailable, match=r"port \d+ is taken"):
        brokerprocess.start(tmp_path, port=other.getsockname()[1])
    found = brokerprocess.BrokerProcess(tmp_path, os.getpid(), 1)
    monkeypatch.setattr(brokerprocess, "status", lambda _: found)
    with pytest.raises(DeploymentError, match="runs already"):
        brokerprocess.start(tmp_path, port=1)
