"""A deployment on modelled hosts and links that reports progress like a real one, at any speed. Pure.

Units behave as in ``headwater.adapt.model``, with costs that the caller knows and a policy does not.
Where a host or a link is overloaded, the age of its backlog grows by a second for each second of missed work,
and shrinks again with spare time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headwater.adapt.model import Facts, HostKey, Predicted, host_of, predict, rows_of
from headwater.core.metrics import (
    ChannelProgress,
    HostProgress,
    Latency,
    LinkProgress,
    OperatorProgress,
    Progress,
    UnitProgress,
)
from headwater.dataflow.sources import Source
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.profile import Known

_FULL = 0.98
_CALM = 0.75
"""The utilization passed to ``predict`` for an overloaded host or link."""


@dataclass
class ModelledWorld:
    """A running plan in a world that the caller changes: ``facts`` are the true costs and rates.

    ``go`` advances ``seconds``; ``rates`` are those of ``facts.profile``.
    """

    plan: DeploymentPlan
    facts: Facts
    now: float = 0.0
    paused: float = 0.0
    """Seconds for which units still pause for a change of the plan."""
    _counts: dict[tuple[str, ...], float] = field(default_factory=dict)
    _waits: dict[str, float] = field(default_factory=dict)
    """Age of the backlog beyond the usual, of units and links by name."""
    _runs: int = 0

    def change(self, plan: DeploymentPlan, *, pause: float = 3.0) -> None:
        """Replace the plan; no rows are lost, and all units pause meanwhile."""
        waited = max(self._waits.values(), default=0.0)
        self.plan, self.paused = plan, pause
        self._runs += 1
        self._waits = {u.id: waited for u in plan.units[:1]}

    def set_rates(self, rates: Mapping[str, Mapping[str, float]]) -> None:
        """Change the rates of sources."""
        profile = self.facts.profile.model_copy(update={"rates": rates})
        self.facts = replace(self.facts, profile=profile)

    @property
    def latency(self) -> float:
        """Return the present 95th percentile of the latency from source to sink, in seconds."""
        return self._predicted().p95 + sum(self._waits.values())

    def go(self, seconds: float) -> None:
        """Advance the time."""
        self.now += seconds
        found, still = self._predicted(), min(seconds, self.paused)
        self.paused -= still
        self._grow(seconds, still)
        goes = seconds - still
        taken, channels = rows_of(self.plan, Known(self.plan.dataflow, self.facts.profile))
        for unit in self.plan.units:
            own = found.units[unit.id]
            for name in unit.operators:
                rows = taken[unit.id, name] * goes
                self._add(rows, unit.id, "in", name)
                share = 1.0 if isinstance(self.plan.dataflow[name], Source) else self._selectivity(name)
                self._add(rows * share, unit.id, "out", name)
            self._add(own.rows_in * goes, unit.id, "rows in")
            self._add(goes / own.period, unit.id, "batches")
            self._add(goes * min(1.0, own.batch_s / own.period), unit.id, "busy")
            self._add(goes * own.cpu, unit.id, "cpu")
        for channel in self.plan.channels:
            rows = channels[channel.id] * goes
            size = Known(self.plan.dataflow, self.facts.profile).bytes_out(channel.operator)
            self._add(rows, channel.id, "rows")
            self._add(rows * size, channel.id, "bytes")
            for link in channel.links:
                self._add(rows * size, link, "bytes")
        for key in self._hosts():
            used = sum(found.units[u.id].cpu for u in self.plan.units if self._host(u) == key)
            most = self.facts.cores.get(key, 1.0)
            self._add(seconds, *key, "seconds")
            self._add(goes * min(used, most), *key, "cpu")
            self._add(seconds * self.facts.others.get(key, 0.0), *key, "others")

    def progress(self) -> Progress:
        """Return the progress that zones would report now."""
        found = self._predicted()
        return Progress(
            seconds=self.now,
            units=tuple(self._unit(unit, found) for unit in self.plan.units),
            links=tuple(
                LinkProgress(
                    link=link.name,
                    bytes=int(self._count(link.name, "bytes")),
                    up=True,
                    since_s=self.now,
                    delay_s=self.facts.delay.get(link.name, link.latency),
                    capacity=self.facts.capacity.get(link.name),
                )
                for link in self.plan.continuum.links
            ),
            channels=tuple(
                ChannelProgress(
                    channel=c.id,
                    rows=int(self._count(c.id, "rows")),
                    bytes=int(self._count(c.id, "bytes")),
                )
                for c in self.plan.channels
            ),
            hosts=tuple(
                HostProgress(
                    host=name,
                    zone=zone,
                    cores=self.facts.cores.get((zone, name), 1.0),
                    seconds=self._count(zone, name, "seconds"),
                    cpu_s=self._count(zone, name, "cpu"),
                    others_s=self._count(zone, name, "others"),
                )
                for zone, name in self._hosts()
            ),
        )

    # ------------------------------------------------------------ overload

    def _predicted(self) -> Predicted:
        """Predict at the capacity of hosts and links: the excess waits."""
        found = predict(self.plan, self.facts)
        full = max([*found.load.values(), *self._shares(found).values()], default=0.0)
        if math.isfinite(found.p95) and full < _FULL:
            return found
        rates = {
            source: {place: rate * _CALM / max(full, _FULL) for place, rate in own.items()}
            for source, own in self.facts.profile.rates.items()
        }
        calm = self.facts.profile.model_copy(update={"rates": rates})
        slower = predict(self.plan, replace(self.facts, profile=calm))
        return slower if math.isfinite(slower.p95) else replace(slower, p50=1e3, p95=1e3)

    def _shares(self, found: Predicted) -> dict[str, float]:
        """Return the demanded utilization of each link."""
        shares = {}
        for link in self.plan.continuum.links:
            declared = math.inf if link.bandwidth is None else link.bandwidth / 8
            shares[link.name] = found.links.get(link.name, 0.0) / self.facts.capacity.get(link.name, declared)
        return shares

    def _grow(self, seconds: float, still: float) -> None:
        """Age the backlog of overloaded hosts and links, and reduce it elsewhere."""
        found = predict(self.plan, self.facts)
        asked = {u.id: found.load[self._host(u)] for u in self.plan.units} | self._shares(found)
        for name, share in asked.items():
            waits = self._waits.get(name, 0.0) + (seconds - still) * (1 - _FULL / max(share, 1e-3))
            self._waits[name] = max(0.0, waits)
        first = self.plan.units[0].id
        self._waits[first] = self._waits.get(first, 0.0) + still

    # ------------------------------------------------------------ counters

    def _unit(self, unit: Unit, found: Predicted) -> UnitProgress:
        p50, p95 = found.reaches[unit.id]
        waits = sum(self._waits.values())
        own = found.units[unit.id]
        return UnitProgress(
            unit=unit.id,
            zone=unit.zone,
            layer=unit.layer,
            status="running",
            rows_in=int(self._count(unit.id, "rows in")),
            batch=int(self._count(unit.id, "batches")),
            run=str(self._runs),
            operators=tuple(
                OperatorProgress(
                    operator=name,
                    rows_in=int(self._count(unit.id, "in", name)),
                    rows_out=int(self._count(unit.id, "out", name)),
                )
                for name in unit.operators
            ),
            batches=int(self._count(unit.id, "batches")),
            busy_s=self._count(unit.id, "busy"),
            cpu_s=self._count(unit.id, "cpu"),
            latency=Latency(p50=p50 + waits, p95=p95 + waits, rows=int(own.rows_in) + 1, over_s=10.0),
            oldest_s=own.period + self._waits.get(unit.id, 0.0),
        )

    def _add(self, amount: float, *name: str) -> None:
        self._counts[name] = self._count(*name) + amount

    def _count(self, *name: str) -> float:
        return self._counts.get(name, 0.0)

    def _selectivity(self, name: str) -> float:
        found = self.facts.profile.operators.get(name)
        return 1.0 if found is None else found.selectivity

    def _host(self, unit: Unit) -> HostKey:
        host = host_of(self.plan, unit)
        return host.zone, host.name

    def _hosts(self) -> list[HostKey]:
        """Return the hosts of all zones that could run units, idle ones included."""
        return [(z.name, z.hosts[0].name) for z in self.plan.continuum.zones if z.hosts]
