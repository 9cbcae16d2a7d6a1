"""The columns of a Protobuf message, from compiled descriptors. Pure: values are decoded elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headwater.core.errors import DataflowError
from headwater.core.text import cut
from headwater.sql.schema import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    ArrayType,
    Column,
    DataType,
    DecimalType,
    MapType,
    Schema,
    StructType,
)

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

TIMESTAMP_MESSAGE = "google.protobuf.Timestamp"
WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
"""Messages that stand for a value which may be missing."""
# By FieldDescriptor.cpp_type: int32, int64, uint32, uint64, double, float, bool, enum.
_BY_NUMBER = (INT, BIGINT, BIGINT, DecimalType(20, 0), DOUBLE, FLOAT, BOOLEAN, STRING)
_TEXT, _MESSAGE = 9, 10  # FieldDescriptor.CPPTYPE_STRING, CPPTYPE_MESSAGE
_BYTES = 12  # FieldDescriptor.TYPE_BYTES


def message_of(files: Iterable[bytes], name: str | None, *, where: str) -> Descriptor:
    """Return the descriptor of a message from serialized FileDescriptorProtos, those that others import first.

    Without a name: the first message of the last file. Raise DataflowError where they are damaged or lack it.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, timestamp_pb2, wrappers_pb2

    pool: Any = descriptor_pool.DescriptorPool()
    known = {}
    for module in (timestamp_pb2, duration_pb2, wrappers_pb2):
        known[module.DESCRIPTOR.name] = module.DESCRIPTOR.serialized_pb
    try:
        last = None
        for data in [*known.values(), *files]:
            last = descriptor_pb2.FileDescriptorProto.FromString(data)
            if last.name not in known or data in known.values():
                pool.Add(last)
        if name is None and last is not None and last.message_type:
            package = f"{last.package}." if last.package else ""
            name = f"{package}{last.message_type[0].name}"
        found: Descriptor = pool.FindMessageTypeByName(name or "")
    except Exception as error:  # the pool raises TypeError, KeyError and DecodeError for what is in foreign files
        raise DataflowError(
            f"the descriptor has no message {name or ''}: {cut(str(error), 200)}",
            where=where,
            hint="write it with protoc, options include_imports and descriptor_set_out; name its package too",
        ) from None
    return found


def files_of(descriptor: str) -> list[bytes]:
    """Return the files of a FileDescriptorSet in base64, in its order; raise ValueError where it is none."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(descriptor))
    except DecodeError as error:
        raise ValueError(str(error)) from None
    return [file.SerializeToString() for file in found.file]


def columns_of_message(message: Descriptor, *, where: str) -> Schema:
    """Return the columns of a message; raise DataflowError for one that has itself as a part, or no fields."""
    return Schema(_struct(message, (), where).fields)


def _struct(message: Descriptor, above: tuple[str, ...], where: str) -> StructType:
    if message.full_name in above or not message.fields:
        why = "has itself as a part" if message.fields else "has no fields"
        raise DataflowError(
            f"the message {message.full_name} {why}",
            where=where,
            hint="give the columns to read as schema='id bigint, ...'; other fields are left out",
        )
    above = (*above, message.full_name)
    return StructType(tuple(Column(f.name, _type(f, above, where)) for f in message.fields))


def _type(field: FieldDescriptor, above: tuple[str, ...], where: str) -> DataType:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key, value = (_single(inner.fields_by_name[name], above, where) for name in ("key", "value"))
        return MapType(key, value)
    single = _single(field, above, where)
    return ArrayType(single) if field.is_repeated else single


def _single(field: FieldDescriptor, above: tuple[str, ...], where: str) -> DataType:
    if field.cpp_type == _TEXT:
        return BINARY if field.type == _BYTES else STRING
    if field.cpp_type != _MESSAGE:
        return _BY_NUMBER[field.cpp_type - 1]
    name = field.message_type.full_name
    if name == TIMESTAMP_MESSAGE:
        return TIMESTAMP
    if name in WRAPPERS:
        return _single(field.message_type.fields_by_name["value"], above, where)
    return _struct(field.message_type, above, where)
