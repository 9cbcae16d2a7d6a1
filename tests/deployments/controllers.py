"""Run `headwater up` in a separate process, for tests of changes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa

from headwater.agent.agents import Agents
from headwater.app import deployments, observe
from headwater.app.client import Client, PlanRequest
from headwater.control.records import Change
from headwater.control.store import StoreReader
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, compare
from tests.patience import PATIENCE

MOST_KILLS = 6
"""In one change: some steps take longer than the time between two kills."""

_TELLING = ("stream execution thread", "Executor task launch worker", "stateConnectionListenerThread")
_THREADS, _FRAMES, _LINES = 12, 24, 15
_DUMP_SECONDS = 3.0


def story(place: Path) -> str:
    """Return the end of the log of each zone's Spark, and the stacks of the threads that work on queries."""
    told = []
    for record in sorted([*place.glob("zones/*/spark/*/server.json"), *place.glob("spark/server.json")]):
        spark = LocalEndpoint.attach(record.parent)
        if spark is None:
            told.append(f"--- {record.parent} has ended")
            continue
        log, end = record.parent / "spark.log", spark.log_tail(_LINES)
        before = log.stat().st_size
        os.kill(spark.pid, signal.SIGQUIT)  # the JVM then writes its threads' stacks into its log
        time.sleep(_DUMP_SECONDS)
        with log.open("rb") as file:
            file.seek(before)
            dump = file.read().decode(errors="replace")
        told += [f"--- {log} ends with", end, "--- its threads", *threads(dump)]
    return "\n".join(told)


def threads(dump: str) -> list[str]:
    """Return the threads of a JVM's thread dump that work on queries, each cut to its first frames."""
    found = [block.splitlines()[:_FRAMES] for block in dump.split("\n\n") if _tells(block)]
    return ["\n".join(lines) for lines in found[:_THREADS]]


def _tells(block: str) -> bool:
    return block.lstrip().startswith(tuple(f'"{name}' for name in _TELLING))


_UP = """
import pathlib, sys, threading
from headwater.app import deployments
store, home, *options = sys.argv[1:]
deployments.up(store, home=pathlib.Path(home), options=tuple(options), stop=threading.Event(), say=print)
"""
"""`headwater up` with options for the agents that it starts."""
_NOT_REACHED = "apply again when the node can be reached"
"""The hint of a change that is given up where an agent does not answer for minutes: it may be this busy."""
_AGAIN = 5


def apply(plan: DeploymentPlan, store: str) -> int:
    """Store a plan as the desired state, as it was decided; return the deployment's version."""
    client = Client(store)
    request = PlanRequest(dataflow=plan.dataflow, continuum=plan.continuum, decided=plan.deployment)
    return client.apply(client.propose(request))


class Controller:
    """`headwater up` in a separate process, killed and restarted at random moments."""

    def __init__(
        self, name: str, place: Path, seed: int, *, share_spark: bool = True, trigger: str | None = None
    ) -> None:
        self.name = name
        self._trigger = trigger
        self._share = "--share-spark" if share_spark else "--no-share-spark"
        self.place = place
        self.kills = 0
        self._chance = random.Random(seed)
        self._start()

    def _start(self) -> None:
        store, place = self._store, str(self.place)
        words = ["-m", "headwater", "up", "--listen", "none", "--store", store, "--home", place, "--quick", self._share]
        if self._trigger is not None:
            words = ["-c", _UP, store, place, "--quick", "--trigger", self._trigger]
        root = str(Path(__file__).resolve().parents[2])
        with (self.place / "up.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *words], stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": root}
            )

    def carry_out(self, version: int, *, kill: bool) -> None:
        """Wait until a version is in force; kill the controller meanwhile, with ``kill``."""
        change = self.end_of(version, kill=kill)
        for _ in range(_AGAIN):
            if change.outcome == "done" or _NOT_REACHED not in str(change.message):
                break
            change = self.end_of(apply(Client(self._store).stored(change.plan), self._store), kill=kill)
        assert change.outcome == "done", change

    def end_of(self, version: int, *, kill: bool) -> Change:
        """Wait until a version is finished; with ``kill``, kill the controller at one of its steps and after times."""
        begun, before = time.monotonic(), self.kills
        due = begun + self._chance.uniform(0.3, 3.0)
        part = self._chance.random()
        while True:
            (now,) = observe.status(self.name, self._store)
            if now.observed_version >= version:
                assert now.change is not None
                return now.change
            assert time.monotonic() - begun < PATIENCE, f"{now}\n{story(self.place)}"
            if kill and self.kills < before + MOST_KILLS:
                at_a_step = self.kills == before and now.change is not None and self._is_at(now.change, version, part)
                if at_a_step or time.monotonic() > due:
                    self.kill()
                    due = time.monotonic() + self._chance.uniform(0.5, 4.0)
            time.sleep(0.02 if kill and self.kills == before else 0.1)

    def _is_at(self, change: Change, version: int, part: float) -> bool:
        """Return whether this part of a change's steps, or more, has begun."""
        with closing(StoreReader.open(self._store)) as store:
            states = [entry.state for entry in store.journal(change.id)]
        begun = sum(state != "todo" for state in states)
        return change.version == version and begun > part * len(states)

    def go_through(self, plans: Iterable[DeploymentPlan], source: BoundedSource, *, files: int) -> None:
        """Put plans in force while rows flow, some files after each, then finish.

        It is killed in every change but the first.
        """
        released = iter(source.release())
        for number, plan in enumerate(plans):
            self.carry_out(apply(plan, self._store), kill=number > 0)
            for _ in range(files):
                next(released, None)
        for _ in released:
            pass
        self.carry_out(deployments.stop(self.name, self._store, how="finish"), kill=True)

    @property
    def _store(self) -> str:
        return str(self.place / "store.db")

    def kill(self) -> None:
        self.kills += 1
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._start()

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@contextmanager
def running(
    name: str, place: Path, *, seed: int, share_spark: bool = True, trigger: str | None = None
) -> Iterator[Controller]:
    """Yield a controller; end it afterwards, with the agents that it has started."""
    started = Controller(name, place, seed=seed, share_spark=share_spark, trigger=trigger)
    try:
        yield started
    finally:
        started.end()
        deployments.down(place)


def check_sinks(place: Path, name: str, expected: Mapping[str, pa.Table]) -> None:
    """Check that each memory sink of a deployment has the rows that are expected, more than three."""
    for sink, wanted in expected.items():
        got = sink_rows(place, name, sink)
        assert got.num_rows > 3 and not compare(wanted, got), sink


def sink_rows(place: Path, name: str, sink: str) -> pa.Table:
    """Return the rows of a memory sink from its logs, which the active plan names."""
    with closing(StoreReader.open(str(place / "store.db"))) as store:
        plan = store.active_plan(name)
    assert plan is not None
    logs = [Agents(place).sink(plan, u.id, sink) for u in plan.units if sink in u.operators]
    batches = [batch for log in logs for batch in log.read(log.earliest(), log.latest())]
    return pa.Table.from_batches(batches) if batches else pa.table({})
