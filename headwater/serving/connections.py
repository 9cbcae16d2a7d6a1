"""Limits of a server's connections: their number, in all and of one address, and the time of each phase.

They hold before a request is read, so that clients that send half a request, or read no answer, cost no more than a
socket for some seconds.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from time import monotonic
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

TOTAL = 256
"""Number of connections."""
PER_ADDRESS = 64
"""Number of connections of one address."""
SPARE = 32
"""Number of connections beyond these, which are answered with an error, or with the server's health."""
HEAD = 10.0
"""Seconds from the start of a connection, or from the last answer, to the end of the next request's head."""
STALLED = 30.0
"""Seconds after which a connection is cut that takes no byte of an answer."""
OVER = "over"
"""The key of a request's state: the status that answers a request on a connection beyond the limits."""
_TICK = 0.5


class BoundedLoop(asyncio.SelectorEventLoop):
    """An event loop that ends connections whose TLS handshake does not end in time: they are not counted yet."""

    async def create_server(self, *given: Any, **options: Any) -> asyncio.Server:
        """Open a server."""
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HEAD
        return await super().create_server(*given, **options)


class BoundedConnection(H11Protocol):
    """An HTTP connection with limits.

    At a limit, the connection that has waited longest without a request makes room for a new one.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and make room for it."""
        super().connection_made(transport)
        self._since = monotonic()  # the loop's clock may have whole milliseconds: two connections would be equal
        """Since when it is open, or has an answer, without a request."""
        self._left = 0, self._since
        """Bytes of an answer that the client has not taken, and since when their number is unchanged."""
        self._upgraded = False
        others = [one for one in self.connections if one is not self and not _ends(one)]
        mine = [one for one in others if _address(one) == _address(self)]
        over = None
        if len(mine) >= PER_ADDRESS and not _make_room(mine):
            over = HTTPStatus.TOO_MANY_REQUESTS
        elif len(others) >= TOTAL and not _make_room(others):
            over = HTTPStatus.SERVICE_UNAVAILABLE
        if over is not None:
            if len(others) >= TOTAL + SPARE or len(mine) >= PER_ADDRESS + SPARE:
                transport.abort()
                return
            self.app_state = {**self.app_state, OVER: int(over)}
        self.loop.call_later(_TICK, self._tick)

    @property
    def waits(self) -> bool:
        """Whether no request is being answered."""
        return not (self._upgraded or _ends(self)) and (self.cycle is None or self.cycle.response_complete)

    @property
    def since(self) -> float:
        """Since when it waits."""
        return self._since

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._since = monotonic()
        super().on_response_complete()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Leave the connection to the protocol of sockets, which has limits of its own."""
        self._upgraded = True
        super().handle_websocket_upgrade(event)

    def end(self) -> None:
        """Close the connection, which waits for a request."""
        if self.conn.trailing_data[0]:  # else there is nothing to answer
            self.transport.write(_late())
        self.transport.close()

    def _tick(self) -> None:
        """Close a connection whose request does not arrive, cut one whose answer is not taken."""
        now, left = monotonic(), self.transport.get_write_buffer_size()
        if self._upgraded or (self.transport.is_closing() and not left):
            return
        if not left or left != self._left[0]:
            self._left = left, now
        elif now - self._left[1] > STALLED:
            self.transport.abort()
            return
        if self.waits and now - self._since > HEAD:
            self.end()
        self.loop.call_later(_TICK, self._tick)


def _address(connection: Any) -> str | None:
    return connection.client[0] if connection.client else None


def _ends(connection: Any) -> bool:
    return connection.transport is not None and bool(connection.transport.is_closing())


def _late() -> bytes:
    """Return the answer to a request of which only a part has come, in the form of ``problems``."""
    status = HTTPStatus.REQUEST_TIMEOUT
    problem = {
        "type": "urn:headwater:problem:request-timeout",
        "title": "The request did not arrive in time",
        "status": int(status),
        "detail": "a part of the request was sent, and not the rest",
        "where": None,
        "hint": "send it again, at once",
        "errors": [],
    }
    body = json.dumps(problem).encode()
    head = f"HTTP/1.1 {int(status)} {status.phrase}\r\nContent-Type: application/problem+json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def _make_room(connections: list[Any]) -> bool:
    """Close the connection that has waited longest without a request; False where none waits."""
    waiting = [one for one in connections if isinstance(one, BoundedConnection) and one.waits]
    if not waiting:
        return False
    min(waiting, key=lambda one: one.since).end()
    return True
