"""The deployment whose writes are recorded: two units, a channel, state, a sink of files and one that is read back.

``python -m tests.powercuts.deployment DIRECTORY`` runs it, with a Spark of its own, over input that it writes in time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.dataflow.sinks import MemorySink
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.plan.model import DeploymentPlan
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource
from tests.deployments.flows import SCHEMA, rows

CONTINUUM = Continuum.from_text("""
name: smallest
layers: [edge, site]
zones:
  S1: {layer: site}
  E1: {layer: edge, parent: S1, locations: [L1]}
""")
SETTINGS = UnitSettings(trigger="100 milliseconds")
FILES = 5


class Deployed:
    """The deployment in a directory: its input, outside of the recorded directory, its plan, and the results there."""

    def __init__(self, directory: Path) -> None:
        self.disk = directory / "disk"
        """The recorded directory: all that a run writes."""
        made = rows(60, seed=4)["L1"]
        self.source = BoundedSource(directory / "in", {"L1": made}, rows_per_file=-(-len(made) // FILES))
        self.plan = self._plan()

    @property
    def run(self) -> Path:
        """The directory of the run's own files."""
        return self.disk / "run"

    def _plan(self) -> DeploymentPlan:
        """Clean rows at the edge, write some to files there, and count them in windows at the site."""
        builder = hw.flow("cuts", locations=["L1"])
        clean = builder.read.json(self.source.path, SCHEMA, location_as="location").where("v IS NOT NULL")
        clean.select("id", "k", "v").write.json(str(self.disk / "out"))
        timed = clean.with_watermark("ts", "5 seconds").to_layer("site")
        counts = timed.group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)", best="max_by(id, v)")
        counts.write.memory("counts")
        return build(builder.build(), CONTINUUM)

    def start(self, endpoint: LocalEndpoint) -> LocalRun:
        """Start it, or continue it from its files."""
        found = LocalRun(self.plan, self.run, endpoint, SETTINGS)
        try:
            found.start()
        except BaseException:
            found.stop()
            raise
        return found

    def results(self, deployment: LocalRun) -> Mapping[str, pa.Table]:
        """Return the rows of its sinks."""
        found = {}
        for sink in self.plan.dataflow.sinks:
            if isinstance(sink, MemorySink):
                found[sink.id] = deployment.sink_rows(sink.id)
            else:
                files = sorted((self.disk / "out").glob("*.json"))
                made = [json.loads(line) for file in files for line in file.read_text().splitlines()]
                found[sink.id] = pa.Table.from_pylist(made)
        return found


def main(directory: Path) -> None:
    """Run the deployment to its end."""
    from tests.conftest import start_endpoint

    deployed = Deployed(directory)
    endpoint = start_endpoint(directory / "spark")
    try:
        deployment = deployed.start(endpoint)
        for _ in deployed.source.release():
            deployment.settle()
        deployment.drain()
        deployment.stop()
    finally:
        endpoint.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
