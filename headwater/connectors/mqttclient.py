"""Connections to MQTT brokers, for programs that send: the address, the account, and messages that are waited for."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from headwater.connectors.mqttloop import mqtt_client
from headwater.core.errors import DataflowError, Unavailable

SECONDS = 10.0
"""Seconds for the broker to accept a connection, and a message."""

_IN_FLIGHT = 200  # messages that wait for their acknowledgement at once


@dataclass(frozen=True, kw_only=True)
class MqttAddress:
    """A broker: host, port, whether TLS is used, the names of the secrets with user and password."""

    host: str
    port: int
    tls: bool
    username_env: str | None
    password_env: str | None
    where: str

    @classmethod
    def parse(
        cls, text: str, *, tls: bool, username_env: str | None, password_env: str | None, where: str
    ) -> MqttAddress:
        """Parse ``[mqtt[s]://]host[:port]``; raise DataflowError if it is no such address."""
        try:
            parts = urlsplit(text if "://" in text else f"mqtt://{text}")
            host, port, scheme = parts.hostname, parts.port, parts.scheme
            (host or "").encode("idna")
        except ValueError:
            host, port, scheme = None, None, ""
        if not host or scheme not in ("mqtt", "mqtts") or parts.path not in ("", "/"):
            raise DataflowError(
                "not the address of a broker",
                where=where,
                hint="write it as 'host', 'host:1883' or mqtts://host",
            )
        if parts.username is not None or parts.password is not None:
            raise DataflowError(
                "a name or password in the broker's address would be stored and shown",
                where=where,
                hint="name environment variables instead: username_env='...', password_env='...'",
            )
        tls = tls or scheme == "mqtts"
        port = port or (8883 if tls else 1883)
        return cls(host=host, port=port, tls=tls, username_env=username_env, password_env=password_env, where=where)

    @property
    def server(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class MqttMessage:
    """A message to send; ``id``: a property by which receivers recognise a repetition (MQTT 5)."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    id: str | None = None


class MqttConnection:
    """A connection that sends messages and waits until the broker has them.

    ``name``: its client id; a broker ends an older connection of the same name. ``five``: MQTT 5 if the broker
    speaks it, else 3.1.1. Raise Unavailable where the broker cannot be reached or refuses.
    """

    def __init__(self, address: MqttAddress, *, name: str = "", five: bool = False) -> None:
        self._address = address
        refused: str | None = None
        for self._five in (True, False) if five else (False,):
            self._client = mqtt_client(
                name,
                five=self._five,
                tls=address.tls,
                username_env=address.username_env,
                password_env=address.password_env,
                where=address.where,
            )
            refused = self._connect()
            if refused is None:
                return
        raise self._unreachable(str(refused))

    def _connect(self) -> str | None:
        """Connect; return why the broker refuses this version of the protocol, or the account."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client, address = self._client, self._address
        client.max_inflight_messages_set(_IN_FLIGHT)
        client.on_connect = lambda client, data, flags, reason, properties: answers.put(reason)
        client.on_disconnect = lambda client, data, flags, reason, properties: answers.put(reason)
        try:
            client.connect(address.host, address.port)
            client.loop_start()
            reason = answers.get(timeout=SECONDS)
        except OSError as error:
            client.loop_stop()
            raise self._unreachable(str(error)) from None
        except queue.Empty:  # from some brokers that do not speak this version
            client.loop_stop()
            return "no answer"
        if reason.is_failure:
            client.loop_stop()
            return str(reason)
        return None

    def send(self, messages: Iterable[MqttMessage]) -> None:
        """Send messages in their order; return when the broker has all of them."""
        try:
            waiting = [
                self._client.publish(m.topic, m.payload, qos=m.qos, retain=m.retain, properties=self._properties(m))
                for m in messages
            ]
            for sent in waiting:
                sent.wait_for_publish(SECONDS)
                if not sent.is_published():
                    raise self._unreachable("no answer to a message")
        except (ValueError, RuntimeError) as error:
            raise self._unreachable(str(error)) from None

    def _properties(self, message: MqttMessage) -> Any:
        if message.id is None or not self._five:
            return None
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        made: Any = Properties
        properties = made(PacketTypes.PUBLISH)
        properties.UserProperty = ("headwater-id", message.id)
        return properties

    def close(self) -> None:
        """Close the connection."""
        self._client.disconnect()
        self._client.loop_stop()

    def _unreachable(self, why: str) -> Unavailable:
        return Unavailable(
            f"the MQTT broker {self._address.server} did not take the message: {why}",
            where=self._address.where,
            hint="check that the broker runs and that this machine reaches it",
        )
