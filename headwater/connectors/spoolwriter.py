"""The loop that stores what a bridge has received: bounded memory, batches, one commit of the spool's log for each.

Records that were received together are stored in one batch. They are acknowledged by the bridge once the batch is
durable. While the log is full or the disk has no room, the batch is tried again, and what comes meanwhile waits here,
up to a bound.
"""

from __future__ import annotations

import base64
import copy
import datetime
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from headwater.channels.filelog import FileLog
from headwater.connectors.reasons import NOT_UTF8
from headwater.core.errors import ChannelFull, HeadwaterError

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.channels.segments import Segment

MESSAGE_SCHEMA = "value string, topic string, received timestamp"
"""Columns of a spool. ``topic`` is the origin of a record: a topic, the path of an endpoint, a node."""

MAX_BYTES = 32 * 2**20
"""Bytes of records that may wait in memory."""
_MAX_BATCHES = 4  # batches that may wait in memory
_RETRY_SECONDS = 1.0

T = TypeVar("T")


def now() -> datetime.datetime:
    """Return the time at which records are received."""
    return datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True, eq=False)
class Received(Generic[T]):
    """Records received together, which are stored together; ``token``: what the bridge acknowledges them by."""

    values: Sequence[str]
    topic: str
    size: int
    token: T
    at: datetime.datetime = field(default_factory=now)


class SpoolWriter(Generic[T]):
    """Store received records in ``log`` from a thread of its own.

    ``stored`` is called with each durable batch, ``broken`` once with the error that ended the thread, and ``before``
    with the number of a batch before its commit, which it may be called for again after an error. ``changed`` guards
    the writer's state, and may guard its owner's; ``stored`` is called without it.
    """

    def __init__(
        self,
        log: FileLog,
        *,
        epoch: int,
        name: str,
        stored: Callable[[list[Received[T]]], None],
        broken: Callable[[], None] = lambda: None,
        before: Callable[[int, list[Received[T]]], None] = lambda batch, items: None,
        flush_seconds: float = 0.2,
        flush_rows: int = 1000,
    ) -> None:
        self._epoch, self._name = epoch, name
        self._stored, self._broken, self._before = stored, broken, before
        self._flush_seconds, self._flush_rows = flush_seconds, flush_rows
        # A writer that waits in the log cannot be stopped: wait here instead, a second at a time.
        self._log = copy.copy(log)
        self._log.limits = replace(log.limits, block_timeout=min(_RETRY_SECONDS, log.limits.block_timeout))
        self._thread: threading.Thread | None = None
        self._batch = 0

        self.changed = threading.Condition()  # guards everything below
        self.stopping = False
        self.failed = False
        self.error: str | None = None
        """Why the newest batch is not stored."""
        self.received = 0
        self.stored_rows = 0
        self.waiting = 0
        self._items: deque[Received[T]] = deque()
        self._bytes = 0

    # -- the bridge's side ---------------------------------------------------------------------------

    def fence(self) -> tuple[int, int] | None:
        """Shut out older writers; return the (epoch, batch) of the newest stored batch."""
        counts = self._log.fence(self._epoch)
        self._batch = counts[1] + 1 if counts and counts[0] == self._epoch else 0
        return counts

    def start(self) -> None:
        """Start to store, after ``fence``."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Store what has been received, for so long, then end; the rest is not acknowledged."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)
            self._thread = None

    @property
    def ends(self) -> bool:
        """Whether nothing more is taken."""
        return self.stopping or self.failed

    def put(self, item: Received[T]) -> None:
        """Take an item, then wait until there is room for the next one."""
        with self.changed:
            self._take(item)
            self.changed.wait_for(lambda: self.ends or self._has_room())

    def offer(self, item: Received[T]) -> bool:
        """Take an item; False where there is no room, or the log takes nothing now."""
        with self.changed:
            if not self.takes:
                return False
            self._take(item)
            return True

    @property
    def takes(self) -> bool:
        """Whether there is room, and the log takes records."""
        return not self.ends and self.error is None and self._has_room()

    def _take(self, item: Received[T]) -> None:
        self._items.append(item)
        self.received += len(item.values)
        self.waiting += len(item.values)
        self._bytes += item.size
        self.changed.notify_all()

    def _has_room(self) -> bool:
        return self.waiting < _MAX_BATCHES * self._flush_rows and self._bytes < MAX_BYTES

    # -- the log's side: a thread of its own ---------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                items = self.next_batch()
                if not items or not self.store(items):
                    return
                self._stored(items)
        except HeadwaterError as error:
            self._fail(str(error))
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, error: str) -> None:
        with self.changed:
            self.failed, self.error = True, error
            self.changed.notify_all()
        self._broken()

    def next_batch(self) -> list[Received[T]]:
        """Wait for a batch that is full or old enough; return an empty one at the end."""
        with self.changed:
            self.changed.wait_for(lambda: self._items or self.stopping)
            self.changed.wait_for(
                lambda: self.stopping or self.waiting >= self._flush_rows, timeout=self._flush_seconds
            )
            batch: list[Received[T]] = []
            rows = 0
            while self._items and (not batch or rows + len(self._items[0].values) <= self._flush_rows):
                batch.append(self._items.popleft())
                rows += len(batch[-1].values)
            self.waiting -= rows
            self.changed.notify_all()  # there is room for what a callback holds back
            return batch

    def store(self, items: list[Received[T]]) -> bool:
        """Make a batch durable; False when the writer was stopped before there was room."""
        table = _table(items)
        ingested = (items[0].at.timestamp(), items[-1].at.timestamp())
        segment: Segment | None = None
        tries = 0
        while True:
            try:
                if segment is None:
                    segment = self._stage(table)
                self._before(self._batch, items)
                self._log.commit(self._epoch, self._batch, [segment], ingested=ingested)
                break
            except ChannelFull as error:
                if self._log.limits.when_full == "fail":
                    raise
                problem = error.what
            except OSError as error:  # a full disk may have room again
                problem = f"{type(error).__name__}: {error}"
            tries += 1
            with self.changed:
                self.error = problem
                if self.changed.wait_for(lambda: self.stopping, timeout=_RETRY_SECONDS):
                    if segment is not None:
                        self._log.discard([segment])
                    return False
        self._batch += 1
        with self.changed:
            if tries:
                self.error = None
            self.stored_rows += table.num_rows
            self._bytes -= sum(item.size for item in items)
            self.changed.notify_all()
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


def text_of(payload: bytes) -> tuple[str, bool]:
    """Return a payload as text, and whether it was text; other bytes become marked base64.

    The mark makes it malformed JSON, so it becomes a dead letter with all its bytes; replacing
    the bad bytes could make well-formed JSON of it, and wrong data.
    """
    try:
        return payload.decode(), True
    except UnicodeDecodeError:
        return NOT_UTF8 + base64.b64encode(payload).decode(), False


def payload_of(text: str) -> bytes:
    """Return the bytes of which ``text_of`` made a text."""
    return base64.b64decode(text.removeprefix(NOT_UTF8)) if text.startswith(NOT_UTF8) else text.encode()


def _table(items: Sequence[Received[T]]) -> pa.Table:
    import pyarrow as pa

    return pa.table(
        {
            "value": pa.array([value for item in items for value in item.values], pa.string()),
            "topic": pa.array([item.topic for item in items for _ in item.values], pa.string()),
            "received": pa.array([item.at for item in items for _ in item.values], pa.timestamp("us", tz="UTC")),
        }
    )
