"""Serve the dashboard as `headwater up` does, with a controller over simulated zones, for the browser tests.

    python -m tests.web.serve DIRECTORY PORT [--idle] [--real]

``--idle``: without a controller. ``--real``: zones with agents and Sparks of their own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headwater.app import deployments
from headwater.cli.signals import stopped_by_signals
from headwater.continuum.model import Link, Node
from headwater.control import tables
from headwater.core.metrics import HostProgress, Latency, LinkProgress, OperatorProgress, Progress, UnitProgress
from headwater.plan.port import TakeStamp
from headwater.testing.nodes import SimulatedNode, SimulatedNodes
from headwater.web.server import serving

RATES = {"edge": 640.0, "site": 212.0, "cloud": 31.0}


class LivelyNodes(SimulatedNodes):
    """Simulated nodes that also report rates: all counts begin with the first report."""

    def __init__(self, place: str, file: Path) -> None:
        super().__init__(file, seen=lambda unit: _lively(unit, self.passed(unit.unit)))
        self._place = place
        self._begun: dict[str, float] = {}
        self._links: dict[str, Link | None] = {}

    def passed(self, what: str) -> float:
        now = time.time()
        return now - self._begun.setdefault(what, now)

    def link(self, zone: str) -> Link | None:
        """Return the link of a zone to its parent, as a plan in force has it."""
        if zone not in self._links:
            for plan in deployments.in_force(self._place).values():
                self._links |= {z.name: z.link for z in plan.continuum.zones}
        return self._links.get(zone)

    def open(self, node: Node, stamps: TakeStamp) -> LivelyNode:
        return LivelyNode(self, node.name, stamps, node)


@dataclass
class LivelyNode(SimulatedNode):
    """A simulated node with hosts and a link."""

    nodes: LivelyNodes
    node: Node

    def _progress(self, units: Sequence[Mapping[str, Any]]) -> Progress:
        passed = self.nodes.passed(self.name)
        found = super()._progress(units)
        runs = sum(u.status == "running" for u in found.units)
        share = 0.3 + sum(map(ord, self.name)) % 7 / 10
        hosts = tuple(
            HostProgress(
                host=h.name,
                zone=self.node.zone,
                cores=2.0,
                seconds=passed,
                cpu_s=passed * share,
                agent_s=passed * 0.02,
                memory=2**31,
                memory_free=2**30,
            )
            for h in self.node.hosts
        )
        links: tuple[LinkProgress, ...] = ()
        link = self.nodes.link(self.node.zone)
        if link is not None and runs:
            capacity = (link.bandwidth or 1e8) / 8
            used = 0.1 + 0.09 * (sum(map(ord, self.name)) % 10)
            links = (
                LinkProgress(
                    link=link.name,
                    bytes=int(passed * capacity * used),
                    rows=int(passed * 100),
                    up=True,
                    delay_s=link.latency,
                    bytes_per_s=capacity * used,
                    capacity=capacity,
                ),
            )
        return replace(found, hosts=hosts, links=links)


def _lively(unit: UnitProgress, passed: float) -> UnitProgress:
    if unit.status != "running":
        return unit
    rate = RATES.get(unit.layer, 100.0) * (1 + sum(map(ord, unit.unit)) % 5 / 10)
    rows = int(rate * passed)
    return replace(
        unit,
        rows_in=rows,
        rows_out=int(rows * 0.6),
        lag=None if unit.layer == "edge" else int(rate / 8),
        batch=int(passed),
        batches=int(passed),
        busy_s=passed * 0.3,
        cpu_s=passed * 0.2,
        run="1",
        began=time.time(),
        operators=(OperatorProgress(operator=unit.unit.split("@")[0], rows_in=rows, rows_out=int(rows * 0.6)),),
        latency=Latency(p50=0.6, p95=0.9 + RATES.get(unit.layer, 0) / 1000, rows=1000, over_s=10.0),
        dead_letters=3 if unit.layer == "edge" else 0,
        state_rows=120 if unit.layer == "site" else 0,
        state_bytes=48_000 if unit.layer == "site" else 0,
        trigger_s=0.5,
    )


def main(directory: Path, port: int, *, idle: bool, real: bool) -> None:
    """Serve until the process is ended."""
    tables.SYNCHRONOUS = "OFF"  # the next test makes all files again after a power cut
    place, stop = str(directory / "store.db"), stopped_by_signals()
    nodes = LivelyNodes(place, directory / "zones.json")
    with serving(place, "127.0.0.1", port, home=directory):
        if idle:
            stop.wait()
        elif real:
            deployments.up(place, home=directory, options=("--quick",), stop=stop)
        else:
            deployments.up(place, home=directory, open_node=nodes.open, stop=stop)


if __name__ == "__main__":
    given = {name: f"--{name}" in sys.argv for name in ("idle", "real")}
    main(Path(sys.argv[1]), int(sys.argv[2]), **given)
