"""Carry a plan out on one machine: one local Spark serves all zones, filelogs join them.

State on disk is by operator key and zone, so that a run goes on where the last one stopped,
however that one ended.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.dataflow import sources
from headwater.dataflow.sinks import CallbackSink, ConsoleSink, FileSink, KafkaSink, MemorySink, Sink
from headwater.errors import DeploymentError, HeadwaterError, RuntimeFailure, Unavailable
from headwater.metrics import ChannelProgress, LinkProgress, Progress, Status, UnitProgress
from headwater.plan.model import Channel, DeploymentPlan, Unit
from headwater.runtime.channels.filelog import FileLog
from headwater.runtime.channelspec import member_spec, open_channel
from headwater.runtime.checkpoint import sweep_torn
from headwater.runtime.durable import write_atomically
from headwater.runtime.layout import Layout, full_path
from headwater.runtime.query import Running
from headwater.runtime.unit import END_OF_TIME, WATERMARK, UnitCompiler, channel_readers, sink_config

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.runtime.endpoint import LocalEndpoint

_LOOK = 0.1  # seconds between two looks at a query that is to finish


@dataclass(frozen=True)
class ChannelSettings:
    """How much a channel may hold (bytes, seconds), what happens when it is full, what delivery it has."""

    max_bytes: int = 2**30
    max_age: float | None = None
    when_full: str = "block"
    fsync: bool = True
    delivery: str = "exactly_once"


class Deployment:
    """A plan at work in a directory: start, watch, drain, stop."""

    def __init__(
        self,
        plan: DeploymentPlan,
        directory: Path,
        endpoint: LocalEndpoint,
        *,
        trigger: str = "500 milliseconds",
        channel: ChannelSettings | None = None,
        max_rows_per_batch: int | None = None,
    ) -> None:
        self.plan = plan
        self.layout = Layout(directory.resolve())
        self._endpoint = endpoint
        self._trigger = trigger
        self._channel: dict[str, Any] = asdict(channel or ChannelSettings())
        if max_rows_per_batch is not None:
            self._channel["max_rows_per_batch"] = max_rows_per_batch
        self._running: dict[str, Running] = {}
        self._finished: set[str] = set()
        self._controlled: set[str] = set()
        self._before: dict[str, dict[str, int]] = {}
        self._bridges: list[Any] = []
        self._began = time.monotonic()
        self._stopped = False

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Prepare the channels and start every unit; go on where a former run stopped."""
        self._began = time.monotonic()
        self._claim()
        for channel in self.plan.channels:
            log = open_channel(self.plan, channel, self.layout)
            log.create()
            known = log.readers()
            for consumer in channel.consumers:
                for reader in channel_readers(self.plan, self.plan.unit(consumer))[channel.operator]:
                    if reader not in known:
                        log.register(reader)
        for unit in self.plan.units:
            self._write_members(unit)
        starting: list[Unit] = []
        for unit in self.plan.units:
            saved = self._saved(unit)
            self._before[unit.id] = {k: int(saved.get(k, 0)) for k in ("rows_in", "late_rows")}
            if saved.get("finished"):
                self._finished.add(unit.id)
            else:
                starting.append(unit)
        self._endpoint.session()
        # Starting is mostly waiting, but Spark gives up on a Python worker that is not there in 10 s:
        # more at a time than there are cores would be slower, and then fail.
        with ThreadPoolExecutor(max(1, self._endpoint.cores)) as pool:
            for started in [pool.submit(self._start_unit, unit) for unit in starting]:
                started.result()

    def stop(self) -> None:
        """End every query at a batch boundary and remember the totals."""
        if self._stopped:
            return
        self._stopped = True
        for bridge in self._bridges:
            bridge.stop()
        for unit in self.plan.units:
            running = self._running.get(unit.id)
            if running is not None and unit.id not in self._finished and self._endpoint.alive:
                running.stop()
                running.observe()
                self._save(unit)

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
        self._downstream(lambda unit: unit.id in self._finished or self._finish(unit, stop))
        first = next((r.error for r in self._running.values() if r.error is not None), None)
        if first is not None and not stop.is_set():
            raise first

    def settle(self) -> None:
        """Wait until what has arrived so far has gone through every unit."""

        def settled(unit: Unit) -> bool:
            if unit.id in self._finished or self._settled(unit, self._running[unit.id], threading.Event()):
                return True
            raise self._running[unit.id].failure(unit.id) or RuntimeFailure(
                "stopped", where=f"unit {unit.id}"
            )

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
        if self._running and not self._stopped:
            self._need_spark()
        stats = {c.id: open_channel(self.plan, c, self.layout).stats() for c in self.plan.channels}
        with self._asking_spark():
            units = tuple(self._unit_progress(u, stats) for u in self.plan.units)
        links: dict[str, list[int]] = {link.name: [0, 0] for c in self.plan.channels for link in c.links}
        for channel in self.plan.channels:
            for link in channel.links:  # once, however many read it at the far end
                links[link.name][0] += stats[channel.id].rows
                links[link.name][1] += stats[channel.id].bytes
        return Progress(
            seconds=time.monotonic() - self._began,
            units=units,
            links=tuple(LinkProgress(link=n, rows=r, bytes=b) for n, (r, b) in links.items()),
            channels=tuple(
                ChannelProgress(
                    channel=id_,
                    rows=s.rows,
                    bytes=s.bytes,
                    unread=max((b.rows for b in s.unread.values()), default=0),
                    dropped=s.dropped_rows,
                    lost=s.lost_rows,
                )
                for id_, s in stats.items()
            ),
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
        zones = [u.zone for u in self.plan.units if sink in u.operators]
        return [FileLog(self.layout.sink(sink, tag, zone)) for zone in zones]

    def dead_letters(self) -> Iterator[dict[str, Any]]:
        """Give the records that did not fit their source's schema."""
        from headwater.runtime.deadletters import read_dead_letters

        return read_dead_letters(self.layout.all_dead_letters)

    # ------------------------------------------------------------ units

    def _start_unit(self, unit: Unit) -> None:
        spark = self._endpoint.session()
        self._start_bridges(unit)
        compiler = UnitCompiler(self.plan, unit, spark, self.layout, self._channel, self._endpoint.cores)
        compiled = compiler.compile()
        if compiled.controlled:
            self._controlled.add(unit.id)
        sweep_torn(self.layout.checkpoint(unit))
        checkpoint = str(self.layout.checkpoint(unit))
        if compiled.spark_sink is not None:
            from headwater.runtime.jdbc import start_sink

            query = start_sink(
                compiled.spark_sink,
                compiled.frame,
                checkpoint=checkpoint,
                query_name=self._query_name(unit),
                trigger=self._trigger,
            )
        else:
            writer = compiled.frame.writeStream.format("headwater_sink").queryName(self._query_name(unit))
            writer = writer.option("config", sink_config(unit.epoch, compiled.outlets)).outputMode("append")
            query = (
                writer.option("checkpointLocation", checkpoint).trigger(processingTime=self._trigger).start()
            )
        self._running[unit.id] = Running(query, scans=compiled.scans)
        self._running[unit.id].wait_until_ready()

    def _query_name(self, unit: Unit) -> str:
        return f"{self.plan.dataflow.name}/{unit.id}"

    def _start_bridges(self, unit: Unit) -> None:
        for id_ in unit.operators:
            source = self.plan.dataflow[id_]
            if not isinstance(source, sources.MqttSource):
                continue
            from headwater.runtime.mqtt import MqttBridge

            for location in unit.locations if source.per_location else unit.locations[:1]:
                spool = self.layout.spool(source.id, self.plan.tags[source.id], location)
                write_atomically(
                    spool / "members.json", json.dumps({"writers": {spool.name: str(spool / "log")}})
                )
                log = FileLog(spool / "log")
                log.create()
                bridge = MqttBridge(source, location=location, log=log, epoch=unit.epoch)
                bridge.start()
                self._bridges.append(bridge)

    def _write_members(self, unit: Unit) -> None:
        """Tell a unit which logs each of its inputs is made of."""
        inputs: dict[str, dict[str, Any]] = {}
        for channel in self.plan.inputs(unit):
            member = member_spec(self.plan, channel, self.layout)
            inputs.setdefault(channel.operator, {})[channel.id] = member
        for operator, writers in inputs.items():
            write_atomically(self.layout.members(unit, operator), json.dumps({"writers": writers}))

    def _finish(self, unit: Unit, stop: threading.Event) -> bool:
        """Let a unit use up its input, close its windows and end its channels; False when it could not."""
        running = self._running[unit.id]
        if not self._used_up(unit, running, stop):
            return False
        if unit.id in self._controlled:
            control = self.layout.control(unit)
            write_atomically(control / "end.json", json.dumps({WATERMARK: END_OF_TIME}))
            if not self._settled(unit, running, stop):
                return False
        running.stop()
        running.observe()
        for channel in self.plan.outputs(unit):
            open_channel(self.plan, channel, self.layout).end(unit.epoch)
        self._finished.add(unit.id)
        self._save(unit)
        return True

    def _used_up(self, unit: Unit, running: Running, stop: threading.Event) -> bool:
        """Wait until a unit has read all there is, paced sources included."""
        while True:
            if not self._settled(unit, running, stop):
                return False
            paced = [
                s
                for i in unit.operators
                if isinstance(s := self.plan.dataflow[i], sources.SensorSource) and s.rows is not None
            ]
            running.observe()
            wanted = sum((s.rows or 0) * len(unit.locations) for s in paced)
            if not paced or running.rows_in + self._before[unit.id]["rows_in"] >= wanted:
                return True
            stop.wait(_LOOK)

    def _settled(self, unit: Unit, running: Running, stop: threading.Event) -> bool:
        """Wait until a query has nothing left to do; False when it failed or ``stop`` was set."""
        done = threading.Event()

        def wait() -> None:
            with contextlib.suppress(Exception):  # what happened is asked of the query itself
                running.query.processAllAvailable()
            done.set()

        threading.Thread(target=wait, daemon=True, name=f"settle {unit.id}").start()
        with self._asking_spark():
            while not done.wait(_LOOK):
                self._need_spark()
                if stop.is_set() or running.failure(unit.id) is not None:
                    return False
            self._need_spark()
            return running.failure(unit.id) is None and not stop.is_set()

    @contextlib.contextmanager
    def _asking_spark(self) -> Iterator[None]:
        """Say what it means when requests fail because the server has gone."""
        try:
            yield
        except HeadwaterError:
            raise
        except Exception:
            self._need_spark()
            raise

    def _need_spark(self) -> None:
        if not self._endpoint.alive:
            raise Unavailable(
                "Spark has ended",
                where=str(self._endpoint.directory / "spark.log"),
                hint="read the log; run again: it goes on where it stopped",
            )

    def _unit_progress(self, unit: Unit, stats: dict[str, Any]) -> UnitProgress:
        running = self._running.get(unit.id)
        status: Status = (
            "finished" if unit.id in self._finished else "stopped" if self._stopped else "running"
        )
        error = None
        if running is not None and unit.id not in self._finished and self._endpoint.alive:
            if not self._stopped:
                running.observe()
            failure = running.failure(unit.id)
            if failure is not None:
                status, error = "failed", str(failure)
        inputs = self.plan.inputs(unit)
        read = sum(self._rows_read(unit, running, c, stats[c.id]) for c in inputs)
        lag = sum(stats[c.id].rows for c in inputs) - read if inputs else None
        before = self._before.get(unit.id, {"rows_in": 0, "late_rows": 0})
        return UnitProgress(
            unit=unit.id,
            zone=unit.zone,
            layer=unit.layer,
            status=status,
            rows_in=before["rows_in"] + (running.rows_in if running else 0) + read,
            rows_out=self._rows_out(unit, stats),
            dead_letters=_files_rows(self.layout.dead_letters(unit)),
            late_rows=before["late_rows"] + (running.late_rows if running else 0),
            lag=lag,
            batch=running.last_batch if running else -1,
            batch_ms=running.batch_ms if running else None,
            rows_per_s=running.rows_per_s if running else None,
            watermark=running.watermark if running else None,
            error=error,
        )

    def _rows_read(self, unit: Unit, running: Running | None, channel: Channel, stats: Any) -> int:
        """Count the rows of a channel that a unit's batches have taken."""
        if unit.id in self._finished:
            return int(stats.rows)
        at = running.positions.get(channel.id) if running else None
        if at is None:
            waiting = stats.unread.get(unit.checkpoint)
            return int(stats.rows - waiting.rows) if waiting else 0
        return open_channel(self.plan, channel, self.layout).totals(at)[0]

    def _rows_out(self, unit: Unit, stats: dict[str, Any]) -> int:
        rows = sum(int(stats[c.id].rows) for c in self.plan.outputs(unit))
        for id_ in unit.outputs:
            sink = self.plan.dataflow[id_]
            if isinstance(sink, FileSink):
                path = Path(full_path(sink.path.replace("{zone}", unit.zone)))
                rows += _files_rows(path, f"{unit.zone}-{self.plan.tags[id_]}")
            elif isinstance(sink, Sink) and not isinstance(sink, (CallbackSink, KafkaSink)):
                log = FileLog(self.layout.sink(id_, self.plan.tags[id_], unit.zone))
                rows += int(log.stats().rows)
        return rows

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
        if all(self._saved(u).get("finished") for u in self.plan.units):
            raise DeploymentError(
                "this deployment has finished: its input had ended and its windows are closed",
                where=str(self.layout.root),
                hint="begin anew with --fresh",
            )

    def _saved(self, unit: Unit) -> dict[str, Any]:
        try:
            data = json.loads(self.layout.state(unit).read_text())
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def _save(self, unit: Unit) -> None:
        before, running = self._before[unit.id], self._running[unit.id]
        totals = {
            "rows_in": before["rows_in"] + running.rows_in,
            "late_rows": before["late_rows"] + running.late_rows,
            "finished": unit.id in self._finished,
        }
        write_atomically(self.layout.state(unit), json.dumps(totals))


def _ends(source: sources.Source) -> bool:
    return isinstance(source, sources.FileSource) or (
        isinstance(source, sources.SensorSource) and source.rows is not None
    )


def _files_rows(path: Path, name: str | None = None) -> int:
    """Count the rows that a files outlet has committed below a directory."""
    from headwater.runtime.fileoutlet import committed_rows

    return committed_rows(path, name)


def _difference(stored: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Say in a few words how two plans differ."""
    changed = [o for o, k in wanted["keys"].items() if stored.get("keys", {}).get(o) != k]
    changed += [o for o in stored.get("keys", {}) if o not in wanted["keys"]]
    if changed:
        return f"changed: {', '.join(sorted(changed)[:5])}"
    return "the same operators, placed otherwise"
