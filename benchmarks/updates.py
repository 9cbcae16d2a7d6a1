"""Change and damage a running deployment; measure restarts, pauses of other units, and lost rows.

Readings flow at some rate into edge zones while a location is added, the model in the cloud is
replaced, the link of a zone is cut for a while, and every process (Spark and agent of every zone, the
controller) is killed once. In the end all input is used up, and the sink is compared with one
Spark batch run over the same files.

    python -m benchmarks.updates --json FILE
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Set
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import common
from headwater.agent.agents import AgentClient
from headwater.app.loading import load_dataflow
from headwater.channels.credential import TOKEN_ENV, SiteSecret
from headwater.channels.flight import FlightLog
from headwater.channels.wire import Credentials, Wire
from headwater.continuum.model import Continuum
from headwater.control.store import StoreReader
from headwater.core.errors import HeadwaterError
from headwater.core.metrics import UnitProgress
from headwater.disk.layout import sink_name
from headwater.disk.ports import free_ports
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import CutLink, batch_result, compare

PARENTS = {"C1": None, "S1": "C1", "S2": "C1", "E1": "S1", "E2": "S1", "E4": "S2", "E5": "S2"}
LOCATIONS = {"E1": "L1", "E2": "L2", "E4": "L4", "E5": "L5"}
NAME = "updates"
FILE_EVERY = 0.5  # seconds between two files of a location
LOOK = 0.2  # seconds between two looks at the units
PATIENCE = 300.0


def continuum(addresses: dict[str, str]) -> str:
    """Return the zones as YAML."""
    layers = {"C": "cloud", "S": "site", "E": "edge"}
    lines = ["name: updates", "layers: [edge, site, cloud]", "zones:"]
    for zone, parent in PARENTS.items():
        lines.append(f"  {zone}: {{layer: {layers[zone[0]]}, at: '{addresses[zone]}'")
        lines[-1] += f", parent: {parent}" if parent else ""
        lines[-1] += f", locations: [{LOCATIONS[zone]}]" if zone in LOCATIONS else ""
        lines[-1] += f", hosts: {{{zone.lower()}: {{n_cpu: 1, memory: 1GiB}}}}}}"
    return "\n".join(lines) + "\n"


class World:
    """The zones' processes, each with a link that can be cut, and a controller."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.links = {zone: CutLink() for zone in PARENTS}
        self._ports = dict(zip(PARENTS, free_ports(len(PARENTS)), strict=True))
        for zone, link in self.links.items():
            link.lead_to(f"127.0.0.1:{self._ports[zone]}")
        self.environment = {
            **os.environ,
            TOKEN_ENV: secrets.token_urlsafe(16),
            "PYTHONPATH": os.pathsep.join([str(common.ROOT), os.environ.get("PYTHONPATH", "")]),
            "UPDATES_INPUT": str(place / "in"),
        }
        self.file = place / "continuum.yaml"
        self.file.write_text(continuum({zone: link.address for zone, link in self.links.items()}))
        self.continuum = Continuum.from_yaml(self.file)
        self.store = str(place / "store.db")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._closing = threading.Event()
        # Restart each process that has ended, as systemd would do in the field.
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def start(self) -> None:
        """Start all agents and the controller."""
        for zone in PARENTS:
            self._start(zone)
        self._start("controller")
        self._keeper.start()

    def _start(self, name: str) -> None:
        command = [sys.executable, "-m", "headwater"]
        if name == "controller":
            command += ["up", "--listen", "none", "--store", self.store]
        else:
            command += [
                "zone",
                name,
                "--dir",
                str(self.place / name),
                "--quick",
                "--allow-read",
                "*",
                "--allow-write",
                "*",
                "--allow-connect",
                "*",
            ]
            command += ["--listen", f"127.0.0.1:{self._ports[name]}"]
        with (self.place / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, env=self.environment, cwd=self.place, stdout=log, stderr=log
            )

    def _keep(self) -> None:
        while not self._closing.wait(0.5):
            for name, process in list(self._processes.items()):
                if process.poll() is not None and not self._closing.is_set():
                    self._start(name)

    def wire(self, zone: str) -> Wire:
        """Return a direct connection to a zone, which a cut link does not interrupt."""
        return Wire(
            f"127.0.0.1:{self._ports[zone]}", Credentials(SiteSecret.read(self.environment).of(zone).order_token)
        )

    def client(self, zone: str) -> AgentClient:
        """Return a client of a zone, over such a connection."""
        wire = self.wire(zone)
        return AgentClient(zone, lambda call, body, seconds: wire.ask(call, body, seconds=seconds))

    def kill(self, name: str) -> None:
        """SIGKILL an agent or the controller."""
        self._processes[name].kill()

    def kill_spark(self, zone: str) -> None:
        """SIGKILL a zone's Spark."""
        for directory in (self.place / zone / "spark").iterdir():
            endpoint = LocalEndpoint.attach(directory)
            if endpoint is not None:
                os.killpg(endpoint.pid, signal.SIGKILL)

    def command(self, *words: str, **settings: str) -> None:
        """Run a command of headwater; raise if it fails."""
        environment = {**self.environment, **settings}
        done = subprocess.run(
            [sys.executable, "-m", "headwater", *words, "--store", self.store],
            env=environment, cwd=self.place, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"headwater {' '.join(words)} failed:\n{done.stdout}{done.stderr}")

    def apply(self, locations: list[str], model: str) -> None:
        """Apply the dataflow and wait until it is in force."""
        flow = str(Path(__file__).with_name("updates_flow.py"))
        words = ("apply", flow, "-c", str(self.file), "--yes", "--wait")
        self.command(*words, UPDATES_LOCATIONS=",".join(locations), UPDATES_MODEL=model)

    def end(self) -> None:
        """End all processes; agents end their units and Sparks."""
        self._closing.set()
        if self._keeper.is_alive():
            self._keeper.join()
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
        for zone in PARENTS:
            if (self.place / zone / "spark").is_dir():
                for directory in (self.place / zone / "spark").iterdir():
                    left = LocalEndpoint.attach(directory)
                    if left is not None:
                        left.stop()
            self.links[zone].close()


class Feed(threading.Thread):
    """Write readings with the present time, at a rate for each location that is on."""

    def __init__(self, place: Path, rate: int) -> None:
        super().__init__(daemon=True)
        self._place = place
        self._rate = rate
        self._over = threading.Event()
        self.locations: list[str] = []
        self.rows = 0

    def run(self) -> None:
        number = 0
        due = time.monotonic()
        while not self._over.is_set():
            share = max(1, round(self._rate * FILE_EVERY / max(1, len(self.locations))))
            for location in list(self.locations):
                self._write(location, number, share)
            number += 1
            due += FILE_EVERY
            self._over.wait(max(0.0, due - time.monotonic()))

    def end(self) -> None:
        """Stop writing."""
        self._over.set()
        self.join()

    def _write(self, location: str, number: int, count: int) -> None:
        now = time.time()
        lines = []
        for n in range(count):
            at = now + n * FILE_EVERY / count
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z"
            value = float((number * 7 + n * 13) % 100)
            row = {"id": number * 10_000 + n, "ts": stamp, "machine": f"m{n % 5}", "value": value}
            lines.append(json.dumps(row))
        scratch = self._place / f".{location}-{number:08d}"
        scratch.write_text("\n".join(lines) + "\n")
        scratch.rename(self._place / location / f"{number:08d}.json")
        self.rows += count


@dataclass
class Seen:
    """The last observation of a unit: its query, its newest batch, and when that changed last."""

    run: str = ""
    batch: int = -1
    since: float = field(default_factory=time.monotonic)
    gap: float = 0.0


class Watch(threading.Thread):
    """Polls all units continuously."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self._world = world
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.units: dict[str, Seen] = {}

    def run(self) -> None:
        clients = {zone: self._world.client(zone) for zone in PARENTS}
        threads = [threading.Thread(target=self._look, args=(c,), daemon=True) for c in clients.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _look(self, client: AgentClient) -> None:
        while not self._over.wait(LOOK):
            try:
                units = client.progress(NAME).units
            except HeadwaterError:
                continue  # not there yet, or killed: the gap grows meanwhile
            for unit in units:
                self._take(unit)

    def _take(self, unit: UnitProgress) -> None:
        now = time.monotonic()
        with self._lock:
            seen = self.units.setdefault(unit.unit, Seen())
            if unit.batch < 0:
                return  # its query is just being started
            if unit.batch != seen.batch or (unit.run and unit.run != seen.run):
                seen.gap = max(seen.gap, now - seen.since)
                seen.since, seen.batch = now, unit.batch
            seen.run = unit.run or seen.run

    def snapshot(self) -> dict[str, str]:
        """Begin an event: return each unit's query, and forget the gaps so far."""
        with self._lock:
            for seen in self.units.values():
                seen.gap, seen.since = 0.0, time.monotonic()
            return {unit: seen.run for unit, seen in self.units.items()}

    def restarted(self, before: Mapping[str, str]) -> list[str]:
        """Return the units whose query has changed."""
        with self._lock:
            return sorted(u for u, run in before.items() if self.units[u].run != run)

    def longest(self, units: set[str]) -> float:
        """Return the longest time between two batches of any of these units since the event began."""
        now = time.monotonic()
        with self._lock:
            return max((max(s.gap, now - s.since) for u, s in self.units.items() if u in units), default=0.0)

    def all_moving(self, units: set[str], marks: dict[str, int]) -> bool:
        """Return whether every unit has done batches since."""
        with self._lock:
            return all(self.units[u].batch != marks[u] for u in units)

    def batches(self) -> dict[str, int]:
        """Return each unit's newest batch."""
        with self._lock:
            return {u: s.batch for u, s in self.units.items()}

    def end(self) -> None:
        self._over.set()
        self.join()


def run(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Run the benchmark; return the result in its shape."""
    world = World(place)
    for location in LOCATIONS.values():
        (place / "in" / location).mkdir(parents=True)
    feed = Feed(place / "in", options.rate)
    watch = Watch(world)
    events: list[dict[str, Any]] = []
    everywhere = ["L1", "L2", "L4", "L5"]

    def event(name: str, act: Callable[[], None], expected: set[str], affected: set[str] | None = None) -> None:
        before = watch.snapshot()
        act()
        # A batch that was done just before may be reported only now: wait for the units that must restart.
        settle(watch, restarting=expected, before=before)
        restarted = watch.restarted(before)
        others = set(before) - set(restarted) - (affected or set())
        gap = round(watch.longest(others), 2)
        events.append({"event": name, "restarted": restarted, "expected": sorted(expected), "max_gap_s": gap})
        print(f"{name}: restarted {', '.join(restarted) or 'none'}; longest gap elsewhere {gap} s", flush=True)

    try:
        world.start()
        feed.locations = everywhere[:3]
        feed.start()
        world.apply(everywhere[:3], "1")
        watch.start()
        settle(watch)
        event("nothing", lambda: time.sleep(options.calm), set())

        def add() -> None:
            world.apply(everywhere, "1")
            feed.locations = everywhere  # its readings begin when a unit reads them

        event("add L5", add, set())
        event("replace ML", lambda: world.apply(everywhere, "2"), {"verdicts@C1"})

        def cut() -> None:
            world.links["E1"].cut()
            time.sleep(options.cut)
            world.links["E1"].mend()

        # The site waits for the slowest of its inputs by design: its windows, not its batches.
        event(f"cut E1 {options.cut:.0f} s", cut, set())
        event("kill -9 controller", lambda: world.kill("controller"), set())
        zones = ["E1", "S2"] if options.quick else list(PARENTS)
        for zone in zones:
            # Its own units continue, but no client can poll them meanwhile.
            own = {u for u in watch.snapshot() if u.endswith(f"@{zone}")}
            event(f"kill -9 agent {zone}", partial(world.kill, zone), set(), own)
        for zone in zones:
            own = {u for u in watch.snapshot() if u.endswith(f"@{zone}")}
            event(f"kill -9 Spark {zone}", partial(world.kill_spark, zone), own)
        feed.end()
        world.command("stop", NAME, "--finish", "--wait")
        watch.end()
        got = verdicts(world)
    finally:
        world.end()
    expected = expected_rows(world, place)
    difference = compare(expected, got)
    print(f"{feed.rows} rows in, {expected.num_rows} verdicts: lost {difference.lost}, "
          f"duplicated {difference.duplicated}")  # fmt: skip
    return {
        "events": events,
        "lost": difference.lost,
        "duplicated": difference.duplicated,
        "rows_in": feed.rows,
        "verdicts": expected.num_rows,
    }


def settle(watch: Watch, *, restarting: Set[str] = frozenset(), before: Mapping[str, str] = {}) -> None:
    """Wait until every unit has done batches since now, ``restarting`` in other queries than ``before``."""
    deadline = time.monotonic() + PATIENCE
    while not watch.units:
        time.sleep(LOOK)
    marks = watch.batches()
    while not (watch.all_moving(set(marks), marks) and restarting <= set(watch.restarted(before))):
        if time.monotonic() > deadline:
            raise SystemExit(f"units stand still: {marks}, {watch.batches()}")
        time.sleep(LOOK)


def verdicts(world: World) -> pa.Table:
    """Read the sink in the cloud, where the plan in force has it."""
    with closing(StoreReader.open(world.store)) as store:
        plan = store.active_plan(NAME)
    assert plan is not None
    name = sink_name("verdicts", plan.tags["verdicts"], plan.unit("verdicts@C1"))
    log = FlightLog(world.wire("C1"), f"{NAME}/sinks/{name}")
    return pa.Table.from_batches(list(log.read(log.earliest(), log.latest())))


def expected_rows(world: World, place: Path) -> pa.Table:
    """Compute the sink by one Spark batch run over all the input."""
    os.environ |= {
        "UPDATES_INPUT": str(place / "in"),
        "UPDATES_LOCATIONS": "L1,L2,L4,L5",
        "UPDATES_MODEL": "1",
    }
    flow = load_dataflow(str(Path(__file__).with_name("updates_flow.py"))).dataflow
    endpoint = LocalEndpoint.start(place / "batch", cores=2, memory_mb=1500, python_path=(str(common.ROOT),))
    try:
        return batch_result(endpoint.session(), flow, world.continuum)["verdicts"]
    finally:
        endpoint.stop()


def main() -> None:
    """Run the benchmark."""
    parser = common.arguments(__doc__.splitlines()[0], repeats=1)
    parser.add_argument("--rate", type=int, default=1000, help="rows a second in all")
    parser.add_argument("--cut", type=float, default=60.0, help="seconds that E1's link is cut")
    parser.add_argument("--calm", type=float, default=10.0, help="seconds of calm at first")
    parser.add_argument("--keep", action="store_true", help="keep the directory")
    options = parser.parse_args()
    if options.quick:
        options.cut, options.calm, options.rate = min(options.cut, 8.0), 3.0, min(options.rate, 200)
    known = common.facts(quick=options.quick)
    place = Path(tempfile.mkdtemp(prefix="headwater-updates-"))
    try:
        result = run(options, place)
    finally:
        if options.keep:
            print(f"kept in {place}")
        else:
            shutil.rmtree(place, ignore_errors=True)
    common.write_result(options.json, result, facts=known)
    if result["lost"] or result["duplicated"]:
        sys.exit("rows were lost or doubled")


if __name__ == "__main__":
    main()
