"""The type of a stream: its columns, event time and location."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import PlainSerializer

from headwater.sql.schema import DataType, Schema


@dataclass(frozen=True, slots=True)
class EventTime:
    """The event-time column, and by how many seconds a row may be late.

    ``idle_after``: seconds without rows after which a location no longer holds back the others; None: it always does.
    """

    column: str
    delay: float
    idle_after: float | None = None


def _lean(time: EventTime | None) -> dict[str, Any] | None:
    """Return the JSON form, without idleness where there is none: plans from before have the same id."""
    return {k: v for k, v in asdict(time).items() if v is not None} if time is not None else None


StoredTime: TypeAlias = Annotated[EventTime | None, PlainSerializer(_lean)]
"""The event time of a stream, or None, in a stored value."""


@dataclass(frozen=True, slots=True)
class StreamType:
    """The type of a stream. ``located_by``: columns whose value identifies the row's location."""

    schema: Schema
    event_time: StoredTime = None
    located_by: Annotated[frozenset[str], PlainSerializer(sorted)] = frozenset()


def stream_type(type_: StreamType) -> tuple[str, str | None]:
    """Return the part of a stream's type that a reader needs: its columns, and the event-time column."""
    return type_.schema.text, type_.event_time.column if type_.event_time else None


def idle_together(times: Iterable[EventTime]) -> float | None:
    """Return after how many seconds several streams together are idle; None if one of them never is."""
    spans = [time.idle_after for time in times]
    known = [span for span in spans if span is not None]
    return max(known) if known and len(known) == len(spans) else None


def is_time(type_: DataType) -> bool:
    """Return whether a column of this type can be an event time by itself."""
    return type_.text == "timestamp"
