"""Metadata of a log on Kafka: readers, floor, schema, losses, in a compacted topic.

The topic is a table: the newest message of a key is its value. A change claims the topic's
transactional id, reads the table, and writes in a transaction, which fails if another process has claimed
the id meanwhile; then the change is repeated. So changes are serialized without a lock that can be lost.
(The offsets of a consumer group do not suffice: Kafka forgets them after some days.)
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, TypeVar

from headwater.channels.entry import Floor
from headwater.channels.kafkacluster import Broken, Cluster, Gone, Message, Transactions
from headwater.channels.kafkajournal import FRESH
from headwater.channels.readerid import check_reader
from headwater.core.compatible import known
from headwater.core.errors import ChannelError

T = TypeVar("T")

FLOOR, SCHEMA, READER, LOST = "floor", "schema", "reader/", "lost/"

TABLE_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}


class KafkaRetention:
    """Read and write the table of one log."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.topic = f"{topic}.readers"
        self._cluster = cluster
        self._lock = threading.RLock()
        self._claim = Transactions(cluster, self.topic, self.topic)
        self._values: dict[str, tuple[int, Any]] = {}  # by key: offset and value
        self._waiting: dict[str, Any] = {}
        self._swept = 0
        self._own_from = 0  # first offset of this process's last change
        self._next: int | None = None
        self._looked_to = -1
        self._looked_at = float("-inf")
        self._inside = False

    def create(self, replication: int) -> None:
        """Create the topic."""
        self._cluster.ensure(self.topic, partitions=1, config=TABLE_CONFIG, replication=replication)

    def change(self, do: Callable[[], T]) -> T:
        """Run ``do`` on the current table and write its changes; repeat it if another process came first."""
        with self._lock:
            if self._inside:
                return do()
            while True:
                self._waiting.clear()
                self._inside = True
                try:
                    self._claim.claim()
                    self._look(fresh=True)
                    result = do()
                    self._flush()
                    return result
                except Broken:
                    self._look(fresh=True)
                finally:
                    self._inside = False
                    self._waiting.clear()

    def floor(self) -> Floor:
        """Return the first readable position and the totals before it."""
        record = self.value(FLOOR)
        floor = Floor(**known(Floor, record)) if record else Floor()
        return replace(floor, swept=max(floor.swept, min(self._swept, floor.seq)))

    def write_floor(self, floor: Floor, *, fsync: bool) -> None:
        """Replace the floor; the progress of deletion need not be durable and is written with the next change."""
        self._swept = floor.swept
        if not fsync:
            return
        self._waiting[FLOOR] = asdict(floor)
        self._flush()

    def readers(self) -> dict[str, int]:
        """Return every registered reader's position."""
        with self._lock:
            self._look()
            values = {k: v for k, (_, v) in self._values.items()} | self._waiting
            return {
                k.removeprefix(READER): int(v["position"])
                for k, v in sorted(values.items())
                if k.startswith(READER) and v is not None
            }

    def position(self, reader: str) -> int | None:
        """Return a reader's position; None when it is not registered."""
        record = self.value(READER + check_reader(reader, self.topic))
        return None if record is None else int(record["position"])

    def place(self, reader: str, position: int) -> None:
        """Record a reader's position."""
        self._waiting[READER + check_reader(reader, self.topic)] = {"position": position}

    def forget(self, reader: str) -> None:
        """Remove a reader's registration."""
        self._waiting[READER + check_reader(reader, self.topic)] = None

    def lost_rows(self) -> int:
        """Count the rows that were found damaged."""
        with self._lock:
            self._look()
            return sum(int(v["rows"]) for k, (_, v) in self._values.items() if k.startswith(LOST) and v)

    def value(self, key: str) -> Any:
        """Return a key's value; None when there is none."""
        with self._lock:
            if not self._inside:
                self._look()
            if key in self._waiting:
                return self._waiting[key]
            return self._values.get(key, (0, None))[1]

    def put(self, key: str, value: Any) -> None:
        """Set a key's value, inside a change."""
        self._waiting[key] = value

    def _flush(self) -> None:
        if not self._waiting:
            return
        changes = dict(self._waiting)
        messages = [
            Message(0, key.encode(), None if value is None else json.dumps(value).encode())
            for key, value in changes.items()
        ]
        with self._claim.transaction() as send:
            offsets = send(messages)
        for (key, value), offset in zip(changes.items(), offsets, strict=True):
            self._take(key, offset, value)
        self._waiting.clear()
        self._own_from = min(offsets)
        self._looked_to = max(self._looked_to, max(offsets) + 2)  # the transaction's mark included

    def _take(self, key: str, offset: int, value: Any) -> None:
        if offset >= self._values.get(key, (-1, None))[0]:
            self._values[key] = (offset, value)
        self._next = max(self._next or 0, offset + 1)

    def _look(self, *, fresh: bool = False) -> None:
        """Update the cached table."""
        if not fresh and time.monotonic() - self._looked_at < FRESH:
            return
        bounds = self._cluster.bounds(self.topic, 0)
        if bounds is None or (self._next is not None and bounds[1] < self._own_from):
            self._values.clear()  # the topic was deleted or created again
            self._next, self._looked_to, self._own_from, self._swept = None, -1, 0, 0
        if bounds is not None and bounds[1] > self._looked_to:
            low, high = bounds
            self._read(max(low, self._next or 0), high)
            self._looked_to = high
        self._looked_at = time.monotonic()

    def _read(self, start: int, high: int) -> None:
        if start >= high:
            return
        try:
            for offset, message in self._cluster.follow(self.topic, 0, start):
                if message is None:
                    if offset >= high:
                        return
                    continue
                value = message.value()
                try:
                    self._take(message.key().decode(), offset, None if value is None else json.loads(value))
                except (ValueError, AttributeError):
                    raise ChannelError(
                        f"the message at offset {offset} does not belong to a channel",
                        where=self.topic,
                        hint="another program writes into this topic: give the channel a topic of its own",
                    ) from None
                if offset + 2 >= high:  # only the transaction's mark is left
                    return
        except Gone:
            self._next = None
