"""Decode the values of a topic that only a schema explains: Avro and Protobuf, over batches of Arrow.

Spark's ``from_avro`` knows one writer's schema, and takes bytes that go on behind a record or end within it for a
record; its ``from_protobuf`` exists for no Spark of this version. So both formats are decoded here, each value with
the schema that its writer used, and read to the last byte. What cannot be decoded is marked with a reason.
"""

from __future__ import annotations

import base64
import datetime
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headwater.connectors.pythonvalues import Misfit, arrow_type, row_converter
from headwater.connectors.registry import NoSuchSchema, SchemaRegistry, WriterSchema, split_header
from headwater.core.errors import HeadwaterError, Unavailable
from headwater.core.text import cut
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.dataflow.protobufschema import TIMESTAMP_MESSAGE, WRAPPERS, files_of, message_of
from headwater.sql.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

BASE64 = "base64: "
"""Prefix of the text stored for a value of bytes."""
NO_HEADER = "it does not begin with the header of a schema registry"
VALUE, FAULT = "__value", "__fault"
"""Columns that a decoder gets: the bytes, and a reason why the record is malformed whatever they are."""

Read = Callable[[bytes], Any]


def decoded_text(record: str) -> bytes:
    """Return the bytes of a stored record; raise Misfit for a text that does not hold any."""
    if not record.startswith(BASE64):
        raise Misfit(f"not a value of bytes: write it as '{BASE64}...'")
    try:
        return base64.b64decode(record.removeprefix(BASE64), validate=True)
    except ValueError as error:
        raise Misfit(f"not base64: {error}") from None


@dataclass(frozen=True)
class ValueDecoder:
    """The decoder of a source's values; it is sent to the workers, where it loads what it needs."""

    source: KafkaSource

    def columns(self, batches: Iterator[pa.RecordBatch], marks: tuple[str, str]) -> Iterator[pa.RecordBatch]:
        """Put the decoded columns, and those of the malformed record and the reason, in the place of the value."""
        import pyarrow as pa

        schema = self.source.schema()
        types = [arrow_type(c.type) for c in schema]
        for batch in batches:
            rows: list[list[Any]] = [[] for _ in types]
            corrupt: list[str | None] = []
            reasons: list[str | None] = []
            values, faults = (batch.column(name).to_pylist() for name in (VALUE, FAULT))
            for value, fault in zip(values, faults, strict=True):
                found, reason = self._row(value, fault)
                for column, one in zip(rows, found or [None] * len(types), strict=True):
                    column.append(one)
                corrupt.append(None if found else BASE64 + base64.b64encode(value or b"").decode())
                reasons.append(reason)
            arrays = [pa.array(column, type_) for column, type_ in zip(rows, types, strict=True)]
            kept = batch.drop_columns([VALUE, FAULT])
            yield pa.RecordBatch.from_arrays(
                [*arrays, *kept.columns, pa.array(corrupt, pa.string()), pa.array(reasons, pa.string())],
                names=[*schema.names, *kept.schema.names, *marks],
            )

    def _row(self, value: bytes | None, fault: str | None) -> tuple[list[Any] | None, str | None]:
        """Return the values of a row, or the reason why there is none."""
        try:
            return (self.row(value), None) if fault is None else (None, fault)
        except Misfit as error:
            return None, str(error)

    def row(self, value: bytes | None) -> list[Any]:
        """Return the values of a record's columns; raise Misfit where it cannot be decoded."""
        if value is None:
            raise Misfit("no value (a tombstone)")
        read, rest = self._reader_of(value)
        try:
            found = read(rest)
        except (Misfit, HeadwaterError):
            raise
        except Exception as error:  # decoders raise whatever the bytes lead them to
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            raise Misfit(f"not a value of its schema: {cut(what, 200)}") from None
        if not isinstance(found, dict):
            raise Misfit(f"not a record: {cut(repr(found), 60)}")
        return self._converted(found)

    def _reader_of(self, value: bytes) -> tuple[Read, bytes]:
        if self._registry is None:
            return self._own, value
        framed = split_header(value)
        if framed is None:
            raise Misfit(NO_HEADER)
        id_, rest = framed
        if id_ not in self._readers:
            try:
                registered = self._registry.schema(id_)
            except NoSuchSchema:
                raise Misfit(f"the registry has no schema {id_}") from None
            self._readers[id_] = self._made(registered, id_)
        return self._readers[id_], rest

    def _made(self, registered: WriterSchema, id_: int) -> Read:
        wanted = self.source.format.upper()
        if registered.type != wanted:
            return _refusing(f"schema {id_} of the registry is {registered.type}, not {wanted}")
        try:
            return self._avro(registered) if self.source.format == "avro" else self._protobuf(registered)
        except Unavailable:
            raise
        except Exception as error:  # a schema that the library refuses is a fault of the records that name it
            return _refusing(f"schema {id_} of the registry cannot be used: {cut(str(error), 200)}")

    # ------------------------------------------------------------ Avro

    def _avro(self, registered: WriterSchema) -> Read:
        named: dict[str, Any] = {}
        fastavro = _fastavro(self.source.where)
        for text in registered.imported:
            fastavro.parse_schema(json.loads(text), named_schemas=named)
        writer = fastavro.parse_schema(json.loads(registered.text), named_schemas=named)
        reader = None
        if self.source.avro_schema is not None:
            reader = fastavro.parse_schema(json.loads(self.source.avro_schema))
        return _avro_reader(fastavro, writer, reader)

    # ------------------------------------------------------------ Protobuf

    def _protobuf(self, registered: WriterSchema) -> Read:
        files = [base64.b64decode(text) for text in (*registered.imported, registered.text)]
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        own = FileDescriptorProto.FromString(files[-1])
        package = f"{own.package}." if own.package else ""
        makers: dict[tuple[int, ...], Callable[[bytes], Any]] = {}
        wanted = self.source.message

        def read(value: bytes) -> Any:
            indexes, rest = _indexes(value)
            if indexes not in makers:
                names, nested = [], own.message_type
                for index in indexes:
                    names.append(nested[index].name)
                    nested = nested[index].nested_type
                makers[indexes] = _message_reader(message_of(files, package + ".".join(names), where=self.source.where))
                if wanted is not None and package + ".".join(names) != wanted:
                    makers[indexes] = _refusing(f"a message {package}{'.'.join(names)}, not {wanted}")
            return makers[indexes](rest)

        return read

    # ------------------------------------------------------------ what it has loaded

    @cached_property
    def _converted(self) -> Callable[[dict[str, Any]], list[Any]]:
        return row_converter(Schema.parse(self.source.schema_text).columns)

    @cached_property
    def _readers(self) -> dict[int, Read]:
        return {}

    @cached_property
    def _registry(self) -> SchemaRegistry | None:
        source = self.source
        if source.registry is None:
            return None
        return SchemaRegistry(source.registry, source.registry_user_env, source.registry_password_env, source.where)

    @cached_property
    def _own(self) -> Read:
        """The reader of values that all have one schema."""
        source = self.source
        if source.format == "avro":
            fastavro = _fastavro(source.where)
            return _avro_reader(fastavro, fastavro.parse_schema(json.loads(str(source.avro_schema))), None)
        return _message_reader(message_of(files_of(str(source.descriptor)), source.message, where=source.where))


def _refusing(why: str) -> Read:
    def read(value: bytes) -> Any:
        raise Misfit(why)

    return read


def _fastavro(where: str) -> Any:
    try:
        import fastavro
    except ImportError:
        raise Unavailable("fastavro is not installed", where=where, hint="pip install headwater[kafka]") from None
    return fastavro


def _avro_reader(fastavro: Any, writer: Any, reader: Any) -> Read:
    def read(value: bytes) -> Any:
        stream = io.BytesIO(value)
        found = fastavro.schemaless_reader(stream, writer, reader)
        if (rest := len(value) - stream.tell()) > 0:
            raise Misfit(f"{rest} bytes too many for its schema")
        return found

    return read


def _indexes(value: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the place of a value's message in its schema, and the bytes of the message."""
    count, at = _number(value, 0)
    if not 0 <= count <= 100:
        raise Misfit("a place of its message that no schema has")
    found = []
    for _ in range(count):
        one, at = _number(value, at)
        if one < 0:
            raise Misfit("a place of its message that no schema has")
        found.append(one)
    return tuple(found) or (0,), value[at:]


def _number(value: bytes, at: int) -> tuple[int, int]:
    """Read a number of variable length in zigzag form; return it with the offset behind it."""
    found = shift = 0
    while True:
        if at >= len(value) or shift > 63:
            raise Misfit("it ends within the header of a schema registry")
        found |= (value[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not value[at - 1] & 0x80:
            return (found >> 1) ^ -(found & 1), at


def _message_reader(descriptor: Any) -> Read:
    from google.protobuf.message_factory import GetMessageClass

    made = GetMessageClass(descriptor)
    return lambda value: _fields(made.FromString(value))


def _fields(message: Any) -> dict[str, Any]:
    """Return the fields of a message by name; those that are not set have their default, or NULL where they may."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of = field.message_type.fields_by_name["value"]
            found[field.name] = {key: _single(of, value[key]) for key in value}
        elif field.is_repeated:
            found[field.name] = [_single(field, one) for one in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _single(field, value)
    return found


def _single(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    if field.message_type is None:
        return value
    name = field.message_type.full_name
    if name == TIMESTAMP_MESSAGE:
        return datetime.datetime.fromtimestamp(value.seconds, datetime.UTC) + datetime.timedelta(
            microseconds=value.nanos // 1000
        )
    if name in WRAPPERS:
        return value.value
    return _fields(value)
