"""Replay of a record to a source of MQTT messages: as a message to the topic that it came from."""

from __future__ import annotations

import base64
import queue
from typing import Any

from headwater.connectors.deadletters import DeadLetter
from headwater.connectors.mqtt import broker_address
from headwater.connectors.reasons import NOT_UTF8
from headwater.core.errors import DeploymentError, Unavailable
from headwater.dataflow.sources import MqttSource
from headwater.disk.credentials import read_secret

_SECONDS = 10.0  # seconds for the broker to accept a connection, and a message


class MqttOffer:
    """A message that is sent once. After a crash it is unknown whether the broker had it."""

    draft: str | None = None

    def __init__(self, source: MqttSource, location: str, topic: str, record: str) -> None:
        self._source, self._location, self._topic = source, location, topic
        coded = record.startswith(NOT_UTF8)
        self._payload = base64.b64decode(record.removeprefix(NOT_UTF8)) if coded else record.encode()
        self._client: Any = None

    @property
    def target(self) -> str:
        """Return the broker and topic that get the record."""
        return f"mqtt:{self._topic}"

    def make_ready(self) -> None:
        """Connect to the broker; raise Unavailable where that fails, while nothing is sent yet."""
        self._client = self._connected()

    def offer(self) -> None:
        """Send the message, and wait until the broker has it."""
        try:
            sent = self._client.publish(self._topic, self._payload, qos=1)
            sent.wait_for_publish(_SECONDS)
            if not sent.is_published():
                raise self._unreachable("no answer to the message")
        except (ValueError, RuntimeError) as error:
            raise self._unreachable(str(error)) from None

    def leave(self) -> None:
        """Close the connection."""
        self._client.disconnect()
        self._client.loop_stop()

    def _connected(self) -> Any:
        try:
            from paho.mqtt import client as paho
            from paho.mqtt.enums import CallbackAPIVersion
        except ImportError:
            raise Unavailable("paho-mqtt is not installed", hint="pip install headwater[mqtt]") from None
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        host, port, tls = broker_address(self._source, self._location)
        client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv311)
        user = read_secret(self._source.username_env, where=self._source.where)
        password = read_secret(self._source.password_env, where=self._source.where)
        if user is not None or password is not None:
            client.username_pw_set(user or "", password)
        if tls:
            client.tls_set()
        client.on_connect = lambda client, data, flags, reason, properties: answers.put(reason)
        try:
            client.connect(host, port)
            client.loop_start()
            reason = answers.get(timeout=_SECONDS)
        except (OSError, queue.Empty) as error:
            client.loop_stop()
            raise self._unreachable(str(error) or "no answer") from None
        if reason.is_failure:
            client.loop_stop()
            raise self._unreachable(str(reason))
        return client

    def _unreachable(self, why: str) -> Unavailable:
        return Unavailable(
            f"the MQTT broker did not take the record: {why}",
            where=self._source.where,
            hint="check that the broker runs and that this machine reaches it",
        )


def mqtt_offer(source: MqttSource, location: str, letter: DeadLetter, record: str) -> MqttOffer:
    """Prepare a record for the topic it came from; raise DeploymentError where that is unknown."""
    own = source.topic.replace("{location}", location)
    if own.startswith("$share/"):
        own = own.partition("/")[2].partition("/")[2]
    kind, _, topic = str(letter.data.get("source") or "").partition(":")
    if kind == "mqtt" and topic and not set(topic) & set("+#\0") and _is_of(own, topic):
        return MqttOffer(source, location, topic, record)
    if set(own) & set("+#"):
        raise DeploymentError(
            "the record's topic is unknown, or the source no longer reads it",
            where=source.where,
            hint="publish the corrected message yourself",
        )
    return MqttOffer(source, location, own, record)


def _is_of(pattern: str, topic: str) -> bool:
    """Return whether a topic matches a subscription."""
    wanted, given = pattern.split("/"), topic.split("/")
    for n, part in enumerate(wanted):
        if part == "#":
            return True
        if n >= len(given) or part not in ("+", given[n]):
            return False
    return len(wanted) == len(given)
