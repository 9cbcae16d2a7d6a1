"""A stream: its schema, place and name, and the operators of which all methods of the fluent API are composed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self, TypeVar

from headwater.core.errors import DataflowError, HeadwaterError
from headwater.core.place import in_words, place_of_zone, zone_named
from headwater.core.requirement import Requirement
from headwater.dataflow import habits, sinks, stateful
from headwater.dataflow import operators as ops
from headwater.dataflow.builtin import BuiltinFunction
from headwater.dataflow.columnmethods import ColumnMethods
from headwater.dataflow.function import PythonFunction, accepts
from headwater.dataflow.predictor import predictor
from headwater.dataflow.settings import (
    ColumnName,
    Columns,
    Computed,
    ComputedByName,
    Condition,
    Label,
    Place,
    Projections,
    SchemaOf,
    chained,
    text_of,
)
from headwater.dataflow.types import StreamType, is_time
from headwater.sql.expressions import parse_projection
from headwater.sql.generators import ArrayRows, exploded_of
from headwater.sql.lexer import quoted
from headwater.sql.schema import Schema


class Registry(Protocol):
    """Methods of the dataflow that a stream needs."""

    name: str

    @property
    def data_sources(self) -> Mapping[str, PythonFunction]:
        """The classes of Python data sources that are known by name."""

    def new_id(self, kind: str) -> str:
        """Return the next free name for an operator of ``kind``."""

    def add_sink(self, stream: Any) -> None:
        """Register a stream that ends in a sink."""

    def replace_sink(self, old: Any, new: Any) -> None:
        """Register a sink's new name."""

    def add_name(self, name: str, stream: Any) -> None:
        """Register the stream that SQL statements read by a name."""


@dataclass(frozen=True, eq=False)
class StreamBase(ColumnMethods):
    """A stream with a known schema, and the operators of which all other methods are composed."""

    builder: Registry
    operator: ops.Operator
    parents: tuple[StreamBase, ...]
    shape: StreamType
    next_layer: str | None = None
    next_requires: Requirement = Requirement()

    def __repr__(self) -> str:
        return f"<Stream '{self.operator.id}' of dataflow '{self.builder.name}': {self.schema.text}>"

    def _unknown(self, name: str) -> habits.UnknownName:
        where = f"after '{self.operator.id}'"
        return habits.missing(name, self, habits.STREAM, where=where, columns=self.columns)

    def _place_of(self, method: str) -> str:
        return f"{method} after '{self.operator.id}'"

    # ------------------------------------------------------------ schema

    @property
    def schema(self) -> Schema:
        """The columns and their types."""
        return self.shape.schema

    isStreaming = True

    def __getitem__(self, name: str) -> NoReturn:
        """Refuse ``stream["v"]`` with the line to write."""
        raise self._unknown(str(name))

    # ------------------------------------------------------------ place and name

    def to_layer(self, layer: Place, *, by: ColumnName | None = None, location_as: ColumnName | None = None) -> Self:
        """Run the following operators in this layer, in every zone of it that covers a location of the dataflow.

        It drops earlier requirements: ``.to_layer("cloud").require("gpu = true")``. A lower layer gets the rows of
        its own locations. ``by``: the column that names a row's location, where it is not a location column already;
        rows that name none are dropped. ``location_as``: each location gets a copy of every row, with its own name as
        this column.
        """
        column = by if by is not None else location_as
        if column is None:
            return replace(self, next_layer=layer, next_requires=Requirement())
        if by is not None and location_as is not None:
            raise DataflowError(
                "to_layer takes either by or location_as",
                where=f"to_layer after '{self.operator.id}'",
                hint="by='site' for rows that name their location; location_as='site' for a copy to each location",
            )
        # Rows meet in the layer of an earlier mark first: .to_layer("cloud").to_layer("edge", by=...). A watermark does
        # not keep them there: it goes to its input.
        stays = self.next_layer == self.operator.layer and not isinstance(self.operator, ops.Watermark)
        whole = self if stays else self.select(*map(quoted, self.columns))
        below = replace(whole, next_layer=layer, next_requires=Requirement())
        return below._then(ops.ToLocations, column=column, copies=by is None)

    def to_zone(self, zone: Place) -> Self:
        """Run the following operators in this zone, for the rows of all locations: ``.to_zone("cloud-b")``.

        The zone may be a second cloud, another site, or an edge. Rows cross a link that the continuum declares between
        the zones, or else the tree of zones. Like ``to_layer``, it drops earlier requirements.
        """
        return replace(self, next_layer=place_of_zone(zone), next_requires=Requirement())

    def require(self, *predicates: Place) -> Self:
        """Run later operators only on hosts with these capabilities: ``require("gpu = true", "n_cpu >= 4")``."""
        try:
            wanted = Requirement.parse(" and ".join(predicates))
        except HeadwaterError as error:
            raise DataflowError(error.what, where=f"require after '{self.operator.id}'", hint=error.hint) from error
        return replace(self, next_requires=self.next_requires & wanted)

    def named(self, name: Label) -> Self:
        """Name the last operator, for plans, metrics and errors, and the stream for SQL statements."""
        stream = replace(self, operator=replace(self.operator, id=name))
        if not isinstance(self.operator, sinks.Sink):
            self.builder.add_name(name, stream)
        return stream

    # ------------------------------------------------------------ row by row

    def where(self, condition: Condition) -> Self:
        """Keep the rows for which the condition is true."""
        return self._then(ops.Where, condition=condition)

    filter = where

    def select(self, *columns: Projections) -> Self:
        """Compute columns: ``select("id", "v * 2 AS twice", F.col("window.start").alias("start"))``.

        ``explode(items) AS item`` gives a row for each element of the array.
        """
        where = f"select after '{self.operator.id}'"
        stream, pairs = self, list[tuple[str, str]]()
        for text in chained(columns):
            if (exploded := exploded_of(text)) is None:
                pairs += [(name, e.text) for name, e in parse_projection(text, self.schema, where=where)]
            else:
                stream, free = stream._with_elements(exploded)
                pairs.append((exploded.name, quoted(free)))
        return stream._then(ops.Select, columns=tuple(pairs))

    def _with_elements(self, exploded: ArrayRows) -> tuple[Self, str]:
        """Return the stream with a row for each element, and the name of the element's column."""
        taken = {c.lower() for c in self.columns}
        names = (exploded.name, *(f"{exploded.name}_{i}" for i in range(2, len(taken) + 3)))
        free = next(n for n in names if n.lower() not in taken)
        return self.explode(exploded.array, free, outer=exploded.outer), free

    def withColumns(self, columns: ComputedByName) -> Self:
        """Add columns, or replace those of the same name: ``withColumns({"twice": F.col("v") * 2})``."""
        stream, plain = self, dict[str, Any]()
        for name, text in columns.items():
            exploded = exploded_of(text_of(text))
            if exploded is None:
                plain[name] = text
            else:
                stream, free = stream._with_elements(replace(exploded, name=name))
                plain[name] = quoted(free)
        added = stream.with_columns(**plain)
        extra = [c for c in stream.columns if c not in self.columns and c not in columns]
        return added.drop(*extra) if extra else added

    def explode(
        self, expression: Computed, alias: ColumnName, *, position: ColumnName | None = None, outer: bool = False
    ) -> Self:
        """Return one row per element of an array, as column ``alias`` (and its index as ``position``)."""
        return self._then(ops.Explode, expression=expression, alias=alias, position=position, outer=outer)

    def map_batches(self, function: Callable[..., Any], schema: SchemaOf) -> Self:
        """Apply ``function(iterator of pyarrow.RecordBatch) -> iterator of RecordBatch`` (mapInArrow).

        Spark decides how rows fall into batches: the function must process each row independently.
        """
        return self._then(
            ops.MapBatches,
            function=self._function(function, 1, "map_batches"),
            schema_text=schema_text(schema, f"map_batches after '{self.operator.id}'"),
        )

    def transform(self, function: Callable[..., Any], schema: SchemaOf) -> Self:
        """Apply ``function(DataFrame) -> DataFrame``: stateless PySpark, opaque to Headwater."""
        return self._then(
            ops.Transform,
            function=self._function(function, 1, "transform"),
            schema_text=schema_text(schema, f"transform after '{self.operator.id}'"),
        )

    def predict(
        self,
        model: Place | Path,
        columns: Columns,
        *,
        output: ColumnName = "prediction",
        type: SchemaOf | None = None,
        result: ColumnName | None = None,
    ) -> Self:
        """Add a column with the predictions of a model file: ONNX, scikit-learn's as skops or joblib, or Spark ML's.

        ``columns``: those of the model's training, in their order; a row with NULL in one gets NULL. ``type``: the type
        of the predictions, which is read from the model where it is left out. ``result``: the ONNX model's output,
        scikit-learn's method (``"predict_proba"``), or the column that the Spark ML model adds (``"probability"``). A
        model of at most 1 MiB becomes part of the dataflow; a larger one needs one absolute path on all hosts, where
        its hash is checked. joblib and pickle files run code.
        """
        made = predictor(
            Path(model),
            self.schema,
            columns=tuple_of(columns),
            output=output,
            result=result,
            type=type,
            where=self._place_of("predict"),
        )
        kind, name = (ops.Transform, "predict_spark_ml") if made.of_spark else (ops.MapBatches, "predict")
        schema = f"{self.schema.text}, {quoted(output)} {made.type}"
        return self._then(kind, function=BuiltinFunction(name, made.settings), schema_text=schema)

    def scan(
        self,
        function: Callable[..., Any],
        schema: SchemaOf,
        *,
        keys: Columns,
        order_by: Columns,
        initial: Any = None,
        keeps_keys: bool = False,
    ) -> Self:
        """Fold a state over the rows of each key, in order, and output a row for each.

        ``function(state, row) -> (state, out)``: ``row`` and ``out`` are dicts, ``out=None`` gives no row; the state is
        any JSON value and starts as ``initial`` (at most 1 MiB as text). With the event time in ``order_by`` the order
        is exact wherever the operator runs. ``keeps_keys``: each output row has the keys of its input row; a scan of it
        by the same keys then costs little more.
        """
        try:
            begin = json.dumps(initial)
        except (TypeError, ValueError, RecursionError) as error:
            raise DataflowError(
                f"the initial state is not JSON: {error}",
                where=f"scan after '{self.operator.id}'",
                hint="use numbers, text, lists and dicts",
            ) from error
        return self._then(
            stateful.Scan,
            keys=tuple_of(keys),
            order_by=tuple_of(order_by),
            function=self._function(function, 2, "scan"),
            initial=begin,
            schema_text=schema_text(schema, f"scan after '{self.operator.id}'"),
            keeps_keys=keeps_keys,
        )

    # ------------------------------------------------------------ PySpark's names

    selectExpr = select
    mapInArrow = map_batches

    # ------------------------------------------------------------ appending operators

    def _has_time(self) -> bool:
        """Return whether the event time is a time, and not a window."""
        time = self.shape.event_time
        return time is not None and is_time(self.schema.column(time.column).type)

    def _computed(self, columns: tuple[tuple[str, str], ...]) -> Self:
        return self._then(ops.Select, columns=columns)

    def _then(self, cls: type[ops.Operator], others: Sequence[Self] = (), **settings: Any) -> Self:
        """Append an operator, checked against its inputs."""
        parents = (self, *others)
        for other in others:
            if other.builder is not self.builder:
                raise DataflowError(
                    f"the streams belong to two dataflows, '{self.builder.name}' and '{other.builder.name}'",
                    where=cls.kind,
                    hint="read both from one dataflow",
                )
        # Streams of two layers meet in the higher one, which only the continuum knows.
        layers = list(dict.fromkeys(p.next_layer for p in parents))
        layer = layers[0] if len(layers) == 1 else None
        marks = [place for place in layers if place is not None]
        if len(marks) > 1 and any(zone_named(place) is not None for place in marks):
            raise DataflowError(
                f"the streams are marked for {' and for '.join(map(in_words, marks))}",
                where=self._place_of(cls.kind),
                hint="write to_zone or to_layer with one place behind each of them, before they meet",
            )
        requires = Requirement()
        for parent in parents:
            requires = requires & parent.next_requires
        operator = cls(
            id=self.builder.new_id(cls.kind),
            inputs=tuple(p.operator.id for p in parents),
            layer=layer,
            requires=requires,
            **settings,
        )
        return type(self)(
            self.builder,
            operator,
            parents,
            operator.output(tuple(p.shape for p in parents)),
            next_layer=layer,
            next_requires=requires,
        )

    def _function(self, function: Callable[..., Any], arguments: int, what: str) -> PythonFunction:
        where = f"{what} after '{self.operator.id}'"
        captured = PythonFunction.of(function, where=where)
        if not accepts(function, arguments):
            raise DataflowError(
                f"function {captured.name} cannot be called with {arguments} argument(s)", where=where,
                hint="scan, WindowMaker: (state, row); apply: (rows); map_batches: (batches); transform: (df)",
            )  # fmt: skip
        return captured


S = TypeVar("S", bound=StreamBase)
"""The stream to which a grouping, windows of rows or a writer belong, and which they return."""


def tuple_of(columns: Columns) -> tuple[str, ...]:
    """Return one name, or several, as a tuple."""
    return (columns,) if isinstance(columns, str) else tuple(columns)


def schema_text(schema: str, where: str) -> str:
    """Return a schema in canonical form."""
    try:
        return Schema.parse(schema).text
    except DataflowError as error:
        raise DataflowError(error.what, where=where, hint=error.hint) from error
