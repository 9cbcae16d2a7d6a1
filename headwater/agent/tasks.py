"""One deployment on one node: the newest order for each unit, and the loop that enforces it."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headwater.agent import catchup
from headwater.agent.batchspans import BatchSpans
from headwater.agent.earlybatches import begin_early, keep_interval, level_reads
from headwater.agent.finishing import Finishing
from headwater.agent.formeroutput import settle
from headwater.agent.heldoutput import try_to_publish
from headwater.agent.relays import Relays
from headwater.agent.storedtasks import StoredTasks, Task
from headwater.agent.units import Units
from headwater.agent.watch import WINDOW, Meters, progress_of
from headwater.agent.work import Work
from headwater.channels.channelspec import channel_spec, is_copied
from headwater.channels.kafkaclient import looking
from headwater.channels.open import remove_log
from headwater.channels.sentmeter import SentMeter
from headwater.connectors.permitted import AgentPermissions, check_unit
from headwater.core.errors import (
    BrokerAway,
    DeploymentError,
    RuntimeFailure,
    Unavailable,
    UserCodeError,
    WaitsForBroker,
)
from headwater.core.metrics import Progress
from headwater.disk.checkpoint import cut_off, reads_agree, take_back
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from headwater.plan.model import Channel
from headwater.plan.spec import UnitSpec
from headwater.plan.steps import FormerOutputChoice, incarnation
from headwater.query.query import Running
from headwater.spark.hosts import HostMeter
from headwater.spark.sparks import Sparks

_LOG = logging.getLogger(__name__)
_AGAIN, _AGAIN_MOST = 1.0, 60.0  # seconds before a failed unit is restarted
_WARN_BELOW = 24 * 3600.0  # seconds until a buffer is full, below which a warning is logged
_LOOK = 0.05  # seconds between two checks of a batch that is to end
_TRIES = 5  # seconds to stop a unit between two batches
_BATCH_SECONDS = 60.0  # seconds to repeat a batch that was cut off
_CALM = 300.0  # seconds after which a unit's failures are forgotten


@dataclass
class _Failures:
    """Recent failures of a unit, and the time of its next start."""

    count: int = 0
    last: float = 0.0
    due: float = 0.0
    error: RuntimeFailure | None = None


class NodeTasks:
    """Units of a node, each with its spec; every request may be repeated.

    ``share``: all nodes use this directory, and nothing is copied between them.
    """

    def __init__(
        self,
        name: str,
        node: str,
        directory: Path,
        sparks: Sparks,
        peers: Mapping[str, str],
        grants: Mapping[str, str],
        settings: UnitSettings,
        hosts: HostMeter,
        *,
        share: bool = False,
        permissions: AgentPermissions,
        sent_meter: SentMeter,
    ) -> None:
        self.name = name
        self.node = node
        self.layout = Layout(directory)
        self._sparks = sparks
        self._settings = settings
        self._hosts = hosts
        self._share = share
        self._sent_meter = sent_meter
        self._permissions = permissions
        self.stored = StoredTasks(node, directory)
        self._own: Units | None = None
        self._relays = Relays(name, node, self.layout, self._settings, peers, grants)
        self._failures: dict[str, _Failures] = {}
        self._finishing = Finishing()
        self._goals: dict[tuple[str, str], dict[str, int]] = {}
        self._drained: set[str] = set()
        """Units that have read all their input: others can do the rest of it in a next batch."""
        self._meters = Meters()
        self._spans = BatchSpans()
        self._warned: dict[str, float] = {}
        self._progress: Progress | None = None
        self._began = time.monotonic()
        for spec in self.stored.in_force():
            self._pull(spec)

    def _pull(self, spec: UnitSpec) -> None:
        if not self._share:
            self._relays.pull(spec)

    def units_of(self, spec: UnitSpec) -> Units:
        """Return the units of the node's Spark, which may rest; start it at first use."""
        if self._own is not None:
            return self._own
        endpoint = self._sparks.of(spec.node)
        with self.stored.lock:
            if self._own is None:
                self._own = Units(
                    self.layout, endpoint, self._settings, share=self._share, permissions=self._permissions
                )
            return self._own

    def _with_spark(self, spec: UnitSpec) -> Units:
        """Return the units of the node's Spark, which runs."""
        units = self.units_of(spec)
        self._sparks.of(spec.node)
        units.lose_ended()  # before anything starts on a Spark that was started again
        return units

    @property
    def needs_spark(self) -> bool:
        """Return whether a unit is to run, or has not ended."""
        works = self._own.all() if self._own is not None else ()
        left = any(work.running is not None and not work.finished for work in works)
        left = left or (self._own is not None and bool(self._own.catching_up))
        return left or "running" in self.stored.wanted().values()

    # ------------------------------------------------------------ requests

    def permit(self, spec: UnitSpec) -> None:
        """Raise the error of a resource or option of a unit that is not permitted here."""
        check_unit(spec, self._permissions)

    def check(self, spec: UnitSpec) -> None:
        """Compile a unit without starting it; raise its errors."""
        self.permit(spec)
        self._with_spark(spec).check(spec)

    def former_output(self, spec: UnitSpec, choice: FormerOutputChoice, sinks: Sequence[str] = ()) -> None:
        """Refuse, keep or remove other runs' output in sinks of a unit that have no rows yet; none stands for all."""
        self.permit(spec)
        settle(spec, choice, lambda: self._with_spark(spec).endpoint.session(), sinks)

    def prepare(self, spec: UnitSpec, joining: frozenset[str] = frozenset()) -> None:
        """Make a unit's channels, register their readers, begin to pull its inputs.

        A unit with a new tag begins at the positions of its predecessor with the same id; it and its ``joining``
        readers begin at the current ends of their inputs otherwise. The inputs of a running unit stay as they are.
        Raises Unavailable while the copy of a removed input is incomplete.
        """
        self.permit(spec)
        with self.stored.alone(spec.id):
            units = self.units_of(spec)
            units.channels.prepare_outputs(spec, joining)
            task = self.stored.get(spec.id)
            if task is not None and task.wanted == "running":
                return
            if task is not None and (stood := self.stored.spec_of(task).unit).tag != spec.unit.tag:
                units.channels.begin_where(spec, stood)
            elif task is not None:
                self._check_removed(task, spec)
            units.update_inputs(spec, joins=spec.id in joining)
            self._pull(spec)
            if task is None or task.wanted != "finished":
                self.stored.want(spec, "prepared")

    def start(self, spec: UnitSpec) -> None:
        """Start a unit, unless it runs under this tag and epoch already."""
        self.permit(spec)
        with self.stored.alone(spec.id):
            self.stored.want(spec, "running")
            self._failures.pop(spec.id, None)
            self._start(spec)

    def _start(self, spec: UnitSpec) -> None:
        self.permit(spec)
        units, unit = self._with_spark(spec), spec.unit
        work = units.get(spec.id)
        query = work.running if work is not None else None
        # One that was stopped is still here where its totals could not be saved, on a full disk.
        runs = query is not None and not query.stopped and query.failure(spec.id) is None
        if work is not None and runs and incarnation(work.unit) == incarnation(unit):
            keep_interval(units, spec.id)
            units.update_inputs(spec)
            return
        self._stop(spec.id)
        units.prepare(spec)
        if catchup.release(units, spec):
            return
        units.start(spec)
        if units.is_outdated(units[spec.id]):  # adopted from an agent that was killed after the replay
            self._stop(spec.id)
            units.start(spec)

    def update_inputs(self, spec: UnitSpec) -> None:
        """Change a running unit's inputs to those of a spec, without a restart.

        Raises Unavailable while the copy of a removed input is incomplete: the unit reads it to its end first.
        """
        self.permit(spec)
        with self.stored.alone(spec.id):
            task = self.stored.get(spec.id)
            if task is not None:
                self._check_removed(task, spec)
            self._pull(spec)
            self.units_of(spec).update_inputs(spec)
            self.stored.want(spec, task.wanted if task else "prepared")

    def _check_removed(self, task: Task, spec: UnitSpec) -> None:
        """Raise Unavailable while the copy of an input that a spec removes is incomplete: it would be read in part."""
        before, kept = self.stored.spec_of(task), {c.id for c in spec.inputs}
        self._relays.check_whole(before, [c for c in before.inputs if c.id not in kept])

    def stop(self, spec: UnitSpec, *, clean: bool = False) -> None:
        """Stop a unit at a batch boundary; it stays stopped. ``clean``: let no batch of it be cut off."""
        with self.stored.alone(spec.id):
            stood = self.end(spec.id, clean=clean)
            if clean and stood is not None and stood.unit.checkpoint == spec.unit.checkpoint:
                self._end_batch(stood)
                try_to_publish(stood, self.layout)

    def end(self, unit: str, *, clean: bool = False) -> UnitSpec | None:
        """Stop any incarnation of a unit; return its spec."""
        with self.stored.alone(unit):
            task = self.stored.get(unit)
            if task is not None and task.wanted != "finished":
                self.stored.note(Task(unit, task.digest, "stopped"))
                if self._at_work(unit) is None:
                    self.units_of(spec := self.stored.spec_of(task)).adopt(spec)
            self._stop(unit, clean=clean)
            if task is None:
                return None
            try_to_publish(stood := self.stored.spec_of(task), self.layout)
            return stood

    def _end_batch(self, spec: UnitSpec) -> None:
        """Repeat and end a batch that was cut off, so that all inputs are read equally far."""
        unit = spec.unit
        checkpoint = self.layout.checkpoint(unit)
        for _ in range(_TRIES):
            if take_back(checkpoint) and reads_agree(checkpoint):
                # The newest entries are otherwise released by its next batch only, which may never come.
                self.units_of(spec).channels.begin_where(spec, unit)
                return
            self._start(spec)
            deadline = time.monotonic() + _BATCH_SECONDS
            while (cut_off(checkpoint) or not reads_agree(checkpoint)) and time.monotonic() < deadline:
                work = self._at_work(unit.id)
                error = work.running.failure(unit.id) if work and work.running else None
                if error is not None:
                    self._stop(unit.id)
                    raise error
                time.sleep(_LOOK)
            self._stop(unit.id, clean=True)
        raise Unavailable("does not come to the end of a batch", where=f"unit {unit.id}", hint="see its log")

    def _stop(self, unit: str, *, clean: bool = False) -> None:
        at_once = clean and unit in self._drained
        self._drained.discard(unit)
        self._finishing.end(unit)
        units = self._own
        if units is not None and units.get(unit) is not None:
            if clean:
                level_reads(units, unit)
            units.stop(unit, at_once=at_once, level=clean)
            units.forget(units[unit].unit)

    def settle(self, spec: UnitSpec) -> None:
        """Wait until a unit has processed the input that has arrived here so far."""
        self.units_of(spec).settle(spec.id)

    def drained(self, spec: UnitSpec) -> bool:
        """Return whether a unit has read all entries that its inputs held at the first call."""
        with self.stored.alone(spec.id):
            units, key = self.units_of(spec), (spec.id, spec.digest)
            work = units.get(spec.id)
            if work is not None and work.running is not None and key not in self._goals:
                self._goals[key] = {c.id: self._latest(units, spec, c) for c in spec.inputs}
                begin_early(units, spec.id)
                work = units[spec.id]
            if work is None or work.running is None:
                raise Unavailable("is not running (yet)", where=f"unit {spec.id}", hint="start it, or wait")
            work.running.observe()
            if not all(work.has_read(c, units.channels.log(spec, c), self._goals[key][c.id]) for c in spec.inputs):
                return False
            del self._goals[key]
            self._drained.add(spec.id)
            return True

    def _latest(self, units: Units, spec: UnitSpec, channel: Channel) -> int:
        """Return the current end of a channel at its origin."""
        if self._share or not is_copied(channel, spec.unit):
            return units.channels.log(spec, channel).latest()
        return self._relays.latest(spec, channel)

    @contextlib.contextmanager
    def acting(self, spec: UnitSpec) -> Iterator[Units]:
        """Hold the lock of a unit; yield the units of its Spark."""
        with self.stored.alone(spec.id):
            yield self._with_spark(spec)

    def restart_outdated(self) -> None:
        """Restart units that do not read a directory of replayed records yet, or the present rows of a table."""
        for task in self.stored.all():
            with self.stored.alone(task.unit):
                if self.stored.get(task.unit) == task and task.wanted == "running":
                    self._restart_outdated(task)

    def _restart_outdated(self, task: Task) -> bool:
        """Restart a unit if it misses replayed records, or rows of a table; return whether it was restarted."""
        work = self._at_work(task.unit)
        if work is None or self._own is None or not self._own.is_outdated(work):
            return False
        self._stop(task.unit)
        self._start(self.stored.spec_of(task))
        return True

    def finish(self, spec: UnitSpec) -> bool:
        """Let a unit use up its input and end its channels; return True once done."""
        with self.stored.alone(spec.id):
            units = self.units_of(spec)
            work = units.get(spec.id)
            if work is None:
                work = units.enter(spec)
            if work.finished:
                self.stored.want(spec, "finished")
                self._finishing.end(spec.id)
                return True
            task = self.stored.get(spec.id)
            if task is not None and self._restart_outdated(task):
                return False
            self._finishing.go_on(units, spec.id)
            return False

    def forget(self, spec: UnitSpec) -> bool:
        """Delete a unit's own data, and unregister it as a reader of its inputs.

        False while a channel to be deleted has unread entries. Raises DeploymentError where the unit is to run.
        """
        with self.stored.alone(spec.id), self.stored.lock:
            unit, task = spec.unit, self.stored.get(spec.id)
            stands = self.stored.spec_of(task).unit if task else unit
            itself = incarnation(stands) == incarnation(unit)
            if itself and task is not None and task.wanted == "running":
                raise DeploymentError("forgotten while it runs", where=f"unit {unit.id}", hint="stop it first")
            units = self.units_of(spec)
            used = set() if itself or task is None else self._channels_of(task)
            # Another unit may write the channel by now.
            others = {c for t in self.stored.all() if t is not task for c in self._written_by(t)}
            going = [c for c in spec.outputs if c.id not in used | others]
            if any(b.entries for c in going for b in units.channels.log(spec, c).stats().unread.values()):
                return False
            if itself:
                self._stop(unit.id)
                catchup.give_up(units, spec)
                self.stored.remove(unit.id)
            same_state = not itself and stands.tag == unit.tag
            self._leave_inputs(spec, self.stored.spec_of(task) if task is not None and same_state else None)
            for channel in going:
                remove_log(channel_spec(spec, channel, self.layout))
            if not same_state:
                shutil.rmtree(self.layout.checkpoint(unit), ignore_errors=True)
                shutil.rmtree(self.layout.state(unit).parent, ignore_errors=True)
            if itself:
                # Another unit of the node may write the sink by now, under the same name.
                kept = {sink for other in self.stored.in_force() for sink in self.layout.sinks(other)}
                for sink in self.layout.sinks(spec) - kept:
                    shutil.rmtree(sink, ignore_errors=True)
            self.stored.drop_unused(spec)
            return True

    def _channels_of(self, task: Task) -> set[str]:
        """Name the channels that a task's unit writes or reads."""
        return self._written_by(task) | {c.id for c in self.stored.spec_of(task).inputs}

    def _written_by(self, task: Task) -> set[str]:
        return {c.id for c in self.stored.spec_of(task).outputs}

    def _leave_inputs(self, spec: UnitSpec, successor: UnitSpec | None) -> None:
        """Unregister a unit as reader, except for entries kept for its successor (None: no successor)."""
        units, left = self.units_of(spec), spec.readers_left_by(successor)
        for channel in spec.inputs:
            for reader in left[channel.operator]:
                units.channels.log(spec, channel).unregister(reader)
        if successor is None:
            units.channels.give_up(spec.unit)  # it may not have reached the end of removed inputs
        self._drop_unused(leaving=spec)

    def _drop_unused(self, leaving: UnitSpec | None = None) -> None:
        """End relays without readers here, and delete their copies."""
        if self._share:
            return
        used = {c for task in self.stored.all() for c in self._channels_of(task)}
        for task in self.stored.all():
            spec = self.stored.spec_of(task)
            used |= self.units_of(spec).channels.retired(spec.unit).keys()
        self._relays.keep_only(used, leaving)

    def _leave_retired(self, tasks: Iterable[Task]) -> None:
        """Remove inputs from a spec that were taken out and are read to their end."""
        left = False
        for task in tasks:
            units, work = self._work(task)
            if work.running is None or not (retired := units.channels.retired(work.unit)):
                continue
            work.running.observe()
            at = work.running.positions
            with self.stored.free(task) as free:
                if free and at and (gone := retired.keys() - at.keys()):
                    units.channels.leave(work.unit, set(gone))
                    left = True
        if left:
            with self.stored.lock:
                self._drop_unused()

    # ------------------------------------------------------------ keeping it true

    def look(self) -> None:
        """Restart units that have ended by themselves; update the measurements."""
        if (endpoint := self._sparks.revive()) is not None:
            _LOG.warning("Spark had ended and was started again: %s", endpoint.directory)
        if self._own is not None:
            self._own.lose_ended()
        now = time.monotonic()
        tasks = self.stored.all()
        active = self.active_runs()
        for task in tasks:
            with self.stored.free(task) as free:
                if free and task.wanted == "running":
                    self._keep_running(task, now, active)
        with looking():
            self._leave_retired(tasks)
            for task in tasks:
                units, work = self._work(task)
                for channel in work.spec.outputs:
                    with contextlib.suppress(BrokerAway):  # the unit's progress says so
                        self._meters.note(channel.id, units.channels.log(work.spec, channel).stats(), now)
                        self._warn(channel.id, now)
                self._spans.look(work.spec, self.layout)
            self.advance_time()

    def advance_time(self) -> None:
        """Let idle units write the watermark that their last rows led to.

        Let idle inputs, and history that has ended, hold back none. Let files that wait in sinks appear in time.
        """
        if (units := self._own) is not None:
            for work in units.all():
                if work.running is not None and not work.finished:
                    with contextlib.suppress(BrokerAway), looking():
                        units.time_signals.end_history(work)
                        units.time_signals.lift_idle(work)
                    units.time_signals.publish_watermark(work)
                    work.held.look(work.spec, self.layout)

    def _warn(self, channel: str, now: float) -> None:
        """Log once a minute that a channel fills up."""
        lasts = self._meters.lasts(channel, self._settings.channel.max_bytes)
        if lasts is not None and lasts < _WARN_BELOW and now - self._warned.get(channel, -WINDOW) >= WINDOW:
            self._warned[channel] = now
            _LOG.warning("channel %s fills up: full in %.1f h at this rate", channel, lasts / 3600)

    def _keep_running(self, task: Task, now: float, active: Collection[str]) -> None:
        spec = self.stored.spec_of(task)
        unit = spec.unit
        work = self._at_work(unit.id)
        failures = self._failures.setdefault(unit.id, _Failures())
        if work is not None and work.running is not None:
            error = work.running.failure(unit.id, active)
            if error is None:
                if self._restart_outdated(task):
                    return
                work.running.keep_up()
                if failures.count and now - failures.last > _CALM:
                    self._failures[unit.id] = _Failures()
                return
            if error is not failures.error:
                away = isinstance(error, WaitsForBroker)
                wait = _AGAIN if away else min(_AGAIN_MOST, _AGAIN * 2**failures.count)
                self._failures[unit.id] = failures = _Failures(failures.count + 1, now, now + wait, error)
                _LOG.warning("unit %s failed: %s", unit.id, error, extra=spec.named)
            if isinstance(error, UserCodeError) or now < failures.due:
                return  # an error in the user's code would occur again: the unit waits for a new order
        elif work is not None and (work.finished or (work.refused is not None and now < failures.due)):
            return
        try:
            self.units_of(spec).channels.reach_brokers(spec)
            self._start(spec)
        except BrokerAway:  # a start would wait for it, and the other units with this one
            failures.due = time.monotonic() + _AGAIN
        except DeploymentError as error:  # the other units go on
            self._failures[unit.id] = _Failures(failures.count + 1, now, now + _AGAIN_MOST)
            _LOG.warning("unit %s is not started: %s", unit.id, error, extra=spec.named)

    def running(self) -> list[Running]:
        """Return the running units."""
        with self.stored.lock:
            works = self._own.all() if self._own is not None else ()
        return [work.running for work in works if work.running is not None]

    def save(self) -> None:
        """Store the totals of running units."""
        if self._own is not None:
            self._own.save()

    def leave(self, *, stop: bool) -> None:
        """Close this object; with ``stop`` end the queries too."""
        self._relays.stop()
        if not stop:
            self.save()
            return

        def end(spec: UnitSpec) -> None:
            with self.stored.alone(spec.id):
                self._stop(spec.id)
                try_to_publish(spec, self.layout)

        # Each stop waits for the end of a batch: stop all at once.
        specs = self.stored.in_force()
        with ThreadPoolExecutor(max(1, len(specs))) as pool:
            list(pool.map(end, specs))

    # ------------------------------------------------------------ observation

    def progress(self, *, stopped: bool = False) -> Progress:
        """Return the progress of this node's units, channels and links; ``stopped``: do not call Spark."""
        tasks = self.stored.all()
        seen = self._progress = progress_of(
            [self._work(task) for task in tasks],
            seconds=time.monotonic() - self._began,
            stopped=stopped,
            meters=self._meters,
            limit=self._settings.channel.max_bytes,
            last=self._progress,
            share=lambda channel: self._sent_meter.share(f"{self.name}/{channel}"),
        )
        return seen.joined(Progress(seconds=0.0, links=self._relays.links(), hosts=self._hosts.progress()))

    def active_runs(self) -> Collection[str]:
        """Return the run ids of all active queries."""
        return self._own.active_runs() if self._own is not None else ()

    def failure(self, unit: str, active: Collection[str] = ()) -> RuntimeFailure | None:
        """Return the error that ended a unit's query; None while it runs, or none was started.

        ``active``: see `Running.failure`.
        """
        work = self._at_work(unit)
        if self._own is None or work is None or work.running is None:
            return None
        with self._own.asking_spark():
            return work.running.failure(unit, active)

    def _at_work(self, unit: str) -> Work | None:
        return self._own.get(unit) if self._own is not None else None

    def _work(self, task: Task) -> tuple[Units, Work]:
        spec = self.stored.spec_of(task)
        units = self.units_of(spec)
        return units, units.get(spec.id) or units.remembered(spec)
