"""A filelog on another machine: the channel contract over Arrow Flight, and a way to follow it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headwater.channels.base import Backlog, ChannelStats
from headwater.channels.entry import Entry, Floor
from headwater.channels.followed import Begin, Bytes, RelayMessage
from headwater.channels.streamhistory import ReceivedHistory
from headwater.channels.wire import Wire
from headwater.core.compatible import known

CHUNK = pa.schema([])
"""The columns of a followed log's stream: its messages are in the metadata (``followed``)."""

SIGN_OF_LIFE = 1.0
TRIP_SECONDS = 2.0
"""A request that takes longer does not measure the delay: it has waited behind data."""

FOLLOW_SECONDS = 120.0
"""A stream ends after this; the next one continues at its position, with its history (``streamhistory``)."""


class FlightLog:
    """Write and read a log by its name at the agent that holds it.

    ``history``: that of earlier streams of this log, also over other connections.
    """

    def __init__(self, wire: Wire, name: str, history: ReceivedHistory | None = None) -> None:
        self._wire = wire
        self._name = name
        self._history = history or ReceivedHistory()

    def append(self, table: pa.Table, *, epoch: int, batch: int) -> bool:
        """Store a batch; return False when (epoch, batch) is in already."""
        return bool(self._wire.put({"log": self._name, "epoch": epoch, "batch": batch}, table))

    def end(self, epoch: int) -> None:
        """Mark the end of the stream."""
        self._ask("end", epoch=epoch)

    def fence(self, epoch: int) -> tuple[int, int] | None:
        """Shut out every writer older than ``epoch``; return the last (epoch, batch) that counts."""
        found = self._ask("fence", epoch=epoch)
        return (int(found[0]), int(found[1])) if found else None

    def earliest(self) -> int:
        """Return the first position that can still be read."""
        return int(self._ask("earliest"))

    def latest(self) -> int:
        """Return the position after the newest entry."""
        return int(self._ask("latest"))

    def round_trip(self) -> float:
        """Return the round-trip time of a small request in seconds."""
        asked = time.monotonic()
        self._wire.ask("log", {"log": self._name, "call": "latest", "given": {}}, seconds=TRIP_SECONDS)
        return time.monotonic() - asked

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of entries ``start`` .. ``end - 1``."""
        reader = self._wire.get({"log": self._name, "start": start, "end": end}, seconds=600.0)
        with self._wire.reading():
            for chunk in reader:
                yield chunk.data

    def frontier(self, position: int) -> int | None:
        """Return the writer's event-time frontier as of ``position``; None while unknown."""
        found = self._ask("frontier", position=position)
        return None if found is None else int(found)

    def register(self, reader: str) -> int:
        """Make the log keep the entries that ``reader`` has not read; return the reader's position."""
        return int(self._ask("register", reader=reader))

    def advance(self, reader: str, position: int) -> None:
        """Record that ``reader`` needs nothing before ``position``."""
        self._ask("advance", reader=reader, position=position)

    def unregister(self, reader: str) -> None:
        """Forget ``reader``."""
        self._ask("unregister", reader=reader)

    def stats(self) -> ChannelStats:
        """Read all counters."""
        found: dict[str, Any] = self._ask("stats")
        found["unread"] = {reader: Backlog(**known(Backlog, backlog)) for reader, backlog in found["unread"].items()}
        return ChannelStats(**known(ChannelStats, found))

    def follow(self, seq: int, begin: Begin = Begin()) -> Follower:  # noqa: B008 - frozen
        """Open a stream of the log's entries from a position on, followed by new ones.

        Opening waits for the first message as long as the stream may last, so a short request comes first: over a
        link that is down, that one fails soon.
        """
        self.latest()
        asked = self._history.next_stream()
        ticket = {"log": self._name, "follow": seq, "expands": True, **begin.to_request(), **asked.to_request()}
        return Follower(self._wire, self._wire.get(ticket, seconds=FOLLOW_SECONDS + 10), self._history)

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def _ask(self, call: str, **given: Any) -> Any:
        return self._wire.ask("log", {"log": self._name, "call": call, "given": given})


class Follower:
    """A stream of entries; ``heartbeat`` is when the last message came, ``sent`` when the other side sent it."""

    def __init__(self, wire: Wire, reader: Any, history: ReceivedHistory) -> None:
        self._wire = wire
        self._reader = reader
        self._history = history
        self.heartbeat = time.monotonic()
        self.sent: float | None = None

    def __iter__(self) -> Iterator[Floor | Bytes | Entry | None]:
        with self._wire.reading():
            for chunk in self._reader:
                self.heartbeat = time.monotonic()
                message = RelayMessage.from_bytes(memoryview(chunk.app_metadata or b""))
                self.sent = message.sent
                self._history.accepted = False
                for item in message.items:
                    yield self._history.decompressed(item) if isinstance(item, Bytes) and item.expanded else item
                self._history.accepted = True

    def cancel(self) -> None:
        """End the stream from another thread."""
        self._reader.cancel()
