"""The Kafka sink writer: every batch is one Kafka transaction, which also records the batch's number.

Kafka can store "batch 7 is written" only as the offset of a consumer group, which can be
part of a transaction. So each sink writer has a group of its own in which the offset of the topic's
partition 0 is the number of the next batch. A batch that Spark repeats after a crash is found
there and left out. A second writer with the same id, a process thought dead, is fenced by Kafka.

Requirements: consumers read with ``isolation.level=read_committed`` (librdkafka's default,
not the Java client's). Kafka deletes a group's offsets some days after its last commit
(``offsets.retention.minutes``, 7 days): a crash between a commit and Spark's record of it, with a restart
only later than that, repeats one batch.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwater.channels.kafkaclient import client, credentials, failure, fatal_as_error
from headwater.channels.segments import Segment
from headwater.connectors.staged import StagedSinkWriter
from headwater.core.errors import ChannelError, HeadwaterError, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.dataflow.sinks import KafkaSink

SECONDS = 60.0
"""Seconds that a broker may take to answer."""

_TRIES = 3
_ID = re.compile(r"headwater-\d+-.+")


def sink_writer_id(number: int, tag: str) -> str:
    """Name the sink writer of a checkpoint's number and an operator's tag: its transactions, and its group."""
    return f"headwater-{number}-{tag}"


def has_output(sink: KafkaSink) -> bool:
    """Return whether any sink writer has recorded batches in a sink's topic; the records outlive a run's directory."""
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

    servers = sink.bootstrap_servers
    settings = {**dict(sink.options), "bootstrap.servers": servers}
    settings |= credentials(sink.user_env, sink.password_env, where=sink.where)
    admin = client("AdminClient", sink.where, _for_reading(settings))
    try:
        groups = [g.group_id for g in admin.list_consumer_groups(request_timeout=SECONDS).result().valid]
        for group in filter(_ID.fullmatch, groups):
            wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(sink.topic, 0)])
            (answer,) = admin.list_consumer_group_offsets([wanted], request_timeout=SECONDS).values()
            if any(p.error is None and p.offset >= 0 for p in answer.result().topic_partitions):
                return True
    except KafkaException as error:
        raise failure(error.args[0], servers, where=sink.where, hint="check the sink's settings") from error
    return False


class KafkaSinkWriter(StagedSinkWriter):
    """Write to a topic: ``topic``, ``settings`` of librdkafka, ``id`` (of this sink writer alone), ``delivery``.

    Rows have columns ``value`` and perhaps ``key``. ``user_env`` and ``password_env`` name environment
    variables of the process that writes. With ``delivery`` "at_least_once" there are no transactions.
    """

    def __init__(self, spec: Mapping[str, Any], epoch: int) -> None:
        super().__init__(spec)
        self._epoch = epoch
        self._topic = str(spec["topic"])
        self._where = f"operator {spec.get('operator', 'kafka')!r}"
        self._id = str(spec["id"])
        self._exact = spec.get("delivery") != "at_least_once"
        self._settings = {"linger.ms": "5", **dict(spec["settings"])}
        self._settings |= credentials(spec.get("user_env"), spec.get("password_env"), where=self._where)

    def commit(self, segments: Sequence[Segment], batch: int) -> None:
        """Write a batch unless the topic has it: the group's offset shows that."""
        from confluent_kafka import KafkaException

        files = [p for p in segments if p.file]
        if not files:
            return
        tables = self.batches(files)
        if self._exact:
            self._transact(tables, batch)
        else:
            try:
                self._settled(client("Producer", self._where, self._settings), tables)
            except KafkaException as error:
                raise self._failed(error.args[0]) from error
        self.abort(files)

    def _transact(self, tables: list[pa.RecordBatch], batch: int) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        with _marker(self._where, self._settings, self._id) as marker:
            for left in reversed(range(_TRIES)):
                # Its start aborts a previous process's open transaction.
                producer = client("Producer", self._where, {**self._settings, "transactional.id": self._id})
                try:
                    producer.init_transactions(SECONDS)
                    if self._has(marker, batch):
                        return
                    producer.begin_transaction()
                    try:
                        with fatal_as_error():
                            self._settled(producer, tables)
                        done = TopicPartition(self._topic, 0, batch + 1, metadata=f"epoch {self._epoch}")
                        producer.send_offsets_to_transaction([done], marker.consumer_group_metadata(), SECONDS)
                        producer.commit_transaction(SECONDS)
                        return
                    except BaseException:
                        with contextlib.suppress(KafkaException):
                            producer.abort_transaction(SECONDS)
                        raise
                except KafkaException as error:
                    problem = error.args[0]
                    if left == 0 or problem.fatal() or not (problem.retriable() or problem.txn_requires_abort()):
                        raise self._failed(problem) from error

    def _has(self, marker: Any, batch: int) -> bool:
        """Return whether the topic has a batch; raise ChannelError where a newer writer has the topic."""
        from confluent_kafka import TopicPartition

        (found,) = marker.committed([TopicPartition(self._topic, 0)], timeout=SECONDS)
        if found.error is not None or found.offset < 0:
            return False
        epoch = int((found.metadata or "epoch 0").split()[-1])
        if epoch > self._epoch:
            raise ChannelError(
                f"this writer of epoch {self._epoch} is out of date: epoch {epoch} has taken over",
                where=self._where,
                hint="stop this writer; its unit runs elsewhere now",
            )
        return bool(found.offset > batch)

    def newest(self) -> int | None:
        """Return the newest batch in the topic."""
        from confluent_kafka import KafkaException, TopicPartition

        if not self._exact:
            return None
        try:
            with _marker(self._where, self._settings, self._id) as marker:
                (found,) = marker.committed([TopicPartition(self._topic, 0)], timeout=SECONDS)
        except KafkaException as error:
            raise self._failed(error.args[0]) from error
        return int(found.offset) - 1 if found.error is None and found.offset > 0 else None

    def _settled(self, producer: Any, tables: list[pa.RecordBatch]) -> None:
        """Send all rows and wait until the broker has them."""
        from confluent_kafka import KafkaException

        problems: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None and not problems:
                problems.append(error)

        for table in tables:
            values = table.column("value").to_pylist()
            names = table.schema.names
            keys = table.column("key").to_pylist() if "key" in names else [None] * len(values)
            for key, value in zip(keys, values, strict=True):
                while True:
                    try:
                        producer.produce(self._topic, value=value, key=key, on_delivery=delivered)
                        break
                    except BufferError:
                        producer.poll(0.1)
                if problems:
                    raise KafkaException(problems[0])
            producer.poll(0)
        if producer.flush(SECONDS):
            raise Unavailable(
                f"the broker did not take all rows within {SECONDS:.0f} s",
                where=self._where,
                hint="the batch is written again when the unit starts again",
            )
        if problems:
            raise KafkaException(problems[0])

    def _failed(self, error: Any) -> HeadwaterError:
        servers = self._settings["bootstrap.servers"]
        return failure(error, servers, where=self._where, hint="the batch is written again when the unit starts again")


@contextlib.contextmanager
def _marker(where: str, settings: Mapping[str, str], group: str) -> Any:
    """Open the consumer whose group's offset is the number of the next batch; it reads no messages."""
    consumer = client("Consumer", where, {**_for_reading(settings), "group.id": group, "enable.auto.commit": "false"})
    try:
        yield consumer
    finally:
        consumer.close()


def _for_reading(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings without those of producers alone."""
    return {k: v for k, v in settings.items() if not k.startswith(("linger", "compression", "batch", "acks"))}
