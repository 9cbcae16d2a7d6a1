"""The controller with many zones and deployments, over simulated nodes of which one in a hundred hangs.

Store, planner and controller are the real ones; a node is an object in memory that executes each order at
once. For each number of zones, in a process of its own:

- ``plan_s``: to plan a dataflow whose locations are those of all zones;
- ``poll_round_s``: a round of polls of all nodes, from its start until all reports are stored;
- ``change_begins_s``: from storing a desired state to the first order to a node, for deployments without a
  node that hangs, while the other nodes are polled;
- ``idle_cores``: processor time over time while nothing changes, simulated nodes included: of one round of polls and
  the pause after it; of a long pause, a part is measured;
- ``rss_mb``: resident memory.

``python -m benchmarks.control --json FILE``
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

import headwater as hw
from benchmarks import common
from headwater.app.client import Client, PlanRequest
from headwater.continuum.model import Continuum, Node
from headwater.control import tables
from headwater.control.controller import Controller
from headwater.control.store import Store
from headwater.core.metrics import Progress, UnitProgress
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import annotated, build
from headwater.plan.document import plan_id
from headwater.plan.model import DeploymentPlan
from headwater.plan.port import NodeReport, OpenNode, TakeStamp
from headwater.plan.spec import UnitSpec, spec_of
from headwater.plan.steps import Incarnation, incarnation, unit_statuses_of

SIZES = (10, 100, 1_000, 10_000)
PER_SITE = 9
HANGS = 100
"""One node in this number hangs."""
HOLDER = "benchmark"
"""Holder of the lease while deployments are stored."""
LONGEST = 900.0
"""The time limit of every wait, in seconds."""
HURRIED = 0.1
"""Seconds between two rounds of polls, except where the idle controller is measured."""
PAUSE, PAUSE_QUICK = 30.0, 5.0
"""The longest measured part of a pause between two rounds, in seconds."""


def continuum(zones: int) -> Continuum:
    """Return a cloud, and sites with up to nine edge zones each; every edge zone has a location of its own."""
    found: dict[str, object] = {"C1": {"layer": "cloud", "hosts": {"vm": {"n_cpu": 16}}}}
    site = 0
    while len(found) < zones:
        site += 1
        link = {"bandwidth": "100Mbit/s", "latency": "20ms"}
        found[f"S{site}"] = {"layer": "site", "parent": "C1", "link": link, "hosts": {f"s{site}": {"n_cpu": 4}}}
        for n in range(1, min(PER_SITE, zones - len(found)) + 1):
            found[f"E{site}.{n}"] = {
                "layer": "edge",
                "parent": f"S{site}",
                "locations": [f"L{site}.{n}"],
                "link": {"bandwidth": "10Mbit/s", "latency": "5ms"},
                "hosts": {f"gw{site}.{n}": {"n_cpu": 2}},
            }
    return Continuum.from_data({"name": "many", "layers": ["edge", "site", "cloud"], "zones": found})


def dataflow(name: str, locations: Sequence[str], least: float = 1.0) -> Dataflow:
    """Return a dataflow: filter at the edge, count by window at sites, combine in the cloud."""
    builder = hw.flow(name, locations=list(locations))
    rows = builder.read.csv("in/{location}", "id int, ts timestamp, v double", location_as="location")
    low = rows.with_watermark("ts", "1 second").where(f"v > {least}").named("low").to_layer("site")
    counts = low.group_by(hw.window("ts", "1 minute"), "location").agg(n="count(*)").named("counts")
    counts.to_layer("cloud").write.memory("out")
    return builder.build()


class World:
    """The nodes: the running units and the poll times of each, and the first order of each deployment since a reset."""

    def __init__(self) -> None:
        self.nodes: dict[str, SimulatedZone] = {}
        self.hung: frozenset[str] = frozenset()
        self.over = threading.Event()
        self.orders: dict[str, float] = {}

    def open(self, node: Node, stamps: TakeStamp) -> SimulatedZone:
        """Return the port of a node."""
        return self.zone(node.name)

    def zone(self, node: str) -> SimulatedZone:
        """Return a node by its name."""
        return self.nodes.setdefault(node, SimulatedZone(node, self))

    def wait_if_hung(self, node: str) -> None:
        """Let a call to a node that hangs last until the benchmark is over."""
        if node in self.hung:
            self.over.wait(LONGEST)


class SimulatedZone:
    """A node that executes each order at once, as a ``headwater.plan.port.NodePort``."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self._world = name, world
        self.asked: list[float] = []
        self._units: dict[str, dict[Incarnation, UnitSpec]] = {}
        self._progress: dict[str, Progress] = {}

    def _order(self, spec: UnitSpec) -> dict[Incarnation, UnitSpec]:
        self._world.wait_if_hung(self.name)
        self._world.orders.setdefault(spec.deployment, time.monotonic())
        self._progress.pop(spec.deployment, None)
        return self._units.setdefault(spec.deployment, {})

    def report(self) -> NodeReport:
        """Return the report of this node."""
        self._world.wait_if_hung(self.name)
        for name, units in self._units.items():
            if name not in self._progress:
                self._progress[name] = Progress(seconds=1.0, units=tuple(map(_running, units.values())))
        self.asked.append(time.monotonic())
        running = {name: dict.fromkeys(units, "running") for name, units in self._units.items()}
        return NodeReport(progress=dict(self._progress), units=running)  # type: ignore[arg-type]

    def check(self, spec: UnitSpec) -> None:
        """Do nothing, as do the other steps that move no unit."""
        self._order(spec)

    def prepare(self, spec: UnitSpec, *, joining: Sequence[str] = ()) -> None:
        """Do nothing."""
        self._order(spec)

    def start(self, spec: UnitSpec) -> None:
        """Run a unit."""
        self._order(spec)[incarnation(spec.unit)] = spec

    def update_inputs(self, spec: UnitSpec) -> None:
        """Do nothing."""
        self._order(spec)

    def stop(self, spec: UnitSpec, *, clean: bool = False) -> None:
        """Stop a unit."""
        self._order(spec).pop(incarnation(spec.unit), None)

    def drained(self, spec: UnitSpec) -> bool:
        """Report that all is read."""
        self._order(spec)
        return True

    def preflight(self, spec: UnitSpec, *, batches_only: bool = False) -> None:
        """Do nothing."""
        self._order(spec)

    def warm_up(self, spec: UnitSpec, transfer: object, saved: Sequence[str]) -> None:
        """Do nothing."""
        self._order(spec)

    def catch_up(self, spec: UnitSpec, transfer: object, saved: Sequence[str]) -> int | None:
        """Report that it has caught up."""
        self._order(spec)
        return 0

    def save(self, spec: UnitSpec, *, sinks: Sequence[str] = ()) -> tuple[int, int]:
        """Report that nothing was kept."""
        self._order(spec)
        return 0, 0

    def load(self, spec: UnitSpec, transfer: object, saved: Sequence[str]) -> bool:
        """Do nothing."""
        self._order(spec)
        return False

    def finish(self, spec: UnitSpec) -> bool:
        """Stop a unit that has used up its input."""
        self.stop(spec)
        return True

    def forget(self, spec: UnitSpec) -> bool:
        """Forget a unit."""
        self.stop(spec)
        return True

    def progress(self, deployment: str) -> Progress:
        """Return the progress of a deployment here."""
        return self.report().progress.get(deployment, Progress(seconds=1.0))


def _running(spec: UnitSpec) -> UnitProgress:
    return UnitProgress(unit=spec.id, zone=spec.unit.zone, layer=spec.unit.layer, status="running")


# ---------------------------------------------------------------- one size


def measure(zones: int, *, repeats: int, quick: bool) -> dict[str, Any]:
    """Measure one number of zones in this process."""
    tables.SYNCHRONOUS = "OFF"
    found: dict[str, Any] = {"zones": zones, "deployments": max(1, zones // 10)}
    many = continuum(zones)
    whole = dataflow("whole", many.locations)
    found["plan_s"] = common.middle([_planned(whole, many) for _ in range(repeats)])
    with tempfile.TemporaryDirectory() as scratch:
        return {**found, **_live(many, found["deployments"], Path(scratch), repeats=repeats, quick=quick)}


def _planned(flow: Dataflow, many: Continuum) -> float:
    """Return the seconds that it takes to propose a plan; each time of a continuum that was just read."""
    fresh = Continuum.from_data(many.to_data())
    begun = time.monotonic()
    Client("no-store-here.db").propose(PlanRequest(dataflow=flow, continuum=fresh))
    return time.monotonic() - begun


def _live(many: Continuum, count: int, scratch: Path, *, repeats: int, quick: bool) -> dict[str, float]:
    world, store, stop = World(), Store(scratch / "store.db"), threading.Event()
    places = {f"d{n}": many.locations[n * PER_SITE : (n + 1) * PER_SITE] for n in range(count)}
    _start(store, world, [_plan(many, name, at) for name, at in places.items()])
    controller = TimedController(store, world.open)
    thread = threading.Thread(target=controller.run, args=(stop,), name="controller")
    thread.start()
    try:
        names = [node for node in world.nodes if node != "C1"]
        world.hung = frozenset(names[HANGS // 2 :: HANGS])
        answering = [node for name, node in world.nodes.items() if name not in world.hung]
        _rounds(controller, answering, 1)  # the first rounds find the nodes that hang
        begins = _changes(store, world, many, places, 2 if quick else 5 * repeats)
        _until_settled(store)
        took = _rounds(controller, answering, repeats)
        idle = _idle(controller, PAUSE_QUICK if quick else PAUSE)
        return {
            "poll_round_s": round(median(took), 3),
            "change_begins_s": round(median(begins), 3),
            "idle_cores": round(idle, 4),
            "rss_mb": round(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20),
        }
    finally:
        stop.set()
        world.over.set()
        thread.join(60.0)
        store.close()


def _start(store: Store, world: World, plans: Sequence[DeploymentPlan]) -> None:
    """Store deployments as running and put their units on the nodes; a controller would take minutes for 1,000."""
    store.hold(HOLDER, LONGEST)
    for plan in plans:
        name = plan.dataflow.name
        store.want(name, "run", plan)
        store.begin_change(HOLDER, store.desired(name), plan, (), phase="changing")
        change = store.change(name)
        assert change is not None
        runs, id_ = unit_statuses_of(plan), plan_id(plan)
        store.end_change(HOLDER, change, "done", phase="running", unit_statuses=runs, active_plan=id_)
        for unit in plan.units:
            world.zone(unit.node).start(spec_of(plan, unit.id))
    store.release(HOLDER)


def _plan(many: Continuum, name: str, at: Sequence[str], least: float = 1.0) -> DeploymentPlan:
    flow = dataflow(name, at, least)
    return build(flow, many, annotated(flow, many))


def _changes(
    store: Store, world: World, many: Continuum, places: Mapping[str, Sequence[str]], times: int
) -> list[float]:
    """Change deployments without a node that hangs, one after the other; return when each begins."""
    free = []
    for name in places:
        plan = store.active_plan(name)
        if plan is not None and not {u.node for u in plan.units} & world.hung:
            free.append(name)
    found = []
    for name in free[:: max(1, len(free) // times)][:times]:
        plan = _plan(many, name, places[name], least=2.0)
        world.orders.pop(name, None)
        begun = time.monotonic()
        store.want(name, "run", plan)
        _until(lambda name=name: name in world.orders)  # type: ignore[misc]
        found.append(world.orders[name] - begun)
    return found


@dataclass(frozen=True)
class PollRound:
    """A round of polls: its start and end, the processor time at both, and the seconds until the next one."""

    begun: float
    ended: float
    cpu_begun: float
    cpu_ended: float
    wait: float


class TimedController(Controller):
    """A controller that records its rounds of polls; while ``hurried`` it polls without a pause."""

    hurried = True

    def __init__(self, store: Store, open_node: OpenNode) -> None:
        super().__init__(store, open_node)
        self.rounds: list[PollRound] = []

    def poll(self) -> float:
        """Poll once."""
        begun, cpu = time.monotonic(), time.process_time()
        wait = super().poll()
        self.rounds.append(PollRound(begun, time.monotonic(), cpu, time.process_time(), wait))
        return min(wait, HURRIED) if self.hurried else wait


def _rounds(controller: TimedController, answering: Sequence[SimulatedZone], times: int) -> list[float]:
    """Return the seconds of some rounds; check that each asks every node that answers."""
    # The round under way began before the last change ended, and the next one polls its nodes alone.
    first = len(controller.rounds) + 2
    _until(lambda: len(controller.rounds) >= first + times)
    found = controller.rounds[first : first + times]
    for one in found:
        if not all(any(one.begun <= at <= one.ended for at in node.asked) for node in answering):
            raise SystemExit("a round did not ask every node")
    return [one.ended - one.begun for one in found]


def _idle(controller: TimedController, seconds: float) -> float:
    """Return the cores that this process takes while nothing is asked of it."""
    controller.hurried = False
    before = len(controller.rounds)
    _until(lambda: len(controller.rounds) > before, every=0.5)  # this one's pause is not shortened
    one = controller.rounds[-1]
    pause = min(seconds, 0.9 * (one.ended + one.wait - time.monotonic()))
    worked, begun = time.process_time(), time.monotonic()
    time.sleep(pause)
    between = (time.process_time() - worked) / (time.monotonic() - begun)
    round_ = one.cpu_ended - one.cpu_begun
    return (round_ + between * one.wait) / (one.ended - one.begun + one.wait)


def _until_settled(store: Store) -> None:
    # Rarely, because reading all deployments takes time from the controller.
    _until(lambda: all(r.observed_version == r.version for r in store.deployments()), every=1.0)


def _until(true: Any, every: float = 0.02) -> None:
    deadline = time.monotonic() + LONGEST
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"not so within {LONGEST:.0f} s")
        time.sleep(every)


# ---------------------------------------------------------------- all sizes


def show(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a row for each size."""
    table = Table("zones", "deployments", "plan", "poll round", "change begins", "idle cores", "memory")
    for row in rows:
        seconds = (f"{row[name]:.3g} s" for name in ("plan_s", "poll_round_s", "change_begins_s"))
        table.add_row(
            f"{row['zones']:,}", f"{row['deployments']:,}", *seconds, f"{row['idle_cores']:.2%}", f"{row['rss_mb']} MB"
        )
    console.print(table)


def _options() -> argparse.Namespace:
    parser = common.arguments(__doc__.splitlines()[0], repeats=3)
    parser.add_argument("--zones", type=int, metavar="N", help="measure this number of zones in this process")
    return parser.parse_args()


def main() -> None:
    """Run the benchmark."""
    options = _options()
    repeats = common.repeats_of(options)
    if options.zones is not None:
        print(json.dumps(measure(options.zones, repeats=repeats, quick=options.quick)))
        return
    known, found = common.facts(quick=options.quick), []
    for zones in SIZES:
        command = [sys.executable, "-m", "benchmarks.control", "--zones", str(zones), "--repeats", str(repeats)]
        told = subprocess.run(
            [*command, *(["--quick"] if options.quick else [])],
            cwd=common.ROOT, stdout=subprocess.PIPE, check=True, timeout=4 * LONGEST,
        )  # fmt: skip
        found.append(json.loads(told.stdout.splitlines()[-1]))
        show(found[-1:], Console(stderr=True))
    show(found, Console())
    common.write_result(options.json, {"rows": found}, facts=known)


if __name__ == "__main__":
    main()
