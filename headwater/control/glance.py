"""A store read for one look at everything: few queries for all deployments, and only what is new.

What came before is remembered by whoever looks; here nothing is kept but the open store.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, func, select

from headwater.control import tables as t
from headwater.control.records import ReportRecord, Sample
from headwater.control.sharing import UNDONE
from headwater.control.store import StoreReader
from headwater.metrics import Progress

Key = tuple[str, float]
"""A deployment, and a time in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A dataflow that is in a pool now: ``operators`` are their names in the shared dataflow."""

    pool: str
    name: str
    owner: str
    operators: frozenset[str]


class Glance(StoreReader):
    """A store to look at as a whole."""

    def document(self, plan: str) -> Mapping[str, Any] | None:
        """Give a plan as it is stored, without building it; None where it is gone."""
        row = self._one(select(t.plans.c.document).where(t.plans.c.id == plan))
        return None if row is None else json.loads(row.document)

    def sampled(self, since: float) -> tuple[Key, ...]:
        """Name the samples of all deployments after a time, the oldest first."""
        mine = and_(t.samples.c.deployment == t.deployments.c.name, t.samples.c.at >= since)
        # From the deployments: their samples are found by key, where a search by time reads all there are.
        query = select(t.deployments.c.name, t.samples.c.at).select_from(t.deployments.join(t.samples, mine))
        return tuple(sorted(((name, at) for name, at in self._all(query)), key=lambda key: key[1]))

    def samples_at(self, keys: Collection[Key]) -> dict[Key, Sample]:
        """Read some samples."""
        if not keys:
            return {}
        least = min(at for _, at in keys)
        mine = and_(t.samples.c.deployment == t.deployments.c.name, t.samples.c.at >= least)
        columns = (t.deployments.c.name, t.samples.c.at, t.samples.c.progress)
        query = select(*columns).select_from(t.deployments.join(t.samples, mine))
        wanted, found = set(keys), {}
        for name, at, text in self._all(query):
            if (name, at) in wanted:
                data = {"units": (), "links": (), "channels": (), **json.loads(text)}
                found[name, at] = Sample(at=at, progress=Progress.from_data(data))
        return found

    def heard(self) -> tuple[tuple[str, str, float, str | None], ...]:
        """Give deployment, zone, time and error of what every zone last said."""
        column = t.reports.c
        query = select(column.deployment, column.zone, column.at, column.error)
        return tuple((name, zone, at, error) for name, zone, at, error in self._all(query))

    def report_of(self, name: str, zone: str) -> ReportRecord | None:
        """Give what a zone last said of a deployment."""
        own = and_(t.reports.c.deployment == name, t.reports.c.zone == zone)
        row = self._one(select(t.reports).where(own))
        if row is None:
            return None
        progress = Progress.from_data(json.loads(row.progress)) if row.progress else None
        return ReportRecord(node=zone, at=row.at, progress=progress, error=row.error)

    def steps(self, change: int) -> tuple[int, int]:
        """Count the steps of a change: those done, and all."""
        own = and_(t.journal.c.change == change, t.journal.c.state != "dropped")
        query = select(t.journal.c.state, func.count()).where(own).group_by(t.journal.c.state)
        found = {state: count for state, count in self._all(query)}
        return found.get("done", 0), sum(found.values())

    def members(self) -> tuple[Member, ...]:
        """Give the dataflows that are in pools now, in the order in which they came."""
        column = t.submissions.c
        names = (column.pool, column.name, column.owner, column.ids, column.added, column.removed)
        found = self._all(select(*names).order_by(column.id))
        if not found:
            return ()
        bad = select(t.changes.c.deployment, t.changes.c.version).where(t.changes.c.outcome.in_(UNDONE))
        undone = {(name, version) for name, version in self._all(bad)}
        return tuple(
            Member(
                pool=row.pool,
                name=row.name,
                owner=row.owner,
                operators=frozenset(json.loads(row.ids).values()),
            )
            for row in found
            if (row.pool, row.added) not in undone
            and (row.removed is None or (row.pool, row.removed) in undone)
        )
