"""MQTT brokers that tests start, amqtt and mosquitto where it is installed, and bridges of their topics."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.channels.filelog import FileLog
from headwater.connectors.mqtt import MqttBridge
from headwater.connectors.mqttloop import mqtt_client
from headwater.dataflow.sources import MqttSource
from tests.conftest import free_port

pytest.importorskip("paho.mqtt.client")
pytest.importorskip("amqtt")

SECONDS = 30


def find_mosquitto() -> str | None:
    # Debian puts it where users' PATH does not look.
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


KINDS = ["amqtt", *(["mosquitto"] if find_mosquitto() else [])]


def client_of(name: str, *, five: bool = False) -> Any:
    """Return a client with the account of the tests."""
    client = mqtt_client(name, five=five, tls=False, username_env=None, password_env=None, where="test")
    client.username_pw_set("probe", "secret")
    return client


class Broker:
    """A broker process; mosquitto's sessions outlive it, amqtt's do not."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind, self.directory, self.port = kind, directory, free_port()

    def start(self) -> Broker:
        if self.kind == "amqtt":
            command = [
                sys.executable,
                "-W",
                "ignore",
                str(Path(__file__).with_name("mqtt_broker.py")),
                str(self.port),
            ]
        else:
            command = [str(find_mosquitto()), "-c", str(self._configure())]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.client: Any = None
        until(self._answers, "the broker to start")
        return self

    def _configure(self) -> Path:
        users, config = self.directory / "users", self.directory / "mosquitto.conf"
        settings = {"listener": f"{self.port} 127.0.0.1", "max_inflight_messages": "100"}
        settings |= {"max_queued_messages": "0", "user": "root"}
        settings |= {
            "persistence": "true",
            "persistence_location": f"{self.directory}/",
            "autosave_interval": "1",
        }
        settings |= {"allow_anonymous": "false", "password_file": str(users)}
        config.write_text("".join(f"{k} {v}\n" for k, v in settings.items()))
        users.touch(0o600)
        subprocess.run(["mosquitto_passwd", "-b", str(users), "probe", "secret"], check=True, capture_output=True)
        return config

    def _answers(self) -> bool:
        assert self.process.poll() is None, "the broker ended"
        client = client_of("publisher")
        try:
            client.connect("127.0.0.1", self.port)
        except OSError:
            return False
        client.loop_start()
        until(lambda: client.is_connected() or self.process.poll() is not None, "the broker's answer")
        self.client = client
        return client.is_connected()

    def publish(self, topic: str, *payloads: str | bytes, qos: int = 1) -> None:
        for payload in payloads:
            sent = self.client.publish(topic, payload, qos=qos)
            sent.wait_for_publish(SECONDS)
            assert sent.is_published()

    def kill(self) -> None:
        if getattr(self, "client", None) is not None:
            self.client.disconnect()
            self.client.loop_stop()
            self.client = None
        if hasattr(self, "process"):
            self.process.kill()
            self.process.wait(10)


@pytest.fixture(scope="module", params=KINDS)
def shared_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(request.param, tmp_path_factory.mktemp("broker"))
    try:
        yield broker.start()
    finally:
        broker.kill()


@pytest.fixture
def broker(shared_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    monkeypatch.setenv("HEADWATER_SECRET_MQTT_USER", "probe")
    monkeypatch.setenv("HEADWATER_SECRET_MQTT_PASSWORD", "secret")
    return shared_broker


once = pytest.mark.parametrize(
    "shared_broker", [KINDS[-1], *(pytest.param(k, marks=pytest.mark.long) for k in KINDS[:-1])], indirect=True
)
"""For slow tests: with the other brokers they are long."""
redelivers = pytest.mark.parametrize(
    "shared_broker",
    ["mosquitto" if "mosquitto" in KINDS else pytest.param("amqtt", marks=pytest.mark.skip("no mosquitto here"))],
    indirect=True,
)
"""For tests of messages that a broker sends again after a connection's end: amqtt forgets them."""


@pytest.fixture
def topic(tmp_path: Path) -> str:
    return f"plant/{tmp_path.name}"


def until(met: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not met():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.02)


def source(broker: Broker, topic: str, *, qos: int = 1) -> MqttSource:
    return MqttSource(
        id="mqtt_1",
        broker=f"127.0.0.1:{broker.port}",
        topic=topic,
        schema_text="v bigint",
        qos=qos,
        username_env="HEADWATER_SECRET_MQTT_USER",
        password_env="HEADWATER_SECRET_MQTT_PASSWORD",
    )


class Bridges:
    """Starts bridges of one source and log, one at a time."""

    def __init__(self, of: MqttSource, log: FileLog) -> None:
        self.source, self.log, self.epoch = of, log, 0
        self.bridge: MqttBridge | None = None

    def start(self, *, same_epoch: bool = False, **settings: Any) -> MqttBridge:
        self.epoch += not same_epoch
        bridge = MqttBridge(self.source, location="edge1", log=self.log, epoch=self.epoch, **settings)
        bridge.start()
        self.bridge = bridge
        until(lambda: bridge.status().state == "connected", f"a connection: {bridge.status()}")
        return bridge

    def values(self) -> list[str]:
        batches = self.log.read(self.log.earliest(), self.log.latest())
        return [v for batch in batches for v in batch.column("value").to_pylist()]

    def await_values(self, expected: list[str]) -> None:
        until(lambda: len(self.values()) >= len(expected), f"{len(expected)} values, has {self.values()}")
        assert self.values() == expected


@pytest.fixture
def bridges(broker: Broker, topic: str, tmp_path: Path) -> Iterator[Bridges]:
    bridges = Bridges(source(broker, topic), FileLog(tmp_path / "log", fsync=False))
    yield bridges
    if bridges.bridge:
        bridges.bridge.stop()
