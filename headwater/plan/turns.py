"""What becomes of units when one plan takes another's place, in the words people use for it. Pure.

A unit *moves* when what it computes goes to another zone, is *split* where several units go on with what one
did in the same zone, and several are *fused* where one goes on with what they did.
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
class Turn:
    """What happens to some units: those ``before``, those ``after`` in their place, and why."""

    kind: Kind
    before: tuple[str, ...]
    after: tuple[str, ...]
    reason: str = ""

    def to_data(self) -> dict[str, Any]:
        """Give it as JSON-able data."""
        return {
            "kind": self.kind,
            "before": list(self.before),
            "after": list(self.after),
            "reason": self.reason,
        }


def turns(diff: PlanDiff) -> tuple[Turn, ...]:
    """Say what becomes of units; those that are only fed anew, or stay, are left out."""
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
            Turn(
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
    """Put units together that have operators in common for a location in common."""
    sides = [(0, unit) for unit in before] + [(1, unit) for unit in after]
    leads = list(range(len(sides)))
    """For each unit one that it belongs to; the last of a group belongs to itself."""

    def last(n: int) -> int:
        while leads[n] != n:
            leads[n] = leads[leads[n]]
            n = leads[n]
        return n

    seen: dict[tuple[str, str], int] = {}
    for n, (_, unit) in enumerate(sides):
        for place in ((o, x) for o in unit.operators for x in unit.locations):
            leads[last(seen.get(place, n))] = n
            seen[place] = n
    groups: dict[int, tuple[list[Unit], list[Unit]]] = {}
    for n, (side, unit) in enumerate(sides):
        groups.setdefault(last(n), ([], []))[side].append(unit)
    return [groups[n] for n in sorted(groups)]


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
    """Say for each operator and location in which zones it is computed."""
    found: dict[tuple[str, str], set[str]] = {}
    for unit in units:
        for operator in unit.operators:
            for location in unit.locations:
                found.setdefault((operator, location), set()).add(unit.zone)
    return found
