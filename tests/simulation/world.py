"""The world of one history: hosts with an agent, a Spark and a disk each, controllers, a store, sources and a sink.

Everything that decides is the product's: the controllers with their store, the agents, the channels. Faults are
methods; ``heal`` ends them all.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import headwater as hw
from headwater.agent import agent as agent_module
from headwater.agent import agents as agents_module
from headwater.agent import relays as relays_module
from headwater.agent import statetransfer as statetransfer_module
from headwater.agent import tasks as tasks_module
from headwater.agent import units as units_module
from headwater.agent.agent import Agent
from headwater.agent.agents import Agents
from headwater.channels import logserver as logserver_module
from headwater.channels import relay as relay_module
from headwater.channels.credential import TOKEN_ENV
from headwater.channels.filelog import FileLog
from headwater.channels.logserver import LogService
from headwater.continuum.model import Continuum
from headwater.control import controller as controller_module
from headwater.control import database, tables
from headwater.control.calls import Calls
from headwater.control.controller import Controller
from headwater.control.executor import Executor
from headwater.control.store import Store
from headwater.core.errors import Unavailable
from headwater.disk import filewatch as filewatch_module
from headwater.disk.settings import UnitSettings
from headwater.plan.model import DeploymentPlan
from headwater.query import query as query_module
from headwater.spark.sparks import Sparks
from headwater.state import assembly as assembly_module
from tests.simulation.disk import Disk
from tests.simulation.engine import (
    RowCompiler,
    SimulatedEndpoint,
    SimulatedSpark,
    emptied,
    evaluate,
    reshaped,
    taken,
)
from tests.simulation.kernel import Host, Kernel, Process
from tests.simulation.network import Network, Server, SimulatedWire

NODES = ("C1", "S1", "E1", "E2")
CONTROLLERS = ("A", "B")
LOCATIONS = ("L1", "L2")
LEASE = 10.0
NAME = "f"

CONTINUUM = Continuum.from_data(
    {
        "name": "w",
        "layers": ["edge", "site", "cloud"],
        "zones": {
            "C1": {"layer": "cloud", "at": "C1:1"},
            "S1": {"layer": "site", "at": "S1:1", "parent": "C1", "link": {"bandwidth": "1Gbit/s"}},
            "E1": {
                "layer": "edge",
                "at": "E1:1",
                "parent": "S1",
                "locations": ["L1"],
                "link": {"bandwidth": "1Gbit/s"},
            },
            "E2": {
                "layer": "edge",
                "at": "E2:1",
                "parent": "S1",
                "locations": ["L2"],
                "link": {"bandwidth": "1Gbit/s"},
            },
        },
    }
)


def count(state: Any, row: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Number the rows of a key: the set of outputs does not depend on their order, and a lost or doubled row shows."""
    return state + 1, {"location": row["location"], "k": row["k"], "i": state + 1}


@functools.cache
def _flow(sources: str, output: str, locations: tuple[str, ...], least: tuple[int, int]) -> Any:
    """Return the dataflow: a filter at the edge, numbers per key at the site, files in the cloud."""
    builder = hw.flow(NAME, locations=locations)
    rows = builder.read.json(f"{sources}/{{location}}", "k string, n bigint", location_as="location").named("read")
    kept = rows.where(f"n >= {least[0]}").named("keep")
    counted = kept.to_layer("site").scan(
        count, "location string, k string, i bigint", keys=["location", "k"], order_by="n", initial=0
    )
    passed = counted.named("count").to_layer("cloud").where(f"i >= {least[1]}").named("pass")
    passed.write.json(output).named("out")
    return builder.build()


class NoMeter:
    """In place of the meter of a host's real processes."""

    def __init__(self, sparks: Sparks) -> None: ...

    def look(self, units: object) -> None: ...

    def progress(self) -> tuple[()]:
        return ()


_ENGINES: dict[str, Any] = {}
_real_open_engine = tables.open_engine


def _one_engine(url: Any) -> Any:
    """Return one engine per store: its compiled statements serve all histories."""
    key = str(url)
    if key not in _ENGINES:
        _ENGINES[key] = _real_open_engine(url)
    return _ENGINES[key]


PACES: Mapping[Any, Mapping[str, float]] = {
    logserver_module: {"_POLL": 0.4},
    relay_module: {"_ACKNOWLEDGE": 1.0},
    query_module: {"_LOOK": 0.1},
    tasks_module: {"_LOOK": 0.2},
    statetransfer_module: {"_LOOK": 0.2},
    agent_module: {"_LOOK": 3.0},
    controller_module: {"IDLE": 2.0},
}
"""Longer pauses between polls: a simulated second costs less, and no result depends on them."""


@contextlib.contextmanager
def _simulated(kernel: Kernel, disk: Disk, network: Network) -> Iterator[None]:
    """Replace Spark, wire and the system's clocks, threads and files by the simulated ones."""
    SimulatedWire.network = network
    patches: list[tuple[Any, str, Any]] = [
        (units_module, "UnitCompiler", RowCompiler),
        (statetransfer_module, "empty_state", emptied),
        (assembly_module, "reshape", reshaped),
        (assembly_module, "taken_of", taken),
        (relays_module, "Wire", SimulatedWire),
        (agents_module, "Wire", SimulatedWire),
        (agent_module, "HostMeter", NoMeter),
        (filewatch_module, "_inotify", lambda: None),
        (tables, "SYNCHRONOUS", "OFF"),
        (tables, "open_engine", _one_engine),
    ]
    patches += [(module, name, value) for module, values in PACES.items() for name, value in values.items()]
    former = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    os.environ[TOKEN_ENV] = "the-secret-of-a-simulated-site"
    logging.disable(logging.CRITICAL)
    for owner, name, value in patches:
        setattr(owner, name, value)
    try:
        with disk.installed(), kernel.running():
            yield
    finally:
        for owner, name, value in former:
            setattr(owner, name, value)
        logging.disable(logging.NOTSET)
        del os.environ[TOKEN_ENV]


class World:
    """Hosts, controllers, a store, sources and a sink."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.kernel = kernel = Kernel(seed)
        self.disk = Disk(kernel, root / "hosts")
        self.network = Network(kernel)
        self.hosts = {n: Host(n, booted=1000.0 * i) for i, n in enumerate((*NODES, *CONTROLLERS), start=1)}
        self.agents: dict[str, Agent] = {}
        self.processes: dict[str, Process] = {}
        self.sparks: dict[str, SimulatedSpark] = {}
        self.written: list[tuple[str, dict[str, Any]]] = []
        self.broken: list[str] = []
        """Rules that were broken."""
        self.story: list[str] = []
        self.store_fails = 0
        """How many more transactions of controllers fail."""
        self._completed: dict[str, int] = {}
        self._files = itertools.count(1)
        self._numbers = itertools.count(1)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Build the world, and let it run."""
        shutil.rmtree(self.root / "hosts", ignore_errors=True)
        for file in self.root.glob("store.db*"):
            file.unlink()
        for engine in _ENGINES.values():
            engine.dispose()
        template = self.root / "template.db"
        if not template.exists():
            Store(template).close()
            _ENGINES.clear()
        shutil.copy(template, self.root / "store.db")
        self.sources.mkdir(parents=True)
        with _simulated(self.kernel, self.disk, self.network), self._failing_store():
            self.store = Store(self.root / "store.db")
            for node in NODES:
                self.sparks[node] = SimulatedSpark(self.kernel, lambda node=node: self._process("spark", node))
                self.start_agent(node)
            for name in CONTROLLERS:
                self.start_controller(name)
            yield
        self.store.close()

    @property
    def sources(self) -> Path:
        return self.root / "hosts" / "world" / "src"

    @property
    def output(self) -> Path:
        return self.root / "hosts" / "world" / "out"

    def _process(self, kind: str, host: str) -> Process:
        return Process(f"{kind} {host}", self.hosts[host])

    # ------------------------------------------------------------ processes

    def start_agent(self, node: str) -> None:
        """Start the agent of a node, unless it runs."""
        if node in self.processes and self.processes[node].alive:
            return
        process = self.processes[node] = self._process("agent", node)
        directory = self.root / "hosts" / node

        def run() -> None:
            while node not in self.agents or self.network.servers[node].process is not process:
                with contextlib.suppress(OSError):  # a full disk: the agent ends, and is started again
                    self._begin(node, process, directory)
                self.kernel.sleep(1.0)

        self.kernel.spawn(process, run, "begin")

    def _begin(self, node: str, process: Process, directory: Path) -> None:
        endpoint: Any = SimulatedEndpoint(self.sparks[node], directory / "spark")
        sparks = Sparks(directory / "spark", given=endpoint)
        settings = UnitSettings(state_store=str(self.root / "hosts" / "world" / "state"), measure=False, catch_up=False)
        agent = Agent(node, directory, sparks, settings, idle=1e9)
        service = LogService(agent.find_log, agent.actions())
        agent.begin()
        self.agents[node] = agent
        self.network.servers[node] = Server(node, process, service, watch=self._watching(node))

    def start_controller(self, name: str) -> None:
        """Start a controller, unless it runs; it starts again by itself when it has lost its lease."""
        if name in self.processes and self.processes[name].alive:
            return
        process = self.processes[name] = self._process("controller", name)

        def run() -> None:
            while True:
                with contextlib.suppress(database.LeaseLost, Unavailable):  # `headwater up` ends, and is started again
                    self._control(name)
                self.kernel.sleep(2.0)

        self.kernel.spawn(process, run, "run")

    def _control(self, name: str) -> None:
        calls = Calls("step")
        Controller(
            Store(self.root / "store.db"),
            Agents(self.root / "hosts" / name).open,
            holder=f"{name}-{next(self._numbers)}",
            lease=LEASE,
            poll=10.0,
            patience=60.0,
            executor=lambda ports: Executor(ports, calls=calls, clock=self.kernel.monotonic),
        ).run(threading.Event())

    # ------------------------------------------------------------ the store

    @contextlib.contextmanager
    def _failing_store(self) -> Iterator[None]:
        """Let every write of a controller be an effect; some fail, before or after they are committed."""
        real = database.DatabaseWriter._writing

        @contextlib.contextmanager
        def writing(store: database.DatabaseWriter) -> Iterator[Any]:
            fails = ""
            if self.kernel.inside:
                self.kernel.effect()
                if self.store_fails:
                    self.store_fails -= 1
                    fails = self.kernel.random.choice(("before", "after"))
            if fails == "before":
                raise Unavailable("the store cannot be reached", where="store")
            with real(store) as connection:
                yield connection
            if fails == "after":
                raise Unavailable("the store cannot be reached", where="store")
            if self.kernel.inside:
                self.kernel.effect()

        database.DatabaseWriter._writing = writing
        try:
            yield
        finally:
            database.DatabaseWriter._writing = real

    def want(self, goal: Any, plan: DeploymentPlan | None = None, **options: Any) -> None:
        """Store a desired state, as a person does."""
        self.store.want(NAME, goal, plan, **options)

    # ------------------------------------------------------------ the dataflow

    def flow(self, locations: tuple[str, ...] = LOCATIONS, least: tuple[int, int] = (0, 0)) -> Any:
        """Return the dataflow; ``least``: the bounds of its two filters, which hold for all rows."""
        return _flow(str(self.sources), str(self.output), locations, least)

    def write(self, location: str, rows: int) -> None:
        """Write a file with rows at a location."""
        number = next(self._files)
        directory = self.sources / location
        directory.mkdir(exist_ok=True)
        made = [{"k": "ab"[n % 2], "n": number * 100 + n} for n in range(rows)]
        draft = directory / f"{number:06d}.part"
        draft.write_text("".join(json.dumps(row) + "\n" for row in made))
        os.replace(draft, directory / f"{number:06d}.json")
        self.written += [(location, row) for row in made]

    def expected(self) -> Counter[str]:
        """Return the rows of one batch over all input."""
        flow = self.flow()
        given = {"read": [{**row, "location": location} for location, row in self.written]}
        found = evaluate(flow, flow.order, given, {})
        return Counter(json.dumps(row, sort_keys=True) for row in found["pass"])

    def found(self) -> Counter[str]:
        """Return the rows in the sink."""
        lines = (line for file in self.output.glob("*.json") for line in file.read_text().splitlines())
        return Counter(json.dumps(json.loads(line), sort_keys=True) for line in lines)

    # ------------------------------------------------------------ rules

    def _watching(self, node: str) -> Callable[[str, Mapping[str, Any]], Callable[[bool], None]]:
        """Check that no order is carried out after one of a newer lease."""

        def arrives(action: str, body: Mapping[str, Any]) -> Callable[[bool], None]:
            term = int((body.get("stamp") or {}).get("term", 0))
            before = self._completed.get(node, 0)

            def ended(done: bool) -> None:
                if not term or not done:
                    return
                if term < before:
                    self.broken.append(f"{node} carried out {action!r} of term {term} after an order of term {before}")
                self._completed[node] = max(term, self._completed.get(node, 0))

            return ended

        return arrives

    def runs(self) -> dict[tuple[str, str, str, int], str]:
        """Return what runs: node, unit, tag and epoch."""
        return {
            (node, q.spec.id, q.spec.unit.tag, q.spec.unit.epoch): q.name
            for node, spark in self.sparks.items()
            for q in spark.active
            if q.name.startswith(f"{NAME}/")  # a warm-up that a killed agent has left writes to no channel
        }

    def known(self) -> set[tuple[str, str, str, int]]:
        """Return what runs according to the store."""
        statuses = self.store.unit_statuses(NAME)
        plans = self.store.plans_of(statuses)
        return {(plans[s.plan].unit(w[0]).node, *w) for w, s in statuses.items() if s.runs}

    def logs(self) -> dict[str, FileLog]:
        """Return all channels and copies on the hosts' disks, by host and name."""
        found = {}
        for node in NODES:
            channels = self.root / "hosts" / node / "deployments" / NAME / "channels"
            for place in sorted(channels.glob("*")):
                found[f"{node}/{place.name}"] = FileLog(place)
        return found
