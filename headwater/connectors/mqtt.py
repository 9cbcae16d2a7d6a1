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

import base64
import contextlib
import copy
import datetime
import hashlib
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from headwater.channels.filelog import FileLog
from headwater.connectors.mqttclient import MqttAddress
from headwater.connectors.reasons import NOT_UTF8
from headwater.core.errors import ChannelFull, HeadwaterError, Unavailable
from headwater.dataflow.sources import MqttSource
from headwater.disk.credentials import read_secret

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.channels.segments import Segment

MESSAGE_SCHEMA = "value string, topic string, received timestamp"

State: TypeAlias = Literal["new", "connecting", "connected", "refused", "failed", "stopped"]

_KEEPALIVE = 60
_MAX_BYTES = 32 * 2**20  # payload bytes that may wait in memory
_MAX_BATCHES = 4  # batches that may wait in memory
_RECONNECT = (1, 30)  # seconds between attempts to connect: the first pause, and the longest
_STOP_SECONDS = 10.0
_RETRY_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class BridgeStatus:
    """Status of a bridge. ``error`` is the present problem; a full log is an error, not a state."""

    state: State
    broker: str
    topic: str
    client_id: str
    received: int = 0
    stored: int = 0
    waiting: int = 0
    not_utf8: int = 0
    repeated: int = 0
    connections: int = 0
    last_message: float | None = None
    error: str | None = None


class _Message(NamedTuple):
    value: str
    topic: str
    received: datetime.datetime
    size: int
    token: _Token | None


@dataclass(eq=False)
class _Token:
    """Identifies a message: to acknowledge it, and to recognize it when it is sent again."""

    mid: int
    digest: bytes
    connection: int
    stored: bool = False


@dataclass
class _Counts:
    received: int = 0
    stored: int = 0
    not_utf8: int = 0
    repeated: int = 0
    connections: int = 0
    last_message: float | None = None


@dataclass
class _Buffer:
    messages: deque[_Message] = field(default_factory=deque)
    bytes: int = 0


class MqttBridge:
    """Store the messages of one source at one location in ``log``.

    The log's path makes the session's name at the broker differ from that of other dataflows. To start again, make a
    new bridge.
    """

    def __init__(
        self,
        source: MqttSource,
        *,
        location: str,
        log: FileLog,
        epoch: int,
        flush_seconds: float = 0.2,
        flush_messages: int = 1000,
    ) -> None:
        self._source = source
        self._where = source.where
        self._epoch = epoch
        self._flush_seconds = flush_seconds
        self._flush_messages = flush_messages
        # A writer that waits in the log cannot be stopped: wait here instead, a second at a time.
        self._log = copy.copy(log)
        self._log.limits = replace(log.limits, block_timeout=min(_RETRY_SECONDS, log.limits.block_timeout))
        address = broker_address(source, location)
        self._host, self._port, self._tls = address.host, address.port, address.tls
        self.topic = source.topic.replace("{location}", location)
        identity = [str(log.path.absolute()), source.id, location, self._broker, self.topic]
        # 23 characters: the length that every MQTT 3.1.1 broker accepts. Another topic is another
        # session, so that the broker stops queueing the old topic's messages.
        self.client_id = "hw-" + hashlib.sha256("\0".join(identity).encode()).hexdigest()[:20]

        self._changed = threading.Condition()  # guards everything below
        self._state: State = "new"
        self._error: str | None = None
        self._stopping = False
        self._connection = 0
        self._buffer = _Buffer()
        self._tokens: dict[int, _Token] = {}  # of messages not yet acknowledged
        self._counts = _Counts()
        self._batch = 0
        self._client: Any = None
        self._writer: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"MqttBridge({self._broker}, {self.topic!r}, {self._state})"

    @property
    def _broker(self) -> str:
        return f"{'mqtts' if self._tls else 'mqtt'}://{self._host}:{self._port}"

    # -- start and stop --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to receive; retry while the broker does not answer.

        Raise Unavailable without paho-mqtt, RuntimeFailure when a variable with a name or
        password is not set, ChannelError when a newer writer has the log.
        """
        client = self._make_client()
        counts = self._log.fence(self._epoch)
        self._batch = counts[1] + 1 if counts and counts[0] == self._epoch else 0
        self._set("connecting")
        self._client = client
        self._writer = threading.Thread(target=self._write, name=f"mqtt-{self._source.id}", daemon=True)
        self._writer.start()
        client.connect_async(self._host, self._port, keepalive=_KEEPALIVE)
        client.loop_start()

    def stop(self) -> None:
        """Store and acknowledge the received messages, then disconnect; the broker keeps the session.

        Messages that cannot be stored within ten seconds stay unacknowledged, so the broker sends them again.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._writer is not None:
            self._writer.join(_STOP_SECONDS)
            self._writer = None
        if self._client is not None:
            self._client.disconnect()
            self._client.loop_stop()
            self._client = None
        if self._state != "failed":
            self._set("stopped")

    def forget(self) -> None:
        """Make the broker drop the session of a stopped bridge, when its source is removed for good.

        Otherwise the broker would queue messages for it without end.
        """
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client = self._make_client(clean=True)

        def connected(client: Any, _data: object, _flags: object, reason: Any, _properties: object) -> None:
            client.disconnect()
            answers.put(reason)

        client.on_connect = connected
        try:
            client.connect(self._host, self._port)
            client.loop_start()
            reason = answers.get(timeout=_STOP_SECONDS)
        except (OSError, queue.Empty) as error:
            raise self._unreachable(str(error) or "no answer") from None
        finally:
            client.loop_stop()
        if reason.is_failure:
            raise self._unreachable(str(reason))

    def status(self) -> BridgeStatus:
        """Return the bridge's status."""
        with self._changed:
            return BridgeStatus(
                state=self._state,
                broker=self._broker,
                topic=self.topic,
                client_id=self.client_id,
                received=self._counts.received,
                stored=self._counts.stored,
                waiting=len(self._buffer.messages),
                not_utf8=self._counts.not_utf8,
                repeated=self._counts.repeated,
                connections=self._counts.connections,
                last_message=self._counts.last_message,
                error=self._error,
            )

    def _set(self, state: State, error: str | None = None) -> None:
        with self._changed:
            self._state, self._error = state, error
            self._changed.notify_all()

    def _unreachable(self, why: str) -> Unavailable:
        return Unavailable(
            f"no MQTT broker at {self._broker}: {why}",
            where=self._where,
            hint="check that the broker runs and that this machine reaches it",
        )

    # -- the broker's side: paho's thread ----------------------------------------------------

    def _make_client(self, *, clean: bool = False) -> Any:
        try:
            from paho.mqtt import client as paho
            from paho.mqtt.enums import CallbackAPIVersion
        except ImportError:
            raise Unavailable(
                "paho-mqtt is not installed", where=self._where, hint="pip install headwater[mqtt]"
            ) from None
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=self.client_id,
            clean_session=clean,
            protocol=paho.MQTTv311,
            manual_ack=True,
        )
        user = read_secret(self._source.username_env, where=self._where)
        password = read_secret(self._source.password_env, where=self._where)
        if user is not None or password is not None:
            client.username_pw_set(user or "", password)
        if self._tls:
            client.tls_set()  # the system's CAs, or those in SSL_CERT_FILE
        client.reconnect_delay_set(*_RECONNECT)
        client.on_connect = self._on_connect
        client.on_connect_fail = self._on_connect_fail
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        return client

    def _on_connect(self, client: Any, _data: object, flags: Any, reason: Any, _properties: object) -> None:
        if reason.is_failure:
            self._set("refused", f"the broker refuses the connection: {reason}")
            return
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
            if self._stopping or self._state == "failed":
                return  # not acknowledged, so the broker sends it again
            self._counts.received += 1
            self._counts.last_message = time.time()
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
            value, clean = text_of(payload)
            self._counts.not_utf8 += not clean
            now = datetime.datetime.now(datetime.UTC)
            self._buffer.messages.append(_Message(value, topic, now, len(payload), token))
            self._buffer.bytes += len(payload)
            self._changed.notify_all()
            # While this callback blocks, paho does not read the connection.
            self._changed.wait_for(lambda: self._stopping or self._state == "failed" or self._has_room())

    def _has_room(self) -> bool:
        waiting = len(self._buffer.messages)
        return waiting < _MAX_BATCHES * self._flush_messages and self._buffer.bytes < _MAX_BYTES

    # -- the log's side: our own thread ------------------------------------------------------

    def _write(self) -> None:
        try:
            while True:
                messages = self._next_batch()
                if not messages or not self._store(messages):
                    return
                self._acknowledge(messages)
        except HeadwaterError as error:
            self._fail(str(error))
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, error: str) -> None:
        self._set("failed", error)
        # The storing thread has ended; without this the broker would go on sending.
        with contextlib.suppress(Exception):
            self._client.disconnect()

    def _next_batch(self) -> list[_Message]:
        """Wait for a batch that is full or old enough; return an empty one at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._buffer.messages or self._stopping)
            self._changed.wait_for(
                lambda: self._stopping or len(self._buffer.messages) >= self._flush_messages,
                timeout=self._flush_seconds,
            )
            batch: list[_Message] = []
            while self._buffer.messages and len(batch) < self._flush_messages:
                batch.append(self._buffer.messages.popleft())
            self._changed.notify_all()  # there is room for the message that the callback holds back
            return batch

    def _store(self, messages: list[_Message]) -> bool:
        """Make a batch durable; False when the bridge was stopped before there was room."""
        table = _table(messages)
        ingested = (messages[0].received.timestamp(), messages[-1].received.timestamp())
        segment: Segment | None = None
        tries = 0
        while True:
            try:
                if segment is None:
                    segment = self._stage(table)
                self._log.commit(self._epoch, self._batch, [segment], ingested=ingested)
                break
            except ChannelFull as error:
                if self._log.limits.when_full == "fail":
                    raise
                problem = error.what
            except OSError as error:  # a full disk may have room again
                problem = f"{type(error).__name__}: {error}"
            tries += 1
            with self._changed:
                self._error = problem
                if self._changed.wait_for(lambda: self._stopping, timeout=_RETRY_SECONDS):
                    if segment is not None:
                        self._log.discard([segment])
                    return False
        self._batch += 1
        with self._changed:
            if tries:
                self._error = None
            self._counts.stored += len(messages)
            self._buffer.bytes -= sum(m.size for m in messages)
            self._changed.notify_all()
        return True

    def _stage(self, table: pa.Table) -> Segment:
        writer = self._log.open_segment(table.schema)
        try:
            for part in table.to_batches():
                writer.write(part)
            segment = writer.close()
        except BaseException:
            writer.abandon()
            raise
        assert segment is not None
        return segment

    def _acknowledge(self, messages: list[_Message]) -> None:
        with self._changed:
            for message in messages:
                token = message.token
                if token is None or self._tokens.get(token.mid) is not token:
                    continue
                token.stored = True
                # The broker might take an acknowledgement from an earlier connection for one of a
                # message that is not stored yet. It sends this message again, and then gets its acknowledgement.
                if token.connection == self._connection:
                    del self._tokens[token.mid]
                    self._client.ack(token.mid, 1)


def text_of(payload: bytes) -> tuple[str, bool]:
    """Return a payload as text, and whether it was text; other bytes become marked base64.

    The mark makes it malformed JSON, so it becomes a dead letter with all its bytes; replacing
    the bad bytes could make well-formed JSON of it, and wrong data.
    """
    try:
        return payload.decode(), True
    except UnicodeDecodeError:
        return NOT_UTF8 + base64.b64encode(payload).decode(), False


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


def _table(messages: list[_Message]) -> pa.Table:
    import pyarrow as pa

    columns: Mapping[str, Any] = {
        "value": pa.array([m.value for m in messages], pa.string()),
        "topic": pa.array([m.topic for m in messages], pa.string()),
        "received": pa.array([m.received for m in messages], pa.timestamp("us", tz="UTC")),
    }
    return pa.table(columns)
