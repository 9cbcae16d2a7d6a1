"""Terminal output of pools and the costs of their dataflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwater.app.pools import PoolOutline
from headwater.reuse.costs import Account


def pool_view(pool: PoolOutline) -> RenderableType:
    """Draw a pool: a line for each dataflow, and who shares which operators with whom."""
    return Group(_dataflows(pool), Text(""), _common(pool)) if pool.common else _dataflows(pool)


def _common(pool: PoolOutline) -> Table:
    """Draw a line for the operators that the same dataflows share, and a column for each dataflow, by its number."""
    table = Table(title="shared by", title_justify="left", box=None, padding=(0, 1))
    for number, _ in enumerate(pool.dataflows, 1):
        table.add_column(str(number), justify="right")
    table.add_column("operators", overflow="fold")
    for part in pool.common:
        marks = ["●" if one.name in part.dataflows else "·" for one in pool.dataflows]
        table.add_row(*marks, ", ".join(part.operators))
    return table


def _dataflows(pool: PoolOutline) -> Table:
    count = sum(one.operators for one in pool.dataflows)
    table = Table(
        title=f"{pool.pool}: {len(pool.dataflows)} dataflows, {count} operators, {pool.operators} run",
        title_justify="left",
        box=None,
    )
    for name in ("", "dataflow", "owner", "locations", "operators", "shared", "sinks"):
        table.add_column(name, justify="right" if name in ("", "operators", "shared") else "left")
    for number, one in enumerate(pool.dataflows, 1):
        sinks = ", ".join(own if own == shared else f"{own} ({shared})" for own, shared in one.sinks.items())
        locations = ", ".join(one.locations) or "all"
        table.add_row(str(number), one.name, one.owner, locations, str(one.operators), str(one.shared), sinks)
    return table


def costs_view(pool: str, accounts: Sequence[Account]) -> Table:
    """Draw the costs of a pool, dataflow by dataflow and owner by owner."""
    table = Table(title=f"{pool}: cores", title_justify="left", box=None)
    for name in ("dataflow", "owner", "fair share", "alone", "saved"):
        table.add_column(name, justify="left" if name in ("dataflow", "owner") else "right")
    for one in accounts:
        table.add_row(one.name, one.owner, f"{one.shared:.3f}", f"{one.alone:.3f}", f"{one.saved:.0%}")
    for owner, (shared, alone) in by_owner(accounts).items():
        saved = 1 - shared / alone if alone > 0 else 0.0
        table.add_row("all", owner, f"{shared:.3f}", f"{alone:.3f}", f"{saved:.0%}")
    return table


def by_owner(accounts: Sequence[Account]) -> Mapping[str, tuple[float, float]]:
    """Sum fair shares and the costs without sharing, by owner."""
    found: dict[str, tuple[float, float]] = {}
    for one in accounts:
        shared, alone = found.get(one.owner, (0.0, 0.0))
        found[one.owner] = (shared + one.shared, alone + one.alone)
    return found
