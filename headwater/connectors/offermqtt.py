"""Replay of a record to a source of MQTT messages: as a message to the topic that it came from."""

from __future__ import annotations

from headwater.connectors.deadletters import DeadLetter
from headwater.connectors.mqtt import broker_address
from headwater.connectors.mqttclient import MqttConnection, MqttMessage
from headwater.connectors.spoolwriter import payload_of
from headwater.core.errors import DeploymentError
from headwater.dataflow.sources import MqttSource


class MqttOffer:
    """A message that is sent once. After a crash it is unknown whether the broker had it."""

    draft: str | None = None

    def __init__(self, source: MqttSource, location: str, topic: str, record: str) -> None:
        self._source, self._location, self._topic = source, location, topic
        self._payload = payload_of(record)
        self._sender: MqttConnection

    @property
    def target(self) -> str:
        """Return the broker and topic that get the record."""
        return f"mqtt:{self._topic}"

    def make_ready(self) -> None:
        """Connect to the broker; raise Unavailable where that fails, while nothing is sent yet."""
        self._sender = MqttConnection(broker_address(self._source, self._location))

    def offer(self) -> None:
        """Send the message, and wait until the broker has it."""
        self._sender.send([MqttMessage(topic=self._topic, payload=self._payload)])

    def leave(self) -> None:
        """Close the connection."""
        self._sender.close()


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
