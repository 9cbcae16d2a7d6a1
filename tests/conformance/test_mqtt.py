"""Test the MQTT bridge with a real broker."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.channels.base import ChannelLimits
from headwater.channels.filelog import FileLog
from headwater.connectors.bridge import BridgeStatus
from headwater.connectors.mqtt import MqttBridge, broker_address
from headwater.connectors.mqttclient import MqttAddress, MqttConnection, MqttMessage
from headwater.connectors.reasons import NOT_UTF8, explain
from headwater.core.errors import HeadwaterError, RuntimeFailure, Unavailable
from headwater.dataflow.sources import MqttSource
from tests.conformance.mqttbrokers import (
    SECONDS,
    Bridges,
    Broker,
    bridges,
    broker,
    once,
    redelivers,
    shared_broker,
    source,
    topic,
    until,
)

paho = pytest.importorskip("paho.mqtt.client")

__all__ = ["bridges", "broker", "shared_broker", "topic"]  # fixtures

ROOT = Path(__file__).resolve().parents[2]


def readings(start: int, end: int) -> list[str]:
    return [json.dumps({"v": v}) for v in range(start, end)]


def test_messages_are_stored_exactly_and_in_order(broker: Broker, topic: str, bridges: Bridges) -> None:
    bridge = bridges.start(flush_rows=50)
    broker.publish(topic, *readings(0, 300))
    bridges.await_values(readings(0, 300))
    bridge.stop()
    status = bridge.status()
    assert (status.state, status.received, status.stored, status.waiting) == ("stopped", 300, 300, 0)
    assert bridges.log.schema() == pa.schema(
        [("value", pa.string()), ("topic", pa.string()), ("received", pa.timestamp("us", tz="UTC"))]
    )
    (first,) = {t for b in bridges.log.read(0, bridges.log.latest()) for t in b.column("topic").to_pylist()}
    full = [e for e in bridges.log.entries(0, bridges.log.latest()) if e.rows]
    for entry in full:  # each with the arrival times of its messages
        batches = bridges.log.read(entry.seq, entry.seq + 1)
        came = [t.timestamp() for b in batches for t in b.column("received").to_pylist()]
        assert entry.ingested == (min(came), max(came))
    assert first == topic


@pytest.mark.parametrize("same_epoch", [False, True])
def test_the_session_keeps_messages_while_the_bridge_is_down(
    broker: Broker, topic: str, bridges: Bridges, same_epoch: bool
) -> None:
    bridges.start().stop()
    broker.publish(topic, *readings(0, 20))
    bridges.start(same_epoch=same_epoch)
    broker.publish(topic, *readings(20, 40))
    bridges.await_values(readings(0, 40))


@redelivers
def test_what_was_not_stored_comes_again(
    broker: Broker, topic: str, bridges: Bridges, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(FileLog, "commit", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("crash")))
        bridge = bridges.start()
        broker.publish(topic, *readings(0, 20))
        until(lambda: bridge.status().state == "failed", "the failure")
        assert bridge.status().error == "RuntimeError: crash"
        bridge.stop()
        assert bridge.status().state == "failed"
    assert bridges.values() == []
    bridges.start()
    until(lambda: len(bridges.values()) >= 20, "the messages")
    assert sorted(bridges.values()) == sorted(readings(0, 20))


_BRIDGE = """
import sys, time
from headwater.dataflow.sources import MqttSource
from headwater.channels.filelog import FileLog
from headwater.connectors.mqtt import MqttBridge
path, broker, topic = sys.argv[1:]
source = MqttSource(id="mqtt_1", broker=broker, topic=topic, schema_text="v bigint",
                    username_env="HEADWATER_SECRET_MQTT_USER", password_env="HEADWATER_SECRET_MQTT_PASSWORD")
MqttBridge(source, location="edge1", log=FileLog(path), epoch=1, flush_seconds=0.02).start()
time.sleep(60)
"""


@redelivers
def test_a_killed_bridge_loses_nothing(broker: Broker, topic: str, bridges: Bridges) -> None:
    log, address = str(bridges.log.path), f"127.0.0.1:{broker.port}"

    def spawn() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", _BRIDGE, log, address, topic], cwd=ROOT)

    bridges.start().stop()  # so that there is a session
    sent = 0
    for _ in range(4):
        process = spawn()
        before = len(bridges.values())
        try:
            deadline = time.monotonic() + SECONDS
            while len(bridges.values()) < before + 20 and time.monotonic() < deadline:
                broker.publish(topic, *readings(sent, sent + 10))
                sent += 10
        finally:
            process.kill()
            process.wait(10)
    bridges.epoch = 1
    bridges.start()
    until(lambda: set(bridges.values()) >= set(readings(0, sent)), "all messages")
    assert set(bridges.values()) == set(readings(0, sent))


def test_payloads_that_are_not_text_are_kept(broker: Broker, topic: str, bridges: Bridges) -> None:
    bridges.start()
    broker.publish(topic, "no json", b"", b'{"v": "\xff"}', '{"v": "ü"}')
    bridges.await_values(["no json", "", f"{NOT_UTF8}eyJ2IjogIv8ifQ==", '{"v": "ü"}'])
    assert bridges.bridge is not None and bridges.bridge.status().not_utf8 == 1
    assert explain(bridges.values()[2], format="json", schema="v string") == "not UTF-8 text"


@pytest.mark.parametrize("qos", [0, 2])
def test_other_qualities_of_service(broker: Broker, topic: str, tmp_path: Path, qos: int) -> None:
    bridges = Bridges(source(broker, topic, qos=qos), FileLog(tmp_path / "log", fsync=False))
    bridge = bridges.start()
    broker.publish(topic, *readings(0, 20), qos=qos)
    bridges.await_values(readings(0, 20))
    bridge.stop()


@once
def test_a_full_log_bounds_memory_and_loses_nothing(broker: Broker, topic: str, bridges: Bridges) -> None:
    bridges.log.register("reader")
    bridges.log.limits = ChannelLimits(max_bytes=1)
    bridge = bridges.start(flush_rows=5)
    broker.publish(topic, *readings(0, 200))
    until(lambda: bridge.status().waiting >= 20, "the bound")
    until(lambda: "full" in (bridge.status().error or ""), f"the reason: {bridge.status()}")
    time.sleep(0.5)
    assert bridge.status().waiting == 20
    got: list[str] = []

    def drain() -> bool:
        latest = bridges.log.latest()
        for batch in bridges.log.read(bridges.log.readers()["reader"], latest):
            got.extend(batch.column("value").to_pylist())
        bridges.log.advance("reader", latest)
        return len(got) >= 200

    until(drain, f"all messages, has {len(got)}")
    assert sorted(got) == sorted(readings(0, 200))
    assert bridge.status().error is None


@redelivers
def test_stopping_does_not_wait_for_a_full_log(broker: Broker, topic: str, bridges: Bridges) -> None:
    bridges.log.register("reader")
    bridges.log.limits = ChannelLimits(max_bytes=1)
    bridge = bridges.start(flush_rows=5)
    broker.publish(topic, *readings(0, 12))
    until(lambda: bridge.status().error, "a full log")
    began = time.monotonic()
    bridge.stop()
    assert time.monotonic() - began < SECONDS
    kept = len(bridges.values())
    assert 0 < kept < 12
    bridges.log.limits = ChannelLimits()
    bridges.start()
    until(lambda: len(bridges.values()) >= 12, "the rest")
    assert sorted(bridges.values()) == sorted(readings(0, 12))


@once
def test_a_forgotten_session_gets_nothing(broker: Broker, topic: str, bridges: Bridges) -> None:
    bridge = bridges.start()
    bridge.stop()
    bridge.forget()
    time.sleep(3.0)  # amqtt ends a session within a second
    broker.publish(topic, *readings(0, 5))
    bridges.start()
    broker.publish(topic, *readings(5, 8))
    bridges.await_values(readings(5, 8))


@redelivers
def test_mqtt_5_continues_and_keeps_the_same_session(broker: Broker, topic: str, bridges: Bridges) -> None:
    bridges.start().stop()
    broker.publish(topic, *readings(0, 10))
    bridges.source = dataclasses.replace(bridges.source, version="5")
    bridges.start().stop()
    bridges.await_values(readings(0, 10))
    broker.publish(topic, *readings(10, 20))
    bridge = bridges.start()
    bridges.await_values(readings(0, 20))
    bridge.stop()
    bridge.forget()
    broker.publish(topic, *readings(20, 25))
    bridges.start()
    broker.publish(topic, *readings(25, 30))
    bridges.await_values([*readings(0, 20), *readings(25, 30)])


class Older:
    """Stand in front of a broker, and refuse MQTT 5 as brokers of 3.1.1 do; pass on all other connections."""

    def __init__(self, behind: int) -> None:
        self._behind, self.refused = behind, 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            first = client.recv(4096)
            if first[first.index(b"MQTT") + 4] == 5:
                self.refused += 1
                client.sendall(b"\x20\x02\x00\x01")  # CONNACK: unacceptable protocol version
                return
            with socket.create_connection(("127.0.0.1", self._behind)) as broker:
                broker.sendall(first)
                back = threading.Thread(target=self._copy, args=(broker, client), daemon=True)
                back.start()
                self._copy(client, broker)
                back.join()

    def _copy(self, here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(65536):
                there.sendall(data)
            there.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)  # ends the wait for a connection
        self._server.close()


def test_a_bridge_goes_on_in_an_older_version_if_the_broker_refuses_5(
    broker: Broker, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older = Older(broker.port)
    of = dataclasses.replace(source(broker, topic), broker=f"127.0.0.1:{older.port}", version="5")
    bridges = Bridges(of, FileLog(tmp_path / "log", fsync=False))
    try:
        bridge = bridges.start()
        broker.publish(topic, *readings(0, 5))
        bridges.await_values(readings(0, 5))
        assert older.refused == 1 and bridge.status().error is None
        assert "does not speak MQTT 5" in caplog.text and "3.1.1" in caplog.text
        bridge.stop()
        bridges.start().stop()  # refused anew, in the session that the broker has
        bridge._five = True
        bridge.forget()
        assert older.refused == 3
    finally:
        if bridges.bridge is not None:
            bridges.bridge.stop()
        older.close()


@redelivers
def test_a_broker_that_keeps_sessions_for_a_time_is_told(
    broker: Broker, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of = dataclasses.replace(source(broker, topic), version="5")
    bridge = MqttBridge(of, location="e", log=FileLog(tmp_path / "log"), epoch=1)

    class Answer:
        session_present, is_failure, SessionExpiryInterval = True, False, 60

    bridge._on_connect(None, None, Answer(), Answer(), Answer())
    assert "keeps messages for 60 s only" in caplog.text


@once
def test_a_restarted_broker_is_found_again(tmp_path: Path, broker: Broker, topic: str) -> None:
    own = Broker(broker.kind, tmp_path).start()
    bridges = Bridges(source(own, topic), FileLog(tmp_path / "log", fsync=False))
    try:
        bridge = bridges.start()
        own.publish(topic, *readings(0, 5))
        bridges.await_values(readings(0, 5))
        time.sleep(1.5)  # mosquitto saves sessions every second
        own.kill()
        until(lambda: bridge.status().state == "connecting", "the loss to be noticed")
        assert bridge.status().error
        own.start()
        until(lambda: bridge.status().state == "connected", "the connection")
        own.publish(topic, *readings(5, 10))
        bridges.await_values(readings(0, 10))
        assert bridge.status().connections == 2 and bridge.status().error is None
        bridge.stop()
    finally:
        own.kill()


@once
def test_the_broker_may_come_later(tmp_path: Path, broker: Broker, topic: str) -> None:
    absent = Broker(broker.kind, tmp_path)
    bridge = MqttBridge(source(absent, topic), location="e", log=FileLog(tmp_path / "log"), epoch=1)
    bridge.start()
    try:
        until(lambda: bridge.status().error, "the failure to connect")
        assert bridge.status().state == "connecting"
        with pytest.raises(Unavailable, match="no MQTT broker at"):
            bridge.forget()
        absent.start()
        until(lambda: bridge.status().state == "connected", "the connection")
    finally:
        bridge.stop()
        absent.kill()


def test_a_wrong_password_is_told_and_never_shown(
    tmp_path: Path, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_SECRET_MQTT_PASSWORD", "hunter2")
    bridge = MqttBridge(source(broker, topic), location="e", log=FileLog(tmp_path / "log"), epoch=1)
    bridge.start()
    try:
        until(lambda: bridge.status().state == "refused", "the refusal")
        assert "refuses the connection" in (bridge.status().error or "")
        shown = repr(bridge) + repr(bridge.status()) + repr(bridge._source)
        assert "hunter2" not in shown and "probe" not in shown
    finally:
        bridge.stop()
    monkeypatch.delenv("HEADWATER_SECRET_MQTT_PASSWORD")
    with pytest.raises(RuntimeFailure, match="HEADWATER_SECRET_MQTT_PASSWORD is not set"):
        MqttBridge(source(broker, topic), location="e", log=FileLog(tmp_path / "l2"), epoch=1).start()


def test_locations_have_their_own_topics_and_sessions(tmp_path: Path, broker: Broker) -> None:
    of = source(broker, "plant/{location}/temperature")
    bridges = [
        MqttBridge(of, location=place, log=FileLog(tmp_path / flow / place), epoch=1)
        for flow in ("a", "b")
        for place in ("north", "south")
    ]
    assert [b.topic for b in bridges[:2]] == ["plant/north/temperature", "plant/south/temperature"]
    assert len({b.client_id for b in bridges}) == 4
    assert {len(b.client_id) for b in bridges} == {23}
    again = MqttBridge(of, location="north", log=FileLog(tmp_path / "a" / "north"), epoch=7)
    assert again.client_id == bridges[0].client_id


@pytest.fixture
def many_files() -> Iterator[None]:
    """Open so many files that the next one has a descriptor above 1,023, the highest that ``select`` takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    if most < 1200:
        pytest.skip(f"a process may open {hard} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] < 1024:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for one in opened:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_with_many_open_files_reaches_a_broker(
    broker: Broker, topic: str, bridges: Bridges, many_files: None
) -> None:
    bridges.start(flush_rows=5)
    address = MqttAddress.parse(
        f"127.0.0.1:{broker.port}",
        tls=False,
        username_env="HEADWATER_SECRET_MQTT_USER",
        password_env="HEADWATER_SECRET_MQTT_PASSWORD",
        where="test",
    )
    connection = MqttConnection(address)
    try:
        connection.send(MqttMessage(topic=topic, payload=value.encode()) for value in readings(0, 300))
    finally:
        connection.close()
    bridges.await_values(readings(0, 300))


def test_messages_sent_again_after_a_lost_connection_are_known(tmp_path: Path, broker: Broker) -> None:
    bridge = MqttBridge(source(broker, "t"), location="e", log=FileLog(tmp_path / "log"), epoch=1)
    acks: list[int] = []

    class Client:
        def ack(self, mid: int, _qos: int) -> None:
            acks.append(mid)

    class Flags:
        session_present = True

    class Success:
        is_failure = False

    def message(mid: int, payload: bytes, *, dup: bool = False) -> Any:
        made = paho.MQTTMessage(mid=mid, topic=b"t")
        made.payload, made.dup, made.qos = payload, dup, 1
        return made

    client = bridge._client = Client()

    def deliver(*messages: Any) -> None:
        for one in messages:
            bridge._on_message(client, None, one)

    def connect() -> None:
        bridge._on_connect(client, None, Flags(), Success(), None)

    def flush() -> int:
        batch = bridge._spool.next_batch()
        assert bridge._spool.store(batch)
        bridge._acknowledge(batch)
        return len(batch)

    connect()
    deliver(message(1, b"a"), message(2, b"b"))
    connect()  # lost before anything was stored
    deliver(message(1, b"a", dup=True))
    assert flush() == 2
    assert acks == [1]  # 2 was not delivered on this connection yet
    deliver(message(2, b"b", dup=True))
    assert acks == [1, 2]
    deliver(message(1, b"a"), message(2, b"new", dup=True))
    assert flush() == 2
    assert acks == [1, 2, 1, 2]
    assert bridge.status().repeated == 2


@pytest.mark.parametrize(
    ("text", "tls", "expected"),
    [
        ("host", False, ("host", 1883, False)),
        ("host:99", True, ("host", 99, True)),
        ("mqtt://{location}.example", False, ("edge1.example", 1883, False)),
        ("mqtts://host", False, ("host", 8883, True)),
        ("[::1]:1884", False, ("::1", 1884, False)),
    ],
)
def test_broker_addresses(text: str, tls: bool, expected: tuple[str, int, bool]) -> None:
    of = MqttSource(id="m", broker=text, topic="t", schema_text="v bigint", tls=tls)
    found = broker_address(of, "edge1")
    assert (found.host, found.port, found.tls) == expected


@pytest.mark.parametrize("text", ["", "http://host", "host:port", "mqtt://me:pw@host", "host/path", "a..b"])
def test_wrong_broker_addresses_are_refused(text: str) -> None:
    with pytest.raises(HeadwaterError) as error:
        broker_address(MqttSource(id="m", broker=text, topic="t", schema_text="v bigint"), "edge1")
    assert "pw" not in str(error.value).replace("password", "")


def test_a_missing_library_is_named(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paho.mqtt", None)
    bridge = MqttBridge(source(broker, "t"), location="e", log=FileLog(tmp_path / "log"), epoch=1)
    with pytest.raises(Unavailable, match="paho-mqtt is not installed") as error:
        bridge.start()
    assert error.value.hint == "pip install headwater[mqtt]"
    assert bridge.status() == BridgeStatus(state="new", address=f"mqtt://127.0.0.1:{broker.port}, topic t")
