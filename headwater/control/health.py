"""Compare units after a change with their state before: the gate of a canary. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.core.metrics import Progress, UnitProgress
from headwater.plan.steps import Watch

TOLERATED = 0.001
"""Share of dead letters or late rows that never causes a rollback."""


def broken(watch: Watch, now: Progress) -> str | None:
    """Return why a unit does not run; None when all run. Called repeatedly while a gate is open."""
    units = by_id(now)
    for id_ in watch.units:
        unit = units.get(id_)
        if unit is None:
            return f"{id_} is not there"
        if unit.status == "failed" or unit.error:
            return f"{id_} failed: {unit.error or 'no reason is known'}"
        if unit.status == "stopped":
            return f"{id_} has stopped"
    return None


def worse(watch: Watch, baseline: Progress | None, first: Progress, now: Progress) -> str | None:
    """Return how a unit does worse than before; None when none does. Called when a gate's time is over.

    ``baseline`` is the progress before the change, ``first`` the progress when the gate opened.
    """
    before, opened, units = by_id(baseline), by_id(first), by_id(now)
    for id_ in watch.units:
        unit, start = units[id_], opened.get(id_)
        if unit.status == "starting":
            return f"{id_} is still starting after {watch.seconds:g} s"
        if start is None:
            continue
        if unit.lag and unit.status == "running" and unit.batch <= start.batch:
            return f"{id_} makes no batches, with a lag of {unit.lag} rows"
        for name, field in (("dead letters", "dead_letters"), ("late rows", "late_rows")):
            allowed = max(TOLERATED, watch.factor * _share(before.get(id_), None, field))
            found = _share(unit, start, field)
            if found > allowed:
                return f"{id_} has {found:.2%} {name}, {allowed:.2%} are allowed"
    return None


def by_id(progress: Progress | None) -> Mapping[str, UnitProgress]:
    """Return the units of a progress by id."""
    return {u.unit: u for u in progress.units} if progress else {}


def _share(unit: UnitProgress | None, since: UnitProgress | None, field: str) -> float:
    """Return the share of some rows among all rows read since a moment, or since the start."""
    if unit is None:
        return 0.0
    some, rows = getattr(unit, field), unit.rows_in
    if since is not None:
        some, rows = some - getattr(since, field), rows - since.rows_in
    # Malformed records do not count as rows read, so a batch may hold dead letters only.
    return float(max(0, some) / max(1, rows, some))
