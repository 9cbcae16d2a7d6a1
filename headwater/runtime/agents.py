"""The way to a zone's agent, and agents on this machine: start them, find them again, end them."""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from headwater.continuum import Zone
from headwater.errors import DeploymentError, Unavailable
from headwater.metrics import Progress
from headwater.plan.carry import Carry
from headwater.plan.document import digest, to_document
from headwater.plan.model import DeploymentPlan
from headwater.runtime.channels.flight import FlightLog
from headwater.runtime.durable import write_first
from headwater.runtime.layout import sink_name
from headwater.runtime.replaying import Replayed, Wanted
from headwater.runtime.wire import CA_ENV, TOKEN_ENV, Credentials, Wire

STATE_ENV = "HEADWATER_STATE_STORE"
LONG_SECONDS = 300.0
"""For requests that may have to start a Spark first."""

START_SECONDS = 30.0
STOP_SECONDS = 60.0


class AgentClient:
    """A zone, as its agent tells it: check, prepare, start, feed, stop, drained, finish, forget units."""

    def __init__(self, zone: str, reach: Callable[[], Wire], peers: Mapping[str, str]) -> None:
        self.zone = zone
        self._reach = reach
        self._peers = peers
        self._documents: dict[int, tuple[DeploymentPlan, str, dict[str, Any]]] = {}

    def check(self, plan: DeploymentPlan, unit: str) -> None:
        """Compile a unit in the zone without starting it; raise what is wrong with it."""
        self._ask("check", plan, unit)

    def prepare(self, plan: DeploymentPlan, unit: str, *, joining: Sequence[str] = ()) -> None:
        """Make its channels, register their readers, set its inputs up."""
        self._ask("prepare", plan, unit, joining=list(joining))

    def start(self, plan: DeploymentPlan, unit: str) -> None:
        """Start a unit, or adopt it when it runs under this tag and epoch already."""
        self._ask("start", plan, unit)

    def feed(self, plan: DeploymentPlan, unit: str) -> None:
        """Give a running unit the inputs of this plan."""
        self._ask("feed", plan, unit)

    def stop(self, plan: DeploymentPlan, unit: str, *, clean: bool = False) -> None:
        """Stop a unit at a batch boundary; ``clean``: a batch that was cut off comes to its end first."""
        self._ask("stop", plan, unit, clean=clean)

    def settle(self, plan: DeploymentPlan, unit: str) -> None:
        """Wait until what has arrived in the zone so far has gone through a unit."""
        self._ask("settle", plan, unit)

    def drained(self, plan: DeploymentPlan, unit: str) -> bool:
        """Tell whether a unit has read all that its inputs hold."""
        return bool(self._ask("drained", plan, unit))

    def survey(self, plan: DeploymentPlan, unit: str) -> None:
        """See whether a unit's state can be saved; raise what stands in the way."""
        self._ask("survey", plan, unit)

    def rehearse(self, plan: DeploymentPlan, unit: str, carry: Carry | None, saved: Sequence[str]) -> None:
        """Run a unit on a trifle beside all that counts; raise what is wrong with it."""
        self._ask("rehearse", plan, unit, carry=asdict(carry) if carry else None, saved=list(saved))

    def save(self, plan: DeploymentPlan, unit: str) -> tuple[int, int]:
        """Put what a stopped unit kept where other zones find it; give its bytes, and those sent now."""
        told = self._ask("save", plan, unit)
        return int(told["bytes"]), int(told["sent"])

    def load(self, plan: DeploymentPlan, unit: str, carry: Carry, saved: Sequence[str]) -> None:
        """Make a unit's checkpoint of what others have saved."""
        self._ask("load", plan, unit, carry=asdict(carry), saved=list(saved))

    def finish(self, plan: DeploymentPlan, unit: str) -> bool:
        """Let a unit use up its input and end its channels; True once that is done."""
        return bool(self._ask("finish", plan, unit))

    def forget(self, plan: DeploymentPlan, unit: str) -> bool:
        """Delete what is stored of a unit; False while somebody has still to read its channels."""
        return bool(self._ask("forget", plan, unit))

    def progress(self, deployment: str) -> Progress:
        """Give the state of a deployment's part in this zone."""
        found: dict[str, Any] = self._reach().ask("progress", {"deployment": deployment}, seconds=60.0)
        return Progress.from_data(found)

    def dead_letters(self, deployment: str) -> list[dict[str, Any]]:
        """Give the first malformed records of this zone."""
        return list(self._reach().ask("dead_letters", {"deployment": deployment}, seconds=60.0))

    def replay(self, deployment: str, wanted: Sequence[Wanted], *, force: bool) -> list[Replayed]:
        """Offer dead letters of this zone again to the sources that they came from."""
        body = {"deployment": deployment, "letters": [asdict(one) for one in wanted], "force": force}
        return [Replayed(**one) for one in self._reach().ask("replay", body, seconds=LONG_SECONDS)]

    def sink(self, plan: DeploymentPlan, unit: str, sink: str) -> FlightLog:
        """Give the log that a unit of this zone writes for a memory or console sink."""
        name = sink_name(sink, plan.tags[sink], plan.unit(unit))
        return FlightLog(self._reach(), f"{plan.dataflow.name}/sinks/{name}")

    def channel(self, plan: DeploymentPlan, channel: str) -> FlightLog:
        """Give a channel's log in this zone: the original, or the copy of another zone's."""
        return FlightLog(self._reach(), f"{plan.dataflow.name}/{channel}")

    def hello(self) -> dict[str, Any]:
        """Ask whether the agent is there; raise Unavailable if not, DeploymentError if another is."""
        found: dict[str, Any] = self._reach().ask("hello", {}, seconds=5.0)
        if found["zone"] != self.zone:
            raise DeploymentError(
                f"the agent at {self._reach().address} is that of zone {found['zone']}",
                where=f"zone {self.zone}",
                hint="correct `at:` in the continuum",
            )
        return found

    def meet(self, peers: Mapping[str, str]) -> None:
        """Tell the agent where others are."""
        self._reach().ask("peers", {"peers": dict(peers)})

    def _ask(self, call: str, plan: DeploymentPlan, unit: str, **more: Any) -> Any:
        name, document = self._document(plan)
        lower = {c.zone for c in plan.inputs(plan.unit(unit))} - {self.zone}
        peers = {zone: self._peers[zone] for zone in lower if zone in self._peers}
        if peers:
            self.meet(peers)
        body = {"deployment": plan.dataflow.name, "digest": name, "unit": unit, **more}
        with contextlib.suppress(_PlanUnknown):
            return self._told(call, body)
        self._reach().ask("hold", {"document": document}, seconds=60.0)
        return self._told(call, body)

    def _told(self, call: str, body: Mapping[str, Any]) -> Any:
        try:
            return self._reach().ask(call, body, seconds=LONG_SECONDS)
        except DeploymentError as error:
            if error.what in ("no such plan here", "is not here"):
                raise _PlanUnknown(error.what) from error
            raise

    def _document(self, plan: DeploymentPlan) -> tuple[str, dict[str, Any]]:
        known = self._documents.get(id(plan))
        if known is None or known[0] is not plan:
            document = to_document(plan)
            known = self._documents[id(plan)] = (plan, digest(document), document)
        return known[1], known[2]


class _PlanUnknown(DeploymentError):
    """The agent has to be given the plan first."""


# ---------------------------------------------------------------- agents of this machine


class Agents:
    """The zones' agents: those that the continuum gives addresses, and the others on this machine.

    Those of this machine are kept below ``home``: started when they are needed, found again by the
    next who asks, alive until they are ended.
    """

    def __init__(
        self, home: Path, *, options: tuple[str, ...] = (), routes: Mapping[str, str] | None = None
    ) -> None:
        """``options`` are given to agents started here; ``routes`` say how zones reach one another's agents
        where that is not by the agent's own address."""
        self.home = home.resolve()
        self._options = options
        self._routes = dict(routes or {})
        self._clients: dict[str, AgentClient] = {}
        self._wires: dict[str, Wire] = {}
        self._lock = threading.RLock()
        self._peers: dict[str, str] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def open(self, zone: Zone) -> AgentClient:
        """Give the way to a zone; raise Unavailable when it cannot be reached.

        Each request finds the agent anew, and starts it if it is to run here and does not.
        """
        with self._lock:
            client = self._clients.get(zone.name)
            if client is None:
                client = AgentClient(zone.name, partial(self._reach, zone), self._peers)
                client.hello()
                self._clients[zone.name] = client
            return client

    def find(self, zone: Zone) -> AgentClient:
        """Give the way to a zone as ``open`` does, but start nothing: raise Unavailable instead."""
        if zone.at is None and running_agent(self.home / "zones" / zone.name) is None:
            raise Unavailable("no agent runs", where=f"zone {zone.name}", hint="`headwater up` starts it")
        return self.open(zone)

    def _reach(self, zone: Zone) -> Wire:
        with self._lock:
            address = zone.at or self._here(zone.name)
            wire = self._wires.get(zone.name)
            if wire is None or wire.address != address:
                wire = self._wires[zone.name] = Wire(address, self._credentials(zone))
                self._peers[zone.name] = self._routes.get(zone.name, address)
                for other in self._clients.values():
                    if other.zone != zone.name:
                        with contextlib.suppress(Unavailable):  # told again with the next request
                            other.meet({zone.name: self._peers[zone.name]})
            return wire

    def _credentials(self, zone: Zone) -> Credentials:
        if zone.at is not None or os.environ.get(TOKEN_ENV):
            return Credentials.from_environment()
        return Credentials(self._token())

    def _token(self) -> str:
        """Give the token of this machine's agents, made when first asked for."""
        if os.environ.get(TOKEN_ENV):
            return os.environ[TOKEN_ENV]
        file = self.home / "token"
        self.home.mkdir(parents=True, exist_ok=True)
        write_first(file, secrets.token_urlsafe(24), mode=0o600)
        return file.read_text()

    def _here(self, zone: str) -> str:
        """Give the address of an agent on this machine."""
        directory = self.home / "zones" / zone
        found = running_agent(directory)
        return found["address"] if found else self._start(zone, directory)

    def _start(self, zone: str, directory: Path) -> str:
        directory.mkdir(parents=True, exist_ok=True)
        listen = _listen_again(directory)
        environment = {**os.environ, TOKEN_ENV: self._token(), "PYTHONUNBUFFERED": "1"}
        environment.pop(CA_ENV, None)
        environment.setdefault(STATE_ENV, str(self.home / "state"))
        roots = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in roots if p)
        command = [sys.executable, "-m", "headwater", "zone", zone, "--dir", str(directory)]
        with (directory / "agent.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--listen", listen, *self._options],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._reap(zone)
        self._processes[zone] = process
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            found = running_agent(directory)
            if found:
                return str(found["address"])
            time.sleep(0.05)
        raise Unavailable(
            f"the agent of zone {zone} did not come up",
            where=str(directory / "agent.log"),
            hint="read its log",
        )

    def end(self) -> list[str]:
        """End all agents below ``home`` with their units and Sparks; give the zones they were of."""
        ended = []
        for zone, process, directory in list(self._running()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
            deadline = time.monotonic() + STOP_SECONDS
            while running_agent(directory) and time.monotonic() < deadline:
                time.sleep(0.05)
            ended.append(zone)
        for zone in list(self._processes):
            self._reap(zone)
        return ended

    def _reap(self, zone: str) -> None:
        """Take note of the end of a process that was started here, or was killed."""
        child = self._processes.pop(zone, None)
        if child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(STOP_SECONDS)

    def _running(self) -> Iterator[tuple[str, int, Path]]:
        zones = self.home / "zones"
        for directory in sorted(zones.iterdir()) if zones.is_dir() else ():
            found = running_agent(directory)
            if found:
                yield directory.name, int(found["pid"]), directory


def _listen_again(directory: Path) -> str:
    """Choose where an agent listens: where it did before, since others know that, if it is free."""
    record = directory / "agent.json"
    try:
        listen = str(json.loads(record.read_text())["address"]).removeprefix("grpc+tls://")
        host, _, port = listen.rpartition(":")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(port)))
    except (OSError, ValueError, KeyError, TypeError):
        listen = "127.0.0.1:0"
    record.unlink(missing_ok=True)
    return listen


def running_agent(directory: Path) -> dict[str, Any] | None:
    """Give the record of the agent that runs in a directory; None when none does."""
    try:
        record = json.loads((directory / "agent.json").read_text())
        pid = int(record["pid"])
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(record) if str(directory).encode() in command else None
