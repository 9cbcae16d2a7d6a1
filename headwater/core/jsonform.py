"""The JSON form of values: one pydantic schema per type, for files, the store, the wire, ``--json`` and REST.

An annotated field has a JSON form that differs from its Python form; every other field has pydantic's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, PlainSerializer, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, core_schema

from headwater.core.errors import DeploymentError

T = TypeVar("T")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


_AS_NULL = PlainSerializer(_finite, return_type=float | None)
_AS_INFINITE = BeforeValidator(lambda value: math.inf if value is None else value)
Unbounded = Annotated[float, _AS_INFINITE, _AS_NULL]
"""A number that may be infinite (no limit, or no end); infinity is null in JSON."""
UnboundedOrNone = Annotated[float | None, _AS_NULL]
"""A number that is null in JSON when it is infinite or None; null is read as None."""
Hidden = Field(exclude=True)
"""Exclude a field from the JSON."""


def named(name: str) -> Any:
    """Describe a field that has another name in JSON."""
    return Field(alias=name)


def custom_schema(of: type[T], read: Callable[[Any], T], write: Callable[[T], Any]) -> CoreSchema:
    """Return the schema of a class with its own JSON form: ``read`` builds a value from it, ``write`` returns it."""
    return core_schema.no_info_plain_validator_function(
        lambda value: value if isinstance(value, of) else read(value),
        serialization=core_schema.plain_serializer_function_ser_schema(write),
    )


def time_text(value: datetime) -> str:
    """Return a row's time, UTC or without zone, with its microseconds as sinks write it.

    >>> from datetime import UTC
    >>> time_text(datetime(2024, 1, 31, 12, tzinfo=UTC)), time_text(datetime(2024, 1, 31, microsecond=5))
    ('2024-01-31T12:00:00.000000Z', '2024-01-31T00:00:00.000005')
    """
    text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
    return text if value.tzinfo is None else f"{text}Z"


def adapter(of: Any) -> TypeAdapter[Any]:
    """Return the schema of a type; it is built once."""
    return _adapter(of)  # mypy does not take type[T] for the Hashable that cache wants


@cache
def _adapter(of: Any) -> TypeAdapter[Any]:
    return TypeAdapter(of)


def dump_json(value: object, *, lean: bool = False) -> bytes:
    """Return a value, or a list or dict of values, as JSON; ``lean`` omits defaults."""
    if isinstance(value, Mapping):
        inner = (json.dumps(str(k)).encode() + b":" + dump_json(own, lean=lean) for k, own in value.items())
        return b"{" + b",".join(inner) + b"}"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(dump_json(own, lean=lean) for own in value) + b"]"
    return adapter(type(value)).dump_json(value, by_alias=True, exclude_defaults=lean)


def dump(value: object) -> Any:
    """Return the JSON form of a value as dicts, lists and plain values."""
    return json.loads(dump_json(value))


ONE_VERSION = "use one version of Headwater on both sides"


def load(of: type[T], data: object, *, what: str) -> T:
    """Read a value from its JSON form; raise DeploymentError if it is invalid. ``what`` names it in the message."""
    try:
        found: T = adapter(of).validate_python(data)
    except ValidationError as error:
        raise DeploymentError(f"not {what}: {problem(error)}", hint=ONE_VERSION) from error
    return found


def load_json(of: type[T], text: str | bytes, *, what: str, hint: str = ONE_VERSION) -> T:
    """Read a value from JSON text; raise DeploymentError if it is invalid. ``what`` names it in the message."""
    try:
        found: T = adapter(of).validate_json(text)
    except ValidationError as error:
        raise DeploymentError(f"not {what}: {problem(error)}", hint=hint) from error
    return found


def problem(error: ValidationError) -> str:
    """Return the first validation problem and its position."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])
