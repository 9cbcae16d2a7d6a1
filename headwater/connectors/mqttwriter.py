"""The MQTT sink writer: a batch's rows are messages, sent in order; a batch that was interrupted may be sent again.

MQTT has no transactions, and a broker does not tell what it has. So a batch is marked as sent in the unit's directory
once the broker has acknowledged all of it: only a crash before that repeats messages. Each message has the property
``headwater-id`` (MQTT 5), ``lineage/batch/row``, which a repeated one has too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwater.channels.segments import Segment
from headwater.connectors.mqttclient import MqttAddress, MqttConnection, MqttMessage
from headwater.connectors.sent import SentBatches
from headwater.connectors.staged import StagedSinkWriter
from headwater.core.errors import RuntimeFailure

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.dataflow.sinks import MqttSink


def sink_address(sink: MqttSink) -> MqttAddress:
    """Return the address of a sink's broker; raise DataflowError if it is none."""
    return MqttAddress.parse(
        sink.broker, tls=sink.tls, username_env=sink.username_env, password_env=sink.password_env, where=sink.where
    )


class MqttSinkWriter(StagedSinkWriter):
    """Send messages: ``broker``, ``topic`` (or a column of that name), ``qos``, ``retain``, ``lineage``.

    ``username_env`` and ``password_env`` name environment variables of the process that writes.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        self._where = f"operator {spec.get('operator', 'mqtt')!r}"
        self._address = MqttAddress.parse(
            str(spec["broker"]),
            tls=bool(spec.get("tls")),
            username_env=spec.get("username_env"),
            password_env=spec.get("password_env"),
            where=self._where,
        )
        self._topic: str | None = spec.get("topic")
        self._qos, self._retain = int(spec.get("qos", 1)), bool(spec.get("retain"))
        self._lineage = str(spec.get("lineage") or "")
        self._sent = SentBatches(self._scratch, self._lineage)

    def commit(self, segments: Sequence[Segment], batch: int) -> None:
        """Send a batch, unless it is marked as sent; raise Unavailable if the broker does not take it."""
        files = [p for p in segments if p.file]
        if files and batch not in self._sent:
            sender = MqttConnection(self._address, five=True)
            try:
                sender.send(self._messages(self.batches(files), batch))
            finally:
                sender.close()
            self._sent.add(batch)
        self.abort(files)

    def _messages(self, tables: Sequence[pa.RecordBatch], batch: int) -> Iterator[MqttMessage]:
        number = 0
        for table in tables:
            values = table.column("value").to_pylist()
            topics = [self._topic] * len(values) if self._topic else table.column("topic").to_pylist()
            for value, topic in zip(values, topics, strict=True):
                if not topic or set(topic) & set("+#\0"):
                    raise RuntimeFailure(
                        f"a row names no topic: {topic!r}",
                        where=f"{self._where}, batch {batch}",
                        hint="filter such rows before the sink, or give them a topic without + and #",
                    )
                payload = value.encode() if isinstance(value, str) else value or b""
                yield MqttMessage(
                    topic=topic,
                    payload=payload,
                    qos=self._qos,
                    retain=self._retain,
                    id=f"{self._lineage}/{batch}/{number}",
                )
                number += 1

    def newest(self) -> int | None:
        """Return None: receivers may see a batch again."""
        return None
