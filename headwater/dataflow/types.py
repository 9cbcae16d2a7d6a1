"""The type of a stream: its columns, event time and location."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import PlainSerializer

from headwater.sql.schema import DataType, Schema


@dataclass(frozen=True, slots=True)
class EventTime:
    """The event-time column, and by how many seconds a row may be late."""

    column: str
    delay: float


@dataclass(frozen=True, slots=True)
class StreamType:
    """The type of a stream. ``located_by``: columns whose value identifies the row's location."""

    schema: Schema
    event_time: EventTime | None = None
    located_by: Annotated[frozenset[str], PlainSerializer(sorted)] = frozenset()


def stream_type(type_: StreamType) -> tuple[str, str | None]:
    """Return the part of a stream's type that a reader needs: its columns, and the event-time column."""
    return type_.schema.text, type_.event_time.column if type_.event_time else None


def is_time(type_: DataType) -> bool:
    """Return whether a column of this type can be an event time by itself."""
    return type_.text == "timestamp"
