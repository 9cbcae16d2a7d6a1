"""A store, simulated zones and a controller that tests can discard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from headwater.control.controller import Controller
from headwater.control.executor import Executor
from headwater.control.records import DeploymentRecord
from headwater.control.store import Store
from headwater.plan.model import DeploymentPlan
from headwater.testing.nodes import NodeCall, SimulatedNodes
from tests.unit.changes import FIRST, Version

WIDER = replace(FIRST, wider=True, locations=("L1", "L4", "L5"))
"""All kinds of changes at once: another form between zones, one location added, one removed."""


class Killed(BaseException):
    """A stand-in for SIGKILL: no handler catches it."""


class Site:
    """A store, zones, and a controller that tests can discard."""

    def __init__(self, directory: Path, zones: SimulatedNodes | None = None) -> None:
        self.store = Store(directory / "store.db")
        self.zones = zones or SimulatedNodes()
        self.now = 0.0
        self.restart()

    def restart(self) -> None:
        """Create a new controller that knows only the store, after the end of the former controller's lease."""
        if (lease := self.store.lease()) is not None:
            self.store.release(lease.holder)
        self.controller = Controller(
            self.store,
            self.zones.open,
            lease=600,
            patience=30,
            executor=lambda ports: Executor(ports, shortest=1.0, longest=8.0, look=1.0, clock=lambda: self.now),
        )
        assert self.controller.lease.hold()

    def settle(self, limit: int = 400) -> DeploymentRecord:
        """Run the controller until it has nothing left to do; waiting takes no time."""
        for _ in range(limit):
            self.now += self.controller.advance("f")
            record = self.store.deployment("f")
            if record.version == record.observed_version:
                return record
        raise AssertionError(f"still busy: {self.store.deployment('f')}")

    def apply(self, version: Version, **options: Any) -> DeploymentRecord:
        self.store.want("f", "run", version.plan(), **options)
        return self.settle()

    def running(self) -> DeploymentPlan:
        base = self.store.active_plan("f")
        assert base is not None
        return base

    def check(self, record: DeploymentRecord, wanted: Version) -> None:
        """Check that zones and store have exactly the wanted version."""
        assert (record.phase, record.message) == ("running", ""), record
        base = self.running()
        assert base.dataflow == wanted.flow()
        found = self.zones.differences(base, "f")
        assert found == [], (
            found,
            [str(e.step) for c in self.store.changes("f")[-1:] for e in self.store.journal(c.id)],
        )
        unit_statuses = self.store.unit_statuses("f")
        assert {(u.id, u.tag, u.epoch) for u in base.units} == unit_statuses.keys()
        assert all(s.runs and s.sure for s in unit_statuses.values())


def kill_at(zones: SimulatedNodes, moment: str, number: int) -> None:
    """Kill the controller before or after the call of that number."""

    def kill(call: NodeCall) -> None:
        if call.number == number:
            raise Killed

    setattr(zones, moment, kill)
