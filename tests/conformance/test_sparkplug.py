"""The bridge of Sparkplug B with a real broker: names of aliases, numbers of messages, births asked for, deaths."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.channels.filelog import FileLog
from headwater.connectors.reasons import NOT_UTF8
from headwater.connectors.sparkplug import SparkplugBridge
from headwater.connectors.sparkplugpayload import payload_class, read_payload, value_of
from headwater.core.errors import DataflowError
from headwater.dataflow.sparkplug import SparkplugSource, sparkplug_columns
from tests.conformance.mqttbrokers import Broker, broker, redelivers, shared_broker, until

pytest.importorskip("google.protobuf")

__all__ = ["broker", "shared_broker"]  # fixtures

DOUBLE, INT16, BOOLEAN, UINT64 = 10, 2, 11, 8
AT = 1_767_600_000_123


class EdgeNode:
    """An edge node that publishes, and keeps the commands that it gets."""

    def __init__(self, broker: Broker, group: str) -> None:
        self.broker, self.group, self.seq, self.commands = broker, group, -1, list[bytes]()
        subscribed: list[int] = []
        broker.client.on_message = lambda client, data, message: self.commands.append(message.payload)
        broker.client.on_subscribe = lambda *given: subscribed.append(1)
        broker.client.subscribe(f"spBv1.0/{group}/NCMD/N1", qos=0)
        until(lambda: subscribed, "the subscription")

    def send(self, kind: str, *metrics: dict[str, Any], device: str = "", numbered: bool = True, skip: int = 0) -> None:
        self.seq = 0 if kind == "NBIRTH" else (self.seq + numbered + skip) % 256
        made = payload_class()(timestamp=AT, **({"seq": self.seq} if numbered else {}))
        for metric in metrics:
            made.metrics.add(**metric)
        topic = f"spBv1.0/{self.group}/{kind}/N1{f'/{device}' if device else ''}"
        self.broker.publish(topic, made.SerializeToString())

    def birth(self, session: int = 1) -> None:
        self.send(
            "NBIRTH",
            {"name": "bdSeq", "datatype": UINT64, "long_value": session},
            {"name": "temp", "alias": 1, "datatype": DOUBLE, "double_value": 20.5},
            {"name": "level", "alias": 2, "datatype": INT16, "int_value": 2**16 - 5},
        )


class Bridged:
    """A bridge that is started again with the same log."""

    def __init__(self, broker: Broker, group: str, log: FileLog) -> None:
        self.source = SparkplugSource(
            id="sp",
            broker=f"127.0.0.1:{broker.port}",
            topic=f"spBv1.0/{group}/#",
            schema_text=sparkplug_columns("string"),
            username_env="HEADWATER_SECRET_MQTT_USER",
            password_env="HEADWATER_SECRET_MQTT_PASSWORD",
            version="5",
        )
        self.log, self.epoch = log, 0
        self.bridge: SparkplugBridge

    def start(self) -> SparkplugBridge:
        self.epoch += 1
        self.bridge = SparkplugBridge(self.source, location="L1", log=self.log, epoch=self.epoch)
        self.bridge.start()
        until(lambda: self.bridge.status().state == "connected", "the connection")
        return self.bridge

    def texts(self) -> list[str]:
        batches = self.log.read(self.log.earliest(), self.log.latest())
        return [v for b in batches for v in b.column("value").to_pylist()]

    def rows(self, count: int, *columns: str) -> list[tuple[Any, ...]]:
        """Wait for so many rows; return some of their columns."""
        until(lambda: len(self.texts()) >= count, f"{count} rows")
        found = [json.loads(text) for text in self.texts()]
        assert len(found) == count, found
        return [tuple(row.get(c) for c in columns) for row in found]


@pytest.fixture
def group(tmp_path: Path) -> str:
    return tmp_path.name


@pytest.fixture
def bridged(broker: Broker, group: str, tmp_path: Path) -> Iterator[Bridged]:
    made = Bridged(broker, group, FileLog(tmp_path / "log", fsync=False))
    made.start()
    yield made
    made.bridge.stop()


@redelivers
def test_metrics_are_rows_with_the_names_of_their_births(broker: Broker, group: str, bridged: Bridged) -> None:
    node = EdgeNode(broker, group)
    node.birth()
    node.send("DBIRTH", {"name": "speed", "alias": 3, "datatype": DOUBLE, "double_value": 7.0}, device="D1")
    node.send("NDATA", {"alias": 1, "double_value": 21.0, "timestamp": AT + 1}, {"alias": 2, "int_value": 7})
    stale = {"keys": ["Quality"], "values": [{"int_value": 500}]}
    node.send("DDATA", {"alias": 3, "is_null": True, "properties": stale, "is_historical": True}, device="D1")
    node.send("DDEATH", device="D1")
    broker.publish(f"spBv1.0/{group}/DCMD/N1/D1", b"for the device")
    found = bridged.rows(8, "message", "device", "metric", "value", "seq", "quality", "gap")
    assert found == [
        ("NBIRTH", None, "bdSeq", 1, 0, "good", False),
        ("NBIRTH", None, "temp", 20.5, 0, "good", False),
        ("NBIRTH", None, "level", -5, 0, "good", False),
        ("DBIRTH", "D1", "speed", 7.0, 1, "good", False),
        ("NDATA", None, "temp", 21.0, 2, "good", False),
        ("NDATA", None, "level", 7, 2, "good", False),
        ("DDATA", "D1", "speed", None, 3, "stale", False),
        ("DDEATH", "D1", None, None, 4, "stale", False),
    ]
    times = bridged.rows(8, "time", "historical", "group_id", "edge_node")
    assert times[4] == ("2026-01-05T08:00:00.124Z", False, group, "N1")
    assert times[6] == ("2026-01-05T08:00:00.123Z", True, group, "N1")
    assert not node.commands and bridged.bridge.status().missed == 0


@redelivers
def test_lost_messages_are_noticed_and_a_birth_is_asked_for_once(broker: Broker, group: str, bridged: Bridged) -> None:
    node = EdgeNode(broker, group)
    node.birth()
    node.send("NDATA", {"alias": 1, "double_value": 1.0}, skip=3)
    node.send("NDATA", {"alias": 1, "double_value": 2.0}, skip=1)
    node.seq = 254
    node.send("NDATA", {"alias": 1, "double_value": 3.0}, skip=0)
    node.send("NDATA", {"alias": 1, "double_value": 4.0})  # number 0 after 255
    assert bridged.rows(7, "value", "gap")[3:] == [(1.0, True), (2.0, True), (3.0, True), (4.0, False)]
    assert bridged.bridge.status().missed == 3 + 1 + 248
    until(lambda: node.commands, "the request")
    _, (asked,) = read_payload(node.commands[0])
    assert (asked.name, asked.type, asked.value) == ("Node Control/Rebirth", BOOLEAN, True)
    assert len(node.commands) == 1


@redelivers
def test_a_bridge_that_starts_again_asks_for_the_names_that_it_has_not(
    broker: Broker, group: str, bridged: Bridged
) -> None:
    node = EdgeNode(broker, group)
    node.birth()
    bridged.rows(3, "value")
    bridged.bridge.stop()
    node.send("NDATA", {"alias": 1, "double_value": 1.0})  # at QoS 1, so the session keeps it
    bridged.start()
    assert bridged.rows(4, "metric", "alias", "value", "gap")[3:] == [(None, 1, 1.0, True)]
    until(lambda: node.commands, "the request")
    node.birth()
    node.send("NDATA", {"alias": 1, "double_value": 2.0})
    assert bridged.rows(8, "metric", "value", "gap")[-1] == ("temp", 2.0, False)


@redelivers
def test_the_death_of_a_former_session_is_none(broker: Broker, group: str, bridged: Bridged) -> None:
    node = EdgeNode(broker, group)
    node.birth(session=2)
    node.send("NDEATH", {"name": "bdSeq", "datatype": UINT64, "long_value": 1}, numbered=False)
    node.send("NDEATH", {"name": "bdSeq", "datatype": UINT64, "long_value": 2}, numbered=False)
    broker.publish(f"spBv1.0/{group}/NDATA/N1", b"\xff\xff", "no payload")
    until(lambda: len(bridged.texts()) >= 6, "all")
    assert (
        json.loads(bridged.texts()[3])["message"] == "NDEATH" and json.loads(bridged.texts()[3])["quality"] == "stale"
    )
    assert bridged.texts()[4:] == [f"{NOT_UTF8}//8=", "no payload"], "they become dead letters"


def test_bytes_of_the_specification_are_read() -> None:
    """A payload written by hand, field by field, as Sparkplug's description has them."""
    metric = b"\x0a\x01t" + b"\x10\x07" + b"\x18\x01" + b"\x20\x0a" + b"\x69" + b"\x00\x00\x00\x00\x00\x00\xf8\x3f"
    seq, (found,) = read_payload(b"\x08\x02" + b"\x12" + bytes([len(metric)]) + metric + b"\x18\x05")
    assert (seq, found.name, found.alias, found.time, found.type, found.value) == (5, "t", 7, 1, 10, 1.5)
    metric = b"\x10\x07" + b"\x4a\x0d\x0a\x07Quality\x12\x02\x18\x00" + b"\x50\xff\xff\x03"
    _, (found,) = read_payload(b"\x12" + bytes([len(metric)]) + metric)
    assert (found.name, found.quality, value_of(found, INT16), value_of(found, None)) == (None, "bad", -1, 65535)


def test_a_topic_of_something_else_is_refused() -> None:
    with pytest.raises(DataflowError, match="is not of Sparkplug B"):
        SparkplugSource(id="s", broker="b", topic="plant/#", schema_text=sparkplug_columns("string")).output(())
