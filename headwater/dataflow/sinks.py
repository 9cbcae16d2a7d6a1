"""Sinks, as frozen data. A sink gets every row exactly once unless its docstring says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from headwater.dataflow.function import PythonFunction
from headwater.dataflow.operators import Operator
from headwater.dataflow.partitions import resolved_partitions
from headwater.dataflow.settings import (
    ColumnName,
    Duration,
    FileSize,
    Place,
    QualityOfService,
    RealTimeBatch,
    ShownRows,
)
from headwater.dataflow.types import StreamType


@dataclass(frozen=True, kw_only=True)
class Sink(Operator):
    """The end of a stream; its output type is its input type."""

    @property
    def target(self) -> tuple[str, ...] | None:
        """The directory, topic or table, equal for sinks that write to the same one; None: no row outlives the run."""
        return None

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        return inputs[0]


@dataclass(frozen=True, kw_only=True)
class FileSink(Sink):
    """CSV, JSON lines or Parquet files below ``path`` ('{zone}' is replaced); each file appears complete.

    With ``partition_by`` the files of each value are in a directory of its own, ``day=2026-01-01``, without the column.
    With ``target_file_size`` or ``max_file_age`` smaller files wait, at most so long, until they appear as one.
    """

    kind: ClassVar[str] = "write_files"
    shown: ClassVar[tuple[str, ...]] = ("format", "path")
    newer: ClassVar[frozenset[str]] = frozenset({"partition_by", "target_file_size", "max_file_age"})
    path: Place
    format: Literal["csv", "json", "parquet"]
    partition_by: tuple[str, ...] | None = None
    target_file_size: FileSize | None = None
    max_file_age: Duration | None = None

    @property
    def holds_back(self) -> bool:
        """Return whether small files wait until they are put together."""
        return self.target_file_size is not None or self.max_file_age is not None

    @property
    def target(self) -> tuple[str, ...]:
        return self.kind, self.path.rstrip("/")

    def partitions(self, type_: StreamType) -> tuple[str, ...]:
        """Return the partition columns as a stream spells them; raise DataflowError for impossible ones."""
        return resolved_partitions(self.partition_by or (), type_.schema, where=self.where)

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        self.partitions(inputs[0])
        if self.format == "csv":
            for column in inputs[0].schema.columns:
                if column.type.text.startswith(("struct", "array", "map")):
                    raise self.error(
                        f"CSV cannot hold '{column.name}' of type {column.type.text}",
                        f"select its parts ('{column.name}.start AS start'), or write JSON or Parquet",
                    )
        return inputs[0]


@dataclass(frozen=True, kw_only=True)
class ConsoleSink(Sink):
    """Rows printed where the dataflow was started."""

    kind: ClassVar[str] = "console"
    rows: ShownRows = 20


@dataclass(frozen=True, kw_only=True)
class MemorySink(Sink):
    """Rows kept as a table in memory, for tests and notebooks."""

    kind: ClassVar[str] = "memory"


@dataclass(frozen=True, kw_only=True)
class CallbackSink(Sink):
    """``function(table, batch)`` for every batch, an Arrow table and its number.

    With ``as_dataframe`` it gets a DataFrame of the zone's Spark instead.

    After a failure the same batch is repeated with the same number (as in PySpark's foreachBatch): store the last
    number for exactly-once results. Each zone numbers its own batches; ``one_zone`` refuses to run in several.
    """

    kind: ClassVar[str] = "callback"
    shown: ClassVar[tuple[str, ...]] = ("function",)
    newer: ClassVar[frozenset[str]] = frozenset(["one_zone", "as_dataframe"])
    function: PythonFunction
    one_zone: bool | None = None
    as_dataframe: bool | None = None

    def partition_keys(self) -> tuple[str, ...] | None:
        return () if self.one_zone else None


@dataclass(frozen=True, kw_only=True)
class KafkaSink(Sink):
    """A Kafka topic: rows of ``value`` and optionally ``key``, text or binary.

    Every batch is a transaction, written once; readers need ``isolation.level=read_committed``.
    ``delivery="at_least_once"`` uses no transactions: a failure may write a batch again.
    ``options`` are librdkafka's.
    """

    kind: ClassVar[str] = "kafka"
    shown: ClassVar[tuple[str, ...]] = ("topic",)
    bootstrap_servers: Place
    topic: Place
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    user_env: Place | None = None
    password_env: Place | None = None
    options: tuple[tuple[str, str], ...] = ()

    @property
    def target(self) -> tuple[str, ...]:
        return self.kind, self.bootstrap_servers, self.topic

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        columns = {c.name.lower(): c.type.text for c in inputs[0].schema.columns}
        if "value" not in columns or not columns.keys() <= {"key", "value"}:
            raise self.error(
                f"Kafka takes columns 'value' and optionally 'key', not {', '.join(columns)}",
                "write.kafka(broker, topic, key='...', value='...') makes them of any stream",
            )
        for name, type_ in columns.items():
            if type_ not in ("string", "binary"):
                raise self.error(f"Kafka takes text or binary, and '{name}' is {type_}", "cast it to string")
        for name, _ in self.options:
            if any(word in name for word in ("password", "secret", "jaas", "key.pem")):
                raise self.error(f"'{name}' would be stored with the dataflow", "name it: password_env='VARIABLE'")
        return inputs[0]


@dataclass(frozen=True, kw_only=True)
class RealTimeKafkaSink(KafkaSink):
    """A Kafka topic written in Spark's real-time mode: each row within milliseconds, at least once.

    ``real_time``: how long a batch lasts. Offsets are stored at its end, so a failure writes the rows of an unfinished
    batch again. ``dead_letters``: the topic of malformed records. Aggregates write a row for every change, as in
    Spark's update mode: the last row of a key is its result.
    """

    kind: ClassVar[str] = "kafka_real_time"
    shown: ClassVar[tuple[str, ...]] = ("topic", "mode")
    real_time: RealTimeBatch
    dead_letters: Place

    @property
    def target(self) -> tuple[str, ...]:
        return KafkaSink.kind, self.bootstrap_servers, self.topic

    @property
    def mode(self) -> str:
        """The mode and the length of its batches, for people."""
        return f"real time, {self.real_time}"


@dataclass(frozen=True, kw_only=True)
class MqttSink(Sink):
    """Messages of an MQTT topic: rows of ``value``, and of ``topic`` where they name their own.

    The batch is sent in its order; a failure may send it again. With MQTT 5, a repeated message has the same property
    ``headwater-id``, by which a receiver recognises it.
    """

    kind: ClassVar[str] = "mqtt_out"
    shown: ClassVar[tuple[str, ...]] = ("topic",)
    broker: Place
    topic: Place | None = None
    qos: QualityOfService = 1
    retain: bool = False
    username_env: Place | None = None
    password_env: Place | None = None
    tls: bool = False

    @property
    def target(self) -> tuple[str, ...]:
        return self.kind, self.broker, self.topic or ""

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        columns = {c.name.lower(): c.type.text for c in inputs[0].schema.columns}
        wanted = {"value"} | ({"topic"} if self.topic is None else set())
        if columns.keys() != wanted:
            raise self.error(
                f"MQTT takes columns {', '.join(sorted(wanted))}, not {', '.join(columns)}",
                "write.mqtt(broker, topic, value='...') makes them of any stream",
            )
        if columns["value"] not in ("string", "binary"):
            raise self.error(f"MQTT takes text or binary, and 'value' is {columns['value']}", "cast it to string")
        if columns.get("topic", "string") != "string":
            raise self.error(f"'topic' is {columns['topic']}", "cast it to string")
        if self.topic is not None and set(self.topic) & set("+#"):
            raise self.error(f"'{self.topic}' has a wildcard: messages go to one topic", "write the topic out")
        return inputs[0]


@dataclass(frozen=True, kw_only=True)
class JdbcSink(Sink):
    """A table behind a JDBC URL.

    ``batch_column`` names a bigint column of the table for the batch's number: a batch is then one transaction and
    never written twice. Without it a failure may write a batch again.
    """

    kind: ClassVar[str] = "jdbc"
    shown: ClassVar[tuple[str, ...]] = ("table",)
    url: Place
    table: Place
    batch_column: ColumnName | None = "headwater_batch"
    user_env: Place | None = None
    password_env: Place | None = None
    driver: Place | None = None
    options: tuple[tuple[str, str], ...] = ()

    @property
    def target(self) -> tuple[str, ...]:
        return self.kind, self.url, self.table
