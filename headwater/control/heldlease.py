"""A controller's lease on its store: take it, renew it, prove it, release it."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable

from headwater.control.holder import new_holder
from headwater.control.stamps import Stamps
from headwater.control.store import Store
from headwater.core.errors import HeadwaterError, Unavailable
from headwater.plan.port import Stamp


def holder_label() -> str:
    """Return the host and process of this controller, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"


class HeldLease:
    """A controller's lease on its store.

    ``seconds``: without a heartbeat for so long, another controller may take over. While the store cannot be written,
    the lease is kept; once these seconds are over, nothing proves it until it has been renewed, and it is lost only
    where another controller has taken it.
    """

    def __init__(self, store: Store, *, holder: str | None = None, seconds: float = 10.0) -> None:
        self._store = store
        self.holder = holder or new_holder()
        self.seconds = seconds
        self._stamps = Stamps(store.id, 0)
        self._held_until = math.inf
        """Until when nobody else can hold the lease, in monotonic seconds; without end where nothing renews it."""
        self.lost = threading.Event()

    def stamp(self) -> Stamp:
        """Return the stamp of the next order; raise Unavailable while nothing proves the lease."""
        if not self.is_proven():
            raise Unavailable("the lease could not be renewed", where=self._store.where, hint="free space on its disk")
        return self._stamps()

    def is_proven(self) -> bool:
        """Return whether nobody else can hold the lease now."""
        return time.monotonic() < self._held_until

    def take(self, stop: threading.Event, say: Callable[[str], None]) -> bool:
        """Wait for the lease; return False where ``stop`` was set before."""
        told = ""
        while not stop.is_set():
            asked = time.monotonic()
            try:
                if self.hold():
                    self._held_until = asked + self.seconds
                    return True
                lease = self._store.lease()
                found = f"{lease.label} acts on {self._store.where}" if lease is not None else told
            except Unavailable as error:
                found = str(error)
            if found != told:
                told = found
                say(f"waiting: {told}")
            stop.wait(min(1.0, self.seconds / 3))
        return False

    def hold(self) -> bool:
        """Take or renew the lease; orders carry its term."""
        term = self._store.hold(self.holder, self.seconds, label=holder_label())
        if term is None:
            return False
        if term != self._stamps.term:
            self._stamps = Stamps(self._store.id, term)
        return True

    def release(self) -> None:
        """Release the lease."""
        self._store.release(self.holder)

    def keep(self, stop: threading.Event, say: Callable[[str], None], excuse: Callable[[float], None]) -> bool:
        """Renew the lease until ``stop`` is set or it is lost; return False where another controller has taken it.

        Tell once when the store cannot be written, when orders stop, and when they go on. ``excuse`` is given the
        seconds for which nothing proved the lease.
        """
        term, failed, paused = self._stamps.term, "", False
        while not stop.is_set() and not self.lost.wait(self.seconds / 3):
            asked = time.monotonic()
            try:
                if not self.hold():
                    return False
            except HeadwaterError as error:
                if not failed:
                    failed = str(error)
                    say(f"the store cannot be written, the controller waits: {failed}")
                if not paused and not self.is_proven():
                    paused = True
                    say("the lease could not be renewed: no orders are given until it can be")
                continue
            if self._stamps.term != term:  # another one had it meanwhile, and has changed what this one knows
                self.release()
                return False
            if not self.is_proven():
                excuse(asked - self._held_until)
            self._held_until = asked + self.seconds
            if failed:
                say("the store can be written again, the controller goes on")
            failed, paused = "", False
            with contextlib.suppress(Unavailable, OSError):  # it goes on without
                self._store.reserve()
        return True
