"""Topics of tests on a real broker: records are sent one by one, as other programs do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from headwater.channels.kafkacluster import cluster_of
from headwater.spark.broker import LocalBroker
from headwater.testing import Kill, Pause, StopAfter

_numbers = itertools.count(1)
SECONDS = 60


class Topic:
    """A new topic, and a producer for it."""

    def __init__(
        self,
        broker: LocalBroker,
        *,
        partitions: int = 2,
        name: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Create it; ``settings`` are librdkafka's for this broker."""
        from confluent_kafka import Producer

        self.name = name or f"test-{next(_numbers)}"
        self.servers = broker.address
        settings = self.settings = {**(settings or {}), "bootstrap.servers": self.servers}
        # Records of tests may have timestamps that the broker would delete as too old.
        kept = {"retention.ms": "-1"}
        cluster_of(settings, where=self.name).ensure(self.name, partitions=partitions, config=kept, replication=1)
        self.producer = Producer({**settings, "log_level": 0, "enable.idempotence": True})

    def send(self, *values: bytes | str | Mapping[str, Any] | None, partition: int = 0, **more: Any) -> None:
        """Send values to a partition, an object as JSON, with ``key``, ``headers`` or ``timestamp`` (ms)."""
        for value in values:
            data = json.dumps(value).encode() if isinstance(value, Mapping) else value
            self.producer.produce(self.name, data, partition=partition, **more)
        assert self.producer.flush(SECONDS) == 0, "the broker does not take the records"

    def send_all(self, rows: Iterable[Mapping[str, Any]], *, partitions: int = 2) -> None:
        """Send rows as JSON, to the partitions in turn."""
        for number, row in enumerate(rows):
            self.producer.produce(self.name, json.dumps(dict(row), default=str), partition=number % partitions)
        assert self.producer.flush(SECONDS) == 0, "the broker does not take the records"

    def delete_before(self, offset: int, partition: int = 0) -> None:
        """Delete the records before an offset, as retention does."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient

        place = TopicPartition(self.name, partition, offset)
        admin = AdminClient(dict(self.settings))
        (done,) = admin.delete_records([place]).values()
        done.result(SECONDS)

    def records(self) -> list[Any]:
        """Return all records, those of a partition in their order."""
        from confluent_kafka import Consumer, TopicPartition

        own = {"group.id": "test", "enable.auto.commit": False, "log_level": 0}
        consumer = Consumer({**self.settings, **own})
        try:
            partitions = consumer.list_topics(self.name, timeout=SECONDS).topics[self.name].partitions
            places = [TopicPartition(self.name, p, 0) for p in partitions]
            count = sum(consumer.get_watermark_offsets(place, timeout=SECONDS)[1] for place in places)
            consumer.assign(places)
            found: list[Any] = []
            while len(found) < count:
                batch = consumer.consume(count - len(found), timeout=SECONDS)
                assert batch, f"{len(found)} of {count} records"
                found += batch
        finally:
            consumer.close()
        return sorted(found, key=lambda r: (r.partition(), r.offset()))


class BoundedTopics:
    """Rows of a test, by location, sent to a topic of each location, or all to one; between them events.

    ``release`` is that of ``headwater.testing.BoundedSource``. ``at``: the event after a number of steps.
    ``before`` is called in each step, before its event.
    """

    def __init__(
        self,
        topics: Mapping[str, Topic],
        rows: Mapping[str, Sequence[Mapping[str, Any]]],
        *,
        rows_per_step: int = 10,
        at: Mapping[int, Pause | Kill | StopAfter] | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._topics, self._rows, self._size, self._at = topics, rows, rows_per_step, at or {}
        self._before = before

    def release(self) -> Iterator[Pause | Kill | StopAfter | None]:
        """Send the rows step by step over all locations; yield the events between them."""
        longest = max(len(rows) for rows in self._rows.values())
        for number, first in enumerate(range(0, longest, self._size)):
            for location, rows in self._rows.items():
                self._topics[location].send_all(rows[first : first + self._size])
            self._before()
            yield self._at.get(number)
