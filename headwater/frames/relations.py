"""Translate relations of the Spark Connect protocol, the unresolved plans of PySpark's DataFrames, to streams."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable
from typing import Any

from headwater.core.errors import DataflowError
from headwater.core.text import cut, shown
from headwater.dataflow import habits
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.keys import KeyExpression, key_of
from headwater.dataflow.stateful import SessionWindow, TimeWindow
from headwater.dataflow.stream import Stream
from headwater.sql.columns import expression_tree
from headwater.sql.lexer import quoted
from headwater.sql.printer import canonical
from headwater.sql.syntax import Literal, Name

Message = Any
"""A message of Spark Connect's protocol: ``spark.connect.Relation`` or a part of it."""

LAYER, REQUIREMENT = "headwater_layer", "headwater_require"
"""Names of hints: Spark ignores hints that it does not know, so the same code runs on it."""
_UNION, _GROUPING, _ARROW = 2, 1, 207  # SET_OP_TYPE_UNION, GROUP_TYPE_GROUPBY, SQL_MAP_ARROW_ITER_UDF
_FORMATS = ("csv", "json", "parquet")
_SAME_ROWS = ("repartition", "repartition_by_expression")
_REFUSED = {
    "sort": ("a stream has no order", "orderBy"),
    "limit": ("a stream has no first rows", "limit"),
    "tail": ("a stream has no last rows", "tail"),
    "offset": ("a stream has no first rows", "limit"),
    "sample": ("a sample would differ in a repeated batch", "sample"),
    "join": ("a join of streams needs a bound on the time between two rows", "crossJoin"),
    "show_string": ("show() needs a running Spark", "show"),
    "unpivot": ("unpivot is no operator of a stream", "unpivot"),
    "fill_na": ("fillna is no operator here", "fillna"),
    "drop_na": ("dropna is no operator here", "dropna"),
    "replace": ("replace is no operator here", "replace"),
}
_IN_DATAFLOW = "in a dataflow of hw.flow(...)"


class PlanReader:
    """Makes one stream of each relation: frames that share a part share its operators."""

    def __init__(self, flow: DataflowBuilder) -> None:
        self._flow = flow
        self._done: dict[int, Stream] = {}
        self._views: dict[str, Stream] = {}

    def name_view(self, name: str, stream: Stream) -> None:
        """Let ``spark.table(name)`` be a stream."""
        self._views[name.lower()] = stream

    def stream(self, relation: Message) -> Stream:
        """Return the stream of a relation, checked as the fluent API checks it."""
        number = relation.common.plan_id
        if number not in self._done:
            self._done[number] = self._translated(relation)
        return self._done[number]

    def _translated(self, relation: Message) -> Stream:
        kind = relation.WhichOneof("rel_type") or ""
        part = getattr(relation, kind, None)
        method = self._methods().get(kind)
        if kind in _SAME_ROWS:
            return self.stream(getattr(part, "input"))  # noqa: B009
        if method is None:
            what, habit = _REFUSED.get(kind, (f"{kind} is no operator of a stream", ""))
            line = habits.STREAM.get(habit, "")
            hint = f"{_IN_DATAFLOW}, write .{line}" if line else f"write it {_IN_DATAFLOW}, or leave it out"
            raise DataflowError(what, where=f"DataFrame ({kind})", hint=hint)
        return method(part)

    def _methods(self) -> dict[str, Callable[[Message], Stream]]:
        return {
            "read": self._read,
            "filter": self._filter,
            "project": self._project,
            "with_columns": self._with_columns,
            "with_columns_renamed": self._with_columns_renamed,
            "drop": self._drop,
            "to_df": self._to_df,
            "subquery_alias": self._subquery_alias,
            "hint": self._hint,
            "set_op": self._set_op,
            "map_partitions": self._map_partitions,
            "with_watermark": self._with_watermark,
            "deduplicate": self._deduplicate,
            "aggregate": self._aggregate,
        }

    # ------------------------------------------------------------ sources

    def _read(self, read: Message) -> Stream:
        if read.WhichOneof("read_type") == "named_table":
            return self._named_table(read.named_table.unparsed_identifier)
        source = read.data_source
        options = dict(source.options)
        where = f"spark.readStream ({source.format or 'no format'})"
        if not read.is_streaming:
            raise DataflowError("a static DataFrame", where=where, hint="read it as a stream: spark.readStream")
        places = {name: options.pop(name, None) for name in ("location_as", "file_as")}
        if source.format == "rate":
            rows = options.pop("rowspersecond", None) or options.pop("rowsPerSecond", "1")
            return self._flow.read.rate(int(rows), location_as=places["location_as"])
        if source.format not in _FORMATS:
            raise DataflowError(
                f"format {shown(source.format)} is no source of a dataflow",
                where=where,
                hint=f"the formats are csv, json, parquet and rate; {_IN_DATAFLOW}, also f.read.mqtt(...)",
            )
        paths = [*source.paths, *([options.pop("path")] if "path" in options else [])]
        if len(paths) != 1 or not source.schema:
            raise DataflowError(
                f"{len(paths)} paths, {'with a' if source.schema else 'without a'} schema",
                where=where,
                hint='give one path and a schema: .schema("id int, ts timestamp").json("in/{location}")',
            )
        return self._flow.read.files(paths[0], _schema(source.schema), format=source.format, **places, **options)

    def _named_table(self, name: str) -> Stream:
        found = self._views.get(name.lower())
        if found is None:
            raise DataflowError(
                f"there is no view {shown(name)}",
                where="spark.table",
                hint=f"the views are {cut(', '.join(self._views), 300) or 'none'}; tables of a catalog are not read",
            )
        return found

    # ------------------------------------------------------------ row by row

    def _filter(self, part: Message) -> Stream:
        return self.stream(part.input).where(_text(part.condition))

    def _project(self, part: Message) -> Stream:
        return self.stream(part.input).select(*map(_text, part.expressions))

    def _with_columns(self, part: Message) -> Stream:
        return self.stream(part.input).withColumns({a.name[0]: _text(a.expr) for a in part.aliases})

    def _with_columns_renamed(self, part: Message) -> Stream:
        stream = self.stream(part.input)
        names = dict(part.rename_columns_map) | {r.col_name: r.new_col_name for r in part.renames}
        return stream.withColumnsRenamed(_present(stream, names))

    def _drop(self, part: Message) -> Stream:
        stream = self.stream(part.input)
        names = [*part.column_names, *(_plain(c, "drop") for c in part.columns)]
        return stream.drop(*_present(stream, dict.fromkeys(names, "")))

    def _to_df(self, part: Message) -> Stream:
        return self.stream(part.input).toDF(*part.column_names)

    def _subquery_alias(self, part: Message) -> Stream:
        return self.stream(part.input)

    def _hint(self, part: Message) -> Stream:
        stream = self.stream(part.input)
        nodes = [expression_tree(p) for p in part.parameters]
        texts = [n.value for n in nodes if isinstance(n, Literal) and isinstance(n.value, str)]
        if part.name.lower() == LAYER:
            return stream.to_layer(*texts)
        return stream.require(*texts) if part.name.lower() == REQUIREMENT else stream

    def _set_op(self, part: Message) -> Stream:
        left, right = self.stream(part.left_input), self.stream(part.right_input)
        if part.set_op_type != _UNION or part.allow_missing_columns:
            raise DataflowError(
                "only unions of the same columns are operators of a stream",
                where="DataFrame (set_op)",
                hint="select the same columns on both sides, and write union or unionByName",
            )
        if not part.by_name and len(left.columns) == len(right.columns):
            right = right.toDF(*left.columns)  # PySpark's union goes by position
        return left.union(right)

    def _map_partitions(self, part: Message) -> Stream:
        function = part.func.python_udf
        if part.func.WhichOneof("function") != "python_udf" or function.eval_type != _ARROW:
            raise DataflowError(
                "mapInPandas is no operator of a stream",
                where="DataFrame (mapInPandas)",
                hint="write df.mapInArrow(function, schema): the function gets batches of pyarrow",
            )
        # PySpark has pickled the function of this very process a moment ago.
        given, schema = pickle.loads(function.command)
        return self.stream(part.input).map_batches(given, _schema_of(schema))

    # ------------------------------------------------------------ stateful

    def _with_watermark(self, part: Message) -> Stream:
        return self.stream(part.input).with_watermark(part.event_time, part.delay_threshold)

    def _deduplicate(self, part: Message) -> Stream:
        stream = self.stream(part.input)
        names = stream.columns if part.all_columns_as_keys else list(part.column_names)
        time = stream.shape.event_time
        if time is not None and not part.within_watermark and time.column.lower() not in {n.lower() for n in names}:
            raise DataflowError(
                f"dropDuplicates without the event time '{time.column}' keeps all keys for ever",
                where="DataFrame (deduplicate)",
                hint="write dropDuplicatesWithinWatermark, or add the event time to the columns",
            )
        return stream.drop_duplicates(*names)

    def _aggregate(self, part: Message) -> Stream:
        if part.group_type != _GROUPING:
            raise DataflowError(
                "rollup, cube and pivot are no operators of a stream",
                where="DataFrame (aggregate)",
                hint="write a groupBy for each level, and union them; for pivot, F.count_if(...) of each value",
            )
        keys = [key_of(expression_tree(k)) for k in part.grouping_expressions]
        named = [k.name if isinstance(k, KeyExpression) else k for k in keys]
        stream = self.stream(part.input)
        computed = {k.name: k.text for k in keys if isinstance(k, KeyExpression)}
        grouped = (stream.with_columns(**computed) if computed else stream).group_by(*named)
        found = grouped.agg(*map(_text, part.aggregate_expressions))
        # Spark has the keys in the order in which they are written; a window need not be the first.
        written = [_window_name(k) if not isinstance(k, str) else k for k in named]
        order = [*written, *found.columns[len(written) :]]
        return found if order == found.columns else found.select(*map(quoted, order))


def _window_name(window: TimeWindow | SessionWindow) -> str:
    return "window" if isinstance(window, TimeWindow) else "session_window"


def _text(message: Message) -> str:
    return canonical(expression_tree(message))


def _plain(message: Message, method: str) -> str:
    node = expression_tree(message)
    if not isinstance(node, Name) or len(node.parts) > 1:
        raise DataflowError(f"{method} of {canonical(node)}", hint="give names of columns")
    return node.parts[0]


def _present(stream: Stream, names: dict[str, str]) -> dict[str, str]:
    """Leave out names that the stream does not have: PySpark does so without a message."""
    known = {c.lower() for c in stream.columns}
    return {name: new for name, new in names.items() if name.lower() in known}


def _schema(text: str) -> str:
    """Return a schema as DDL; PySpark sends a StructType as JSON."""
    if not text.lstrip().startswith("{"):
        return text
    return ", ".join(_columns(json.loads(text)["fields"], " "))


def _schema_of(schema: Any) -> str:
    """Return the text of a schema of PySpark: a StructType, or DDL in an unparsed type."""
    text = getattr(schema, "data_type_string", None)
    return str(text) if text is not None else _schema(schema.json())


def _columns(fields: Iterable[dict[str, Any]], mark: str) -> list[str]:
    return [f"{quoted(f['name'])}{mark}{_type(f['type'])}" for f in fields]


_TYPES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}


def _type(found: Any) -> str:
    """Return the DDL of a type in Spark's JSON."""
    if isinstance(found, str):
        return _TYPES.get(found, found)
    match found["type"]:
        case "array":
            return f"array<{_type(found['elementType'])}>"
        case "map":
            return f"map<{_type(found['keyType'])},{_type(found['valueType'])}>"
    return f"struct<{','.join(_columns(found['fields'], ':'))}>"
