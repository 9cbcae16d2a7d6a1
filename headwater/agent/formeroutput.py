"""Output of other runs in a unit's sinks, found before the unit first writes to them: refused, kept or removed.

Without this check a deployment with a new state directory would mix its rows with those of an earlier one, or be
refused by a sink writer in the middle of its work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.core.errors import DeploymentError
from headwater.dataflow.sinks import FileSink, JdbcSink, KafkaSink, Sink
from headwater.dataflow.tablesinks import PostgresSink, TableSink
from headwater.plan.spec import UnitSpec
from headwater.plan.steps import FormerOutputChoice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def settle(
    spec: UnitSpec, choice: FormerOutputChoice, spark: Callable[[], SparkSession], names: Sequence[str] = ()
) -> None:
    """Refuse, keep or remove other runs' output in the sinks with some names; none stands for all.

    ``spark`` is called for tables, which only its drivers reach.
    """
    from headwater.connectors import filewriter

    refuse(spec, choice, names)
    for _, path, name in _directories(spec, names):
        if choice == "overwrite":
            filewriter.remove_output(path)
        elif choice == "append" and filewriter.writers_in(path).get(name):
            filewriter.FileSinkWriter({"path": path, "name": name}, 0).append()
    if choice != "append":
        for sink in _sinks(spec, names):
            if isinstance(sink, JdbcSink):
                _settle_table(spec, sink, choice, spark())
            elif isinstance(sink, TableSink) and _holds(spec, sink):
                from headwater.connectors import tablewriters

                tablewriters.remove_output(sink, spec.unit)


def refuse(spec: UnitSpec, choice: FormerOutputChoice, names: Sequence[str] = ()) -> None:
    """Raise DeploymentError where directories and topics hold output that the choice excludes; change nothing."""
    from headwater.connectors import filewriter, kafkawriter

    if choice != "append":
        for sink in _sinks(spec, names):
            if isinstance(sink, KafkaSink) and kafkawriter.has_output(sink):
                _refuse_topic(sink, choice)
            elif isinstance(sink, TableSink) and _holds(spec, sink):
                _refuse_table(spec, sink, choice)
    if choice == "refuse":
        for sink, path, _ in _directories(spec, names):
            if rows := sum(filewriter.writers_in(path).values()):
                raise _other(sink, f"{rows} row{'s' if rows != 1 else ''}", str(path), "path")


def _holds(spec: UnitSpec, sink: TableSink) -> bool:
    from headwater.connectors import tablewriters

    return tablewriters.has_output(sink, spec.flow.types[sink.id], spec.unit)


def _refuse_table(spec: UnitSpec, sink: TableSink, choice: FormerOutputChoice) -> None:
    from headwater.connectors import tablewriters

    where = str((sink.target or ("",))[-1])
    if choice == "refuse":
        raise _other(sink, "rows", where, "table")
    if not tablewriters.removable(sink, spec.unit):
        raise DeploymentError(
            f"'{sink.id}' holds rows of another run, which cannot be removed: the table may hold rows of others",
            where=where,
            hint="give --append to write after them, write to another table, or empty this table first"
            + (" with its records in headwater_batches" if isinstance(sink, PostgresSink) else ""),
        )


def _settle_table(spec: UnitSpec, sink: JdbcSink, choice: FormerOutputChoice, spark: SparkSession) -> None:
    from headwater.connectors import jdbc

    if not jdbc.has_output(sink, spec.flow.types[sink.id].schema.text, spark):
        return
    if choice != "overwrite":
        raise _other(sink, "rows", f"table {sink.table} of {sink.url}", "table")
    jdbc.remove_output(sink, spark)


def _sinks(spec: UnitSpec, names: Sequence[str]) -> Iterator[Sink]:
    sinks = (o for o in spec.flow.operators if isinstance(o, Sink))
    yield from (sink for sink in sinks if not names or sink.id in names)


def _directories(spec: UnitSpec, names: Sequence[str]) -> Iterator[tuple[FileSink, Path, str]]:
    """Yield the directory and the writer's name of each file sink."""
    from headwater.disk.layout import sink_directory, writer_name

    for sink in _sinks(spec, names):
        if isinstance(sink, FileSink):
            yield sink, Path(sink_directory(sink.path, spec.unit)), writer_name(spec.tags[sink.id], spec.unit)


def _refuse_topic(sink: KafkaSink, choice: FormerOutputChoice) -> None:
    where = f"topic {sink.topic} at {sink.bootstrap_servers}"
    if choice == "refuse":
        raise _other(sink, "messages", where, "topic")
    raise DeploymentError(
        f"'{sink.id}' holds messages of another run, which cannot be removed: a topic may hold messages of others",
        where=where,
        hint="give --append to write after them, write to another topic, or delete this topic first",
    )


def _other(sink: Sink, what: str, where: str, place: str) -> DeploymentError:
    remove = "" if isinstance(sink, KafkaSink | PostgresSink) else "--overwrite to remove them first, "
    return DeploymentError(
        f"'{sink.id}' holds {what} of another run, whose state is not here",
        where=where,
        hint=f"give --append to write after them, {remove}another {place}, or that run's --dir to go on with it",
    )
