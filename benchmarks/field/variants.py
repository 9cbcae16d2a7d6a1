"""The systems of the comparison: how each is deployed over the zones, and how rows get into it.

Events appear as files on the hosts of the edges. Headwater reads them there. For Spark and Flink in the cloud a shipper
on each edge's host sends the files to the cloud's disk; the stretched Spark reads them from the edges over the network.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.csv as pc

from benchmarks.field.feed import lay, show
from benchmarks.field.spark_query import Settings
from benchmarks.field.workloads import Workload
from benchmarks.flowunits.stretched import STORAGE_PORT, Stretched
from benchmarks.flowunits.workload import CLOUD, Arrivals, Shape
from benchmarks.flowunits.zones import Zones
from benchmarks.netlab import Lab, ProcessorShares
from headwater.dataflow.graph import Dataflow

SHAPE = Shape({"E1": "L1", "E2": "L2"}, {"S1": ("E1", "E2")}, {"E1": 1, "E2": 1, "S1": 1, CLOUD: 2})
TRIGGER_MS = 200  # between two batches, looks at directories, and checkpoints of Flink
_HERE = Path(__file__).parent


class Arrived(Arrivals):
    """Results of Headwater and Spark."""

    def table(self, files: list[Path], schema: pa.Schema) -> pa.Table:
        """Return the rows of some files."""
        import pyarrow.parquet as pq

        tables = [pq.ParquetFile(file).read().select(schema.names).cast(schema) for file in files]
        return pa.concat_tables([schema.empty_table(), *tables])


class ArrivedLines(Arrived):
    """Results of Flink."""

    pattern: ClassVar[str] = "part-*"

    def rows_in(self, file: Path) -> int:
        return file.read_bytes().count(b"\n")

    def table(self, files: list[Path], schema: pa.Schema) -> pa.Table:
        named = pc.ReadOptions(column_names=schema.names)
        types = pc.ConvertOptions(column_types=schema)
        full = [file for file in files if file.stat().st_size]
        tables = [pc.read_csv(file, named, convert_options=types).cast(schema) for file in full]
        return pa.concat_tables([schema.empty_table(), *tables])


class Variant(Protocol):
    """A deployed system."""

    name: str

    @property
    def results(self) -> Path:
        """Return the cloud's directory where results appear as whole files."""

    def deploy(self) -> None:
        """Start everything and wait until it could take rows; raise if it cannot."""

    def prepare(self, files: Mapping[str, Path]) -> None:
        """Copy a file of each location to its host, hidden."""

    def release(self, files: Mapping[str, Path]) -> None:
        """Let the files of a release appear on the edges' hosts."""

    def check(self) -> None:
        """Raise if a process has ended."""

    def teardown(self) -> None:
        """End everything; it may have been deployed in part only."""


class _EventFiles:
    """A variant whose edges read their own files of events."""

    place: Path

    def prepare(self, files: Mapping[str, Path]) -> None:
        for location, file in files.items():
            lay(file, self.place / location / "events")

    def release(self, files: Mapping[str, Path]) -> None:
        for location, file in files.items():
            show(file.name, self.place / location / "events")


class Headwater(_EventFiles, Zones):
    """An agent and a Spark in each zone."""

    name = "headwater"
    arrived: ClassVar[type[Arrived]] = Arrived

    def __init__(self, workload: Workload, lab: Lab, place: Path, shares: ProcessorShares) -> None:
        super().__init__(lab, place, shares, SHAPE, trigger=f"{TRIGGER_MS} milliseconds")
        self._workload = workload

    @property
    def dataflow(self) -> Dataflow:
        """Return the workload's dataflow."""
        events = str(self.place / "{location}" / "events")
        return self._workload.dataflow(events, str(self.results), list(SHAPE.edges.values()))


class StretchedSpark(_EventFiles, Stretched):
    """One Spark: driver and checkpoint in the cloud, an executor in each zone."""

    name = "spark-stretched"
    arrived: ClassVar[type[Arrived]] = Arrived
    executors: ClassVar[int] = len(SHAPE.cores)

    def __init__(self, workload: Workload, lab: Lab, place: Path, shares: ProcessorShares) -> None:
        super().__init__(lab, place, shares, SHAPE)
        self.place, self._workload = place, workload

    @property
    def conf(self) -> dict[str, str]:
        return {**super().conf, "spark.sql.session.timeZone": "UTC"}

    def deploy(self) -> None:
        """Start a file server at each edge, the cluster and the query."""
        self._hosts.make()
        self.results.mkdir(exist_ok=True)
        inputs = {}
        for edge, location in SHAPE.edges.items():
            events = self._hosts.directory(edge) / "events"
            events.mkdir(exist_ok=True)
            address = self.lab.address(edge)
            self._script(edge, "storage.py", [address, str(STORAGE_PORT), str(events)])
            inputs[location] = f"webhdfs://{address}:{STORAGE_PORT}/"
        checkpoint = f"webhdfs://{self.lab.address(CLOUD)}:{STORAGE_PORT}/checkpoint"
        self._start_query(self._start_cluster(), inputs, checkpoint)

    def _start_query(self, master: str, inputs: Mapping[str, str], checkpoint: str) -> None:
        settings = Settings(
            master=master,
            conf=self.conf,
            executors=self.executors,
            workload=self._workload.name,
            inputs=dict(inputs),
            trigger=f"{TRIGGER_MS} milliseconds",
            checkpoint=checkpoint,
            results=str(self.results),
        )
        self._start_driver("benchmarks.field.spark_query", asdict(settings))


class CloudSpark(StretchedSpark):
    """One Spark in the cloud, to which shippers send the rows of the edges."""

    name = "spark-cloud"
    executors: ClassVar[int] = 0

    def __init__(self, workload: Workload, lab: Lab, place: Path, shares: ProcessorShares) -> None:
        super().__init__(workload, lab, place, shares)
        self._shippers: dict[str, subprocess.Popen[Any]] = {}

    @property
    def conf(self) -> dict[str, str]:
        return {**super().conf, "spark.sql.shuffle.partitions": str(SHAPE.cores[CLOUD])}

    def deploy(self) -> None:
        """Start the cloud's file system, the shippers and the query."""
        inputs = self._ship()
        checkpoint = str(self._hosts.directory(CLOUD) / "checkpoint")
        self._start_query(f"local[{SHAPE.cores[CLOUD]}]", inputs, checkpoint)

    def _ship(self) -> dict[str, str]:
        """Start what ships rows; return the directories in the cloud where they appear."""
        self._hosts.make()
        self.results.mkdir(exist_ok=True)
        cloud, files = self.lab.address(CLOUD), self._hosts.directory(CLOUD) / "files"
        self._script(CLOUD, "storage.py", [cloud, str(STORAGE_PORT), str(files)])
        inputs = {}
        for edge, location in SHAPE.edges.items():
            (files / location).mkdir(parents=True)
            inputs[location] = str(files / location)
            argv = [cloud, str(STORAGE_PORT), f"/{location}"]
            self._shippers[edge] = self._script(edge, str(_HERE / "ship.py"), argv)
        return inputs

    def release(self, files: Mapping[str, Path]) -> None:  # type: ignore[override]
        super().release(files)
        for edge, location in SHAPE.edges.items():
            shipper = self._shippers[edge]
            assert shipper.stdin is not None
            shipper.stdin.write(f"{self.place / location / 'events' / files[location].name}\n")
            shipper.stdin.flush()


class CloudFlink(CloudSpark):
    """One Flink in the cloud, to which shippers send the rows of the edges."""

    name = "flink-cloud"
    arrived: ClassVar[type[Arrived]] = ArrivedLines

    def __init__(self, workload: Workload, lab: Lab, place: Path, shares: ProcessorShares, python: Path) -> None:
        super().__init__(workload, lab, place, shares)
        self._python = python

    def deploy(self) -> None:
        """Start the cloud's file system, the shippers and the query."""
        inputs, cloud = self._ship(), self._hosts.directory(CLOUD)
        query = self._workload.flink
        settings = {
            "inputs": inputs,
            "columns": query.columns,
            "time": query.time,
            "result": query.result,
            "select": query.select,
            "results": str(self.results),
            "poll_ms": TRIGGER_MS,
            "conf": {
                "parallelism.default": "1",
                "execution.checkpointing.interval": f"{TRIGGER_MS} ms",
                "execution.checkpointing.dir": f"file://{cloud}/checkpoint",
                "table.local-time-zone": "UTC",
            },
        }
        file = cloud / "settings.json"
        file.write_text(json.dumps(settings))
        argv = [str(self._python), str(_HERE / "flink_query.py"), str(file)]
        driver = self._hosts.start(CLOUD, "driver", argv, env={"PYTHONPATH": ""}, stdout=subprocess.PIPE)
        self._await_line("driver", driver, '{"query"')
