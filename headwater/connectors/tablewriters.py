"""Sink writers of tables: their descriptions for Spark, and the output of other runs in their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwater.connectors.icebergtable import IcebergAddress
from headwater.connectors.kafkawriter import sink_writer_id
from headwater.connectors.postgreswriter import table_of
from headwater.core.errors import RuntimeFailure
from headwater.dataflow.partitions import resolved_partitions
from headwater.dataflow.tablesinks import DeltaSink, IcebergSink, PostgresSink, TableSink, key_columns
from headwater.dataflow.types import StreamType
from headwater.disk.checkpoint import checkpoint_number
from headwater.disk.layout import sink_directory
from headwater.plan.model import Unit


def described(sink: TableSink, type_: StreamType, unit: Unit, tag: str, checkpoint: Path) -> dict[str, Any]:
    """Describe the sink writer of a table, for rows of a type; ``tag`` is that of the sink."""
    number = checkpoint_number(str(checkpoint), where=sink.where)
    common = {"id": sink_writer_id(number, tag), "operator": sink.id, "unit": unit.id}
    match sink:
        case DeltaSink():
            partitions = resolved_partitions(sink.partition_by, type_.schema, where=sink.where)
            settings = {"partition_by": partitions, "compact_after": sink.compact_after}
            if sink.keys is not None:  # a merge writes whole files again: compaction would only be in its way
                settings |= {"compact_after": 0, "keys": key_columns(sink, sink.keys, "keys", type_.schema)}
            return {"kind": "delta", "table": sink_directory(sink.path, unit), **settings, **common}
        case IcebergSink():
            partitions = resolved_partitions(sink.partition_by, type_.schema, where=sink.where)
            settings = {"partition_by": partitions, "compact_after": sink.compact_after}
            return {"kind": "iceberg", **IcebergAddress.of(sink).to_data(), **settings, **common}
        case PostgresSink():
            table = table_of(sink, type_)
            return {"kind": "postgres", **table.to_data(), **common}
    raise RuntimeFailure(f"no sink writer for {sink.kind}", where=sink.where, hint="report this as a defect")


def has_output(sink: TableSink, type_: StreamType, unit: Unit) -> bool:
    """Return whether a table holds rows that sink writers of other runs, or of this one, have written."""
    from headwater.connectors import deltawriter, icebergwriter, postgreswriter

    match sink:
        case DeltaSink():
            return deltawriter.has_output(Path(sink_directory(sink.path, unit)))
        case IcebergSink():
            return icebergwriter.has_output(IcebergAddress.of(sink))
        case PostgresSink():
            return postgreswriter.has_output(table_of(sink, type_))
    return False


def removable(sink: TableSink, unit: Unit) -> bool:
    """Return whether a table is known to hold no rows but those of sink writers."""
    from headwater.connectors import deltawriter, icebergwriter

    match sink:
        case DeltaSink():
            return not deltawriter.holds_rows_of_others(Path(sink_directory(sink.path, unit)))
        case IcebergSink():
            return not icebergwriter.holds_rows_of_others(IcebergAddress.of(sink))
    return False


def remove_output(sink: TableSink, unit: Unit) -> None:
    """Delete the rows of a table that is ``removable``."""
    from headwater.connectors import deltawriter, icebergwriter

    match sink:
        case DeltaSink():
            deltawriter.remove_output(Path(sink_directory(sink.path, unit)))
        case IcebergSink():
            icebergwriter.remove_output(IcebergAddress.of(sink))
