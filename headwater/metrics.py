"""What is seen of a running deployment: the one form that terminal, JSON and tests read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any, Literal, TypeVar

Status = Literal["starting", "running", "failed", "finished", "stopped"]
Observe = Callable[[str, int, int], None]
"""Told by long work what is done now, how many of its parts are done, and of how many."""


_GROWTH_SECONDS = 5.0
"""Samples must span this before they tell a rate."""


def forecast(samples: Sequence[tuple[float, int]], limit: int) -> float | None:
    """Tell in how many seconds a buffer reaches ``limit`` bytes; None while it does not grow.

    ``samples`` are (seconds, bytes that wait), oldest first. The rate is that between first and last.

    >>> forecast([(0.0, 0), (10.0, 1000)], 5000)
    40.0
    """
    rate = growth(samples)
    return max(0.0, (limit - samples[-1][1]) / rate) if rate else None


def growth(samples: Sequence[tuple[float, int]]) -> float | None:
    """Tell by how much a count grows in a second; None while it does not, or is not known yet."""
    if len(samples) < 2:
        return None
    (begin, before), (end, now) = samples[0], samples[-1]
    if end - begin < _GROWTH_SECONDS or now <= before:
        return None
    return (now - before) / (end - begin)


@dataclass(frozen=True, kw_only=True)
class OperatorProgress:
    """What an operator took and gave since its unit's query was started; None: nobody counts it.

    Of a source, ``rows_in`` are the records it read, ``rows_out`` those that fit its schema. A count that is
    lower than it was has begun anew: the query was started again, or an agent lost what it had noted.
    ``location``: of a source's rows, where it is read at several.
    """

    operator: str
    rows_in: int | None = None
    rows_out: int | None = None
    location: str | None = None


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Seconds from an event's arrival at its source to the commit of the batch that gives what it led to.

    Over the batches with output of the last ``over_s`` seconds, weighed by their ``rows``.
    """

    p50: float
    p95: float
    rows: int
    over_s: float


@dataclass(frozen=True, kw_only=True)
class UnitProgress:
    """One unit now. Rows count since the deployment was first started; ``lag`` is in rows."""

    unit: str
    zone: str
    layer: str
    status: Status
    rows_in: int = 0
    rows_out: int = 0
    dead_letters: int = 0
    late_rows: int = 0
    lag: int | None = None
    """Rows in its input channels that it has not read; None for a unit that reads only sources."""
    batch: int = -1
    batch_ms: float | None = None
    """Median of the recent batches that had rows."""
    rows_per_s: float | None = None
    watermark: str | None = None
    error: str | None = None
    run: str | None = None
    """Tells one run of its query from the next: it changes when the unit was started again."""
    operators: tuple[OperatorProgress, ...] = ()
    batches: int = 0
    """Batches that were executed in this run, those without rows too."""
    busy_s: float = 0.0
    """Seconds that they took, in this run."""
    cpu_s: float = 0.0
    """Seconds of a core that its Spark took for them: its share by ``busy_s``, in this run."""
    state_rows: int = 0
    state_bytes: int = 0
    latency: Latency | None = None
    """Of what it gives."""
    oldest_s: float | None = None
    """Age of the oldest row that has come to it and has not gone through; None where none waits."""
    trigger_s: float | None = None
    """Seconds from the beginning of a batch to that of the next, where it ends before."""
    began: float | None = None
    """When the newest batch that was executed began, and took what had come; seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class HostProgress:
    """A host as its zone's agent sees it; seconds of a core count since the agent was started.

    ``cores``: those that Headwater may use there. ``cpu_s``: taken by this host's Spark and its workers;
    ``agent_s`` by the agent; ``others_s`` by everything else on those cores. Memory in bytes.
    """

    host: str
    zone: str
    cores: float
    seconds: float
    """Since the agent began to look."""
    cpu_s: float = 0.0
    agent_s: float = 0.0
    others_s: float = 0.0
    memory: int = 0
    memory_free: int | None = None


@dataclass(frozen=True, kw_only=True)
class LinkProgress:
    """Rows and bytes (compressed, as stored) that were written to cross a link upwards.

    ``up`` is what its upper end sees of it, for ``since_s`` seconds now; None where nobody looks.
    """

    link: str
    rows: int = 0
    bytes: int = 0
    up: bool | None = None
    since_s: float | None = None
    delay_s: float | None = None
    """One way: half of what a small request takes."""
    bytes_per_s: float | None = None
    """What came over it of late, other deployments' data left out."""
    capacity: float | None = None
    """Bytes/s at which data has come while more was waiting; None where nothing ever waited."""


@dataclass(frozen=True, kw_only=True)
class ChannelProgress:
    """A channel: what was written, what waits, what was lost by policy or damage.

    ``bytes_per_s`` is how fast it was written in the last minute. ``lasts_s`` forecasts in how many
    seconds ``unread_bytes`` will have reached ``limit_bytes`` as they grew in that time; None while
    they do not grow.
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
    """Age of the oldest row that has still to cross a link; None where none waits for that."""

    def would_last(self) -> float | None:
        """Forecast for how many seconds there is room when nobody reads, at the rate it is written."""
        if self.limit_bytes is None or not self.bytes_per_s:
            return None
        return max(0.0, (self.limit_bytes - self.unread_bytes) / self.bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """All of a deployment at one moment; ``seconds`` since this run began."""

    seconds: float
    units: tuple[UnitProgress, ...] = ()
    links: tuple[LinkProgress, ...] = ()
    channels: tuple[ChannelProgress, ...] = ()
    hosts: tuple[HostProgress, ...] = ()

    @property
    def failed(self) -> tuple[UnitProgress, ...]:
        return tuple(u for u in self.units if u.status == "failed")

    @property
    def finished(self) -> bool:
        """Tell whether every unit has used up its input."""
        return all(u.status == "finished" for u in self.units)

    def joined(self, *others: Progress) -> Progress:
        """Put the progress of parts of a deployment together; a link's two ends become one."""
        links = {link.link: link for link in self.links}
        for link in (x for other in others for x in other.links):
            one = links.get(link.link, LinkProgress(link=link.link))
            known = link if one.up is None else one if link.up is None or not one.up else link
            links[link.link] = LinkProgress(
                link=link.link,
                rows=one.rows + link.rows,
                bytes=one.bytes + link.bytes,
                **{name: getattr(known, name) for name in _SEEN_FROM_ABOVE},
            )
        return Progress(
            seconds=max(part.seconds for part in (self, *others)),
            units=tuple(u for part in (self, *others) for u in part.units),
            links=tuple(links.values()),
            channels=tuple(c for part in (self, *others) for c in part.channels),
            hosts=tuple(h for part in (self, *others) for h in part.hosts),
        )

    def to_data(self) -> dict[str, Any]:
        """Give the progress as JSON-able data; ``from_data`` gives it back."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Progress:
        """Read what ``to_data`` gave, of this version or another: what is not known here is left out."""
        return cls(
            seconds=data["seconds"],
            units=tuple(_unit(u) for u in data["units"]),
            links=tuple(_known(LinkProgress, x) for x in data["links"]),
            channels=tuple(_known(ChannelProgress, c) for c in data["channels"]),
            hosts=tuple(_known(HostProgress, h) for h in data.get("hosts", ())),
        )


_SEEN_FROM_ABOVE = ("up", "since_s", "delay_s", "bytes_per_s", "capacity")
_T = TypeVar("_T")


def _unit(data: dict[str, Any]) -> UnitProgress:
    nested: dict[str, Any] = {
        "operators": tuple(_known(OperatorProgress, o) for o in data.get("operators", ()))
    }
    if data.get("latency"):
        nested["latency"] = _known(Latency, data["latency"])
    return _known(UnitProgress, {**data, **nested})


def _known(cls: type[_T], data: dict[str, Any]) -> _T:
    names = _names(cls)  # type: ignore[arg-type]
    return cls(**{k: v for k, v in data.items() if k in names})


@cache
def _names(cls: type[Any]) -> frozenset[str]:
    return frozenset(f.name for f in fields(cls))
