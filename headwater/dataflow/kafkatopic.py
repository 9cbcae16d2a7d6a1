"""An existing Kafka topic as a source, as frozen data."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal

from headwater.core.errors import DataflowError
from headwater.core.rules import Refused, Rule, Text, Whole, a_type
from headwater.dataflow.avroschema import read_avro_schema
from headwater.dataflow.settings import ColumnName, Place
from headwater.dataflow.sources import Source
from headwater.dataflow.types import StreamType
from headwater.sql.schema import Schema

KafkaFormat = Literal["json", "csv", "avro", "protobuf", "raw"]
RAW: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
"""The columns of format ``raw``: those of Spark's Kafka source."""
HEADERS: Final = "array<struct<key:string,value:binary>>"
_ADDED: Final = (
    ("key_as", "string"),
    ("headers_as", HEADERS),
    ("timestamp_as", "timestamp"),
    ("partition_as", "int"),
    ("offset_as", "bigint"),
)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_REGISTRY = re.compile(r"https?://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?(?:/[A-Za-z0-9._~/-]*)?")
_SECRET = ("password", "secret", "jaas", "key.pem", "basic.auth")
_MOST = 2**20  # characters of a schema or descriptor that is stored with the dataflow
_MOST_OFFSET = 2**63 - 1

SchemaDocument = Annotated[str, Text(most=_MOST)]


@dataclass(frozen=True)
class StartRule(Rule):
    """A place in a topic: "earliest", "latest", a time, or an offset for each partition."""

    def check(self, value: Any, name: str) -> str | dict[int, int]:
        if isinstance(value, Mapping):
            partition, offset = Whole(0, 2**31 - 1), Whole(-2, _MOST_OFFSET)
            found = {
                partition.check(p, f"a partition of {name}"): offset.check(o, f"an offset of {name}")
                for p, o in value.items()
            }
            if not found:
                raise Refused(f"{name} has no partition", hint="write {partition: offset, ...}, of all partitions")
            return found
        if isinstance(value, datetime):
            value = value.isoformat()
        if not isinstance(value, str):
            raise Refused(f"{name} is {a_type(value)}", hint=_START_HINT)
        if value not in ("earliest", "latest"):
            start_millis(value, name)
        return value


_START_HINT = (
    'write "earliest", "latest", a time as "2026-01-31T12:00:00Z", or the offsets {partition: offset} of all partitions'
)
StartOf = Annotated[str | datetime | Mapping[int, int], StartRule()]


def start_millis(text: str, name: str = "starting") -> int:
    """Return a start or end time in milliseconds since 1970; raise Refused for a text that is none, or has no zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(f"{name} is {text[:60]!r}", hint=_START_HINT) from None
    if found.tzinfo is None:
        raise Refused(f"{name}: the time {text} has no time zone", hint=f"end it with Z for UTC: {text}Z")
    return round(found.timestamp() * 1000)


@dataclass(frozen=True, kw_only=True)
class KafkaSource(Source):
    """The records of a Kafka topic ('{location}' is replaced in topic and servers), each value one row.

    ``registry``: values begin with Confluent's header, a zero byte and the id of the writer's schema.
    ``avro_schema``: the reader's schema in JSON; without a registry also the writer's. ``descriptor``: a compiled
    file of Protobuf (FileDescriptorSet) in base64. ``offsets`` (partition, offset) take the place of ``starting``.
    ``ending``: the first position that is not read, as for ``starting``; ``end_offsets`` take its place.
    ``tombstones``: "drop" for records without a value, which are dead letters otherwise.
    """

    kind: ClassVar[str] = "kafka_topic"
    shown: ClassVar[tuple[str, ...]] = ("topic",)
    newer: ClassVar[frozenset[str]] = frozenset({"ending", "end_offsets", "tombstones"})

    bootstrap_servers: Place
    topic: Place
    format: KafkaFormat
    schema_text: str
    avro_schema: SchemaDocument | None = None
    descriptor: SchemaDocument | None = None
    message: Place | None = None
    registry: Place | None = None
    registry_user_env: Place | None = None
    registry_password_env: Place | None = None
    starting: Place = "earliest"
    offsets: tuple[tuple[int, int], ...] = ()
    ending: Place | None = None
    end_offsets: tuple[tuple[int, int], ...] | None = None
    tombstones: Literal["drop"] | None = None
    key_as: ColumnName | None = None
    headers_as: ColumnName | None = None
    timestamp_as: ColumnName | None = None
    partition_as: ColumnName | None = None
    offset_as: ColumnName | None = None
    user_env: Place | None = None
    password_env: Place | None = None
    options: tuple[tuple[str, str], ...] = ()

    @property
    def per_location(self) -> bool:
        return "{location}" in self.topic or "{location}" in self.bootstrap_servers

    def schema(self) -> Schema:
        return Schema.parse(self.schema_text)

    def added(self) -> list[tuple[str, str, str]]:
        named = [(setting, getattr(self, setting), type_) for setting, type_ in _ADDED]
        return [one for one in named if one[1] is not None] + super().added()

    @property
    def stream(self) -> str:
        if self.ending is None:
            return self.topic  # its servers may get other names
        return f"{self.topic} to {dict(self.end_offsets) if self.end_offsets else self.ending}"

    @property
    def record_format(self) -> str | None:
        return None if self.format == "raw" else self.format

    @property
    def record_options(self) -> Mapping[str, str]:
        return dict(self.options)

    @property
    def is_binary(self) -> bool:
        """Whether values are bytes that only their schema explains."""
        return self.format in ("avro", "protobuf")

    def output(self, inputs: tuple[StreamType, ...]) -> StreamType:
        for what, hint in self._faults():
            raise self.error(what, hint)
        try:
            StartRule().check(dict(self.offsets) or self.starting, "starting")
            if self.ending is not None:
                StartRule().check(dict(self.end_offsets or ()) or self.ending, "ending")
        except Refused as error:
            raise self.error(error.what, error.hint or _START_HINT) from None
        if self.avro_schema is not None:
            read_avro_schema(self.avro_schema, where=self.where)
        return super().output(inputs)

    def _faults(self) -> list[tuple[str, str]]:
        """Return what is wrong with the settings together: the fault, and the hint."""
        found = []
        if not _TOPIC.fullmatch(self.topic.replace("{location}", "x")):
            found.append((f"'{self.topic}' is no topic", "name one topic; write a source for each, and .union(...)"))
        if self.registry is not None and not _REGISTRY.fullmatch(self.registry):
            found.append(
                (
                    "the registry is not http://host:port",
                    "write its address alone; user and password are named: registry_user_env='HEADWATER_SECRET_...'",
                )
            )
        if self.registry is not None and self.format in ("csv", "raw"):
            found.append((f"values of format {self.format} have no schema in a registry", "leave registry= out"))
        if self.registry is None and self.registry_user_env is not None:
            found.append(("registry_user_env without a registry", "give registry='http://host:8081'"))
        found += self._faults_of_schemas()
        if (self.ending is not None and self.starting == "latest") or self.ending == "earliest":
            found.append(("between both places the topic has no record", 'write starting="earliest", ending="latest"'))
        for name, _ in self.options:
            if any(word in name.lower() for word in _SECRET):
                found.append((f"'{name}' would be stored with the dataflow", "name it: password_env='VARIABLE'"))
        return found

    def _faults_of_schemas(self) -> list[tuple[str, str]]:
        found = []
        if self.format == "avro" and self.avro_schema is None and self.registry is None:
            found.append(("Avro values need their writer's schema", "give avro_schema=..., or registry=..."))
        if self.format != "avro" and self.avro_schema is not None:
            found.append((f"avro_schema for values of format {self.format}", 'give format="avro"'))
        if self.format == "protobuf" and self.registry is None and (self.descriptor is None or self.message is None):
            found.append(
                (
                    "Protobuf values need their message's descriptor",
                    "give descriptor='file.desc' (protoc, options include_imports, descriptor_set_out), message=, "
                    "or registry=...",
                )
            )
        if self.format != "protobuf" and (self.descriptor is not None or self.message is not None):
            found.append((f"a Protobuf message for values of format {self.format}", 'give format="protobuf"'))
        if self.registry is not None and self.descriptor is not None:
            found.append(("a descriptor beside a registry", "leave one of them out: the registry has the schemas"))
        if self.format == "raw" and self.tombstones is not None:
            found.append(
                ("tombstones of format raw, which has them as rows", "filter them: where('value IS NOT NULL')")
            )
        if self.format == "raw" and self.schema_text != Schema.parse(RAW).text:
            found.append(("a schema for format raw", f"leave it out: the columns are {RAW}"))
        if self.format == "raw" and any(getattr(self, setting) for setting, _ in _ADDED if setting != "headers_as"):
            found.append(("columns beside those of format raw", "use its columns key, timestamp, partition, offset"))
        if self.descriptor is not None and not _is_base64(self.descriptor):
            found.append(("the descriptor is not base64", "give the file: f.read.kafka(..., descriptor='file.desc')"))
        return found


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except binascii.Error:
        return False


def read_descriptor(path: str, *, where: str) -> str:
    """Read a compiled descriptor file of Protobuf, as base64; raise DataflowError where that fails."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST)
    except OSError as error:
        raise DataflowError(
            f"the descriptor cannot be read: {error.strerror}",
            where=where,
            hint="write it with protoc, options include_imports and descriptor_set_out",
        ) from None
    if not 0 < len(data) <= _MOST * 3 // 4:
        raise DataflowError(
            f"the descriptor has {len(data)} bytes or more", where=where, hint=f"give one of up to {_MOST * 3 // 4}"
        )
    return base64.b64encode(data).decode()
