"""Lanes of requests by role: many requests of viewers do not delay those of operators and owners.

Each lane answers a number of requests at once; together they leave threads of the server's pool to streams and pages.
Health, authentication and streams have threads of their own.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus

import anyio
from anyio import CapacityLimiter
from starlette.exceptions import HTTPException

from headwater.control.sharing import Role
from headwater.core.errors import Unavailable

WIDTHS: dict[Role, int] = {"viewer": 8, "operator": 16}
"""Number of requests that are answered at once; owners share the lane of operators."""
QUEUE = 64
"""Number of requests that wait in a lane."""
PATIENCE = 20.0
"""Seconds that a request waits in a lane, or for a turn to compute."""
TURNS: dict[Role, int] = {"viewer": 1, "operator": 2}
"""Number of plans and simulations that are computed at once."""
HEALTH_THREADS = 2
KNOWING_THREADS = 4
STREAM_THREADS = 4


class Lane:
    """Requests of one role."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._places = CapacityLimiter(WIDTHS[role])
        self._waiting = 0
        self._turns = threading.BoundedSemaphore(TURNS[role])

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place; raise HTTPException where too many wait, or none is free in time."""
        if self._waiting >= QUEUE:
            raise HTTPException(
                HTTPStatus.TOO_MANY_REQUESTS, f"{QUEUE} requests of the role {self._role} are waiting already"
            )
        self._waiting += 1
        mine = object()
        try:
            with anyio.fail_after(PATIENCE):
                await self._places.acquire_on_behalf_of(mine)
        except TimeoutError:
            raise HTTPException(
                HTTPStatus.SERVICE_UNAVAILABLE, f"too many requests of the role {self._role} are being answered"
            ) from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._places.release_on_behalf_of(mine)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait, in a thread, for a turn to compute; raise Unavailable where none comes in time."""
        if not self._turns.acquire(timeout=PATIENCE):
            raise Unavailable("too many plans are being computed", hint="try again later")
        try:
            yield
        finally:
            self._turns.release()


class Lanes:
    """The lanes of a server, and the threads of requests that belong to none."""

    def __init__(self) -> None:
        self._of: dict[Role, Lane] = {"viewer": Lane("viewer"), "operator": Lane("operator")}
        self.health = CapacityLimiter(HEALTH_THREADS)
        self.knowing = CapacityLimiter(KNOWING_THREADS)
        """For authentication."""
        self.streams = CapacityLimiter(STREAM_THREADS)

    def of(self, role: Role) -> Lane:
        """Return the lane of a role."""
        return self._of["viewer" if role == "viewer" else "operator"]
