"""Sources, as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from headwater.core.errors import DataflowError
from headwater.dataflow.operators import Operator, checked_schema
from headwater.dataflow.settings import (
    ColumnName,
    Duration,
    Machines,
    Place,
    QualityOfService,
    RowCount,
    RowsPerSecond,
    Seed,
    SensorRate,
)
from headwater.dataflow.types import StreamType
from headwater.sql.schema import Column, DataType, Schema


@dataclass(frozen=True, kw_only=True)
class Source(Operator):
    """The start of a stream. ``location_as`` adds the location's name as a column."""

    arity: ClassVar[tuple[int, int | None]] = (0, 0)

    location_as: ColumnName | None = None

    def schema(self) -> Schema:
        raise NotImplementedError

    @property
    def per_location(self) -> bool:
        """Return whether each location has its own data (the source then runs once per location)."""
        return True

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        try:
            schema = self.schema()
        except DataflowError as error:
            raise self.error(error.what, error.hint or "write the schema as 'id bigint, v double'") from error
        columns = list(schema.columns)
        for setting, name, type_ in self.added():
            if name.lower() in {c.name.lower() for c in columns}:
                raise self.error(f"{setting}='{name}' names an existing column", "choose another name")
            columns.append(Column(name, DataType.parse(type_)))
        located = frozenset({self.location_as} if self.location_as is not None else ())
        return StreamType(checked_schema(self, columns), located_by=located)

    def added(self) -> list[tuple[str, str, str]]:
        """Return the columns added to those of the data: the setting, the name and the type of each."""
        return [] if self.location_as is None else [("location_as", self.location_as, "string")]

    @property
    def stream(self) -> str | None:
        """What a read position belongs to: in another stream it has no meaning. None: it has one wherever it is read.

        Positions in files are the names of these, so a source continues with the files of another directory.
        """
        return None

    @property
    def record_format(self) -> str | None:
        """The format of records that may not fit the schema; None where none can be malformed."""
        return None

    @property
    def record_options(self) -> Mapping[str, str]:
        """The reader's options by which a record fits its schema or not."""
        return {}


@dataclass(frozen=True, kw_only=True)
class FileSource(Source):
    """CSV, JSON lines or Parquet files that appear below ``path`` ('{location}' is replaced).

    ``file_as`` adds the URI of a row's file as a column.
    """

    kind: ClassVar[str] = "files"
    shown: ClassVar[tuple[str, ...]] = ("format", "path")
    newer: ClassVar[frozenset[str]] = frozenset({"file_as"})

    path: Place
    format: Literal["csv", "json", "parquet"]
    schema_text: str
    options: tuple[tuple[str, str], ...] = ()
    file_as: ColumnName | None = None

    def added(self) -> list[tuple[str, str, str]]:
        return ([] if self.file_as is None else [("file_as", self.file_as, "string")]) + super().added()

    @property
    def record_format(self) -> str | None:
        return None if self.format == "parquet" else self.format

    @property
    def record_options(self) -> Mapping[str, str]:
        return dict(self.options)

    @property
    def per_location(self) -> bool:
        return "{location}" in self.path

    def schema(self) -> Schema:
        return Schema.parse(self.schema_text)


@dataclass(frozen=True, kw_only=True)
class RateSource(Source):
    """Spark's rate source: ``timestamp`` and a counting ``value``, at a fixed number of rows per second."""

    kind: ClassVar[str] = "rate"
    shown: ClassVar[tuple[str, ...]] = ("rows_per_second",)
    rows_per_second: RowsPerSecond = 1

    def schema(self) -> Schema:
        return Schema.parse("timestamp timestamp, value bigint")


@dataclass(frozen=True, kw_only=True)
class SensorSource(Source):
    """A seeded generator of machine temperatures with labelled anomalies (``headwater.dataflow.sensors``)."""

    kind: ClassVar[str] = "sensors"

    seed: Seed = 0
    machines: Machines = 1
    interval: Duration = "5 minutes"
    rows_per_second: SensorRate = 10.0
    rows: RowCount | None = None

    def schema(self) -> Schema:
        return Schema.parse("machine string, ts timestamp, temperature double, label boolean, seq bigint")


@dataclass(frozen=True, kw_only=True)
class BridgedSource(Source):
    """Records that a bridge stores in a spool of its zone, from which they are read: each one JSON object."""

    @property
    def record_format(self) -> str:
        return "json"


@dataclass(frozen=True, kw_only=True)
class MqttSource(BridgedSource):
    """Messages of an MQTT topic ('{location}' is replaced), each one JSON object."""

    kind: ClassVar[str] = "mqtt"
    shown: ClassVar[tuple[str, ...]] = ("topic",)
    newer: ClassVar[frozenset[str]] = frozenset({"version"})

    broker: Place
    topic: Place
    schema_text: str
    qos: QualityOfService = 1
    username_env: Place | None = None
    password_env: Place | None = None
    tls: bool = False
    version: Literal["3.1.1", "5"] | None = None

    @property
    def per_location(self) -> bool:
        return "{location}" in self.topic or "{location}" in self.broker

    def schema(self) -> Schema:
        return Schema.parse(self.schema_text)
