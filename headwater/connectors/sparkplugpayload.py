"""The payload of Sparkplug B: protobuf messages with metrics, read into values that JSON can hold. Pure."""

from __future__ import annotations

import base64
import datetime
from dataclasses import dataclass
from functools import cache
from typing import Any

from headwater.connectors.jsonnumbers import json_number
from headwater.core.errors import Unavailable

_QUALITIES = {0: "bad", 192: "good", 500: "stale"}
_SIGNED = {1: 8, 2: 16, 3: 32, 4: 64}  # bits of Int8 to Int64, which are sent without sign
_DATE_TIME = 13

# Fields of the messages by number: name, type, whether it is repeated. Values of data sets and templates stay bytes.
_MESSAGES: dict[str, dict[int, tuple[str, str, bool]]] = {
    "Payload": {
        1: ("timestamp", "uint64", False),
        2: ("metrics", "Metric", True),
        3: ("seq", "uint64", False),
    },
    "Metric": {
        1: ("name", "string", False),
        2: ("alias", "uint64", False),
        3: ("timestamp", "uint64", False),
        4: ("datatype", "uint32", False),
        5: ("is_historical", "bool", False),
        7: ("is_null", "bool", False),
        9: ("properties", "PropertySet", False),
        10: ("int_value", "uint32", False),
        11: ("long_value", "uint64", False),
        12: ("float_value", "float", False),
        13: ("double_value", "double", False),
        14: ("boolean_value", "bool", False),
        15: ("string_value", "string", False),
        16: ("bytes_value", "bytes", False),
        17: ("dataset_value", "bytes", False),
        18: ("template_value", "bytes", False),
    },
    "PropertySet": {1: ("keys", "string", True), 2: ("values", "PropertyValue", True)},
    "PropertyValue": {3: ("int_value", "uint32", False), 4: ("long_value", "uint64", False)},
}
_VALUES = tuple(name for number, (name, *_) in _MESSAGES["Metric"].items() if number >= 10)


@dataclass(frozen=True)
class Metric:
    """A metric of a message; ``type``: the number of its data type, None where the message does not tell it."""

    name: str | None
    alias: int | None
    type: int | None
    value: Any
    quality: str
    time: int | None
    historical: bool


def require_protobuf(where: str) -> None:
    """Raise Unavailable without the library."""
    try:
        from google.protobuf import message  # noqa: F401
    except ImportError:
        raise Unavailable("protobuf is not installed", where=where, hint="pip install headwater[sparkplug]") from None


@cache
def payload_class() -> Any:
    """Return the class of a payload."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="headwater/sparkplug.proto", package="headwater", syntax="proto2")
    for message, described in _MESSAGES.items():
        made = file.message_type.add(name=message)
        for number, (name, type_, repeated) in described.items():
            field = made.field.add(name=name, number=number)
            field.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if type_ in _MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".headwater.{type_}"
            else:
                field.type = getattr(kinds, f"TYPE_{type_.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("headwater.Payload"))


def read_payload(data: bytes) -> tuple[int | None, list[Metric]]:
    """Return the sequence number and the metrics of a payload; raise ValueError where it is none."""
    from google.protobuf.message import DecodeError

    try:
        payload = payload_class().FromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    sent = payload.timestamp if payload.HasField("timestamp") else None
    return payload.seq if payload.HasField("seq") else None, [_metric(m, sent) for m in payload.metrics]


def _metric(metric: Any, sent: int | None) -> Metric:
    def given(name: str) -> Any:
        return getattr(metric, name) if metric.HasField(name) else None

    quality = "good"
    for key, value in zip(metric.properties.keys, metric.properties.values, strict=False):
        if key == "Quality":
            code = value.int_value if value.HasField("int_value") else value.long_value
            quality = _QUALITIES.get(code, "uncertain")
    return Metric(
        name=given("name") or None,
        alias=given("alias"),
        type=given("datatype"),
        value=None if metric.is_null else next((v for n in _VALUES if (v := given(n)) is not None), None),
        quality=quality,
        time=given("timestamp") or sent,
        historical=metric.is_historical,
    )


def value_of(metric: Metric, type_: int | None) -> Any:
    """Return the value of a metric, of which a birth may have told the type, as JSON can hold it."""
    type_, value = metric.type if metric.type is not None else type_, metric.value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return json_number(value)
    if type_ == _DATE_TIME and isinstance(value, int):
        return time_of(value)
    bits = _SIGNED.get(type_ or 0)
    if bits is not None and isinstance(value, int) and not isinstance(value, bool):
        value &= 2**bits - 1
        return value - 2**bits if value >= 2 ** (bits - 1) else value
    return value


def time_of(milliseconds: int | None) -> str | None:
    """Return a time as text; None where it is no time.

    >>> time_of(1767600000123)
    '2026-01-05T08:00:00.123Z'
    """
    try:
        at = datetime.datetime.fromtimestamp((milliseconds or 0) // 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    if milliseconds is None:
        return None
    return f"{at:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"
