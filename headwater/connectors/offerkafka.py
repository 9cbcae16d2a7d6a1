"""Replay of a record to a topic: to the partition that it came from, with the key and headers that it had."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from headwater.channels import kafkaclient
from headwater.connectors.deadletters import DeadLetter, topic_position
from headwater.connectors.kafkasettings import librdkafka_settings, topic_at
from headwater.connectors.kafkavalues import BASE64, ValueDecoder, decoded_text
from headwater.connectors.pythonvalues import Misfit
from headwater.connectors.reasons import NOT_UTF8
from headwater.connectors.registry import HEADER, split_header
from headwater.core.errors import DeploymentError, Unavailable
from headwater.dataflow.kafkatopic import KafkaSource

_SECONDS = 15.0  # seconds for the broker to answer, and to take a record


class KafkaOffer:
    """A record that is produced once. After a crash it is unknown whether the broker had it."""

    draft: str | None = None

    def __init__(self, source: KafkaSource, location: str, position: tuple[str, int, int], record: str) -> None:
        self._source, self._location, self._record = source, location, record
        self._topic, self._partition, self._offset = position
        self._producer: Any = None
        self._message: Mapping[str, Any] = {}

    @property
    def target(self) -> str:
        """Return the topic and partition that get the record."""
        return f"kafka:{self._topic}/{self._partition}"

    def make_ready(self) -> None:
        """Read key and headers of the malformed record, and connect; raise Unavailable where that fails."""
        where = self._source.where
        settings = librdkafka_settings(self._source, self._location)
        found = self._original(settings)
        if found is None:
            raise DeploymentError(
                "the topic has the malformed record no more, so its key and headers are unknown",
                where=where,
                hint="produce the corrected record yourself",
            )
        self._message = {"value": self._value(found), "key": found.key(), "headers": found.headers() or []}
        self._producer = kafkaclient.client(
            "Producer",
            where,
            {**settings, "enable.idempotence": "true", "message.timeout.ms": str(int(_SECONDS * 1000))},
        )

    def offer(self) -> None:
        """Produce the record, and wait until the broker has it."""
        errors: list[Any] = []
        self._producer.produce(
            self._topic, partition=self._partition, on_delivery=lambda error, _: errors.append(error), **self._message
        )
        left = self._producer.flush(_SECONDS + 1)
        if left or not errors or errors[0] is not None:
            raise self._unreachable("no answer" if left or not errors else errors[0].str())

    def leave(self) -> None:
        """Drop the connection."""
        self._producer = None

    def _original(self, settings: Mapping[str, str]) -> Any:
        """Return the malformed record; None where the topic has it no more."""
        from confluent_kafka import KafkaException, TopicPartition

        consumer = kafkaclient.client(
            "Consumer",
            self._source.where,
            {**settings, "group.id": "headwater-replay", "enable.auto.commit": "false", "auto.offset.reset": "error"},
        )
        try:
            place = TopicPartition(self._topic, self._partition, self._offset)
            first, end = consumer.get_watermark_offsets(place, timeout=_SECONDS)
            if not first <= self._offset < end:
                return None
            consumer.assign([place])
            found = consumer.poll(_SECONDS)
        except KafkaException as error:
            raise self._unreachable(error.args[0].str()) from None
        finally:
            consumer.close()
        if found is None or found.error() is not None:
            raise self._unreachable("no answer" if found is None else found.error().str())
        return found if found.offset() == self._offset else None

    def _value(self, original: Any) -> bytes:
        """Return the bytes of the corrected record, behind the header of a registry that the malformed one had."""
        record = self._record
        if record.startswith(BASE64):
            return decoded_text(record)
        text = base64.b64decode(record.removeprefix(NOT_UTF8)) if record.startswith(NOT_UTF8) else record.encode()
        if self._source.registry is None:
            return text
        before = original.value() or b""
        if split_header(before) is None:
            raise DeploymentError(
                "the malformed record has no header of a schema registry to keep",
                where=self._source.where,
                hint=f"give the whole value, header included, as '{BASE64}...'",
            )
        return bytes(before[:HEADER]) + text

    def _unreachable(self, why: str) -> Unavailable:
        return Unavailable(
            f"the Kafka broker did not take the record: {why}",
            where=self._source.where,
            hint="check that the broker runs, that this machine reaches it, and that the user may write the topic",
        )


def kafka_offer(source: KafkaSource, location: str, letter: DeadLetter, record: str) -> KafkaOffer:
    """Prepare a record for the topic it came from; raise DeploymentError where that is another one by now."""
    position = topic_position(letter.data.get("source"))
    if position is None or position[0] != topic_at(source, location):
        raise DeploymentError(
            "the record's topic is unknown, or the source no longer reads it",
            where=source.where,
            hint="produce the corrected record yourself",
        )
    return KafkaOffer(source, location, position, record)


def misfit_of_bytes(source: KafkaSource, record: str) -> str | None:
    """Return why a value of bytes, in its text form, does not fit its schema; None where it does."""
    try:
        ValueDecoder(source).row(decoded_text(record))
    except Misfit as error:
        return str(error)
    return None
