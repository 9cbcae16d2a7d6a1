"""A Kafka broker on this machine, for trials and tests: one node, no ZooKeeper, loopback only.

Its jars are fetched from Maven by Ivy, which is part of Spark, and kept for the next start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headwater.core.errors import Unavailable
from headwater.disk.ports import free_ports
from headwater.spark.endpoint import find_java
from headwater.spark.home import pyspark_directory

KAFKA = "3.9.1"
LOGGING = ("org.slf4j", "slf4j-nop", "1.7.36")
FETCH_SECONDS = 300.0
START_SECONDS = 60.0
STOP_SECONDS = 20.0


@dataclass
class LocalBroker:
    """A broker process and its address."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        """The clients' ``bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        port: int | None = None,
        memory_mb: int = 384,
        protocol: str = "PLAINTEXT",
        settings: Mapping[str, str] | None = None,
    ) -> LocalBroker:
        """Start a broker over the data in ``directory``, new or existing.

        ``protocol`` is its clients' security protocol, such as SASL_SSL; ``settings`` are Kafka's own.
        Raise Unavailable without Java, without access to Maven, or when it does not come up.
        """
        directory.mkdir(parents=True, exist_ok=True)
        jars = fetch_jars()
        free, controller = free_ports(2)
        port = free if port is None else port
        config = directory / "server.properties"
        properties = {**_properties(directory / "data", port, controller, protocol), **(settings or {})}
        config.touch(0o600)  # settings may hold secrets
        config.write_text("".join(f"{k}={v}\n" for k, v in properties.items()))
        java = [str(find_java() / "bin" / "java"), f"-Xmx{memory_mb}m", "-XX:+UseSerialGC"]
        java += ["-XX:TieredStopAtLevel=1", "-cp", f"{jars}{os.sep}*"]
        log = directory / "broker.log"
        if not (directory / "data" / "meta.properties").exists():
            cluster = uuid.uuid4().hex[:22]
            _run([*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)], 60.0, log)
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*java, "kafka.Kafka", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        broker = cls(directory, port, process)
        broker._wait()
        return broker

    def stop(self) -> None:
        """End the broker; its data stays."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the broker as a power cut would (for tests of recovery)."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.1)
        self.kill()
        raise Unavailable(
            "the Kafka broker did not come up", where=str(self.directory / "broker.log"), hint="read the log"
        )


def fetch_jars() -> Path:
    """Return the directory of Kafka's jars, fetched the first time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwater" / f"kafka-{KAFKA}"
    cache.parent.mkdir(parents=True, exist_ok=True)
    # Two Ivy processes that fetch into the same directory at once fail.
    with (cache.parent / f".{cache.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cache.is_dir():
            _fetch(cache)
    return cache


def _fetch(cache: Path) -> None:
    draft = cache.with_name(f".{cache.name}.{os.getpid()}")
    ivy = next((pyspark_directory() / "jars").glob("ivy-*.jar"))
    java = [str(find_java() / "bin" / "java"), "-jar", str(ivy)]
    kept = [*java, "-cache", str(cache.parent / "ivy"), "-confs", "default", "-types", "jar", "bundle"]
    try:
        for organisation, name, revision in (("org.apache.kafka", "kafka_2.13", KAFKA), LOGGING):
            target = str(draft / "[artifact]-[revision](-[classifier]).[ext]")
            _run([*kept, "-dependency", organisation, name, revision, "-retrieve", target], FETCH_SECONDS)
        draft.rename(cache)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _run(command: list[str], seconds: float, log: Path | None = None) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
        output, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired:
        output, code = f"not done after {seconds:.0f} s", 1
    if log is not None:
        log.write_text(output)
    if code != 0 or "UNRESOLVED DEPENDENCIES" in output:
        raise Unavailable(
            "the Kafka broker could not be prepared:\n" + "\n".join(output.splitlines()[-5:]),
            where="Kafka",
            hint="allow access to Maven's packages once; Ivy's or Maven's settings take a proxy",
        )


def _properties(data: Path, port: int, controller: int, protocol: str) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"{protocol}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"{protocol}://127.0.0.1:{port}",
        "inter.broker.listener.name": protocol,
        "listener.security.protocol.map": f"{protocol}:{protocol},CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        "num.partitions": "1",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
