"""Start a unit's query in Spark: its trigger, its sink, and what it may read and write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

from headwater.agent.slots import take_slots
from headwater.connectors.permitted import AgentPermissions, check_unit, table_directories
from headwater.core.errors import RuntimeFailure
from headwater.core.quantity import parse_duration
from headwater.dataflow.sinks import FileSink, RealTimeKafkaSink
from headwater.disk.checkpoint import begin_run, committed_watermark, newest_batch
from headwater.disk.layout import REPLAYED, Layout, sink_directory
from headwater.disk.pace import Pace, write_pace
from headwater.disk.settings import UnitSettings
from headwater.plan.realtime import real_time_of
from headwater.plan.spec import UnitSpec
from headwater.query.checkedfiles import CheckedFiles
from headwater.query.counting import Tally
from headwater.query.failure import failure_of
from headwater.query.query import Running
from headwater.query.unit import CompiledUnit, tracking_of
from headwater.query.updating import updates_writer
from headwater.query.writer import SINK_FORMAT, sink_config
from headwater.spark.endpoint import LOG

if TYPE_CHECKING:
    from headwater.spark.endpoint import Endpoint

Batches = Literal["on_trigger", "back_to_back", "once"]
"""When a query begins its batches: at the zone's trigger, or one after another; ``once``: it does one, and ends."""


def query_name(spec: UnitSpec) -> str:
    """Name a unit's query in Spark."""
    return f"{spec.deployment}/{spec.id}"


class QueryStart:
    """Start compiled units on one Spark.

    ``permissions``: those of the agent; None for units of a warm-up, whose files are Headwater's.
    """

    def __init__(
        self, layout: Layout, endpoint: Endpoint, settings: UnitSettings, permissions: AgentPermissions | None
    ) -> None:
        self._layout = layout
        self._endpoint = endpoint
        self._settings = settings
        self._permissions = permissions

    def start(
        self,
        spec: UnitSpec,
        compiled: CompiledUnit,
        batches: Batches = "on_trigger",
        *,
        taken: int = 0,
        catches_up: bool = False,
    ) -> Running:
        """Start a unit's query from its checkpoint; ``taken``: the slots that queries in real-time mode hold."""
        checkpoint = self._layout.checkpoint(spec.unit)
        passed, before = committed_watermark(checkpoint), newest_batch(checkpoint / "commits")
        name, trigger = query_name(spec), self._settings.trigger
        self._layout.pace(spec.unit).unlink(missing_ok=True)
        paced = catches_up or (compiled.one_channel and not isinstance(compiled.spark_sink, RealTimeKafkaSink))
        if paced:
            pace = Pace(seconds=parse_duration(trigger), on_arrival=compiled.one_channel)
            write_pace(self._layout.pace(spec.unit), pace)
        if paced or batches == "back_to_back":
            trigger = "0 seconds"
        checked = self._checked_files(spec)
        needed = 0
        if isinstance(compiled.spark_sink, RealTimeKafkaSink):
            from headwater.connectors.realtime import start_real_time

            needed = take_slots(compiled.spark_sink, spec, compiled.counting, self._endpoint, taken=taken)
            query = start_real_time(compiled.spark_sink, compiled.frame, checkpoint=checkpoint, query_name=name)
        elif compiled.spark_sink is not None:
            from headwater.connectors.jdbc import start_sink

            query = start_sink(
                compiled.spark_sink,
                compiled.frame,
                check=checked.check_batch if checked is not None else None,
                checkpoint=checkpoint,
                sync=self._settings.channel.fsync,
                query_name=name,
                trigger=trigger,
            )
        else:
            tracking = tracking_of(spec, self._layout)
            run = begin_run(checkpoint)
            synced = checkpoint if self._settings.channel.fsync else None
            config = sink_config(
                spec.unit.epoch,
                compiled.sink_writers,
                tracking,
                run,
                checkpoint=synced,
                checked=checked,
                catch_up=self._layout.catch_up(spec.unit) if catches_up else None,
            )
            if compiled.updates:
                writer = updates_writer(compiled.frame, config)
            else:
                writer = compiled.frame.writeStream.format(SINK_FORMAT).option("config", config).outputMode("append")
            writer = writer.queryName(name).option("checkpointLocation", str(checkpoint))
            writer = writer.trigger(once=True) if batches == "once" else writer.trigger(processingTime=trigger)
            query = writer.start()
        tally, explain = Tally(compiled.counting), self.explain(spec)
        real_time = real_time_of(spec.flow, spec.unit.operators)
        return Running(
            query,
            scans=compiled.scans,
            tally=tally,
            passed=passed,
            explain=explain,
            real_time=real_time,
            slots=needed,
            paced=paced,
            back_to_back=batches == "back_to_back" and not paced,
            checkpoint=checkpoint,
            before=before,
        )

    def explain(self, spec: UnitSpec) -> Callable[[str, str], RuntimeFailure]:
        """Return the function that turns Spark's text about a unit's failure into an error."""
        return partial(failure_of, spec, self._endpoint.directory / LOG)

    def _checked_files(self, spec: UnitSpec) -> CheckedFiles | None:
        """Return the check of a query's files; raise the error of a resource that the unit may not use."""
        if self._permissions is None:
            return None
        paths = check_unit(spec, self._permissions).with_own(self._layout.root / REPLAYED)
        read, written = table_directories(spec)
        written += [sink_directory(o.path, spec.unit) for o in spec.flow.operators if isinstance(o, FileSink)]
        return CheckedFiles(self._layout.checkpoint(spec.unit), paths, tuple(written), tuple(read))
