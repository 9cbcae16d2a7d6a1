"""Output of other runs in a run's sinks: found when the run begins, then refused, kept or removed as asked.

Without this check a run with a new state directory would mix its rows with those of an earlier run, or be refused by
a sink writer in the middle of its work.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headwater.core.errors import DeploymentError
from headwater.dataflow.sinks import FileSink, JdbcSink, KafkaSink, Sink
from headwater.plan.model import DeploymentPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FormerOutput = Literal["refuse", "append", "overwrite"]
"""What to do with output of other runs: refuse to begin, go on after it, or remove it first."""


def settle_before_spark(plan: DeploymentPlan, asked: FormerOutput) -> None:
    """Execute the request for former output in directories and topics; raise DeploymentError to refuse."""
    from headwater.connectors import filewriter, kafkawriter

    if asked != "append":
        for sink in _sinks(plan):
            if isinstance(sink, KafkaSink) and kafkawriter.has_output(sink):
                _refuse_topic(sink, asked)
    directories = list(_directories(plan))
    if asked == "refuse":
        for sink, path, _ in directories:
            if rows := sum(filewriter.writers_in(path).values()):
                raise _other(sink, f"{rows} rows", str(path), "path")
    for _, path, name in directories:
        if asked == "overwrite":
            filewriter.remove_output(path)
        elif filewriter.writers_in(path).get(name):
            filewriter.FileSinkWriter({"path": path, "name": name}, 0).append()


def settle_with_spark(plan: DeploymentPlan, asked: FormerOutput, spark: SparkSession) -> None:
    """Execute the request for former output in tables, which only Spark's drivers reach."""
    from headwater.connectors import jdbc

    for sink in _sinks(plan):
        if not isinstance(sink, JdbcSink) or asked == "append":
            continue
        schema = plan.dataflow.types[sink.id].schema.text
        if not jdbc.has_output(sink, schema, spark):
            continue
        if asked == "overwrite":
            jdbc.remove_output(sink, spark)
            continue
        raise _other(sink, "rows", f"table {sink.table} of {sink.url}", "table")


def _sinks(plan: DeploymentPlan) -> Iterator[Sink]:
    yield from (o for o in plan.dataflow.operators if isinstance(o, Sink))


def _directories(plan: DeploymentPlan) -> Iterator[tuple[FileSink, Path, str]]:
    """Yield the directory and the writer's name of each unit with a file sink."""
    from headwater.disk.layout import sink_directory, writer_name

    for unit in plan.units:
        for id_ in unit.outputs:
            sink = plan.dataflow[id_]
            if isinstance(sink, FileSink):
                yield sink, Path(sink_directory(sink.path, unit)), writer_name(plan.tags[id_], unit)


def _refuse_topic(sink: KafkaSink, asked: FormerOutput) -> None:
    where = f"topic {sink.topic} at {sink.bootstrap_servers}"
    if asked == "refuse":
        raise _other(sink, "messages", where, "topic")
    raise DeploymentError(
        f"'{sink.id}' holds messages of another run, which cannot be removed: a topic may hold messages of others",
        where=where,
        hint="give --append to write after them, write to another topic, or delete this topic first",
    )


def _other(sink: Sink, what: str, where: str, place: str) -> DeploymentError:
    remove = "" if isinstance(sink, KafkaSink) else "--overwrite to remove them first, "
    return DeploymentError(
        f"'{sink.id}' holds {what} of another run, whose state is not here",
        where=where,
        hint=f"give --append to write after them, {remove}another {place}, or that run's --dir to go on with it",
    )
