"""Deployments that read Kafka topics: the sinks equal the batch run, also through kills, changes and an outage."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.app import deadletters, deployments
from headwater.app.client import Client, PlanRequest
from headwater.app.local import LocalRun
from headwater.connectors.deadletters import read_dead_letters
from headwater.connectors.packages import KAFKA
from headwater.continuum.model import Continuum
from headwater.core.metrics import Progress
from headwater.dataflow.graph import Dataflow
from headwater.disk.layout import RUN_STORE
from headwater.disk.settings import ChannelSettings, UnitSettings
from headwater.plan.build import annotated, build
from headwater.plan.deployment import Edge
from headwater.plan.model import DeploymentPlan
from headwater.spark.broker import LocalBroker
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import KILL, STOP, batch_result, check_equivalent, compare
from tests.conftest import running_broker
from tests.deployments.controllers import Controller, apply, running
from tests.deployments.flows import SCHEMA, lifted, rows
from tests.deployments.test_broker_restart import restarted
from tests.deployments.test_handover import NAME, _most, wait_until_read, written
from tests.faults import until
from tests.topics import BoundedTopics, Topic

NAMES = {"type": "record", "name": "Name", "fields": [{"name": "k", "type": "string"}]}
TWO = """
name: two
layers: [edge, cloud]
zones:
  C1: {{layer: cloud, hosts: {{c1: {{n_cpu: 2, memory: 1GiB}}}}{spark}}}
  E1: {{layer: edge, parent: C1, locations: [L1], hosts: {{e1: {{n_cpu: 1, memory: 1GiB}}}}{spark}}}
  E2: {{layer: edge, parent: C1, locations: [L2], hosts: {{e2: {{n_cpu: 1, memory: 1GiB}}}}{spark}}}
"""
CONTINUUM = Continuum.from_text(TWO.format(spark=""))
WITH_CONNECTOR = Continuum.from_text(TWO.format(spark=f", spark: {{packages: ['{KAFKA}']}}"))


fastavro = pytest.importorskip("fastavro")


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with running_broker(tmp_path_factory.mktemp("topics")) as broker:
        yield broker


def broken(made: list[Any], seed: int) -> list[Any]:
    """Make some of the rows malformed."""
    drawn = random.Random(seed)
    return [{**row, "v": f"broken {row['id']}"} if drawn.random() < 0.1 else row for row in made]


def malformed(made: list[Any]) -> list[str]:
    return sorted(row["v"] for row in made if "broken" in str(row["v"]))


# ---------------------------------------------------------------- one place


@pytest.mark.parametrize(
    "kills", [pytest.param(n, marks=[pytest.mark.long, pytest.mark.timeout(1500)]) for n in (1, 3)]
)
def test_equals_one_batch_run_through_kills(
    topics: LocalBroker, kafka_endpoint: LocalEndpoint, tmp_path: Path, kills: int
) -> None:
    """A topic of each location, and one that all of them share, in Avro; kills and a stop at drawn steps."""
    drawn = random.Random(41)
    made = rows(120, seed=31)
    given = {name: broken(made[name][:60], 32 + n) for n, name in enumerate(("L1", "L2"))}
    own = {name: Topic(topics, name=f"kills{kills}-{name}") for name in given}
    shared = Topic(topics)
    builder = hw.flow(NAME, locations=list(given))
    read = builder.read.kafka(
        topics.address, f"kills{kills}-{{location}}", SCHEMA, offset_as="at", location_as="location"
    )
    timed = read.where("v IS NOT NULL").with_watermark("ts", "10 seconds").named("timed")
    counted = timed.group_by(hw.window("ts", "10 seconds"), "location", "k").agg(n="count(*)", last="max(at)")
    counted.to_layer("cloud").write.memory("windows")
    timed.drop_duplicates("id", "location").select("id", "at", "location").write.memory("rows")
    avro = {"format": "avro", "avro_schema": json.dumps(NAMES), "layer": "cloud", "partition_as": "p"}
    builder.read.kafka(shared.servers, shared.name, **avro).write.memory("names")
    name = fastavro.parse_schema(NAMES)

    def more_names() -> None:
        values: tuple[list[bytes], list[bytes]] = ([], [])
        for n in range(40):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, name, {"k": f"k{n}"})
            values[n % 2].append(out.getvalue() + (b"!" if n == 7 else b""))
        for partition, found in enumerate(values):
            shared.send(*found, partition=partition)

    steps = drawn.sample(range(5), kills + 1)
    events = {steps[0]: STOP} | dict.fromkeys(steps[1:], KILL)
    source = BoundedTopics(own, given, at=events, before=more_names)
    outcome = check_equivalent(
        builder.build(), CONTINUUM, kafka_endpoint, tmp_path / "run", source=source, max_rows_per_batch=15
    )
    assert outcome.rows["windows"] > 10 and outcome.rows["rows"] > 50 and outcome.rows["names"] == 39 * 6
    letters = list(read_dead_letters(tmp_path / "run"))
    of_names = [x for x in letters if x["source"].startswith(f"kafka:{shared.name}/")]
    assert len(of_names) == 6 and {x["reason"] for x in of_names} == {"1 bytes too many for its schema"}
    letters = [x for x in letters if x not in of_names]
    assert sorted(json.loads(x["record"])["v"] for x in letters) == sorted(
        value for found in given.values() for value in malformed(found)
    )


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_run_waits_for_the_broker_of_its_topic(kafka_endpoint: LocalEndpoint, tmp_path: Path) -> None:
    made = rows(80, seed=33)["L1"]
    with running_broker(tmp_path / "kafka") as broker:
        topic = Topic(broker)
        flow = windows(topic, {"default_api_timeout_ms": "3000", "request_timeout_ms": "2000"})
        plan = build(flow, CONTINUUM, annotated(flow, CONTINUUM))
        run = LocalRun(plan, tmp_path / "run", kafka_endpoint, UnitSettings(trigger="200 milliseconds"))

        def seen() -> Progress:
            run.look()
            return run.progress()

        run.start()
        try:
            topic.send_all(made[: len(made) // 2])
            run.settle()
            broker.kill()
            until(lambda: any("no Kafka broker" in (u.waits or "") for u in seen().units), "the wait")
            assert not seen().failed
            with restarted(broker):
                topic.send_all(made[len(made) // 2 :])
                until(lambda: not any(u.waits for u in seen().units), "the end of the wait")
                run.settle()
                run.drain()
                got = run.sink_rows("out")
                expected = batch_result(kafka_endpoint.session(), flow, CONTINUUM)["out"]
        finally:
            run.stop()
    assert expected.num_rows > 5
    assert not compare(expected, got)


def windows(topic: Topic, options: dict[str, Any]) -> Dataflow:
    builder = hw.flow(NAME, locations=["L1"])
    read = builder.read.kafka(topic.servers, topic.name, SCHEMA, **options).named("read")
    timed = read.with_watermark("ts", "10 seconds")
    timed.group_by(hw.window("ts", "10 seconds"), "k").agg(n="count(*)").write.memory("out")
    return builder.build()


# ---------------------------------------------------------------- changes of a running deployment


def planned(topic: Topic, out: str, first_in_cloud: str, *cuts: Edge) -> DeploymentPlan:
    """Plan a chain from a topic; the cloud runs the last operators of it, from one on."""
    builder = hw.flow(NAME, locations=["L1"])
    settings = {"partition_as": "p", "offset_as": "o", "maxOffsetsPerTrigger": 20}
    read = builder.read.kafka(topic.servers, topic.name, SCHEMA, location_as="location", **settings).named("read")
    timed = read.with_watermark("ts", "10 seconds").where("v IS NOT NULL").named("clean")
    once = timed.drop_duplicates("id", "location").named("once")
    rising = once.scan(
        _most,
        "id bigint, ts timestamp, location string, k string, most double",
        keys=["location", "k"],
        order_by=["ts", "id"],
    ).named("rising")
    by_time = rising.group_by(hw.window("ts", "10 seconds"), "location", "k")
    counted = by_time.agg(n="count(*)", most="max(most)", levels="count(DISTINCT most)").named("counted")
    counted.select("window.start AS begin", "k", "n", "most", "levels").write.parquet(out).named("out")
    return lifted(builder.build(), WITH_CONNECTOR, first_in_cloud, *cuts)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running(NAME, tmp_path, seed=3) as started:
        yield started


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_operators_go_from_unit_to_unit(
    topics: LocalBroker, kafka_endpoint: LocalEndpoint, tmp_path: Path, controller: Controller
) -> None:
    """Fission, fusion and migration, of the source itself too; the controller is killed at drawn moments."""
    topic, out = Topic(topics, partitions=3), str(tmp_path / "out")
    plain = rows(200, seed=34)["L1"]
    given = broken([row for i, row in enumerate(plain) for row in ([row, row] if i % 5 == 0 else [row])], 35)
    changes = [
        planned(topic, out, "once"),
        planned(topic, out, "counted"),  # duplicates and the fold go to the edge
        planned(topic, out, "counted", ("once", "rising")),  # fission of the edge's unit
        planned(topic, out, "counted"),  # fusion
        planned(topic, out, "read"),  # all goes to the cloud, the source with its offsets
        planned(topic, out, "rising"),  # and back
    ]
    store = str(tmp_path / "store.db")
    sent, step = 0, len(given) // (len(changes) + 1)
    for number, change in enumerate(changes):
        controller.carry_out(apply(change, store), kill=number % 2 == 1)
        topic.send_all(given[sent : sent + step], partitions=3)
        sent += step
        wait_until_read(tmp_path, change, sent)
    topic.send_all(given[sent:], partitions=3)
    letter = next(iter(deadletters.dead_letters(NAME, store, home=tmp_path)))
    # With its own event time it would be late, and the batch run knows no late rows.
    new = {"id": 10_000_000, "ts": max(row["ts"] for row in given), "v": 1.5}
    corrected = json.dumps({**json.loads(letter["record"]), **new})
    (done,) = deadletters.replay(NAME, [letter["id"]], store, records={letter["id"]: corrected}, home=tmp_path)
    assert done.outcome == "replayed", done
    assert [r.value().decode() for r in topic.records()].count(corrected) == 1
    controller.carry_out(deployments.stop(NAME, store, how="finish"), kill=False)
    assert controller.kills > 0
    expected = batch_result(kafka_endpoint.session(), changes[0].dataflow, WITH_CONNECTOR)["out"]
    assert expected.num_rows > 20
    assert not compare(expected, written(Path(out)))
    letters = deadletters.dead_letters(NAME, store, home=tmp_path)
    assert sorted(json.loads(x["record"])["v"] for x in letters) == malformed(given)
    assert all(x["source"].startswith(f"kafka:{topic.name}/") for x in letters)


# ---------------------------------------------------------------- edits between two runs


class Runs:
    """Runs of an edited dataflow in one directory, as ``headwater run`` starts them."""

    def __init__(self, directory: Path, endpoint: LocalEndpoint) -> None:
        self.directory, self.endpoint = directory, endpoint

    @contextmanager
    def of(self, flow: Dataflow) -> Iterator[LocalRun]:
        client = Client(str(self.directory / RUN_STORE))
        proposal = client.propose(PlanRequest(continuum=CONTINUUM, dataflow=flow))
        settings = UnitSettings(trigger="100 milliseconds", channel=ChannelSettings(fsync=False))
        run = LocalRun(proposal.plan, self.directory, self.endpoint, settings)
        run.start()
        try:
            yield run
        finally:
            run.stop()


def counted(topic: Topic, *, starting: str = "earliest", least: int = -1) -> Dataflow:
    """Return the running number of a topic's rows; ``least`` changes a filter."""
    builder = hw.flow(NAME, locations=["L1"])
    read = builder.read.kafka(topic.servers, topic.name, "id bigint", starting=starting, offset_as="o").named("read")
    kept = read.where(f"id > {least}").select("id", "o", "'all' AS k").named("kept")
    kept.scan(_counted, "id bigint, n int", keys=["k"], order_by=["o"]).named("numbered").write.memory("out")
    return builder.build()


def _counted(state: int | None, row: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    number = (state or 0) + 1
    return number, {"id": row["id"], "n": number}


@pytest.mark.long
def test_an_edited_dataflow_reads_on(topics: LocalBroker, kafka_endpoint: LocalEndpoint, tmp_path: Path) -> None:
    """Another filter keeps the position; another topic is read from its start; the state stays in both."""
    first, second = Topic(topics, partitions=1), Topic(topics, partitions=1)
    second.send({"id": 7}, {"id": 8})
    runs = Runs(tmp_path / "run", kafka_endpoint)
    with runs.of(counted(first, starting="latest")) as run:
        run.settle()  # it begins here, with the records to come
    first.send({"id": 1}, {"id": 2})
    with runs.of(counted(first, starting="latest", least=0)) as run:
        run.settle()
        assert rows_of(run) == [(1, 1), (2, 2)]
    with runs.of(counted(second)) as run:
        run.settle()
        assert rows_of(run) == [(1, 1), (2, 2), (7, 3), (8, 4)]


def rows_of(run: LocalRun) -> list[tuple[int, int]]:
    return sorted((row["id"], row["n"]) for row in run.sink_rows("out").to_pylist())
