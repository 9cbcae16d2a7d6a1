"""A link between two zones of one machine that can be cut, in one direction or both, delayed and restored."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from typing import Literal, TypeAlias

from headwater.core.address import Address

_LOOK = 0.05
_CHUNK = 65536

Direction: TypeAlias = Literal["requests", "answers"]
"""Requests go from the side that connects to the target; answers come back."""
_BOTH: tuple[Direction, ...] = ("requests", "answers")


class CutLink:
    """Forward TCP connections from a port of loopback to a target, until it is cut.

    A cut link behaves like a pulled cable: connections stay open without data, and new ones are accepted and get no
    answer. Bytes in transit at the cut are lost with their connections. ``delay``: seconds by which every byte comes
    later.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.target: tuple[str, int] | None = None
        self.delay = 0.0
        self._lock = threading.Lock()
        self._cut: frozenset[Direction] = frozenset()
        self._mended: list[bool] = []
        """For each restoration that the thread has not made yet: whether it resets the older connections."""
        self._closed = threading.Event()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._directions: dict[socket.socket, Direction] = {}
        self._silent: list[socket.socket] = []
        self._delayed: deque[tuple[float, socket.socket, bytes]] = deque()
        self._thread = threading.Thread(target=self._run, name=f"link {self.address}", daemon=True)
        self._thread.start()

    def lead_to(self, address: str) -> None:
        """Set the target, an agent's address."""
        target = Address.parse(address)
        self.target = (target.host, target.port)

    def cut(self, *directions: Direction) -> None:
        """Stop forwarding in these directions; in both without any."""
        with self._lock:
            self._cut = frozenset(directions or _BOTH)

    def mend(self, *, reset: bool = True) -> None:
        """Forward new connections; older ones are reset, as after a long cut.

        Without ``reset`` older ones stay open without data, as behind a firewall that has forgotten them.
        """
        with self._lock:
            self._cut = frozenset()
            self._mended.append(reset)

    def close(self) -> None:
        """Close the link."""
        self._closed.set()
        self._thread.join(5)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            while not self._closed.is_set():
                with self._lock:
                    cut, mended, self._mended = self._cut, self._mended, []
                for reset in mended:
                    self._end_older(selector, reset=reset)
                self._watch(selector, cut)
                due = self._delayed[0][0] - time.monotonic() if self._delayed else _LOOK
                for key, _ in selector.select(max(0.0, min(_LOOK, due))):
                    side = key.data
                    if side is self._listener:
                        self._accept()
                    else:
                        self._forward(selector, side)
                self._send_delayed(selector)
            self._end_older(selector, reset=True)
            for side in self._silent:
                side.close()
            self._listener.close()

    def _watch(self, selector: selectors.BaseSelector, cut: frozenset[Direction]) -> None:
        """Listen to the sides that are not cut off."""
        wanted = {side for side in self._pairs if self._directions[side] not in cut}
        if cut != frozenset(_BOTH):
            wanted.add(self._listener)
        known = {key.data for key in selector.get_map().values()}
        for side in known - wanted:
            selector.unregister(side)
        for side in wanted - known:
            selector.register(side, selectors.EVENT_READ, side)

    def _end_older(self, selector: selectors.BaseSelector, *, reset: bool) -> None:
        """Reset all connections, or leave them open without data."""
        self._delayed.clear()
        for side in list(self._pairs):
            if reset:
                self._drop(selector, side)
            else:
                self._silent.append(side)
        for side in self._silent:
            self._pairs.pop(side, None)
            self._directions.pop(side, None)

    def _accept(self) -> None:
        try:
            near, _ = self._listener.accept()
        except OSError:  # no file descriptor is free
            self._closed.wait(_LOOK)
            return
        try:
            assert self.target is not None
            far = socket.create_connection(self.target, 2)
        except (OSError, AssertionError):
            near.close()
            return
        for side, other, direction in ((near, far, _BOTH[0]), (far, near, _BOTH[1])):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            side.settimeout(5)
            self._pairs[side] = other
            self._directions[side] = direction

    def _forward(self, selector: selectors.BaseSelector, side: socket.socket) -> None:
        if side not in self._pairs:
            return
        try:
            data = side.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            self._drop(selector, side)
        elif self.delay or self._delayed:
            self._delayed.append((time.monotonic() + self.delay, side, data))
        else:
            self._send(selector, side, data)

    def _send_delayed(self, selector: selectors.BaseSelector) -> None:
        while self._delayed and self._delayed[0][0] <= time.monotonic():
            _, side, data = self._delayed.popleft()
            self._send(selector, side, data)

    def _send(self, selector: selectors.BaseSelector, side: socket.socket, data: bytes) -> None:
        other = self._pairs.get(side)
        if other is None:
            return
        try:
            other.sendall(data)
        except OSError:
            self._drop(selector, side)

    def _drop(self, selector: selectors.BaseSelector, side: socket.socket) -> None:
        other = self._pairs.pop(side, None)
        for end in (side, other):
            if end is None:
                continue
            self._pairs.pop(end, None)
            self._directions.pop(end, None)
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(end)
            end.close()
