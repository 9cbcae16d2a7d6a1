"""The one reader of the current state: zones, hosts, units, links, deployments, pools, open decisions.

Terminal, event stream, dashboard, REST and Prometheus read through it, often and cheaply: unchanged rows are read only
once.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, replace

from headwater.app.assembly import DeploymentPart, World, deployment_seen, part_of, pools_seen, status_of
from headwater.app.storecache import KnownDeployment, PlanSummary, Steps, StoreCache, StoreRead
from headwater.app.view import DecisionSeen, DeploymentSeen, Status, View
from headwater.control.notify import ChangeNotifier
from headwater.control.snapshot import Snapshot
from headwater.control.tables import resolved_url
from headwater.core.errors import HeadwaterError

STORES = 8
"""Number of stores in the cache."""
NOTIFY_SECONDS = 0.02
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


@dataclass
class _Memory:
    """Cached data of a store. ``alone``: one thread reads at a time, and the next one finds the result."""

    alone: threading.Lock = field(default_factory=threading.Lock)
    rows: StoreCache = field(default_factory=StoreCache)
    parts: dict[str, DeploymentPart] = field(default_factory=dict)
    deployments: dict[str, tuple[KnownDeployment, Steps, DeploymentSeen]] = field(default_factory=dict)
    """Deployments as they were last seen, with the data that they were made of."""

    def look(self, store: Snapshot) -> View:
        now, lease = time.time(), store.lease()
        read = self.rows.read(store, controlled=lease is not None)
        self.parts = {one.record.name: self._part(one, one.plan) for one in read.known if one.plan is not None}
        self.deployments = {one.record.name: self._deployment(one, read) for one in read.known}
        world = World()
        for part in self.parts.values():
            world.add(part)
        return View(
            at=now,
            store=store.where,
            controller=lease.label if lease else None,
            layers=world.layers,
            zones=world.seen_zones(read.heartbeat),
            links=world.seen_links(),
            deployments=tuple(seen for _, _, seen in self.deployments.values()),
            pools=pools_seen(store.members()),
            decisions=tuple(
                DecisionSeen(**{f.name: getattr(d, f.name) for f in fields(DecisionSeen)}) for d in read.decisions
            ),
        )

    def statuses(self, store: Snapshot, name: str | None = None) -> tuple[Status, ...]:
        lease = store.lease()
        read = self.rows.read(store, name, controlled=lease is not None)
        return tuple(status_of(one, read, lease.label if lease else None) for one in read.known)

    def _part(self, one: KnownDeployment, plan: PlanSummary) -> DeploymentPart:
        """Return a deployment's zones; a part of the same plan, progress and window is taken from the cache."""
        found = self.parts.get(one.record.name)
        if found and found.plan is plan and found.progress is one.progress and found.window is one.seen:
            return found
        return part_of(one.record.name, plan, one.progress, one.seen)

    def _deployment(self, one: KnownDeployment, read: StoreRead) -> tuple[KnownDeployment, Steps, DeploymentSeen]:
        """Return a deployment as it is seen, from the cache where its data is the same."""
        steps = read.steps_of(one)
        found = self.deployments.get(one.record.name)
        if found and found[1] == steps and one.is_like(found[0]):
            return found
        return one, steps, deployment_seen(one, steps)


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
