"""The systems of the comparison: how each is deployed over the zones, and how rows get into it.

Events appear as files on the hosts of the edges. Headwater reads them there. For Spark and Flink in the cloud a shipper
on each edge's host sends the files to the cloud's disk; the stretched Spark reads them through a file server on each
edge's host, by the executor on that host where it is free. The stretched Flink (`stretched_flink`) reads them so too,
always on that host.

A system is started once and runs one dataflow after the other.
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
from benchmarks.field.flink_query import Settings as FlinkSettings
from benchmarks.field.spark_query import Order, Settings
from benchmarks.field.workloads import Workload
from benchmarks.flowunits.hosts import Hosts
from benchmarks.flowunits.stretched import JAVA_OPTIONS, STORAGE_PORT, Stretched
from benchmarks.flowunits.workload import CLOUD, Arrivals, Shape
from benchmarks.flowunits.zones import Zones
from benchmarks.netlab import Lab, ProcessorShares
from headwater.spark.serverconf import QUICK_CONF

SHAPE = Shape({"E1": "L1", "E2": "L2"}, {"S1": ("E1", "E2")}, {"E1": 1, "E2": 1, "S1": 1, CLOUD: 2})
TRIGGER_MS = 200  # between two batches, looks at directories, and checkpoints of Flink
# Of every JVM in the quick form, which ends before more would pay; `headwater zone --quick` has the same.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
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
    """A system over the zones."""

    name: str
    arrived: ClassVar[type[Arrived]]

    @property
    def results(self) -> Path:
        """Return the cloud's directory where results of the present dataflow appear as whole files."""

    def deploy(self) -> None:
        """Start the system, without a dataflow; raise if it cannot."""

    def start(self, workload: Workload) -> None:
        """Start a dataflow in place of the present one, and wait until it could take rows; raise if it cannot."""

    def prepare(self, files: Mapping[str, Path]) -> None:
        """Copy a file of each location to its host, hidden."""

    def release(self, files: Mapping[str, Path]) -> None:
        """Let the files of a release appear on the edges' hosts."""

    def check(self) -> None:
        """Raise if a process has ended."""

    def teardown(self) -> None:
        """End everything; it may have been deployed in part only."""


class _Files:
    """Directories of each dataflow: of events on the edges' hosts, of results in the cloud."""

    _hosts: Hosts
    _present = ""  # dataflow

    def _turn_to(self, workload: Workload) -> None:
        self._present = workload.name
        self.results.mkdir(parents=True)
        for edge in SHAPE.edges:
            self.events(edge).mkdir(parents=True)

    @property
    def results(self) -> Path:
        return self._hosts.directory(CLOUD) / "results" / self._present

    def events(self, edge: str) -> Path:
        """Return the directory of the present dataflow's events on an edge's host."""
        return self._hosts.directory(edge) / "events" / self._present

    def prepare(self, files: Mapping[str, Path]) -> None:
        for edge, location in SHAPE.edges.items():
            lay(files[location], self.events(edge))

    def release(self, files: Mapping[str, Path]) -> None:
        for edge, location in SHAPE.edges.items():
            show(files[location].name, self.events(edge))


class Headwater(_Files, Zones):  # type: ignore[misc]
    """An agent and a Spark in each zone."""

    name = "headwater"
    arrived: ClassVar[type[Arrived]] = Arrived

    def __init__(self, lab: Lab, place: Path, shares: ProcessorShares, *, quick: bool) -> None:
        super().__init__(lab, place, shares, SHAPE, trigger=f"{TRIGGER_MS} milliseconds", quick=quick)

    def deploy(self) -> None:
        self._start()

    def start(self, workload: Workload) -> None:
        if self._present:
            self._stop(self._present)
        self._turn_to(workload)
        events = str(self.place / "{location}" / "events" / workload.name)
        self._apply(workload.dataflow(events, str(self.results), list(SHAPE.edges.values())))


class StretchedSpark(_Files, Stretched):  # type: ignore[misc]
    """One Spark: driver and checkpoint in the cloud, an executor in each zone."""

    name = "spark-stretched"
    arrived: ClassVar[type[Arrived]] = Arrived
    executors: ClassVar[int] = len(SHAPE.cores)
    serving: ClassVar[tuple[str, ...]] = ()
    """More arguments of the edges' file servers."""

    def __init__(self, lab: Lab, place: Path, shares: ProcessorShares, *, quick: bool) -> None:
        super().__init__(lab, place, shares, SHAPE)
        self._quick = quick
        self._driver: subprocess.Popen[Any] | None = None

    @property
    def conf(self) -> dict[str, str]:
        if not self._quick:
            return super().conf
        java = f"{JAVA_OPTIONS} {QUICK_JAVA}"
        options = {"spark.executor.extraJavaOptions": java, "spark.driver.extraJavaOptions": java}
        return {**super().conf, **QUICK_CONF, **options}

    def deploy(self) -> None:
        """Start a file server at each edge, the cluster and its driver."""
        self._hosts.make()
        for edge in SHAPE.edges:
            events = str(self._hosts.directory(edge) / "events")
            self._script(edge, "storage.py", [self.lab.address(edge), str(STORAGE_PORT), events, *self.serving])
        self._deploy_driver(self._start_cluster())

    def start(self, workload: Workload) -> None:
        self._turn_to(workload)
        inputs = self._served()
        checkpoint = f"webhdfs://{self.lab.address(CLOUD)}:{STORAGE_PORT}/checkpoint/{workload.name}"
        self._order(asdict(Order(workload.name, inputs, checkpoint, str(self.results))))

    def _served(self) -> dict[str, str]:
        """Return the URI at which each location's file server has the present dataflow's events."""
        served = {
            location: f"webhdfs://{self.lab.address(edge)}:{STORAGE_PORT}" for edge, location in SHAPE.edges.items()
        }
        return {location: f"{server}/{self._present}" for location, server in served.items()}

    def _deploy_driver(self, master: str) -> None:
        settings = Settings(master, self.conf, self.executors, f"{TRIGGER_MS} milliseconds")
        self._driver = self._start_driver("benchmarks.field.spark_query", asdict(settings))

    def _order(self, order: Mapping[str, Any]) -> None:
        """Give the driver a query, and wait until it runs."""
        assert self._driver is not None
        tell(self._driver, json.dumps(order))
        self._await_line("driver", self._driver, '{"query"')


class CloudSpark(StretchedSpark):
    """One Spark in the cloud, to which shippers send the rows of the edges."""

    name = "spark-cloud"
    executors: ClassVar[int] = 0

    def __init__(self, lab: Lab, place: Path, shares: ProcessorShares, *, quick: bool) -> None:
        super().__init__(lab, place, shares, quick=quick)
        self._shippers: dict[str, subprocess.Popen[Any]] = {}

    @property
    def conf(self) -> dict[str, str]:
        return {**super().conf, "spark.sql.shuffle.partitions": str(SHAPE.cores[CLOUD])}

    @property
    def _files(self) -> Path:
        return self._hosts.directory(CLOUD) / "files"

    def deploy(self) -> None:
        """Start the cloud's file system, the shippers and the driver."""
        self._hosts.make()
        cloud = self.lab.address(CLOUD)
        self._script(CLOUD, "storage.py", [cloud, str(STORAGE_PORT), str(self._files)])
        for edge in SHAPE.edges:
            self._shippers[edge] = self._script(edge, str(_HERE / "ship.py"), [cloud, str(STORAGE_PORT)])
        self._deploy_driver(f"local[{SHAPE.cores[CLOUD]}]")

    def start(self, workload: Workload) -> None:
        self._turn_to(workload)
        checkpoint = str(self._hosts.directory(CLOUD) / "checkpoint" / workload.name)
        self._order(asdict(Order(workload.name, self._inputs(), checkpoint, str(self.results))))

    def _inputs(self) -> dict[str, str]:
        """Make and return the present dataflow's directories in the cloud where shipped files appear."""
        found = {location: self._files / self._present / location for location in SHAPE.edges.values()}
        for directory in found.values():
            directory.mkdir(parents=True)
        return {location: str(directory) for location, directory in found.items()}

    def release(self, files: Mapping[str, Path]) -> None:  # type: ignore[override]
        super().release(files)
        for edge, location in SHAPE.edges.items():
            tell(self._shippers[edge], f"{self.events(edge) / files[location].name}\t/{self._present}/{location}")


class Flink(StretchedSpark):
    """What each Flink has: a driver in the cloud in PyFlink's environment."""

    arrived: ClassVar[type[Arrived]] = ArrivedLines

    def __init__(self, lab: Lab, place: Path, shares: ProcessorShares, python: Path, *, quick: bool) -> None:
        super().__init__(lab, place, shares, quick=quick)
        self._python = python

    def _run_driver(self, settings: FlinkSettings, env: Mapping[str, str]) -> None:
        """Start the driver, with an environment on top of its host's, and wait until it takes queries."""
        common = {"execution.checkpointing.interval": f"{TRIGGER_MS} ms", "table.local-time-zone": "UTC"}
        file, pipe = self._hosts.directory(CLOUD) / "settings.json", subprocess.PIPE
        file.write_text(json.dumps({**asdict(settings), "conf": {**common, **settings.conf}}))
        argv = [str(self._python), "-m", "benchmarks.field.flink_query", str(file)]
        java = {"JAVA_TOOL_OPTIONS": f"{self._hosts.environment(CLOUD)['JAVA_TOOL_OPTIONS']} {QUICK_JAVA}"}
        env = {**env, **(java if self._quick else {})}
        self._driver = self._hosts.start(CLOUD, "driver", argv, env=env, stdin=pipe, stdout=pipe)
        self._await_line("driver", self._driver, '{"ready"')

    def _query(self, workload: Workload, inputs: Mapping[str, str], results: str) -> None:
        """Let the driver start the present dataflow, which reads directories and writes one, each given as a URI."""
        self._order({"inputs": inputs, **asdict(workload.flink), "results": results, "poll_ms": TRIGGER_MS})


class CloudFlink(Flink, CloudSpark):
    """One Flink in the cloud, to which shippers send the rows of the edges."""

    name = "flink-cloud"

    def _deploy_driver(self, master: str) -> None:
        checkpoint = f"file://{self._hosts.directory(CLOUD)}/checkpoint"
        conf = {"parallelism.default": "1", "execution.checkpointing.dir": checkpoint}
        self._run_driver(FlinkSettings(conf), {})

    def start(self, workload: Workload) -> None:
        self._turn_to(workload)
        inputs = {location: f"file://{directory}" for location, directory in self._inputs().items()}
        self._query(workload, inputs, f"file://{self.results}")


def tell(process: subprocess.Popen[Any], line: str) -> None:
    """Write a line to a process's input."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
