"""Zones that stand still, have no file descriptors, or are heard in one direction only: replicas stay exact.

The log server is a process of its own; the link to it fails in one direction, in both, or forgets its connections.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.agent.agents import Agents
from headwater.channels import relay
from headwater.channels.filelog import FileLog
from headwater.channels.flight import FlightLog
from headwater.channels.logserver import LogServer
from headwater.channels.relay import Relay
from headwater.channels.wire import PROTOCOL, Action, Credentials, Wire
from headwater.continuum.model import Continuum, Node
from headwater.control.stamps import Stamps
from headwater.core.errors import HeadwaterError, Unavailable
from headwater.testing import CutLink
from headwater.testing.link import Direction
from tests.conformance.conftest import ids, table
from tests.conftest import SITE, SITE_TEXT, ZONE
from tests.faults import no_descriptors, standing_still, until
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]


class Zone:
    """A zone's log server in a process of its own, its log, the link to it, and the replica at the other end."""

    def __init__(self, home: Path) -> None:
        command = [sys.executable, "-m", "tests.conformance.log_server", str(home), "2"]
        self.log = FileLog(home / "log", event_time="ts", fsync=False)
        self.log.create()
        self.log.register("relay@up")
        self.replica = FileLog(home / "replica", fsync=False)
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.link = CutLink()
        self.link.lead_to(f"127.0.0.1:{self.port}")
        self.wire = Wire(self.link.address, Credentials(ZONE.order_token), "E1")
        self._written = 0

    def write(self, rows: int = 3) -> None:
        self.log.append(table(range(self._written, self._written + rows)), epoch=1, batch=self._written)
        self._written += rows

    @contextlib.contextmanager
    def relayed(self) -> Iterator[Relay]:
        connect = lambda: FlightLog(Wire(self.link.address, Credentials(ZONE.order_token), "E1"), "log")  # noqa: E731
        pulling = Relay(connect, "log", self.replica, reader="relay@up")
        pulling.start()
        try:
            yield pulling
        finally:
            pulling.stop()

    def arrived(self) -> bool:
        return self.replica.latest() == self.log.latest()

    def check(self) -> None:
        assert ids(self.replica) == list(range(self._written))

    def end(self) -> None:
        self.link.close()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def zone(tmp_path: Path) -> Iterator[Zone]:
    made = Zone(tmp_path)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the times after which a silent side counts as away; the order of events stays the same."""
    monkeypatch.setattr(relay, "_SILENCE", 2.5)
    monkeypatch.setattr(Wire.ask, "__kwdefaults__", {"seconds": 2.0})


def test_a_log_server_that_stands_still_is_away_and_then_goes_on(zone: Zone) -> None:
    zone.write()
    with zone.relayed() as pulling:
        until(zone.arrived)
        with standing_still(zone.process.pid):
            zone.write()
            until(lambda: not pulling.state.up)
            with pytest.raises(Unavailable, match="no answer from E1"):
                FlightLog(zone.wire, "log").latest()
            zone.write()
        until(zone.arrived)
        until(lambda: pulling.state.up)
    zone.check()


@pytest.mark.parametrize("direction", ["answers", pytest.param("requests", marks=pytest.mark.long)])
def test_a_link_that_drops_one_direction(zone: Zone, direction: Direction) -> None:
    zone.write()
    with zone.relayed() as pulling:
        until(zone.arrived)
        zone.link.cut(direction)
        zone.write()
        until(lambda: not pulling.state.up)
        zone.write()
        zone.link.mend()
        until(zone.arrived)
        until(lambda: zone.log.stats().unread["relay@up"].entries == 0)  # acknowledged
    zone.check()


def test_a_connection_that_a_firewall_forgot_is_replaced(zone: Zone) -> None:
    """The system ends such a connection only after a quarter of an hour."""
    zone.write()
    with zone.relayed():
        until(zone.arrived)
        asked = FlightLog(zone.wire, "log")
        assert asked.latest() == 1
        zone.link.cut()
        zone.write()
        zone.link.mend(reset=False)
        with pytest.raises(Unavailable):
            asked.latest()
        assert asked.latest() == 2
        until(zone.arrived)
    zone.check()


def test_a_zone_that_accepts_and_never_answers_delays_no_other(zone: Zone, tmp_path: Path) -> None:
    other = Zone(tmp_path / "other")
    silent = socket.create_server(("127.0.0.1", 0))
    try:
        zone.write()
        zone.link.lead_to(f"127.0.0.1:{silent.getsockname()[1]}")
        with zone.relayed() as stuck, other.relayed():
            for _ in range(3):
                other.write()
                until(other.arrived)
            assert not stuck.state.up and zone.replica.latest() == 0
            zone.link.lead_to(f"127.0.0.1:{zone.port}")
            until(zone.arrived)
        zone.check()
        other.check()
    finally:
        silent.close()
        other.end()


def test_a_delayed_link_is_measured(zone: Zone) -> None:
    zone.link.delay = 0.15
    with zone.relayed() as pulling:
        for _ in range(5):
            zone.write()
        until(zone.arrived)
        until(lambda: pulling.meter.delay_s is not None)
        assert pulling.meter.delay_s is not None and pulling.meter.delay_s >= 0.15
    zone.check()


def test_a_log_server_without_descriptors_refuses_and_goes_on(zone: Zone) -> None:
    zone.write()
    with zone.relayed():
        until(zone.arrived)
        asked = FlightLog(zone.wire, "log")
        assert asked.latest() == 1
        with no_descriptors(zone.process.pid):
            zone.write()
            with pytest.raises(Unavailable, match="no file descriptor left") as refused:
                asked.register("another")
            assert "LimitNOFILE" in str(refused.value.hint)
            with pytest.raises(HeadwaterError):  # a new connection is not accepted
                FlightLog(Wire(zone.link.address, Credentials(ZONE.order_token), "E1"), "log").latest()
        assert asked.register("another") >= 0
        assert FlightLog(Wire(zone.link.address, Credentials(ZONE.order_token), "E1"), "log").latest() == 2
        until(zone.arrived)
    zone.check()


def test_connections_that_use_up_the_descriptors_lose_nothing(zone: Zone) -> None:
    """Anybody who reaches the port can open connections; the token is asked for only later."""
    import resource

    hard = resource.prlimit(zone.process.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(zone.process.pid, resource.RLIMIT_NOFILE, (128, hard))
    with contextlib.ExitStack() as many, zone.relayed():
        zone.write()
        until(zone.arrived)
        for _ in range(200):
            many.enter_context(socket.create_connection(("127.0.0.1", zone.port), 10))
        zone.write()
        time.sleep(0.2)
        many.close()
        zone.write()
        until(zone.arrived)
    zone.check()


def test_a_relay_without_descriptors_goes_on(zone: Zone) -> None:
    zone.write()
    with zone.relayed() as pulling:
        until(zone.arrived)
        server = FlightLog(zone.wire, "log")
        assert server.latest() == 1
        with no_descriptors():
            assert server.append(table([99]), epoch=1, batch=99)
            until(lambda: pulling.state.error is not None and not pulling.state.up)
        until(zone.arrived)
    assert ids(zone.replica) == [0, 1, 2, 99]


def test_an_agent_that_hangs_delays_no_request_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is to be told another agent's new address; whoever asks for that agent does not wait for it."""
    monkeypatch.setenv("HEADWATER_TOKEN", SITE_TEXT)
    monkeypatch.setattr(Wire.ask, "__kwdefaults__", {"seconds": 10 * PATIENCE})
    told: list[dict[str, str]] = []
    report = {"progress": {}, "units": {}, "reads": [("E1", "f/a@E1")]}

    def agent(name: str) -> LogServer:
        actions: dict[str, Action] = {
            "hello": lambda body: {"protocol": PROTOCOL, "node": name},
            "peers": lambda body: told.append(body["peers"]),
            "report": lambda body: report,
        }
        return LogServer(
            "127.0.0.1:0", credential=SITE.of(name), find=lambda log: FileLog(tmp_path / log), actions=actions
        )

    cloud, before, after = agent("C1"), agent("E1"), agent("E1")
    link, agents = CutLink(), Agents(tmp_path)
    link.lead_to(f"127.0.0.1:{cloud.port}")
    try:
        hangs = agents.open(_node("C1", link.address), Stamps("test", 1))
        agents.open(_node("E1", f"127.0.0.1:{before.port}"))
        hangs.report()
        assert told == [{"E1": f"127.0.0.1:{before.port}"}]
        link.cut()
        asking = threading.Thread(target=agents.open, args=(_node("E1", f"127.0.0.1:{after.port}"),), daemon=True)
        asking.start()
        until(lambda: not asking.is_alive())
        link.mend()

        def is_told() -> bool:
            with contextlib.suppress(Unavailable):  # the link has reset its connection
                hangs.report()
            return told[-1] == {"E1": f"127.0.0.1:{after.port}"}

        until(is_told)
    finally:
        link.close()
        for server in (cloud, before, after):
            server.shutdown()


def _node(name: str, at: str) -> Node:
    text = f"name: one\nlayers: [edge]\nzones: {{{name}: {{layer: edge, locations: [L1], at: '{at}'}}}}"
    return Continuum.from_text(text).node(name)
