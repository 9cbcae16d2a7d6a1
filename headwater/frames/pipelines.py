"""Translate declarative pipelines: tables, views, flows and sinks of ``pyspark.pipelines`` become one dataflow."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, NoReturn

from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry
from pyspark.pipelines.output import Output, Sink, Table, TemporaryView
from pyspark.sql.connect import proto
from pyspark.sql.types import StructType

from headwater.core.errors import DataflowError
from headwater.core.text import cut, shown
from headwater.dataflow.stream import Stream
from headwater.frames.jobframe import JobFrame
from headwater.frames.queries import written
from headwater.frames.relations import LAYER, REQUIREMENT, PlanReader
from headwater.frames.types import columns_text
from headwater.sql.schema import Schema
from headwater.sql.statement import UnknownStream

SETTINGS = {"headwater.layer": LAYER, "headwater.require": REQUIREMENT}
"""Settings of a flow, and the hints that they stand for."""
TABLE_PATH = "headwater.path"
"""A property of a table: the directory of its files; ``tables/<name>`` without it."""


class Pipeline(GraphElementRegistry):
    """Collects what a file defines, and adds it to a dataflow: each query is run once its inputs are known."""

    def __init__(self, relations: PlanReader, client: Any) -> None:
        self._relations = relations
        self._client = client
        self._outputs: dict[str, Output] = {}
        self._flows: list[Flow] = []

    def register_output(self, output: Output) -> None:
        """Take a table, a view or a sink."""
        if output.name.lower() in self._outputs:
            raise DataflowError(f"the name {shown(output.name)} is defined twice", where=_place(output), hint=_NAME)
        if isinstance(output, Table):
            _check_table(output)
        self._outputs[output.name.lower()] = output

    def register_flow(self, flow: Flow) -> None:
        """Take a query."""
        self._flows.append(flow)

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> NoReturn:
        """Refuse tables that change rows."""
        raise DataflowError(
            "a flow of changes (auto CDC) would change rows of its table", where=_place(flow), hint="append the changes"
        )

    def register_sql(self, sql_text: str, file_path: Path) -> NoReturn:
        """Refuse files of SQL."""
        raise DataflowError(
            "statements of a pipeline in SQL", where=str(file_path), hint='write spark.sql("SELECT ...") in a function'
        )

    def finish(self) -> None:
        """Run the queries in the order of their inputs, and add a sink for each table and sink."""
        streams: dict[str, list[Stream]] = defaultdict(list)
        waiting = defaultdict[str, list[Flow]](list)
        for flow in self._flows:
            if flow.target.lower() not in self._outputs:
                raise DataflowError(
                    f"the target {shown(flow.target)} of a flow is not defined",
                    where=_place(flow),
                    hint="define it: dp.create_streaming_table(name), or dp.create_sink(name, format, options)",
                )
            waiting[flow.target.lower()].append(flow)
        before = len(waiting)
        while waiting:
            missing: dict[str, UnknownStream] = {}
            for target, flows in list(waiting.items()):
                try:
                    streams[target] = [self._stream(flow) for flow in flows]
                except UnknownStream as error:
                    missing[target] = error
                    continue
                del waiting[target]
                self._name(self._outputs[target], streams[target])
            if len(missing) == before:
                self._refuse(missing, waiting)
            before = len(waiting)
        for name, output in self._outputs.items():
            self._write(output, streams.get(name, []))

    def _refuse(self, missing: dict[str, UnknownStream], waiting: dict[str, list[Flow]]) -> NoReturn:
        """Refuse queries of which each reads what is not there."""
        for unknown in missing.values():
            if unknown.name not in waiting:
                raise unknown
        raise DataflowError(
            f"the queries of {', '.join(map(repr, sorted(waiting)))} read each other in a circle",
            where=_place(next(iter(waiting.values()))[0]),
            hint="a dataflow has no circle: leave out one of the reads",
        )

    def _stream(self, flow: Flow) -> Stream:
        frame: Any = flow.func()
        if not hasattr(frame, "_plan"):
            raise DataflowError(
                f"the function of {shown(flow.target)} returns no DataFrame", where=_place(flow), hint="return it"
            )
        stream = self._relations.stream(frame._plan.plan(self._client), f"the table {flow.target!r}")
        for setting, value in flow.spark_conf.items():
            if setting not in SETTINGS:
                continue
            stream = stream.to_layer(value) if SETTINGS[setting] == LAYER else stream.require(value)
        return stream

    def _name(self, output: Output, streams: list[Stream]) -> None:
        """Let later queries read an output by its name."""
        stream = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
        if isinstance(output, Table) and output.schema is not None:
            given = output.schema
            wanted = columns_text(given) if isinstance(given, StructType) else Schema.parse(given).text
            if stream.schema.text != wanted:
                raise DataflowError(
                    f"the table {output.name!r} has the columns {cut(stream.schema.text, 600)}",
                    where=_place(output),
                    hint=f"{wanted} are declared: correct the query or the schema",
                )
        streams[:] = [stream]
        if not isinstance(output, Sink):
            self._relations.name_view(output.name, JobFrame.of(stream, ()))

    def _write(self, output: Output, streams: list[Stream]) -> None:
        if isinstance(output, TemporaryView):
            return
        if not streams:
            raise DataflowError(
                f"no flow writes to {output.name!r}",
                where=_place(output),
                hint=f"add one: @dp.append_flow(target={output.name!r})",
            )
        command = proto.WriteStreamOperationStart(query_name=output.name.replace(".", "-"))
        if isinstance(output, Sink):
            command.format = output.format
            command.options.update(output.options)
        elif isinstance(output, Table):
            command.format = output.format or "parquet"
            command.path = (output.table_properties or {}).get(TABLE_PATH, f"tables/{output.name}")
            command.partitioning_column_names.extend(output.partition_cols or ())
            if command.format == "csv":
                command.options["header"] = "true"
        try:
            written(streams[0], command)
        except DataflowError as error:
            raise DataflowError(error.what, where=_place(output), hint=error.hint) from None


_NAME = "give each table, view and sink a name of its own"


def _check_table(table: Table) -> None:
    if table.cluster_by:
        raise DataflowError("clusters of a table's rows", where=_place(table), hint="leave them out: cluster_by")


def _place(element: Any) -> str:
    place = element.source_code_location
    name = getattr(element, "name", None) or getattr(element, "target", "")
    return f"{Path(place.filename).name}:{place.line_number} ({name})"
