"""PySpark names and values that a dataflow does not take, each answered with the line to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headwater.core.errors import DataflowError, suggestion
from headwater.dataflow.arguments import ArgumentGuard

_NOTHING = "nothing: "
STREAM = {
    "groupBy": 'group_by("machine")',
    "groupby": 'group_by("machine")',
    "groupByKey": 'group_by("machine")',
    "agg": 'group_by(hw.window("ts", "1 minute")).agg(n="count(*)")',
    "count": 'group_by(hw.window("ts", "1 minute")).agg(n="count(*)")',
    "withColumn": 'with_columns(twice="v * 2")',
    "withColumns": 'with_columns(twice="v * 2")',
    "withColumnRenamed": 'select("id", "v AS value")',
    "withColumnsRenamed": 'select("id", "v AS value")',
    "withWatermark": 'with_watermark("ts", "10 seconds")',
    "dropDuplicates": 'with_watermark("ts", "10 seconds").drop_duplicates("id")',
    "dropDuplicatesWithinWatermark": 'with_watermark("ts", "10 seconds").drop_duplicates("id")',
    "distinct": 'with_watermark("ts", "10 seconds").drop_duplicates()',
    "printSchema": "print_schema()",
    "selectExpr": 'select("id", "v * 2 AS twice")',
    "unionByName": "union(other)",
    "unionAll": "union(other)",
    "mapInArrow": 'map_batches(function, "id int, v double")',
    "mapInPandas": 'map_batches(function, "id int, v double")',
    "writeStream": 'write.parquet("out")',
    "foreachBatch": "write.for_each_batch(function)",
    "foreach": "write.for_each_batch(function)",
    "show": 'write.console(), or .write.memory("out") in tests',
    "orderBy": 'top_k(10, "n"), or .scan(..., order_by="ts")',
    "sort": 'top_k(10, "n"), or .scan(..., order_by="ts")',
    "na": 'with_columns(v="coalesce(v, 0)"), or .where("v IS NOT NULL")',
    "fillna": 'with_columns(v="coalesce(v, 0)")',
    "dropna": 'where("v IS NOT NULL")',
    "isStreaming": "nothing: every Stream is one",
    "dtypes": "print_schema(), or schema",
}
"""For names of PySpark's DataFrame, calls on a Stream in their place."""
_SCAN = 'nothing: write .scan(function, "id int", keys="machine", order_by="ts") on the stream itself'
GROUPED = {name: f'agg(x="{name}(v)")' for name in ("avg", "mean", "max", "min", "sum")} | {
    "applyInPandas": _SCAN,
    "applyInPandasWithState": _SCAN,
    "transformWithState": _SCAN,
    "pivot": 'agg(low="count_if(v < 5)", high="count_if(v >= 5)")',
}
"""For names of PySpark's GroupedData."""
READER = {
    "schema": 'csv("in/{location}", "id int, ts timestamp")',
    "format": 'csv("in/{location}", "id int, ts timestamp")',
    "load": 'csv("in/{location}", "id int, ts timestamp")',
    "option": 'csv("in/{location}", "id int, ts timestamp", header="true")',
    "options": 'csv("in/{location}", "id int, ts timestamp", header="true")',
    "text": 'csv("in/{location}", "line string", sep="\\u0001")',
}
"""For names of PySpark's DataStreamReader."""
WRITER = {
    "format": 'parquet("out")',
    "option": 'kafka("broker:9092", "topic", compression_type="zstd")',
    "start": "nothing: `headwater run` starts the dataflow",
    "trigger": "nothing: give --trigger to `headwater run`",
    "outputMode": "nothing: sinks append",
    "foreachBatch": "for_each_batch(function)",
    "foreach": "for_each_batch(function)",
    "toTable": 'parquet("out")',
    "save": 'parquet("out")',
    "queryName": 'memory("out").named("name")',
}
"""For names of PySpark's DataStreamWriter."""
BUILDER = {
    "readStream": 'read.csv("in/{location}", "id int, ts timestamp")',
    "table": 'read.parquet("in/{location}", "id int, ts timestamp")',
    "createDataFrame": 'read.json("in/{location}", "id int, ts timestamp")',
}
"""For names of a SparkSession."""


class UnknownName(DataflowError, AttributeError):
    """A method or attribute that is not there; also an AttributeError, as ``hasattr`` and copying expect."""


class NameGuard(ArgumentGuard):
    """An object of the dataflow that answers a name it does not have with the line to write instead."""

    def _unknown(self, name: str) -> UnknownName:
        raise NotImplementedError

    if not TYPE_CHECKING:  # or every name would be right to a type checker

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # copying and pickling ask for these, before there are fields
                raise AttributeError(name)
            raise self._unknown(name)


def missing(name: str, owner: Any, known: Mapping[str, str], *, where: str, columns: Iterable[str] = ()) -> UnknownName:
    """Return the error for an attribute that an object of the dataflow does not have."""
    kind = type(owner).__name__
    if name in known:
        write = known[name]
        hint = write.removeprefix(_NOTHING) if write.startswith(_NOTHING) else f"write .{write}"
        return UnknownName(f"{kind} has no '{name}'", where=where, hint=hint)
    if name in columns:
        return UnknownName(
            f"columns are no attributes: '{name}'", where=where, hint=f'write columns as text: where("{name} > 5")'
        )
    own = [n for n in dir(type(owner)) if not n.startswith("_")]
    return UnknownName(f"{kind} has no '{name}'", where=where, hint=suggestion(name, own, "it has"))
