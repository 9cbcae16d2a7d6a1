"""The one reader of the current state: zones, hosts, units, links, deployments, pools, open decisions.

Terminal, event stream, dashboard, REST and Prometheus read through it, often and cheaply: unchanged rows are read only
once.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from headwater.adapt.compliance import Figures, breaks, figures_of, links_into_top, sink_units
from headwater.adapt.slo import SLO
from headwater.adapt.window import UnitRates, Window, window
from headwater.app.view import (
    ChangeStatus,
    DecisionSeen,
    DeploymentSeen,
    Footprint,
    Heartbeat,
    HostSeen,
    LinkSeen,
    MemberSeen,
    PoolSeen,
    Status,
    UnitSeen,
    View,
    ZoneSeen,
)
from headwater.continuum.model import Continuum, Link, Zone
from headwater.control.lifecycle import BUSY
from headwater.control.notify import ChangeNotifier
from headwater.control.records import OPEN, Change, Decision, DeploymentRecord, ReportRecord, Sample
from headwater.control.snapshot import Key, Member, Snapshot
from headwater.control.tables import resolved_url
from headwater.core.errors import HeadwaterError, Missing
from headwater.core.metrics import HostProgress, Progress, UnitProgress, node_of
from headwater.plan.document import continuum_id

RECENT = 12.0
"""Age in seconds up to which a measurement counts as current."""
UNREAD = "no controller reads its reports"
"""Why a node's figures are old where no controller acts on the store."""
PLANS = 5000
"""Number of plans in the cache."""
STORES = 8
"""Number of stores in the cache."""
NOTIFY_SECONDS = 0.05
"""Seconds between two checks for writes to the store."""
RESTS = 4.0
"""Pause after a read for a write, as a multiple of the shorter of the last two reads: one slow one delays no other."""


def look(store_url: str | None = None) -> View:
    """Read everything once; raise a HeadwaterError where there is no store, or it cannot be reached."""
    with _reading(store_url) as (store, memory):
        return memory.look(store)


def status(name: str | None = None, store_url: str | None = None) -> tuple[Status, ...]:
    """Return the status of one deployment, or of all; raise a HeadwaterError where it cannot be read."""
    with _reading(store_url) as (store, memory):
        return memory.statuses(store, name)


def counted(store_url: str | None = None) -> tuple[tuple[Status, Mapping[str, int]], ...]:
    """Return the status of all deployments, each with its number of decisions by state."""
    with _reading(store_url) as (store, memory):
        decided = store.all_decided()
        return tuple((one, decided.get(one.name, {})) for one in memory.statuses(store))


def watch(
    store_url: str | None = None, *, every: float = 1.0, at_once: bool = False, stop: threading.Event
) -> Iterator[View]:
    """Yield snapshots every so many seconds until ``stop`` is set.

    ``at_once``: also right after a write to the store; a read for a write is followed by a pause of four times the
    processor time of reads. While the store is missing or unreachable, the last snapshot is yielded with the ``error``.
    """
    last, cost, written = View(at=time.time(), store=resolved_url(store_url)), math.inf, False
    with closing(ChangeNotifier(last.store)) as notifier:
        while not stop.is_set():
            begun, worked = time.monotonic(), time.thread_time()
            notifier.beats()
            try:
                last = look(store_url)
                yield last
            except HeadwaterError as error:
                yield replace(last, error=str(error))
            if at_once:
                before, cost = cost, time.thread_time() - worked
                if written:
                    stop.wait(min(every, min(before, cost) * RESTS))
                while not (stop.is_set() or (written := notifier.beats()) or time.monotonic() - begun > every):
                    stop.wait(NOTIFY_SECONDS)
            else:
                stop.wait(every)


# ---------------------------------------------------------------- caches

Beat = tuple[str, str, float, str | None]
"""Deployment and node, the time of its last report, and why it cannot be reached now."""
_Report = tuple[float, str | None, ReportRecord]
"""A node's last report, with the time and the error of its beat."""


@dataclass(frozen=True)
class _Planned:
    """The cached view of a plan: its units, those at sinks, its continuum, and the layers of its zones."""

    units: tuple[str, ...]
    sinks: tuple[str, ...]
    continuum: Continuum
    layers: Mapping[str, str]
    into_top: tuple[str, ...]

    def measured(self, seen: Window) -> Figures:
        """Return the measurements that an SLO limits."""
        return figures_of(self.sinks, self.into_top, seen, seen)


@dataclass(frozen=True)
class _DeploymentPart:
    """A deployment's zones, cached for the same plan, progress and window."""

    plan: _Planned
    progress: Progress
    window: Window | None
    units: tuple[UnitSeen, ...]
    hosts: Mapping[tuple[str, str], HostSeen]
    links: tuple[LinkSeen, ...]


@dataclass(frozen=True)
class _Known:
    """All known data of a deployment."""

    record: DeploymentRecord
    plan: _Planned | None
    progress: Progress
    seen: Window | None
    slo: SLO | None
    change: Change | None

    @property
    def measured(self) -> Figures | None:
        return self.plan.measured(self.seen) if self.plan is not None and self.seen is not None else None

    @property
    def broken(self) -> tuple[str, ...]:
        """Return the limits of the SLO that are exceeded now; a stopped deployment exceeds none."""
        measured = self.measured
        if self.slo is None or measured is None or self.record.phase == "stopped":
            return ()
        return tuple(b.text for b in breaks(self.slo, measured))


@dataclass(frozen=True)
class _Read:
    """Data read together: heartbeats of nodes, steps of changes (done, all), open decisions."""

    heartbeat: tuple[Beat, ...]
    steps: Mapping[int, tuple[int, int]]
    decisions: tuple[Decision, ...]
    known: list[_Known] = field(default_factory=list)


@dataclass
class _Memory:
    """Cached data of a store. ``alone``: one thread reads at a time, and the next one finds the result."""

    alone: threading.Lock = field(default_factory=threading.Lock)
    plans: OrderedDict[str, _Planned] = field(default_factory=OrderedDict)
    continua: dict[str, Continuum] = field(default_factory=dict)
    samples: dict[Key, Sample] = field(default_factory=dict)
    windows: dict[str, tuple[tuple[Key, ...], Window | None]] = field(default_factory=dict)
    parts: dict[str, _DeploymentPart] = field(default_factory=dict)
    reports: dict[str, dict[str, _Report]] = field(default_factory=dict)
    """The last reports that no sample contains, by deployment and node."""

    def read(self, store: Snapshot, name: str | None = None, *, controlled: bool) -> _Read:
        """Read the new rows of all deployments, or of one; return all known data of each.

        ``controlled``: whether a controller acts on the store.
        """
        records = (store.deployment(name),) if name is not None else store.deployments()
        heartbeat, since = store.heartbeat(), time.time() - RECENT
        keys = self._sampled(store, since)
        if not controlled:
            heartbeat = tuple(
                (own, node, at, error or (None if keys.get(own) or at > since else UNREAD))
                for own, node, at, error in heartbeat
            )
        self._said(store, heartbeat, {name for name, own in keys.items() if own})
        if name is None:
            names = {record.name for record in records}
            self.windows = {name: own for name, own in self.windows.items() if name in names}
            self.parts = {name: own for name, own in self.parts.items() if name in names}
        slos, changes = store.slos(), store.last_changes()
        wanted = [changes[r.name].id for r in records if r.name in changes]
        found = _Read(heartbeat, store.steps(wanted), store.decisions(states=OPEN, limit=10_000))
        for record in records:
            own = keys.get(record.name, ())
            found.known.append(
                _Known(
                    record,
                    self._plan(store, record.active_plan) if record.active_plan else None,
                    self._progress(record.name, own),
                    self._window(record.name, own),
                    slos.get(record.name),
                    changes.get(record.name),
                )
            )
        return found

    def look(self, store: Snapshot) -> View:
        now, lease = time.time(), store.lease()
        read = self.read(store, controlled=lease is not None)
        world = _World()
        for one in read.known:
            if one.plan is not None:
                world.add(self._part(one.record.name, one.plan, one.progress, one.seen))
        return View(
            at=now,
            store=store.where,
            controller=lease.label if lease else None,
            layers=world.layers,
            zones=world.seen_zones(read.heartbeat),
            links=world.seen_links(),
            deployments=tuple(_deployment(one, read.steps) for one in read.known),
            pools=_pools(store.members()),
            decisions=tuple(
                DecisionSeen(**{f.name: getattr(d, f.name) for f in fields(DecisionSeen)}) for d in read.decisions
            ),
        )

    def statuses(self, store: Snapshot, name: str | None = None) -> tuple[Status, ...]:
        lease = store.lease()
        read = self.read(store, name, controlled=lease is not None)
        return tuple(_status(one, read, lease.label if lease else None) for one in read.known)

    def _plan(self, store: Snapshot, id_: str) -> _Planned | None:
        if id_ in self.plans:
            self.plans.move_to_end(id_)
            return self.plans[id_]
        try:
            plan = store.plan(id_)
        except Missing:
            return None
        continuum = self.continua.setdefault(continuum_id(plan.continuum), plan.continuum)
        self.plans[id_] = _Planned(
            tuple(unit.id for unit in plan.units),
            sink_units(plan),
            continuum,
            {z.name: z.layer for z in continuum.zones},
            links_into_top(continuum),
        )
        if len(self.plans) > PLANS:
            self.plans.popitem(last=False)
        return self.plans[id_]

    def _sampled(self, store: Snapshot, since: float) -> dict[str, tuple[Key, ...]]:
        """Read the new samples, drop the old ones; return the number of samples by deployment."""
        keys = store.sampled(since)
        self.samples = {key: self.samples[key] for key in keys if key in self.samples}
        self.samples |= store.samples_at([key for key in keys if key not in self.samples])
        found: dict[str, list[Key]] = {}
        for key in keys:
            if key in self.samples:
                found.setdefault(key[0], []).append(key)
        return {name: tuple(own) for name, own in found.items()}

    def _said(self, store: Snapshot, beats: Iterable[Beat], sampled: set[str]) -> None:
        """Read the last reports that no sample contains: there is none, or the node is unreachable."""
        found: dict[str, dict[str, _Report]] = {}
        unread: dict[tuple[str, str], tuple[float, str | None]] = {}
        for name, node, at, error in beats:
            if error is None and name in sampled:
                continue
            before = self.reports.get(name, {}).get(node)
            if before is not None and before[:2] == (at, error):
                found.setdefault(name, {})[node] = before
            else:
                unread[name, node] = at, error
        for (name, node), report in store.reports_of(list(unread)).items():
            found.setdefault(name, {})[node] = (*unread[name, node], report)
        self.reports = found

    def _window(self, name: str, keys: tuple[Key, ...]) -> Window | None:
        known = self.windows.get(name)
        if known is None or known[0] != keys:
            # Only the first and the last: samples between them do not change the rates.
            ends = [self.samples[key] for key in (*keys[:1], *keys[1:][-1:])]
            self.windows[name] = known = keys, window(ends)
        return known[1]

    def _part(self, name: str, plan: _Planned, progress: Progress, seen: Window | None) -> _DeploymentPart:
        found = self.parts.get(name)
        if not (found and found.plan is plan and found.progress is progress and found.window is seen):
            self.parts[name] = found = _part(name, plan, progress, seen)
        return found

    def _progress(self, name: str, keys: tuple[Key, ...]) -> Progress:
        """Join the newest data: the last sample, and the last reports of nodes that it lacks."""
        newest = self.samples[keys[-1]].progress if keys else Progress(seconds=0.0)
        there = {node_of(u.unit) for u in newest.units}
        for node, (_, error, report) in self.reports.get(name, {}).items():
            if node not in there and report.progress is not None:
                newest = newest.joined(report.progress if error is None else report.progress.unreachable())
        return newest


_memories: OrderedDict[str, _Memory] = OrderedDict()
_choosing = threading.Lock()


@contextmanager
def _reading(store_url: str | None) -> Iterator[tuple[Snapshot, _Memory]]:
    """Open a store for one read, with the cached data of it."""
    where = resolved_url(store_url)
    with _choosing:
        memory = _memories.setdefault(where, _Memory())
        _memories.move_to_end(where)
        if len(_memories) > STORES:
            _memories.popitem(last=False)
    with closing(Snapshot.open(where)) as store, memory.alone:
        yield store, memory


# ---------------------------------------------------------------- put together


class _World:
    """The zones of all continua, and the deployments there. Zones of one name are one zone."""

    def __init__(self) -> None:
        self._zones: dict[str, Zone] = {}
        self._zone_of: dict[str, str] = {}  # by node
        self._layers: dict[str, None] = {}
        self._added: set[int] = set()
        self._units: dict[str, list[UnitSeen]] = {}
        self._hosts: dict[tuple[str, str], HostSeen] = {}
        self._links: dict[str, list[LinkSeen]] = {}
        self._cross: dict[str, Link] = {}  # beside the tree

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(self._layers)

    def add(self, part: _DeploymentPart) -> None:
        """Add a deployment's hosts, units and links."""
        continuum = part.plan.continuum
        if id(continuum) not in self._added:
            self._added.add(id(continuum))
            self._layers |= dict.fromkeys(layer.name for layer in continuum.layers)
            self._cross |= {link.name: link for link in continuum.cross_links}
            self._zones |= {zone.name: zone for zone in continuum.zones}
            self._zone_of |= {node.name: node.zone for node in continuum.nodes}
        for unit in part.units:
            if (zone := self._zones.get(unit.zone)) is not None:
                one = unit if unit.layer else replace(unit, layer=zone.layer)
                self._units.setdefault(unit.zone, []).append(one)
        self._hosts |= part.hosts
        for link in part.links:
            self._links.setdefault(link.link, []).append(link)

    def seen_zones(self, heartbeat: Iterable[Beat]) -> tuple[ZoneSeen, ...]:
        """Return all zones, parents first."""
        times: dict[str, float] = {}
        errors: dict[str, str] = {}
        for _, node, at, error in heartbeat:
            zone = self._zone_of.get(node, node)
            times[zone] = max(at, times.get(zone, 0.0))
            if error is not None:
                errors[zone] = error if zone == node else f"{node}: {error}"
        return tuple(
            ZoneSeen(
                name=zone.name,
                layer=zone.layer,
                parent=zone.parent,
                locations=zone.locations,
                hosts=tuple(self._host(zone.name, host.name) for host in zone.hosts),
                units=tuple(self._units.get(zone.name, ())),
                heartbeat=times.get(zone.name),
                error=errors.get(zone.name),
            )
            for zone in self._downward()
        )

    def _host(self, zone: str, name: str) -> HostSeen:
        """Return a host; where a zone's only host has another name in the agent's report, with the values of that."""
        found = self._hosts.get((zone, name))
        if found is None and len(self._zones[zone].hosts) == 1:
            found = next((replace(h, name=name) for (z, _), h in self._hosts.items() if z == zone), None)
        return found or HostSeen(name=name)

    def _downward(self) -> Iterator[Zone]:
        below: dict[str | None, list[Zone]] = {}
        for zone in self._zones.values():
            above = zone.parent if zone.parent in self._zones else None
            below.setdefault(above, []).append(zone)
        waiting = list(reversed(below.get(None, [])))
        while waiting:
            zone = waiting.pop()
            yield zone
            waiting += reversed(below.get(zone.name, []))

    def seen_links(self) -> tuple[LinkSeen, ...]:
        """Return all links, with the traffic of all deployments over each."""
        found = []
        for link in (*filter(None, (zone.link for zone in self._zones.values())), *self._cross.values()):
            parts = self._links.get(link.name, [])
            declared = None if link.bandwidth is None else link.bandwidth / 8
            capacity = _most(p.capacity_bytes_per_s for p in parts)
            found.append(
                LinkSeen(
                    link=link.name,
                    lower=link.lower,
                    upper=link.upper,
                    rows_per_s=_sum(p.rows_per_s for p in parts),
                    bytes_per_s=_sum(p.bytes_per_s for p in parts),
                    capacity_bytes_per_s=declared if capacity is None else capacity,
                    declared_bytes_per_s=declared,
                    delay_s=_most(p.delay_s for p in parts),
                    up=_whether(p.up for p in parts),
                )
            )
        return tuple(found)


def _part(name: str, plan: _Planned, progress: Progress, seen: Window | None) -> _DeploymentPart:
    """Join a plan and the reports of its nodes."""
    said = {unit.unit: unit for unit in progress.units}
    rates = seen.units if seen else {}
    units, links = [], []
    for unit in dict.fromkeys((*plan.units, *said)):
        zone = said[unit].zone if unit in said else node_of(unit)
        units.append(_unit(name, unit, zone, plan.layers.get(zone, ""), said.get(unit), rates.get(unit)))
    hosts = {
        (host.now.zone, host.now.host): HostSeen(
            name=host.now.host, cores=host.cores, spark=host.spark, agent=host.agent, others=host.others,
            load=host.load, memory=host.now.memory, memory_free=host.now.memory_free,
        )
        for host in (seen.hosts.values() if seen else ())
    }  # fmt: skip
    for link in progress.links:
        written = seen.links.get(link.link) if seen else None
        bytes_per_s = written.bytes if link.bytes_per_s is None and written else link.bytes_per_s
        links.append(
            LinkSeen(
                link=link.link, lower="", upper="", rows_per_s=written.rows if written else None,
                bytes_per_s=bytes_per_s, capacity_bytes_per_s=link.capacity, delay_s=link.delay_s, up=link.up,
            )
        )  # fmt: skip
    return _DeploymentPart(plan, progress, seen, tuple(units), hosts, tuple(links))


def _unit(name: str, unit: str, zone: str, layer: str, said: UnitProgress | None, rates: UnitRates | None) -> UnitSeen:
    if said is None:
        return UnitSeen(unit=unit, deployment=name, zone=zone, layer=layer)
    return UnitSeen(
        unit=unit,
        deployment=name,
        zone=zone,
        layer=layer,
        status=said.status,
        rows_in_per_s=rates.rows_in if rates else None,
        rows_out_per_s=rates.rows_out if rates else None,
        lag=said.unread,
        latency_p50_s=said.latency.p50 if said.latency else None,
        latency_p95_s=said.latency.p95 if said.latency else None,
        oldest_s=said.oldest_s,
        busy=rates.busy if rates else None,
        cpu=rates.cpu if rates else None,
        batch_s=rates.batch_s if rates else None,
        state_rows=said.state_rows,
        state_bytes=said.state_bytes,
        dead_letters=said.dead_letters,
        late_rows=said.late_rows,
        watermark=said.watermark,
        idle=said.idle,
        error=said.error,
        waits=said.waits,
    )


def _deployment(one: _Known, steps: Mapping[int, tuple[int, int]]) -> DeploymentSeen:
    record, plan, progress, seen, slo = one.record, one.plan, one.progress, one.seen, one.slo
    busy = record.phase in BUSY
    done, all_ = steps.get(one.change.id, (0, 0)) if one.change is not None and busy else (0, 0)
    return DeploymentSeen(
        name=record.name,
        phase=record.phase,
        version=record.version,
        message=record.message,
        updated=record.updated,
        plan=record.active_plan,
        continuum=plan.continuum.name if plan else None,
        busy=busy,
        units=len(set(plan.units if plan else ()) | {u.unit for u in progress.units}),
        running=sum(u.status == "running" for u in progress.units),
        failed=len(progress.failed),
        rows_per_s=sum(u.rows_in for u in seen.units.values() if u.now.lag is None) if seen else None,
        latency_p95_s=max((u.latency.p95 for u in progress.units if u.latency), default=None),
        lag=_sum(u.unread for u in progress.units if u.status != "unreachable"),
        dead_letters=sum(u.dead_letters for u in progress.units),
        late_rows=sum(u.late_rows for u in progress.units),
        has_slo=slo is not None,
        slo_latency_s=slo.max_latency if slo and math.isfinite(slo.max_latency) else None,
        broken=one.broken,
        done=done,
        steps=all_,
    )


def _status(one: _Known, read: _Read, controller: str | None) -> Status:
    record, change, measured, now = one.record, one.change, one.measured, time.time()
    done, steps = read.steps.get(change.id, (0, 0)) if change is not None else (0, 0)
    return Status(
        name=record.name,
        phase=record.phase,
        version=record.version,
        observed_version=record.observed_version,
        active_plan=record.active_plan,
        message=record.message,
        controller=controller,
        change=None if change is None else ChangeStatus(**vars(change), done=done, steps=steps),
        slo=one.slo,
        kept=None if one.slo is None or measured is None or record.phase == "stopped" else not one.broken,
        broken=one.broken,
        measured=measured,
        decisions=tuple(d for d in read.decisions if d.deployment == record.name),
        zones=tuple(
            Heartbeat(zone=zone, at=at, error=error, age_s=max(0.0, now - at))
            for name, zone, at, error in read.heartbeat
            if name == record.name
        ),
        units=one.progress.units,
        links=one.progress.links,
        channels=one.progress.channels,
        hosts=one.progress.hosts,
        footprints=tuple(_footprint(host, one.seen) for host in one.progress.hosts),
        clear_text=one.plan.continuum.clear_text if one.plan is not None else (),
    )


def _footprint(host: HostProgress, seen: Window | None) -> Footprint:
    rates = seen.hosts.get((host.zone, host.host)) if seen else None
    return Footprint(
        host=host.host,
        zone=host.zone,
        rss=host.memory + host.agent_memory,
        pss=host.pss,
        cores=rates.spark + rates.agent if rates else None,
        version=host.version,
    )


def _pools(members: Iterable[Member]) -> tuple[PoolSeen, ...]:
    pools: dict[str, list[Member]] = {}
    for one in members:
        pools.setdefault(one.pool, []).append(one)
    found = []
    for name, own in pools.items():
        users: dict[str, int] = {}
        for one in own:
            for operator in one.operators:
                users[operator] = users.get(operator, 0) + 1
        dataflows = tuple(
            MemberSeen(
                name=one.name,
                owner=one.owner,
                operators=len(one.operators),
                shared=sum(users[o] > 1 for o in one.operators),
            )
            for one in own
        )
        found.append(PoolSeen(name=name, operators=len(users), dataflows=dataflows))
    return tuple(found)


def _sum(values: Iterable[float | None]) -> Any:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _whether(values: Iterable[bool | None]) -> bool | None:
    known = [v for v in values if v is not None]
    return any(known) if known else None
