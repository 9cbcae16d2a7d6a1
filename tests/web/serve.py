"""The server as `headwater up` has it, with a controller over simulated zones, for the browser tests.

    python -m tests.web.serve DIRECTORY PORT [--idle] [--real]

``--idle``: without a controller. ``--real``: zones with agents and Sparks of their own.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from headwater.app import deployments
from headwater.cli.signals import stopped_by_signals
from headwater.continuum.model import Zone
from headwater.control import tables
from headwater.core.metrics import (
    HostProgress,
    Latency,
    LinkProgress,
    OperatorProgress,
    Progress,
    UnitProgress,
)
from headwater.testing.nodes import SimulatedNodes, SimulatedZone
from headwater.web.server import serving

RATES = {"edge": 640.0, "site": 212.0, "cloud": 31.0}


class LivelyZones(SimulatedNodes):
    """Simulated zones that say how fast they are, too: all counts begin when they are first asked for."""

    def passed(self, what: str) -> float:
        now = time.time()
        return now - self.__dict__.setdefault("begun", {}).setdefault(what, now)

    def open(self, zone: Zone) -> LivelyZone:
        return LivelyZone(self, zone.name, zone)


@dataclass
class LivelyZone(SimulatedZone):
    """A simulated zone with hosts and a link."""

    zones: LivelyZones
    zone: Zone

    def progress(self, deployment: str) -> Progress:
        passed = self.zones.passed(self.name)
        found = super().progress(deployment)
        units = tuple(_lively(u, self.zones.passed(u.unit)) for u in found.units)
        runs = sum(u.status == "running" for u in units)
        share = 0.3 + sum(map(ord, self.name)) % 7 / 10
        hosts = tuple(
            HostProgress(
                host=h.name,
                zone=self.name,
                cores=2.0,
                seconds=passed,
                cpu_s=passed * share,
                agent_s=passed * 0.02,
                memory=2**31,
                memory_free=2**30,
            )
            for h in self.zone.hosts
        )
        links: tuple[LinkProgress, ...] = ()
        if self.zone.link is not None and runs:
            capacity = (self.zone.link.bandwidth or 1e8) / 8
            used = 0.1 + 0.09 * (sum(map(ord, self.name)) % 10)
            links = (
                LinkProgress(
                    link=self.zone.link.name,
                    bytes=int(passed * capacity * used),
                    rows=int(passed * 100),
                    up=True,
                    delay_s=self.zone.link.latency,
                    bytes_per_s=capacity * used,
                    capacity=capacity,
                ),
            )
        return replace(found, units=units, hosts=hosts, links=links)


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
    tables.SYNCHRONOUS = "OFF"  # what a power cut would take is made anew by the next test
    place, stop = str(directory / "store.db"), stopped_by_signals()
    zones = LivelyZones(directory / "zones.json")
    with serving(place, "127.0.0.1", port, home=directory):
        if idle:
            stop.wait()
        elif real:
            deployments.up(place, home=directory, options=("--quick",), stop=stop)
        else:
            deployments.up(place, home=directory, open_node=zones.open, stop=stop)


if __name__ == "__main__":
    given = {name: f"--{name}" in sys.argv for name in ("idle", "real")}
    main(Path(sys.argv[1]), int(sys.argv[2]), **given)
