"""Run a deployment in this process: the controller and one agent for all nodes, on one Spark.

It works as zones do, without a network: a plan is stored as the desired state, compared with the unit statuses, and
executed step by step, with state transfer. The next run continues where this one stopped.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.agent.agent import Agent
from headwater.agent.agents import AgentClient
from headwater.agent.tasks import NodeTasks
from headwater.app.checks import refuse_endless, refuse_finished
from headwater.channels.filelog import FileLog
from headwater.connectors.deadletters import read_dead_letters
from headwater.continuum.model import Node
from headwater.control.calls import Calls
from headwater.control.controller import Controller
from headwater.control.executor import Executor
from headwater.control.store import Store
from headwater.core.errors import (
    BrokerAway,
    DeploymentError,
    RuntimeFailure,
    SparkStumbled,
    Unavailable,
    WaitsForBroker,
)
from headwater.core.jsonform import dump_json
from headwater.core.metrics import Progress
from headwater.dataflow.sinks import ConsoleSink, MemorySink
from headwater.disk.durable import make_directory, read_note, write_atomically
from headwater.disk.layout import RUN_STORE, Layout
from headwater.disk.settings import UnitSettings
from headwater.plan.document import inherit
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.port import TakeStamp
from headwater.plan.spec import UnitSpec, spec_of
from headwater.plan.steps import FormerOutputChoice
from headwater.spark.endpoint import LOG
from headwater.spark.sparks import Sparks

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.spark.endpoint import Endpoint

_LOG = logging.getLogger(__name__)
_LOOK = 0.02  # seconds between two attempts at a step
_ASK = 0.5  # seconds between two requests for the state of all queries, while units finish
_LEASE = 30.0
_STUMBLES = 3  # restarts of a unit after errors of Spark itself
_AWAY_SECONDS = 1.0  # seconds between two looks for a broker that a unit waits for


class SharedAgent(Agent):
    """An agent of all nodes, with one deployment that owns the directory."""

    def __init__(self, directory: Path, sparks: Sparks, settings: UnitSettings) -> None:
        super().__init__("this process", directory, sparks, settings, share=True)

    def begin(self) -> None:
        """Read the stored units; start none."""
        for name in self._remembered():
            self._open(name)

    def _remembered(self) -> list[str]:
        found = sorted((self.directory / "specs").glob("*.json"))
        return [str(json.loads(found[0].read_text())["deployment"])] if found else []

    def _place_of(self, name: str) -> Path:
        return self.directory

    def _check_own(self, spec: UnitSpec) -> None:
        pass


class LocalRun:
    """Run a plan in a directory: start, watch, drain, stop.

    ``endpoint`` is the Spark of all units; it is not ended here.
    """

    def __init__(
        self,
        plan: DeploymentPlan,
        directory: Path,
        endpoint: Endpoint,
        settings: UnitSettings | None = None,
    ) -> None:
        self.plan = plan
        self.name = plan.dataflow.name
        self.layout = Layout(directory.resolve())
        self._endpoint = endpoint
        state = str(self.layout.root / "state")
        self._settings = replace(settings or UnitSettings(), state_store=state)
        self._agent = SharedAgent(self.layout.root, Sparks(directory, given=endpoint), self._settings)
        self._stopped = False
        self._began = time.monotonic()
        self._stumbles: dict[str, int] = {}
        self._away: dict[str, float] = {}
        """Units that wait for a broker, and when it is looked for again (monotonic seconds)."""
        self._mending = threading.Lock()
        self._acting = threading.Lock()
        self._asked = -math.inf
        self._deployed: NodeTasks | None = None

    # ------------------------------------------------------------ life

    def start(self, *, reset_state: frozenset[str] = frozenset(), former_output: FormerOutputChoice = "refuse") -> None:
        """Apply the plan from the current unit statuses; continue where a former run stopped.

        Raises DeploymentError where the plan cannot replace the stored one, or that has finished.
        """
        self._began = time.monotonic()
        make_directory(self.layout.root)
        self._endpoint.session()
        with closing(Store(self.layout.root / RUN_STORE)) as store:
            take_over(self.plan, self.layout, store)
            self._agent.begin()
            refuse_finished(store, self.name, self.layout.root)
            self._resume()
            self._act(store, "run", reset_state=reset_state, former_output=former_output)
            base = store.active_plan(self.name)
            assert base is not None
            self.plan = base
        self._deployed = self._agent.deployed(self.name)

    def _resume(self) -> None:
        """Start the units that ran when the last run ended, as many at a time as there are cores.

        More at a time would be slower, and Spark gives up on a Python worker that does not start within 10 s.
        """
        deployed = self._agent.deployed(self.name)
        if deployed is None:
            return
        running = [s for s in deployed.stored.in_force() if deployed.stored.wanted().get(_key(s)) == "running"]
        with ThreadPoolExecutor(max(1, self._endpoint.cores)) as pool:
            for started in [pool.submit(deployed.start, spec) for spec in running]:
                started.result()

    def _act(
        self,
        store: Store,
        goal: Any,
        *,
        reset_state: frozenset[str] = frozenset(),
        former_output: FormerOutputChoice = "refuse",
        going_on: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Store a desired state and execute it; return False where it did not reach its end."""
        calls = Calls("step", most=max(2, self._endpoint.cores))
        controller = Controller(
            store,
            self._open,
            lease=_LEASE,
            executor=lambda ports: Executor(ports, calls=calls, shortest=0.2, longest=2.0, look=_LOOK),
        )
        with self._acting:
            _until(controller.lease.hold)
            try:
                plan = self.plan if goal == "run" else None
                version = store.want(self.name, goal, plan, reset_state=reset_state, former_output=former_output)
                while (record := store.deployment(self.name)).observed_version < version:
                    wait = controller.advance(self.name)
                    if not going_on():
                        return False
                    time.sleep(wait)
                    controller.lease.hold()
            finally:
                controller.lease.release()
        change = store.changes(self.name)[-1]
        if change.outcome not in ("done", None):
            what, _, hint = (change.message or record.message).partition("\n  -> ")
            raise DeploymentError(what, where=str(self.layout.root), hint=hint or "start afresh with --fresh")
        return True

    def _open(self, node: Node, stamps: TakeStamp) -> AgentClient:
        actions = self._agent.actions()
        return AgentClient(node.name, lambda call, body, seconds: actions[call](dict(body)), stamps)

    def stop(self) -> None:
        """Stop every query at a batch boundary and store the totals; the next run continues."""
        if not self._stopped:
            self._stopped = True
            self._agent.end(units=True)

    def look(self) -> None:
        """Restart units that failed by an error of Spark itself, wait for a broker, or join with a changed table.

        Let event time advance.
        """
        if self._deployed is not None and not self._stopped:
            self._need_spark()
            active = self._deployed.active_runs()
            for unit in self.plan.units:
                self._mend(unit, active)
            self._deployed.restart_outdated()
            self._deployed.advance_time()

    def _mend(self, unit: Unit, active: Collection[str] = ()) -> bool:
        """Restart a unit that has failed; return False where it has failed for good.

        ``active``: see `Running.failure`.
        """
        assert self._deployed is not None
        with self._mending:
            error = self._deployed.failure(unit.id, active)
            if isinstance(error, WaitsForBroker) or unit.id in self._away:
                self._restart_at_broker(unit, error)
                return True
            if error is None:
                return True
            tried = self._stumbles.get(unit.id, 0)
            if not isinstance(error, SparkStumbled) or tried >= _STUMBLES or self._stopped:
                return False
            _LOG.warning("%s: %s; started again", error.where, error.what.rstrip("."))
            self._stumbles[unit.id] = tried + 1
            self._deployed.start(spec_of(self.plan, unit.id))
            return True

    def _restart_at_broker(self, unit: Unit, error: RuntimeFailure | None) -> None:
        """Restart a unit that waits for a broker, if the broker answers."""
        assert self._deployed is not None
        if unit.id not in self._away and error is not None:
            _LOG.warning("%s: %s; it waits", error.where, error.what)
        if self._stopped or time.monotonic() < self._away.get(unit.id, 0.0):
            return
        spec = spec_of(self.plan, unit.id)
        try:
            self._deployed.units_of(spec).channels.reach_brokers(spec)
            self._deployed.start(spec)
        except BrokerAway:
            self._away[unit.id] = time.monotonic() + _AWAY_SECONDS
        else:
            self._away.pop(unit.id, None)
            _LOG.warning("unit %s: the broker answers, the unit continues", unit.id)

    def drain(self, *, stop: threading.Event | None = None) -> None:
        """Wait until bounded sources are used up and every unit has reached the end of its input.

        Open windows then close, as in a batch run; the deployment is finished and takes no more input. Raises
        DeploymentError where a source is unbounded, RuntimeFailure where a unit failed.
        """
        refuse_endless(self.plan)
        assert self._deployed is not None
        with closing(Store(self.layout.root / RUN_STORE)) as store:
            self._act(store, "finish", going_on=lambda: self._goes_on(stop))

    def _goes_on(self, stop: threading.Event | None) -> bool:
        """Return whether a drain is still running; raise the error of a unit that has failed for good."""
        assert self._deployed is not None
        self._need_spark()
        if time.monotonic() - self._asked >= _ASK:
            self._asked = time.monotonic()
            active = self._deployed.active_runs()
            for unit in self.plan.units:
                if not self._mend(unit, active) and (error := self._deployed.failure(unit.id, active)) is not None:
                    raise error
        return stop is None or not stop.is_set()

    def settle(self) -> None:
        """Wait until every unit has processed the input that has arrived so far."""
        assert self._deployed is not None
        deployed = self._deployed

        def settled(unit: Unit) -> None:
            while True:
                try:
                    deployed.settle(spec_of(self.plan, unit.id))
                    return
                except (SparkStumbled, WaitsForBroker, Unavailable) as error:
                    self._need_spark()
                    waits = isinstance(error, BrokerAway) or unit.id in self._away
                    if (isinstance(error, Unavailable) and not waits) or not self._mend(unit):
                        raise
                    time.sleep(_LOOK)

        def after(feeding: Sequence[Future[None]], unit: Unit) -> None:
            for one in feeding:
                one.result()
            settled(unit)

        done: dict[str, Future[None]] = {}
        with ThreadPoolExecutor(min(32, len(self.plan.units))) as pool:
            for unit in self.plan.units:  # upstream units first: none waits for one that has not begun
                feeding = [done[c.producer] for c in self.plan.inputs(unit)]
                done[unit.id] = pool.submit(after, feeding, unit)
        for future in done.values():
            future.result()

    # ------------------------------------------------------------ observation

    def progress(self) -> Progress:
        """Return the deployment's state; raise Unavailable if its Spark has ended by itself."""
        if self._deployed is None:
            return Progress(seconds=0.0)
        if not self._stopped:
            self._need_spark()
        found = self._deployed.progress(stopped=self._stopped)
        order = {unit.id: n for n, unit in enumerate(self.plan.units)}
        units = sorted(found.units, key=lambda u: order.get(u.unit, len(order)))
        return replace(found, seconds=time.monotonic() - self._began, units=tuple(units))

    def _need_spark(self) -> None:
        if not self._endpoint.alive:
            raise Unavailable(
                "Spark has ended",
                where=str(self._endpoint.directory / LOG),
                hint="read the log; run again: it continues where it stopped",
            )

    def sink_rows(self, sink: str) -> pa.Table:
        """Return the rows of a memory or console sink, over all its zones."""
        import pyarrow as pa

        operator = self.plan.dataflow[sink]
        if not isinstance(operator, (MemorySink, ConsoleSink)):
            raise DeploymentError(
                f"'{sink}' is not a memory or console sink",
                hint="read the files, the topic or the table that it writes",
            )
        batches = []
        for log in self._sink_logs(sink):
            batches += list(log.read(log.earliest(), log.latest()))
        if not batches:
            schema = self.plan.dataflow.types[sink].schema.text
            return self._endpoint.session().createDataFrame([], schema).toArrow()
        return pa.Table.from_batches(batches)

    def sink_tail(self, sink: str, positions: dict[str, int]) -> Iterator[pa.RecordBatch]:
        """Return the rows of a console sink since ``positions``, and update these."""
        for log in self._sink_logs(sink):
            start, end = positions.get(str(log.path), log.earliest()), log.latest()
            yield from log.read(start, end)
            positions[str(log.path)] = end

    def _sink_logs(self, sink: str) -> list[FileLog]:
        tag = self.plan.tags[sink]
        writers = [u for u in self.plan.units if sink in u.operators]
        return [FileLog(self.layout.sink(sink, tag, unit)) for unit in writers]

    def dead_letters(self) -> Iterator[dict[str, Any]]:
        """Return the deployment's dead letters."""
        return read_dead_letters(self.layout.all_dead_letters)


def _key(spec: UnitSpec) -> tuple[str, str, int]:
    return spec.unit.id, spec.unit.tag, spec.unit.epoch


def _until(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 3 * _LEASE
    while not so():
        if time.monotonic() > deadline:
            raise Unavailable("another process acts on this run's store", hint="stop that one first")
        time.sleep(0.1)


# ---------------------------------------------------------------- directories of older versions


def take_over(plan: DeploymentPlan, layout: Layout, store: Store) -> None:
    """Import into the store a directory that an older version ran in, with the names of its units.

    That version stored only the ids and tags of units. Raises DeploymentError where the plan has changed: the older
    version could not have continued in that directory either.
    """
    if not layout.plan.exists():
        return
    try:
        noted = json.loads(layout.plan.read_text())
        keys, units = dict(noted["keys"]), {u["id"]: u for u in noted["units"]}
    except (ValueError, KeyError, TypeError) as error:
        raise DeploymentError(
            f"the stored plan cannot be read: {error!r}",
            where=str(layout.plan),
            hint="start afresh with --fresh",
        ) from error
    if keys != dict(plan.dataflow.keys) or units.keys() != {u.id for u in plan.units}:
        changed = sorted(o for o in keys | dict(plan.dataflow.keys) if keys.get(o) != plan.dataflow.keys.get(o))
        what = f"changed: {', '.join(changed[:5])}" if changed else "the same operators, with another placement"
        raise DeploymentError(
            f"the directory holds a deployment of another plan, by an older version ({what})",
            where=str(layout.root),
            hint="run it once as it was, then edited; or start afresh with --fresh (its state is given up)",
        )
    named = inherit(
        plan,
        unit_tags={id_: u["tag"] for id_, u in units.items()},
        epochs={id_: u["epoch"] for id_, u in units.items()},
    )
    finished = all(read_note(layout.state(unit)).get("finished") for unit in named.units)
    tasks = []
    for unit in named.units:
        spec = spec_of(named, unit.id)
        write_atomically(layout.root / "specs" / f"{spec.digest}.json", dump_json(spec).decode())
        tasks.append({"unit": spec.id, "digest": spec.digest, "wanted": "finished" if finished else "stopped"})
    write_atomically(layout.root / "tasks.json", json.dumps({"tasks": tasks}))
    store.adopt(named, finished=finished)
    layout.plan.rename(layout.plan.with_suffix(".json.old"))
