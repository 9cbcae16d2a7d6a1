"""The Headwater variant: an agent in every zone, the controller in the cloud. Its deployment is to come.

What it shares with the baseline is done: the events lie as files in the edge hosts' own directories,
written before the clock starts and released by renaming; the dataflow is `flow.flow`; the results are
Parquet files in the cloud. What is left is `deploy` and `teardown`: starting `headwater zone` in each
namespace, and applying the dataflow with the controller in the cloud zone.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.flowunits.flow import FILE_ROWS, flow
from benchmarks.flowunits.workload import BATCH_ROWS, CLOUD, CORES, EDGES, Burst, continuum_text
from benchmarks.netlab import Lab
from headwater.continuum import Continuum
from headwater.dataflow.graph import Dataflow
from headwater.errors import Unavailable

AGENT_PORT = 7400


class Zones:
    """The variant. `place` is a directory that becomes the disks of all hosts, one below it per zone."""

    name = "headwater"

    def __init__(self, lab: Lab, place: Path) -> None:
        self.lab, self.place = lab, place

    @property
    def results(self) -> Path:
        """Return where the dataflow's sink writes, in the cloud."""
        return self.place / CLOUD / "results"

    @property
    def dataflow(self) -> Dataflow:
        """Return the pipeline; an edge's events are in a directory of its own zone."""
        return flow(str(self.place / "{location}" / "events"), str(self.results), batch_rows=BATCH_ROWS)

    @property
    def continuum(self) -> Continuum:
        """Return the zones with the addresses of their agents."""
        return Continuum.from_text(continuum_text(self.addresses))

    @property
    def addresses(self) -> dict[str, str]:
        """Return where each zone's agent listens."""
        return {zone: f"{self.lab.address(zone)}:{AGENT_PORT}" for zone in CORES}

    def deploy(self) -> None:
        """Start the agents and the controller, apply the dataflow, wait until all units run."""
        raise Unavailable(
            "zone agents cannot be deployed by this benchmark yet",
            where="variant headwater",
            hint="run it with --variants stretched",
        )

    def prepare(self, burst: Burst) -> None:
        """Write the burst's files beside the directories that are watched."""
        for edge, location in EDGES.items():
            first, count = burst.share(edge)
            waiting = self._waiting(location)
            waiting.mkdir(parents=True, exist_ok=True)
            for low in range(first, first + count, FILE_ROWS):
                values = np.arange(low, min(low + FILE_ROWS, first + count), dtype="int64")
                file = waiting / f"{low:012d}.parquet"
                pq.write_table(pa.table({"i": values}), file)
                os.utime(file, (low, low))  # Spark takes files in this order

    def release(self, burst: Burst) -> None:
        """Rename the files into the directories that the edges read."""
        for location in EDGES.values():
            for file in sorted(self._waiting(location).iterdir()):
                file.rename(self.place / location / "events" / file.name)

    def check(self) -> None:
        """Raise when a process has ended."""

    def teardown(self) -> None:
        """End the controller and the agents."""

    def _waiting(self, location: str) -> Path:
        return self.place / location / "waiting"
