"""Clients of nodes' agents, and agents on this machine: start them, find them again, end them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headwater import __version__
from headwater.agent.starters import end_starters
from headwater.channels.credential import TOKEN_ENV, TOKEN_FILE_ENV, Grant, SiteSecret, has_token
from headwater.channels.flight import FlightLog
from headwater.channels.relay import relay_reader
from headwater.channels.wire import CA_ENV, OWN_VERSION, Credentials, Wire, ca_file, check_protocol
from headwater.connectors.replaying import ReplayRequest
from headwater.continuum.model import Node
from headwater.core.address import Address
from headwater.core.compatible import known
from headwater.core.errors import DeploymentError, HeadwaterError, RuntimeFailure, SpecUnknown, Unavailable
from headwater.core.jsonform import dump, load
from headwater.core.metrics import Progress
from headwater.disk.durable import make_directory, write_atomically, write_first
from headwater.disk.layout import sink_name
from headwater.plan.model import DeploymentPlan
from headwater.plan.port import NodeReport, Replayed, TakeStamp
from headwater.plan.spec import UnitSpec
from headwater.plan.steps import FormerOutputChoice
from headwater.plan.transfer import StateTransfer

STATE_ENV = "HEADWATER_STATE_STORE"
LONG_SECONDS = 300.0
"""Seconds for requests that may have to start a Spark first."""
REPORT_SECONDS = 10.0
"""Seconds for a request of a node's progress."""

STARTING = "starting.pid"
"""File with the process of the agent last started in a directory, until it writes its own record."""
START_SECONDS = 30.0
STOP_SECONDS = 60.0

SETTINGS = "spark.conf"
"""File of settings for the Sparks of the agents that are started here; they may be secrets."""
SHARED = "spark"
"""Directory of the Spark that the agents started here share."""
_OWN = (
    "zones",
    "state",
    "starters",
    "token",
    "tls",
    SETTINGS,
    SHARED,
    "headwater.db",
    "headwater.db-wal",
    "headwater.db-shm",
)
"""Headwater's own files below the directory of this machine's agents."""

_NOT_FOR_AGENTS = (TOKEN_FILE_ENV, CA_ENV, "HEADWATER_OWNER_TOKEN", "HEADWATER_STORE")
"""Variables of the controller that agents of this machine do not get."""

Ask = Callable[[str, Mapping[str, Any], float], Any]
"""Sends a request to an agent: name, body, timeout in seconds; returns the answer."""


ReadLog = tuple[str, str]
"""A log that units read at another node: that node, and the log's name."""


class AgentClient:
    """A node through its agent: a ``NodePort``, and the agent's other requests.

    ``stamps``: stamps of orders; without them only queries are possible. ``meet``: called with the channels of other
    nodes that a unit reads, before a request about it.
    """

    def __init__(
        self,
        node: str,
        ask: Ask,
        stamps: TakeStamp | None = None,
        *,
        meet: Callable[[Collection[ReadLog]], None] = lambda logs: None,
    ) -> None:
        self.node = node
        self._ask = ask
        self._stamps = stamps
        self._meet = meet

    def _send(self, call: str, body: Mapping[str, Any], seconds: float) -> Any:
        return self._ask(call, {**body, **OWN_VERSION}, seconds)

    # ------------------------------------------------------------ orders

    def former_output(self, spec: UnitSpec, choice: FormerOutputChoice, sinks: Sequence[str] = ()) -> None:
        self._order("former_output", spec, choice=choice, sinks=list(sinks))

    def check(self, spec: UnitSpec) -> None:
        self._order("check", spec)

    def prepare(self, spec: UnitSpec, *, joining: Sequence[str] = ()) -> None:
        self._order("prepare", spec, joining=list(joining))

    def start(self, spec: UnitSpec) -> None:
        self._order("start", spec)

    def update_inputs(self, spec: UnitSpec) -> None:
        self._order("update_inputs", spec)

    def stop(self, spec: UnitSpec, *, clean: bool = False) -> None:
        self._order("stop", spec, clean=clean)

    def settle(self, spec: UnitSpec) -> None:
        """Wait until a unit has processed the input that has arrived on the node so far."""
        self._order("settle", spec)

    def drained(self, spec: UnitSpec) -> bool:
        return bool(self._order("drained", spec))

    def preflight(self, spec: UnitSpec, *, batches_only: bool = False) -> None:
        self._order("preflight", spec, batches_only=batches_only)

    def warm_up(self, spec: UnitSpec, transfer: StateTransfer | None, saved: Sequence[str]) -> None:
        self._order("warm_up", spec, transfer=dump(transfer), saved=list(saved))

    def catch_up(self, spec: UnitSpec, transfer: StateTransfer, saved: Sequence[str]) -> int | None:
        left = self._order("catch_up", spec, transfer=dump(transfer), saved=list(saved))
        return None if left is None else int(left)

    def save(self, spec: UnitSpec, *, sinks: Sequence[str] = ()) -> tuple[int, int]:
        told = self._order("save", spec, sinks=list(sinks))
        return int(told["bytes"]), int(told["sent"])

    def load(self, spec: UnitSpec, transfer: StateTransfer, saved: Sequence[str]) -> bool:
        return self._order("load", spec, transfer=dump(transfer), saved=list(saved)) is True

    def finish(self, spec: UnitSpec) -> bool:
        return bool(self._order("finish", spec))

    def forget(self, spec: UnitSpec) -> bool:
        return bool(self._order("forget", spec))

    def end(self, deployment: str, unit: str) -> None:
        body = {"deployment": deployment, "unit": unit, "stamp": self._stamp()}
        self._send("end", body, LONG_SECONDS)

    def report(self) -> NodeReport:
        found = self._send("report", {"stamp": self._stamp()}, REPORT_SECONDS)
        check_protocol(found, where=f"the agent of {self.node}")
        # Their agents may have other addresses since they were restarted, and other credentials.
        self._meet([(str(node), str(log)) for node, log in found.get("reads", ())])
        return NodeReport(
            progress={name: load(Progress, p, what="a report") for name, p in found["progress"].items()},
            units={
                name: {(unit, tag, epoch): wanted for unit, tag, epoch, wanted in units}
                for name, units in found["units"].items()
            },
            agent=str(found.get("agent", "")),
            former=str(found.get("former", "")),
            resumed=frozenset(map(str, found.get("resumed", ()))),
            spark=str(found.get("spark", "")),
            ending=str(found.get("ending", "")),
        )

    # ------------------------------------------------------------ questions

    def progress(self, deployment: str) -> Progress:
        """Return the progress of a deployment's part on this node."""
        found: dict[str, Any] = self._send("progress", {"deployment": deployment}, 60.0)
        return load(Progress, found, what="a report")

    def dead_letters(self, deployment: str) -> list[dict[str, Any]]:
        """Return the first dead letters of this node."""
        return list(self._send("dead_letters", {"deployment": deployment}, 60.0))

    def replay(self, deployment: str, wanted: Sequence[ReplayRequest], *, force: bool) -> list[Replayed]:
        """Replay dead letters of this node to their sources."""
        body = {"deployment": deployment, "letters": dump(wanted), "force": force}
        return [Replayed(**known(Replayed, one)) for one in self._send("replay", body, LONG_SECONDS)]

    def hello(self) -> dict[str, Any]:
        """Check that the agent answers; raise Unavailable if not, DeploymentError if another agent does."""
        found: dict[str, Any] = self._send("hello", {}, 5.0)
        check_protocol({"protocol": 1, **found}, where=f"the agent of {self.node}")
        if found["node"] != self.node:
            raise DeploymentError(
                f"the agent there is that of {found['node']}",
                where=self.node,
                hint="correct `at:` in the continuum",
            )
        return found

    # ------------------------------------------------------------ how it is asked

    def _stamp(self) -> dict[str, Any]:
        if self._stamps is None:
            raise DeploymentError("orders come from the controller alone", where=self.node)
        found: dict[str, Any] = dump(self._stamps())
        return found

    def _order(self, call: str, spec: UnitSpec, **more: Any) -> Any:
        self._meet([(c.node, f"{spec.deployment}/{c.id}") for c in spec.inputs if c.node != self.node])
        body = {"deployment": spec.deployment, "digest": spec.digest, "stamp": self._stamp(), **more}
        with contextlib.suppress(SpecUnknown):
            return self._send(call, body, LONG_SECONDS)
        if self._send("hold", {"spec": dump(spec)}, 60.0) != spec.digest:
            raise DeploymentError(
                f"its agent, of an older version, does not know all of the unit's description (this is {__version__})",
                where=f"unit {spec.id}, {self.node}",
                hint="upgrade the agent; its units go on when it is restarted",
            )
        return self._send(call, {**body, "stamp": self._stamp()}, LONG_SECONDS)


# ---------------------------------------------------------------- agents of this machine


class Agents:
    """The nodes' agents: at the addresses of the continuum, and the others on this machine.

    Agents of this machine live below ``home``: started at their first use, found again by later processes, alive until
    they are ended.
    """

    def __init__(
        self,
        home: Path,
        *,
        options: tuple[str, ...] = (),
        routes: Mapping[str, str] | None = None,
        shares_spark: bool = False,
    ) -> None:
        """``options`` are given to agents started here; ``routes`` are addresses for reaching agents from other nodes,
        where these differ from the agents' own. ``shares_spark``: those started here use one Spark.
        """
        self.home = home.resolve()
        self._shares_spark = shares_spark
        self._options = options
        self._routes = dict(routes or {})
        self._wires: dict[str, Wire] = {}
        self._lock = threading.RLock()
        self._starting: dict[str, threading.Lock] = {}
        self._peers: dict[str, str] = {}
        self._met: dict[str, dict[str, str]] = {}
        """The addresses that each agent has been sent."""
        self._granted: dict[str, set[ReadLog]] = {}
        """The logs for which each agent has been sent a grant."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def open(self, node: Node, stamps: TakeStamp | None = None) -> AgentClient:
        """Return the client of a node; raise Unavailable when it cannot be reached.

        Each request finds the agent anew, and starts it if it belongs on this machine and does not run.
        """

        def ask(call: str, body: Mapping[str, Any], seconds: float) -> Any:
            return self._reach(node).ask(call, body, seconds=seconds)

        client = AgentClient(node.name, ask, stamps, meet=partial(self._introduce, node))
        client.hello()
        return client

    def find(self, node: Node) -> AgentClient:
        """Return the client of a node like ``open``, but start nothing: raise Unavailable instead."""
        if node.at is None and running_agent(self.home / "zones" / node.name) is None:
            raise Unavailable("no agent runs", where=node.name, hint="`headwater up` starts it")
        return self.open(node)

    def sink(self, plan: DeploymentPlan, unit: str, sink: str) -> FlightLog:
        """Return the log that a unit writes for a memory or console sink."""
        one = plan.unit(unit)
        name = sink_name(sink, plan.tags[sink], one)
        return FlightLog(self._reach(plan.continuum.node(one.node)), f"{plan.dataflow.name}/sinks/{name}")

    def channel(self, node: Node, deployment: str, channel: str) -> FlightLog:
        """Return a channel's log on a node: the original, or the copy of another node's."""
        return FlightLog(self._reach(node), f"{deployment}/{channel}")

    def _reach(self, node: Node) -> Wire:
        with self._starting.setdefault(node.name, threading.Lock()):  # an agent that fails to start delays no other
            address = node.at or self._here(node.name)
        with self._lock:
            wire = self._wires.get(node.name)
            if wire is None or wire.address != address:
                credential = self._secret(remote=node.at is not None).of(node.name)
                credentials = Credentials(credential.order_token, ca_file(), credential)
                wire = self._wires[node.name] = Wire(address, credentials, node.name)
                self._peers[node.name] = self._peer_address(node.name, wire)
                self._met.pop(node.name, None)
                self._granted.pop(node.name, None)
                for other, known in self._met.items():
                    if known.get(node.name, self._peers[node.name]) != self._peers[node.name] and other in self._wires:
                        # In a thread of its own: an agent that does not answer must delay no request to others.
                        announcing = partial(self._announce, node.name, self._peers[node.name], other)
                        threading.Thread(target=announcing, name=f"announce {node.name}", daemon=True).start()
            return wire

    def _peer_address(self, node: str, wire: Wire) -> str:
        """Return the address at which other nodes reach an agent, with the fingerprint of its certificate."""
        address, route = wire.peer_address, self._routes.get(node)
        return address if route is None else str(Address.parse(address).at(route))

    def _announce(self, node: str, address: str, other: str) -> None:
        """Send a node's address to an agent that knows another one."""
        with contextlib.suppress(HeadwaterError):  # sent again with the next request
            self._wires[other].ask("peers", {"peers": {node: address}})
            with self._lock:
                if other in self._met:
                    self._met[other][node] = address

    def _introduce(self, node: Node, reads: Collection[ReadLog]) -> None:
        """Send an agent the addresses of the nodes that its units read, and grants for their logs."""
        with self._lock:
            for owner in {owner for owner, _ in reads} & self._wires.keys():  # its certificate may be known by now
                self._peers[owner] = self._peer_address(owner, self._wires[owner])
            peers = {owner: self._peers[owner] for owner, _ in reads if owner in self._peers}
            known = self._met.setdefault(node.name, {})
            news = {name: address for name, address in peers.items() if known.get(name) != address}
            granted = self._granted.setdefault(node.name, set())
            fresh = [read for read in reads if read not in granted]
        if not news and not fresh:
            return
        secret = self._secret(remote=node.at is not None)
        grants = {log: secret.of(owner).granted(Grant(log, relay_reader(node.name))) for owner, log in fresh}
        self._reach(node).ask("peers", {"peers": news, "grants": grants})
        with self._lock:
            self._met.setdefault(node.name, {}).update(news)
            self._granted.setdefault(node.name, set()).update(fresh)

    def _secret(self, *, remote: bool) -> SiteSecret:
        """Return the site secret; that of this machine's agents is created at first use."""
        if remote or has_token():
            return SiteSecret.read()
        file = self.home / "token"
        make_directory(self.home)
        write_first(file, secrets.token_urlsafe(24), mode=0o600)
        return SiteSecret.parse(file.read_text().strip(), where=str(file))

    def _here(self, zone: str) -> str:
        """Return the address of an agent on this machine."""
        directory = self.home / "zones" / zone
        found = running_agent(directory)
        return found["address"] if found else self._start(zone, directory)

    def _start(self, zone: str, directory: Path) -> str:
        make_directory(directory)
        listen = _listen_again(directory)
        credential = self._secret(remote=False).of(zone).text
        environment = {**os.environ, TOKEN_ENV: credential, "PYTHONUNBUFFERED": "1"}
        for name in _NOT_FOR_AGENTS:
            environment.pop(name, None)
        environment.setdefault(STATE_ENV, str(self.home / "state"))
        roots = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in roots if p)
        command = [sys.executable, "-m", "headwater", "zone", zone, "--stand-in", "--dir", str(directory)]
        command += ["--share-spark", str(self.home / SHARED)] if self._shares_spark else []
        with (directory / "agent.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--listen", listen, *self._own_permissions(), *self._options],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._reap(zone)
        self._processes[zone] = process
        write_atomically(directory / STARTING, str(process.pid))
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            found = running_agent(directory)
            if found:
                return str(found["address"])
            time.sleep(0.05)
        raise Unavailable(
            f"the agent of zone {zone} did not start",
            where=str(directory / "agent.log"),
            hint="read its log",
        )

    def _own_permissions(self) -> Iterator[str]:
        """Yield the options that let dataflows use what this machine's user may, except for Headwater's own files."""
        for option in ("--allow-read", "--allow-write", "--allow-connect", "--allow-secret"):
            yield from (option, "*")
        for name in _OWN:
            yield from ("--keep-from", str(self.home / name))

    def end(self) -> list[str]:
        """End all that runs below ``home``; return the names of the nodes that had an agent or a Spark.

        First the processes that start agents, then the agents with their units and Sparks, then the Sparks of agents
        that were killed. Raises RuntimeFailure where a process does not end.
        """
        end_starters(self.home, STOP_SECONDS)
        running = list(self._running())
        for _, process, _ in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for zone, process, directory in running:
            while _process_of(directory) is not None:
                if time.monotonic() > deadline:
                    raise RuntimeFailure(
                        f"the agent of {zone} (process {process}) does not end",
                        where=str(directory / "agent.log"),
                        hint=f"end it (kill -9 {process}), then repeat this command: it also ends its Spark",
                    )
                time.sleep(0.05)
        for zone in list(self._processes):
            self._reap(zone)
        return sorted({zone for zone, _, _ in running} | self._end_left_sparks())

    def _end_left_sparks(self) -> set[str]:
        """End the Sparks whose agents were killed; return the names of their nodes."""
        from headwater.spark.endpoint import LocalEndpoint

        found = set()
        for record in self.home.glob("zones/*/spark/*/server.json"):
            if (spark := LocalEndpoint.attach(record.parent)) is not None:
                spark.stop()
                found.add(record.parents[2].name)
        users = [file.name for file in (self.home / SHARED / "users").glob("[!.]*")]
        if (spark := LocalEndpoint.attach(self.home / SHARED)) is not None:
            spark.stop()
            found.update(users)
        for name in users:
            (self.home / SHARED / "users" / name).unlink(missing_ok=True)
        return found

    def _reap(self, zone: str) -> None:
        """Reap a process that was started here or was killed."""
        child = self._processes.pop(zone, None)
        if child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(STOP_SECONDS)

    def _running(self) -> Iterator[tuple[str, int, Path]]:
        zones = self.home / "zones"
        for directory in sorted(zones.iterdir()) if zones.is_dir() else ():
            process = _process_of(directory)
            if process is not None:
                yield directory.name, process, directory


def _listen_again(directory: Path) -> str:
    """Choose an agent's address: its former one, which others know, if it is free."""
    record = directory / "agent.json"
    try:
        listen = Address.parse(str(json.loads(record.read_text())["address"])).place
        host, _, port = listen.rpartition(":")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(port)))
    except (OSError, ValueError, KeyError, TypeError, DeploymentError):
        listen = "127.0.0.1:0"
    record.unlink(missing_ok=True)
    return listen


def running_agent(directory: Path) -> dict[str, Any] | None:
    """Return the record of the agent that runs in a directory; None when none does.

    Raise Unavailable where that cannot be found out, such as without a free file descriptor.
    """
    try:
        record = json.loads((directory / "agent.json").read_text())
        return dict(record) if _serves(int(record["pid"]), directory) else None
    except (FileNotFoundError, ProcessLookupError, ValueError, KeyError, TypeError):
        return None
    except OSError as error:
        raise Unavailable(
            f"cannot find out whether its agent runs: {error}",
            where=str(directory),
            hint="raise the limit of open files (ulimit -n), or make the directory readable",
        ) from error


def _process_of(directory: Path) -> int | None:
    """Return the process of an agent that runs or starts in a directory."""
    found = running_agent(directory)
    if found is not None:
        return int(found["pid"])
    try:
        pid = int((directory / STARTING).read_text())
        return pid if _serves(pid, directory) else None
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None


def _serves(pid: int, directory: Path) -> bool:
    return str(directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
