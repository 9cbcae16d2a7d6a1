"""A log's segments in a partition of Kafka, cut into messages that the broker accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.channels.base import OnCorrupt
from headwater.channels.kafkacluster import Cluster, Gone, Message
from headwater.channels.kafkaretention import LOST, KafkaRetention
from headwater.channels.segments import CorruptSegment, Segment, decode_segment
from headwater.core.errors import ChannelError
from headwater.disk.durable import sweep_staged

if TYPE_CHECKING:
    import pyarrow as pa

DATA = 0
"""The partition of segments."""

_NEAR = 64  # offsets that are skipped by reading, not by a seek


class KafkaStore:
    """Read segments out of a topic; those not yet published wait in ``staging``."""

    def __init__(
        self, cluster: Cluster, topic: str, staging: Path, table: KafkaRetention, *, on_corrupt: OnCorrupt
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._staging = staging
        self._table = table
        self._on_corrupt = on_corrupt

    def messages(self, segment: Segment) -> list[Message]:
        """Cut a staged segment into messages."""
        data = (self._staging / str(segment.file)).read_bytes()
        size, key = self._cluster.chunk_bytes(), str(segment.file).encode()
        return [Message(DATA, key, data[at : at + size]) for at in range(0, len(data), size)]

    def discard(self, segments: Sequence[Segment]) -> None:
        """Delete staged segments: published, or of an abandoned attempt."""
        for segment in segments:
            if segment.file:
                (self._staging / segment.file).unlink(missing_ok=True)

    def sweep_all(self) -> None:
        """Delete all staged segments."""
        sweep_staged(self._staging)

    def read(self, seq: int, segment: Segment, *, still_kept: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        """Yield a segment's batches; record its loss or stop when it is damaged."""
        yield from self.read_all([(seq, segment)], still_kept=lambda _: still_kept())

    def read_all(
        self, wanted: Iterable[tuple[int, Segment]], *, still_kept: Callable[[int], bool]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches of segments; adjacent ones are fetched in one go."""
        cursor = _Cursor(self._cluster, self._topic)
        try:
            for seq, segment in wanted:
                where = f"{self._topic}, partition {DATA}, offsets {segment.offsets}"
                try:
                    yield from decode_segment(cursor.bytes_of(segment), segment, where=where)
                except (CorruptSegment, Gone) as error:
                    if still_kept(seq):
                        problem = error.what if isinstance(error, CorruptSegment) else "is missing"
                        self._lose(seq, segment, problem, where)
        finally:
            cursor.close()

    def raw(self, segment: Segment) -> bytes:
        """Return a segment's published bytes; raise Gone when the broker no longer has them."""
        cursor = _Cursor(self._cluster, self._topic)
        try:
            return cursor.bytes_of(segment)
        finally:
            cursor.close()

    def lost_rows(self) -> int:
        """Count the rows of all segments that were found damaged."""
        return self._table.lost_rows()

    def _lose(self, seq: int, segment: Segment, problem: str, where: str) -> None:
        if self._on_corrupt == "stop":
            raise ChannelError(
                f"segment of entry {seq} with {segment.rows} rows {problem}",
                where=where,
                hint="find out why the broker has lost it, or accept the loss with on_corrupt=quarantine",
            )
        key = LOST + str(segment.file)
        if self._table.value(key) is None:
            note = {"seq": seq, "rows": segment.rows, "problem": problem}
            self._table.change(lambda: self._table.put(key, note))


class _Cursor:
    """Read segments in order, each from the end of the one before."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._messages: Any = None
        self._at = 0

    def bytes_of(self, segment: Segment) -> bytes:
        assert segment.offsets is not None
        first, last = segment.offsets
        if self._messages is None or not self._at <= first <= self._at + _NEAR:
            self.close()
            self._messages = self._cluster.follow(self._topic, DATA, first)
        key, parts = str(segment.file).encode(), []
        try:
            for offset, message in self._messages:
                if message is None:
                    if offset > last:
                        break
                    continue  # published, but the broker does not show it yet
                self._at = offset + 1
                if first <= offset <= last and message.key() == key:
                    parts.append(message.value())
                if offset >= last:
                    break
        except Gone:
            self.close()
            raise
        return b"".join(parts)

    def close(self) -> None:
        if self._messages is not None:
            self._messages.close()
            self._messages = None
