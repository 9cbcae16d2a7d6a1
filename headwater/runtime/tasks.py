"""One deployment in one zone: what its agent was told last of each unit, and the way it is kept true."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from headwater.errors import DeploymentError, RuntimeFailure, Unavailable, UserCodeError
from headwater.metrics import Progress
from headwater.plan.document import digest, from_document
from headwater.plan.model import Channel, DeploymentPlan, Unit
from headwater.runtime.channels.open import remove_log
from headwater.runtime.channelspec import channel_spec, is_copied
from headwater.runtime.checkpoint import cut_off, reads_agree, take_back
from headwater.runtime.durable import write_atomically
from headwater.runtime.endpoint import Endpoint
from headwater.runtime.finishing import Finishing
from headwater.runtime.hosts import Hosts
from headwater.runtime.layout import Layout
from headwater.runtime.query import Running
from headwater.runtime.relays import Relays
from headwater.runtime.settings import UnitSettings
from headwater.runtime.sparks import Sparks
from headwater.runtime.unit import channel_readers
from headwater.runtime.units import Units, Work
from headwater.runtime.watch import WINDOW, Meters, progress_of
from headwater.runtime.wire import Credentials

_LOG = logging.getLogger(__name__)
_AGAIN, _AGAIN_MOST = 1.0, 60.0  # seconds before a failed unit is started again
_WARN_BELOW = 24 * 3600.0  # seconds that a buffer lasts, below which it is worth a word
_LOOK = 0.05  # seconds between two looks at a batch that is to end
_TRIES = 5  # to stop a unit between two batches
_BATCH_SECONDS = 60.0  # within which a batch that was cut off is done again
_CALM = 300.0  # seconds after which a unit's failures are forgotten

Wanted = Literal["prepared", "running", "stopped", "finished"]


@dataclass(frozen=True)
class Task:
    """What is wanted of a unit, and by which plan."""

    unit: str
    digest: str
    wanted: Wanted


@dataclass
class _Failures:
    """How often a unit has failed of late, and when it is to be tried again."""

    count: int = 0
    last: float = 0.0
    due: float = 0.0
    error: RuntimeFailure | None = None


class Deployed:
    """Units of a zone under their plans; every request may be repeated."""

    def __init__(
        self,
        name: str,
        zone: str,
        directory: Path,
        sparks: Sparks,
        peers: Mapping[str, str],
        credentials: Credentials,
        settings: UnitSettings,
        hosts: Hosts,
    ) -> None:
        self.name = name
        self.zone = zone
        self.layout = Layout(directory)
        self._sparks = sparks
        self._settings = settings
        self._hosts = hosts
        self._lock = threading.RLock()
        self._plans: dict[str, DeploymentPlan] = {}
        self._tasks: dict[str, Task] = {}
        self._units: dict[int, Units] = {}
        self._relays = Relays(name, zone, self.layout, self._settings, peers, credentials)
        self._failures: dict[str, _Failures] = {}
        self._finishing = Finishing()
        self._goals: dict[tuple[str, str], dict[str, int]] = {}
        self._drained: set[str] = set()
        """Units that have read all: what they do in a next batch, others can."""
        self._meters = Meters()
        self._warned: dict[str, float] = {}
        self._began = time.monotonic()
        for entry in _entries(self._file):
            self._tasks[entry["unit"]] = Task(**entry)
        for task in self._tasks.values():
            self._relays.pull(self.plan(task.digest), self._unit_of(task))

    # ------------------------------------------------------------ plans and tasks

    def hold(self, document: Mapping[str, Any], plan: DeploymentPlan) -> str:
        """Store a plan; give its digest."""
        name = digest(document)
        self._plans.setdefault(name, plan)  # plans are told apart by identity
        file = self.layout.root / "plans" / f"{name}.json"
        if not file.exists():
            write_atomically(file, json.dumps(document))
        return name

    def plan(self, name: str) -> DeploymentPlan:
        """Give a stored plan."""
        with self._lock:
            if name not in self._plans:
                file = self.layout.root / "plans" / f"{name}.json"
                if not name.isalnum() or not file.exists():
                    raise DeploymentError("no such plan here", where=f"zone {self.zone}: {name[:12]}")
                self._plans[name] = from_document(json.loads(file.read_text()))
            return self._plans[name]

    @property
    def _file(self) -> Path:
        return self.layout.root / "tasks.json"

    def _want(self, plan: DeploymentPlan, unit: Unit, wanted: Wanted) -> None:
        task = Task(unit.id, self._digest(plan), wanted)
        if self._tasks.get(unit.id) != task:
            self._tasks[unit.id] = task
            self._write()

    def _digest(self, plan: DeploymentPlan) -> str:
        return next(n for n, p in self._plans.items() if p is plan)

    def _unit_of(self, task: Task) -> Unit:
        return self.plan(task.digest).unit(task.unit)

    def _on_of(self, task: Task) -> Units:
        plan = self.plan(task.digest)
        return self._on(self._sparks.of(plan, plan.unit(task.unit)))

    def _write(self) -> None:
        write_atomically(self._file, json.dumps({"tasks": [asdict(t) for t in self._tasks.values()]}))

    # ------------------------------------------------------------ requests

    def check(self, plan: DeploymentPlan, unit: Unit) -> None:
        """Compile a unit without starting it; raise what is wrong with it."""
        self._on(self._sparks.of(plan, unit)).check(plan, unit)

    def prepare(self, plan: DeploymentPlan, unit: Unit, joining: frozenset[str] = frozenset()) -> None:
        """Make its channels, register their readers, begin to pull its inputs.

        A unit of a new tag begins to read where the one of the same id stood; of it and its readers those
        that are ``joining`` where their inputs end now. The inputs of a unit that runs stay as they are.
        """
        with self._lock:
            units = self._on(self._sparks.of(plan, unit))
            units.prepare_outputs(plan, unit, joining)
            task = self._tasks.get(unit.id)
            if task is not None and task.wanted == "running":
                return
            if task is not None and (stood := self._unit_of(task)).tag != unit.tag:
                units.begin_where(plan, unit, stood)
            units.feed(plan, unit, joins=unit.id in joining)
            self._relays.pull(plan, unit)
            if task is None or task.wanted != "finished":
                self._want(plan, unit, "prepared")

    def start(self, plan: DeploymentPlan, unit: Unit) -> None:
        """Start a unit, or leave it as it runs under this tag and epoch already."""
        with self._lock:
            self._want(plan, unit, "running")
            self._failures.pop(unit.id, None)
            self._start(plan, unit)

    def _start(self, plan: DeploymentPlan, unit: Unit) -> None:
        units = self._on(self._sparks.of(plan, unit))
        work = units.get(unit.id)
        runs = work is not None and work.running is not None and work.running.failure(unit.id) is None
        if work is not None and runs and (work.unit.tag, work.unit.epoch) == (unit.tag, unit.epoch):
            units.feed(plan, unit)
            return
        self._stop(unit.id)
        units.prepare(plan, unit)
        units.start(plan, unit)

    def feed(self, plan: DeploymentPlan, unit: Unit) -> None:
        """Give a unit the inputs of a plan, without restarting it.

        Raises Unavailable while an input that goes is not here whole: the unit reads what is here to its end,
        and then lets go of it.
        """
        with self._lock:
            task = self._tasks.get(unit.id)
            if task is not None:
                before, kept = self.plan(task.digest), {c.id for c in plan.inputs(unit)}
                going = [c for c in before.inputs(self._unit_of(task)) if c.id not in kept]
                self._relays.check_whole(before, going)
            self._relays.pull(plan, unit)
            self._on(self._sparks.of(plan, unit)).feed(plan, unit)
            self._want(plan, unit, task.wanted if task else "prepared")

    def stop(self, unit: Unit, *, clean: bool = False) -> None:
        """Stop a unit at a batch boundary; it stays stopped. ``clean``: no batch of it is left cut off."""
        with self._lock:
            task = self._tasks.get(unit.id)
            if task is not None and task.wanted != "finished":
                self._tasks[unit.id] = Task(unit.id, task.digest, "stopped")
                self._write()
            self._stop(unit.id, clean=clean)
            if clean and task is not None and (stood := self._unit_of(task)).checkpoint == unit.checkpoint:
                self._end_batch(self.plan(task.digest), stood)

    def _end_batch(self, plan: DeploymentPlan, unit: Unit) -> None:
        """Let a batch that was cut off be done again and come to its end, and all reads be equally far."""
        checkpoint = self.layout.checkpoint(unit)
        for _ in range(_TRIES):
            if take_back(checkpoint) and reads_agree(checkpoint):
                # What it read last is otherwise let go with its next batch only, which may never come.
                self._on(self._sparks.of(plan, unit)).begin_where(plan, unit, unit)
                return
            self._start(plan, unit)
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
        for units in self._units.values():
            if units.get(unit) is not None:
                units.stop(unit, at_once=at_once, level=clean)
                units.forget(units[unit].unit)

    def settle(self, plan: DeploymentPlan, unit: Unit) -> None:
        """Wait until what has arrived here so far has gone through a unit."""
        self._on(self._sparks.of(plan, unit)).settle(unit.id)

    def drained(self, plan: DeploymentPlan, unit: Unit) -> bool:
        """Tell whether a unit has read all that its inputs held when this was first asked."""
        with self._lock:
            units = self._on(self._sparks.of(plan, unit))
            work = units.get(unit.id)
            if work is None or work.running is None:
                raise Unavailable("is not running (yet)", where=f"unit {unit.id}", hint="start it, or wait")
            key = (unit.id, self._digest(plan))
            if key not in self._goals:
                self._goals[key] = {c.id: self._latest(units, plan, c) for c in plan.inputs(unit)}
            work.running.observe()
            if not all(
                work.has_read(c, units.log(plan, c), self._goals[key][c.id]) for c in plan.inputs(unit)
            ):
                return False
            del self._goals[key]
            self._drained.add(unit.id)
            return True

    def _latest(self, units: Units, plan: DeploymentPlan, channel: Channel) -> int:
        """Tell how far a channel goes now, at its origin."""
        if not is_copied(channel, self.zone):
            return units.log(plan, channel).latest()
        return self._relays.latest(plan, channel)

    @contextlib.contextmanager
    def acting(self, plan: DeploymentPlan, unit: Unit) -> Iterator[Units]:
        """Hold the units of the Spark that a unit belongs to, while nothing else is done with them."""
        with self._lock:
            yield self._on(self._sparks.of(plan, unit))

    def finish(self, plan: DeploymentPlan, unit: Unit) -> bool:
        """Let a unit use up its input and end its channels; True once that is done."""
        with self._lock:
            units = self._on(self._sparks.of(plan, unit))
            work = units.get(unit.id)
            if work is None:
                work = units.enter(plan, unit)
            if work.finished:
                self._want(plan, unit, "finished")
                self._finishing.end(unit.id)
                return True
            self._finishing.go_on(units, unit.id)
            return False

    def forget(self, plan: DeploymentPlan, unit: Unit) -> bool:
        """Delete what is stored of a unit and only of it, and be no reader of its inputs any more.

        False while a channel that is to be deleted has still to be read. Raises DeploymentError where
        the unit is to run.
        """
        with self._lock:
            task = self._tasks.get(unit.id)
            stands = self._unit_of(task) if task else unit
            itself = (stands.tag, stands.epoch) == (unit.tag, unit.epoch)
            if itself and task is not None and task.wanted == "running":
                raise DeploymentError(
                    "forgotten while it runs", where=f"unit {unit.id}", hint="stop it first"
                )
            units = self._on(self._sparks.of(plan, unit))
            used = set() if itself or task is None else self._channels_of(task)
            # Another unit may have taken over to write a channel.
            others = {c for t in self._tasks.values() if t is not task for c in self._written_by(t)}
            going = [c for c in plan.outputs(unit) if c.id not in used | others]
            if any(b.entries for c in going for b in units.log(plan, c).stats().unread.values()):
                return False
            if itself:
                self._stop(unit.id)
                self._tasks.pop(unit.id, None)
                self._write()
            same_state = not itself and stands.tag == unit.tag
            self._leave_inputs(plan, unit, used if same_state else None)
            for channel in going:
                remove_log(channel_spec(plan, channel, self.layout))
            if not same_state:
                shutil.rmtree(self.layout.checkpoint(unit), ignore_errors=True)
                shutil.rmtree(self.layout.state(unit).parent, ignore_errors=True)
            if itself:
                # Another unit of the zone may go on to write a sink, under the same name.
                kept = {sink for other in self.in_force() for sink in self.layout.sinks(*other)}
                for sink in self.layout.sinks(plan, unit) - kept:
                    shutil.rmtree(sink, ignore_errors=True)
            return True

    def _channels_of(self, task: Task) -> set[str]:
        """Name the channels that a task's unit writes or reads."""
        read = self.plan(task.digest).inputs(self._unit_of(task))
        return self._written_by(task) | {c.id for c in read}

    def _written_by(self, task: Task) -> set[str]:
        return {c.id for c in self.plan(task.digest).outputs(self._unit_of(task))}

    def _leave_inputs(self, plan: DeploymentPlan, unit: Unit, kept: set[str] | None) -> None:
        """Let a unit be no reader any more but of what another with its state (None: no such) has kept."""
        units = self._on(self._sparks.of(plan, unit))
        for channel in plan.inputs(unit):
            if channel.id not in (kept or ()):
                log = units.log(plan, channel)
                for reader in channel_readers(plan, unit)[channel.operator]:
                    log.unregister(reader)
        if kept is None:
            units.give_up(unit)  # it may not have come to the end of what was taken out
        self._drop_unused()

    def _drop_unused(self) -> None:
        """End the relays that nobody reads here any more, and delete their copies."""
        used = {c for task in self._tasks.values() for c in self._channels_of(task)}
        for task in self._tasks.values():
            used |= self._on_of(task).retired(self._unit_of(task)).keys()
        self._relays.keep_only(used)

    def _leave_retired(self) -> None:
        """Strike inputs that were taken out and have been read to their end."""
        left = False
        for task in self._tasks.values():
            units, work = self._work(task)
            if work.running is None or not (retired := units.retired(work.unit)):
                continue
            work.running.observe()
            at = work.running.positions
            if at and (gone := retired.keys() - at.keys()):
                units.leave(work.unit, set(gone))
                left = True
        if left:
            self._drop_unused()

    # ------------------------------------------------------------ keeping it true

    def look(self) -> None:
        """Start again what has ended by itself; take note of what is written."""
        with self._lock:
            for endpoint in self._sparks.revive():
                _LOG.warning("Spark had ended and was started again: %s", endpoint.directory)
            for units in self._units.values():
                units.lose_ended()
            now = time.monotonic()
            for task in list(self._tasks.values()):
                if task.wanted == "running":
                    self._keep_running(task, now)
            self._leave_retired()
            for task in self._tasks.values():
                units, work = self._work(task)
                for channel in work.plan.outputs(work.unit):
                    self._meters.note(channel.id, units.log(work.plan, channel).stats(), now)
                    self._warn(channel.id, now)

    def _warn(self, channel: str, now: float) -> None:
        """Write down, once a minute, that a channel fills up."""
        lasts = self._meters.lasts(channel, self._settings.channel.max_bytes)
        if lasts is not None and lasts < _WARN_BELOW and now - self._warned.get(channel, -WINDOW) >= WINDOW:
            self._warned[channel] = now
            _LOG.warning("channel %s fills up: full in %.1f h at this rate", channel, lasts / 3600)

    def _keep_running(self, task: Task, now: float) -> None:
        plan = self.plan(task.digest)
        unit = plan.unit(task.unit)
        work = self._at_work(unit.id)
        failures = self._failures.setdefault(unit.id, _Failures())
        if work is not None and work.running is not None:
            error = work.running.failure(unit.id)
            if error is None:
                work.running.keep_up()
                if failures.count and now - failures.last > _CALM:
                    self._failures[unit.id] = _Failures()
                return
            if error is not failures.error:
                wait = min(_AGAIN_MOST, _AGAIN * 2**failures.count)
                self._failures[unit.id] = failures = _Failures(failures.count + 1, now, now + wait, error)
                _LOG.warning("unit %s failed: %s", unit.id, error)
            if isinstance(error, UserCodeError) or now < failures.due:
                return  # the user's own code fails in the same way again: it waits for a new one
        elif work is not None and work.finished:
            return
        self._start(plan, unit)

    def running(self) -> list[tuple[Endpoint, Running]]:
        """Give what runs here, and on which Spark."""
        with self._lock:
            works = [(units.endpoint, work.running) for units in self._units.values() for work in units.all()]
        return [(endpoint, running) for endpoint, running in works if running is not None]

    def save(self) -> None:
        """Note the totals of what runs."""
        with self._lock:
            for units in self._units.values():
                units.save()

    def leave(self, *, stop: bool) -> None:
        """End this side of it; the queries too with ``stop``."""
        with self._lock:
            self._relays.stop()
            if stop:
                for unit in list(self._tasks):
                    self._stop(unit)
            else:
                self.save()

    # ------------------------------------------------------------ what is seen

    def progress(self) -> Progress:
        """Give the state of this zone's units, channels and links."""
        with self._lock:
            works = [self._work(task) for task in self._tasks.values()]
            seen = progress_of(
                works,
                seconds=time.monotonic() - self._began,
                meters=self._meters,
                limit=self._settings.channel.max_bytes,
            )
            return seen.joined(
                Progress(seconds=0.0, links=self._relays.links(), hosts=self._hosts.progress())
            )

    def _at_work(self, unit: str) -> Work | None:
        return next((w for u in self._units.values() if (w := u.get(unit)) is not None), None)

    def _work(self, task: Task) -> tuple[Units, Work]:
        plan = self.plan(task.digest)
        unit = plan.unit(task.unit)
        for units in self._units.values():
            if (work := units.get(unit.id)) is not None:
                return units, work
        units = self._on(self._sparks.of(plan, unit))
        return units, units.enter(plan, unit)

    def in_force(self) -> list[tuple[DeploymentPlan, Unit]]:
        """Give the units that are here, whether they run or not, each with its plan."""
        with self._lock:
            return [(self.plan(t.digest), self._unit_of(t)) for t in self._tasks.values()]

    def _on(self, endpoint: Endpoint) -> Units:
        with self._lock:
            if id(endpoint) not in self._units:
                self._units[id(endpoint)] = Units(self.layout, endpoint, self._settings, home=self.zone)
            return self._units[id(endpoint)]


def _entries(file: Path) -> list[dict[str, Any]]:
    try:
        return list(json.loads(file.read_text())["tasks"])
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise DeploymentError(
            f"damaged: {error!r}", where=str(file), hint="restore it, or delete it and apply again"
        ) from error
