"""The entries of a log in a partition of Kafka: numbered, found without reading all of them.

An entry's offset does not follow from its number: transaction marks and aborted messages take
offsets too. But both grow together, so an entry is found by interpolating between two known ones,
mostly at the first try. (A search by time does not work: the marks carry the broker's time.)
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

from headwater.channels.kafkacluster import Cluster, Gone, Message
from headwater.core.errors import ChannelError

ENTRIES = 1
"""The partition of entries."""

_Place: TypeAlias = tuple[int, int]  # an entry's number and its offset

TRANSACTION, PLAIN = b"transaction", b"plain"
FRESH = 0.02  # seconds for which an answer of the broker is reused

_CACHED = 2048
_AHEAD = 256  # entries read at once when one is asked for
_BEFORE = 16  # entries subtracted from a guess, which must not be too high
_TAIL = 64  # offsets looked at first when the newest entry is searched


def _after(offset: int, key: bytes) -> int:
    """Return the first offset that another message can have: a transaction's mark follows its entry."""
    return offset + 2 if key == TRANSACTION else offset + 1


def _guess(number: int, below: _Place | None, above: _Place, first: int, *, bisect: bool) -> int:
    """Guess the offset of an entry shortly before ``number``, between ``first`` and before ``above``."""
    if bisect:
        return (first + above[1]) // 2
    each = 2.0 if below is None else (above[1] - below[1]) / (above[0] - below[0])
    guess = above[1] - round((above[0] - number + _BEFORE) * each)
    return min(max(guess, first), above[1] - 1)


class KafkaJournal:
    """Read the entries of one topic, and cache them: they never change.

    Of several entries with one number, which writers without transactions can leave, the first counts.
    """

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._lock = threading.RLock()
        self._reset()

    def _reset(self) -> None:
        self._cache: dict[int, dict[str, Any]] = {}
        self._offsets: dict[int, int] = {}
        self._last = -1
        self._next: int | None = None  # offset after the newest entry
        self._looked_to = -1  # offset below which all is known
        self._looked_at = float("-inf")

    @property
    def known(self) -> int:
        """Return the newest number that this process knows: exact for the only writer."""
        return self._last

    @property
    def next_offset(self) -> int | None:
        """Return the offset up to which the entries are known."""
        return None if self._next is None else max(self._next, self._looked_to)

    def last(self, *, fresh: bool = False) -> int:
        """Return the newest entry's number, -1 when there is none."""
        with self._lock:
            if not fresh and time.monotonic() - self._looked_at < FRESH:
                return self._last
            bounds = self._cluster.bounds(self._topic, ENTRIES)
            if bounds is None:
                self._reset()
                return -1
            low, high = bounds
            if high < self._looked_to and self._next is not None and high < self._next - 1:
                self._reset()  # the topic was created again
            if high > self._looked_to:
                self._catch_up(low, high)
            self._looked_at = time.monotonic()
            return self._last

    def get(self, number: int) -> Mapping[str, Any]:
        """Read one entry, and cache those after it."""
        with self._lock:
            if (known := self._cache.get(number)) is not None:
                return known
            if self._next is None:
                self.last(fresh=True)
            if 0 <= number <= self._last:
                self._find(number)
            if (found := self._cache.get(number)) is not None:
                return found
        raise ChannelError(
            f"entry {number} does not exist (reclaimed, or deleted by hand)",
            where=self._topic,
            hint="read from the log's earliest position",
        )

    def offset_of(self, number: int) -> int:
        """Return an entry's offset."""
        with self._lock:
            self.get(number)
            return self._offsets[number]

    def add(self, record: Mapping[str, Any], offset: int, key: bytes) -> None:
        """Cache an entry that this process has published."""
        with self._lock:
            self._note(json.loads(json.dumps(record)), offset, key)
            self._looked_to = max(self._looked_to, _after(offset, key))

    def encode(self, record: Mapping[str, Any], key: bytes) -> Message:
        """Return an entry as a message."""
        text = json.dumps(record, separators=(",", ":"))
        return Message(ENTRIES, key, text.encode())

    def is_mine(self, record: Mapping[str, Any]) -> bool:
        """Return whether an entry is the valid one of its number."""
        return bool(self.get(record["seq"]) == json.loads(json.dumps(record)))

    def _catch_up(self, low: int, high: int) -> None:
        """Read the new entries; the first time, search the newest entry from the end."""
        if self._next is not None and self._next >= low:
            self._scan(self._next, high, sure=True)
        else:
            span = _TAIL
            while not self._scan(max(low, high - span), high, sure=high - span <= low) and high - span > low:
                span *= 16
        self._looked_to = high

    def _scan(self, start: int, high: int, *, sure: bool) -> bool:
        """Cache the entries from an offset on; ``sure``: no entry with the first one's number precedes it."""
        found = False
        if start >= high:
            return False
        for offset, message in self._cluster.follow(self._topic, ENTRIES, start):
            if message is None:
                if offset >= high:
                    break
                continue
            record, found = self._decode(message), True
            self._note(record, offset, message.key(), cache=sure)
            sure = True
            if _after(offset, message.key()) >= high:
                break
        return found

    def _find(self, number: int) -> None:
        """Narrow down an entry's offset, then read on from an entry shortly before it."""
        bounds = self._cluster.bounds(self._topic, ENTRIES)
        if bounds is None:
            return
        low, high = bounds
        below = max(((n, o) for n, o in self._offsets.items() if n < number and o >= low), default=None)
        above = min(((n, o) for n, o in self._offsets.items() if n > number), default=(self._last + 1, high))
        tries = 0
        while below is None or number - below[0] > _AHEAD:
            first = low if below is None else below[1] + 1
            if first >= above[1]:
                break
            guess = _guess(number, below, above, first, bisect=tries % 4 == 3)
            found = self._first_from(guess, above[1])
            if found is None or found[0] >= number:
                above = (above[0] if found is None else found[0], guess)
            else:
                below = found
            tries += 1
        self._read_on(number, low if below is None else below[1])

    def _first_from(self, start: int, stop: int) -> tuple[int, int] | None:
        """Return number and offset of the first entry from ``start`` to before ``stop``."""
        try:
            for offset, message in self._cluster.follow(self._topic, ENTRIES, start):
                if message is None or offset >= stop:
                    return None
                return self._decode(message)["seq"], offset
        except Gone:
            pass
        return None

    def _read_on(self, number: int, offset: int) -> None:
        count = 0
        try:
            for at, message in self._cluster.follow(self._topic, ENTRIES, offset):
                if message is None:
                    return
                record = self._decode(message)
                self._remember(record, at)
                count += record["seq"] >= number
                if count >= _AHEAD or record["seq"] >= self._last:
                    return
        except Gone:
            return

    def _note(self, record: dict[str, Any], offset: int, key: bytes, *, cache: bool = True) -> None:
        if record["seq"] > self._last:
            self._last = record["seq"]
            if cache:
                self._remember(record, offset)
        self._next = max(self._next or 0, offset + 1)

    def _remember(self, record: dict[str, Any], offset: int) -> None:
        number = record["seq"]
        if number in self._cache:
            return
        if len(self._cache) >= _CACHED:
            oldest = next(iter(self._cache))
            del self._cache[oldest], self._offsets[oldest]
        self._cache[number] = record
        self._offsets[number] = offset

    def _decode(self, message: Any) -> dict[str, Any]:
        try:
            record = json.loads(message.value())
            if isinstance(record, dict) and isinstance(record["seq"], int):
                return record
        except (ValueError, TypeError, KeyError):
            pass
        raise ChannelError(
            f"the message at offset {message.offset()} is no entry of a channel",
            where=f"{self._topic}, partition {ENTRIES}",
            hint="another program writes into this topic: give the channel a topic of its own",
        )
