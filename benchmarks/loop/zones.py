"""An edge and a cloud in namespaces of their own, each with one core, and a link that can be made narrow."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from benchmarks.netlab import Lab
from headwater.agent.agents import running_agent
from headwater.app import observe
from headwater.channels.credential import TOKEN_ENV
from headwater.continuum.model import Continuum
from headwater.core.address import PLAIN, Address
from headwater.core.errors import RuntimeFailure
from headwater.spark.endpoint import end_stale, find_java

EDGE, CLOUD = "kerb", "cloud"
CORES = {EDGE: 0, CLOUD: 1}  # the core of each zone's processes
WIDE, NARROW = 100e6, 1e6  # bits/s
_PORT = 7400
_HEAP = "700m"
_TRIGGER = "1 second"
_PATIENCE = 300.0
# Half of a core, in short turns.
_JOB = """
import time
while True:
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        pass
    time.sleep(0.02)
"""


def continuum(addresses: dict[str, str]) -> Continuum:
    """Return the two zones; without addresses, for planning alone."""
    at = {zone: f", at: '{address}'" for zone, address in addresses.items()}
    return Continuum.from_text(f"""
name: loop
layers: [edge, cloud]
zones:
  {CLOUD}: {{layer: cloud, hosts: {{vm: {{n_cpu: 1, memory: 2GiB}}}}{at.get(CLOUD, "")}}}
  {EDGE}:
    layer: edge
    parent: {CLOUD}
    locations: [nyc]
    link: {{bandwidth: 100Mbit/s, latency: 1ms}}
    hosts: {{pi: {{n_cpu: 1, memory: 2GiB}}}}
    {at.get(EDGE, "")[2:]}
""")


class Zones:
    """Agents of both zones and a controller, until ``end``; ``place`` holds the disks of all.

    ``pinned``: each zone has a core of its own, and no other.
    """

    def __init__(self, lab: Lab, place: Path, *, pinned: bool = True) -> None:
        self.lab, self.place, self._pinned = lab, place, pinned
        self.store = str(place / "store.db")
        self.addresses = {zone: f"{PLAIN}{lab.address(zone)}:{_PORT}" for zone in CORES}
        self._token = secrets.token_urlsafe(24)
        self._job: subprocess.Popen[Any] | None = None
        self._started: list[subprocess.Popen[Any]] = []
        self.widen()

    def begin(self) -> None:
        """Start agents and controller."""
        for zone, address in self.addresses.items():
            words = [
                "zone",
                zone,
                "--dir",
                str(self._agent(zone)),
                "--listen",
                Address.parse(address).place,
                "--insecure",
                "--allow-read",
                "*",
                "--allow-write",
                "*",
                "--allow-connect",
                "*",
            ]
            words += ["--memory", _HEAP, "--trigger", _TRIGGER, "--state-store", str(self.place / "state")]
            words += [] if self._pinned else ["--quick"]
            self._start(zone, zone, words)
        deadline = time.monotonic() + _PATIENCE
        while any(running_agent(self._agent(zone)) is None for zone in CORES):
            if time.monotonic() > deadline:
                raise RuntimeFailure("the agents do not come up", where=str(self.place))
            time.sleep(0.1)
        self._start(
            CLOUD,
            "controller",
            ["up", "--listen", "none", "--store", self.store, "--home", str(self.place / "home")],
        )

    def carry_out(self, version: int) -> None:
        """Wait until a version is in force."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            found = observe.status(None, self.store)
            if found and found[0].observed_version >= version:
                change = found[0].change
                if change is None or change.outcome != "done":
                    raise RuntimeFailure(f"the change failed: {change and change.message}")
                return
            if time.monotonic() > deadline:
                raise RuntimeFailure(f"the change does not come to its end: {found}")
            time.sleep(0.1)

    def narrow(self) -> None:
        """Let the link drop to 1 Mbit/s."""
        self.lab.set_link(EDGE, bandwidth=NARROW)

    def widen(self) -> None:
        """Give the link its 100 Mbit/s back."""
        self.lab.set_link(EDGE, bandwidth=WIDE)

    def crowd(self) -> None:
        """Let another job take half of the edge's core."""
        self._job = self._popen(EDGE, "job", [sys.executable, "-c", _JOB])

    def end(self) -> None:
        """End all processes that were started."""
        for process in [p for p in (self._job, *self._started[::-1]) if p is not None]:
            self.lab.end(process)
        for zone in CORES:
            for record in self._agent(zone).glob("spark/*/server.json"):
                end_stale(record.parent)

    def _agent(self, zone: str) -> Path:
        return self.place / zone

    def _start(self, zone: str, name: str, words: list[str]) -> None:
        self._started.append(self._popen(zone, name, [sys.executable, "-m", "headwater", *words]))

    def _popen(self, zone: str, name: str, command: list[str]) -> subprocess.Popen[Any]:
        self.place.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            TOKEN_ENV: self._token,
            "JAVA_HOME": str(find_java()),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        with (self.place / f"{name}.log").open("ab") as log:
            if self._pinned:
                command = ["taskset", "-c", str(CORES[zone]), *command]
            return self.lab.popen(zone, command, env=environment, cwd=self.place, stdout=log, stderr=log)
