"""A channel in a topic of Kafka, with the contract of the filelog.

Layout of one log::

    <topic>, partition 0   segments: the bytes of Arrow files, in messages below the broker's limit
    <topic>, partition 1   entries: JSON
    <topic>.readers        a table (compacted): readers' positions, floor, schema, losses
    staging/               on the writer's disk: segments of running attempts

Publishing is one transaction that holds a batch's segments and its entry; readers see all of it or
nothing. The transactional id is the topic's name, so a new writer shuts out the one before it and aborts
its open transaction. Only then it reads the newest entry, which identifies the last committed batch.
Until it is shut out itself, nothing can have changed, and it need not read that again.

With at-least-once delivery there are no transactions: an entry whose number another writer has taken
is written again with the next number, and readers skip all but the first entry of a number.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from headwater.channels.base import ChannelLimits, OnCorrupt
from headwater.channels.entry import Entry
from headwater.channels.kafkaclient import credentials, failure, passing
from headwater.channels.kafkacluster import (
    Broken,
    Cluster,
    Gone,
    Message,
    Transactions,
    cluster_of,
    send,
)
from headwater.channels.kafkajournal import ENTRIES, PLAIN, TRANSACTION, KafkaJournal
from headwater.channels.kafkaretention import SCHEMA, KafkaRetention
from headwater.channels.kafkastore import DATA, KafkaStore
from headwater.channels.log import Delivery, Log
from headwater.channels.schemafile import (
    ensure_schema,
    load_schema,
    record_of,
    refuse_other,
    schema_of,
)
from headwater.channels.segments import Segment, SegmentWriter, normal_schema
from headwater.core.errors import ChannelError
from headwater.disk.durable import sweep

if TYPE_CHECKING:
    import pyarrow as pa

_Send: TypeAlias = Callable[[list[Message]], list[int]]

TOPIC_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",  # only entries that all readers have read are deleted
    "retention.bytes": "-1",
    "segment.bytes": str(64 << 20),
}

_SLACK = 64  # entries that may wait for deletion: Kafka frees whole files anyway


class _Topic:
    """This process's cached objects for one topic."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.journal = KafkaJournal(cluster, topic)
        self.table = KafkaRetention(cluster, topic)
        self.writer = Transactions(cluster, topic, topic)
        self.lock = threading.RLock()


class KafkaLog(Log):
    """Write and read one topic; cheap to make once the process has its connections.

    ``settings`` are librdkafka's. ``staging`` is a directory that the tasks and the driver of the
    writing query share; a log that is only read needs none.
    """

    look_s = 0.05

    _journal: KafkaJournal
    _keep: KafkaRetention
    _store: KafkaStore

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        staging: str | os.PathLike[str] | None = None,
        settings: Mapping[str, str] | None = None,
        user_env: str | None = None,
        password_env: str | None = None,
        replication: int = -1,
        limits: ChannelLimits | None = None,
        on_corrupt: OnCorrupt = "quarantine",
        event_time: str | None = None,
        delivery: Delivery = "exactly_once",
        lineage: str | None = None,
    ) -> None:
        self.topic = topic
        self.servers = servers
        self.staging = None if staging is None else Path(staging)
        self._replication = replication
        own = {**(settings or {}), "bootstrap.servers": servers}
        self._cluster = cluster_of(own | credentials(user_env, password_env, where=topic), where=topic)
        self._shared: _Topic = self._cluster.shared(topic, lambda: _Topic(self._cluster, topic))
        super().__init__(
            where=f"topic {topic}",
            journal=self._shared.journal,
            keep=self._shared.table,
            store=KafkaStore(self._cluster, topic, self.staging or Path(), self._shared.table, on_corrupt=on_corrupt),
            limits=limits,
            event_time=event_time,
            fsync=True,
            delivery=delivery,
            lineage=lineage,
        )
        self._slack = _SLACK

    # -- the log as such -----------------------------------------------------------------------

    def create(self) -> None:
        """Create the missing topics."""
        self._cluster.ensure(self.topic, partitions=2, config=TOPIC_CONFIG, replication=self._replication)
        self._keep.create(self._replication)

    def drop(self) -> None:
        """Delete the topics and their content."""
        self._cluster.drop(self.topic, self._keep.topic)

    def raw(self, segment: Segment) -> bytes:
        """Return a segment's published bytes; empty where the broker has lost them."""
        try:
            return self._store.raw(segment)
        except Gone:
            return b""

    def schema(self) -> pa.Schema | None:
        """Return the log's schema; None before its first batch."""
        record = self._keep.value(SCHEMA)
        return schema_of(record) if record else None

    # -- writing -------------------------------------------------------------------------------

    def open_segment(self, schema: pa.Schema) -> SegmentWriter:
        """Start a segment of the next batch, refusing rows that do not fit the log's schema."""
        staging, wanted = self._need_staging(), normal_schema(schema)
        known = load_schema(staging)  # most tasks need not ask the broker
        if known is None:
            self.create()
            self._fix_schema(wanted)
            ensure_schema(staging, schema, scratch=staging, fsync=False)
        else:
            refuse_other(known, wanted, where=self.where)
        return self._writer(staging, fsync=False)

    def _fix_schema(self, wanted: pa.Schema) -> None:
        def fix() -> None:
            record = self._keep.value(SCHEMA)
            if record is None:
                self._keep.put(SCHEMA, record_of(wanted))
            else:
                refuse_other(schema_of(record), wanted, where=self.where)

        record = self._keep.value(SCHEMA)
        if record is None or not schema_of(record).equals(wanted):
            self._keep.change(fix)

    def _need_staging(self) -> Path:
        if self.staging is None:
            raise ChannelError(
                "writing the log needs a staging directory on this machine",
                where=self.where,
                hint='name a directory under "staging" in the log\'s description',
            )
        self.staging.mkdir(parents=True, exist_ok=True)
        return self.staging

    def _newest_for_writer(self) -> Entry | None:
        shared = self._shared
        with shared.lock:
            if self.delivery == "at_least_once":
                number = shared.journal.known if shared.journal.next_offset is not None else self._look()
            elif shared.writer.claim():
                try:
                    number = self._look()
                except BaseException:
                    shared.writer.release()
                    raise
            else:
                number = shared.journal.known
            return None if number < 0 else self._entry(number)

    def _look(self) -> int:
        return self._journal.last(fresh=True)

    def _publish(self, entry: Entry, last: Entry | None) -> bool:
        if self._keep.value(SCHEMA) is None and self.staging is not None:
            known = load_schema(self.staging)
            if known is not None:  # the topics were created again after the tasks fixed it
                self._fix_schema(known)
        with self._shared.lock:
            if self._journal.known != entry.seq - 1:
                return False  # another thread of this process came first
            stamped = replace(entry, written=time.time())
            exact = self.delivery == "exactly_once"
            published = self._in_transaction(stamped) if exact else self._plainly(stamped)
        if published:
            self._sweep()
            self._store.discard(entry.segments)
        return published

    def _in_transaction(self, entry: Entry) -> bool:
        if not self._shared.writer.claimed:
            return False
        try:
            with self._shared.writer.transaction() as send_:
                entry = self._with_offsets(entry, send_)
                record = entry.to_record()
                (offset,) = send_([self._journal.encode(record, TRANSACTION)])
        except Broken:
            return False  # the next look finds out whether it was committed
        self._journal.add(record, offset, TRANSACTION)
        return True

    def _plainly(self, entry: Entry) -> bool:
        from confluent_kafka import KafkaException

        producer = self._cluster.plain_producer()
        expected = self._journal.next_offset
        try:
            entry = self._with_offsets(entry, lambda messages: send(producer, self.topic, messages))
            record = entry.to_record()
            (offset,) = send(producer, self.topic, [self._journal.encode(record, PLAIN)])
        except KafkaException as error:
            raise failure(
                error.args[0],
                self.servers,
                where=self.where,
                hint="the batch is written again when the unit starts again"
                if passing(error.args[0])
                else "check the broker's settings",
            ) from None
        if offset != (expected or 0):
            self._look()  # another writer has written: its entry may have the number
            if self._journal.known >= entry.seq and not self._journal.is_mine(record):
                return False
        self._journal.add(record, offset, PLAIN)
        return True

    def _with_offsets(self, entry: Entry, send_: _Send) -> Entry:
        """Send an entry's segments; return the entry with their offsets."""
        chunks = [self._store.messages(segment) for segment in entry.segments]
        places = send_([message for own in chunks for message in own])
        placed, at = [], 0
        for segment, own in zip(entry.segments, chunks, strict=True):
            placed.append(replace(segment, offsets=(places[at], places[at + len(own) - 1])))
            at += len(own)
        return replace(entry, segments=tuple(placed))

    def _sweep(self) -> None:
        """Delete leftovers of crashed attempts in staging that are older than the last publication but one."""
        if self.staging is None or not self.staging.is_dir():
            return
        mark = self.staging / ".published"
        before = mark.stat().st_mtime if mark.exists() else None
        sweep(self.staging, before, but=("schema.json", mark.name))
        mark.touch()

    def _settle(self, last: Entry) -> None:
        """Do nothing: a transaction leaves no unfinished work."""

    # -- reading -------------------------------------------------------------------------------

    def read_segments(self, wanted: Iterable[tuple[int, Segment]]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of segments, each with the number of its entry, one after the other."""
        yield from self._store.read_all(wanted, still_kept=lambda seq: seq >= self.earliest())

    def _delete(self, first: int, stop: int, newest: int) -> int:
        stop = min(stop, newest)
        if stop - first < _SLACK:
            return first
        before = {ENTRIES: self._journal.offset_of(stop)}
        for number in range(stop - 1, first - 1, -1):
            places = [s.offsets[1] for s in self._entry(number).segments if s.offsets]
            if places:
                before[DATA] = max(places) + 1
                break
        self._cluster.delete_before(self.topic, before)
        return stop
