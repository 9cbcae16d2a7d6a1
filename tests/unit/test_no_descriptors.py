"""Processes without a free file descriptor: requests are refused, nothing counts as missing, and all goes on later."""

from __future__ import annotations

import json
import os
import resource
import threading
from pathlib import Path

import pytest

from headwater.agent.agents import Agents, running_agent
from headwater.channels.filelog import FileLog
from headwater.continuum.model import Continuum
from headwater.control import tables
from headwater.control.controller import Controller
from headwater.control.store import Store
from headwater.core.errors import HeadwaterError, Unavailable
from headwater.disk.durable import read_note
from headwater.disk.openfiles import ENOUGH
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing.nodes import SimulatedNodes
from tests.faults import no_descriptors, until
from tests.unit.changes import FIRST

CONTINUUM = Continuum.from_text("""
name: two
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [L1]}
""")


def test_a_note_is_not_taken_for_missing(tmp_path: Path) -> None:
    (tmp_path / "note.json").write_text('{"finished": true}')
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        read_note(tmp_path / "note.json")
    assert read_note(tmp_path / "note.json") == {"finished": True}
    assert read_note(tmp_path / "missing.json") == {}


def test_a_running_spark_is_not_taken_for_ended(tmp_path: Path) -> None:
    record = {"pid": os.getpid(), "port": 1, "token": "t", "session": "s", "cores": 1, "start": {}}
    (tmp_path / "server.json").write_text(json.dumps(record))
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        LocalEndpoint.attach(tmp_path)


def test_an_agent_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    agents = Agents(tmp_path)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # other tests leave Sparks and clients open
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(highest + 64, hard), hard))
    try:
        assert agents.open(CONTINUUM.node("E1")).hello()["node"] == "E1"
        (process, _) = _agent(tmp_path)
        most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
        assert resource.prlimit(process, resource.RLIMIT_NOFILE) == (most, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        agents.end()


def test_a_client_without_descriptors_leaves_a_running_agent_alone(tmp_path: Path) -> None:
    """It must not take the agent for ended: a second one cannot start, and the first one would be lost."""
    agents, node = Agents(tmp_path), CONTINUUM.node("E1")
    try:
        assert agents.open(node).hello()["node"] == "E1"
        (process, found) = _agent(tmp_path)
        with no_descriptors(), pytest.raises(Unavailable, match="cannot find out whether its agent runs"):
            agents.open(node)
        assert (process, found) == _agent(tmp_path)
        assert agents.open(node).hello()["node"] == "E1"
    finally:
        agents.end()


def test_an_agent_without_descriptors_refuses_and_goes_on(tmp_path: Path) -> None:
    agents, node = Agents(tmp_path), CONTINUUM.node("E1")
    FileLog(tmp_path / "zones/E1/deployments/flow/channels/channel").create()
    try:
        client = agents.open(node)
        process, _ = _agent(tmp_path)
        with no_descriptors(process):
            with pytest.raises(Unavailable, match="no file descriptor left") as refused:
                agents.channel(node, "flow", "channel").latest()
            assert "LimitNOFILE" in str(refused.value.hint)
            with pytest.raises(HeadwaterError):
                Agents(tmp_path).open(node)  # a new connection
        assert client.hello()["node"] == "E1"
        assert Agents(tmp_path).open(node).hello()["node"] == "E1"
        assert _agent(tmp_path)[0] == process
    finally:
        agents.end()


def _agent(home: Path) -> tuple[int, str]:
    record = running_agent(home / "zones" / "E1")
    assert record is not None
    return int(record["pid"]), str(record["address"])


def test_a_controller_without_descriptors_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SYNCHRONOUS", "OFF")
    store, zones, stop = Store(tmp_path / "store.db"), SimulatedNodes(), threading.Event()
    said: list[str] = []
    errors: list[BaseException] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: errors.append(args.exc_value))
    running = threading.Thread(target=Controller(store, zones.open, lease=60, poll=0.05).run, args=(stop,))
    running.start()
    try:
        until(lambda: store.lease() is not None)
        with no_descriptors():
            until(lambda: _refused(store, said))
        version = store.want("f", "run", FIRST.plan())
        until(lambda: store.deployment("f").observed_version >= version)
        until(lambda: store.reports("f"))
    finally:
        stop.set()
        running.join(30)
        store.close()
    assert errors == [] and "the store cannot be used" in said[0]


def _refused(store: Store, said: list[str]) -> bool:
    other = Store.__new__(Store)
    try:
        other.__init__(store._url.database or "")  # type: ignore[misc]
    except Unavailable as error:
        said.append(error.what)
        return True
    other.close()
    return False
