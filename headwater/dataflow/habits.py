"""PySpark names and values that a dataflow does not take, each answered with the line to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headwater.core.errors import DataflowError, suggestion
from headwater.dataflow.arguments import ArgumentGuard

_NOTHING = "nothing: "
_AGGREGATE = 'group_by(hw.window("ts", "1 minute")).agg(n="count(*)")'
_SCAN = 'nothing: write .scan(function, "id int", keys="machine", order_by="ts") on the stream itself'
_ROWS = 'write.memory("out") in tests, .write.console() to look, or .write.parquet("out")'
_ORDER = 'top_k(10, "n"), or .scan(..., order_by="ts")'
_FILL = 'with_columns(v="coalesce(v, 0)")'
_RUNS = "nothing: leave it out; units keep their rows in channels, and a zone's Spark plans its queries"
_SHARE = 'where("pmod(xxhash64(id), 100) < 10")'
_JOIN = 'join(other, "id", within="1 minute")'
_CUBE = f"nothing: write a grouping for each level, .{_AGGREGATE}, and .union(...) of them"
_VIEW = 'named("readings"), and use the stream itself'
_SPARK = "nothing: Spark starts later, on the zones; a flow file only describes the dataflow"
_CONF = "nothing: settings of Spark are options of `headwater run` and `headwater zone`"
_SET = 'union(other).with_watermark("ts", "10 seconds").drop_duplicates("id")'
_PLAN = "nothing: `headwater plan` shows the plan"

STREAM = (
    dict.fromkeys(("agg", "count", "describe", "summary", "stat", "approxQuantile", "corr", "cov"), _AGGREGATE)
    | dict.fromkeys(("crosstab", "freqItems", "pivot"), _AGGREGATE)
    | dict.fromkeys(("show", "collect", "toPandas", "take", "first", "head", "tail", "limit", "offset"), _ROWS)
    | dict.fromkeys(("toArrow", "toLocalIterator", "isEmpty", "pandas_api", "plot", "transpose"), _ROWS)
    | dict.fromkeys(("orderBy", "sort", "sortWithinPartitions"), _ORDER)
    | dict.fromkeys(("cache", "persist", "unpersist", "checkpoint", "localCheckpoint", "storageLevel"), _RUNS)
    | dict.fromkeys(("repartition", "repartitionByRange", "repartitionById", "coalesce", "hint"), _RUNS)
    | dict.fromkeys(("sample", "sampleBy", "randomSplit"), _SHARE)
    | dict.fromkeys(("crossJoin", "lateralJoin", "nearestByJoin", "exists", "scalar"), _JOIN)
    | dict.fromkeys(("rollup", "cube", "groupingSets"), _CUBE)
    | dict.fromkeys(("createTempView", "createOrReplaceTempView", "createGlobalTempView", "alias"), _VIEW)
    | dict.fromkeys(("createOrReplaceGlobalTempView", "registerTempTable", "asTable"), _VIEW)
    | dict.fromkeys(("intersect", "intersectAll", "subtract", "exceptAll"), _SET)
    | dict.fromkeys(("explain", "executionInfo", "isLocal", "sameSemantics", "semanticHash"), _PLAN)
    | dict.fromkeys(("sparkSession", "inputFiles"), _SPARK)
    | dict.fromkeys(("unpivot", "melt"), 'explode("array(struct(a AS v), struct(b AS v))", "item")')
    | dict.fromkeys(("rdd", "foreachPartition", "mapInPandas"), 'map_batches(function, "id int, v double")')
    | dict.fromkeys(("foreachBatch", "foreach"), "write.for_each_batch(function)")
    | dict.fromkeys(("writeTo", "mergeInto"), 'write.parquet("out")')
    | {
        "groupByKey": 'group_by("machine")',
        "unionAll": "union(other)",
        "na": f'{_FILL}, or .where("v IS NOT NULL")',
        "fillna": _FILL,
        "replace": """with_columns(v="CASE WHEN v = 'a' THEN 'b' ELSE v END")""",
        "dropna": 'where("v IS NOT NULL")',
        "to": 'select("CAST(id AS bigint) AS id")',
        "toJSON": 'select("to_json(struct(id, v)) AS value")',
        "colRegex": 'select("id", "v")',
        "metadataColumn": 'nothing: a column for the file is read.csv(..., file_as="file")',
        "observe": "nothing: `headwater status` shows rows and lag of each unit",
        "withMetadata": "nothing: leave it out; columns have a name and a type",
        "zipWithIndex": _SCAN.removeprefix(_NOTHING),
    }
)
"""For names of PySpark's DataFrame, calls on a Stream in their place."""
GROUPED = {
    "apply": _SCAN,
    "applyInArrow": _SCAN,
    "applyInPandas": _SCAN,
    "applyInPandasWithState": _SCAN,
    "cogroup": f"nothing: write .{_JOIN} on the stream itself",
    "transformWithState": _SCAN,
    "transformWithStateInPandas": _SCAN,
    "pivot": 'agg(low="count_if(v < 5)", high="count_if(v >= 5)")',
}
"""For names of PySpark's GroupedData."""
_READ = 'csv("in/{location}", "id int, ts timestamp")'
_OPTIONS = 'csv("in/{location}", "id int, ts timestamp", header="true")'
_FILES = 'nothing: the formats are csv, json and parquet, read.files("in", "id int", format="json")'
READER = {
    "changes": _FILES,
    "jdbc": _FILES,
    "load": _READ,
    "name": "nothing: name the stream, .named(...)",
    "option": _OPTIONS,
    "options": _OPTIONS,
    "orc": _FILES,
    "schema": _READ,
    "table": 'parquet("in/{location}", "id int, ts timestamp")',
    "text": 'csv("in/{location}", "line string", sep="\\u0001")',
    "xml": _FILES,
}
"""For names of PySpark's DataStreamReader and DataFrameReader."""
_PREPARED = "nothing: prepare the rows in the file, or by the query of table.jdbc(...)"
_STATIC = "nothing: a table has no event time; zones read its rows"
TABLE = (
    dict.fromkeys(("join", "crossJoin"), 'nothing: join the stream with the table, stream.join(table, "id")')
    | dict.fromkeys(("groupBy", "groupby", "agg", "count", "distinct", "dropDuplicates", "drop_duplicates"), _PREPARED)
    | dict.fromkeys(("orderBy", "sort", "limit", "union", "unionByName", "explode"), _PREPARED)
    | dict.fromkeys(("show", "collect", "toPandas", "take", "first", "head", "isEmpty"), _SPARK)
    | dict.fromkeys(("cache", "persist", "unpersist", "repartition", "coalesce", "hint"), _RUNS)
    | dict.fromkeys(("withWatermark", "with_watermark", "to_layer", "to_zone", "require"), _STATIC)
    | dict.fromkeys(("write", "writeStream"), "nothing: join a stream with the table, and write that")
    | dict.fromkeys(("named", "alias", "createOrReplaceTempView"), 'nothing: f.sql("... JOIN m ON ...", m=table)')
)
"""For names of PySpark's DataFrame, calls on a ReferenceTable in their place."""
_WRITE = 'parquet("out")'
_TABLE = 'delta("out/table")'
WRITER = {
    "bucketBy": "nothing: leave it out; each unit writes files of its own",
    "clusterBy": "nothing: leave it out; each unit writes files of its own",
    "insertInto": _WRITE,
    "mode": "nothing: sinks append",
    "option": 'kafka("broker:9092", "topic", compression_type="zstd")',
    "options": 'kafka("broker:9092", "topic", compression_type="zstd")',
    "orc": _WRITE,
    "partitionBy": 'parquet("out", partition_by="day")',
    "foreachBatch": "for_each_batch(function)",
    "foreach": "for_each_batch(function)",
    "queryName": 'memory("out").named("name")',
    "save": _WRITE,
    "saveAsTable": _TABLE,
    "sortBy": "nothing: leave it out; a stream has no order",
    "start": "nothing: `headwater run` starts the dataflow",
    "text": 'csv("out")',
    "toTable": _TABLE,
    "trigger": "nothing: give --trigger to `headwater run`",
    "xml": 'json("out")',
}
"""For names of PySpark's DataStreamWriter and DataFrameWriter."""
_SESSION = """
    Builder active addTag builder catalog clearProgressHandlers clearTags client getActiveSession getTags
    interruptAll interruptOperation interruptTag newSession profile registerProgressHandler removeProgressHandler
    removeTag sparkContext stop streams tvf version
"""
_MODULES = "nothing: leave it out; modules beside the flow file come with it"
_FUNCTIONS = 'nothing: write .map_batches(function, "id int, v double") on a stream'
BUILDER = (
    dict.fromkeys(_SESSION.split(), _SPARK)
    | dict.fromkeys(("addArtifact", "addArtifacts", "copyFromLocalToFs"), _MODULES)
    | dict.fromkeys(("udf", "udtf"), _FUNCTIONS)
    | {
        "conf": _CONF,
        "createDataFrame": 'read.json("in/{location}", "id int, ts timestamp")',
        "emptyDataFrame": 'read.json("in/{location}", "id int, ts timestamp")',
        "range": "read.rate(rows_per_second=10)",
    }
)
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
            f"columns are no attributes: '{name}'",
            where=where,
            hint=f'write F.col("{name}") with pyspark.sql.functions as F, or text: where("{name} > 5")',
        )
    own = [n for n in dir(type(owner)) if not n.startswith("_")]
    return UnknownName(f"{kind} has no '{name}'", where=where, hint=suggestion(name, own, "it has"))
