"""Values read from a store: a snapshot of everything, or one deployment in full. Pure.

Rates are per second, sizes in bytes, times in seconds, loads in cores; None means unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headwater.adapt.compliance import Figures
from headwater.adapt.slo import SLO
from headwater.control.lifecycle import Phase
from headwater.control.records import Change, Decision
from headwater.core.metrics import ChannelProgress, HostProgress, LinkProgress, Progress, UnitProgress


@dataclass(frozen=True, kw_only=True)
class HostSeen:
    """A host: its cores, and the load of Spark, the agent and other processes."""

    name: str
    cores: float | None = None
    spark: float | None = None
    agent: float | None = None
    others: float | None = None
    load: float | None = None
    memory: int | None = None
    memory_free: int | None = None


@dataclass(frozen=True, kw_only=True)
class UnitSeen:
    """A unit. ``status``: from its node's report, ``planned`` before the first one, or ``unreachable``."""

    unit: str
    deployment: str
    zone: str
    layer: str
    status: str = "planned"
    rows_in_per_s: float | None = None
    rows_out_per_s: float | None = None
    lag: int | None = None
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    oldest_s: float | None = None
    busy: float | None = None
    cpu: float | None = None
    batch_s: float | None = None
    state_rows: int = 0
    state_bytes: int = 0
    dead_letters: int = 0
    late_rows: int = 0
    watermark: str | None = None
    idle: tuple[str, ...] = ()
    error: str | None = None
    waits: str | None = None


@dataclass(frozen=True, kw_only=True)
class ZoneSeen:
    """A zone: ``heartbeat`` is the time of its last report, ``error`` why it cannot be reached now."""

    name: str
    layer: str
    parent: str | None
    locations: tuple[str, ...]
    hosts: tuple[HostSeen, ...]
    units: tuple[UnitSeen, ...]
    heartbeat: float | None
    error: str | None


@dataclass(frozen=True, kw_only=True)
class LinkSeen:
    """A link: its traffic, and its capacity as measured or, where that is unknown, as declared."""

    link: str
    lower: str
    upper: str
    rows_per_s: float | None = None
    bytes_per_s: float | None = None
    capacity_bytes_per_s: float | None = None
    declared_bytes_per_s: float | None = None
    delay_s: float | None = None
    up: bool | None = None

    @property
    def used(self) -> float | None:
        """The used share of its capacity."""
        if self.bytes_per_s is None or not self.capacity_bytes_per_s:
            return None
        return self.bytes_per_s / self.capacity_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class DeploymentSeen:
    """A deployment. ``steps`` and ``done``: of its change under way; 0 where there is none."""

    name: str
    phase: Phase
    version: int
    message: str
    updated: float
    plan: str | None
    continuum: str | None
    busy: bool
    units: int
    running: int
    failed: int
    rows_per_s: float | None
    """Rows read from sources."""
    latency_p95_s: float | None
    """Latency of the slowest unit."""
    lag: int | None
    dead_letters: int
    late_rows: int
    has_slo: bool
    slo_latency_s: float | None
    """The latency limit of the SLO; None without such a limit."""
    broken: tuple[str, ...]
    """The limits that are exceeded now."""
    done: int = 0
    steps: int = 0


@dataclass(frozen=True, kw_only=True)
class MemberSeen:
    """A dataflow of a pool: ``shared`` counts its operators that others use too."""

    name: str
    owner: str
    operators: int
    shared: int


@dataclass(frozen=True, kw_only=True)
class PoolSeen:
    """A pool with its dataflows; ``operators`` run for all of them."""

    name: str
    operators: int
    dataflows: tuple[MemberSeen, ...]


@dataclass(frozen=True, kw_only=True)
class DecisionSeen:
    """An open decision."""

    id: int
    deployment: str
    at: float
    mode: str
    trigger: str
    why: str
    state: str
    plan: str | None


@dataclass(frozen=True, kw_only=True)
class View:
    """Everything at a moment (``at``, seconds since 1970). Zones are listed parents first.

    ``controller``: who acts on the store; None when nobody does. ``error``: why this snapshot is not newer.
    """

    at: float
    store: str
    controller: str | None = None
    layers: tuple[str, ...] = ()
    zones: tuple[ZoneSeen, ...] = ()
    links: tuple[LinkSeen, ...] = ()
    deployments: tuple[DeploymentSeen, ...] = ()
    pools: tuple[PoolSeen, ...] = ()
    decisions: tuple[DecisionSeen, ...] = ()
    error: str | None = None

    @property
    def units(self) -> Iterator[UnitSeen]:
        return (unit for zone in self.zones for unit in zone.units)


# ---------------------------------------------------------------- one deployment


@dataclass(frozen=True, kw_only=True)
class ChangeStatus(Change):
    """A change, and the number of its steps that are done."""

    done: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """A node's last report (seconds since 1970), its age, and why it cannot be reached now."""

    zone: str
    at: float
    error: str | None
    age_s: float


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Memory in bytes of a host's Spark and agent, and the cores that both used lately; None: not known yet.

    ``rss`` counts pages that processes share for each of them, ``pss`` divides them. ``version``: that of its
    agent's Headwater, '' where the agent does not state it.
    """

    host: str
    zone: str
    rss: int
    pss: int | None
    cores: float | None
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Status:
    """A deployment in full at one moment.

    ``observed_version``: the newest version with an outcome; ``active_plan``: the active plan. ``change``: the one
    under way, or the newest. ``controller``: who acts on the store. ``kept`` and ``broken``: of the SLO; None where
    there is none, or nothing was ``measured`` lately. ``decisions``: the open ones. ``clear_text``: nodes whose traffic
    crosses a network without TLS, with their addresses.
    """

    name: str
    phase: Phase
    version: int
    observed_version: int
    active_plan: str | None
    message: str
    controller: str | None
    change: ChangeStatus | None
    slo: SLO | None
    kept: bool | None
    broken: tuple[str, ...]
    measured: Figures | None
    decisions: tuple[Decision, ...]
    zones: tuple[Heartbeat, ...]
    units: tuple[UnitProgress, ...]
    links: tuple[LinkProgress, ...]
    channels: tuple[ChannelProgress, ...]
    hosts: tuple[HostProgress, ...]
    footprints: tuple[Footprint, ...] = ()
    clear_text: tuple[str, ...] = ()

    @property
    def progress(self) -> Progress:
        """The joined progress of its nodes."""
        return Progress(seconds=0.0, units=self.units, links=self.links, channels=self.channels, hosts=self.hosts)
