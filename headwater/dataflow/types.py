"""What is known of a stream before anything runs: its columns, event time and location."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.dataflow.schema import DataType, Schema

if TYPE_CHECKING:
    from headwater.dataflow.operators import CountWindow, Scan


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


def order_columns(operator: CountWindow | Scan, source: StreamType) -> tuple[str, ...]:
    """Check ``order_by`` and give the columns as declared in the stream."""
    from headwater.dataflow.operators import column_named

    if not operator.order_by:
        raise operator.error(
            "rows of a key have no order without order_by",
            "order_by='ts' (the event time: exact wherever it runs) or a counter the rows carry",
        )
    return tuple(column_named(operator, c, source.schema) for c in operator.order_by)
