"""A link between two zones of one machine that can be cut and restored."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

_LOOK = 0.05
_CHUNK = 65536


class CutLink:
    """Forward TCP connections from a port of loopback to a target, until it is cut.

    A cut link behaves like a pulled cable: connections stay open without data, and new ones
    get no answer. Bytes in transit at the cut are lost with their connections.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.target: tuple[str, int] | None = None
        self._up = threading.Event()
        self._up.set()
        self._closed = threading.Event()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._thread = threading.Thread(target=self._run, name=f"link {self.address}", daemon=True)
        self._thread.start()

    def lead_to(self, address: str) -> None:
        """Set the target: ``host:port``."""
        host, _, port = address.rpartition(":")
        self.target = (host, int(port))

    def cut(self) -> None:
        """Stop forwarding."""
        self._up.clear()

    def mend(self) -> None:
        """Forward new connections; older ones are reset, as after a long cut."""
        self._up.set()

    def close(self) -> None:
        """Close the link."""
        self._closed.set()
        self._thread.join(5)

    def _run(self) -> None:
        was_up = True
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ, self._listener)
            while not self._closed.is_set():
                if not self._up.is_set():
                    was_up = False
                    self._closed.wait(_LOOK)
                    continue
                if not was_up:
                    was_up = True
                    for side in list(self._pairs):
                        self._drop(selector, side)
                for key, _ in selector.select(_LOOK):
                    side = key.data
                    if side is self._listener:
                        self._accept(selector)
                    else:
                        self._forward(selector, side)
            for side in list(self._pairs):
                self._drop(selector, side)
            self._listener.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._listener.accept()
        try:
            assert self.target is not None
            far = socket.create_connection(self.target, 2)
        except (OSError, AssertionError):
            near.close()
            return
        for side, other in ((near, far), (far, near)):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            side.settimeout(5)
            self._pairs[side] = other
            selector.register(side, selectors.EVENT_READ, side)

    def _forward(self, selector: selectors.BaseSelector, side: socket.socket) -> None:
        other = self._pairs.get(side)
        if other is None:
            return
        try:
            data = side.recv(_CHUNK)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        self._drop(selector, side)

    def _drop(self, selector: selectors.BaseSelector, side: socket.socket) -> None:
        other = self._pairs.pop(side, None)
        for end in (side, other):
            if end is None:
                continue
            self._pairs.pop(end, None)
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(end)
            end.close()
