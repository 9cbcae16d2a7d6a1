"""This process's connections to one Kafka cluster, kept because they are costly to open.

Consumers are pooled, and idle ones fetch nothing. A request waits for the one before it on the same
connection, and an empty fetch waits at the broker: hence the short fetch wait.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from headwater.channels import kafkaclient
from headwater.channels.kafkaclient import (
    away,
    client,
    failure,
    fatal_as_error,
    fenced,
    gone,
    lasting,
    no_broker,
    no_topic,
    only_looks,
    passing,
    patience,
)
from headwater.core.errors import ChannelError

T = TypeVar("T")

_IDLE_CONSUMERS = 4
_KEPT = 64  # topics with a writer or known entries
_PAUSE = 0.1  # seconds between two tries
_AWAY_SECONDS = 5.0  # seconds without a further look at a broker that did not answer
_ONLY_PRODUCER = ("linger", "compression", "batch", "acks", "message.max", "transaction", "queue.buffering")
_CONSUMER = {
    "group.id": "headwater",  # never joined: positions are kept elsewhere
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
    "check.crcs": "true",
    "fetch.wait.max.ms": "10",
    "max.partition.fetch.bytes": str(8 << 20),
    "queued.max.messages.kbytes": str(16 << 10),
}
_PRODUCER = {"linger.ms": "0", "compression.type": "lz4", "enable.idempotence": "true"}


class Message(NamedTuple):
    """A message to write into a partition."""

    partition: int
    key: bytes
    value: bytes | None


class Broken(Exception):
    """A transaction was cut off or refused: look up whether it was committed."""


class Gone(Exception):
    """The wanted messages are no longer in the topic."""


class Cluster:
    """The clients of one process for one set of settings, and objects that its users cache with them."""

    def __init__(self, settings: Mapping[str, str], where: str) -> None:
        self.where = where
        self.servers = settings["bootstrap.servers"]
        self._settings = {"log_level": "2", "reconnect.backoff.max.ms": "1000", **settings}
        self._lock = threading.RLock()
        self._idle: list[Any] = []
        self._admin: Any = None
        self._producer: Any = None
        self._known: set[str] = set()
        self._shared: dict[object, Any] = {}
        self._away_until = 0.0

    def shared(self, key: object, make: Callable[[], T]) -> T:
        """Return the cached object of a key; the least recently used one is evicted."""
        with self._lock:
            found = self._shared.pop(key, None)
            if found is None:
                found = make()
            self._shared[key] = found
            while len(self._shared) > _KEPT:
                del self._shared[next(iter(self._shared))]
            return found  # type: ignore[no-any-return]

    # -- reading -------------------------------------------------------------------------------

    def bounds(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Return a partition's first offset and the end of its committed messages; None where there is no topic."""
        from confluent_kafka import KafkaException, TopicPartition

        def ask(consumer: Any) -> tuple[int, int] | None:
            for again in (True, False):
                try:
                    place = TopicPartition(topic, partition)
                    low, high = consumer.get_watermark_offsets(place, timeout=min(5, patience()))
                    return int(low), int(high)
                except KafkaException as error:
                    if not no_topic(error.args[0]):
                        raise
                    # A client caches that a topic was missing: this asks again.
                    found = consumer.list_topics(topic, timeout=min(5, patience())).topics.get(topic)
                    if not again or found is None or partition not in found.partitions:
                        return None
            return None

        return self._patiently(ask)

    def follow(self, topic: str, partition: int, start: int) -> Iterator[tuple[int, Any]]:
        """Yield committed messages with their offsets from ``start`` on, and None where there are no more.

        Raise Gone when ``start`` is not kept, BrokerAway when no broker answers.
        """
        from confluent_kafka import KafkaError, TopicPartition

        self._refuse_look()
        with self._borrowed() as consumer:
            consumer.assign([TopicPartition(topic, partition, start)])
            deadline = time.monotonic() + patience()
            while True:
                message = consumer.poll(0.5)
                if message is None:
                    if time.monotonic() > deadline:
                        self._away_until = time.monotonic() + _AWAY_SECONDS
                        where = f"{topic}, partition {partition}, offset {start}"
                        raise no_broker(f"no Kafka broker at {self.servers} answers a read", where=where)
                    continue
                error = message.error()
                if error is None:
                    yield message.offset(), message
                    deadline = time.monotonic() + patience()
                elif error.code() == KafkaError._PARTITION_EOF:
                    yield message.offset(), None
                elif gone(error) or no_topic(error):
                    raise Gone(error.str())
                elif not passing(error):
                    raise self._failed(error, topic)

    # -- topics --------------------------------------------------------------------------------

    def ensure(self, topic: str, *, partitions: int, config: Mapping[str, str], replication: int) -> None:
        """Create a topic unless it exists."""
        if topic in self._known:
            return
        if self.bounds(topic, partitions - 1) is None:
            import confluent_kafka.admin
            from confluent_kafka import KafkaError, KafkaException

            admin: Any = confluent_kafka.admin
            new = admin.NewTopic(topic, partitions, replication, config=dict(config))
            try:
                self._administer(lambda admin: admin.create_topics([new])[topic].result())
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise ChannelError(
                        f"cannot create the topic: {error.args[0].str()}",
                        where=topic,
                        hint=f"let someone with the right create it with {partitions} partitions and "
                        + ", ".join(f"{k}={v}" for k, v in config.items()),
                    ) from None
            deadline = time.monotonic() + kafkaclient.SECONDS
            while self.bounds(topic, partitions - 1) is None:
                if time.monotonic() > deadline:
                    raise ChannelError(
                        f"the topic has no partition {partitions - 1}",
                        where=topic,
                        hint="Headwater did not create this topic: use another name, or delete it",
                    )
                time.sleep(_PAUSE)
        self._known.add(topic)

    def drop(self, *topics: str) -> None:
        """Delete topics; missing ones are no error."""
        from confluent_kafka import KafkaException

        for topic in topics:
            self._known.discard(topic)
            with self._lock:
                self._shared = {k: v for k, v in self._shared.items() if k != topic}

            def delete(admin: Any, topic: str = topic) -> None:
                admin.delete_topics([topic])[topic].result()

            try:
                self._administer(delete)
            except KafkaException as error:
                if not no_topic(error.args[0]):
                    raise self._failed(error.args[0], topic) from None
            deadline = time.monotonic() + kafkaclient.SECONDS
            while self.bounds(topic, 0) is not None and time.monotonic() < deadline:
                time.sleep(_PAUSE)  # brokers learn of it one by one

    def delete_before(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Delete the messages before an offset, by partition."""
        from confluent_kafka import KafkaException, TopicPartition

        places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        try:
            self._administer(lambda admin: [f.result() for f in admin.delete_records(places).values()])
        except KafkaException as error:
            if not gone(error.args[0]):
                raise self._failed(error.args[0], topic) from None

    # -- clients -------------------------------------------------------------------------------

    def make_producer(self, transactional_id: str | None = None) -> Any:
        """Make a producer."""
        own = {} if transactional_id is None else {"transactional.id": transactional_id}
        return client("Producer", self.where, {**_PRODUCER, **self._settings, **own})

    def plain_producer(self) -> Any:
        """Return the producer without transactions."""
        with self._lock:
            if self._producer is None:
                self._producer = self.make_producer()
            return self._producer

    def chunk_bytes(self) -> int:
        """Return the largest size of a message's value in bytes."""
        return max(64 << 10, int(self._settings.get("message.max.bytes", 1_000_000)) - (16 << 10))

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[Any]:
        with self._lock:
            consumer = self._idle.pop() if self._idle else None
        if consumer is None:
            settings = {k: v for k, v in self._settings.items() if not k.startswith(_ONLY_PRODUCER)}
            consumer = client("Consumer", self.where, {**_CONSUMER, **settings, "isolation.level": "read_committed"})
        sound = False
        try:
            yield consumer
            sound = True
        except GeneratorExit:
            sound = True
            raise
        finally:
            if sound:
                consumer.unassign()
            with self._lock:
                if sound and len(self._idle) < _IDLE_CONSUMERS:
                    self._idle.append(consumer)
                    consumer = None
            if consumer is not None:
                consumer.close()

    def _patiently(self, ask: Callable[[Any], T]) -> T:
        """Ask over a consumer's connection until there is an answer, or time is up."""
        from confluent_kafka import KafkaException

        self._refuse_look()
        deadline = time.monotonic() + patience()
        while True:
            try:
                with self._borrowed() as consumer:
                    answer = ask(consumer)
                self._away_until = 0.0
                return answer
            except KafkaException as error:
                if not passing(error.args[0]) or time.monotonic() > deadline:
                    raise self._failed(error.args[0], self.where) from None
            time.sleep(_PAUSE)

    def _administer(self, do: Callable[[Any], Any]) -> None:
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + kafkaclient.SECONDS
        while True:
            with self._lock:
                if self._admin is None:
                    settings = {k: v for k, v in self._settings.items() if not k.startswith(_ONLY_PRODUCER)}
                    self._admin = client("AdminClient", self.where, settings)
            try:
                do(self._admin)
                return
            except KafkaException as error:
                if not passing(error.args[0]) or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)

    def _refuse_look(self) -> None:
        """Raise BrokerAway for a report's request soon after another request was not answered."""
        if only_looks() and time.monotonic() < self._away_until:
            raise no_broker(f"no Kafka broker at {self.servers} answers", where=self.where)

    def _failed(self, error: Any, where: str) -> Exception:
        if away(error):
            self._away_until = time.monotonic() + _AWAY_SECONDS
        return failure(error, self.servers, where=where, hint="read the broker's log; the request is retried")


_clusters: dict[tuple[tuple[str, str], ...], Cluster] = {}
_inherited: list[object] = []
_owner = 0
_making = threading.Lock()


def cluster_of(settings: Mapping[str, str], *, where: str) -> Cluster:
    """Return this process's connections for some settings."""
    global _clusters, _owner
    with _making:
        if _owner != os.getpid():
            # A fork has the objects but not their threads: closing them would wait forever.
            _inherited.append(_clusters)
            _clusters, _owner = {}, os.getpid()
        key = tuple(sorted(settings.items()))
        if key not in _clusters:
            _clusters[key] = Cluster(settings, where)
        return _clusters[key]


def send(producer: Any, topic: str, messages: list[Message]) -> list[int]:
    """Send messages and wait until the broker has them; return their offsets. Raise KafkaException."""
    from confluent_kafka import KafkaError, KafkaException

    offsets = [-1] * len(messages)
    problems: list[Any] = []

    def delivered(number: int, error: Any, message: Any) -> None:
        if error is not None:
            problems.append(error)
        else:
            offsets[number] = message.offset()

    with fatal_as_error():
        for number, message in enumerate(messages):

            def done(error: Any, sent: Any, number: int = number) -> None:
                delivered(number, error, sent)

            while True:
                try:
                    producer.produce(
                        topic,
                        partition=message.partition,
                        key=message.key,
                        value=message.value,
                        on_delivery=done,
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
        if producer.flush(kafkaclient.SECONDS):
            raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))
    if problems:
        raise KafkaException(problems[0])
    return offsets


class Transactions:
    """One transactional id: claiming it shuts out the previous holder and aborts its open transaction."""

    def __init__(self, cluster: Cluster, topic: str, id_: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._id = id_
        self._producer: Any = None
        self._broken_since: float | None = None

    @property
    def claimed(self) -> bool:
        """Return whether this process holds the id, as far as it knows."""
        return self._producer is not None

    def claim(self) -> bool:
        """Claim the id; return False when this process holds it already."""
        from confluent_kafka import KafkaException

        if self._producer is not None:
            return False
        deadline = time.monotonic() + kafkaclient.SECONDS
        while True:
            producer = self._cluster.make_producer(self._id)
            try:
                producer.init_transactions(kafkaclient.SECONDS)
                break
            except KafkaException as error:
                problem = error.args[0]
                if not (passing(problem) or fenced(problem)) or time.monotonic() > deadline:
                    raise self._cluster._failed(problem, self._topic) from None
            time.sleep(_PAUSE)
        self._producer = producer
        return True

    def release(self) -> None:
        """Forget the claim."""
        self._producer = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Callable[[list[Message]], list[int]]]:
        """Write messages together or not at all; yield the function that sends them.

        Raise Broken when the outcome is unknown: claim again, look it up, repeat. Raise
        Unavailable when that takes too long.
        """
        from confluent_kafka import KafkaException

        producer = self._producer
        try:
            producer.begin_transaction()
            yield lambda messages: send(producer, self._topic, messages)
            producer.commit_transaction(kafkaclient.SECONDS)
            self._broken_since = None
        except KafkaException as error:
            self.release()
            problem = error.args[0]
            self._broken_since = self._broken_since or time.monotonic()
            patient = time.monotonic() - self._broken_since < kafkaclient.SECONDS
            if patient and not lasting(problem) and not no_topic(problem):
                raise Broken(problem.str()) from None
            self._broken_since = None
            raise self._cluster._failed(problem, self._topic) from None
        except BaseException:
            self.release()
            with contextlib.suppress(KafkaException):
                producer.abort_transaction(5)
            raise
