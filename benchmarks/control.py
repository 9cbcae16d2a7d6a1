"""How planning and the controller grow with zones and deployments, while one node in a hundred hangs.

The controller, its store, its calls and the planner are the real ones; the nodes are simulated in the
controller's process, and what a call costs over a network is not in the figures. A deployment has a site, its
edge zones and the cloud, and is put into store and nodes as it stands once it has been started. The client
that plans and wants changes is a process of its own. Beside seconds there are those of a processor, which
say more where others work on the machine.

python -m benchmarks.control --json FILE
"""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table
from sqlalchemy import insert

import headwater as hw
from benchmarks import common
from headwater.app.client import Client, PlanRequest
from headwater.continuum import Continuum
from headwater.control import rows
from headwater.control import tables as t
from headwater.control.controller import Controller
from headwater.control.simulated import Call, SimulatedNodes
from headwater.control.stamps import Stamps
from headwater.control.store import Store
from headwater.dataflow.graph import Dataflow
from headwater.plan.build import build
from headwater.plan.spec import spec_of
from headwater.plan.steps import standing_of
from tests import crowd

SIZES = (10, 100, 1_000, 10_000)
"""Zones; of these, one in ``OF_DEPLOYMENT`` is a site with a deployment, and one in ``OF_HUNG`` hangs."""
OF_DEPLOYMENT, OF_HUNG = 10, 100
HURRIED = 0.1
"""Seconds between two rounds while rounds are timed and changes begin."""
PATIENCE = 600.0
"""Seconds after which the benchmark gives up what it waits for."""
IDLE, IDLE_QUICK = (65.0, 400.0), (10.0, 15.0)
"""Seconds that an idle controller is watched: at least, and at most."""
GOALS = {"plan_s": 10.0, "poll_round_s": 10.0, "change_begins_s": 2.0, "idle_cores": 0.05}


def flow(name: str, locations: Sequence[str], least: int = 1) -> Dataflow:
    """Give a dataflow from the edge over the site to the cloud; ``least`` changes what the edge does."""
    builder = hw.flow(name, locations=locations)
    read = builder.read.csv("in/{location}", "id int, ts timestamp, v double", location_as="location")
    low = read.with_watermark("ts", "1 second").where(f"v > {least}").named("low").to_layer("site")
    means = low.group_by(hw.window("ts", "1 minute"), "location").agg(m="avg(v)").named("high")
    means.to_layer("cloud").write.memory("out")
    return builder.build()


@dataclass(frozen=True)
class World:
    """A continuum, the locations of each site with a deployment, and the nodes that hang."""

    continuum: Continuum
    sites: Mapping[str, tuple[str, ...]]
    hung: frozenset[str]

    @classmethod
    def of(cls, zones: int) -> World:
        continuum = crowd.continuum(zones)
        sites = {zone.name: continuum.covered(zone.name) for zone in continuum.zones_in("site")}
        sites = dict(list(sites.items())[: max(1, zones // OF_DEPLOYMENT)])
        # An edge zone of every tenth site, so that nine of ten deployments have none that hangs.
        chosen = list(sites)[:: OF_HUNG // OF_DEPLOYMENT][: zones // OF_HUNG]
        return cls(continuum, sites, frozenset(continuum.children(site)[0].name for site in chosen))

    def nodes(self, site: str) -> list[str]:
        return [site, *(zone.name for zone in self.continuum.children(site))]

    def hangs(self, site: str) -> bool:
        return not self.hung.isdisjoint(self.nodes(site))


# ---------------------------------------------------------------- the controller's process


@dataclass(frozen=True)
class Poll:
    """A round: when it began and ended, the processor time at both, and the seconds until the next one."""

    begun: float
    ended: float
    cpu_begun: float
    cpu_ended: float
    wait: float


class Timed(Controller):
    """A controller that tells of its rounds; while ``hurried`` it makes one after the other."""

    hurried, polling = True, False
    polls: list[Poll]

    def poll(self) -> float:
        if not self.hurried and (left := self.polls[-1].ended + self.polls[-1].wait - time.monotonic()) > 0:
            return min(1.0, left)
        self.polling, begun, cpu = True, time.monotonic(), time.process_time()
        wait = super().poll()
        self.polls.append(Poll(begun, time.monotonic(), cpu, time.process_time(), wait))
        self.polling = False
        return HURRIED


class Nodes:
    """Simulated nodes of which some hang, with what they were asked."""

    def __init__(self, hung: frozenset[str]) -> None:
        self.over = threading.Event()
        self.asked: set[str] = set()
        """Nodes that were asked how far they are."""
        self.ordered: dict[str, float] = {}
        """When a node got its first order."""
        self._hung = hung
        self.simulated = SimulatedNodes(before=self._before)

    def _before(self, call: Call) -> None:
        if call.node in self._hung:
            self.over.wait(3 * PATIENCE)
        elif call.name == "report":
            self.asked.add(call.node)
        else:
            self.ordered.setdefault(call.node, time.monotonic())


def control(place: str, world: Path, hung: frozenset[str], client: Connection) -> None:
    """Run a controller, and do what the client says until it says no more."""
    nodes = Nodes(hung)
    with nodes.simulated.world() as known:
        known.update(pickle.loads(world.read_bytes()))
        wanted = set(known["nodes"]) - hung
    stop = threading.Event()
    with closing(Store(place)) as store:
        controller = Timed(store, nodes.simulated.open)
        controller.polls = []
        thread = threading.Thread(target=controller.run, args=(stop,), daemon=True)
        thread.start()
        tasks = {
            "rounds": lambda repeats: _rounds(controller, nodes, wanted, repeats),
            "idle": lambda bounds: _idle(controller, *bounds),
            "forget": lambda _: nodes.ordered.clear(),
            "ordered": lambda names: min(nodes.ordered[name] for name in names if name in nodes.ordered),
            "rss": lambda _: round(psutil.Process().memory_info().rss / 2**20, 1),
        }
        while (task := client.recv()) is not None:
            client.send(tasks[task[0]](task[1]))
        nodes.over.set()
        stop.set()
        thread.join(PATIENCE)


def _until(ready: Any, what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not come about within {seconds:.0f} s")
        time.sleep(0.05)


def _rounds(controller: Timed, nodes: Nodes, wanted: set[str], repeats: int) -> list[tuple[float, float]]:
    """Time rounds, in seconds and those of a processor; the first ones load what is known and find out who
    hangs."""
    _until(lambda: len(controller.polls) >= 2, "the first rounds")
    found: list[tuple[float, float]] = []
    for _ in range(repeats):
        before = len(controller.polls)
        _until(lambda before=before: len(controller.polls) > before, "a round")
        one = controller.polls[before]
        found.append((one.ended - one.begun, one.cpu_ended - one.cpu_begun))
    # A round may have begun before what it asked was forgotten; so two are looked at together.
    before = len(controller.polls)
    nodes.asked.clear()
    _until(lambda: len(controller.polls) > before + 1, "a round")
    if missed := wanted - nodes.asked:
        raise SystemExit(f"{len(missed)} nodes were not asked in a round, such as {min(missed)}")
    return found


def _idle(controller: Timed, least: float, most: float) -> tuple[float, float]:
    """Give the processor time of a second in which nothing changes, and the seconds that were watched.

    Whole periods from round to round are watched. Where one is longer than ``most``, its round counts by its
    share of the period, and the time between rounds as it was for ``most`` seconds.
    """
    controller.hurried = False
    time.sleep(2 * HURRIED)
    _until(lambda: not controller.polling, "the end of a round")
    first = controller.polls[-1]
    while time.monotonic() < first.begun + most:
        time.sleep(0.05)
        latest = controller.polls[-1]
        if (watched := latest.begun - first.begun) >= least:
            controller.hurried = True
            return (latest.cpu_begun - first.cpu_begun) / watched, watched
    now, period = time.monotonic(), first.ended - first.begun + first.wait
    between = (time.process_time() - first.cpu_ended) / (now - first.ended)
    controller.hurried = True
    return (first.cpu_ended - first.cpu_begun + between * first.wait) / period, now - first.begun


# ---------------------------------------------------------------- the client's process


def plan_seconds(zones: int, place: Path, repeats: int) -> list[tuple[float, float]]:
    """Time planning with all locations, each time on a continuum that nothing is known of yet.

    Give the seconds and those of a processor.
    """
    found = []
    for _ in range(repeats):
        continuum = crowd.continuum(zones)
        request = PlanRequest(dataflow=flow("all", continuum.locations), continuum=continuum)
        begun, cpu = time.monotonic(), time.process_time()
        proposal = Client(str(place)).propose(request)
        found.append((time.monotonic() - begun, time.process_time() - cpu))
        if {u.zone for u in proposal.plan.units} != {z.name for z in continuum.zones}:
            raise SystemExit("the plan leaves zones out")
    return found


def begin(store: Store, world: World, file: Path) -> None:
    """Put all deployments into the store and into simulated nodes, as they are once they run."""
    plans = [build(flow(f"at-{site}", places), world.continuum) for site, places in world.sites.items()]
    now, nodes, stamps = time.time(), SimulatedNodes(), Stamps(store.id, 0)
    with store._writing() as connection:
        for plan in plans:
            name, id_ = plan.dataflow.name, rows.keep_plan(connection, plan)
            connection.execute(
                insert(t.deployments).values(
                    name=name, version=1, dealt=1, phase="running", base=id_, message="", updated=now
                )
            )
            connection.execute(
                insert(t.wishes).values(
                    deployment=name, version=1, goal="run", plan=id_, options="{}", at=now
                )
            )
            rows.set_standings(connection, name, standing_of(plan))
    for plan in plans:
        for order in ("prepare", "start"):
            for unit in plan.units:
                port = nodes.open(plan.continuum.node(unit.node), stamps)
                getattr(port, order)(spec_of(plan, unit.id))
    with nodes.world() as known:
        file.write_bytes(pickle.dumps({**known, "calls": []}))


@contextmanager
def controlled(place: Path, world: World, file: Path) -> Iterator[Any]:
    """Have a controller in a process of its own; give what asks it to do something."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=control, args=(str(place), file, world.hung, its), daemon=True)
    process.start()
    its.close()

    def ask(task: str, argument: Any = None) -> Any:
        mine.send((task, argument))
        if not mine.poll(3 * PATIENCE):
            raise SystemExit(f"the controller does not answer: {task}")
        return mine.recv()

    try:
        yield ask
        mine.send(None)
        process.join(PATIENCE)
    finally:
        if process.is_alive():
            process.kill()


def begin_seconds(place: Path, world: World, ask: Any, store: Store, repeats: int) -> list[float]:
    """Time changes where no node hangs, from before they are stored, beside others that are stuck."""
    for site, places in world.sites.items():
        if world.hangs(site):
            store.want(f"at-{site}", "run", build(flow(f"at-{site}", places, 2), world.continuum))
    free = [site for site in world.sites if not world.hangs(site)]
    found = []
    for n in range(repeats):
        site = free[n * len(free) // repeats]
        client, name = Client(str(place)), f"at-{site}"
        wanted = flow(name, world.sites[site], n + 2)
        proposal = client.propose(PlanRequest(dataflow=wanted, continuum=world.continuum))
        ask("forget")
        begun = time.monotonic()
        version = client.apply(proposal)
        _until(
            lambda name=name, version=version: store.deployment(name).dealt == version, f"change of {name}"
        )
        if store.deployment(name).phase != "running":
            raise SystemExit(f"{name} was not changed: {store.deployment(name).message}")
        found.append(ask("ordered", world.nodes(site)) - begun)
    return found


def measure(zones: int, place: Path, repeats: int, idle: tuple[float, float]) -> dict[str, Any]:
    """Give the row of one size."""
    planned = plan_seconds(zones, place / "none.db", min(repeats, 3) if zones >= SIZES[-1] else repeats)
    world, database, file = World.of(zones), place / "store.db", place / "nodes"
    with closing(Store(database)) as store:
        begin(store, world, file)
        with controlled(database, world, file) as ask:
            rounds = ask("rounds", repeats)
            cores, watched = ask("idle", idle)
            memory = ask("rss")
            begins = begin_seconds(database, world, ask, store, repeats)
    return {
        "zones": zones,
        "deployments": len(world.sites),
        "hung": len(world.hung),
        "plan_s": common.middle([seconds for seconds, _ in planned]),
        "plan_cpu_s": common.middle([cpu for _, cpu in planned]),
        "poll_round_s": common.middle([seconds for seconds, _ in rounds]),
        "poll_round_cpu_s": common.middle([cpu for _, cpu in rounds]),
        "change_begins_s": common.middle(begins),
        "idle_cores": round(cores, 4),
        "idle_watched_s": round(watched, 1),
        "rss_mb": memory,
        "repeats": len(rounds),
    }


def show(found: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the rows, and what is missed of the goals."""
    heads = ("zones", "deployments", "hung", *GOALS, "plan_cpu_s", "poll_round_cpu_s", "rss_mb")
    table = Table(*heads, title="the controller, by zones")
    for row in found:
        table.add_row(*(f"{row[head]:,}" for head in heads))
    console.print(table)
    for row in found:
        for name, most in GOALS.items():
            if row[name] >= most:
                console.print(f"{row['zones']:,} zones: {name} is {row[name]}, not below {most:g}")


def main() -> None:
    """Run the benchmark."""
    parser = common.arguments(__doc__.splitlines()[0], repeats=5)
    parser.add_argument("--zones", default=",".join(map(str, SIZES)), help="sizes (default all four)")
    options = parser.parse_args()
    known, console = common.facts(quick=options.quick), Console()
    repeats, found = common.repeats_of(options), []
    for zones in map(int, options.zones.split(",")):
        with tempfile.TemporaryDirectory(prefix="headwater-control-") as place:
            found.append(measure(zones, Path(place), repeats, IDLE_QUICK if options.quick else IDLE))
        console.print(f"{zones:,} zones: {found[-1]}")
    show(found, console)
    common.write_result(options.json, {"rows": found}, facts=known)


if __name__ == "__main__":
    main()
