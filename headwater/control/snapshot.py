"""Read a whole store: few queries for all deployments, and only new rows.

The caller keeps the rows; this module keeps only the open store.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import and_, func, select, tuple_

from headwater.control import tables as t
from headwater.control.records import Change, ReportRecord, Sample
from headwater.control.rows import change_of
from headwater.control.sharing import UNDONE
from headwater.control.store import StoreReader
from headwater.core.jsonform import load_json
from headwater.core.metrics import Progress

Key = tuple[str, float]
"""A deployment, and a time in seconds since 1970."""
_KEYS = 400
"""Keys of two values in a query: SQLite once took 999 values at most."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A dataflow of a pool: ``operators`` are their names in the shared dataflow."""

    pool: str
    name: str
    owner: str
    operators: frozenset[str]


class Snapshot(StoreReader):
    """A store to read as a whole."""

    def sampled(self, since: float) -> tuple[Key, ...]:
        """Name the samples of all deployments since a time, the oldest first."""
        mine = and_(t.samples.c.deployment == t.deployments.c.name, t.samples.c.at >= since)
        # Join from the deployments: samples are found by key; a search by time would scan all of them.
        query = select(t.deployments.c.name, t.samples.c.at).select_from(t.deployments.join(t.samples, mine))
        return tuple(sorted(((name, at) for name, at in self._all(query)), key=lambda key: key[1]))

    def samples_at(self, keys: Collection[Key]) -> dict[Key, Sample]:
        """Return the samples with these keys."""
        if not keys:
            return {}
        least = min(at for _, at in keys)
        mine = and_(t.samples.c.deployment == t.deployments.c.name, t.samples.c.at >= least)
        columns = (t.deployments.c.name, t.samples.c.at, t.samples.c.progress)
        query = select(*columns).select_from(t.deployments.join(t.samples, mine))
        wanted, found = set(keys), {}
        for name, at, text in self._all(query):
            if (name, at) in wanted:
                found[name, at] = Sample(at=at, progress=load_json(Progress, text, what="a sample"))
        return found

    def heartbeat(self) -> tuple[tuple[str, str, float, str | None], ...]:
        """Return deployment, node, time and error of every node's last report."""
        column = t.reports.c
        query = select(column.deployment, column.zone, column.at, column.error)
        return tuple((name, zone, at, error) for name, zone, at, error in self._all(query))

    def reports_of(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], ReportRecord]:
        """Return the last reports of deployments and nodes, in one query for many of them."""
        column, found = t.reports.c, {}
        for begin in range(0, len(keys), _KEYS):
            mine = tuple_(column.deployment, column.zone).in_(keys[begin : begin + _KEYS])
            for row in self._all(select(t.reports).where(mine)):
                progress = load_json(Progress, row.progress, what="a report") if row.progress else None
                found[row.deployment, row.zone] = ReportRecord(
                    node=row.zone, at=row.at, progress=progress, error=row.error
                )
        return found

    def last_changes(self) -> dict[str, Change]:
        """Return the newest change of each deployment."""
        newest = select(func.max(t.changes.c.id)).group_by(t.changes.c.deployment)
        found = self._all(select(t.changes).where(t.changes.c.id.in_(newest)))
        return {row.deployment: change_of(row) for row in found}

    def steps(self, changes: Collection[int]) -> dict[int, tuple[int, int]]:
        """Count the steps of changes: done, and all."""
        if not changes:
            return {}
        own = and_(t.journal.c.change.in_(changes), t.journal.c.state != "dropped")
        columns = (t.journal.c.change, t.journal.c.state, func.count())
        found: dict[int, tuple[int, int]] = {}
        for change, state, count in self._all(select(*columns).where(own).group_by(*columns[:2])):
            done, all_ = found.get(change, (0, 0))
            found[change] = done + count * (state == "done"), all_ + count
        return found

    def all_decided(self) -> dict[str, dict[str, int]]:
        """Count the decisions of each deployment by state."""
        by = (t.decisions.c.deployment, t.decisions.c.state)
        query = select(*by, func.count()).group_by(*by)
        found: dict[str, dict[str, int]] = {}
        for name, state, count in self._all(query):
            found.setdefault(name, {})[state] = count
        return found

    def members(self) -> tuple[Member, ...]:
        """Return the dataflows of all pools, in order of submission."""
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
            if (row.pool, row.added) not in undone and (row.removed is None or (row.pool, row.removed) in undone)
        )
