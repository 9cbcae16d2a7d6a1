"""Units in Spark's real-time mode: no row is lost through kills and stops, and repeated rows are repetitions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.app import deployments
from headwater.app.local import LocalRun
from headwater.connectors.packages import KAFKA
from headwater.continuum.model import Continuum
from headwater.core.errors import DeploymentError
from headwater.core.metrics import UnitProgress
from headwater.dataflow.graph import Dataflow
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build, in_layers
from headwater.spark.broker import LocalBroker
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result
from tests.conftest import endpoint_with
from tests.deployments.controllers import Controller, apply
from tests.deployments.controllers import running as controlled
from tests.deployments.flows import SCHEMA, rows
from tests.deployments.test_handover import wait_until_read
from tests.faults import until
from tests.topics import Topic

CONTINUUM = Continuum.from_text("layers: [edge]\nzones: {E1: {layer: edge, locations: [L1, L2]}}")
PARSED = "from_json(CAST(value AS string), 'id bigint, ts timestamp, k string, v double')"


@pytest.fixture(scope="module")
def topics(broker: LocalBroker) -> LocalBroker:
    return broker


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEndpoint]:
    """Yield a Spark with task slots for the partitions of topics, which the tests kill."""
    with endpoint_with(
        [KAFKA], tmp_path_factory.mktemp("wide"), cores=2, extra_conf={"spark.master": "local[8]"}
    ) as started:
        yield started


def running(flow: Dataflow, place: Path, endpoint: LocalEndpoint) -> LocalRun:
    run = LocalRun(build(flow, CONTINUUM), place, endpoint, UnitSettings(trigger="200 milliseconds"))
    run.start()
    return run


def unit_of(run: LocalRun) -> UnitProgress:
    run.look()
    (unit,) = run.progress().units
    assert unit.error is None, unit.error
    return unit


def written(topic: Topic) -> Counter[str]:
    return Counter(record.value().decode() for record in topic.records())


def expected_of(flow: Dataflow, endpoint: LocalEndpoint) -> list[dict[str, Any]]:
    (found,) = batch_result(endpoint.session(), flow, CONTINUUM).values()
    return list(found.to_pylist())


@pytest.mark.parametrize("kills", [0, pytest.param(2, marks=pytest.mark.long)])
def test_no_row_is_lost_and_malformed_records_go_to_their_topic(
    topics: LocalBroker, wide: LocalEndpoint, tmp_path: Path, kills: int
) -> None:
    """Two locations, each with a topic; the run is stopped, and its Spark killed in a batch, while rows come."""
    made = rows(90, seed=5)
    given = {name: Topic(topics, name=f"rt{kills}-{name}", partitions=1) for name in ("L1", "L2")}
    out = Topic(topics, name=f"rt{kills}-out")
    letters = Topic(topics, name=f"{out.name}.dead-letters", partitions=1)
    builder = hw.flow("quick", locations=list(given))
    read = builder.read.kafka(topics.address, f"rt{kills}-{{location}}", SCHEMA, location_as="location")
    kept = read.where("v IS NULL OR v > 0").select("id", "k", "location", "round(v, 3) AS v")
    kept.write.kafka(out.servers, out.name, key="k", delivery="at_least_once", real_time="5 seconds")
    flow = builder.build()

    def send(first: int, last: int) -> None:
        for name, topic in given.items():
            topic.send_all(made[name][first:last], partitions=1)
            topic.send(f"broken {name} {first}")

    looks: list[UnitProgress] = []

    def has_ended() -> bool:
        looks.append(unit_of(run))
        return looks[-1].rows_in == 42

    send(0, 20)
    run = running(flow, tmp_path / "run", wide)
    try:
        until(lambda: unit_of(run) and len(written(out)) > 10, "the first rows, long before the batch ends")
        # On a busy machine several batches have these rows. The latency is that of the newest one.
        until(has_ended, "the end of the batches of these rows")
        unit, before = looks[-1], looks[-2] if len(looks) > 1 else None
        came, batch = (42, -1) if before is None else (42 - before.rows_in, before.batch)
        assert unit.latency is not None and unit.latency.p95 >= unit.latency.p50 >= 0
        assert unit.latency.rows == came if unit.batch == batch + 1 else 0 < unit.latency.rows <= came
        assert unit.dead_letters == 2
        send(20, 40)
        for _ in range(kills):
            wide.kill()
            wide.restart()
            run = running(flow, tmp_path / "run", wide)
        send(40, 60)
        run.stop()
        run = running(flow, tmp_path / "run", wide)
        send(60, 90)
        run.drain()
    finally:
        run.stop()
    expected = Counter(row["value"] for row in expected_of(flow, wide))
    got = written(out)
    assert expected.keys() == got.keys() and all(got[value] >= count for value, count in expected.items())
    dead = {json.loads(value)["record"] for value in written(letters)}
    assert dead == {f"broken {name} {first}" for name in given for first in (0, 20, 40, 60)}


@pytest.mark.long
def test_the_last_row_of_each_key_is_the_result_of_an_aggregate(
    topics: LocalBroker, wide: LocalEndpoint, tmp_path: Path
) -> None:
    given, out = Topic(topics), Topic(topics, partitions=1)
    builder = hw.flow("counts", locations=["L1"])
    raw = builder.read.kafka(topics.address, given.name, format="raw")
    read = raw.select(f"{PARSED} AS r").select("r.id", "r.ts", "r.k", "r.v").where("ts IS NOT NULL")
    counted = (
        read.with_watermark("ts", "1 hour")
        .group_by(hw.window("ts", "10 seconds"), "k")
        .agg(n="count(*)", most="max(v)")
    )
    shown = counted.select("window.start AS begin", "k", "n", "most")
    shown.write.kafka(
        out.servers, out.name, key="concat(begin, '/', k)", delivery="at_least_once", real_time="5 seconds"
    )
    flow = builder.build()
    made = rows(60, seed=6)["L1"]
    run = running(flow, tmp_path / "run", wide)
    try:
        given.send_all(made[:30])
        until(lambda: unit_of(run) and len(written(out)) > 3, "rows of open windows")
        run.settle()
    except BaseException:
        run.stop()
        raise
    wide.kill()  # and with it the run
    wide.restart()
    given.send_all(made[30:])
    run = running(flow, tmp_path / "run", wide)
    try:
        run.drain()
    finally:
        run.stop()
    latest = {record.key().decode(): record.value().decode() for record in out.records()}
    assert latest == {row["key"]: row["value"] for row in expected_of(flow, wide)}


@pytest.mark.long
def test_a_unit_changes_to_real_time_mode_and_back(topics: LocalBroker, wide: LocalEndpoint, tmp_path: Path) -> None:
    """It goes on behind the records that it has written, and a filter is edited on the way."""
    made = rows(60, seed=8)["L1"]
    given, out = Topic(topics), Topic(topics)

    def flow(least: float, **sink: Any) -> Dataflow:
        builder = hw.flow("changing", locations=["L1"])
        kept = builder.read.kafka(topics.address, given.name, SCHEMA).where(f"v IS NULL OR v > {least}")
        kept.select("id").write.kafka(out.servers, out.name, delivery="at_least_once", **sink)
        return builder.build()

    for n, (least, sink) in enumerate(
        ((0, {}), (0, {"real_time": "5 seconds"}), (1, {"real_time": "5 seconds"}), (0, {}))
    ):
        run = running(flow(least, **sink), tmp_path / "run", wide)
        try:
            given.send_all(made[15 * n : 15 * (n + 1)])
            run.settle()
        finally:
            run.stop()
    expected = {row["id"] for n, row in enumerate(made) if row["v"] is None or row["v"] > (1 if 30 <= n < 45 else 0)}
    assert {json.loads(value)["id"] for value in written(out)} == expected
    assert max(written(out).values()) <= 2


TWO = """
name: two
layers: [edge, cloud]
zones:
  C1: {{layer: cloud, hosts: {{c1: {{n_cpu: 2, memory: 1GiB}}}}, spark: {spark}}}
  E1: {{layer: edge, parent: C1, locations: [L1], hosts: {{e1: {{n_cpu: 1, memory: 1GiB}}}}, spark: {spark}}}
"""
WIDE = Continuum.from_text(TWO.format(spark=f"{{packages: ['{KAFKA}'], conf: {{spark.master: 'local[6]'}}}}"))


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with controlled("moving", tmp_path, seed=4) as started:
        yield started


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_unit_moves_to_another_zone_and_back(topics: LocalBroker, tmp_path: Path, controller: Controller) -> None:
    """Two agents, each with a Spark; the controller is killed at drawn moments of a change."""
    made = rows(80, seed=9)["L1"]
    given, out = Topic(topics), Topic(topics)
    builder = hw.flow("moving", locations=["L1"])
    read = builder.read.kafka(topics.address, given.name, SCHEMA).named("read")
    read.select("id").write.kafka(out.servers, out.name, delivery="at_least_once", real_time="5 seconds")
    flow, store = builder.build(), str(tmp_path / "store.db")
    for number, layer in enumerate(("edge", "cloud", "edge")):
        plan = build(flow, WIDE, in_layers(flow, WIDE, dict.fromkeys(flow.order, layer)))
        controller.carry_out(apply(plan, store), kill=number > 0)
        given.send_all(made[20 * number : 20 * (number + 1)])
        wanted = {row["id"] for row in made[: 20 * (number + 1)]}
        until(lambda wanted=wanted: wanted <= {json.loads(value)["id"] for value in written(out)}, "all rows")
        wait_until_read(tmp_path, plan, 20)
    given.send_all(made[60:])
    controller.carry_out(deployments.stop("moving", store, how="finish"), kill=False)
    assert controller.kills > 0
    assert {json.loads(value)["id"] for value in written(out)} == {row["id"] for row in made}


def test_too_few_task_slots_are_refused(topics: LocalBroker, wide: LocalEndpoint, tmp_path: Path) -> None:
    given, out = Topic(topics, partitions=7), Topic(topics)
    builder = hw.flow("many", locations=["L1"])
    read = builder.read.kafka(topics.address, given.name, SCHEMA)
    read.write.kafka(out.servers, out.name, delivery="at_least_once", real_time="5 seconds")
    with pytest.raises(DeploymentError) as refused:
        running(builder.build(), tmp_path / "run", wide)
    assert "needs 7 task slots" in str(refused.value) and "local[9]" in str(refused.value)
