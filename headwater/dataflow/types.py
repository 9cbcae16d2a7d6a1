"""What is known of a stream before anything runs: its columns, event time and location."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.dataflow.schema import DataType, Schema


@dataclass(frozen=True, slots=True)
class EventTime:
    """The event-time column, and by how many seconds a row may come after newer ones."""

    column: str
    delay: float


@dataclass(frozen=True, slots=True)
class StreamType:
    """The type of a stream. ``located_by``: columns whose value tells the row's location."""

    schema: Schema
    event_time: EventTime | None = None
    located_by: frozenset[str] = frozenset()


def is_time(type_: DataType) -> bool:
    """Tell whether a column of this type can be an event time by itself."""
    return type_.text == "timestamp"
