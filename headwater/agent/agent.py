"""A node's agent: executes orders, stores them, and continues alone without a controller.

Its newest order for each unit is on its own disk. After a restart of the agent or the machine,
with or without a link, its units continue; queries that still run are adopted.

Directory of an agent::

    agent.json                       its address and process, for this machine's eyes
    process.json                     its process, also after its end
    peers.json                       where other nodes' agents are
    grants.json                      tokens for their channels that units here read
    terms.json                       the newest term of each store that has given orders
    spark/<host>/                    its Spark
    deployments/<name>/              channels, checkpoints, sinks (see layout.py)
    deployments/<name>/specs/        descriptions of units, by digest
    deployments/<name>/tasks.json    each unit, its description and whether it is to run
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwater.agent import statetransfer
from headwater.agent.tasks import NodeTasks
from headwater.agent.warmup import warm_up
from headwater.channels.filelog import FileLog
from headwater.channels.sentmeter import SentMeter
from headwater.channels.wire import OWN_VERSION, Action, check_protocol
from headwater.connectors.deadletters import read_dead_letters
from headwater.connectors.permitted import AgentPermissions, own_paths
from headwater.connectors.replaying import read_wanted, replay, sources_of
from headwater.core.errors import ChannelError, DeploymentError, HeadwaterError, NoSuchLog, SpecUnknown
from headwater.core.jsonform import dump, load
from headwater.core.permissions import OPEN, Permissions
from headwater.core.requirement import Capabilities
from headwater.disk.durable import make_directory, read_note, write_atomically
from headwater.disk.settings import UnitSettings
from headwater.plan.port import Fence, Stamp
from headwater.plan.spec import UnitSpec, read_spec
from headwater.plan.steps import FormerOutputChoice
from headwater.plan.transfer import StateTransfer
from headwater.query.query import reaching_spark
from headwater.spark.hosts import HostMeter
from headwater.spark.sparks import Sparks
from headwater.state.savedstate import StateStore

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,300}")
_LOOK = 1.0  # seconds between two checks of the units
_SAVE = 5.0  # seconds between two writes of the units' totals
IDLE_SECONDS = 300.0
"""Seconds without a unit after which a node's Spark ends."""


class Agent:
    """The units, channels and Spark of one node. Its methods may be called from many threads.

    ``offers``: the capabilities of its host; None where it accepts every requirement of the plan. ``share``: it acts
    for all nodes, whose channels are in one directory. ``idle``: seconds without a unit after which its Spark ends; the
    next unit starts it again. ``permissions``: the resources that dataflows may use; ``reserved``: paths beside its
    directory that they may not.
    """

    def __init__(
        self,
        node: str,
        directory: Path,
        sparks: Sparks,
        settings: UnitSettings | None = None,
        *,
        offers: Capabilities | None = None,
        share: bool = False,
        idle: float = IDLE_SECONDS,
        permissions: Permissions = OPEN,
        reserved: Sequence[Path] = (),
    ) -> None:
        self.node = node
        self.directory = directory.resolve()
        self.offers = offers
        self._share = share
        self._sparks = sparks
        self._settings = settings or UnitSettings()
        own = own_paths(self.directory, self._settings.state_store, reserved)
        self._permissions = AgentPermissions(own=permissions, reserved=own)
        self._lock = threading.RLock()
        self._life = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._former: str = read_note(self.directory / "process.json").get("agent", "")
        self._resumed: list[str] = []
        """Deployments that ran under the former agent."""
        self._stopping = threading.Event()
        self._idle = idle
        self._needed = time.monotonic()
        """When a unit or an order last needed Spark."""
        self._orders = 0
        """Orders that are being executed."""
        self._counting = threading.Lock()
        self._deployed: dict[str, NodeTasks] = {}
        self._hosts = HostMeter(sparks)
        self.sent_meter = SentMeter()
        """Bytes of the streams of this agent's logs to other zones."""
        self._peers: dict[str, str] = read_note(self.directory / "peers.json")
        self._grants: dict[str, str] = read_note(self.directory / "grants.json")
        self._meeting = threading.Lock()
        self._fencing = threading.Lock()
        self._fence = Fence(read_note(self.directory / "terms.json"), self._keep_terms)
        self._guard = threading.Thread(target=self._watch, name="guard", daemon=True)

    # ------------------------------------------------------------ life

    def begin(self) -> None:
        """Resume the units that were to run when the agent last ended."""
        make_directory(self.directory)
        self._resumed = self._remembered()
        write_atomically(self.directory / "process.json", json.dumps({"agent": self._life}))
        for name in self._resumed:
            self._open(name)
        self._guard.start()

    def _remembered(self) -> list[str]:
        home = self.directory / "deployments"
        found = sorted(home.iterdir()) if home.is_dir() else []
        return [place.name for place in found if (place / "tasks.json").exists()]

    def _keep_terms(self, terms: Mapping[str, int]) -> None:
        write_atomically(self.directory / "terms.json", json.dumps(terms))

    def end(self, *, units: bool) -> None:
        """End the agent; with ``units`` also the queries and their Spark, at a batch boundary."""
        self._stopping.set()
        with self._lock:
            for deployed in self._deployed.values():
                deployed.leave(stop=units)
            if units:
                self._sparks.stop()

    def find_log(self, name: str) -> FileLog:
        """Return the log named ``<deployment>/<channel>``, or that of a sink: ``<deployment>/sinks/<log>``."""
        parts = name.split("/")
        if len(parts) == 2:
            parts.insert(1, "channels")
        if len(parts) != 3 or parts[1] not in ("channels", "sinks") or not all(map(_NAME.fullmatch, parts)):
            raise ChannelError(f"not a log's name: {name!r}", where=self.node)
        path = self._place_of(parts[0]) / parts[1] / parts[2]
        if not path.is_dir():
            raise NoSuchLog("there is no such log (yet)", where=f"{self.node}: {name}", hint="is its unit prepared?")
        return FileLog(path)

    # ------------------------------------------------------------ requests

    def _hello(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**OWN_VERSION, "node": self.node, "time": time.time(), "deployments": sorted(self._deployed)}

    def actions(self) -> dict[str, Action]:
        """Return the handlers of requests, by name; ``agents.AgentClient`` is the other side."""
        return {"hello": self._hello, **{name: self._understood(own) for name, own in self._requests().items()}}

    def _understood(self, action: Action) -> Action:
        """Answer a request, unless it is of another protocol: its words may mean something else."""

        def answer(body: dict[str, Any]) -> Any:
            check_protocol(body, where=f"the agent of {self.node}")
            return action(body)

        return answer

    def _requests(self) -> dict[str, Action]:
        return {
            "peers": self._meet,
            "hold": self._hold,
            "former_output": self._of_unit(self._former_output, alone=True),
            "check": self._of_unit(lambda d, spec, body: d.check(spec)),
            "prepare": self._of_unit(
                lambda d, spec, body: d.prepare(spec, frozenset(map(str, body.get("joining") or ()))),
                alone=True,
            ),
            "start": self._of_unit(lambda d, spec, body: d.start(spec), alone=True),
            "update_inputs": self._of_unit(lambda d, spec, body: d.update_inputs(spec), alone=True),
            "stop": self._of_unit(lambda d, spec, body: d.stop(spec, clean=bool(body.get("clean"))), alone=True),
            "settle": self._of_unit(lambda d, spec, body: d.settle(spec)),
            "drained": self._of_unit(lambda d, spec, body: d.drained(spec)),
            "preflight": self._of_unit(self._preflight),
            "warm_up": self._of_unit(self._warm_up),
            "catch_up": self._of_unit(self._catch_up),
            "save": self._of_unit(self._save, alone=True),
            "load": self._of_unit(self._load, alone=True),
            "finish": self._of_unit(lambda d, spec, body: d.finish(spec), alone=True),
            "forget": self._of_unit(self._forget, alone=True),
            "end": self._end,
            "report": self._report,
            "progress": lambda body: dump(self._named(body).progress()),
            "dead_letters": self._dead_letters,
            "replay": self._replay,
        }

    def _meet(self, body: Mapping[str, Any]) -> None:
        """Store the addresses of other nodes' agents, and grants for their channels."""
        with self._meeting:
            for known, kind in ((self._peers, "peers"), (self._grants, "grants")):
                given = {str(k): str(v) for k, v in dict(body.get(kind) or {}).items()}
                if any(known.get(name) != value for name, value in given.items()):
                    known |= given
                    write_atomically(self.directory / f"{kind}.json", json.dumps(known), mode=0o600)

    def _hold(self, body: Mapping[str, Any]) -> str:
        """Store a unit's description."""
        spec = read_spec(body.get("spec"), where=self.node)
        with self._lock:
            return self._open(spec.deployment).stored.hold(spec)

    def _end(self, body: Mapping[str, Any]) -> None:
        """Stop any incarnation of a unit."""
        deployed, unit = self._named(body), str(body.get("unit"))
        with deployed.stored.alone(unit):
            self._admit(body, f"{deployed.name}/{unit}")
            deployed.end(unit)

    def _report(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return all progress, the wanted state of each unit, this node's processes, and the nodes that units read."""
        self._admit(body)
        with self._lock:
            here = dict(self._deployed)
        return {
            **OWN_VERSION,
            "progress": {name: dump(deployed.progress()) for name, deployed in here.items()},
            "units": {
                name: [[*which, wanted] for which, wanted in deployed.stored.wanted().items()]
                for name, deployed in here.items()
            },
            "agent": self._life,
            "former": self._former,
            "resumed": self._resumed,
            "spark": self._sparks.generation,
            "ending": self._sparks.ending,
            "reads": sorted(
                {
                    (channel.node, f"{name}/{channel.id}")
                    for name, deployed in here.items()
                    for spec in deployed.stored.in_force()
                    for channel in spec.inputs
                    if channel.node != self.node
                }
            ),
        }

    def _former_output(self, deployed: NodeTasks, spec: UnitSpec, body: Mapping[str, Any]) -> None:
        """Refuse, keep or remove other runs' output in a unit's sinks."""
        schema: Any = FormerOutputChoice
        choice: FormerOutputChoice = load(schema, body.get("choice"), what="the choice for former output")
        deployed.former_output(spec, choice, load(tuple[str, ...], body.get("sinks", []), what="the sinks"))

    def _transfer(self, body: Mapping[str, Any]) -> tuple[StateTransfer, list[str]]:
        """Parse a state transfer and the names of the states saved by its sources."""
        transfer = load(StateTransfer, body.get("transfer"), what="a state transfer")
        names = [str(name) for name in body.get("saved") or ()]
        if not all(n == "" or _NAME.fullmatch(n) for n in names) or len(names) != len(transfer.source_units):
            raise DeploymentError(f"not names of saved states: {names}", where=self.node)
        return transfer, names

    def _warm_up(self, deployed: NodeTasks, spec: UnitSpec, body: Mapping[str, Any]) -> None:
        """Run a unit on a sample, with the sources' current state if it takes over any."""
        deployed.permit(spec)
        transferred = self._transfer(body) if body.get("transfer") is not None else None
        with deployed.acting(spec) as units:
            dressed = statetransfer.dress(units, spec, *transferred, self._state_store()) if transferred else None
        warm_up(units, spec, dressed)

    def _catch_up(self, deployed: NodeTasks, spec: UnitSpec, body: Mapping[str, Any]) -> int | None:
        """Let a unit repeat the batches of the running unit that it replaces; return how many are left."""
        deployed.permit(spec)
        transfer, names = self._transfer(body)
        with deployed.acting(spec) as units:
            return statetransfer.catch_up(units, spec, transfer, names, self._state_store())

    def _load(self, deployed: NodeTasks, spec: UnitSpec, body: Mapping[str, Any]) -> bool:
        """Make a unit's checkpoint from saved states; return whether it has caught up instead."""
        transfer, names = self._transfer(body)
        with deployed.acting(spec) as units:
            return statetransfer.load(units, spec, transfer, names, self._state_store())

    def _dead_letters(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the first dead letters of a deployment."""
        letters = read_dead_letters(self._named(body).layout.all_dead_letters)
        return list(itertools.islice(letters, int(body.get("most", 1000))))

    def _replay(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Replay dead letters to their sources."""
        wanted = read_wanted(body.get("letters"), where=self.node)
        deployed, force = self._named(body), body.get("force") is True
        find = sources_of(deployed.stored.in_force(), deployed.layout)
        found = replay(deployed.layout.all_dead_letters, wanted, find, force=force)
        with self._ordered(), reaching_spark(self.node):
            deployed.restart_outdated()
        return [dump(replace(one, zone=self.node)) for one in found]

    def _preflight(self, deployed: NodeTasks, spec: UnitSpec, body: Mapping[str, Any]) -> None:
        """Raise the reason why a unit's state cannot be saved."""
        with deployed.acting(spec) as units:
            batches_only = body.get("batches_only") is True
            statetransfer.preflight(units, spec, self._state_store(), batches_only=batches_only)

    def _save(self, deployed: NodeTasks, spec: UnitSpec, body: Mapping[str, Any]) -> dict[str, int]:
        """Save a stopped unit's state where other nodes find it; return its size."""
        with deployed.acting(spec) as units:
            sinks = load(tuple[str, ...], body.get("sinks", []), what="the sinks")
            saved, sent = statetransfer.save(units, spec, self._state_store(), sinks)
        return {"bytes": saved.bytes, "sent": sent}

    def _forget(self, deployed: NodeTasks, spec: UnitSpec, body: Mapping[str, Any]) -> bool:
        """Delete all that a unit has stored here, and the state it has saved."""
        statetransfer.remove(deployed.layout, spec.unit)
        return deployed.forget(spec)

    def _state_store(self) -> StateStore:
        if self._settings.state_store is None:
            raise DeploymentError(
                "there is no store for the state of units",
                where=self.node,
                hint="start its agent with --state-store URI, the same for all zones",
            )
        return StateStore(self._settings.state_store)

    def _of_unit(self, call: Callable[[NodeTasks, UnitSpec, Mapping[str, Any]], Any], *, alone: bool = False) -> Action:
        """Answer a request about a unit; ``alone``: no other request about the unit runs meanwhile."""

        def answer(body: dict[str, Any]) -> Any:
            deployed = self._named(body)
            spec = deployed.stored.spec(str(body.get("digest")))
            self._check_own(spec)
            with self._ordered(), reaching_spark(self.node):
                if not alone:
                    self._admit(body)
                    return call(deployed, spec, body)
                with deployed.stored.alone(spec.id):
                    # Check only now: while it waited a newer order may have arrived.
                    self._admit(body, f"{deployed.name}/{spec.id}")
                    return call(deployed, spec, body)

        return answer

    @contextlib.contextmanager
    def _ordered(self) -> Iterator[None]:
        """Count an order while it is executed: it may need Spark."""
        with self._counting:
            self._orders += 1
        try:
            yield
        finally:
            with self._counting:
                self._orders -= 1
                self._needed = time.monotonic()

    def _admit(self, body: Mapping[str, Any], unit: str | None = None) -> None:
        """Raise Fenced where a newer order has arrived."""
        with self._fencing:
            self._fence.admit(load(Stamp, body.get("stamp"), what="the stamp of an order"), unit)

    def _check_own(self, spec: UnitSpec) -> None:
        """Refuse a unit of another node, or one whose requirement the host does not meet."""
        if spec.unit.node != self.node:
            raise DeploymentError(f"unit {spec.id} is not of this node", where=self.node, hint="check the addresses")
        if self.offers is None or not (unmet := spec.requires.unmet(self.offers)):
            return
        raise DeploymentError(
            f"it requires {spec.requires.text}, and this host offers less than the plan counts on ({'; '.join(unmet)})",
            where=f"unit {spec.id}, {self.node}",
            hint="correct the host's capabilities in the continuum, or start its agent with --offer",
        )

    def deployed(self, name: str) -> NodeTasks | None:
        """Return a deployment's tasks on this node."""
        with self._lock:
            return self._deployed.get(name)

    def _named(self, body: Mapping[str, Any]) -> NodeTasks:
        name = str(body.get("deployment"))
        with self._lock:
            if name not in self._deployed:
                raise SpecUnknown("is not here", where=f"{self.node}: deployment {name}")
            return self._deployed[name]

    def _place_of(self, name: str) -> Path:
        return self.directory / "deployments" / name

    def _open(self, name: str) -> NodeTasks:
        with self._lock:
            if name not in self._deployed:
                if not _NAME.fullmatch(name):
                    raise DeploymentError(f"not a deployment's name: {name!r}")
                self._deployed[name] = NodeTasks(
                    name,
                    self.node,
                    self._place_of(name),
                    self._sparks,
                    self._peers,
                    self._grants,
                    self._settings,
                    self._hosts,
                    share=self._share,
                    permissions=self._permissions,
                    sent_meter=self.sent_meter,
                )
            return self._deployed[name]

    # ------------------------------------------------------------ the guard

    def _watch(self) -> None:
        saved = time.monotonic()
        while not self._stopping.wait(_LOOK):
            for deployed in list(self._deployed.values()):
                try:
                    deployed.look()
                    if time.monotonic() - saved > _SAVE:
                        deployed.save()
                except HeadwaterError as error:
                    _LOG.warning("%s: %s", deployed.name, error, extra={"deployment": deployed.name})
                except Exception:  # the watching thread must survive any error
                    _LOG.exception("deployment %s", deployed.name, extra={"deployment": deployed.name})
            self._end_idle_spark()
            self._look_at_hosts()
            if time.monotonic() - saved > _SAVE:
                saved = time.monotonic()

    def _end_idle_spark(self) -> None:
        """End a Spark that no unit and no order has needed for a while."""
        with self._counting:  # an order that arrives now waits, and starts it again
            if self._orders or any(deployed.needs_spark for deployed in list(self._deployed.values())):
                self._needed = time.monotonic()
            elif time.monotonic() - self._needed > self._idle and self._sparks.rest():
                _LOG.info("Spark of %s ended: no unit has run for %.0f s", self.node, self._idle)

    def _look_at_hosts(self) -> None:
        try:
            self._hosts.look(r for deployed in list(self._deployed.values()) for r in deployed.running())
        except Exception:  # nothing that runs depends on it
            _LOG.exception("the host of %s", self.node)
