"""Fixtures shared by all tests: one real Spark Connect server for the session."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_STREAMING = "spark.sql.streaming"
_CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    f"{_STREAMING}.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
}


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_connect_server(directory: Path, **conf: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a Connect server with two cores; return it and its port."""
    import pyspark

    home = os.path.dirname(pyspark.__file__)
    port = free_port()
    root = str(Path(__file__).resolve().parent.parent)
    env = {
        **os.environ,
        "SPARK_HOME": home,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])),
    }
    command = [f"{home}/bin/spark-submit", "--master", "local[2]", "--driver-memory", "1g"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    settings = {**_CONF, **conf, "spark.connect.grpc.binding.port": str(port)}
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    with open(directory / "server.log", "wb") as log:
        server = subprocess.Popen(
            command, env=env, stdout=log, stderr=subprocess.STDOUT, cwd=directory, start_new_session=True
        )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server, port
        time.sleep(0.2)
    stop_server(server)
    raise RuntimeError("Spark Connect did not start:\n" + (directory / "server.log").read_text()[-3000:])


def stop_server(server: subprocess.Popen[bytes]) -> None:
    """End a server that this test session started, and its Python workers with it."""
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(10)


@pytest.fixture(scope="session")
def connect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the address of the session's Connect server."""
    server, port = start_connect_server(tmp_path_factory.mktemp("spark"))
    try:
        yield f"sc://127.0.0.1:{port}"
    finally:
        stop_server(server)


@pytest.fixture(scope="session")
def spark(connect_url: str) -> Iterator[SparkSession]:
    """Give a session with Headwater's source and sink registered."""
    from pyspark.sql.connect.session import SparkSession

    from headwater.runtime.channels.filelog_spark import FilelogSource
    from headwater.runtime.writer import HeadwaterSink

    session = SparkSession.builder.remote(connect_url).create()
    session.dataSource.register(FilelogSource)
    session.dataSource.register(HeadwaterSink)
    yield session
    session.stop()
