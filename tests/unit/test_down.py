"""`headwater down` with real processes of `headwater up`, agents without units, and a Spark whose agent was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater.agent import agents, starters
from headwater.agent.agents import AgentClient, Agents
from headwater.app import deployments
from headwater.core.errors import RuntimeFailure
from headwater.disk.durable import write_atomically
from headwater.plan.port import Stamp

ROOT = Path(__file__).parents[2]
CONTINUUM = """
name: two
layers: [edge, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 1}}}
  E1: {layer: edge, parent: C1, locations: [L1], hosts: {e1: {n_cpu: 1}}}
"""


@contextmanager
def up(place: Path) -> Iterator[subprocess.Popen[str]]:
    """Run `headwater up` with its agents until it acts on the store."""
    (place / "zones.yaml").write_text(CONTINUUM)
    command = [sys.executable, "-m", "headwater", "up", "-c", "zones.yaml", "--listen", "none"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        while "acting on" not in (line := process.stderr.readline()):
            assert line, "it ended"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        deployments.down(place / ".headwater")


def test_all_of_it_ends_and_is_not_started_again(tmp_path: Path) -> None:
    home = tmp_path / ".headwater"
    with up(tmp_path) as controller:
        found = dict(_agents(home))
        assert set(found) == {"C1", "E1"}
        assert deployments.down(home) == ["C1", "E1"]
        assert controller.wait(30) == 0  # before the agents: nobody is left who would start them again
        assert not dict(_agents(home)) and deployments.down(home) == []


@pytest.mark.long
def test_it_says_why_not_all_of_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / ".headwater"
    monkeypatch.setattr(agents, "STOP_SECONDS", 0.2)
    with up(tmp_path) as controller:
        controller.send_signal(signal.SIGSTOP)
        with pytest.raises(RuntimeFailure, match=rf"`headwater up` \(process {controller.pid}\) does not end"):
            deployments.down(home)
        assert set(dict(_agents(home))) == {"C1", "E1"}
        controller.kill()
        controller.wait()
        monkeypatch.undo()  # its lock went with it
        (name, agent), _ = sorted(_agents(home))
        os.kill(agent, signal.SIGSTOP)
        monkeypatch.setattr(agents, "STOP_SECONDS", 0.2)
        with pytest.raises(RuntimeFailure, match=rf"the agent of {name} \(process {agent}\) does not end"):
            deployments.down(home)
        os.kill(agent, signal.SIGCONT)
        monkeypatch.undo()


def test_the_spark_of_a_killed_agent_ends(tmp_path: Path) -> None:
    spark = tmp_path / "zones/E1/spark/e1"
    spark.mkdir(parents=True)
    stands_for = [sys.executable, "-c", "import time; time.sleep(600)", f"-Dheadwater.endpoint={spark}"]
    process = subprocess.Popen(stands_for, start_new_session=True)
    record = {"pid": process.pid, "port": 1, "token": "t", "session": "s", "cores": 1, "start": {}}
    write_atomically(spark / "server.json", json.dumps(record))
    try:
        assert deployments.down(tmp_path) == ["E1"]
        assert process.wait(30) == -signal.SIGTERM and not (spark / "server.json").exists()
    finally:
        process.kill()
        process.wait()


def test_a_process_that_starts_agents_is_known_while_it_does(tmp_path: Path) -> None:
    with starters.starting(tmp_path):
        (file,) = (tmp_path / "starters").iterdir()
        assert starters._holds(file)
        starters.end_starters(tmp_path, 0.0)  # itself it does not end
    assert not list((tmp_path / "starters").iterdir())


def test_an_agent_is_told_where_the_agents_are_that_it_reads_from() -> None:
    met: list[object] = []
    answer = {"progress": {}, "units": {}, "reads": [["E1", "f/a@E1"]]}
    client = AgentClient("C1", lambda *asked: answer, lambda: Stamp(store="s", term=1, number=1), meet=met.append)
    client.report()
    assert met == [[("E1", "f/a@E1")]]


def _agents(home: Path) -> list[tuple[str, int]]:
    return [(name, process) for name, process, _ in Agents(home)._running()]
