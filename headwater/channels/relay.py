"""Pull a log of another zone into a replica here: same entries, same numbers, same bytes.

The queries of this zone read the replica alone, so a link that fails, comes back or is slow is
nothing to them; what has crossed the link once does not cross it again. Everything is written
down before the other side is told that it may reclaim it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from headwater.channels.base import Backlog
from headwater.channels.entry import Entry, Floor
from headwater.channels.filelog import FileLog
from headwater.channels.flight import SIGN_OF_LIFE, Bytes
from headwater.channels.linkmeter import Line, LinkMeter
from headwater.core.errors import ChannelError, HeadwaterError

if TYPE_CHECKING:
    from headwater.channels.kafkalog import KafkaLog

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_SILENCE = 5 * SIGN_OF_LIFE
"""After this without a word the link counts as down."""

_ACKNOWLEDGE = 0.5  # seconds between two words to the other side on how far this one is
_POLL = 0.05  # seconds between two looks at a broker
_RETRY, _RETRY_MOST = 0.2, 2.0


@dataclass(frozen=True)
class RelayState:
    """What is known of a relay: when it last heard the other side (monotonic), how far that is."""

    up: bool
    since: float
    error: str | None
    bytes: int


class Following(Protocol):
    """A stream of what a log holds from some position on; ``heartbeat`` is when the other side last spoke."""

    heartbeat: float
    sent: float | None
    """When the newest item was sent, by the other side's clock that only goes forward; None: not known."""

    def __iter__(self) -> Iterator[Floor | Bytes | Entry | None]:
        """Give floors, bytes and entries as they come, None as a sign of life."""

    def cancel(self) -> None:
        """End the stream, from any thread."""


class Remote(Protocol):
    """A log elsewhere."""

    def register(self, reader: str) -> int:
        """Make it keep what ``reader`` has not read; return where that stands."""

    def advance(self, reader: str, position: int) -> None:
        """Tell it that ``reader`` needs nothing before ``position``."""

    def unregister(self, reader: str) -> None:
        """Tell it that ``reader`` is gone."""

    def latest(self) -> int:
        """Tell how far it goes."""

    def round_trip(self) -> float | None:
        """Tell how many seconds a small request takes; None where there is none that tells."""

    def follow(self, seq: int, piece: int = 0, offset: int = 0) -> Following:
        """Open a stream from a position on."""

    def close(self) -> None:
        """Give the connection up."""


class PolledLog:
    """A log of another zone's broker, as a remote one: looked at again and again."""

    def __init__(self, log: KafkaLog) -> None:
        self._log = log

    def register(self, reader: str) -> int:
        return self._log.register(reader)

    def advance(self, reader: str, position: int) -> None:
        self._log.advance(reader, position)

    def unregister(self, reader: str) -> None:
        self._log.unregister(reader)

    def latest(self) -> int:
        return self._log.latest()

    def round_trip(self) -> float | None:
        return None  # what this process asks a broker is shared, and not asked anew each time

    def follow(self, seq: int, piece: int = 0, offset: int = 0) -> Polling:
        return Polling(self._log, seq)

    def close(self) -> None:
        """Keep the connections: they are the process's."""


class Polling:
    """What a broker's log holds from a position on."""

    def __init__(self, log: KafkaLog, seq: int) -> None:
        self._log = log
        self._seq = seq
        self._over = threading.Event()
        self.heartbeat = time.monotonic()
        self.sent: float | None = None

    def __iter__(self) -> Iterator[Floor | Bytes | Entry | None]:
        while not self._over.is_set():
            latest = self._log.latest()
            self.heartbeat = time.monotonic()
            if self._seq < self._log.earliest():
                floor = self._log.floor()
                self._seq = floor.seq
                yield floor
            if self._seq >= latest:
                yield None
                self._over.wait(_POLL)
                continue
            for entry in self._log.entries(self._seq, latest):
                if entry.seq != self._seq:
                    break
                for piece, segment in enumerate(entry.segments):
                    yield Bytes(piece, 0, self._log.raw(segment))
                    self.heartbeat = time.monotonic()
                yield replace(entry, segments=tuple(replace(s, offsets=None) for s in entry.segments))
                self._seq += 1

    def cancel(self) -> None:
        self._over.set()


class Relay:
    """Keep a replica up with its original, for as long as it is not stopped."""

    def __init__(
        self,
        connect: Callable[[], Remote],
        name: str,
        replica: FileLog,
        *,
        reader: str,
        max_bytes: int | None = None,
        link: str = "",
        meter: LinkMeter | None = None,
    ) -> None:
        self.name = name
        self.link = link
        self.meter = meter or LinkMeter()
        self.replica = replica
        self._connect = connect
        self._reader = reader
        self._max_bytes = max_bytes
        self._stop = threading.Event()
        self._follower: Following | None = None
        self._acknowledged = -1
        self._remote: Remote | None = None
        self._line = Line()
        self._state = RelayState(False, time.monotonic(), None, 0)
        self._threads = [
            threading.Thread(target=self._pull, name=f"relay {name}", daemon=True),
            threading.Thread(target=self._watch, name=f"relay {name} (watch)", daemon=True),
        ]

    def start(self) -> None:
        """Begin to pull."""
        self.replica.create()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; what has come is kept, and a next relay goes on from there."""
        self._stop.set()
        if self._follower is not None:
            self._follower.cancel()
        for thread in self._threads:
            thread.join(_SILENCE)

    def leave(self) -> None:
        """Tell the other side that nobody reads here any more; without a link it keeps what it has."""
        with contextlib.suppress(HeadwaterError):
            remote = self._connect()
            try:
                remote.unregister(self._reader)
            finally:
                remote.close()

    @property
    def state(self) -> RelayState:
        return self._state

    # ------------------------------------------------------------ pulling

    def _pull(self) -> None:
        wait = _RETRY
        while not self._stop.is_set():
            remote: Remote | None = None
            try:
                remote = self._connect()
                self._line = Line()  # the other side may be another machine now
                self._acknowledged = remote.register(self._reader)
                self._remote = remote
                self._note(up=True)
                wait = _RETRY
                while not self._stop.is_set():
                    self._follow(remote)
            except HeadwaterError as error:
                self._note(up=False, error=error)
            except Exception as error:  # a relay must not die of what nobody thought of
                _LOG.exception("relay %s", self.name)
                self._note(up=False, error=error)
            finally:
                self._remote = None
                self.meter.broke(self)
                if remote is not None:
                    remote.close()
            self._stop.wait(wait)
            wait = min(_RETRY_MOST, wait * 2)

    def _follow(self, remote: Remote) -> None:
        """Take in one stream to its end."""
        seq = self.replica.latest()
        piece, offset = self._partial(seq)
        self._follower = follower = remote.follow(seq, piece, offset)
        self.meter.broke(self)
        self._line.began()
        try:
            for item, waited in _timed(follower):
                if self._stop.is_set():
                    return
                since = self._line.busy_since(follower.sent, waited)
                self._note(up=True)
                if isinstance(item, Floor):
                    self._discard(seq)
                    self._wait_until_read(follower)
                    self.replica.begin_at(item)
                    seq = item.seq
                elif isinstance(item, Bytes):
                    self.meter.came(self, len(item.data), waited, since)
                    self._keep(seq, item)
                elif isinstance(item, Entry):
                    self._publish(item)
                    seq = item.seq + 1
                    self._wait_for_room(follower)
                else:
                    self.meter.broke(self)
        finally:
            self._follower = None
            follower.cancel()

    def _wait_for_room(self, follower: Following) -> None:
        """Stop pulling while the readers here are too far behind: the original's bound then counts."""
        if self._max_bytes is not None:
            most = self._max_bytes
            self._wait_for_readers(follower, lambda backlog: backlog.bytes < most)

    def _wait_until_read(self, follower: Following) -> None:
        """Let the readers here take what there is before a gap."""
        self._wait_for_readers(follower, lambda backlog: backlog.entries == 0)

    def _wait_for_readers(self, follower: Following, enough: Callable[[Backlog], bool]) -> None:
        while not self._stop.is_set():
            if all(enough(backlog) for backlog in self.replica.stats().unread.values()):
                return
            follower.heartbeat = time.monotonic()
            self.meter.broke(self, held=True)
            self._stop.wait(_POLL)

    # ------------------------------------------------------------ half an entry

    def _part(self, seq: int, piece: int) -> Path:
        return self.replica.path / "incoming" / f"{seq:012d}.{piece}"

    def _partial(self, seq: int) -> tuple[int, int]:
        """Tell how much of an entry is here already: its last piece begun and that one's length."""
        directory = self.replica.path / "incoming"
        directory.mkdir(parents=True, exist_ok=True)
        found = (0, 0)
        for file in sorted(directory.iterdir()):
            number, _, piece = file.name.partition(".")
            if int(number) != seq:
                file.unlink()
            else:
                found = max(found, (int(piece), file.stat().st_size))
        return found

    def _keep(self, seq: int, part: Bytes) -> None:
        with open(self._part(seq, part.piece), "ab") as out:
            out.truncate(part.offset)
            out.write(part.data)
        self._state = RelayState(True, time.monotonic(), None, self._state.bytes + len(part.data))

    def _publish(self, entry: Entry) -> None:
        if any(s.file is not None and s.file != Path(s.file).name for s in entry.segments):
            raise ChannelError(
                "an entry names a file elsewhere", where=self.name, hint="the other side is not to be trusted"
            )
        for piece, segment in enumerate(entry.segments):
            part = self._part(entry.seq, piece)
            if segment.file is None or not part.exists():
                continue  # lost at the other side: readers here will find and count it as well
            if self.replica.fsync:
                with open(part, "rb") as file:
                    os.fsync(file.fileno())
            os.replace(part, self.replica.path / "staging" / segment.file)
        self.replica.mirror(entry)

    def _discard(self, seq: int) -> None:
        for file in (self.replica.path / "incoming").glob(f"{seq:012d}.*"):
            file.unlink()

    # ------------------------------------------------------------ the other side

    def _watch(self) -> None:
        """Tell the other side how far we are, and give a stream up that has fallen silent."""
        while not self._stop.wait(_ACKNOWLEDGE):
            follower, remote = self._follower, self._remote
            if follower is not None and time.monotonic() - follower.heartbeat > _SILENCE:
                follower.cancel()
                continue
            if remote is None or follower is None:
                continue
            if time.monotonic() - follower.heartbeat < 2 * SIGN_OF_LIFE and self.meter.may_ask():
                with contextlib.suppress(HeadwaterError):
                    if (trip := remote.round_trip()) is not None:
                        self.meter.took(trip)
            latest = self.replica.latest()
            if latest <= self._acknowledged:
                continue
            with contextlib.suppress(HeadwaterError):  # said again when the link is back
                remote.advance(self._reader, latest)
                self._acknowledged = latest

    def _note(self, *, up: bool, error: Exception | None = None) -> None:
        now = time.monotonic()
        since = now if up != self._state.up else self._state.since
        text = None if error is None else str(error).splitlines()[0]
        if up != self._state.up:
            _LOG.info("relay %s is %s%s", self.name, "up" if up else "down", f": {text}" if text else "")
        self._state = RelayState(up, since, text, self._state.bytes)


def _timed(items: Iterable[_T]) -> Iterator[tuple[_T, float]]:
    """Give each item with the seconds for which it was waited."""
    asked = time.monotonic()
    for item in items:
        yield item, time.monotonic() - asked
        asked = time.monotonic()
