"""Changes of a node while there was no connection, read from the history of its server, if it has one.

A server may keep no history, only some of it, or write it late. So what it gives is taken for whole only where it has
both the value that was received last and the present one.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.connectors.opcuaclient import plain

if TYPE_CHECKING:
    from asyncua import Client, ua

MOST = 50_000
"""Values of a node that are read from its history after one loss of the connection."""


class Seen(NamedTuple):
    """A value that was received: when it was taken, by the clock of its source, and the value as JSON has it."""

    time: datetime.datetime
    value: Any


class Hole(NamedTuple):
    """The values between two that were received; whether the history has the one before them, and the one behind."""

    values: list[ua.DataValue]
    begins: bool
    ends: bool


def seen(value: ua.DataValue) -> Seen | None:
    """Return a value that can be found again in a history; None without the time of its source."""
    if value.SourceTimestamp is None:
        return None
    return Seen(
        value.SourceTimestamp.replace(tzinfo=None), plain(value.Value.Value) if value.Value is not None else None
    )


async def hole(client: Client, node: ua.NodeId, last: Seen, present: Seen) -> Hole:
    """Read the values of a node after the last one and before the present one; raise the library's errors."""
    from asyncua import ua

    details = ua.ReadRawModifiedDetails(
        IsReadModified=False, StartTime=last.time, EndTime=present.time, NumValuesPerNode=0, ReturnBounds=False
    )
    found: list[ua.DataValue] = []
    point: bytes | None = None
    while True:
        answer = await client.get_node(node).history_read(details, point)
        answer.StatusCode.check()
        data: Any = answer.HistoryData
        found += data.DataValues
        before, point = point, answer.ContinuationPoint
        if point is None or point == before or len(found) > MOST:
            return between(found[:MOST], last, present)


def between(found: list[ua.DataValue], last: Seen, present: Seen) -> Hole:
    """Return the part of a history, in the order of time, after the last value and before the present one."""
    values = [seen(value) for value in found]
    begins = max((number for number, value in enumerate(values) if value == last), default=-1)
    if last == present:
        return Hole([], begins >= 0, begins >= 0)
    ends = next((number for number, value in enumerate(values) if number > begins and value == present), None)
    return Hole(found[begins + 1 : ends], begins >= 0, ends is not None)
