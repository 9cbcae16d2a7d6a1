"""A time keeps its microseconds in every sink, and has one form in all of them that write JSON or text."""

from __future__ import annotations

import base64
import json
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pyarrow.parquet
import pytest

import headwater as hw
from headwater import iot
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.dataflow.sinks import CallbackSink
from headwater.dataflow.stateful import Scan
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.query.scan import key_text
from headwater.spark.broker import LocalBroker
from headwater.spark.endpoint import LocalEndpoint
from tests.conformance import mqttbrokers, test_kafka_sink

ONE = Continuum.from_text("layers: [cloud]\nzones: {C1: {layer: cloud, locations: [L1]}}\n")
AT, LOCAL = datetime(2024, 1, 31, 12, 0, 0, 123456, tzinfo=UTC), datetime(2024, 1, 31, 12, 0, 0, 123456)
ROW = {"id": 1, "at": "2024-01-31T12:00:00.123456Z", "here": "2024-01-31T12:00:00.123456"}


def test_every_sink_keeps_microseconds(
    endpoint: LocalEndpoint, broker: LocalBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text(json.dumps(ROW) + "\n")
    url = f"jdbc:derby:{tmp_path / 'db'};create=true"
    builder = hw.flow("times", locations=["L1"])
    rows = builder.read.json(str(tmp_path / "in"), "id int, at timestamp, here timestamp_ntz")
    for kind in ("parquet", "csv", "json"):
        getattr(rows.write, kind)(str(tmp_path / kind))
    rows.write.memory("memory")
    rows.write.kafka(broker.address, topic)
    iot.insert_table(rows, "times", database=str(tmp_path / "t.db"))
    rows.select("id", "at").write.jdbc(url, "times")
    deployment = LocalRun(build(builder.build(), ONE), tmp_path / "run", endpoint, UnitSettings())
    deployment.start()
    try:
        deployment.drain()
        assert deployment.sink_rows("memory").to_pylist() == [{"id": 1, "at": AT, "here": LOCAL}]
    finally:
        deployment.stop()
    (parquet,) = (tmp_path / "parquet").glob("*.parquet")
    assert pa.parquet.ParquetFile(parquet).read().to_pylist() == [{"id": 1, "at": AT, "here": LOCAL}]
    (csv,) = (tmp_path / "csv").glob("*.csv")
    assert csv.read_text().splitlines()[1] == "1,2024-01-31 12:00:00.123456Z,2024-01-31 12:00:00.123456"
    (lines,) = (tmp_path / "json").glob("*.json")
    assert json.loads(lines.read_text()) == ROW
    assert [json.loads(value) for _, value in test_kafka_sink.read(broker, topic)] == [ROW]
    with sqlite3.connect(tmp_path / "t.db") as table:
        assert table.execute("SELECT id, at, here FROM times").fetchall() == [tuple(ROW.values())]
    reader = endpoint.session().read.format("jdbc").option("url", url).option("dbtable", "times")
    assert [r.at for r in reader.load().collect()] == [AT.replace(tzinfo=None)]


def test_messages_of_mqtt_keep_microseconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTT_USER", "probe")
    monkeypatch.setenv("MQTT_PASSWORD", "secret")
    builder = hw.flow("times", locations=["L1"])
    rows = builder.read.json("in", "id int, at timestamp, here timestamp_ntz")
    broker, found = mqttbrokers.Broker("amqtt", tmp_path), []
    try:
        address = f"localhost:{broker.start().port}"
        broker.client.on_message = lambda client, data, message: found.append(json.loads(message.payload))
        broker.client.subscribe("times", qos=1)
        iot.publish_mqtt(rows, "times", broker=address, username_env="MQTT_USER", password_env="MQTT_PASSWORD")
        (sink,) = builder.build().sinks
        assert isinstance(sink, CallbackSink)
        publish = cloudpickle.loads(base64.b64decode(sink.function.pickled))
        publish(pa.Table.from_pylist([{"id": 1, "at": AT, "here": LOCAL}]), 0)
        mqttbrokers.until(lambda: bool(found), "the message")
    finally:
        broker.kill()
    assert found == [ROW]


def test_keys_of_scans_that_differ_in_microseconds_are_different(endpoint: LocalEndpoint) -> None:
    def count(state: int, row: dict[str, object]) -> tuple[int, dict[str, object]]:
        return state + 1, {"n": state + 1}

    builder = hw.flow("scan", locations=["L1"])
    rows = builder.read.json("in", "at timestamp, here timestamp_ntz, v int")
    rows.scan(count, "n int", keys=["at", "here"], order_by="v", initial=0).named("scan").write.memory("out")
    flow = builder.build()
    scan = flow["scan"]
    assert isinstance(scan, Scan)
    text = key_text(scan, flow.types[scan.inputs[0]])
    columns = ("timestamp'2024-01-31 12:00:00.12345{}' AS at", "timestamp_ntz'2024-01-31 12:00:00.12345{}' AS here")
    found = [
        endpoint.session().sql(f"SELECT {text} FROM (SELECT {columns[0].format(a)}, {columns[1].format(b)})").first()
        for a, b in ((1, 1), (2, 1), (1, 2))
    ]
    assert len(set(found)) == 3
