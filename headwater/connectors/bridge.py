"""Bridges: each receives the records of one source at one location and stores them in a spool, which Spark reads.

A bridge's protocol is in a module of its own (``mqtt``, ``httpbridge``, ``opcuabridge``); ``SpoolWriter`` stores. What
the outside could not send again is durable before it is acknowledged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

from headwater.channels.filelog import FileLog
from headwater.connectors.spoolwriter import Received, SpoolWriter

State: TypeAlias = Literal["new", "connecting", "connected", "refused", "failed", "stopped"]

STOP_SECONDS = 10.0
"""Seconds for a bridge that stops to store what it has received."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class BridgeStatus:
    """Status of a bridge. ``error`` is the present problem; a full log is an error, not a state.

    ``repeated``: records that were recognised as received before; ``missed``: values known to be lost before they came
    here; ``not_utf8``: records that were no text.
    """

    state: State
    address: str
    received: int = 0
    stored: int = 0
    waiting: int = 0
    not_utf8: int = 0
    repeated: int = 0
    missed: int = 0
    connections: int = 0
    error: str | None = None


@dataclass
class Counts:
    """What a bridge counts itself; see ``BridgeStatus``."""

    not_utf8: int = 0
    repeated: int = 0
    missed: int = 0
    connections: int = 0


class Bridge(ABC, Generic[T]):
    """Store the records of one source at one location in ``log``. To start again, make a new bridge.

    ``address``: what it reads, for people; ``flush_seconds``, ``flush_rows``: a batch is stored when it is so old or
    has so many rows.
    """

    def __init__(
        self, *, log: FileLog, epoch: int, name: str, address: str, flush_seconds: float, flush_rows: int
    ) -> None:
        self.address = address
        self._spool: SpoolWriter[T] = SpoolWriter(
            log,
            epoch=epoch,
            name=name,
            stored=self._acknowledge,
            broken=self._disconnect,
            before=self._note,
            flush_seconds=flush_seconds,
            flush_rows=flush_rows,
        )
        self._changed = self._spool.changed  # guards everything below
        self._state: State = "new"
        self._error: str | None = None
        self._counts = Counts()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address}, {self.status().state})"

    def start(self) -> None:
        """Start to receive; retry while the other side does not answer.

        Raise Unavailable without the protocol's library, RuntimeFailure when a named secret is not set, ChannelError
        when a newer writer has the log.
        """
        self._prepare()
        self._begin(self._spool.fence())
        self._set("connecting")
        self._spool.start()
        self._connect()

    def stop(self) -> None:
        """Store and acknowledge what was received, then disconnect.

        What cannot be stored within ten seconds is not acknowledged.
        """
        self._spool.stop(STOP_SECONDS)
        self._disconnect()
        self._set("stopped")

    def status(self) -> BridgeStatus:
        """Return the bridge's status."""
        with self._changed:
            spool = self._spool
            return BridgeStatus(
                state="failed" if spool.failed else self._state,
                address=self.address,
                received=spool.received,
                stored=spool.stored_rows,
                waiting=spool.waiting,
                not_utf8=self._counts.not_utf8,
                repeated=self._counts.repeated,
                missed=self._counts.missed,
                connections=self._counts.connections,
                error=spool.error or self._error,
            )

    def _set(self, state: State, error: str | None = None) -> None:
        with self._changed:
            self._state, self._error = state, error
            self._changed.notify_all()

    def _begin(self, stored: tuple[int, int] | None) -> None:
        """Read what the bridge has kept; ``stored``: the (epoch, batch) of the newest batch in the log."""

    def _note(self, batch: int, items: list[Received[T]]) -> None:
        """Keep what must not be lost with a batch, before its commit."""

    @abstractmethod
    def _prepare(self) -> None:
        """Do what can fail for good: load the library, read secrets."""

    @abstractmethod
    def _connect(self) -> None:
        """Begin to receive."""

    @abstractmethod
    def _disconnect(self) -> None:
        """End to receive; also called when records cannot be stored any more, and then again by ``stop``."""

    @abstractmethod
    def _acknowledge(self, items: list[Received[T]]) -> None:
        """Acknowledge a durable batch."""
