"""Run a dataflow in this process: a controller over zones that share one Spark."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headwater.agent.formeroutput import refuse
from headwater.continuum.sparksettings import MASTER, SparkSettings
from headwater.control.store import Store
from headwater.core.errors import ContinuumError, DeploymentError, RuntimeFailure
from headwater.core.metrics import Progress
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.dataflow.sinks import ConsoleSink
from headwater.dataflow.sources import FileSource, SensorSource
from headwater.disk.durable import make_directory
from headwater.disk.layout import RUN_STORE
from headwater.plan.content import is_stateful, own_sources, reads, source_locations
from headwater.plan.model import DeploymentPlan
from headwater.plan.realtime import real_time_sink
from headwater.plan.spec import spec_of
from headwater.plan.steps import FormerOutputChoice
from headwater.spark.cores import cores_here
from headwater.spark.starting import starting

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.app.local import LocalRun
    from headwater.spark.endpoint import LocalEndpoint

_LITTLE = 32 * 2**20  # bytes of input of a short run
_SENSOR_BYTES = 64  # of a row of a generator
WhenFull = Literal["block", "drop_oldest", "drop_newest", "fail"]
Delivery = Literal["exactly_once", "at_least_once"]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a run: its directory, the interval of batches, the resources of the embedded Spark."""

    directory: Path
    until_drained: bool = False
    fresh: bool = False
    former_output: FormerOutputChoice = "refuse"
    """What to do with output of other runs in the sinks, where the run begins anew."""
    reset_state: frozenset[str] = frozenset()
    """Units whose state may be dropped where an edited dataflow cannot continue with it."""
    trigger: str = "500 milliseconds"
    cores: int | None = None
    memory_mb: int = 1024
    spark: SparkSettings = field(default_factory=SparkSettings)
    """Packages and settings of Spark, beside those of the zones; these win."""
    quick: bool | None = None
    """Start Spark with half the processor time, at the price of throughput later; None: where the input is small."""
    max_buffer: int = 2**30
    when_full: WhenFull = "block"
    delivery: Delivery = "exactly_once"
    every: float = 1.0
    """Seconds between two reports of the progress."""
    python_path: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The end of a run."""

    progress: Progress
    drained: bool
    seconds: float
    found: object = field(default=None)
    """Return value of ``at_end``."""


def default_directory(name: str) -> Path:
    """Return the default directory of a deployment."""
    return Path(".headwater") / name


def run(
    plan: DeploymentPlan,
    settings: RunSettings,
    *,
    stop: threading.Event | None = None,
    observe: Callable[[Progress], None] = lambda progress: None,
    show_rows: Callable[[str, pa.Table], None] = lambda sink, rows: None,
    feed: Callable[[threading.Event], None] = lambda stop: None,
    at_end: Callable[[LocalRun, LocalEndpoint], object] = lambda deployment, endpoint: None,
    endpoint: Callable[[], LocalEndpoint] | None = None,
) -> RunOutcome:
    """Run a plan until it is drained (if requested), ``stop`` is set or a unit fails; keep its state.

    ``observe`` is called about every ``settings.every`` seconds, ``show_rows`` with the newest rows of a console sink,
    ``feed`` once in a thread to make input before the drain (its argument is set when it must end), ``at_end`` once
    before Spark ends. ``endpoint`` returns the Spark to use, which is left running. Raises the failed unit's error,
    DeploymentError if the directory is in use or holds another plan, or the sinks hold refused output of another run.
    """
    from headwater.app.checks import check_run
    from headwater.disk.settings import ChannelSettings, UnitSettings

    stop = stop or threading.Event()
    begun = time.monotonic()
    with _only_one(settings.directory):
        channel = ChannelSettings(
            max_bytes=settings.max_buffer, when_full=settings.when_full, delivery=settings.delivery
        )
        begins = settings.fresh or not _has_begun(settings.directory, plan.dataflow.name)
        store = None if settings.fresh else settings.directory / RUN_STORE
        check_run(plan, settings.directory, store, until_drained=settings.until_drained)
        if begins:
            for unit in plan.units:
                refuse(spec_of(plan, unit.id), settings.former_output)
            if settings.fresh:
                _clear(settings.directory)
        elif settings.former_output == "overwrite":
            raise DeploymentError(
                "--overwrite would remove the rows of the run that goes on here",
                where=str(settings.directory),
                hint="leave --overwrite out to go on, or add --fresh to give up the state and begin anew",
            )
        with nullcontext(endpoint) if endpoint is not None else starting(_start_of(plan, settings)) as started:
            from headwater.app.local import LocalRun

            spark = started()
            deployment = LocalRun(
                plan,
                settings.directory.resolve(),
                spark,
                UnitSettings(trigger=settings.trigger, channel=channel),
            )
            drained = False
            if not stop.is_set():
                consoles = _Consoles(deployment, show_rows)
                deployment.start(reset_state=settings.reset_state, former_output=settings.former_output)

                def look(progress: Progress) -> None:
                    observe(progress)
                    consoles.look()

                try:
                    drained = _watch(deployment, settings, stop=stop, observe=look, feed=feed)
                finally:
                    deployment.stop()
                consoles.look()
            progress = deployment.progress()
            observe(progress)
            found = at_end(deployment, spark)
    return RunOutcome(progress=progress, drained=drained, seconds=time.monotonic() - begun, found=found)


def _start_of(plan: DeploymentPlan, settings: RunSettings) -> Callable[[], LocalEndpoint]:
    """Return the function that starts the Spark of a run."""
    from headwater.spark.endpoint import LocalEndpoint

    given = spark_settings(plan, settings.spark)
    if MASTER not in dict(given.conf) and (slots := _real_time_slots(plan)):
        cores = settings.cores or cores_here()
        given = SparkSettings(conf=((MASTER, f"local[{cores + slots}]"),)).overridden_by(given)
    return partial(
        LocalEndpoint.start,
        settings.directory.resolve() / "spark",
        cores=settings.cores,
        memory_mb=settings.memory_mb,
        python_path=settings.python_path,
        extra_conf=dict(given.conf),
        packages=given.packages,
        quick=_is_short(plan, settings) if settings.quick is None else settings.quick,
        small=given.small,
    )


def _is_short(plan: DeploymentPlan, settings: RunSettings) -> bool:
    """Return whether a run ends with little input, so that starting takes longer than computing."""
    if not settings.until_drained:
        return False
    left, locations = _LITTLE, plan.dataflow.locations or plan.continuum.locations
    for source in plan.dataflow.sources:
        if isinstance(source, SensorSource) and source.rows is not None:
            left -= source.rows * len(locations) * _SENSOR_BYTES
        elif isinstance(source, FileSource) and "://" not in source.path:
            for location in locations if source.per_location else locations[:1]:
                left -= _size(source.path.replace("{location}", location), left)
        else:
            return False
        if left < 0:
            return False
    return True


def _size(path: str, limit: int) -> int:
    """Return the size of the files below a path, which may be a pattern; stop counting above the limit."""
    total = 0
    for found in glob.iglob(path):
        files = (Path(at, name) for at, _, names in os.walk(found) for name in names)
        for file in files if Path(found).is_dir() else (Path(found),):
            with contextlib.suppress(OSError):
                total += file.stat().st_size
            if total > limit:
                return total
    return total


def spark_settings(plan: DeploymentPlan, given: SparkSettings) -> SparkSettings:
    """Return the settings of a run's Spark: of its sources and sinks, its zones, and the given ones, which win.

    It is a small one where all zones have small ones.
    """
    from headwater.connectors.packages import packages_for

    found = SparkSettings(tuple(packages_for(plan.dataflow)))
    values: dict[str, tuple[str, str]] = {}
    for zone in plan.continuum.zones:
        for key, value in zone.spark_settings.conf:
            other, there = values.setdefault(key, (zone.name, value))
            if there != value and key not in dict(given.conf):
                raise ContinuumError(
                    f"zones {other} and {zone.name} give {key} different values, and a run has one Spark for all zones",
                    where=f"spark of zone {zone.name}",
                    hint=f"choose one by --conf {key}=..., or start a Spark per zone: `headwater up` and `apply`",
                )
        found = found.overridden_by(zone.spark_settings)
    small = all(zone.spark_settings.small for zone in plan.continuum.zones)
    return replace(found.overridden_by(given), small=small)


def _real_time_slots(plan: DeploymentPlan) -> int:
    """Return at most how many task slots the units in real-time mode need."""
    from headwater.connectors.realtime import partitions_read
    from headwater.connectors.sources import can_be_malformed
    from headwater.spark.serverconf import MOST_PARTITIONS

    found = 0
    for unit in plan.units:
        if real_time_sink(plan.dataflow, unit.operators) is None:
            continue
        times, places = reads(plan.dataflow, unit), source_locations(plan.dataflow, unit)
        for source in own_sources(plan.dataflow, unit):
            if isinstance(source, KafkaSource):
                # Malformed records may be read apart from the others.
                often = times[source.id] + can_be_malformed(source)
                found += often * partitions_read((source, location) for location in places[source.id])
        found += MOST_PARTITIONS * is_stateful(plan.dataflow, unit)
    return found


def _watch(
    deployment: LocalRun,
    settings: RunSettings,
    *,
    stop: threading.Event,
    observe: Callable[[Progress], None],
    feed: Callable[[threading.Event], None],
) -> bool:
    """Report the progress until the end; return whether all input was used up."""
    ended = threading.Event()
    drain = _Drain(deployment, feed, ended) if settings.until_drained else None
    if drain:
        drain.start()
    try:
        while True:
            deployment.look()
            progress = deployment.progress()
            observe(progress)
            if drain and drain.error:
                raise drain.error
            for unit in progress.failed:
                what, _, hint = (unit.error or f"unit {unit.unit} failed").partition("\n  -> ")
                raise RuntimeFailure(
                    what, hint=hint or "correct the cause and run again: it continues from its last batch"
                )
            if drain and ended.is_set():
                return True
            if _wait(stop, ended, settings.every):
                return False
    finally:
        if drain:
            drain.give_up.set()
            drain.join(30)


class _Consoles:
    """Follows the console sinks: rows from before this run are not shown again."""

    def __init__(self, deployment: LocalRun, show: Callable[[str, pa.Table], None]) -> None:
        self._deployment = deployment
        self._show = show
        operators = deployment.plan.dataflow.sinks
        self._sinks = [o for o in operators if isinstance(o, ConsoleSink)]
        self._positions: dict[str, dict[str, int]] = {o.id: {} for o in self._sinks}
        for sink in self._sinks:
            self._newest(sink)

    def look(self) -> None:
        """Show the rows since the last call."""
        for sink in self._sinks:
            rows = self._newest(sink)
            if rows is not None:
                self._show(sink.id, rows)

    def _newest(self, sink: ConsoleSink) -> pa.Table | None:
        import pyarrow as pa

        batches = list(self._deployment.sink_tail(sink.id, self._positions[sink.id]))
        if not batches:
            return None
        table = pa.Table.from_batches(batches)
        return table.slice(max(0, table.num_rows - sink.rows))


class _Drain(threading.Thread):
    """Drains a deployment in a thread, beside the loop that shows progress."""

    def __init__(self, deployment: LocalRun, feed: Callable[[threading.Event], None], ended: threading.Event) -> None:
        super().__init__(name="drain", daemon=True)
        self.give_up = threading.Event()
        self.error: BaseException | None = None
        self._deployment = deployment
        self._feed = feed
        self._ended = ended

    def run(self) -> None:
        try:
            self._feed(self.give_up)
            if not self.give_up.is_set():
                self._deployment.drain(stop=self.give_up)
        except BaseException as error:
            self.error = error
        self._ended.set()


def _wait(stop: threading.Event, ended: threading.Event, seconds: float) -> bool:
    """Sleep until an event; return whether it is a request to stop."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not ended.is_set():
        if stop.wait(0.1):
            return True
    return stop.is_set() and not ended.is_set()


@contextlib.contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """Keep a second run out of a directory: it would end the first one's Spark."""
    make_directory(directory)
    with (directory / ".lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            owner = lock.read().strip()
            raise DeploymentError(
                f"the directory is in use by process {owner}" if owner else "the directory is in use",
                where=str(directory),
                hint="stop that run first (Ctrl-C, or kill -TERM its process), or give another --dir",
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _clear(directory: Path) -> None:
    """Delete a deployment's directory; refuse a directory with other content."""
    from headwater.agent.storedtasks import specs_in
    from headwater.channels.channelspec import drop_topics
    from headwater.disk.layout import REPLAYED, Layout
    from headwater.spark.endpoint import end_stale

    end_stale(directory.resolve() / "spark")
    rest = [p for p in directory.iterdir() if p.name != ".lock"]
    ours = {"plan.json", "plan.json.old", "spark", "channels", "units", "checkpoints", "sinks", "deadletters"}
    ours |= {
        RUN_STORE,
        f"{RUN_STORE}-journal",
        "specs",
        "tasks.json",
        "terms.json",
        "peers.json",
        "state",
        "warm_ups",
        REPLAYED,
    }
    strange = sorted(p.name for p in rest if p.name not in ours)
    if strange:
        raise DeploymentError(
            f"holds other things than a deployment: {', '.join(strange[:5])}",
            where=str(directory),
            hint="give a directory of its own with --dir",
        )
    drop_topics(specs_in(directory), Layout(directory.resolve()))
    for path in rest:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def end_spark(directory: Path) -> None:
    """End a deployment's Spark at once; the next run repeats the batches that were cut off."""
    from headwater.spark.endpoint import end_stale

    end_stale(directory.resolve() / "spark")


def is_deployment(directory: Path) -> bool:
    """Return whether `headwater run` keeps a deployment in a directory."""
    return any((directory / name).exists() for name in (RUN_STORE, "plan.json"))


def _has_begun(directory: Path, name: str) -> bool:
    """Return whether units of a deployment were ever prepared there: a run that was refused before has none."""
    if (directory / "plan.json").exists():  # of an older version
        return True
    if not (directory / RUN_STORE).exists():
        return False
    with contextlib.closing(Store(directory / RUN_STORE)) as store:
        return store.active_plan(name) is not None or bool(store.unit_statuses(name))


def only_deployment() -> Path:
    """Return the only deployment's directory below .headwater; raise DeploymentError unless there is exactly one."""
    root = default_directory("x").parent
    found = sorted(p for p in root.glob("*") if is_deployment(p))
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} deployments: {', '.join(p.name for p in found)}" if found else "no deployment"
    raise DeploymentError(what, where=str(root), hint="name its directory with --dir")
