"""Carry a plan out on one machine: one local Spark serves all zones, filelogs join them.

State on disk is by operator key and zone, so that a run goes on where the last one stopped,
however that one ended.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.dataflow import sources
from headwater.dataflow.sinks import ConsoleSink, MemorySink
from headwater.errors import DeploymentError, SparkStumbled
from headwater.metrics import Progress
from headwater.plan.model import DeploymentPlan, Unit
from headwater.runtime.channels.filelog import FileLog
from headwater.runtime.durable import write_atomically
from headwater.runtime.layout import Layout
from headwater.runtime.settings import UnitSettings
from headwater.runtime.units import Units
from headwater.runtime.watch import progress_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.runtime.endpoint import Endpoint

_LOG = logging.getLogger(__name__)
_STUMBLES = 3  # times that a unit is started again after Spark has stumbled


class Deployment:
    """A plan at work in a directory: start, watch, drain, stop."""

    def __init__(
        self,
        plan: DeploymentPlan,
        directory: Path,
        endpoint: Endpoint,
        settings: UnitSettings | None = None,
    ) -> None:
        self.plan = plan
        self.layout = Layout(directory.resolve())
        self._endpoint = endpoint
        self._units = Units(self.layout, endpoint, settings or UnitSettings())
        self._began = time.monotonic()
        self._started = False
        self._stopped = False
        self._mending = threading.Lock()
        self._stumbles: dict[str, int] = {}

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Prepare the channels and start every unit; go on where a former run stopped."""
        self._began = time.monotonic()
        self._claim()
        for unit in self.plan.units:
            self._units.prepare(self.plan, unit)
        self._endpoint.session()
        self._started = True
        # Starting is mostly waiting, but Spark gives up on a Python worker that is not there in 10 s:
        # more at a time than there are cores would be slower, and then fail.
        with ThreadPoolExecutor(max(1, self._endpoint.cores)) as pool:
            for started in [pool.submit(self._units.start, self.plan, unit) for unit in self.plan.units]:
                started.result()

    def stop(self) -> None:
        """End every query at a batch boundary and remember the totals."""
        if self._stopped:
            return
        self._stopped = True
        for unit in self.plan.units:
            self._units.stop(unit.id)

    def look(self) -> None:
        """Start units again over which only Spark has stumbled."""
        if self._started and not self._stopped:
            self._units.need_spark()
            for unit in self.plan.units:
                self._mend(unit)

    def _mend(self, unit: Unit) -> bool:
        """Start a unit again if only Spark has stumbled; tell whether it is well now."""
        with self._mending:
            work = self._units[unit.id]
            error = work.running.failure(unit.id) if work.running else None
            if error is None:
                return True
            tried = self._stumbles.get(unit.id, 0)
            if not isinstance(error, SparkStumbled) or tried >= _STUMBLES or self._stopped:
                return False
            _LOG.warning("%s: %s; started again", error.where, error.what.rstrip("."))
            self._stumbles[unit.id] = tried + 1
            self._units.stop(unit.id)
            self._units.start(self.plan, unit)
            return True

    def drain(self, *, stop: threading.Event | None = None) -> None:
        """Wait until the bounded sources are used up and every unit has seen the end of its input.

        Windows still open then close, as in a batch run; the deployment is finished and takes no
        more input. Raises DeploymentError where a source has no end, RuntimeFailure where a unit failed.
        """
        stop = stop or threading.Event()
        endless = [s.id for s in self.plan.dataflow.sources if not _ends(s)]
        if endless:
            raise DeploymentError(
                f"{', '.join(endless)} never ends",
                where="--until-drained",
                hint="run without it and stop with Ctrl-C",
            )

        def finished(unit: Unit) -> bool:
            while not self._units.finish(unit.id, stop):
                if stop.is_set() or not self._mend(unit):
                    return False
            return True

        self._downstream(finished)
        first = next((work.error for work in self._units.all() if work.error is not None), None)
        if first is not None and not stop.is_set():
            raise first

    def settle(self) -> None:
        """Wait until what has arrived so far has gone through every unit."""

        def settled(unit: Unit) -> bool:
            while True:
                try:
                    self._units.settle(unit.id)
                    return True
                except SparkStumbled:
                    if not self._mend(unit):
                        raise

        self._downstream(settled)

    def _downstream(self, step: Callable[[Unit], bool]) -> None:
        """Do a step for every unit once all that feed it have done it; not where one of them could not."""

        def after(feeding: list[Future[bool]], unit: Unit) -> bool:
            return all(f.result() for f in feeding) and step(unit)

        done: dict[str, Future[bool]] = {}
        with ThreadPoolExecutor(min(32, len(self.plan.units))) as pool:
            for unit in self.plan.units:  # those that feed come first, so none waits for one not begun
                feeding = [done[c.producer] for c in self.plan.inputs(unit)]
                done[unit.id] = pool.submit(after, feeding, unit)
        for future in done.values():
            future.result()

    # ------------------------------------------------------------ what is seen

    def progress(self) -> Progress:
        """Give the deployment's state now; raise Unavailable if its Spark has ended by itself."""
        if self._started and not self._stopped:
            self._units.need_spark()
        works = [self._units.get(u.id) or self._units.enter(self.plan, u) for u in self.plan.units]
        return progress_of(
            [(self._units, work) for work in works],
            seconds=time.monotonic() - self._began,
            stopped=self._stopped,
        )

    def sink_rows(self, sink: str) -> pa.Table:
        """Read back the rows of a memory or console sink, over all zones it runs in."""
        import pyarrow as pa

        operator = self.plan.dataflow[sink]
        if not isinstance(operator, (MemorySink, ConsoleSink)):
            raise DeploymentError(
                f"'{sink}' is not a memory or console sink", hint="read its files or table instead"
            )
        batches = []
        for log in self._sink_logs(sink):
            batches += list(log.read(log.earliest(), log.latest()))
        if not batches:
            schema = self.plan.dataflow.types[sink].schema.text
            return self._endpoint.session().createDataFrame([], schema).toArrow()
        return pa.Table.from_batches(batches)

    def sink_tail(self, sink: str, positions: dict[str, int]) -> Iterator[pa.RecordBatch]:
        """Give the rows a console sink got since ``positions``, which is brought up to date."""
        for log in self._sink_logs(sink):
            start, end = positions.get(str(log.path), log.earliest()), log.latest()
            yield from log.read(start, end)
            positions[str(log.path)] = end

    def _sink_logs(self, sink: str) -> list[FileLog]:
        tag = self.plan.tags[sink]
        writers = [u for u in self.plan.units if sink in u.operators]
        return [FileLog(self.layout.sink(sink, tag, unit)) for unit in writers]

    def dead_letters(self) -> Iterator[dict[str, Any]]:
        """Give the records that did not fit their source's schema."""
        from headwater.runtime.deadletters import read_dead_letters

        return read_dead_letters(self.layout.all_dead_letters)

    # ------------------------------------------------------------ what is remembered

    def _claim(self) -> None:
        """Make the directory this plan's, or refuse it when it is another's."""
        wanted = self.plan.to_data()
        wanted["keys"] = dict(self.plan.dataflow.keys)
        try:
            stored = json.loads(self.layout.plan.read_text())
        except FileNotFoundError:
            write_atomically(self.layout.plan, json.dumps(wanted, indent=1))
            return
        except ValueError as error:
            raise DeploymentError(
                f"the stored plan cannot be read: {error}",
                where=str(self.layout.plan),
                hint="begin anew with --fresh",
            ) from error
        if json.loads(json.dumps(wanted)) != stored:
            raise DeploymentError(
                f"the directory holds a deployment of another plan ({_difference(stored, wanted)})",
                where=str(self.layout.root),
                hint="begin anew with --fresh (its state is given up), or use another --dir",
            )
        if all(self._units.enter(self.plan, u).finished for u in self.plan.units):
            raise DeploymentError(
                "this deployment has finished: its input had ended and its windows are closed",
                where=str(self.layout.root),
                hint="begin anew with --fresh",
            )


def _ends(source: sources.Source) -> bool:
    return isinstance(source, sources.FileSource) or (
        isinstance(source, sources.SensorSource) and source.rows is not None
    )


def _difference(stored: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Say in a few words how two plans differ."""
    changed = [o for o, k in wanted["keys"].items() if stored.get("keys", {}).get(o) != k]
    changed += [o for o in stored.get("keys", {}) if o not in wanted["keys"]]
    if changed:
        return f"changed: {', '.join(sorted(changed)[:5])}"
    return "the same operators, placed otherwise"
