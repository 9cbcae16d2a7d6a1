"""Pull a log of another zone into a replica here: same entries, same numbers, same rows.

The queries of this zone read the replica alone, so a link that fails, comes back or is slow does
not disturb them; data crosses the link once. An entry is durable here before the other side
learns that it may reclaim it.
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
from headwater.channels.flight import SIGN_OF_LIFE
from headwater.channels.followed import Begin, Bytes
from headwater.channels.linkmeter import Line, LinkMeter
from headwater.channels.segments import damage_of, map_file
from headwater.core.errors import ChannelError, HeadwaterError
from headwater.tracing.context import TraceContext
from headwater.tracing.spans import Attributes, TraceSpan, is_tracing, send

if TYPE_CHECKING:
    from headwater.channels.kafkalog import KafkaLog

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_SILENCE = 5 * SIGN_OF_LIFE
"""Seconds without a message after which the link counts as down."""

_ACKNOWLEDGE = 0.5  # seconds between two acknowledgements
_POLL = 0.05  # seconds between two polls of a broker
_RETRY, _RETRY_MOST = 0.2, 2.0
_EXPANDED = ".expanded"
"""The end of the file names of received segments with columns that are not compressed."""


@dataclass(frozen=True)
class RelayState:
    """State of a relay: time of the last message from the other side (monotonic), and that side's newest position."""

    up: bool
    since: float
    error: str | None
    bytes: int


class Following(Protocol):
    """A stream of a log's entries from a position on; ``heartbeat`` is when the last message came."""

    heartbeat: float
    sent: float | None
    """When the newest item was sent, by the other side's monotonic clock; None: unknown."""

    def __iter__(self) -> Iterator[Floor | Bytes | Entry | None]:
        """Yield floors, bytes and entries as they arrive, None as a keep-alive."""

    def cancel(self) -> None:
        """End the stream, from any thread."""


class Remote(Protocol):
    """A log of another zone."""

    def register(self, reader: str) -> int:
        """Make the log keep the entries that ``reader`` has not read; return the reader's position."""

    def advance(self, reader: str, position: int) -> None:
        """Record that ``reader`` needs nothing before ``position``."""

    def unregister(self, reader: str) -> None:
        """Forget ``reader``."""

    def latest(self) -> int:
        """Return the position after the newest entry."""

    def round_trip(self) -> float | None:
        """Return the round-trip time of a small request in seconds; None where it cannot be measured."""

    def follow(self, seq: int, begin: Begin = Begin()) -> Following:  # noqa: B008 - frozen
        """Open a stream from a position on."""

    def close(self) -> None:
        """Close the connection."""


class PolledLog:
    """A log at another zone's broker, followed by polling."""

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
        return None  # requests to a broker are shared and cached in this process

    def follow(self, seq: int, begin: Begin = Begin()) -> Polling:  # noqa: B008 - frozen
        return Polling(self._log, seq)

    def close(self) -> None:
        """Do nothing: the process keeps its connections to brokers."""


class Polling:
    """A stream of the entries of a broker's log from a position on."""

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


def relay_reader(node: str) -> str:
    """Name the reader that protects entries which another node has not pulled."""
    return f"relay@{node}"


def unregister(connect: Callable[[], Remote], reader: str) -> None:
    """Unregister a reader at the other side; without a link that side keeps its entries."""
    with contextlib.suppress(HeadwaterError):
        remote = connect()
        try:
            remote.unregister(reader)
        finally:
            remote.close()


class Relay:
    """Keep a replica up to date with its original until stopped."""

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
        self._durable = -1
        """The end of the replica's entries that a power cut leaves: only these are acknowledged."""
        self._remote: Remote | None = None
        self._line = Line()
        self._since = 0.0
        """When the entry that arrives now began to, in seconds since 1970."""
        self._state = RelayState(False, time.monotonic(), None, 0)
        self._threads = [
            threading.Thread(target=self._pull, name=f"relay {name}", daemon=True),
            threading.Thread(target=self._watch, name=f"relay {name} (watch)", daemon=True),
        ]

    def start(self) -> None:
        """Start to pull."""
        self.replica.create()
        self.replica.sync()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop; received data is kept, and the next relay continues from there."""
        self._stop.set()
        if self._follower is not None:
            self._follower.cancel()
        for thread in self._threads:
            thread.join(_SILENCE)

    def leave(self) -> None:
        """Unregister this reader at the other side, if the link is up."""
        unregister(self._connect, self._reader)

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
            except Exception as error:  # an unexpected error must not end a relay
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
        """Receive one stream to its end."""
        seq = self._durable = self.replica.latest()
        self._follower = follower = remote.follow(seq, self._partial(seq))
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
                    seq = self._durable = item.seq
                elif isinstance(item, Bytes):
                    self.meter.came(self, item.link_bytes, waited, since)
                    self._since = self._since or time.time()
                    self._keep(seq, item)
                elif isinstance(item, Entry):
                    self._publish(item)
                    seq = self._durable = item.seq + 1
                    self._wait_for_room(follower)
                else:
                    self.meter.broke(self)
        finally:
            self._follower = None
            follower.cancel()

    def _wait_for_room(self, follower: Following) -> None:
        """Pause while the readers here are too far behind: then the original's limits apply."""
        if self._max_bytes is not None:
            most = self._max_bytes
            self._wait_for_readers(follower, lambda backlog: backlog.bytes < most)

    def _wait_until_read(self, follower: Following) -> None:
        """Wait until the readers here have read the entries before a gap."""
        self._wait_for_readers(follower, lambda backlog: backlog.entries == 0)

    def _wait_for_readers(self, follower: Following, enough: Callable[[Backlog], bool]) -> None:
        while not self._stop.is_set():
            if all(enough(backlog) for backlog in self.replica.stats().unread.values()):
                return
            follower.heartbeat = time.monotonic()
            self.meter.broke(self, held=True)
            self._stop.wait(_POLL)

    # ------------------------------------------------------------ partial entries

    def _part(self, seq: int, piece: int, *, expanded: bool) -> Path:
        return self.replica.path / "incoming" / f"{seq:012d}.{piece}{_EXPANDED if expanded else ''}"

    def _partial(self, seq: int) -> Begin:
        """Return the received part of an entry: its last segment, with that one's bytes."""
        directory = self.replica.path / "incoming"
        directory.mkdir(parents=True, exist_ok=True)
        sizes: dict[int, int] = {}
        expanded = set()
        for file in sorted(directory.iterdir()):
            number, _, piece = file.name.removesuffix(_EXPANDED).partition(".")
            if int(number) != seq:
                file.unlink()
                continue
            sizes[int(piece)] = file.stat().st_size
            if file.name.endswith(_EXPANDED):
                expanded.add(int(piece))
        last = max(sizes, default=0)
        return Begin(last, sizes.get(last, 0), frozenset(expanded))

    def _keep(self, seq: int, part: Bytes) -> None:
        self._part(seq, part.piece, expanded=not part.expanded).unlink(missing_ok=True)
        with open(self._part(seq, part.piece, expanded=part.expanded), "ab") as out:
            if out.tell() < part.offset:
                raise self._again(seq, part.piece, f"came from byte {part.offset} on, not from {out.tell()}")
            out.truncate(part.offset)
            out.write(part.data)
        self._state = RelayState(True, time.monotonic(), None, self._state.bytes + part.link_bytes)

    def _publish(self, entry: Entry) -> None:
        if any(s.file is not None and s.file != Path(s.file).name for s in entry.segments):
            raise ChannelError(
                "an entry names a file outside the log",
                where=self.name,
                hint="do not trust the other side; check its agent",
            )
        for piece, segment in enumerate(entry.segments):
            stored, expanded = (self._part(entry.seq, piece, expanded=form) for form in (False, True))
            part = expanded if expanded.exists() else stored
            if segment.file is None or not part.exists():
                continue  # lost at the other side: readers here also find and count the loss
            with open(part, "rb") as file:
                if (
                    part == expanded and damage_of(map_file(file), segment) is not None
                ):  # it was whole at the other side
                    raise self._again(entry.seq, piece, "came with other bytes than were sent")
                if self.replica.fsync:
                    os.fsync(file.fileno())
            os.replace(part, self.replica.path / "staging" / segment.file)
        self.replica.mirror(self._traced(entry))
        self._since = 0.0

    def _again(self, seq: int, piece: int, why: str) -> ChannelError:
        """Discard what was received of an entry, and return the error to raise: the next stream sends it again."""
        self._discard(seq)
        return ChannelError(
            f"segment {piece} of entry {seq} {why}",
            where=self.name,
            hint="it is fetched again; if this repeats, run the same version on both sides",
        )

    def _traced(self, entry: Entry) -> Entry:
        """Send a span of the transfer of a traced entry; what reads the entry here follows that span."""
        parent = TraceContext.parse(entry.trace)
        if parent is None or not is_tracing():
            return entry
        context, now = parent.child("relay", self.link, self.name), time.time()
        about: Attributes = {
            "headwater.channel": self.name,
            "headwater.link": self.link,
            "headwater.entry": entry.seq,
            "headwater.rows": entry.rows,
            "headwater.bytes": entry.bytes,
        }
        name, begun = f"relay {self.name}", min(now, self._since or now)
        send(
            TraceSpan(
                name=name, context=context, parent=parent, begun=begun, ended=now, kind="CLIENT", attributes=about
            )
        )
        return replace(entry, trace=context.text)

    def _discard(self, seq: int) -> None:
        for file in (self.replica.path / "incoming").glob(f"{seq:012d}.*"):
            file.unlink()

    # ------------------------------------------------------------ the other side

    def _watch(self) -> None:
        """Acknowledge the position to the other side, and cancel a stream that has fallen silent."""
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
            latest = self._durable
            if latest <= self._acknowledged:
                continue
            with contextlib.suppress(HeadwaterError):  # repeated when the link is back
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
    """Yield each item with the seconds spent waiting for it."""
    asked = time.monotonic()
    for item in items:
        yield item, time.monotonic() - asked
        asked = time.monotonic()
