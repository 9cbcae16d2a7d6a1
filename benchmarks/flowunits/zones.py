"""The Headwater variant: an agent on the host of every zone, store and controller in the cloud.

Events lie as files on the disks of the edge hosts, written before the clock starts and released by
renaming; results are Parquet files on the cloud's disk. Agents, controller and `apply` are the commands
that users have, so plans, orders and channels all cross the lab's links.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.flowunits.flow import FILE_ROWS, flow
from benchmarks.flowunits.hosts import Hosts
from benchmarks.flowunits.workload import BATCH_ROWS, CLOUD, FLOWUNITS, TRIGGER, Burst, Shape, continuum_text
from benchmarks.netlab import Lab, ProcessorShares
from headwater.agent.agents import running_agent
from headwater.channels.credential import TOKEN_ENV
from headwater.core.address import PLAIN, Address
from headwater.core.errors import RuntimeFailure
from headwater.dataflow.graph import Dataflow
from headwater.spark.endpoint import end_stale

AGENT_PORT = 7400
HEAP_MB = 700
_AGENT_SECONDS = 120.0
_APPLY_SECONDS = 600.0  # seven Sparks one after the other, on two cores
_STOP_SECONDS = 60.0


class Zones:
    """The variant. `place` is a directory that becomes the disks of all hosts, one below it per zone."""

    name = "headwater"

    def __init__(
        self,
        lab: Lab,
        place: Path,
        shares: ProcessorShares | None = None,
        shape: Shape = FLOWUNITS,
        *,
        trigger: str = TRIGGER,
        quick: bool = False,
    ) -> None:
        self.lab, self.place, self.shape = lab, place, shape
        self._spark = ("--memory", f"{HEAP_MB}m", "--trigger", trigger, *(["--quick"] if quick else []))
        self._hosts = Hosts(self.name, lab, place, shares, shape)
        self._token = {TOKEN_ENV: secrets.token_urlsafe(24)}

    @property
    def results(self) -> Path:
        """Return the directory of the dataflow's sink, in the cloud."""
        return self._hosts.directory(CLOUD) / "results"

    @property
    def dataflow(self) -> Dataflow:
        """Return the pipeline; an edge's events are on the disk of its own host."""
        return flow(str(self.place / "{location}" / "events"), str(self.results), batch_rows=BATCH_ROWS)

    @property
    def addresses(self) -> dict[str, str]:
        """Return the addresses of the zones' agents: in clear text, as the traffic of the compared system."""
        return {zone: f"{PLAIN}{self.lab.address(zone)}:{AGENT_PORT}" for zone in self.shape.cores}

    def deploy(self) -> None:
        """Start the agents and the controller, apply the dataflow, wait until all units run."""
        self._start()
        self.results.mkdir(exist_ok=True)
        for edge in self.shape.edges:
            (self._hosts.directory(edge) / "events").mkdir(exist_ok=True)
        self._apply(self.dataflow)

    def _start(self) -> None:
        """Start the agents and the controller."""
        self._hosts.make()
        for zone, address in self.addresses.items():
            argv = [
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
            self._headwater(zone, "agent", [*argv, "--cores", str(self.shape.cores[zone]), *self._spark])
        self._await_agents()
        cloud = self._hosts.directory(CLOUD)
        (cloud / "continuum.yaml").write_text(continuum_text(self.addresses, self.shape))
        argv = ["up", "--listen", "none", *self._store, "--home", str(cloud / "home")]
        self._headwater(CLOUD, "controller", argv)

    def _apply(self, flow: Dataflow) -> None:
        """Apply a dataflow, and wait until all its units run."""
        (self._hosts.directory(CLOUD) / "flow.json").write_text(flow.to_json())
        wanted = ["flow.json", "--continuum", "continuum.yaml", *self._store, "--yes", "--wait"]
        self._hosts.finish(self._headwater(CLOUD, "apply", ["apply", *wanted]), _APPLY_SECONDS)

    def _stop(self, name: str) -> None:
        """Stop a dataflow; the zones' Sparks stay."""
        self._hosts.finish(
            self._headwater(CLOUD, "stop", ["stop", name, *self._store, "--yes", "--wait"]), _APPLY_SECONDS
        )

    @property
    def _store(self) -> list[str]:
        return ["--store", str(self._hosts.directory(CLOUD) / "headwater.db")]

    def prepare(self, burst: Burst) -> None:
        """Write the burst's files beside the directories that are watched."""
        for edge in self.shape.edges:
            first, count = burst.share(edge)
            waiting = self._waiting(edge)
            waiting.mkdir(parents=True, exist_ok=True)
            for low in range(first, first + count, FILE_ROWS):
                values = np.arange(low, min(low + FILE_ROWS, first + count), dtype="int64")
                file = waiting / f"{low:012d}.parquet"
                pq.write_table(pa.table({"i": values}), file)
                os.utime(file, (low, low))  # Spark takes files in this order

    def release(self, burst: Burst) -> None:
        """Rename the files into the directories that the edges read."""
        for edge in self.shape.edges:
            for file in sorted(self._waiting(edge).iterdir()):
                file.rename(self._hosts.directory(edge) / "events" / file.name)

    def check(self) -> None:
        """Raise if a process has ended."""
        self._hosts.check()

    def teardown(self) -> None:
        """End the controller, then the agents with their units, then remaining Sparks."""
        self._hosts.end(["apply-C1", "controller-C1"], patience=_STOP_SECONDS)
        for zone in self.shape.cores:
            for record in self._agent(zone).glob("spark/*/server.json"):
                end_stale(record.parent)

    def _headwater(self, zone: str, name: str, argv: list[str]) -> str:
        command = [sys.executable, "-m", "headwater", *argv]
        self._hosts.start(zone, f"{name}-{zone}", command, env=self._token)
        return f"{name}-{zone}"

    def _await_agents(self) -> None:
        deadline = time.monotonic() + _AGENT_SECONDS
        while missing := [zone for zone in self.shape.cores if running_agent(self._agent(zone)) is None]:
            self.check()
            if time.monotonic() > deadline:
                raise RuntimeFailure(
                    f"no agent came up in {', '.join(missing)} within {_AGENT_SECONDS:.0f} s",
                    where=self.name,
                    hint="keep the logs with --keep DIR",
                )
            time.sleep(0.1)

    def _agent(self, zone: str) -> Path:
        return self._hosts.directory(zone) / "agent"

    def _waiting(self, edge: str) -> Path:
        return self._hosts.directory(edge) / "waiting"
