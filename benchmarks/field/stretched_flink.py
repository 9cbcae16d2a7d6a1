"""One Flink over all zones: JobManager and driver in the cloud, a TaskManager in each zone.

No directory is shared. Files of an edge are read through the file server on its host. Checkpoints and results go to the
file server in the cloud, from whatever zone the task is in, so all bytes that leave a zone cross the lab's links.
Flink's sink for files commits exactly once on HDFS only, or on a file system that Hadoop mounts as `viewfs`: here the
mount leads to the file server, where a file appears under its name by renaming, after the checkpoint that has its rows.

`flink_place` says in which zone each task runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pyspark

from benchmarks import flinkenv
from benchmarks.field.flink_place import CORE, RESULTS, files_of
from benchmarks.field.flink_query import Settings
from benchmarks.field.variants import QUICK_JAVA, SHAPE, Flink
from benchmarks.field.workloads import Workload
from benchmarks.flowunits.stretched import JAVA_OPTIONS, STORAGE_PORT
from benchmarks.flowunits.workload import CLOUD

RPC_PORT, REST_PORT = 6123, 8081
JOBMANAGER_MB = 256  # of heap
SLOT_MB = {"heap": 128, "managed": 32}
NETWORK_MB = 16  # of a slot
FRAMEWORK_MB, METASPACE_MB, OVERHEAD_MB = 64, 192, 64  # of a TaskManager
_MOUNT = "field"
_LOGGING = """\
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.name = console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %-5p %c - %m%n
"""


class StretchedFlink(Flink):
    """The variant: as many slots in each zone as cores, one more for each source, and one for single instances."""

    name = "flink-stretched"
    # A look at a directory asks for the host of each file there: a request over the links for each one.
    serving: ClassVar[tuple[str, ...]] = ("2",)

    @property
    def results(self) -> Path:
        return self._hosts.directory(CLOUD) / "files" / "results" / self._present

    def start(self, workload: Workload) -> None:
        self._turn_to(workload)
        self._query(workload, self._served(), f"viewfs://{_MOUNT}/results/{workload.name}")

    def _start_cluster(self) -> str:
        """Start the cloud's file server, the JobManager and the TaskManagers; return the JobManager's address."""
        cloud = self.lab.address(CLOUD)
        self._script(CLOUD, "storage.py", [cloud, str(STORAGE_PORT), str(self._hosts.directory(CLOUD) / "files")])
        main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        self._java(CLOUD, "jobmanager", main, JOBMANAGER_MB, {})
        for zone in SHAPE.cores:
            conf = taskmanager(zone, self.lab.address(zone))
            heap = FRAMEWORK_MB + conf["taskmanager.numberOfTaskSlots"] * SLOT_MB["heap"]
            main = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
            self._java(zone, f"taskmanager-{zone}", main, heap, conf)
        return cloud

    def _deploy_driver(self, master: str) -> None:
        conf = {
            "execution.target": "remote",
            "rest.address": master,
            "rest.port": str(REST_PORT),
            "parallelism.default": str(sum(SHAPE.cores.values())),
            "execution.checkpointing.dir": f"{self._files}/checkpoint",
        }
        self._run_driver(Settings(conf, len(SHAPE.cores), SLOT_MB), {"HADOOP_CLASSPATH": _hadoop()})

    @property
    def _files(self) -> str:
        return f"webhdfs://{self.lab.address(CLOUD)}:{STORAGE_PORT}"

    def _java(self, zone: str, name: str, main: str, heap_mb: int, conf: Mapping[str, str | int]) -> None:
        """Start a process of Flink in a zone."""
        home = flinkenv.home(self._python)
        common = {
            "jobmanager.rpc.address": self.lab.address(CLOUD),
            "jobmanager.rpc.port": RPC_PORT,
            "rest.address": self.lab.address(CLOUD),
            "rest.port": REST_PORT,
            "jobmanager.memory.process.size": "1g",
            f"flink.hadoop.fs.viewfs.mounttable.{_MOUNT}.link./results": f"{self._files}/results",
        }
        place = self._hosts.directory(zone) / name
        place.mkdir()
        lines = (f"{key}: {json.dumps(value)}\n" for key, value in {**common, **conf}.items())
        (place / "config.yaml").write_text("".join(lines))
        (place / "log4j.properties").write_text(_LOGGING)
        options = [f"-Xmx{heap_mb}m", *JAVA_OPTIONS.split(), *(QUICK_JAVA.split() if self._quick else [])]
        logging = f"-Dlog4j.configurationFile=file:{place}/log4j.properties"
        java = str(Path(self._hosts.environment(zone)["JAVA_HOME"]) / "bin" / "java")
        path = f"{home}/lib/*:{_hadoop()}"
        command = [java, *options, logging, *_modules(home), "-cp", path, main, "--configDir", str(place)]
        self._hosts.start(zone, name, command)


def taskmanager(zone: str, address: str) -> dict[str, str | int]:
    """Return the settings of a zone's TaskManager: its slots, their memory, and the resources that groups ask for."""
    resources = {CORE: SHAPE.cores[zone]}
    if zone in SHAPE.edges:
        resources[files_of(SHAPE.edges[zone])] = 1
    if zone == CLOUD:
        resources[RESULTS] = 1
    slots = sum(resources.values())
    memory = {
        "task.heap": slots * SLOT_MB["heap"],
        "task.off-heap": 0,
        "managed": slots * SLOT_MB["managed"],
        "framework.heap": FRAMEWORK_MB,
        "framework.off-heap": FRAMEWORK_MB,
        "jvm-metaspace": METASPACE_MB,
    }
    return {
        "taskmanager.host": address,
        "taskmanager.resource-id": zone,
        "taskmanager.numberOfTaskSlots": slots,
        "taskmanager.cpu.cores": slots,
        **{f"taskmanager.memory.{part}.size": f"{size}m" for part, size in memory.items()},
        **{f"taskmanager.memory.network.{end}": f"{slots * NETWORK_MB}m" for end in ("min", "max")},
        **{f"taskmanager.memory.jvm-overhead.{end}": f"{OVERHEAD_MB}m" for end in ("min", "max")},
        "external-resources": ";".join(resources),
        **{f"external-resource.{name}.amount": amount for name, amount in resources.items()},
    }


def _hadoop() -> str:
    """Return the class path of Hadoop's client, which PySpark has."""
    return ":".join(map(str, sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))))


def _modules(home: Path) -> list[str]:
    """Return the options that open Java's modules to Flink, which its settings name."""
    lines = (home / "conf" / "config.yaml").read_text().splitlines()
    return next(line.split()[1:] for line in lines if line.strip().startswith("all: --add-"))
