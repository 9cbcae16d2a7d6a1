"""The measured work of a rewritten dataflow, and the share of it that another rewriting saved. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwater.adapt.calibrate import Learned, facts_of
from headwater.adapt.model import row_factors
from headwater.adapt.reoptimise import Saved
from headwater.adapt.window import Window
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.sources import Source
from headwater.plan.model import DeploymentPlan
from headwater.plan.profile import Known

_ALIKE = 1.25
"""Factor up to which a selectivity counts as unchanged."""
_SETTLED = 0.1
"""Share by which a selectivity may differ from the learned one."""
_LITTLE = 0.02
"""Difference up to which it does, however small it is."""


@dataclass(frozen=True, kw_only=True)
class MeasuredWork:
    """Rows/s into each operator and out of all sources, core seconds per row, bytes/s over links, selectivities.

    Operators with state output rows when a window ends, at long intervals: their selectivities, and the bytes of
    streams behind them, are left out.
    """

    rows_per_s: Mapping[str, float]
    source_rows_per_s: float
    cpu_s: Mapping[str, float]
    links_bytes_per_s: float
    selectivity: Mapping[str, float]


def measured_work(plan: DeploymentPlan, learned: Learned, seen: Window) -> MeasuredWork | None:
    """Return the work of a rewritten dataflow in a window; None for one that runs as it was written."""
    if plan.written is None:
        return None
    learned = learned.of(plan)
    factors = row_factors(plan, facts_of(learned, plan, seen))
    known, rows, came = Known(plan.dataflow, learned.profile), dict[str, float](), 0.0
    for unit in plan.units:
        counted = seen.units[unit.id].operators if unit.id in seen.units else {}
        for id_, rates in counted.items():
            if id_ in plan.dataflow and rates.rows_in is not None:
                rows[id_] = rows.get(id_, 0.0) + rates.rows_in
                came += rates.rows_in if isinstance(plan.dataflow[id_], Source) else 0.0
    return MeasuredWork(
        rows_per_s=rows,
        source_rows_per_s=came,
        cpu_s={id_: known.operator(id_).cpu_s * factors.get(id_, 1.0) for id_ in plan.dataflow.order},
        links_bytes_per_s=math.fsum(
            seen.channels[c.id].bytes * len(c.links)
            for c in plan.channels
            if c.id in seen.channels and not _is_behind_state(plan.dataflow, c.operator)
        ),
        selectivity=stateless_selectivities(plan, learned),
    )


def _is_behind_state(flow: Dataflow, id_: str) -> bool:
    todo = [id_]
    while todo:
        operator = flow[todo.pop()]
        if operator.stateful:
            return True
        todo += operator.inputs
    return False


def stateless_selectivities(plan: DeploymentPlan, learned: Learned) -> dict[str, float]:
    """Return the learned selectivities of a plan's operators without state."""
    known = learned.of(plan).profile.operators
    return {id_: own.selectivity for id_, own in known.items() if not plan.dataflow[id_].stateful}


def share_saved(before: Mapping[str, Any], after: MeasuredWork, of: Saved) -> float | None:
    """Return the share of bytes or load per row of the sources that was saved; negative where there is more.

    ``before``: the recorded work before the change; its costs of rows are used for both. None if nothing was counted.
    """
    came, comes = before.get("source_rows_per_s") or 0.0, after.source_rows_per_s
    if not came or not comes:
        return None
    if of == "bytes":
        was, now = before.get("links_bytes_per_s") or 0.0, after.links_bytes_per_s
    else:
        cost: Mapping[str, float] = {**after.cpu_s, **(before.get("cpu_s") or {})}
        was, now = (
            math.fsum(count * cost.get(id_, 0.0) for id_, count in rows.items())
            for rows in (before.get("rows_per_s") or {}, after.rows_per_s)
        )
    return 1 - (now / comes) / (was / came) if was else None


def is_settled(plan: DeploymentPlan, learned: Learned, seen: Window) -> bool:
    """Return whether the selectivities of a window are the learned ones, but for chance; not if no rows came."""
    known = stateless_selectivities(plan, learned)
    counts: dict[str, tuple[float, float]] = {}
    came = False
    for unit in seen.units.values():
        for id_, rates in unit.operators.items():
            came = came or bool(rates.rows_in and id_ in plan.dataflow and isinstance(plan.dataflow[id_], Source))
            if id_ in known and rates.rows_in and rates.rows_out is not None:
                rows_in, rows_out = counts.get(id_, (0.0, 0.0))
                counts[id_] = rows_in + rates.rows_in * seen.seconds, rows_out + rates.rows_out * seen.seconds
    for id_, (rows_in, rows_out) in counts.items():
        share, before = rows_out / rows_in, known[id_]
        chance = 2 * math.sqrt(max(share * (1 - share), 0.0) / rows_in)
        if abs(share - before) > max(_LITTLE, _SETTLED * before, chance):
            return False
    return came


def selectivities_differ(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Return whether an operator's selectivity is markedly another than before."""
    pairs = ((before[id_], now[id_]) for id_ in before if id_ in now)
    return any(max(a, b) > _ALIKE * min(a, b) and abs(a - b) > _LITTLE for a, b in pairs)
