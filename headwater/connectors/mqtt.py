"""The bridge from an MQTT topic to a filelog, from which Spark reads.

A message is acknowledged to the broker only when it is durable in the log, in a session that the
broker keeps: unacknowledged messages are sent again, after a crash as after a lost connection.

Guarantees:

- QoS 1: no message is lost. One may be stored twice: if the bridge is killed after storing it
  and before the broker has its acknowledgement, or the connection is lost with that under way.
- QoS 2 is subscribed to as QoS 1: the client library says "received" before a message can be
  durable, so with QoS 2 a crash would lose the messages in memory.
- QoS 0: messages that arrive while the bridge is down are lost, and those in memory at a crash.

Memory is bounded. When the log is full, messages wait here up to the bound, then the bridge stops
reading the connection. The broker keeps the rest, up to its own limit (mosquitto drops messages
above ``max_queued_messages``, 1000); it may end the connection meanwhile, which is opened again
when there is room.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwater.channels.filelog import FileLog
from headwater.connectors.bridge import STOP_SECONDS, Bridge
from headwater.connectors.mqttclient import MqttAddress
from headwater.connectors.mqttloop import mqtt_client
from headwater.connectors.spoolwriter import Received, text_of
from headwater.core.errors import Unavailable
from headwater.dataflow.sources import MqttSource

_LOG = logging.getLogger(__name__)
_KEEPALIVE = 60
_FOR_EVER = 0xFFFFFFFF  # seconds of a session
_UNSUPPORTED = "Unsupported protocol version"  # the answer of a broker that speaks 3.1.1 alone
_RECONNECT = (1, 30)  # seconds between attempts to connect: the first pause, and the longest


@dataclass(eq=False)
class _Token:
    """Identifies a message: to acknowledge it, and to recognize it when it is sent again."""

    mid: int
    digest: bytes
    connection: int
    stored: bool = False


class MqttBridge(Bridge[_Token | None]):
    """Store the messages of one source at one location in ``log``.

    The log's path makes the session's name at the broker differ from that of other dataflows.
    """

    def __init__(
        self,
        source: MqttSource,
        *,
        location: str,
        log: FileLog,
        epoch: int,
        flush_seconds: float = 0.2,
        flush_rows: int = 1000,
    ) -> None:
        self._source = source
        self._where = source.where
        address = broker_address(source, location)
        self._five = source.version == "5"
        self._host, self._port, self._tls = address.host, address.port, address.tls
        self._broker = f"{'mqtts' if self._tls else 'mqtt'}://{self._host}:{self._port}"
        self.topic = source.topic.replace("{location}", location)
        identity = [str(log.path.absolute()), source.id, location, self._broker, self.topic]
        # 23 characters: the length that every MQTT 3.1.1 broker accepts. Another topic is another
        # session, so that the broker stops queueing the old topic's messages.
        self.client_id = "hw-" + hashlib.sha256("\0".join(identity).encode()).hexdigest()[:20]
        super().__init__(
            log=log,
            epoch=epoch,
            name=f"mqtt-{source.id}",
            address=f"{self._broker}, topic {self.topic}",
            flush_seconds=flush_seconds,
            flush_rows=flush_rows,
        )
        self._connection = 0
        self._tokens: dict[int, _Token] = {}  # of messages not yet acknowledged
        self._client: Any = None

    def _prepare(self) -> None:
        self._client = self._make_client()

    def _connect(self) -> None:
        self._client.connect_async(self._host, self._port, keepalive=_KEEPALIVE, **self._session())
        self._client.loop_start()

    def _disconnect(self) -> None:
        """Disconnect; the broker keeps the session, and sends unacknowledged messages again."""
        if self._client is None:
            return
        with contextlib.suppress(Exception):
            self._client.disconnect()
        if self._spool.stopping:  # else this is the storing thread: it must not wait for paho's
            self._client.loop_stop()

    def forget(self) -> None:
        """Make the broker drop the session of a stopped bridge, when its source is removed for good.

        Otherwise the broker would queue messages for it without end.
        """
        reason = self._forgotten()
        if self._five and reason == _UNSUPPORTED:
            self._five = False
            reason = self._forgotten()
        if reason.is_failure:
            raise self._unreachable(str(reason))

    def _forgotten(self) -> Any:
        """Connect once with a new session, which ends the old one; return the broker's answer."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client = self._make_client(clean=True)

        def connected(client: Any, _data: object, _flags: object, reason: Any, _properties: object) -> None:
            client.disconnect()
            answers.put(reason)

        client.on_connect = connected
        try:
            client.connect(self._host, self._port, **({"clean_start": True} if self._five else {}))
            client.loop_start()
            return answers.get(timeout=STOP_SECONDS)
        except (OSError, queue.Empty) as error:
            raise self._unreachable(str(error) or "no answer") from None
        finally:
            client.loop_stop()

    def _unreachable(self, why: str) -> Unavailable:
        return Unavailable(
            f"no MQTT broker at {self._broker}: {why}",
            where=self._where,
            hint="check that the broker runs and that this machine reaches it",
        )

    # -- the broker's side: paho's thread ----------------------------------------------------

    def _make_client(self, *, clean: bool = False) -> Any:
        client = mqtt_client(
            self.client_id,
            five=self._five,
            tls=self._tls,
            username_env=self._source.username_env,
            password_env=self._source.password_env,
            where=self._where,
            clean_session=None if self._five else clean,
            manual_ack=True,
        )
        client.reconnect_delay_set(*_RECONNECT)
        client.on_connect = self._on_connect
        client.on_connect_fail = self._on_connect_fail
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        return client

    def _session(self) -> dict[str, Any]:
        """Return the settings of a connection that keep the session at a broker of MQTT 5 for ever.

        Without them it would be a new one, which ends with the connection. In 3.1.1 the client's own setting does that.
        """
        if not self._five:
            return {}
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        made: Any = Properties
        properties = made(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = _FOR_EVER
        return {"clean_start": False, "properties": properties}

    def _on_connect(self, client: Any, _data: object, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            if self._five and reason == _UNSUPPORTED:
                # Not in this thread, which is the refused client's own.
                threading.Thread(target=self._fall_back, args=(client,), name="mqtt 3.1.1", daemon=True).start()
                return
            self._set("refused", f"the broker refuses the connection: {reason}")
            return
        kept = getattr(properties, "SessionExpiryInterval", _FOR_EVER)
        if kept != _FOR_EVER:
            _LOG.warning("%s keeps messages for %d s only while the bridge is down", self._broker, kept)
        with self._changed:
            self._connection += 1
            self._counts.connections += 1
            if not flags.session_present:
                # A new session does not have the old one's messages.
                self._tokens.clear()
        if flags.session_present:
            # Subscribing again would make the broker repeat its retained messages.
            self._set("connected")
        else:
            client.subscribe(self.topic, qos=min(self._source.qos, 1))

    def _fall_back(self, refused: Any) -> None:
        """Go on in MQTT 3.1.1, with the session of the same name."""
        refused.disconnect()
        refused.loop_stop()
        with self._changed:
            if self._spool.stopping or self._client is not refused:
                return
            _LOG.warning("%s does not speak MQTT 5: source '%s' goes on in 3.1.1", self._broker, self._source.id)
            self._five = False
            self._client = self._make_client()
            self._connect()

    def _on_subscribe(self, _client: Any, _data: object, _mid: int, reasons: list[Any], _properties: object) -> None:
        if reasons and reasons[0].is_failure:
            self._set("refused", f"the broker refuses the subscription to {self.topic!r}: {reasons[0]}")
        else:
            self._set("connected")

    def _on_connect_fail(self, _client: Any, _data: object) -> None:
        self._set("connecting", f"no MQTT broker answers at {self._broker}")

    def _on_disconnect(self, _client: Any, _data: object, _flags: object, reason: Any, _properties: object) -> None:
        # The connection ends after a refusal; the refusal is the better message.
        if self._state == "connected":
            self._set("connecting", f"the connection was lost: {reason}")

    def _on_message(self, client: Any, _data: object, message: Any) -> None:
        payload: bytes = message.payload
        topic = _topic(message)
        with self._changed:
            if self._spool.ends:
                return  # not acknowledged, so the broker sends it again
            token = None
            if message.qos > 0:
                digest = hashlib.sha256(topic.encode() + b"\0" + payload).digest()
                known = self._tokens.get(message.mid)
                if message.dup and known is not None and known.digest == digest:
                    # Sent again after a lost connection, but received before.
                    self._counts.repeated += 1
                    known.connection = self._connection
                    if known.stored:
                        del self._tokens[message.mid]
                        client.ack(message.mid, message.qos)
                    return
                token = self._tokens[message.mid] = _Token(message.mid, digest, self._connection)
            values, damaged = self._records(topic, payload)
            if not values:
                if token is not None:
                    del self._tokens[token.mid]
                    client.ack(token.mid, message.qos)
                return
            self._counts.not_utf8 += damaged
            # While this callback blocks, paho does not read the connection.
            self._spool.put(Received(values, topic, sum(map(len, values)), token))

    def _records(self, topic: str, payload: bytes) -> tuple[Sequence[str], int]:
        """Return the texts of a message's records, and how many of them were no text."""
        value, clean = text_of(payload)
        return (value,), not clean

    def _acknowledge(self, items: list[Received[_Token | None]]) -> None:
        with self._changed:
            for token in (item.token for item in items):
                if token is None or self._tokens.get(token.mid) is not token:
                    continue
                token.stored = True
                # The broker might take an acknowledgement from an earlier connection for one of a
                # message that is not stored yet. It sends this message again, and then gets its acknowledgement.
                if token.connection == self._connection:
                    del self._tokens[token.mid]
                    self._client.ack(token.mid, 1)


def broker_address(source: MqttSource, location: str) -> MqttAddress:
    """Return the address of a source's broker at a location."""
    return MqttAddress.parse(
        source.broker.replace("{location}", location),
        tls=source.tls,
        username_env=source.username_env,
        password_env=source.password_env,
        where=source.where,
    )


def _topic(message: Any) -> str:
    try:
        return str(message.topic)
    except UnicodeDecodeError:
        return "(topic is not UTF-8)"
