"""The channel contract: the durable log between two units, independent of its storage.

A channel holds the output of ONE producing unit instance, as a sequence of *entries*.
One committed batch is one entry; entries are numbered from 0, and a *position* is the
number of the next entry to read, so ``read(a, b)`` gives entries a .. b-1. A batch is in
the channel once, however often it is retried: (epoch, batch id) identifies it. The epoch counts
the writers of the channel; a writer of an older epoch is refused (fenced).

Nothing here touches a disk or a network, so every channel kind can import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

END = 253_370_764_800_000_000
"""Frontier of a stream that has ended: 9999-01-01T00:00:00Z in microseconds."""

BEGUN = "begun@"
"""Key in an offset: how often the query started, with nothing to read or behind rows that it had read before.

The @ marks offsets of channels."""
AGAIN_AFTER = 1.0
"""Seconds without new rows after which a unit without state runs one more batch, which publishes its watermark."""

WhenFull: TypeAlias = Literal["block", "drop_oldest", "drop_newest", "fail"]
OnCorrupt: TypeAlias = Literal["quarantine", "stop"]
Offset: TypeAlias = dict[str, int]
"""Positions by writer, as Spark keeps them for a source; see ``channel_spark``."""


@dataclass(frozen=True, kw_only=True)
class ChannelLimits:
    """Bound the unread data of a channel, and name the policy for a full one.

    ``max_bytes`` bounds the bytes that the slowest registered reader has not read (all stored bytes
    when no reader is registered); ``max_age`` bounds the age in seconds of the oldest unread entry.
    ``block`` waits for room for ``block_timeout`` seconds, then raises ChannelFull.
    """

    max_bytes: int | None = None
    max_age: float | None = None
    when_full: WhenFull = "block"
    block_timeout: float = 600.0


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """Lag of one reader: entries, rows and bytes not read; ``age`` of the oldest of them in seconds."""

    position: int
    entries: int = 0
    rows: int = 0
    bytes: int = 0
    age: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ChannelStats:
    """Counters since the channel began; every one of them survives a restart.

    ``rows`` and ``bytes`` count stored data, ``dropped_rows`` the rows dropped by a full channel's
    policy (before or after storing), ``lost_rows`` those in corrupt segments. ``frontier`` is in
    microseconds since 1970, END once ``ended``.
    """

    rows: int = 0
    bytes: int = 0
    entries: int = 0
    earliest: int = 0
    latest: int = 0
    epoch: int | None = None
    batch: int | None = None
    unread: Mapping[str, Backlog] = field(default_factory=dict)
    dropped_rows: int = 0
    lost_rows: int = 0
    frontier: int | None = None
    ended: bool = False
