"""Metrics of a running deployment, in the one form that terminal, JSON and tests read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headwater.core.jsonform import Unbounded

Status = Literal["starting", "running", "failed", "finished", "stopped", "unreachable"]
"""Status of a unit; ``unreachable``: its node cannot be reached now, so it is not known."""
Observe = Callable[[str, int, int], None]
"""Progress callback of long work: the current activity, the finished parts, the total parts."""


_GROWTH_SECONDS = 5.0
"""Shortest span of samples from which a rate is computed."""


def forecast(samples: Sequence[tuple[float, int]], limit: int) -> float | None:
    """Return the seconds until a buffer holds ``limit`` bytes; None while it does not grow.

    ``samples`` are (seconds, buffered bytes), oldest first. The rate is the one between first and last.

    >>> forecast([(0.0, 0), (10.0, 1000)], 5000)
    40.0
    """
    rate = growth(samples)
    return max(0.0, (limit - samples[-1][1]) / rate) if rate else None


def growth(samples: Sequence[tuple[float, int]]) -> float | None:
    """Return the growth of a count per second; None while it does not grow, or is unknown."""
    if len(samples) < 2:
        return None
    (begin, before), (end, now) = samples[0], samples[-1]
    if end - begin < _GROWTH_SECONDS or now <= before:
        return None
    return (now - before) / (end - begin)


@dataclass(frozen=True, kw_only=True)
class OperatorProgress:
    """Rows in and out of an operator since its unit's query started; None: not counted.

    Of a source, ``rows_in`` are the records read, ``rows_out`` those that fit its schema. A count that falls
    was reset: the query restarted, or an agent lost its records. ``location``: the location at which a source
    is read, if it is read at several.
    """

    operator: str
    rows_in: int | None = None
    rows_out: int | None = None
    location: str | None = None


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Seconds from a row's arrival at its source to the commit of the batch that holds its result.

    Average over the batches with output of the last ``over_s`` seconds, weighted by their ``rows``.
    """

    p50: Unbounded
    p95: Unbounded
    rows: int
    over_s: float


@dataclass(frozen=True, kw_only=True)
class UnitProgress:
    """Current progress of a unit. Rows count since the deployment first started; ``lag`` is in rows."""

    unit: str
    zone: str
    layer: str
    status: Status
    rows_in: int = 0
    rows_out: int = 0
    dead_letters: int = 0
    late_rows: int = 0
    lag: int | None = None
    """Unread rows in its input channels; None for a unit that reads only sources."""
    behind: int | None = None
    """Records that its newest batch left unread in the Kafka topics that it reads; None without topics."""
    batch: int = -1
    batch_ms: float | None = None
    """Median of the recent batches that had rows."""
    rows_per_s: float | None = None
    watermark: str | None = None
    idle: tuple[str, ...] = ()
    """Locations, and nodes, without new rows, that its event time does not wait for."""
    error: str | None = None
    waits: str | None = None
    """Service outside that does not answer; the unit continues by itself when it does."""
    run: str | None = None
    """Identifies one run of its query: it changes when the unit restarts."""
    operators: tuple[OperatorProgress, ...] = ()
    batches: int = 0
    """Batches executed in this run, including empty ones."""
    busy_s: float = 0.0
    """Seconds spent on these batches."""
    cpu_s: float = 0.0
    """Core seconds that Spark spent on these batches, shared out by ``busy_s``."""
    state_rows: int = 0
    state_bytes: int = 0
    latency: Latency | None = None
    """Latency of its output."""
    oldest_s: float | None = None
    """Age of the oldest row that has arrived and is not processed; None if there is none."""
    trigger_s: float | None = None
    """Seconds from the start of one batch to the start of the next, if the batch ends before."""
    began: float | None = None
    """When the newest executed batch began and took its input; seconds since 1970."""
    unproven: bool = False
    """Whether it is open if the unit can run: its first batch has not ended, or Spark stumbled and it starts again."""

    @property
    def unread(self) -> int | None:
        """Unread rows in its input channels and topics; None for a unit that has neither."""
        known = [n for n in (self.lag, self.behind) if n is not None]
        return sum(known) if known else None


def node_of(id_: str) -> str:
    """Return the node in the id of a unit or a channel.

    >>> node_of("high.1of2@s1a")
    's1a'
    """
    return id_.rpartition("@")[2]


@dataclass(frozen=True, kw_only=True)
class HostProgress:
    """A host as its zone's agent sees it; core seconds count since the agent started.

    ``cores``: cores that Headwater may use. ``cpu_s``: used by this host's Spark and its workers; ``agent_s``:
    by the agent; ``others_s``: by everything else on these cores. Memory in bytes, resident: ``memory`` of this Spark,
    ``agent_memory`` of the agent. ``pss``: of both, with each page divided by the number of processes that share it;
    None where the system does not report it.
    """

    host: str
    zone: str
    cores: float
    seconds: float
    """Since the agent's first measurement."""
    cpu_s: float = 0.0
    agent_s: float = 0.0
    others_s: float = 0.0
    memory: int = 0
    memory_free: int | None = None
    agent_memory: int = 0
    pss: int | None = None
    version: str = ""
    """The version of Headwater that its agent runs; empty where it does not state it."""


def as_sent(stored: float, share: float | None) -> float:
    """Return the bytes that cross a link for stored ones; all of them while the share is not known."""
    return stored if share is None else stored * share


@dataclass(frozen=True, kw_only=True)
class LinkProgress:
    """Rows and bytes (as stored) written for transfer over a link upwards.

    ``up`` is the view from the upper end over the last ``since_s`` seconds; None if nothing measures it.
    """

    link: str
    rows: int = 0
    bytes: int = 0
    up: bool | None = None
    since_s: float | None = None
    delay_s: float | None = None
    """One way: half the round trip of a small request."""
    bytes_per_s: float | None = None
    """Recent throughput of this deployment."""
    capacity: float | None = None
    """Bytes/s received while more data was queued; None if data was never queued."""
    sent_share: float | None = None
    """Bytes that crossed the link for each stored one; None while unknown."""

    def joined(self, other: LinkProgress) -> LinkProgress:
        """Merge the reports of two nodes about a link."""
        known = other if self.up is None else self if other.up is None or not self.up else other
        stored, share = self.bytes + other.bytes, None
        if stored and (self.sent_share is not None or other.sent_share is not None):
            share = sum(as_sent(one.bytes, one.sent_share) for one in (self, other)) / stored
        return LinkProgress(
            link=self.link,
            rows=self.rows + other.rows,
            bytes=stored,
            sent_share=share,
            **{name: getattr(known, name) for name in _SEEN_FROM_ABOVE},
        )


@dataclass(frozen=True, kw_only=True)
class ChannelProgress:
    """A channel: rows written, unread, and lost by policy or damage.

    ``bytes_per_s`` is the write rate of the last minute. ``lasts_s`` predicts the seconds until ``unread_bytes``
    reaches ``limit_bytes`` at the growth of that minute; None while it does not grow.
    """

    channel: str
    rows: int = 0
    bytes: int = 0
    unread: int = 0
    dropped: int = 0
    lost: int = 0
    unread_bytes: int = 0
    limit_bytes: int | None = None
    bytes_per_s: float | None = None
    lasts_s: float | None = None
    oldest_s: float | None = None
    """Age of the oldest row that has still to cross a link; None if there is none."""
    sent_share: float | None = None
    """Bytes of its streams to other zones for each stored one; None while unknown."""

    def would_last(self) -> float | None:
        """Predict the seconds until the channel is full at its write rate if nothing reads it."""
        if self.limit_bytes is None or not self.bytes_per_s:
            return None
        return max(0.0, (self.limit_bytes - self.unread_bytes) / self.bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a deployment at one moment; ``seconds`` since this run began.

    ``agent`` and ``spark`` identify the processes of a node's report: they change when these were started again.
    """

    seconds: float
    units: tuple[UnitProgress, ...] = ()
    links: tuple[LinkProgress, ...] = ()
    channels: tuple[ChannelProgress, ...] = ()
    hosts: tuple[HostProgress, ...] = ()
    agent: str = ""
    spark: str = ""

    @property
    def failed(self) -> tuple[UnitProgress, ...]:
        return tuple(u for u in self.units if u.status == "failed")

    @property
    def finished(self) -> bool:
        """Return whether every unit has finished its input."""
        return all(u.status == "finished" for u in self.units)

    def unreachable(self) -> Progress:
        """Return the last progress of a node that cannot be reached now: totals, and nothing that may have changed."""
        return Progress(
            seconds=self.seconds,
            units=tuple(
                u
                if u.status in ("stopped", "finished")
                else replace(u, status="unreachable", batch_ms=None, rows_per_s=None, latency=None, oldest_s=None)
                for u in self.units
            ),
            links=tuple(LinkProgress(link=x.link, rows=x.rows, bytes=x.bytes) for x in self.links),
            channels=tuple(replace(c, bytes_per_s=None, lasts_s=None, oldest_s=None) for c in self.channels),
        )

    def joined(self, *others: Progress) -> Progress:
        """Merge the progress of parts of a deployment; the two ends of a link become one."""
        links = {link.link: link for link in self.links}
        for link in (x for other in others for x in other.links):
            links[link.link] = links[link.link].joined(link) if link.link in links else link
        return Progress(
            seconds=max(part.seconds for part in (self, *others)),
            units=tuple(u for part in (self, *others) for u in part.units),
            links=tuple(links.values()),
            channels=tuple(c for part in (self, *others) for c in part.channels),
            hosts=tuple(h for part in (self, *others) for h in part.hosts),
        )


_SEEN_FROM_ABOVE = ("up", "since_s", "delay_s", "bytes_per_s", "capacity")
