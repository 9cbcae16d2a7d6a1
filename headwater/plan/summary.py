"""Summary of a change: what happens to each unit, in users' words. Pure.

A unit *moves* if its computation goes to another zone, is *split* if several units continue it in the same zone,
and several units are *fused* if one continues them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headwater.plan.diff import PlanDiff
from headwater.plan.model import DeploymentPlan, Unit

Kind = Literal["start", "stop", "move", "split", "fuse", "change"]
KINDS: tuple[Kind, ...] = ("move", "split", "fuse", "start", "stop", "change")


@dataclass(frozen=True, kw_only=True)
class SummaryLine:
    """What happens to some units: the units ``before``, their replacements ``after``, and the reason."""

    kind: Kind
    before: tuple[str, ...]
    after: tuple[str, ...]
    reason: str = ""


def change_summary(diff: PlanDiff) -> tuple[SummaryLine, ...]:
    """Return the summary lines; units that stay, or only get other inputs, are omitted."""
    reasons = {u.unit: u.reason for u in diff.units}
    actions = {u.unit: u.action for u in diff.units}
    changed = {unit for unit, action in actions.items() if action in ("start", "stop", "replace")}
    before = _changed(diff.running, changed)
    after = _changed(diff.wanted, changed)
    found = []
    for old, new in _groups(before, after):
        kind = _kind(old, new)
        reason = next((r for u in (*new, *old) if (r := reasons.get(u.id, ""))), "")
        found.append(
            SummaryLine(
                kind=kind,
                before=tuple(u.id for u in old),
                after=tuple(u.id for u in new),
                reason=reason,
            )
        )
    return tuple(sorted(found, key=lambda turn: KINDS.index(turn.kind)))


def _changed(plan: DeploymentPlan | None, changed: set[str]) -> list[Unit]:
    return [u for u in plan.units if u.id in changed] if plan is not None else []


def _groups(before: list[Unit], after: list[Unit]) -> Iterable[tuple[list[Unit], list[Unit]]]:
    """Group units that have operators in common for a location in common."""
    import networkx as nx

    units = [*before, *after]
    graph: nx.Graph[Any] = nx.Graph()
    for n, unit in enumerate(units):
        graph.add_node(n)
        graph.add_edges_from((n, (operator, location)) for operator in unit.operators for location in unit.locations)
    groups = [sorted(n for n in part if isinstance(n, int)) for part in nx.connected_components(graph)]
    for numbers in sorted(groups, key=max):
        yield [units[n] for n in numbers if n < len(before)], [units[n] for n in numbers if n >= len(before)]


def _kind(old: list[Unit], new: list[Unit]) -> Kind:
    if not old:
        return "start"
    if not new:
        return "stop"
    here, there = _zones(old), _zones(new)
    if any(here[key] != there[key] for key in here.keys() & there.keys()):
        return "move"
    if len(new) > len(old):
        return "split"
    if len(new) < len(old):
        return "fuse"
    return "change"


def _zones(units: list[Unit]) -> Mapping[tuple[str, str], set[str]]:
    """Return, for each operator and location, the zones in which it is computed."""
    found: dict[tuple[str, str], set[str]] = {}
    for unit in units:
        for operator in unit.operators:
            for location in unit.locations:
                found.setdefault((operator, location), set()).add(unit.zone)
    return found
