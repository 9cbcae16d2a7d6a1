"""Lifts of idle channels: event times up to which a reader no longer waits for rows of a channel.

The agent of the reading unit writes them beside the members file; the reader takes them into its offset, so a
repeated batch has the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headwater.core.errors import ChannelError
from headwater.disk.durable import read_sealed, sealed, write_atomically

_LIFT = "lift@"
"""Prefix of a lift's key in an offset, before the channel. The @ marks offsets of channels."""


def write_lifts(members: Path, lifts: Mapping[str, int]) -> None:
    """Raise the lifts of channels, in microseconds since 1970; they never fall."""
    write_atomically(_file(members), sealed({"lifts": raised(read_lifts(members), lifts)}))


def read_lifts(members: Path) -> dict[str, int]:
    """Return the lift of each channel that has one; none from a damaged file: they are made again."""
    try:
        record = read_sealed(_file(members), ("lifts",)) or {}
    except ChannelError:
        return {}
    return {channel: int(lift) for channel, lift in record.get("lifts", {}).items()}


def raised(lifts: Mapping[str, int], by: Mapping[str, int]) -> dict[str, int]:
    """Return the greater of two lifts for each channel."""
    return {c: max(x for x in (lifts.get(c), by.get(c)) if x is not None) for c in (*lifts, *by)}


def lifts_in(offset: Mapping[str, int]) -> dict[str, int]:
    """Return the lifts that an offset contains, by channel."""
    return {key.removeprefix(_LIFT): lift for key, lift in offset.items() if key.startswith(_LIFT)}


def offset_of(lifts: Mapping[str, int]) -> dict[str, int]:
    """Return lifts in the form in which an offset contains them."""
    return {f"{_LIFT}{channel}": lift for channel, lift in sorted(lifts.items())}


def _file(members: Path) -> Path:
    return members.with_suffix(".lifts")
