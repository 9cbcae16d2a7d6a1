"""The Kafka log's behaviour beyond the contract: large segments, many entries, other writers, losses."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater.channels import kafkaclient, kafkacluster
from headwater.channels.kafkalog import KafkaLog
from headwater.channels.open import open_log, remove_log
from headwater.channels.segments import Segment
from headwater.core.errors import BrokerAway, ChannelError, ChannelFull, RuntimeFailure, Unavailable
from headwater.spark.broker import LocalBroker

from .conftest import ids, spec_of, table

ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def spec(broker: LocalBroker, topic: str, tmp_path: Path) -> dict[str, Any]:
    return spec_of("kafka", tmp_path / "log", topic, broker)


def open_(spec: dict[str, Any], **more: Any) -> KafkaLog:
    log = open_log({**spec, **more, "event_time": "ts"})
    assert isinstance(log, KafkaLog)
    return log


def as_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget all connections and all knowledge of the topics."""
    monkeypatch.setattr(kafkacluster, "_clusters", {})


def in_another_process(spec: dict[str, Any], code: str) -> None:
    text = f"from headwater.channels.open import open_log\nlog = open_log({spec!r})\n{code}"
    subprocess.run([sys.executable, "-c", text], check=True, timeout=120, env={**os.environ, "PYTHONPATH": ROOT})


def test_a_segment_larger_than_a_message_is_cut_and_joined(spec: dict[str, Any]) -> None:
    log = open_(spec)
    noise = np.random.default_rng(1).integers(0, 1 << 60, 400_000)
    big = pa.table({"id": noise, "ts": table(list(range(400_000))).column("ts")})
    log.append(table([1]), epoch=1, batch=0)
    log.append(big, epoch=1, batch=1)
    log.append(table([2]), epoch=1, batch=2)
    (segment,) = next(log.entries(1, 2)).segments
    assert segment.offsets is not None
    assert segment.offsets[1] - segment.offsets[0] >= 2
    assert ids(log) == [1, *noise.tolist(), 2]


@pytest.mark.long
def test_any_entry_is_found_with_few_fetches(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_(spec)
    for batch in range(600):
        log.append(table([batch]), epoch=1 + batch // 200, batch=batch)
    as_another_process(monkeypatch)
    other = open_(spec)
    fetches = []
    follow = kafkacluster.Cluster.follow
    monkeypatch.setattr(kafkacluster.Cluster, "follow", lambda *a: fetches.append(a) or follow(*a))
    assert other.latest() == 600
    for number in (599, 3, 300, 420):
        fetches.clear()
        assert other.totals(number + 1) == (number + 1, other.totals(number)[1] + other._entry(number).bytes)
        assert len(fetches) <= 3
    assert ids(other) == list(range(600))


def test_what_all_have_read_is_deleted_from_the_topic(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_(spec)
    log.register("r")
    for batch in range(150):
        log.append(table([batch]), epoch=1, batch=batch)
    log.advance("r", 140)
    for partition in (0, 1):
        bounds = log._cluster.bounds(log.topic, partition)
        assert bounds is not None
        assert 270 <= bounds[0] <= 285
    as_another_process(monkeypatch)
    other = open_(spec)
    assert (other.earliest(), ids(other)) == (140, list(range(140, 150)))
    assert other.frontier(140) == 139_000_000
    other.advance("r", 150)
    assert ids(other) == []
    assert not other.append(table([149]), epoch=1, batch=149)


def test_a_writer_of_another_process_shuts_this_one_out(spec: dict[str, Any]) -> None:
    log = open_(spec)
    log.append(table([1]), epoch=1, batch=0)
    in_another_process(spec, "assert log.fence(2) == (1, 0)")
    with pytest.raises(ChannelError, match="epoch 1 is out of date: epoch 2"):
        log.append(table([2]), epoch=1, batch=1)
    assert ids(log) == [1]


def test_two_processes_of_one_epoch_take_turns(spec: dict[str, Any]) -> None:
    """Alternate two writers, as Spark's sink and the deployment that marks the end do."""
    log = open_(spec)
    log.append(table([1]), epoch=1, batch=0)
    in_another_process(spec, "assert log.fence(1) == (1, 0); log.end(2); log.fence(3)")
    assert log.append(table([2]), epoch=3, batch=0)
    in_another_process(spec, "assert log.fence(3) == (3, 0)")
    assert log.append(table([3]), epoch=3, batch=1)
    assert ids(log) == [1, 2, 3]


def test_readers_of_several_processes_change_the_table_in_turn(spec: dict[str, Any]) -> None:
    log = open_(spec)
    log.register("here")
    for batch in range(4):
        log.append(table([batch]), epoch=1, batch=batch)
    for position in (1, 2, 3):
        in_another_process(spec, f"log.register('there'); log.advance('there', {position})")
        log.advance("here", position)
        time.sleep(0.05)
        assert log.readers() == {"here": position, "there": position}
        assert log.earliest() == position


def test_writers_without_transactions_lose_nothing_to_each_other(spec: dict[str, Any]) -> None:
    """Two at a time take each other's numbers; a writer whose entry does not count writes it again."""
    code = (
        "import pyarrow as pa, sys\n"
        f"own = {{'delivery': 'at_least_once', 'staging': {spec['staging']!r} + sys.argv[1]}}\n"
        f"log = open_log({{**{spec!r}, **own}})\n"
        "for n in range(100):\n"
        "    log.append(pa.table({'id': [int(sys.argv[1]) + n]}), epoch=1, batch=n)\n"
    )
    text = f"from headwater.channels.open import open_log\n{code}"
    environment = {**os.environ, "PYTHONPATH": ROOT}
    both = [subprocess.Popen([sys.executable, "-c", text, str(first)], env=environment) for first in (0, 1000)]
    assert [process.wait(120) for process in both] == [0, 0]
    log = open_(spec)
    assert sorted(ids(log)) == [*range(100), *range(1000, 1100)]
    assert (log.latest(), log.stats().rows) == (200, 200)


def test_an_open_transaction_of_a_killed_writer_is_undone(spec: dict[str, Any], topic: str) -> None:
    log = open_(spec)
    log.append(table([1]), epoch=1, batch=0)
    code = """
import os, pyarrow as pa
from headwater.channels.kafkajournal import KafkaJournal
KafkaJournal.encode = lambda *_: os._exit(0)  # its segments are sent, its entry is not
times = pa.array([9], pa.timestamp("us", tz="UTC"))
log.append(pa.table({"id": [9], "ts": times}), epoch=1, batch=1)
"""
    in_another_process(spec, code)
    assert ids(log) == [1]
    assert log.append(table([2]), epoch=1, batch=1)
    assert ids(log) == [1, 2]


def test_full_channels_follow_their_policy(spec: dict[str, Any]) -> None:
    log = open_(spec)
    log.register("r")
    log.append(table([0]), epoch=1, batch=0)
    bound = {"max_bytes": int(log.stats().bytes * 2.5), "block_timeout": 0.2}
    for batch in range(1, 4):
        open_(spec, **bound, when_full="drop_oldest").append(table([batch]), epoch=1, batch=batch)
    assert (ids(log), log.stats().dropped_rows) == ([2, 3], 2)
    assert open_(spec, **bound, when_full="drop_newest").append(table([4]), epoch=1, batch=4)
    assert (ids(log), log.stats().dropped_rows) == ([2, 3], 3)
    with pytest.raises(ChannelFull, match=r"full for 0\.2 s.*'r' at 0 of"):
        open_(spec, **bound, when_full="block").append(table([5]), epoch=1, batch=5)


def test_segments_that_are_gone_are_counted_or_stop_the_reader(spec: dict[str, Any]) -> None:
    log = open_(spec)
    for batch in range(3):
        log.append(table([batch] * 5), epoch=1, batch=batch)
    (segment,) = next(log.entries(1, 2)).segments
    assert segment.offsets is not None
    log._cluster.delete_before(log.topic, {0: segment.offsets[1] + 1})  # as a retention limit might do
    strict = open_log(spec, on_corrupt="stop")
    with pytest.raises(ChannelError, match="entry 0 with 5 rows is missing"):
        ids(strict)
    for _ in range(2):
        assert ids(log) == [2] * 5
        assert log.stats().lost_rows == 10


def test_staging_holds_nothing_that_is_done(spec: dict[str, Any], tmp_path: Path) -> None:
    log = open_(spec)
    staged = tmp_path / "log" / "staging"

    def left() -> list[Path]:
        return sorted(staged.glob("*.arrow"))

    def stage() -> Segment:
        writer = log.open_segment(table([7]).schema)
        writer.write(table([7]).to_batches()[0])
        piece = writer.close()
        assert piece is not None
        return piece

    stage()  # of a task whose batch was given up
    log.append(table([1]), epoch=1, batch=0)
    time.sleep(0.02)
    running = stage()
    log.append(table([2]), epoch=1, batch=1)
    assert [p.name for p in left()] == [running.file]
    log.commit(1, 1, [running])  # a repetition
    assert left() == []


def test_a_topic_of_somebody_else_is_refused(spec: dict[str, Any], broker: LocalBroker) -> None:
    log = open_(spec)
    log.create()
    producer = log._cluster.plain_producer()
    kafkacluster.send(producer, log.topic, [kafkacluster.Message(1, b"k", b"hello")])
    with pytest.raises(ChannelError, match="the message at offset 0 is no entry of a channel"):
        log.latest()


def test_a_dropped_log_begins_anew(spec: dict[str, Any]) -> None:
    log = open_(spec)
    log.register("r")
    log.append(table([1]), epoch=1, batch=0)
    remove_log(spec)
    again = open_(spec)
    assert (again.latest(), again.readers()) == (0, {})
    assert again.append(table([5]), epoch=1, batch=0)
    assert ids(again) == [5]


def test_no_broker_is_told(topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafkaclient, "SECONDS", 1.0)
    spec = {"kind": "kafka", "servers": "127.0.0.1:9", "topic": topic, "staging": str(tmp_path)}
    with pytest.raises(Unavailable, match=r"no Kafka broker at 127\.0\.0\.1:9"):
        open_(spec).append(table([1]), epoch=1, batch=0)


def test_a_look_at_an_absent_broker_gives_up_soon_and_then_at_once(
    topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_another_process(monkeypatch)
    monkeypatch.setattr(kafkaclient, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(kafkacluster, "_AWAY_SECONDS", 600.0)
    log = open_({"kind": "kafka", "servers": "127.0.0.1:9", "topic": topic, "staging": str(tmp_path)})
    asked = []
    client = kafkaclient.client
    monkeypatch.setattr("headwater.channels.kafkacluster.client", lambda *a: asked.append(a) or client(*a))
    begun = time.monotonic()
    with kafkaclient.looking():
        with pytest.raises(BrokerAway, match=r"no Kafka broker at 127\.0\.0\.1:9"):
            log.latest()
        assert asked and time.monotonic() - begun < kafkaclient.SECONDS
        asked.clear()
        with pytest.raises(BrokerAway):
            log.stats()
        assert not asked
    assert kafkaclient.patience() == kafkaclient.SECONDS


def test_credentials_come_from_the_environment_and_are_not_shown(
    topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafkaclient, "SECONDS", 1.0)
    monkeypatch.setenv("HEADWATER_SECRET_KAFKA_WORD", "topsecret")
    spec = {"kind": "kafka", "servers": "127.0.0.1:9", "topic": topic, "staging": str(tmp_path)}
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    named = {
        **spec,
        "settings": sasl,
        "user_env": "HEADWATER_SECRET_KAFKA_WORD",
        "password_env": "HEADWATER_SECRET_KAFKA_WORD",
    }
    with pytest.raises(Unavailable) as error:
        open_(named).latest()
    assert "topsecret" not in f"{error.value!r} {error.value} {open_(named)!r}"
    with pytest.raises(RuntimeFailure, match="HEADWATER_SECRET_KAFKA_ABSENT is not set"):
        open_({**spec, "user_env": "HEADWATER_SECRET_KAFKA_ABSENT"})
    with pytest.raises(RuntimeFailure, match=r"no\.such\.setting"):
        open_({**spec, "settings": {"no.such.setting": "1"}}).latest()
