"""Agents of one machine that share a Spark: each has its session, and the last one ends it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from headwater.continuum.model import Continuum, Node
from headwater.continuum.sparksettings import SparkSettings
from headwater.query.query import running_query
from headwater.spark.endpoint import Endpoint, LocalEndpoint
from headwater.spark.hosts import Meter
from headwater.spark.shared import SharedEndpoint
from headwater.spark.sparks import Sparks
from tests.patience import PATIENCE

NODES = {
    node.name: node
    for node in Continuum.from_text("""
layers: [edge, cloud]
zones:
  C1: {layer: cloud, hosts: {c1: {n_cpu: 2, memory: 1GiB}}}
  E1: {layer: edge, parent: C1, hosts: {e1: {n_cpu: 1, memory: 1GiB}}}
  E2: {layer: edge, parent: C1, spark: {conf: {spark.test: 1}}, hosts: {e2: {n_cpu: 1, memory: 1GiB}}}
""").nodes
}


class Machine:
    """The Sparks of a machine's agents, below a directory."""

    def __init__(self, place: Path) -> None:
        self.place, self.shared = place, place / "spark"
        self.known: list[Sparks] = []
        self.endpoints: list[Endpoint] = []

    def agent(self, name: str, settings: SparkSettings | None = None) -> tuple[Sparks, Endpoint]:
        node: Node = NODES[name]
        sparks = Sparks(self.place / name, quick=True, settings=settings, shared=self.shared)
        self.known.append(sparks)
        self.endpoints.append(sparks.of(node))
        return sparks, self.endpoints[-1]

    @property
    def runs(self) -> bool:
        return LocalEndpoint.attach(self.shared) is not None


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    try:
        yield made
    finally:
        for sparks in made.known:
            sparks.stop()
        for endpoint in made.endpoints:
            if isinstance(endpoint, SharedEndpoint):
                endpoint.server.stop()  # the process that started a server waits for its end


def query(endpoint: Endpoint, place: Path, name: str) -> StreamingQuery:
    frame = endpoint.session().readStream.name("rate").format("rate").option("rowsPerSecond", 5).load()
    writer = frame.writeStream.format("noop").queryName(name).trigger(processingTime="100 milliseconds")
    return writer.option("checkpointLocation", str(place / name)).start()


def until(fits: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not fits():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_agents_share_one_spark_until_the_last_one_ends(machine: Machine, tmp_path: Path) -> None:
    edge, at_edge = machine.agent("E1")
    _, in_cloud = machine.agent("C1")
    assert isinstance(at_edge, SharedEndpoint) and isinstance(in_cloud, SharedEndpoint)
    assert at_edge.generation == in_cloud.generation and at_edge.processes == in_cloud.processes
    partitions = [e.session().conf.get("spark.sql.shuffle.partitions") for e in (at_edge, in_cloud)]
    assert partitions == ["1", "2"], "by the cores of its host"
    ours, theirs = query(at_edge, tmp_path / "E1", "one"), query(in_cloud, tmp_path / "C1", "one")
    assert ours.id != theirs.id, "names are those of a session"

    # An agent that is killed leaves its queries to its successor.
    _, again = machine.agent("E1")
    found = running_query(again.session(), "one")
    assert again.attached and found is not None and found.runId == ours.runId

    # An agent that ends takes its queries with it, and those of others run on.
    edge.stop()
    assert machine.runs and theirs.isActive
    _, back = machine.agent("E1")
    assert not back.attached and running_query(back.session(), "one") is None

    # Each is charged for its batches only.
    meters = [Meter(NODES[n].host, e) for n, e in (("E1", back), ("C1", in_cloud))]
    for meter in meters:
        meter.look()
    for endpoint in (back, in_cloud):
        endpoint.share(0.0)
    in_cloud.share(3.0)
    assert back.share(1.0) == pytest.approx(0.25) and in_cloud.part == 0.5

    # One that ended by itself is started again by the first who finds out; the other joins.
    os.kill(int(back.generation), signal.SIGKILL)
    until(lambda: not back.alive and not in_cloud.alive, "the server goes on")
    back.restart()
    in_cloud.restart()
    assert back.generation == in_cloud.generation and not in_cloud.attached
    assert in_cloud.session().range(3).count() == 3

    for sparks in machine.known[::-1]:
        sparks.stop()
    assert not machine.runs and not list((machine.shared / "users").iterdir())


@pytest.mark.long
def test_zones_and_agents_with_settings_have_a_spark_of_their_own(machine: Machine) -> None:
    _, shared = machine.agent("C1")
    other, own = machine.agent("E2")
    assert isinstance(own, LocalEndpoint) and own.generation != shared.generation
    other.stop()
    other, own = machine.agent("E1", SparkSettings(conf=(("spark.test.other", "1"),)))
    assert isinstance(own, LocalEndpoint) and own.session().conf.get("spark.test.other") == "1"
