"""Kafka as a sink: a real broker, writers killed in the middle of transactions."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.channels.segments import Segment
from headwater.connectors import kafkawriter
from headwater.connectors.writers import open_sink_writer
from headwater.continuum.model import Continuum
from headwater.core.errors import ChannelError, DeploymentError, RuntimeFailure, Unavailable
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.spark.broker import LocalBroker
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource
from tests.deployments.flows import CONTINUUM, LOCATIONS, rows
from tests.formeroutput import settled

from .killedwriter import write_with_kills

confluent_kafka = pytest.importorskip("confluent_kafka")


def spec(broker: LocalBroker, topic: str, place: Path, **others: Any) -> dict[str, Any]:
    settings = {"bootstrap.servers": broker.address}
    named = {"kind": "kafka", "topic": topic, "id": f"id-{topic}", "operator": "out"}
    return {**named, "path": str(place / "staged"), "settings": settings, **others}


def write(config: dict[str, Any], batch: int, *values: str, epoch: int = 1) -> None:
    """Write a batch as Spark does: a task writes, then the driver commits."""
    sink_writer = open_sink_writer(config, epoch)
    task = sink_writer.open()
    task.write(pa.record_batch({"value": list(values), "key": [f"k{v}" for v in values]}))
    piece = task.close()
    assert isinstance(piece, Segment)
    sink_writer.commit([piece], batch)


def read(broker: LocalBroker, topic: str, *, committed: bool = True) -> list[tuple[str, str]]:
    """Read a topic to its end."""
    level = "read_committed" if committed else "read_uncommitted"
    settings = {"bootstrap.servers": broker.address, "group.id": "reader", "isolation.level": level}
    consumer = confluent_kafka.Consumer({**settings, "enable.partition.eof": "true"})
    found: list[tuple[str, str]] = []
    try:
        start = confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)
        consumer.assign([start])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                return found
            found.append(((message.key() or b"").decode(), message.value().decode()))
    finally:
        consumer.close()
    raise AssertionError("the topic has no end")


def test_a_repeated_batch_is_written_once(broker: LocalBroker, topic: str, tmp_path: Path) -> None:
    config = spec(broker, topic, tmp_path)
    write(config, 0, "a", "b")
    write(config, 0, "a", "b")
    write(config, 3, "c")  # batches without rows do not reach a sink writer
    write(config, 3, "c")
    assert read(broker, topic) == [("ka", "a"), ("kb", "b"), ("kc", "c")]
    assert not list((tmp_path / "staged").iterdir())


def test_a_replaced_writer_repeats_nothing(broker: LocalBroker, topic: str, tmp_path: Path) -> None:
    """The sink writer's id is its checkpoint's: a batch keeps its number in every epoch."""
    config = spec(broker, topic, tmp_path)
    write(config, 4, "a", epoch=1)
    write(config, 4, "a", epoch=2)
    write(config, 5, "b", epoch=2)
    assert [v for _, v in read(broker, topic)] == ["a", "b"]


def test_two_outputs_into_one_topic_do_not_take_each_others_batches(
    broker: LocalBroker, topic: str, tmp_path: Path
) -> None:
    write(spec(broker, topic, tmp_path, id=f"{topic}-1"), 0, "a")
    write(spec(broker, topic, tmp_path, id=f"{topic}-2"), 0, "b")
    assert [v for _, v in read(broker, topic)] == ["a", "b"]


def test_at_least_once_repeats(broker: LocalBroker, topic: str, tmp_path: Path) -> None:
    config = spec(broker, topic, tmp_path, delivery="at_least_once")
    write(config, 0, "a")
    write(config, 0, "a")
    assert [v for _, v in read(broker, topic)] == ["a", "a"]


def test_an_older_writer_is_refused(broker: LocalBroker, topic: str, tmp_path: Path) -> None:
    config = spec(broker, topic, tmp_path)
    write(config, 0, "a", epoch=2)
    with pytest.raises(ChannelError, match="epoch 2 has taken over"):
        write(config, 1, "b", epoch=1)
    assert [v for _, v in read(broker, topic)] == ["a"]


WRITER = """
import os, sys, json
from tests.conformance.test_kafka_sink import write
config, progress, last = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
begin = int(open(progress).read())
for batch in range(begin, last):
    write(config, batch, *[f"{batch}-{n}" for n in range(20)])
    print(batch, flush=True)
    open(progress + ".new", "w").write(str(batch + 1))  # as Spark notes it: after the commit, at once
    os.replace(progress + ".new", progress)
"""


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.long)])
def test_a_writer_killed_at_random_moments_loses_and_doubles_nothing(
    kills: int, broker: LocalBroker, topic: str, tmp_path: Path
) -> None:
    progress, last = tmp_path / "progress", 5 * kills
    target = json.dumps(spec(broker, topic, tmp_path))
    write_with_kills(WRITER, target, progress, last, kills=kills, batches=3, within=0.15)
    expected = [f"{batch}-{n}" for batch in range(last) for n in range(20)]
    assert [v for _, v in read(broker, topic)] == expected


def test_messages_of_another_run_are_refused(broker: LocalBroker, topic: str, tmp_path: Path) -> None:
    builder = hw.flow("tokafka", locations=LOCATIONS)
    stream = builder.read.json("in/{location}", "id bigint, k string").to_layer("cloud")
    stream.write.kafka(broker.address, topic).named("out")
    plan = build(builder.build(), Continuum.from_text(CONTINUUM))
    write(spec(broker, topic, tmp_path, id="stranger"), 0, "theirs")
    write(spec(broker, f"{topic}-2", tmp_path, id=kafkawriter.sink_writer_id(7, "aa")), 0, "in another topic")
    settled(plan, "refuse")
    write(spec(broker, topic, tmp_path, id=kafkawriter.sink_writer_id(8, "aa")), 0, "a")
    with pytest.raises(DeploymentError, match="'out' holds messages of another run") as refused:
        settled(plan, "refuse")
    assert refused.value.where == f"topic {topic} at {broker.address}"
    assert "--append" in str(refused.value.hint) and "--overwrite" not in str(refused.value.hint)
    with pytest.raises(DeploymentError, match="which cannot be removed: a topic may hold messages of others"):
        settled(plan, "overwrite")
    settled(plan, "append")
    write(spec(broker, topic, tmp_path, id=kafkawriter.sink_writer_id(9, "aa")), 0, "b")
    assert [v for _, v in read(broker, topic)] == ["theirs", "a", "b"]


def test_no_broker_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafkawriter, "SECONDS", 1.0)
    away = {"bootstrap.servers": "127.0.0.1:9"}  # no broker listens there
    config = {"kind": "kafka", "topic": "t", "id": "x", "path": str(tmp_path), "settings": away}
    with pytest.raises(Unavailable, match=r"no Kafka broker at 127\.0\.0\.1:9"):
        write(config, 0, "a")


def test_a_wrong_setting_is_told_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_SECRET_KAFKA_WORD", "topsecret")
    settings = {"bootstrap.servers": "127.0.0.1:9", "no.such.setting": "1"}
    config = {"kind": "kafka", "topic": "t", "id": "x", "path": str(tmp_path), "settings": settings}
    with pytest.raises(RuntimeFailure, match=r"no\.such\.setting") as error:
        write({**config, "password_env": "HEADWATER_SECRET_KAFKA_WORD"}, 0, "a")
    assert "topsecret" not in str(error.value)
    with pytest.raises(RuntimeFailure, match="HEADWATER_SECRET_KAFKA_ABSENT is not set"):
        write({**config, "user_env": "HEADWATER_SECRET_KAFKA_ABSENT"}, 0, "a")


def test_a_dataflow_ends_in_a_topic(broker: LocalBroker, topic: str, endpoint: LocalEndpoint, tmp_path: Path) -> None:
    source = BoundedSource(tmp_path / "in", rows(30, seed=3))
    source.release_all()
    builder = hw.flow("tokafka", locations=LOCATIONS)
    stream = builder.read.json(source.path, "id bigint, k string").to_layer("cloud").where("id >= 0")
    stream.write.kafka(broker.address, topic, key="k", compression_type="zstd")
    stream.where("id % 2 = 0").write.memory("even")  # beside it, in the same query
    plan = build(builder.build(), Continuum.from_text(CONTINUUM))
    assert len(plan.units) == 4
    deployment = LocalRun(plan, tmp_path / "run", endpoint, UnitSettings(trigger="200 milliseconds"))
    deployment.start()
    try:
        deployment.drain()
        even = deployment.sink_rows("even").num_rows
    finally:
        deployment.stop()
    found = [(k, json.loads(v)) for k, v in read(broker, topic)]
    assert all(k == row["k"] for k, row in found)
    wanted = sorted(n * 1_000_000 + i for n in range(3) for i in range(30 * (n + 1) // 2))
    assert sorted(row["id"] for _, row in found) == wanted
    assert even == sum(i % 2 == 0 for i in wanted)
