"""Entry point for writing a dataflow: its sources, and the immutable graph at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from headwater.core.errors import DataflowError
from headwater.core.text import cut
from headwater.dataflow import habits, sources, tablesources
from headwater.dataflow import operators as ops
from headwater.dataflow.arguments import checked
from headwater.dataflow.avroschema import columns_of_avro
from headwater.dataflow.bridgedreader import BridgedReader
from headwater.dataflow.customs import CustomReader, DataSources, provider_of
from headwater.dataflow.deltaschema import delta_schema
from headwater.dataflow.function import PythonFunction
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.hoist import hoist_watermarks
from headwater.dataflow.kafkatopic import RAW, KafkaFormat, KafkaSource, SchemaDocument, StartOf, read_descriptor
from headwater.dataflow.lookup import ReferenceTable
from headwater.dataflow.optionlists import option_name
from headwater.dataflow.protobufschema import columns_of_message, files_of, message_of
from headwater.dataflow.settings import (
    MOST_WRITTEN,
    ColumnName,
    Duration,
    Label,
    Machines,
    Option,
    Place,
    RowCount,
    RowsPerSecond,
    SchemaOf,
    Seed,
    SensorRate,
    Statement,
    ValuesOf,
    option_text,
)
from headwater.dataflow.statements import translate
from headwater.dataflow.stream import Stream
from headwater.dataflow.streambase import StreamBase, schema_text
from headwater.dataflow.tablereader import TableReader
from headwater.dataflow.tablesources import FilesPerBatch, Version
from headwater.sql.schema import Schema
from headwater.sql.select import parse_query


@checked
def flow(name: Label, *, locations: Sequence[Label] = ()) -> DataflowBuilder:
    """Start a dataflow for these locations of the continuum, at most 5000; it has at most 2000 operators.

    Names have letters, digits, ``_``, ``-`` and ``.``, at most 100 of them: they become names of files.
    """
    return DataflowBuilder(name, tuple(locations))


class DataflowBuilder(habits.NameGuard):
    """Collects the streams that are written to sinks; ``build()`` gives the immutable Dataflow."""

    def __init__(self, name: str, locations: tuple[str, ...]) -> None:
        self.name = name
        self.locations = locations
        self._sinks: list[Stream] = []
        self._counts: Counter[str] = Counter()
        self._named: dict[str, Stream] = {}

    @property
    def read(self) -> Reader:
        """Sources, as in ``spark.readStream``."""
        return Reader(self)

    readStream = read

    @cached_property
    def dataSource(self) -> DataSources:
        """Python data sources by name, as ``spark.dataSource``."""
        return DataSources(self.name)

    @property
    def data_sources(self) -> Mapping[str, PythonFunction]:
        """The classes of Python data sources that are known by name."""
        return self.dataSource.known

    @property
    def table(self) -> TableReader:
        """Reference tables, for ``stream.join(table, on)``."""
        return TableReader(self.name)

    def sql(self, text: Statement, args: ValuesOf = None, **streams: Stream | ReferenceTable) -> Stream:
        """Return the stream of a SELECT statement of Spark SQL, as ``spark.sql`` does.

        It reads streams by the names of ``.named("readings")``, or given here: ``sql("... FROM r", r=readings)``. A
        JOIN may name a reference table that is given here. ``args`` are the values of its parameters, by name
        (``:low``) or a list (``?``). The statement becomes the operators of the fluent API; a clause that no stream has
        is refused with the line to write instead.
        """
        given = {name.lower(): stream for name, stream in streams.items()}

        def find(name: str) -> Stream | ReferenceTable | None:
            return given.get(name.lower()) or self._named.get(name.lower())

        known = (*streams, *(s.operator.id for s in self._named.values()))
        return translate(parse_query(text, args or ()), text, find, known)

    @property
    def has_sinks(self) -> bool:
        """Whether a stream of it was written."""
        return bool(self._sinks)

    def build(self) -> Dataflow:
        """Validate the dataflow and return it."""
        found: dict[str, ops.Operator] = {}
        seen: set[int] = set()
        doubled: list[str] = []

        # Parents first, without recursion: a dataflow may be longer than Python's stack.
        todo: list[tuple[StreamBase, bool]] = [(sink, False) for sink in reversed(self._sinks)]
        while todo:
            stream, parents_done = todo.pop()
            if parents_done:
                if stream.operator.id in found:
                    doubled.append(stream.operator.id)
                found[stream.operator.id] = stream.operator
            elif id(stream.operator) not in seen:
                seen.add(id(stream.operator))
                todo.append((stream, True))
                todo += [(parent, False) for parent in reversed(stream.parents)]
        if doubled:
            raise DataflowError(
                f"two operators are called '{doubled[0]}'",
                where=f"dataflow '{self.name}'",
                hint="give each its own name; name a stream before it is used twice, not between",
            )
        return Dataflow(self.name, hoist_watermarks(tuple(found.values())), self.locations)

    def _unknown(self, name: str) -> habits.UnknownName:
        return habits.missing(name, self, habits.BUILDER, where=f"dataflow '{self.name}'")

    def _place_of(self, method: str) -> str:
        return f"{method} of dataflow '{self.name}'"

    def new_id(self, kind: str) -> str:
        """Return the next free name for an operator of ``kind``."""
        self._counts[kind] += 1
        if self._counts.total() > MOST_WRITTEN:
            raise DataflowError(
                f"more than {MOST_WRITTEN} operators",
                where=f"dataflow '{self.name}'",
                hint="write several dataflows; is an operator added in a loop that does not end?",
            )
        count = self._counts[kind]
        return kind if count == 1 else f"{kind}-{count}"

    def add_sink(self, stream: Stream) -> None:
        self._sinks.append(stream)

    def add_name(self, name: str, stream: Stream) -> None:
        self._named[name.lower()] = stream

    def replace_sink(self, old: Stream, new: Stream) -> None:
        self._sinks[self._sinks.index(old)] = new


@dataclass(frozen=True)
class Reader(BridgedReader):
    """Sources of a dataflow. ``{location}`` in a path or topic is replaced for every location."""

    builder: DataflowBuilder

    def files(
        self,
        path: Place,
        schema: SchemaOf,
        *,
        format: Literal["csv", "json", "parquet"],
        location_as: ColumnName | None = None,
        file_as: ColumnName | None = None,
        layer: Place | None = None,
        **options: Option,
    ) -> Stream:
        """Read files that appear in a directory, or match a glob; ``options`` are Spark's for the format.

        ``location_as``, ``file_as``: add the row's location, or the URI of its file, as a column of that name.
        ``layer``: a layer with one zone, for a path without ``{location}`` where the lowest layer has several.
        """
        text = schema_text(schema, f"read.files('{cut(path, 200)}')")
        settings = tuple(sorted((k, str(v)) for k, v in options.items()))
        return self._source(
            sources.FileSource,
            path=path,
            format=format,
            schema_text=text,
            options=settings,
            location_as=location_as,
            file_as=file_as,
            layer=layer,
        )

    def csv(
        self,
        path: Place,
        schema: SchemaOf,
        *,
        location_as: ColumnName | None = None,
        file_as: ColumnName | None = None,
        layer: Place | None = None,
        **options: Option,
    ) -> Stream:
        """Read CSV files; Spark's options (``header``, ``sep``, ``timestampFormat`` ...) by name."""
        return self.files(path, schema, format="csv", location_as=location_as, file_as=file_as, layer=layer, **options)

    def json(
        self,
        path: Place,
        schema: SchemaOf,
        *,
        location_as: ColumnName | None = None,
        file_as: ColumnName | None = None,
        layer: Place | None = None,
        **options: Option,
    ) -> Stream:
        """Read files of JSON lines."""
        return self.files(path, schema, format="json", location_as=location_as, file_as=file_as, layer=layer, **options)

    def parquet(
        self,
        path: Place,
        schema: SchemaOf,
        *,
        location_as: ColumnName | None = None,
        file_as: ColumnName | None = None,
        layer: Place | None = None,
        **options: Option,
    ) -> Stream:
        """Read Parquet files."""
        return self.files(
            path, schema, format="parquet", location_as=location_as, file_as=file_as, layer=layer, **options
        )

    def rate(self, rows_per_second: RowsPerSecond = 1, *, location_as: ColumnName | None = None) -> Stream:
        """Count upwards: columns ``timestamp`` and ``value`` (Spark's rate source).

        ``rows_per_second``: at most 1000000000, which 64 bits can count for 292 years.
        """
        return self._source(sources.RateSource, rows_per_second=rows_per_second, location_as=location_as)

    def sensors(
        self,
        *,
        seed: Seed = 0,
        machines: Machines = 1,
        interval: Duration = "5 minutes",
        rows_per_second: SensorRate = 10.0,
        rows: RowCount | None = None,
        location_as: ColumnName | None = None,
    ) -> Stream:
        """Generate machine temperatures with labelled anomalies; equal seeds give equal rows.

        ``rows`` bounds the stream (per location); ``rows_per_second`` is at most 1000000000, and 0 removes the rate
        limit. ``machines``: at most 100000 per location, for each instant has a row of each. ``interval``: the time
        between two readings of a machine, at least a microsecond. ``seed``: a whole number of 64 bits.
        """
        return self._source(
            sources.SensorSource,
            seed=seed,
            machines=machines,
            interval=interval,
            rows_per_second=rows_per_second,
            rows=rows,
            location_as=location_as,
        )

    def kafka(
        self,
        bootstrap_servers: Place,
        topic: Place,
        schema: SchemaOf | None = None,
        *,
        format: KafkaFormat = "json",
        avro_schema: SchemaDocument | None = None,
        descriptor: Place | None = None,
        message: Place | None = None,
        registry: Place | None = None,
        registry_user_env: Place | None = None,
        registry_password_env: Place | None = None,
        starting: StartOf = "earliest",
        ending: StartOf | None = None,
        tombstones: Literal["dead_letter", "drop"] = "dead_letter",
        key_as: ColumnName | None = None,
        headers_as: ColumnName | None = None,
        timestamp_as: ColumnName | None = None,
        partition_as: ColumnName | None = None,
        offset_as: ColumnName | None = None,
        location_as: ColumnName | None = None,
        layer: Place | None = None,
        user_env: Place | None = None,
        password_env: Place | None = None,
        **options: Option,
    ) -> Stream:
        """Read the values of a Kafka topic, which others write.

        With ``{location}`` in topic or servers it is read for each location; else once, in one zone: ``layer`` names
        a layer with one, where the lowest has several.

        ``schema`` has the columns; ``avro_schema`` (JSON), or ``descriptor`` (a file of protoc) and ``message``, give
        them as well. ``registry``: the address of a schema registry; values then have Confluent's header. Format
        ``raw`` gives the columns of Spark's Kafka source.

        ``starting``: "earliest", "latest", a time such as "2026-01-31T12:00:00Z", or {partition: offset} with all
        partitions (-2: earliest, -1: latest); it counts until the first batch. ``ending``: the place before which the
        stream ends, for history that is read before a live stream from there. ``tombstones``: what becomes of records
        without a value, by which a compacted topic deletes a key. ``key_as``, ``headers_as``,
        ``timestamp_as``, ``partition_as``, ``offset_as`` and ``location_as`` add columns of these names.

        ``options`` are those of Kafka's consumer with ``_`` for ``.`` (``security_protocol="SASL_SSL"``), Spark's for
        the topic (``maxOffsetsPerTrigger``) and for the format. ``..._env`` name secrets, ``HEADWATER_SECRET_...``.
        """
        where = f"read.kafka('{cut(topic, 200)}')"
        data = None if descriptor is None else read_descriptor(descriptor, where=where)
        offsets = tuple(sorted(starting.items())) if isinstance(starting, Mapping) else ()
        ends = tuple(sorted(ending.items())) if isinstance(ending, Mapping) else None
        return self._source(
            KafkaSource,
            bootstrap_servers=bootstrap_servers,
            topic=topic,
            format=format,
            schema_text=_columns_of_topic(schema, format, avro_schema, data, message, where),
            avro_schema=avro_schema,
            descriptor=data,
            message=message,
            registry=registry,
            registry_user_env=registry_user_env,
            registry_password_env=registry_password_env,
            starting="earliest" if offsets else str(starting),
            offsets=offsets,
            ending=None if ending is None else "latest" if ends else str(ending),
            end_offsets=ends,
            tombstones="drop" if tombstones == "drop" else None,
            key_as=key_as,
            headers_as=headers_as,
            timestamp_as=timestamp_as,
            partition_as=partition_as,
            offset_as=offset_as,
            location_as=location_as,
            layer=layer,
            user_env=user_env,
            password_env=password_env,
            options=tuple(sorted((option_name(k), option_text(v)) for k, v in options.items())),
        )

    def format(self, source: Any) -> CustomReader[Stream]:
        """Read a Python data source: its class, or the name of one that ``f.dataSource`` knows.

        ``f.read.format(MySource).option("url", "...").load()``, as in PySpark.
        """
        where = f"read.format of dataflow '{self.builder.name}'"
        provider = provider_of(source, self.builder.data_sources, where=where)
        return CustomReader(self._source, provider, where)

    def delta(
        self,
        path: Place,
        schema: SchemaOf | None = None,
        *,
        version: Version | None = None,
        timestamp: Place | None = None,
        follow: bool | None = None,
        ignore_changes: bool = False,
        max_files_per_batch: FilesPerBatch = 1000,
        location_as: ColumnName | None = None,
        layer: Place | None = None,
    ) -> Stream:
        """Read a Delta table: the rows of its newest version when the unit first starts, then those that are added.

        With ``version`` or ``timestamp`` only the rows of that version; ``follow=True`` and those added later.
        ``follow=False``: only those of the newest version. Without ``schema`` the table's is read now.
        A version that deletes or changes rows is an error; with ``ignore_changes`` its new files are read.
        ``max_files_per_batch``: at most 1000000.
        """
        where = f"read.delta('{cut(path, 200)}')"
        if schema is None:
            places = self.builder.locations or ("{location}",)
            schema = delta_schema(path.replace("{location}", places[0]), where=where)
        fixed = version is not None or timestamp is not None
        return self._source(
            tablesources.DeltaSource,
            path=path,
            schema_text=schema_text(schema, where),
            version=version,
            timestamp=timestamp,
            follow=not fixed if follow is None else follow,
            ignore_changes=ignore_changes,
            max_files_per_batch=max_files_per_batch,
            location_as=location_as,
            layer=layer,
        )

    def iceberg(
        self,
        table: Place,
        schema: SchemaOf,
        *,
        catalog: Place,
        warehouse: Place,
        catalog_name: Place = "default",
        snapshot: Version | None = None,
        user_env: Place | None = None,
        password_env: Place | None = None,
        max_files_per_batch: FilesPerBatch = 1000,
        location_as: ColumnName | None = None,
        layer: Place | None = None,
    ) -> Stream:
        """Read one snapshot of an Iceberg table ``namespace.name``: the newest one when the unit first starts.

        ``catalog``: ``sqlite:////dir/catalog.db`` or ``postgresql://host/db``. ``warehouse``: the directory of its
        tables. ``max_files_per_batch``: at most 1000000.
        """
        return self._source(
            tablesources.IcebergSource,
            table=table,
            schema_text=schema_text(schema, f"read.iceberg('{cut(table, 200)}')"),
            catalog=catalog,
            warehouse=warehouse,
            catalog_name=catalog_name,
            snapshot=snapshot,
            user_env=user_env,
            password_env=password_env,
            max_files_per_batch=max_files_per_batch,
            location_as=location_as,
            layer=layer,
        )

    def _unknown(self, name: str) -> habits.UnknownName:
        return habits.missing(name, self, habits.READER, where=f"read of dataflow '{self.builder.name}'")

    def _place_of(self, method: str) -> str:
        return f"read.{method} of dataflow '{self.builder.name}'"

    def _source(self, cls: type[sources.Source], **settings: Any) -> Stream:
        operator = cls(id=self.builder.new_id(cls.kind), **settings)
        return Stream(self.builder, operator, (), operator.output(()))


def _columns_of_topic(
    schema: str | None, format: str, avro: str | None, descriptor: str | None, message: str | None, where: str
) -> str:
    """Return the columns of a topic's values: the given ones, or those of their schema."""
    if schema is not None:
        return schema_text(schema, where)
    if format == "raw":
        return Schema.parse(RAW).text
    if format == "avro" and avro is not None:
        return columns_of_avro(avro, where=where).text
    if format == "protobuf" and descriptor is not None and message is not None:
        try:
            files = files_of(descriptor)
        except ValueError as error:
            raise DataflowError(
                f"the descriptor is damaged: {error}",
                where=where,
                hint="write it with protoc, options include_imports and descriptor_set_out",
            ) from None
        return columns_of_message(message_of(files, message, where=where), where=where).text
    raise DataflowError(
        "no schema", where=where, hint='give the columns: read.kafka("broker:9092", "topic", "id bigint, ts timestamp")'
    )
