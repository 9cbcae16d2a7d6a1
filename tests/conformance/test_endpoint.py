"""A zone's Spark: found again by another process, or run by another owner."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headwater.connectors.sparksql import expression
from headwater.continuum.model import Continuum
from headwater.continuum.sparksettings import RESERVED, SparkSettings
from headwater.core.errors import ContinuumError, RuntimeFailure, Unavailable
from headwater.disk.ports import free_ports
from headwater.query.query import running_query
from headwater.spark import endpoint as endpoint_module
from headwater.spark.endpoint import PROPERTIES, LocalEndpoint, find_java
from headwater.spark.remote import RemoteEndpoint
from headwater.spark.serverconf import LOCAL_AUTH, QUICK_CONF, SESSION_CONF, STREAMING_CONF
from headwater.spark.sparks import Sparks
from headwater.testing import BoundedSource, check_equivalent
from tests.conftest import CONF
from tests.deployments.flows import CONTINUUM, FLOWS, rows


def test_a_server_is_found_again_with_its_queries(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    spark = endpoint.session()
    frame = spark.readStream.name("rate").format("rate").option("rowsPerSecond", 1).load()
    writer = frame.writeStream.format("noop").queryName("adopted").outputMode("append")
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    again = LocalEndpoint.attach(endpoint.directory)
    assert again is not None and again.attached and again.alive
    query = running_query(again.session(), "adopted")
    assert query is not None and query.isActive
    query.stop()
    assert running_query(again.session(), "adopted") is None
    again.session().client.close()
    assert LocalEndpoint.attach(tmp_path) is None
    assert oct((endpoint.directory / "server.json").stat().st_mode & 0o777) == "0o600"


class _Seen(Exception): ...


def test_all_that_headwater_sets_is_refused_to_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(arguments: list[str], environment: Mapping[str, str], directory: Path, *, own_session: bool) -> None:
        file = directory / PROPERTIES
        assert oct(file.stat().st_mode & 0o777) == "0o600"
        in_file = {line.partition("=")[0] for line in file.read_text().splitlines()}
        keys = in_file | {text.partition("=")[0] for flag, text in pairwise(arguments) if flag == "--conf"}
        own = CONF.keys() | QUICK_CONF.keys() | LOCAL_AUTH.keys()  # those of LOCAL_AUTH are settings of clusters, too
        assert keys >= STREAMING_CONF.keys() | CONF.keys() and keys - own | SESSION_CONF.keys() <= RESERVED.keys()
        raise _Seen

    monkeypatch.setattr(endpoint_module, "_spawn", spawn)
    with pytest.raises(_Seen):
        LocalEndpoint.start(tmp_path, extra_conf=CONF, quick=True)
    assert not (tmp_path / PROPERTIES).exists()


def test_a_session_has_no_classes_of_its_own(endpoint: LocalEndpoint) -> None:
    found = {key: endpoint.session().conf.get(key) for key in SESSION_CONF}
    assert found == SESSION_CONF  # Spark Connect sets others, whatever the server is started with


def test_a_nodes_spark_starts_with_the_settings_of_its_zone_and_its_agent(tmp_path: Path) -> None:
    spark = "{conf: {spark.test.zone: 1, spark.test.both: 1}}"
    (node,) = Continuum.from_text(f"layers: [cloud]\nzones: {{C1: {{layer: cloud, spark: {spark}}}}}").nodes
    odd = '=a:b #c!\\u00e9 \\ "é😀" ${env:HOME}'
    given = SparkSettings((), (("spark.test.agent", "2"), ("spark.test.both", "2"), ("spark.test.odd", odd)))
    sparks = Sparks(tmp_path, cores=1, memory_mb=512, quick=True, settings=given, secrets=("A",))
    try:
        started = sparks.of(node)
        conf = started.session().conf
        assert [conf.get(f"spark.test.{name}") for name in ("zone", "agent", "both")] == ["1", "2", "2"]
        assert conf.get("spark.test.odd") == odd
        assert not (started.directory / PROPERTIES).exists()
        again = Sparks(tmp_path, settings=given, secrets=("A",)).of(node)
        assert again.attached and again.generation == started.generation
        same = node.spark_settings.overridden_by(given)
        assert LocalEndpoint.attach(started.directory, same, ("A",)) is not None
        assert LocalEndpoint.attach(started.directory, same, ("A", "B")) is None, "its environment has other secrets"
        other = replace(given, packages=("a:b:1",))
        assert LocalEndpoint.attach(started.directory, node.spark_settings.overridden_by(other), ("A",)) is None
    finally:
        sparks.stop()


def test_a_server_of_somebody_else(spark_address: str, tmp_path: Path) -> None:
    remote = RemoteEndpoint(spark_address, tmp_path, cores=1)
    assert remote.alive
    spark = remote.session()
    assert spark.range(5).count() == 5
    frame = spark.readStream.name("rate").format("rate").load()
    query = frame.writeStream.format("noop").queryName("stays").outputMode("append")
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    remote.stop()
    back = RemoteEndpoint(spark_address, tmp_path, cores=1)
    found = running_query(back.session(), "stays")
    assert found is not None
    assert back.generation == remote.generation
    found.stop()
    back.stop()
    (tmp_path / "session.json").write_text('{"session": "00000000-0000-0000-0000-000000000000"}')
    other = RemoteEndpoint(spark_address, tmp_path, cores=1)
    assert other.session().range(1).count() == 1
    assert other.generation != remote.generation
    other.stop()
    assert os.environ.get("SPARK_CONNECT_AUTHENTICATE_TOKEN") is None


def test_clients_that_are_made_at_the_same_time_know_their_own_tokens(endpoint: LocalEndpoint) -> None:
    same = replace(endpoint)
    others = [replace(endpoint, token=f"wrong{n}") for n in range(4)]
    all_ = [*others, *[replace(endpoint) for _ in range(4)], *[same] * 4]
    begin = threading.Barrier(len(all_))

    def connected(one: LocalEndpoint) -> SparkSession | None:
        begin.wait(60)
        try:
            return one.session()
        except PySparkException:
            return None

    with ThreadPoolExecutor(len(all_)) as threads:
        made = list(threads.map(connected, all_))
    assert made[:4] == [None] * 4 and None not in made[4:]
    assert len({id(session) for session in made[8:]}) == 1
    for session in {id(s): s for s in made if s is not None}.values():
        assert session.range(3).count() == 3
        session.client.close()


def test_what_keeps_from_a_server(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    with pytest.raises(ContinuumError, match="holds a token"):
        RemoteEndpoint("sc://localhost:1/;token=secret", tmp_path, cores=1)
    with pytest.raises(RuntimeFailure, match="HEADWATER_SECRET_UNSET is not set"):
        RemoteEndpoint("sc://localhost:1/;token_env=HEADWATER_SECRET_UNSET", tmp_path, cores=1).session()
    nobody = RemoteEndpoint("sc://localhost:9/", tmp_path, cores=1)
    assert not nobody.alive
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="no Spark Connect server answers"):
        nobody.session()
    assert time.monotonic() - begun < 60
    wrong = RemoteEndpoint(f"sc://localhost:{endpoint.port}/", tmp_path, cores=1)
    with pytest.raises(Unavailable):  # it accepts only clients that know its token
        wrong.session()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a port for somebody")
def test_nobody_else_is_given_its_port_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(arguments: list[str], environment: Mapping[str, str], directory: Path, *, own_session: bool) -> None:
        lines = (directory / PROPERTIES).read_text().splitlines()
        (word,) = (line for line in lines if line.startswith("spark.connect.grpc.binding.port="))
        address = ("127.0.0.1", int(word.partition("=")[2]))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 10)
        with socket.create_server(address):  # as Spark does
            raise _Seen

    monkeypatch.setattr(endpoint_module, "_spawn", spawn)
    with pytest.raises(_Seen):
        LocalEndpoint.start(tmp_path)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a standalone cluster: a master, and a worker with two cores."""
    import pyspark

    home = Path(pyspark.__file__).parent
    address = f"spark://127.0.0.1:{free_ports(1)[0]}"
    port = address.rpartition(":")[2]
    environment = {**os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(find_java())}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
    of_worker = ["--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / "work"), address]
    processes = []
    try:
        for role, words in (("master", ["--port", port]), ("worker", of_worker)):
            name = f"org.apache.spark.deploy.{role}.{role.capitalize()}"
            command = [str(home / "bin" / "spark-class"), name, "--host", "127.0.0.1", "--webui-port", "0"]
            with (tmp_path / f"{role}.log").open("wb") as log:
                processes.append(subprocess.Popen([*command, *words], env=environment, stdout=log, stderr=log))
        yield address
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


@pytest.mark.long
def test_a_standalone_cluster_of_the_zone(cluster: str, tmp_path: Path) -> None:
    """The sinks equal the batch run where executors outside the server do the work."""
    source = BoundedSource(tmp_path / "in", rows(60, seed=5))
    source.release_all()
    root = str(Path(__file__).parents[2])
    endpoint = LocalEndpoint.start(
        tmp_path / "spark", cores=2, memory_mb=512, master=cluster, quick=True, python_path=(root,)
    )
    try:
        flow = FLOWS["python"](source.path).build()
        check_equivalent(flow, Continuum.from_text(CONTINUUM), endpoint, tmp_path / "run")
        assert list((tmp_path / "work").glob("app-*/*/stderr")), "an executor has worked"
    finally:
        endpoint.stop()


@pytest.mark.parametrize("text", ["'${env:PATH}'", "'${PATH}'", "'${spark.connect.authenticate.token}'"])
def test_a_text_is_no_variable_of_the_environment(endpoint: LocalEndpoint, text: str) -> None:
    row = endpoint.session().range(1).select(expression(text).alias("v")).first()
    assert row is not None and row.v == text.strip("'")
