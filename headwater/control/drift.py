"""Repair drift: units of a node that differ from the unit statuses in the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headwater.continuum.model import Node
from headwater.control.ports import Ports
from headwater.control.store import Store
from headwater.plan.port import NodeReport
from headwater.plan.spec import spec_of
from headwater.plan.steps import Incarnation, Plans

Key = tuple[str, str]
"""A continuum and a node of it, by name."""


@dataclass(frozen=True)
class Drift:
    """A node's units differ from the store's; ``holds`` tells whether the store is still unchanged."""

    deployment: str
    key: Key
    report: NodeReport
    holds: Callable[[], bool]


class DriftRepair:
    """Makes the units of a node equal to the unit statuses in the store."""

    def __init__(self, store: Store, ports: Ports) -> None:
        self._store, self._ports = store, ports
        self._gone: set[tuple[str, Incarnation]] = set()
        """Units that their nodes no longer know, already reported as events."""

    def repair(self, drift: Drift) -> None:
        """Stop units that should not run on a node, and restart units that have stopped by themselves.

        A unit that the node no longer knows is reported and not restarted: its state is gone as well.
        """
        name, key = drift.deployment, drift.key
        record = self._store.deployment(name)
        if record.version > record.observed_version:
            return  # the change under way starts from the unit statuses anyway
        unit_statuses = self._store.unit_statuses(name)
        plans = self._store.plans_of(unit_statuses)
        port = self._ports.to(key[0], self._described(plans, key))
        told = drift.report.units.get(name, {})
        for which, wanted in told.items():
            stood = unit_statuses.get(which)
            if wanted == "running" and (stood is None or not stood.runs):
                port.end(name, which[0])
                self._store.tell(
                    name, f"drift: {which[0]} ran on {key[1]} although it was to be stopped; stopped again"
                )
        for which, stood in unit_statuses.items():
            plan = plans[stood.plan]
            if not stood.runs or plan.unit(which[0]).node != key[1] or told.get(which) == "running":
                continue
            if which in told and told[which] != "finished":
                port.start(spec_of(plan, which[0]))
                self._store.tell(name, f"drift: {which[0]} did not run on {key[1]}; started")
            elif which not in told and (name, which) not in self._gone:
                self._gone.add((name, which))
                self._store.tell(name, f"drift: {which[0]} is no longer known on {key[1]}")

    @staticmethod
    def _described(plans: Plans, key: Key) -> Node:
        return next(p.continuum.node(key[1]) for p in plans.values() if p.continuum.name == key[0])
