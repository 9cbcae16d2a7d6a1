"""The cache of a store's rows: unchanged rows are read only once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headwater.adapt.compliance import Figures, breaks, figures_of, links_into_top, sink_units
from headwater.adapt.slo import SLO
from headwater.adapt.window import Window, window
from headwater.continuum.model import Continuum
from headwater.control.records import OPEN, Change, Decision, DeploymentRecord, ReportRecord, Sample
from headwater.control.snapshot import Key, Snapshot
from headwater.core.errors import Missing
from headwater.core.metrics import Progress, node_of
from headwater.plan.document import continuum_id

RECENT = 12.0
"""Age in seconds up to which a measurement counts as current."""
UNREAD = "no controller reads its reports"
"""Why a node's figures are old where no controller acts on the store."""
PLANS = 5000
"""Number of plans in the cache."""

Steps = tuple[int, int]
"""Steps of a change: done, all."""
Beat = tuple[str, str, float, str | None]
"""Deployment and node, the time of its last report, and why it cannot be reached now."""
_Report = tuple[float, str | None, ReportRecord]
"""A node's last report, with the time and the error of its beat."""


@dataclass(frozen=True)
class PlanSummary:
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
class KnownDeployment:
    """All known data of a deployment."""

    record: DeploymentRecord
    plan: PlanSummary | None
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

    def is_like(self, other: KnownDeployment) -> bool:
        """Return whether it is the same data; plan, progress and window are from the cache where they are unchanged."""
        cached = self.plan is other.plan and self.progress is other.progress and self.seen is other.seen
        return cached and (self.record, self.slo, self.change) == (other.record, other.slo, other.change)


@dataclass(frozen=True)
class StoreRead:
    """Data read together: heartbeats of nodes, steps of changes (done, all), open decisions."""

    heartbeat: tuple[Beat, ...]
    steps: Mapping[int, Steps]
    decisions: tuple[Decision, ...]
    known: list[KnownDeployment] = field(default_factory=list)

    def steps_of(self, one: KnownDeployment) -> Steps:
        """Return the steps of a deployment's last change."""
        return self.steps.get(one.change.id, (0, 0)) if one.change is not None else (0, 0)


@dataclass
class StoreCache:
    """Cached rows of a store, for one thread at a time."""

    plans: OrderedDict[str, PlanSummary] = field(default_factory=OrderedDict)
    continua: dict[str, Continuum] = field(default_factory=dict)
    samples: dict[Key, Sample] = field(default_factory=dict)
    windows: dict[str, tuple[tuple[Key, ...], Window | None]] = field(default_factory=dict)
    reports: dict[str, dict[str, _Report]] = field(default_factory=dict)
    """The last reports that no sample contains, by deployment and node."""

    def read(self, store: Snapshot, name: str | None = None, *, controlled: bool) -> StoreRead:
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
        slos, changes = store.slos(), store.last_changes()
        wanted = [changes[r.name].id for r in records if r.name in changes]
        found = StoreRead(heartbeat, store.steps(wanted), store.decisions(states=OPEN, limit=10_000))
        for record in records:
            own = keys.get(record.name, ())
            found.known.append(
                KnownDeployment(
                    record,
                    self._plan(store, record.active_plan) if record.active_plan else None,
                    self._progress(record.name, own),
                    self._window(record.name, own),
                    slos.get(record.name),
                    changes.get(record.name),
                )
            )
        return found

    def _plan(self, store: Snapshot, id_: str) -> PlanSummary | None:
        if id_ in self.plans:
            self.plans.move_to_end(id_)
            return self.plans[id_]
        try:
            plan = store.plan(id_)
        except Missing:
            return None
        continuum = self.continua.setdefault(continuum_id(plan.continuum), plan.continuum)
        self.plans[id_] = PlanSummary(
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

    def _progress(self, name: str, keys: tuple[Key, ...]) -> Progress:
        """Join the newest data: the last sample, and the last reports of nodes that it lacks."""
        newest = self.samples[keys[-1]].progress if keys else Progress(seconds=0.0)
        there = {node_of(u.unit) for u in newest.units}
        for node, (_, error, report) in self.reports.get(name, {}).items():
            if node not in there and report.progress is not None:
                newest = newest.joined(report.progress if error is None else report.progress.unreachable())
        return newest
