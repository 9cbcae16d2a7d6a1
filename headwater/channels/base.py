"""The channel contract: what joins two units, whatever stores it.

A channel holds what ONE producing unit instance wrote, as a sequence of *entries*.
One committed batch is one entry; entries are numbered from 0, and a *position* is the
number of the next entry to read, so ``read(a, b)`` gives entries a .. b-1. A batch is in
the channel once, whoever retries it: it is known by (epoch, batch id). The epoch counts
the writers of the channel; a writer of an older epoch is refused (fenced).

Nothing here touches a disk or a network, so every channel kind can import it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

END = 253_370_764_800_000_000
"""Frontier of a stream that has ended: 9999-01-01T00:00:00Z in microseconds."""

Position: TypeAlias = int
WhenFull: TypeAlias = Literal["block", "drop_oldest", "drop_newest", "fail"]
OnCorrupt: TypeAlias = Literal["quarantine", "stop"]


@dataclass(frozen=True, kw_only=True)
class ChannelLimits:
    """Say how much unread data a channel may hold and what happens when that is reached.

    ``max_bytes`` counts what the slowest registered reader has not read (all that is kept,
    when no reader is registered); ``max_age`` is the age in seconds of its oldest entry.
    ``block`` waits for room for ``block_timeout`` seconds, then raises ChannelFull.
    """

    max_bytes: int | None = None
    max_age: float | None = None
    when_full: WhenFull = "block"
    block_timeout: float = 600.0


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """What one reader has still to read; ``age`` is that of its oldest entry in seconds."""

    position: Position
    entries: int = 0
    rows: int = 0
    bytes: int = 0
    age: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ChannelStats:
    """Counters since the channel began; every one of them survives a restart.

    ``rows`` and ``bytes`` are what was stored, ``dropped_rows`` what a full channel's policy
    gave up (before or after storing), ``lost_rows`` what corruption took. ``frontier`` is in
    microseconds since 1970, END once ``ended``.
    """

    rows: int = 0
    bytes: int = 0
    entries: int = 0
    earliest: Position = 0
    latest: Position = 0
    epoch: int | None = None
    batch: int | None = None
    unread: Mapping[str, Backlog] = field(default_factory=dict)
    dropped_rows: int = 0
    lost_rows: int = 0
    frontier: int | None = None
    ended: bool = False


class ChannelLog(Protocol):
    """Hold one writer's batches durably until every registered reader is past them."""

    def append(self, table: pa.Table, *, epoch: int, batch: int) -> bool:
        """Store a batch; return False when (epoch, batch) is in already."""

    def end(self, epoch: int) -> None:
        """Mark the end of the stream; calling it again changes nothing."""

    def fence(self, epoch: int) -> tuple[int, int] | None:
        """Shut out every writer older than ``epoch``; return the last (epoch, batch) that counts."""

    def earliest(self) -> Position:
        """Return the first position that can still be read."""

    def latest(self) -> Position:
        """Return the position after the newest entry."""

    def read(self, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """Give the rows of entries ``start`` .. ``end - 1``, the same on every call."""

    def frontier(self, position: Position) -> int | None:
        """Return the writer's event-time frontier as of ``position``; None while unknown."""

    def register(self, reader: str) -> Position:
        """Make the channel keep what ``reader`` has not read; return where it stands."""

    def advance(self, reader: str, position: Position) -> None:
        """Record that ``reader`` needs nothing before ``position``; reclaim what nobody needs."""

    def unregister(self, reader: str) -> None:
        """Forget ``reader``; reclaim what only it was waiting for."""

    def stats(self) -> ChannelStats:
        """Read all counters."""
