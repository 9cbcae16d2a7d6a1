"""Translate streaming queries, the commands of PySpark's ``writeStream ... .start()``, to sinks."""

from __future__ import annotations

from headwater.core.errors import DataflowError
from headwater.core.text import shown
from headwater.dataflow.stream import Stream
from headwater.dataflow.writer import WrittenStream
from headwater.frames.pickled import unpickled
from headwater.sql.columns import Message

_OURS = ("checkpointLocation", "checkpointlocation", "path", "truncate", "numRows", "numrows")
"""Options that a deployment does not need: it keeps checkpoints of its own."""
_PARTITIONED = ("csv", "json", "parquet", "delta")


def written(stream: Stream, command: Message) -> WrittenStream[Stream]:
    """Add the sink of a query, a ``WriteStreamOperationStart``.

    Its trigger is an option of ``headwater run``, but for that of real-time mode, which is a setting of its sink.
    """
    where = f"writeStream ({command.format or 'no format'})"
    if (is_real_time := command.HasField("real_time_batch_duration")) and command.format != "kafka":
        raise DataflowError(
            f"real-time mode for the format {shown(command.format)}",
            where=where,
            hint='leave .trigger(realTime=...) out, or write .format("kafka")',
        )
    if command.output_mode.lower() not in (("update",) if is_real_time else ("", "append")):
        raise DataflowError(
            f"output mode {shown(command.output_mode)}",
            where=where,
            hint='write .outputMode("update"): real-time mode has no other'
            if is_real_time
            else "leave it out: a window's row is written once, when the watermark has passed its end; for earlier "
            "results .write.output_mode('update').postgres(url, 'table', keys=[...]) of Headwater's own streams",
        )
    if command.clustering_column_names or command.table_name:
        raise DataflowError(
            "a table of a catalog, or clusters of rows",
            where=where,
            hint='write files or a table in a directory: .format("delta").partitionBy("day").start("out")',
        )
    if command.partitioning_column_names and command.format not in _PARTITIONED:
        raise DataflowError(
            f"partitions of a sink of format {shown(command.format)}",
            where=where,
            hint=f"leave .partitionBy out, or write {', '.join(_PARTITIONED)}",
        )
    if command.HasField("foreach_writer"):
        raise DataflowError(
            "foreach calls Python for every row", where=where, hint="write .foreachBatch(function): it gets a DataFrame"
        )
    options = {k: v for k, v in command.options.items() if k not in _OURS}
    if command.HasField("foreach_batch"):
        function = unpickled(command.foreach_batch.python_function.command)
        found = stream.write.for_each_batch(function, as_dataframe=True, one_zone=True)
    else:
        found = _sink(stream, command, options, where)
        if options:
            raise DataflowError(
                f"options {', '.join(sorted(options))}",
                where=where,
                hint="leave them out: this sink has no such options",
            )
    return found.named(command.query_name) if command.query_name else found


def _sink(stream: Stream, command: Message, options: dict[str, str], where: str) -> WrittenStream[Stream]:
    """Write to the sink, and take the options that it knows."""
    path = command.path or command.options.get("path", "")
    columns = list(command.partitioning_column_names)
    match command.format:
        case "csv" | "json" | "parquet" as kind:
            if not path:
                raise DataflowError("no path", where=where, hint='give one: .start("out")')
            if kind == "csv" and options.pop("header", "").lower() != "true":
                raise DataflowError(
                    "CSV files without a header", where=where, hint='add .option("header", True), or write JSON'
                )
            return stream.write.files(path, format=kind, partition_by=columns)
        case "delta":
            if not path:
                raise DataflowError("no path", where=where, hint='give one: .start("out")')
            return stream.write.delta(path, partition_by=columns)
        case "":
            raise DataflowError("no format", where=where, hint='give one: .format("parquet")')
        case "console":
            return stream.write.console()
        case "memory":
            return stream.write.memory(command.query_name or "memory")
        case "kafka":
            servers, topic = options.pop("kafka.bootstrap.servers", ""), options.pop("topic", "")
            if "value" not in {c.lower() for c in stream.columns} or not servers or not topic:
                raise DataflowError(
                    "a Kafka sink needs its servers, a topic and a column named value",
                    where=where,
                    hint='add .option("topic", "t"), .option("kafka.bootstrap.servers", "b:9092"), and a text as value',
                )
            key = "key" if "key" in {c.lower() for c in stream.columns} else None
            if command.HasField("real_time_batch_duration"):
                every = command.real_time_batch_duration
                return stream.write.kafka(
                    servers, topic, key=key, value="value", delivery="at_least_once", real_time=every
                )
            return stream.write.kafka(servers, topic, key=key, value="value")
    raise DataflowError(
        f"format {shown(command.format)} is no sink of a dataflow",
        where=where,
        hint="the formats are csv, json, parquet, delta, console, memory and kafka",
    )
