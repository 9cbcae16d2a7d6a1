"""Translate relations of the Spark Connect protocol, the unresolved plans of PySpark's DataFrames, to streams."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any

from headwater.core.errors import DataflowError
from headwater.core.text import cut, shown
from headwater.dataflow import habits
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.joining import ScopedStream, filtered, looked_up, paired
from headwater.dataflow.keys import KeyExpression, key_of
from headwater.dataflow.lookup import ReferenceTable
from headwater.dataflow.stateful import SessionWindow, TimeWindow
from headwater.dataflow.stream import Stream
from headwater.frames.functions import in_pandas
from headwater.frames.jobframe import JobFrame, named, stream_of
from headwater.frames.kafkaoptions import topic_settings
from headwater.frames.nulls import filled, kept
from headwater.frames.pickled import calling, unpickled
from headwater.frames.pythoncolumns import PythonColumns
from headwater.frames.statictables import file_table, local_table
from headwater.frames.types import columns_text, source_schema, spark_json, type_of
from headwater.sql.columns import ExpressionMessages, Message, expression_tree
from headwater.sql.expressions import check
from headwater.sql.lexer import quoted
from headwater.sql.printer import canonical, printed
from headwater.sql.schema import Column, StructType
from headwater.sql.scope import Scope, all_of
from headwater.sql.statement import JoinKind, UnknownStream
from headwater.sql.syntax import Alias, Binary, Literal, Name, Star, SyntaxNode

LAYER, REQUIREMENT = "headwater_layer", "headwater_require"
"""Names of hints: Spark ignores hints that it does not know, so the same code runs on it."""
_UNION, _GROUPING = 2, 1  # SET_OP_TYPE_UNION, GROUP_TYPE_GROUPBY
_PANDAS, _ARROW = 205, 207  # SQL_MAP_PANDAS_ITER_UDF, SQL_MAP_ARROW_ITER_UDF
# JOIN_TYPE_INNER, JOIN_TYPE_LEFT_OUTER, JOIN_TYPE_RIGHT_OUTER, JOIN_TYPE_LEFT_ANTI, JOIN_TYPE_LEFT_SEMI
_JOINS: dict[int, JoinKind] = {1: "inner", 3: "left", 5: "left_anti", 6: "left_semi"}
_SWAPPED: dict[int, JoinKind] = {1: "inner", 4: "left"}
"""Joins of a static DataFrame with a stream, as those of the stream with the static DataFrame."""
_PLAIN = ("boolean", "byte", "short", "integer", "long", "float", "double", "string")
_INPUTS = ("input", "left_input", "right_input")
_FORMATS = ("csv", "json", "parquet")
_STATIC = ("range", "cached_local_relation", "unresolved_table_valued_function")
_SAME_ROWS = ("repartition", "repartition_by_expression")
_REFUSED = {
    "sort": ("a stream has no order", "orderBy"),
    "limit": ("a stream has no first rows", "limit"),
    "tail": ("a stream has no last rows", "tail"),
    "offset": ("a stream has no first rows", "limit"),
    "sample": ("a sample would differ in a repeated batch", "sample"),
    "show_string": ("show() needs a running Spark", "show"),
    "unpivot": ("unpivot is no operator of a stream", "unpivot"),
    "replace": ("replace is no operator here", "replace"),
}
_IN_DATAFLOW = "in a dataflow of hw.flow(...)"


class PlanReader:
    """Makes one frame of each relation: DataFrames that share a part share its operators."""

    def __init__(self, flow: DataflowBuilder) -> None:
        self._flow = flow
        self._done: dict[int, JobFrame] = {}
        self._views: dict[str, JobFrame] = {}

    def name_view(self, name: str, frame: JobFrame) -> None:
        """Let ``spark.table(name)``, and statements of SQL, read a frame by a name."""
        self._views[name.lower()] = frame

    def frame(self, relation: Message) -> JobFrame:
        """Return the frame of a relation, checked as the fluent API checks it."""
        number = relation.common.plan_id
        if number not in self._done:
            found = self._translated(relation)
            self._done[number] = replace(found, plans=tuple(p | {number} for p in found.plans))
        return self._done[number]

    def stream(self, relation: Message, what: str = "it") -> Stream:
        """Return the stream of a relation, whose columns have names of their own."""
        return stream_of(self.frame(relation).flat(what))

    def is_streaming(self, relation: Message) -> bool:
        """Return whether a DataFrame is a stream."""
        return isinstance(self.frame(relation).rows, Stream)

    def row_type(self, relation: Message) -> StructType:
        """Return the columns of a frame; of a join, two may have one name."""
        frame = self.frame(relation)
        schema = frame.rows.schema
        return StructType(tuple(Column(c.name, check(printed(c.value), schema).type) for c in frame.scope.star))

    def _translated(self, relation: Message) -> JobFrame:
        kind = relation.WhichOneof("rel_type") or ""
        part = getattr(relation, kind, None)
        if kind in _SAME_ROWS:
            return self.frame(getattr(part, "input"))  # noqa: B009
        over_join = self._over_joins().get(kind)
        if over_join is not None:
            return over_join(part)
        method = self._methods().get(kind)
        if method is None:
            if kind in _STATIC:
                raise DataflowError(
                    f"{kind}: rows of this process", where=f"DataFrame ({kind})", hint="read a stream: spark.readStream"
                )
            what, habit = _REFUSED.get(kind, (f"{kind} is no operator of a stream", ""))
            line = habits.STREAM.get(habit, "")
            hint = f"{_IN_DATAFLOW}, write .{line}" if line else f"write it {_IN_DATAFLOW}, or leave it out"
            raise DataflowError(what, where=f"DataFrame ({kind})", hint=hint)
        inputs = [getattr(part, name) for name in _INPUTS if _has(part, name)]
        plans = frozenset[int]().union(*(self.frame(one).all_plans for one in inputs))
        return JobFrame.of(method(part), plans)

    def _methods(self) -> dict[str, Callable[[Message], Stream | ReferenceTable]]:
        """Relations whose columns have names of their own."""
        return {
            "read": self._read,
            "local_relation": local_table,
            "with_columns": self._with_columns,
            "with_columns_renamed": self._with_columns_renamed,
            "to_df": self._to_df,
            "fill_na": self._fill_na,
            "drop_na": self._drop_na,
            "set_op": self._set_op,
            "map_partitions": self._map_partitions,
            "with_watermark": self._with_watermark,
            "deduplicate": self._deduplicate,
            "aggregate": self._aggregate,
            "sql": self._sql,
            "with_relations": self._with_relations,
        }

    def _over_joins(self) -> dict[str, Callable[[Message], JobFrame]]:
        """Relations that may follow a join, in which two columns have one name."""
        return {
            "join": self._join,
            "filter": self._filter,
            "project": self._project,
            "drop": self._drop,
            "hint": self._hint,
            "subquery_alias": self._subquery_alias,
        }

    # ------------------------------------------------------------ sources

    def _read(self, read: Message) -> Stream | ReferenceTable:
        if read.WhichOneof("read_type") == "named_table":
            return self._named_table(read.named_table.unparsed_identifier)
        source = read.data_source
        options = dict(source.options)
        where = f"spark.readStream ({source.format or 'no format'})"
        if not read.is_streaming:
            return file_table(self._flow.table, source)
        places = {name: options.pop(name, None) for name in ("location_as", "file_as")}
        if source.format == "rate":
            rows = options.pop("rowspersecond", None) or options.pop("rowsPerSecond", "1")
            return self._flow.read.rate(int(rows), location_as=places["location_as"])
        if source.format == "kafka":
            settings = topic_settings(options, where=where)
            return self._flow.read.kafka(format="raw", location_as=places["location_as"], **settings)
        if source.format not in _FORMATS:
            raise DataflowError(
                f"format {shown(source.format)} is no source of a dataflow",
                where=where,
                hint=f"the formats are csv, json, parquet, kafka and rate; {_IN_DATAFLOW}, also f.read.mqtt(...)",
            )
        paths = [*source.paths, *([options.pop("path")] if "path" in options else [])]
        if len(paths) != 1 or not source.schema:
            raise DataflowError(
                f"{len(paths)} paths, {'with a' if source.schema else 'without a'} schema",
                where=where,
                hint='give one path and a schema: .schema("id int, ts timestamp").json("in/{location}")',
            )
        return self._flow.read.files(paths[0], source_schema(source.schema), format=source.format, **places, **options)

    def _named_table(self, name: str) -> Stream | ReferenceTable:
        frame = self._views.get(name.lower())
        if frame is None:
            error = UnknownStream(
                f"there is no view {shown(name)}",
                where="spark.table",
                hint=f"the views are {cut(', '.join(self._views), 300) or 'none'}; tables of a catalog are not read",
            )
            error.name = name.lower()
            raise error
        return frame.flat("table")

    # ------------------------------------------------------------ SQL

    def _sql(self, part: Message) -> Stream:
        """Translate ``spark.sql(...)``, whose streams are the views."""
        if part.args or part.pos_args:
            raise DataflowError("values of an old form of spark.sql", where="spark.sql", hint="use a newer PySpark")
        values: dict[str, Any] | list[Any]
        values = {name: _value(m) for name, m in part.named_arguments.items()}
        values = values or [_value(m) for m in part.pos_arguments]
        streams = {name: frame.flat(f"the view {name!r}") for name, frame in self._views.items()}
        return self._flow.sql(part.query, values, **streams)

    def _with_relations(self, part: Message) -> Stream:
        """Translate ``spark.sql("... FROM {df}", df=df)``."""
        before = dict(self._views)
        try:
            for reference in part.references:
                alias = reference.subquery_alias
                self.name_view(alias.alias, self.frame(alias.input))
            return self.stream(part.root)
        finally:
            self._views = before

    # ------------------------------------------------------------ row by row

    def _filter(self, part: Message) -> JobFrame:
        frame = self.frame(part.input)
        rows, (condition,) = _read_over(frame, [part.condition])
        found = frame.over(filtered(rows, condition))
        return found if rows is frame.rows else found.over(found.rows.select(*map(quoted, frame.rows.columns)))

    def _project(self, part: Message) -> JobFrame:
        frame = self.frame(part.input)
        rows, nodes = _read_over(frame, part.expressions)
        texts = []
        for message, node in zip(part.expressions, nodes, strict=True):
            if isinstance(node, Star):
                owner = frame.scope.relation(node.parts[0]) if node.parts else None
                columns = owner.columns if owner is not None else None
                if columns is None and not node.parts and (len(frame.plans) > 1 or rows is not frame.rows):
                    columns = frame.scope.star
                if columns is not None:
                    texts += [f"{printed(c.value)} AS {quoted(c.name)}" for c in columns]
                    continue
            name = _name_of(message, node, frame)
            texts.append(canonical(node) if name is None else f"{canonical(node)} AS {quoted(name)}")
        return frame.then(rows.select(*texts))

    def _drop(self, part: Message) -> JobFrame:
        frame = self.frame(part.input)
        gone = {name.lower() for name in part.column_names}
        if len(frame.plans) == 1:
            names = [*part.column_names, *(_plain(c, "drop") for c in part.columns)]
            rows = frame.flat("drop")
            return frame.then(rows.drop(*_present(rows, dict.fromkeys(names, ""))))
        exact = [expression_tree(c, frame.place) for c in part.columns]
        relations = tuple(
            replace(
                r,
                columns=tuple(
                    c
                    for c in r.columns
                    if c.name.lower() not in gone and not any(_means(node, r.alias, c.name) for node in exact)
                ),
            )
            for r in frame.scope.relations
        )
        return replace(frame, scope=Scope(relations))

    def _subquery_alias(self, part: Message) -> JobFrame:
        frame = self.frame(part.input)
        return JobFrame.of(frame.flat(f"alias({part.alias!r})"), frame.all_plans, part.alias)

    def _with_columns(self, part: Message) -> Stream | ReferenceTable:
        frame = self.frame(part.input).flattened("withColumn")
        rows, nodes = _read_over(frame, [a.expr for a in part.aliases])
        names = [a.name[0] for a in part.aliases]
        found = rows.withColumns({name: canonical(node) for name, node in zip(names, nodes, strict=True)})
        if rows is frame.rows:
            return found
        before = {c.lower() for c in frame.rows.columns}
        return found.select(*map(quoted, [*frame.rows.columns, *(n for n in names if n.lower() not in before)]))

    def _with_columns_renamed(self, part: Message) -> Stream | ReferenceTable:
        rows = self.frame(part.input).flat("withColumnRenamed")
        names = dict(part.rename_columns_map) | {r.col_name: r.new_col_name for r in part.renames}
        return rows.withColumnsRenamed(_present(rows, names))

    def _to_df(self, part: Message) -> Stream | ReferenceTable:
        return self.frame(part.input).flat("toDF").toDF(*part.column_names)

    def _fill_na(self, part: Message) -> Stream | ReferenceTable:
        rows = self.frame(part.input).flat("fillna")
        changed = filled(rows.schema, part)
        return rows.withColumns(changed) if changed else rows

    def _drop_na(self, part: Message) -> Stream | ReferenceTable:
        rows = self.frame(part.input).flat("dropna")
        return rows.where(kept(rows.schema, part))

    def _hint(self, part: Message) -> JobFrame:
        frame = self.frame(part.input)
        nodes = [expression_tree(p) for p in part.parameters]
        texts = [n.value for n in nodes if isinstance(n, Literal) and isinstance(n.value, str)]
        if part.name.lower() == LAYER:
            return frame.over(frame.stream.to_layer(*texts))
        return frame.over(frame.stream.require(*texts)) if part.name.lower() == REQUIREMENT else frame

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
        if function.eval_type not in (_ARROW, _PANDAS):
            raise DataflowError(
                "a function over partitions of a kind that is no operator here",
                where="DataFrame (map_partitions)",
                hint="write df.mapInArrow(function, schema), or df.mapInPandas(function, schema)",
            )
        given, schema = unpickled(function.command)
        if function.eval_type == _PANDAS:
            given = calling([given], in_pandas, given, json.dumps(spark_json(type_of(schema))))
        return self.stream(part.input).map_batches(given, columns_text(schema))

    def _join(self, part: Message) -> JobFrame:
        """Pair the rows of two frames; columns of ``using`` are in the result once."""
        where = "DataFrame (join)"
        left = named(self.frame(part.left), "left", ())
        right = named(self.frame(part.right), "right", [r.alias for r in left.scope.relations])
        swapped = isinstance(left.rows, ReferenceTable)
        how = (_SWAPPED if swapped else _JOINS).get(part.join_type)
        if how is None:
            raise DataflowError(
                "a join of a kind that no operator has",
                where=where,
                hint="a stream and a static DataFrame are joined from the side of the stream"
                if swapped
                else 'write how="inner" or how="left_outer"; with a static DataFrame, also "left_semi" or "left_anti"',
            )
        both = JobFrame(left.rows, Scope((*left.scope.relations, *right.scope.relations)), (*left.plans, *right.plans))
        conditions: list[SyntaxNode] = []
        for name in part.using_columns:
            sides = [_owner(side, name, where) for side in (left, right)]
            conditions.append(Binary("=", Name((sides[0], name)), Name((sides[1], name))))
        if part.HasField("join_condition"):
            conditions.append(expression_tree(part.join_condition, both.place))
        if not conditions:
            raise DataflowError("a join without a condition", where=where, hint="write a.join(b, condition)")
        using = {name.lower() for name in part.using_columns}
        try:
            stream, scope = _joined(
                *((right, left) if swapped else (left, right)), all_of(conditions), how, once=bool(using)
            )
        except DataflowError as error:
            raise DataflowError(error.what, where=error.where or where, hint=error.hint) from None
        if how not in ("inner", "left"):
            return self.frame(part.left).over(stream)
        relations = scope.relations
        if swapped:  # the columns of the left side come first
            *others, table = relations
            kept = [replace(r, columns=tuple(c for c in r.columns if c.name.lower() not in using)) for r in others]
            return JobFrame(stream, Scope((table, *kept)), both.plans)
        mine = len(left.scope.relations)
        relations = tuple(
            replace(r, columns=tuple(c for c in r.columns if n < mine or c.name.lower() not in using))
            for n, r in enumerate(relations)
        )
        return JobFrame(stream, Scope(relations), both.plans)

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
        frame = self.frame(part.input).flattened("groupBy")
        keys = [key_of(frame.resolve(expression_tree(k, frame.place))) for k in part.grouping_expressions]
        named = [k.name if isinstance(k, KeyExpression) else k for k in keys]
        stream = frame.stream
        computed = {k.name: k.text for k in keys if isinstance(k, KeyExpression)}
        grouped = (stream.with_columns(**computed) if computed else stream).group_by(*named)
        aggregates = (frame.resolve(expression_tree(a, frame.place)) for a in part.aggregate_expressions)
        found = grouped.agg(*map(canonical, aggregates))
        # Spark has the keys in the order in which they are written; a window need not be the first.
        written = [_window_name(k) if not isinstance(k, str) else k for k in named]
        order = [*written, *found.columns[len(written) :]]
        return found if order == found.columns else found.select(*map(quoted, order))


def _joined(one: JobFrame, other: JobFrame, condition: SyntaxNode, how: JoinKind, *, once: bool) -> ScopedStream:
    """Join a stream with another frame; ``once``: the result has the keys of ``one`` only."""
    alias = other.scope.relations[0].alias
    if isinstance(other.rows, ReferenceTable):
        return looked_up((one.stream, one.scope), (other.rows, other.scope), condition, how=how, alias=alias, once=once)
    return paired((one.stream, one.scope), (other.stream, other.scope), condition, how=how, alias=alias)


def _window_name(window: TimeWindow | SessionWindow) -> str:
    return "window" if isinstance(window, TimeWindow) else "session_window"


def _plain(message: Message, method: str) -> str:
    node = expression_tree(message)
    if not isinstance(node, Name) or len(node.parts) > 1:
        raise DataflowError(f"{method} of {cut(canonical(node), 300)}", hint="give names of columns")
    return node.parts[0]


def _present(stream: Stream | ReferenceTable, names: dict[str, str]) -> dict[str, str]:
    """Leave out names that the stream does not have: PySpark does so without a message."""
    known = {c.lower() for c in stream.columns}
    return {name: new for name, new in names.items() if name.lower() in known}


def _has(part: Message, name: str) -> bool:
    return name in part.DESCRIPTOR.fields_by_name and part.HasField(name)


def _read_over(frame: JobFrame, messages: Iterable[Message]) -> tuple[Stream | ReferenceTable, list[SyntaxNode]]:
    """Return expressions over the columns of a frame's stream, which gets the results of their Python functions."""
    if isinstance(frame.rows, ReferenceTable):
        return frame.rows, [frame.resolve(expression_tree(message, frame.place)) for message in messages]
    functions = PythonColumns(frame.stream, frame.resolve)

    def place(message: Message, reader: ExpressionMessages) -> SyntaxNode | None:
        return frame.place(message, reader) or functions.place(message, reader)

    nodes = [frame.resolve(expression_tree(message, place)) for message in messages]
    return functions.finish(), nodes


def _name_of(message: Message, node: SyntaxNode, frame: JobFrame) -> str | None:
    """Return the name of an item that the text of its value does not give."""
    if message.WhichOneof("expr_type") == "common_inline_user_defined_function":
        part = message.common_inline_user_defined_function
        arguments = ", ".join(canonical(expression_tree(a, frame.place)) for a in part.arguments)
        return f"{part.function_name}({arguments})"
    if message.WhichOneof("expr_type") == "unresolved_attribute" and not isinstance(node, Alias):
        tree = expression_tree(message, frame.place)
        assert isinstance(tree, Name)
        declared = next((c.name for c in frame.scope.star if c.name.lower() == tree.parts[-1].lower()), tree.parts[-1])
        return None if isinstance(node, Name) and node.parts[-1] == declared else declared
    return None


def _means(node: SyntaxNode, alias: str, name: str) -> bool:
    """Return whether a column of ``drop`` is that of a relation."""
    parts = [p.lower() for p in node.parts] if isinstance(node, Name) else []
    return parts in ([alias.lower(), name.lower()], [name.lower()])


def _owner(side: JobFrame, name: str, where: str) -> str:
    """Return the alias of the relation that has a column of a join's ``using``."""
    owners = [r.alias for r in side.scope.relations if r.find(name) is not None]
    if len(owners) != 1:
        what = "no" if not owners else "more than one"
        raise DataflowError(
            f"a side of the join has {what} column {shown(name)}",
            where=where,
            hint=f"its columns are {cut(', '.join(side.columns), 600)}",
        )
    return owners[0]


def _value(message: Message) -> Any:
    """Return a parameter's value."""
    kind = message.literal.WhichOneof("literal_type") if message.HasField("literal") else None
    if kind in _PLAIN:
        return getattr(message.literal, kind)
    if kind == "decimal":
        return Decimal(message.literal.decimal.value)
    raise DataflowError(
        "a parameter that is neither number, text nor truth value",
        where="spark.sql",
        hint="write the value in the text",
    )
