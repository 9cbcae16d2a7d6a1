"""Views put together from the rows of a store: zones, hosts, units, links, deployments, pools."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headwater.adapt.window import UnitRates, Window
from headwater.app.storecache import Beat, KnownDeployment, PlanSummary, Steps, StoreRead
from headwater.app.view import (
    ChangeStatus,
    DeploymentSeen,
    Footprint,
    Heartbeat,
    HostSeen,
    LinkSeen,
    MemberSeen,
    PoolSeen,
    Status,
    UnitSeen,
    ZoneSeen,
)
from headwater.continuum.model import Link, Zone
from headwater.control.lifecycle import BUSY
from headwater.control.snapshot import Member
from headwater.core.metrics import HostProgress, Progress, UnitProgress, node_of


@dataclass(frozen=True)
class DeploymentPart:
    """A deployment's zones, cached for the same plan, progress and window."""

    plan: PlanSummary
    progress: Progress
    window: Window | None
    units: tuple[UnitSeen, ...]
    hosts: Mapping[tuple[str, str], HostSeen]
    links: tuple[LinkSeen, ...]


class World:
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

    def add(self, part: DeploymentPart) -> None:
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


def part_of(name: str, plan: PlanSummary, progress: Progress, seen: Window | None) -> DeploymentPart:
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
    return DeploymentPart(plan, progress, seen, tuple(units), hosts, tuple(links))


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


def deployment_seen(one: KnownDeployment, steps: Steps) -> DeploymentSeen:
    record, plan, progress, seen, slo = one.record, one.plan, one.progress, one.seen, one.slo
    busy = record.phase in BUSY
    done, all_ = steps if busy else (0, 0)
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


def status_of(one: KnownDeployment, read: StoreRead, controller: str | None) -> Status:
    record, change, measured, now = one.record, one.change, one.measured, time.time()
    done, steps = read.steps_of(one)
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


def pools_seen(members: Iterable[Member]) -> tuple[PoolSeen, ...]:
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
