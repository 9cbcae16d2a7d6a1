"""The MQTT sink writer against real brokers: order, repeated batches, a broker that is away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.connectors.mqttwriter import MqttSinkWriter
from headwater.core.errors import HeadwaterError, RuntimeFailure, Unavailable
from tests.conformance.mqttbrokers import Broker, broker, client_of, redelivers, shared_broker, topic, until
from tests.conftest import free_port

__all__ = ["broker", "shared_broker", "topic"]  # fixtures


class Receiver:
    """A client that keeps the messages of a topic, with their ids."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.got: list[tuple[str, str]] = []
        self.ids: list[str] = []
        five = broker.kind == "mosquitto"
        self.client = client_of("", five=five)
        ready: list[Any] = []
        self.client.on_subscribe = lambda *args: ready.append(1)
        self.client.on_message = self._keep
        self.client.connect("127.0.0.1", broker.port)
        self.client.loop_start()
        until(self.client.is_connected, "the connection")
        self.client.subscribe(topic, qos=1)
        until(lambda: ready, "the subscription")

    def _keep(self, client: Any, data: Any, message: Any) -> None:
        self.got.append((message.topic, message.payload.decode()))
        properties = getattr(message, "properties", None)
        self.ids += [value for name, value in getattr(properties, "UserProperty", []) if name == "headwater-id"]

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def receiver(broker: Broker, topic: str) -> Iterator[Receiver]:
    found = Receiver(broker, f"{topic}/#")
    try:
        yield found
    finally:
        found.close()


def sink_writer(broker: Broker, place: Path, topic: str | None, **more: Any) -> MqttSinkWriter:
    named = {"username_env": "HEADWATER_SECRET_MQTT_USER", "password_env": "HEADWATER_SECRET_MQTT_PASSWORD"}
    spec = {"path": str(place), "broker": f"127.0.0.1:{broker.port}", "topic": topic, "lineage": "7", **named, **more}
    place.mkdir(exist_ok=True)
    return MqttSinkWriter(spec)


def put(to: MqttSinkWriter, batch: int, columns: dict[str, list[str | None]]) -> None:
    segment = to.open()
    segment.write(pa.RecordBatch.from_pydict(columns))
    closed = segment.close()
    assert closed is not None
    to.commit([closed], batch)


@redelivers
def test_messages_arrive_in_order_and_a_sent_batch_is_not_repeated(
    broker: Broker, topic: str, receiver: Receiver, tmp_path: Path
) -> None:
    to = sink_writer(broker, tmp_path / "scratch", f"{topic}/alarms")
    values: list[str | None] = [f"m{n}" for n in range(500)]
    put(to, 0, {"value": values})
    put(to, 0, {"value": values})  # the batch that Spark repeats after a crash
    put(sink_writer(broker, tmp_path / "scratch", f"{topic}/alarms"), 0, {"value": values})  # in another process
    put(to, 1, {"value": ["last"]})
    until(lambda: (f"{topic}/alarms", "last") in receiver.got, "the last message")
    assert [value for _, value in receiver.got] == [*values, "last"]
    assert receiver.ids == [*(f"7/0/{n}" for n in range(500)), "7/1/0"]
    assert not list((tmp_path / "scratch").glob("*.arrow")), "segments are left"


@redelivers
def test_rows_may_name_their_topics(broker: Broker, topic: str, receiver: Receiver, tmp_path: Path) -> None:
    to = sink_writer(broker, tmp_path / "scratch", None)
    put(to, 0, {"value": ["a", "b"], "topic": [f"{topic}/L1", f"{topic}/L2"]})
    until(lambda: len(receiver.got) == 2, "two messages")
    assert receiver.got == [(f"{topic}/L1", "a"), (f"{topic}/L2", "b")]
    for wrong in (None, "", f"{topic}/#"):
        with pytest.raises(RuntimeFailure, match="a row names no topic"):
            put(to, 1, {"value": ["c"], "topic": [wrong]})


@redelivers
def test_a_batch_that_was_interrupted_is_sent_again_with_the_same_ids(
    broker: Broker, topic: str, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = sink_writer(broker, tmp_path / "scratch", f"{topic}/x")
    with monkeypatch.context() as patch:

        def killed(*args: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr("headwater.connectors.sent.write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            put(to, 3, {"value": ["a", "b"]})
    put(to, 3, {"value": ["a", "b"]})
    until(lambda: len(receiver.got) == 4, "both batches")
    assert [v for _, v in receiver.got] == ["a", "b", "a", "b"]
    assert receiver.ids == ["7/3/0", "7/3/1", "7/3/0", "7/3/1"]


@redelivers
def test_another_lineage_s_batches_are_its_own(broker: Broker, topic: str, receiver: Receiver, tmp_path: Path) -> None:
    put(sink_writer(broker, tmp_path / "scratch", f"{topic}/x"), 5, {"value": ["old"]})
    put(sink_writer(broker, tmp_path / "scratch", f"{topic}/x", lineage="8"), 0, {"value": ["new"]})
    until(lambda: len(receiver.got) == 2, "both")
    assert [v for _, v in receiver.got] == ["old", "new"]


@redelivers
def test_a_broker_that_is_away_fails_the_batch_and_keeps_it(broker: Broker, topic: str, tmp_path: Path) -> None:
    port, broker.port = broker.port, free_port()
    try:
        to = sink_writer(broker, tmp_path / "scratch", f"{topic}/x")
        begun = time.monotonic()
        with pytest.raises(Unavailable, match="did not take the message"):
            put(to, 0, {"value": ["a"]})
        assert time.monotonic() - begun < 60
    finally:
        broker.port = port


@redelivers
def test_a_wrong_password_is_said(broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_SECRET_MQTT_PASSWORD", "wrong")
    with pytest.raises(HeadwaterError, match=r"(?i)not authori[sz]ed") as caught:
        put(sink_writer(broker, tmp_path / "scratch", f"{topic}/x"), 0, {"value": ["a"]})
    assert "wrong" not in str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize("shared_broker", ["amqtt"], indirect=True)
def test_a_broker_of_the_older_protocol_gets_messages_without_ids(
    broker: Broker, topic: str, receiver: Receiver, tmp_path: Path
) -> None:
    put(sink_writer(broker, tmp_path / "scratch", f"{topic}/x"), 0, {"value": ["a"]})
    until(lambda: len(receiver.got) == 1, "the message")
    assert receiver.ids == []
