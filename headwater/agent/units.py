"""Running units: their queries on one Spark, their channels and state in one directory.

Each unit keeps the spec it was started with: during a change, some units still follow the former plan.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from headwater.agent.activeruns import ActiveRuns, stages_of
from headwater.agent.catchupquery import CatchUpQuery
from headwater.agent.heldoutput import publish_held
from headwater.agent.querystart import Batches, QueryStart, query_name
from headwater.agent.resuming import continue_reads, resume, set_state_format
from headwater.agent.runhistory import RunHistory
from headwater.agent.timesignals import TimeSignals
from headwater.agent.unitbridges import UnitBridges
from headwater.agent.unitchannels import UnitChannels
from headwater.agent.work import Work
from headwater.channels.channelspec import lineage_of
from headwater.connectors.permitted import AgentPermissions
from headwater.core.errors import HeadwaterError, RuntimeFailure, Unavailable, UserCodeError
from headwater.core.quantity import parse_duration
from headwater.dataflow import sources
from headwater.dataflow.lookup import Lookup
from headwater.disk.catchup import end_catch_up
from headwater.disk.checkpoint import positions
from headwater.disk.durable import read_note, write_atomically
from headwater.disk.layout import Layout
from headwater.disk.pace import change_pace
from headwater.disk.repair import examine, repair
from headwater.disk.settings import UnitSettings
from headwater.plan.build import tag_of
from headwater.plan.model import Unit
from headwater.plan.spec import UnitSpec
from headwater.query.counting import Tally
from headwater.query.failure import in_zone
from headwater.query.names import replayed_of
from headwater.query.query import Running, reaching_spark, running_query
from headwater.query.tables import TableVersions
from headwater.query.unit import END_OF_TIME, CompiledUnit, UnitCompiler
from headwater.spark.endpoint import LOG

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from headwater.spark.endpoint import Endpoint

_LOOK = 0.1  # seconds between two checks of a query that is to finish
_ASK = 2.0  # seconds between two requests about it
_TRIES = 50  # waits for a query that end with an error while Spark reports the query as active
_LOG = logging.getLogger(__name__)


class Units:
    """Prepare, start, watch and stop units.

    ``share``: all nodes use one directory. Without ``receives`` no bridge is started: only stored records are
    read. ``permissions``: those of the agent; None for units of a warm-up, whose files are Headwater's.
    """

    def __init__(
        self,
        layout: Layout,
        endpoint: Endpoint,
        settings: UnitSettings,
        *,
        share: bool = False,
        receives: bool = True,
        permissions: AgentPermissions | None = None,
    ) -> None:
        self.layout = layout
        self.endpoint = endpoint
        self.settings = settings
        self.channels = UnitChannels(layout, settings, share=share)
        self.time_signals = TimeSignals(layout, self.channels, settings)
        self.bridges = UnitBridges(layout, settings, receives=receives)
        self._starts = QueryStart(layout, endpoint, settings, permissions)
        self._generation = endpoint.generation
        self._losing = threading.Lock()
        self._work: dict[str, Work] = {}
        self._ready: dict[str, tuple[UnitSpec, str, CompiledUnit]] = {}
        """Specs of units that were compiled as a check, and the Spark they were compiled for."""
        self.run_history = RunHistory(endpoint)
        self._active = ActiveRuns()
        self._saved: dict[str, str] = {}
        """The totals last written, by unit."""
        self.catching_up: dict[str, CatchUpQuery] = {}
        """Queries of units that repeat the batches of others, to take over from them."""
        self.warm_ups: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        """Locks by checkpoint: one warm-up per unit at a time."""

    def __getitem__(self, unit: str) -> Work:
        return self._work[unit]

    def get(self, unit: str) -> Work | None:
        return self._work.get(unit)

    def all(self) -> tuple[Work, ...]:
        return tuple(self._work.values())

    # ------------------------------------------------------------ before a unit runs

    def enter(self, spec: UnitSpec) -> Work:
        """Add a unit, with its stored totals."""
        work = self._work[spec.id] = self.remembered(spec)
        return work

    def remembered(self, spec: UnitSpec) -> Work:
        """Return a unit's stored totals, without adding it."""
        saved = read_note(self.layout.state(spec.unit))
        return Work(
            spec,
            finished=bool(saved.get("finished")),
            rows_before=int(saved.get("rows_in", 0)),
            late_before=int(saved.get("late_rows", 0)),
        )

    def prepare(self, spec: UnitSpec) -> None:
        """Make a unit's output channels with their readers, and set its inputs."""
        self.channels.prepare_outputs(spec)
        self.update_inputs(spec)

    def update_inputs(self, spec: UnitSpec, *, joins: bool = False) -> None:
        """Set the logs of each input of a unit, which may run; removed logs are read to their end.

        ``joins``: it begins at their current end.
        """
        self.channels.set_inputs(spec, joins=joins)
        work = self._work.get(spec.id)
        if work is not None:
            work.spec = spec

    # ------------------------------------------------------------ starting and stopping

    def check(self, spec: UnitSpec) -> None:
        """Compile a unit, so that its start need not, and let Spark analyze its query; raise their errors."""
        spark, compiled = self.endpoint.generation, self.compile(spec)
        with self._explained(spec), self.asking_spark():
            _ = compiled.frame.isStreaming
        self._ready[spec.id] = (spec, spark, compiled)

    def has_run_operators(self, spec: UnitSpec) -> bool:
        """Return whether this Spark, since its start, has run all operators of a unit but sinks."""
        running = (w.spec for w in self.all() if w.running is not None and w.running.last_batch >= 0)
        return self.run_history.knows_operators(spec, running)

    def _compiled(self, spec: UnitSpec) -> CompiledUnit:
        ready = self._ready.get(spec.id)
        if ready is not None and ready[0].digest == spec.digest:
            del self._ready[spec.id]
        else:
            ready = None  # a version that is to replace this one, which starts once more before
        if any(isinstance(o, Lookup) for o in spec.flow.operators):
            return self.compile(spec, starts=True)
        return ready[2] if ready is not None and ready[1] == self.endpoint.generation else self.compile(spec)

    def compile(self, spec: UnitSpec, *, starts: bool = False, catches_up: bool = False) -> CompiledUnit:
        """Compile a unit; raise its errors. Nothing is started.

        ``starts``: its query is to begin with changed reference tables, which a running one must not see.
        ``catches_up``: it is to repeat the batches of another unit first.
        """
        options = self.settings.channel_options()
        with self._explained(spec), self.asking_spark():
            spark = self.endpoint.session()
            cores, measure = self.endpoint.cores, self.settings.measure
            checkpoint = self.layout.checkpoint(spec.unit)
            tables = {
                id_: versions.begin(spark, checkpoint) if starts else versions.current(spark)
                for id_, versions in self._tables(spec).items()
            }
            compiler = UnitCompiler(
                spec, spark, self.layout, options, cores, tables=tables, measure=measure, catches_up=catches_up
            )
            return compiler.compile()

    def _tables(self, spec: UnitSpec) -> dict[str, TableVersions]:
        """Return the reference tables of a unit by operator; an edited one has versions of its own."""
        unit = spec.unit
        found = (o for o in spec.flow.operators if isinstance(o, Lookup))
        return {
            o.id: TableVersions(self.layout.table(unit, f"{o.id}-{tag_of(spec.flow.keys[o.id])}"), o) for o in found
        }

    def start(self, spec: UnitSpec, *, batches: Batches = "on_trigger") -> None:
        """Start a unit's query where it stopped last, or adopt it when it runs already."""
        with self._explained(spec), self.asking_spark():
            self._start(spec, batches)

    def _start(self, spec: UnitSpec, batches: Batches) -> None:
        work = self.enter(spec)
        if work.finished:
            return
        adopted = self._adopt(work)
        self.bridges.start(spec)
        if adopted:
            return
        checkpoint = self.layout.checkpoint(spec.unit)
        with work.refusing():
            lineage_of(checkpoint)
        compiled = self._compiled(spec)
        work.controlled, work.replayed = compiled.controlled, compiled.replayed
        with work.refusing():
            resume(spec, checkpoint, compiled.sink_writers, partial(self.channels.log, spec))
            set_state_format(spec, checkpoint)
            continue_reads(spec, checkpoint, compiled.reads)
        work.running = self._starts.start(spec, compiled, batches, taken=self._slots_beside(spec))
        self._save(work)
        work.running.wait_until_ready()

    def catch_up(self, spec: UnitSpec) -> Running:
        """Start a unit's query to repeat the batches of another unit; it is not among the units yet."""
        with self._explained(spec), self.asking_spark():
            if (
                self.endpoint.attached
                and (left := running_query(self.endpoint.session(), query_name(spec))) is not None
            ):
                self._end_query(spec, left)
            checkpoint = self.layout.checkpoint(spec.unit)
            repair(checkpoint, examine(checkpoint))
            compiled = self.compile(spec, catches_up=True)
            running = self._starts.start(spec, compiled, taken=self._slots_beside(spec), catches_up=True)
            running.wait_until_ready()
            return running

    def take_over(self, spec: UnitSpec, running: Running, batch: int) -> None:
        """Let a query that has repeated the batches of another unit, up to one, go on as the unit's."""
        work = self.enter(spec)
        reached = positions(self.layout.checkpoint(spec.unit))
        work.running = replace(
            running, last_batch=batch, paid=batch, reached=reached, tally=Tally(running.tally.counting)
        )
        self._save(work)

    def _slots_beside(self, spec: UnitSpec) -> int:
        """Count the slots that the queries of other units hold in real-time mode."""
        others = (w.running for w in self.all() if w.spec.id != spec.id)
        return sum(running.slots for running in others if running is not None)

    def adopt(self, spec: UnitSpec) -> None:
        """Add a unit whose query an earlier agent has left running, if there is one, so that it can be stopped."""
        work = self.remembered(spec)
        if work.finished or not self.endpoint.alive:
            return
        with self.asking_spark():
            if self._adopt(work):
                self._work[spec.id] = work

    def _adopt(self, work: Work) -> bool:
        """Adopt a running query of this unit, if it has the same key and epoch."""
        name = query_name(work.spec)
        query = running_query(self.endpoint.session(), name) if self.endpoint.attached else None
        if query is None:
            return False
        saved = read_note(self.layout.state(work.unit))
        if saved.get("runs") != _runs(work.unit) or saved.get("back_to_back"):
            self._end_query(work.spec, query)  # an older query that was to be stopped, or one that drained
            return False
        work.controlled = bool(saved.get("controlled"))
        work.replayed = frozenset(saved.get("replayed", ()))
        change_pace(self.layout.pace(work.unit), ending=False, draining=False, finishing=False)
        # An idle query may make no further batch that would show its positions.
        checkpoint = self.layout.checkpoint(work.unit)
        reached, explain = positions(checkpoint), self._starts.explain(work.spec)
        work.running = Running.resumed(query, saved, explain, reached=reached, checkpoint=checkpoint)
        return True

    def end_catch_up(self, spec: UnitSpec) -> None:
        """End the query of a unit that repeats the batches of another, also one of an earlier agent."""
        known = self.catching_up.pop(spec.id, None)
        running = known.started() if known is not None else None
        if running is not None and self.endpoint.alive:
            self._end_query(spec, running.query)
        elif self.endpoint.alive and self.endpoint.attached and self.get(spec.id) is None:
            query = running_query(self.endpoint.session(), query_name(spec))
            if query is not None:
                self._end_query(spec, query)

    def _end_query(self, spec: UnitSpec, query: StreamingQuery) -> None:
        self._wait_no_longer(spec.unit)
        query.stop()

    def _wait_no_longer(self, unit: Unit) -> None:
        """Let the sources of a query that is to be stopped wait for nothing, and begin no batch."""
        end_catch_up(self.layout.catch_up(unit))
        change_pace(self.layout.pace(unit), ending=True)

    def is_outdated(self, work: Work) -> bool:
        """Return whether a running query is to be started again.

        It was started before the first record was replayed to one of its sources, or before a reference table changed.
        """
        if work.running is None or work.finished:
            return False
        found = (o for o in work.spec.flow.operators if isinstance(o, sources.Source))
        there = {o.id for o in found if replayed_of(self.layout, o) is not None}
        return not there <= work.replayed or self._has_changed_table(work)

    def _has_changed_table(self, work: Work) -> bool:
        """Look for changes of the reference tables whose time has come."""
        now = time.monotonic()
        for id_, versions in self._tables(work.spec).items():
            lookup = work.spec.flow[id_]
            if not isinstance(lookup, Lookup) or lookup.refresh is None:
                continue
            if now < work.tables_due.setdefault(id_, now + parse_duration(lookup.refresh)):
                continue
            work.tables_due[id_] = now + parse_duration(lookup.refresh)
            if versions.has_changed(self.endpoint.session):
                return True
        return False

    def stop(self, unit: str, *, at_once: bool = False, level: bool = False) -> None:
        """End a unit's query at a batch boundary and store its totals; see ``Running.stop``."""
        self.bridges.stop(unit)
        work = self._work.get(unit)
        if work is None or work.running is None or work.finished or not self.endpoint.alive:
            return
        self._wait_no_longer(work.unit)
        work.running.stop(self.layout.checkpoint(work.unit), at_once=at_once, level=level)
        work.running.observe()
        if work.running.last_batch >= 0:
            self.run_history.add(work.spec)
        self._save(work)

    def lose_ended(self) -> None:
        """Mark all queries as ended when Spark has ended and was restarted."""
        with self._losing:  # else a query started meanwhile would be taken for an ended one
            if self.endpoint.generation == self._generation:
                return
            self._generation = self.endpoint.generation
            self.catching_up.clear()
            for work in self.all():
                try:
                    self._save_running(work)
                except OSError as error:  # a full disk; the query starts again all the same
                    text = "%s: its totals are not saved, and go back to the last saved ones: %s"
                    _LOG.warning(text, work.unit.id, error, extra={"unit": work.unit.id, "epoch": work.unit.epoch})
                work.running = None

    def forget(self, unit: Unit) -> None:
        """Drop a unit's data in memory."""
        self._work.pop(unit.id, None)

    # ------------------------------------------------------------ the end of input

    def finish(self, unit: str, stop: threading.Event) -> bool:
        """Let a unit use up its input, close its windows and end its channels; False when it could not."""
        work = self._known(unit)
        if work.finished:
            return True
        running = self._running(work)
        if not self._ended(work, stop):
            return False
        change_pace(self.layout.pace(work.unit), finishing=True)
        if not self._used_up(work, running, stop):
            return False
        if work.controlled:
            self.end_time(work.spec, str(running.query.runId))
            if not self._settled(work, running, stop):
                return False
        running.stop()
        running.observe()
        publish_held(work.spec, self.layout)
        for channel in work.spec.outputs:
            self.channels.log(work.spec, channel).end(work.unit.epoch)
        work.finished = True
        self._save(work)
        return True

    def end_time(self, spec: UnitSpec, run: str) -> None:
        """Let the event time of a unit's sources come to its end, in a run of its query.

        Every run is told again. Spark does not close windows after a restart before there is input, although the last
        batch has advanced the watermark, and it forgets the event time of single inputs when a query ends.
        """
        self.time_signals.signal(spec.unit, "end-*", f"end-{run}", END_OF_TIME)

    def settle(self, unit: str, stop: threading.Event | None = None) -> None:
        """Wait until a unit has processed the input that has arrived so far; raise the error that ended it."""
        work = self._known(unit)
        stop = stop or threading.Event()
        if work.finished or self._settled(work, self._running(work), stop) or stop.is_set():
            return
        raise self._running(work).failure(unit) or RuntimeFailure("stopped", where=f"unit {unit}")

    def _known(self, unit: str) -> Work:
        if unit not in self._work:
            raise Unavailable("is not running (yet)", where=f"unit {unit}", hint="start it, or wait")
        return self._work[unit]

    def _running(self, work: Work) -> Running:
        if work.running is None:
            raise Unavailable("is not running (yet)", where=f"unit {work.unit.id}", hint="start it, or wait")
        return work.running

    def _ended(self, work: Work, stop: threading.Event) -> bool:
        """Wait until all inputs have ended, and their ends have arrived here."""
        logs = [self.channels.log(work.spec, c) for c in work.spec.inputs]
        while not all(log.stats().ended for log in logs):
            if stop.wait(_LOOK):
                return False
        return True

    def _used_up(self, work: Work, running: Running, stop: threading.Event) -> bool:
        """Wait until a unit has read all its input, paced sources included."""
        while True:
            if not self._settled(work, running, stop):
                return False
            paced = [
                s
                for i in work.unit.operators
                if isinstance(s := work.spec.flow[i], sources.SensorSource) and s.rows is not None
            ]
            running.observe()
            wanted = sum((s.rows or 0) * len(work.unit.locations) for s in paced)
            if not paced or work.rows_in >= wanted:
                return True
            stop.wait(_LOOK)

    def _settled(self, work: Work, running: Running, stop: threading.Event) -> bool:
        """Wait until a query has nothing left to do; False when it failed or ``stop`` was set."""
        error: Exception | None = None
        with self.asking_spark():
            for _ in range(_TRIES):
                error = self._processed(work, running, stop)
                if stop.is_set() or running.failure(work.unit.id) is not None:
                    return False
                if error is None:
                    return True
                stop.wait(_LOOK)  # Spark tells the error of a query before the query has ended
            raise RuntimeFailure(
                f"waiting for the end of its input failed, while its query runs: {error}",
                where=f"unit {work.unit.id}",
                hint=f"read {self.endpoint.directory / LOG}; run again: it continues where it stopped",
            )

    def _processed(self, work: Work, running: Running, stop: threading.Event) -> Exception | None:
        """Wait until Spark answers that a query has processed its input, or has failed; return Spark's error."""
        done, errors = threading.Event(), list[Exception]()

        def wait() -> None:
            try:
                running.query.processAllAvailable()
            except Exception as error:
                errors.append(error)
            done.set()

        threading.Thread(target=wait, daemon=True, name=f"settle {work.unit.id}").start()
        asked = time.monotonic()
        while not done.wait(_LOOK):
            self.need_spark()
            if stop.is_set():
                return None
            if time.monotonic() - asked > _ASK:  # an answer may be lost
                asked = time.monotonic()
                if running.failure(work.unit.id) is not None:
                    return None
        self.need_spark()
        return errors[0] if errors else None

    # ------------------------------------------------------------ observation

    @contextlib.contextmanager
    def asking_spark(self) -> Iterator[None]:
        """Interpret failed requests as the end of Spark where the server is gone."""
        with reaching_spark(str(self.endpoint.directory)):
            try:
                yield
            except HeadwaterError:
                raise
            except Exception:
                self.need_spark()
                raise

    def active_runs(self) -> Collection[str]:
        """Return the run ids of all active queries, by one request; nothing if Spark does not answer.

        Where no query moves, the answer is that of the last request for some seconds.
        """
        running = [work.running for work in self.all() if work.running is not None]
        if not self.endpoint.alive or not running:
            return ()

        def ask() -> Collection[str]:
            return {str(query.runId) for query in self.endpoint.session().streams.active}

        try:
            return self._active.now(ask, stages_of(running))
        except Exception:  # the callers then ask each query, and explain its error
            return ()

    @contextlib.contextmanager
    def _explained(self, spec: UnitSpec) -> Iterator[None]:
        """Explain errors of Spark's and the system's about a unit."""
        try:
            yield
        except UserCodeError as error:  # a function over DataFrames, which runs when the unit is compiled
            error.where = f"{error.where}, unit {spec.id}"
            raise in_zone(spec, self.endpoint.directory / LOG, error) from error
        except HeadwaterError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else str(error)
            raise self._starts.explain(spec)(text, spec.id) from error

    def need_spark(self) -> None:
        """Raise Unavailable when Spark has ended by itself."""
        if not self.endpoint.alive:
            raise Unavailable(
                "Spark has ended",
                where=str(self.endpoint.directory / LOG),
                hint="read the log; run again: it continues where it stopped",
            )

    def save(self) -> None:
        """Store the totals of all running units."""
        for work in self.all():
            self._save_running(work, if_changed=True)

    def _save_running(self, work: Work, *, if_changed: bool = False) -> None:
        if work.running is not None and not work.finished:
            self._save(work, if_changed=if_changed)

    def _save(self, work: Work, *, if_changed: bool = False) -> None:
        """Store a unit's totals; ``if_changed``: not where the last ones stored since its start are the same."""
        assert work.running is not None
        state = {
            "rows_in": work.rows_in,
            "late_rows": work.late_rows,
            "finished": work.finished,
            "runs": _runs(work.unit),
            "controlled": work.controlled,
            "replayed": sorted(work.replayed),
            **work.running.note(),
        }
        text = json.dumps(state)
        if if_changed and self._saved.get(work.unit.id) == text:
            return  # a write that is synced costs more than an idle query
        write_atomically(self.layout.state(work.unit), text)
        self._saved[work.unit.id] = text


def _runs(unit: Unit) -> str:
    """Identify a unit's incarnation: another computation has another epoch."""
    return f"{unit.tag} {unit.epoch}"
