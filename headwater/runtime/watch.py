"""What is seen of units and channels, as ``headwater.metrics`` tells it, and how long buffers will last."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headwater.metrics import ChannelProgress, LinkProgress, Progress, forecast
from headwater.plan.model import Channel
from headwater.runtime.channels.base import ChannelStats
from headwater.runtime.units import Units, Work

WINDOW = 60.0
"""Seconds over which the growth of a buffer is measured."""


class Meters:
    """Remember for the last minute how much waited in each channel."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[float, int]]] = {}

    def note(self, channel: str, stats: ChannelStats, now: float) -> None:
        """Take a sample; ``now`` in seconds of any clock that only goes forward."""
        samples = self._samples.setdefault(channel, deque())
        samples.append((now, unread_bytes(stats)))
        while now - samples[0][0] > WINDOW:
            samples.popleft()

    def lasts(self, channel: str, limit: int) -> float | None:
        """Forecast in how many seconds a channel is full."""
        return forecast(tuple(self._samples.get(channel, ())), limit)


def unread_bytes(stats: ChannelStats) -> int:
    """Tell how many bytes the slowest reader has before it."""
    return max((b.bytes for b in stats.unread.values()), default=0)


def progress_of(
    works: Sequence[tuple[Units, Work]],
    *,
    seconds: float = 0.0,
    stopped: bool = False,
    meters: Meters | None = None,
    limit: int | None = None,
) -> Progress:
    """Give the state of units and of the channels they write."""

    known: dict[str, ChannelStats] = {}
    seen = []
    links: dict[str, list[int]] = {}
    channels: dict[str, ChannelProgress] = {}
    for units, work in works:

        def stats(channel: Channel, units: Units = units, work: Work = work) -> ChannelStats:
            if channel.id not in known:
                known[channel.id] = units.log(work.plan, channel).stats()
            return known[channel.id]

        with units.asking_spark():
            seen.append(units.progress(work, stats, stopped=stopped))
        for channel in work.plan.outputs(work.unit):
            channels[channel.id] = _channel(channel.id, stats(channel), meters, limit)
            for link in channel.links:  # once, however many read it at the far end
                total = links.setdefault(link.name, [0, 0])
                total[0] += stats(channel).rows
                total[1] += stats(channel).bytes
    return Progress(
        seconds=seconds,
        units=tuple(seen),
        links=tuple(LinkProgress(link=n, rows=r, bytes=b) for n, (r, b) in links.items()),
        channels=tuple(channels.values()),
    )


def _channel(id_: str, stats: ChannelStats, meters: Meters | None, limit: int | None) -> ChannelProgress:
    return ChannelProgress(
        channel=id_,
        rows=stats.rows,
        bytes=stats.bytes,
        unread=max((b.rows for b in stats.unread.values()), default=0),
        dropped=stats.dropped_rows,
        lost=stats.lost_rows,
        unread_bytes=unread_bytes(stats),
        limit_bytes=limit,
        lasts_s=meters.lasts(id_, limit) if meters and limit else None,
    )
