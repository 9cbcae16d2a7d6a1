"""The baseline: one Spark standalone cluster stretched over all zones, as people build it today.

Master, driver and shared file system stand in the cloud zone, a worker on the host of every zone. No
directory is shared: each zone's processes see only the directory of their own zone, so shuffles go from
executor to executor and checkpoints to the file system in the cloud, over the lab's links.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.flowunits.hosts import Hosts
from benchmarks.flowunits.stretched_query import Settings
from benchmarks.flowunits.workload import BATCH_ROWS, CLOUD, FLOWUNITS, TRIGGER, Burst, Shape
from benchmarks.netlab import Lab, ProcessorShares
from headwater.spark.serverconf import CLASS_MEMORY, KEEP_COMPILED, OPTIMIZE_LATER, STREAMING_CONF

# Every zone has a network of its own, so the same ports serve all.
MASTER_PORT, STORAGE_PORT, EVENTS_PORT = 7077, 9870, 7070
EXECUTOR_MB, DRIVER_MB, DAEMON_MB = 512, 768, 96
_READY_SECONDS = 240.0
_HERE = Path(__file__).parent
JAVA_OPTIONS = f"-XX:+UseSerialGC -XX:-UsePerfData {CLASS_MEMORY} {KEEP_COMPILED} {OPTIMIZE_LATER}"
CONF: Mapping[str, str] = {
    **STREAMING_CONF,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.memory": f"{EXECUTOR_MB}m",
    "spark.driver.memory": f"{DRIVER_MB}m",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    # Batches then write only changes and no snapshot: the least traffic to the file system.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.python.daemon.module": "benchmarks.flowunits.python_daemon",
    "spark.sql.catalogImplementation": "in-memory",
}


class Stretched:
    """The variant. `place` is a directory that becomes the disks of all hosts, one below it per zone."""

    name = "stretched"

    def __init__(self, lab: Lab, place: Path, shares: ProcessorShares | None = None, shape: Shape = FLOWUNITS) -> None:
        self.lab, self.shape = lab, shape
        self._hosts = Hosts(self.name, lab, place, shares, shape)
        self._servers: dict[str, subprocess.Popen[Any]] = {}
        self._said: dict[str, queue.Queue[str | None]] = {}

    @property
    def results(self) -> Path:
        """Return the directory of the results, in the cloud."""
        return self._hosts.directory(CLOUD) / "results"

    @property
    def conf(self) -> dict[str, str]:
        """Return Spark's settings."""
        cloud = self.lab.address(CLOUD)
        # An instance of each operator on each core, as a cluster that takes all hosts for near would have.
        partitions = {"spark.sql.shuffle.partitions": str(sum(self.shape.cores.values()))}
        return {**CONF, **partitions, "spark.driver.host": cloud, "spark.driver.bindAddress": cloud}

    def deploy(self) -> None:
        """Start file system, event servers, cluster and query."""
        self._hosts.make()
        self.results.mkdir(exist_ok=True)
        for edge in self.shape.edges:
            argv = [self.lab.address(edge), str(EVENTS_PORT)]
            self._servers[edge] = self._script(edge, "events.py", argv)
        edges = self.shape.edges
        settings = Settings(
            master=self._start_cluster(),
            conf=self.conf,
            executors=len(self.shape.cores),
            servers={edges[edge]: (self.lab.address(edge), EVENTS_PORT) for edge in edges},
            splits=-(-sum(self.shape.cores.values()) // len(edges)),
            batch_rows=BATCH_ROWS,
            trigger=TRIGGER,
            checkpoint=f"webhdfs://{self.lab.address(CLOUD)}:{STORAGE_PORT}/checkpoint",
            results=str(self.results),
        )
        driver = self._start_driver("benchmarks.flowunits.stretched_query", asdict(settings))
        self._await_line("driver", driver, '{"query"')

    def _start_cluster(self) -> str:
        """Start the file system, the master and a worker in each zone; return the master's address."""
        cloud = self.lab.address(CLOUD)
        files = str(self._hosts.directory(CLOUD) / "files")
        self._script(CLOUD, "storage.py", [cloud, str(STORAGE_PORT), files])
        ports = ["--host", cloud, "--port", str(MASTER_PORT), "--webui-port", "0"]
        self._class(CLOUD, "master", "org.apache.spark.deploy.master.Master", ports)
        master = f"spark://{cloud}:{MASTER_PORT}"
        for zone, cores in self.shape.cores.items():
            argv = ["--host", self.lab.address(zone), "--webui-port", "0", "--cores", str(cores)]
            work = str(self._hosts.directory(zone) / "work")
            argv += ["--memory", f"{EXECUTOR_MB}m", "--work-dir", work, master]
            self._class(zone, f"worker-{zone}", "org.apache.spark.deploy.worker.Worker", argv)
        return master

    def _start_driver(self, module: str, settings: Mapping[str, Any]) -> subprocess.Popen[Any]:
        """Start a driver in the cloud, and wait until it has its executors."""
        file = self._hosts.directory(CLOUD) / "settings.json"
        file.write_text(json.dumps(settings))
        argv = [sys.executable, "-m", module, str(file)]
        pipe = subprocess.PIPE
        driver = self._hosts.start(CLOUD, "driver", argv, env=self._spark(CLOUD), stdin=pipe, stdout=pipe)
        self._await_line("driver", driver, '{"executors"')
        return driver

    def prepare(self, burst: Burst) -> None:
        """Do nothing: the servers make events on release."""

    def release(self, burst: Burst) -> None:
        """Tell the event servers, by their input and so past the lab's network."""
        for edge, server in self._servers.items():
            first, count = burst.share(edge)
            assert server.stdin is not None
            server.stdin.write(f"{first} {count}\n")
            server.stdin.flush()

    def check(self) -> None:
        """Raise if a process has ended."""
        self._hosts.check()

    def teardown(self) -> None:
        """End the processes, the driver first."""
        self._hosts.end(["driver"])
        self._servers.clear()
        self._said.clear()

    # ------------------------------------------------------------ processes

    def _class(self, zone: str, name: str, main: str, argv: Sequence[str]) -> None:
        spark = Path(self._spark(zone)["SPARK_HOME"]) / "bin" / "spark-class"
        self._hosts.start(zone, name, [str(spark), main, *argv], env=self._spark(zone))

    def _script(self, zone: str, script: str, argv: Sequence[str]) -> subprocess.Popen[Any]:
        name = f"{Path(script).stem}-{zone}"
        command = [sys.executable, "-I", str(_HERE / script), *argv]
        process = self._hosts.start(zone, name, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._await_line(name, process, "ready")
        return process

    def _spark(self, zone: str) -> dict[str, str]:
        import pyspark

        options = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
        return {
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": self.lab.address(zone),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": f"{DAEMON_MB}m",
            "SPARK_DAEMON_JAVA_OPTS": options,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }

    def _await_line(self, name: str, process: subprocess.Popen[Any], begin: str) -> None:
        """Wait for a line in a process's output."""
        if name not in self._said:
            said = self._said[name] = queue.Queue()
            threading.Thread(target=_listen, args=(process, said), daemon=True).start()
        deadline = time.monotonic() + _READY_SECONDS
        while (rest := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                line = self._said[name].get(timeout=min(rest, 1.0))
                if line is None:
                    break
                if line.startswith(begin):
                    return
            self._hosts.check()  # it may wait for a process that has ended
        raise self._hosts.failure(name, f"{name} did not come up")


def _listen(process: subprocess.Popen[Any], said: queue.Queue[str | None]) -> None:
    """Pass on a process's output, and None at its end."""
    assert process.stdout is not None
    with contextlib.suppress(ValueError):  # closed when the process is ended
        for line in process.stdout:
            said.put(line)
    said.put(None)
