"""Checks before every request: authentication, cross-site requests, size of the body.

All checks come before the body is read; a body that arrives too slowly ends its request. It is ASGI middleware, so that
streams pass through unbuffered.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwater.core.address import is_loopback
from headwater.core.errors import HeadwaterError
from headwater.serving.connections import OVER
from headwater.web import problems
from headwater.web.access import Access, Asker
from headwater.web.lanes import Lanes

API = "/api/"
HEALTH = "/api/v1/health"
"""Answered on each connection, also beyond the limits."""
OPEN = frozenset({HEALTH, "/api/v1/version", "/api/v1/openapi.json"})
"""Addresses that need no token: they reveal nothing about deployments."""
MAX_BODY = 32 * 2**20
"""Maximum bytes of a request's body."""
VIEWERS_BODY = 4 * 2**20
"""Maximum bytes of a viewer's: viewers plan and simulate, and apply nothing."""
UNBOUNDED = frozenset({"/api/v1/events"})
"""Streams, which have limits of their own."""
BODY_SILENT = 10.0
"""Seconds after which a request ends of whose body nothing more arrives."""
BODY_WHOLE = 120.0
"""Seconds in which a body has to arrive."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OF_ALL = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_OF_API = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}
_OF_PAGES = {
    # Without a referrer browsers send no origin with a form, and it would look like a cross-site request.
    "Referrer-Policy": "same-origin",
    "Content-Security-Policy": "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'",
}
_LOG = logging.getLogger(__name__)


class Guard:
    """Passes allowed requests on, with the caller in ``scope["state"]``; answers all others with a problem."""

    def __init__(self, app: ASGIApp, *, access: Access, lanes: Lanes) -> None:
        self._app = app
        self._access = access
        self._lanes = lanes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), str(scope["path"])
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                own = MutableHeaders(scope=message)
                for name, value in {**_OF_ALL, **(_OF_API if path.startswith(API) else _OF_PAGES)}.items():
                    own.setdefault(name, value)
            await send(message)

        refused = await self._refused(scope, headers, path)
        if refused is None:
            try:
                await self._answer(scope, receive, sending, path)
                return
            except _Refused as error:
                refused = error.problem
            except Exception:
                if begun or scope["type"] != "http":
                    raise
                _LOG.exception("%s %s", scope["method"], path)
                refused = problems.plain(HTTPStatus.INTERNAL_SERVER_ERROR, "an unexpected error occurred")
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": refused.title})
            return
        await problems.response(refused)(scope, receive, sending)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        asker: Asker | None = scope.get("state", {}).get("asker")
        if asker is None or path in UNBOUNDED:
            await self._app(scope, self._measured(receive, MAX_BODY), send)
            return
        most = VIEWERS_BODY if asker.role == "viewer" else MAX_BODY
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._lanes.of(asker.role).place())
            except HTTPException as error:
                raise _Refused(problems.plain(error.status_code, error.detail, "try again later")) from None
            await self._app(scope, self._measured(receive, most), send)

    async def _refused(self, scope: Scope, headers: Headers, path: str) -> problems.ProblemDetails | None:
        """Return the reason for refusing a request; None where it is allowed."""
        over = scope.get("state", {}).get(OVER)
        if over is not None and path != HEALTH:
            return problems.plain(over, "too many connections are open", "close some, or try again later")
        try:
            strange = _is_strange(headers.get("host", "")) and await self._on_trial()
            if strange:
                # DNS rebinding: another site's name may point to this machine.
                return problems.plain(
                    HTTPStatus.MISDIRECTED_REQUEST,
                    "in trial mode, this server answers to 127.0.0.1 and localhost only",
                    "make a token (headwater owner admin --token), or ask it at 127.0.0.1",
                )
            acts = scope["type"] == "websocket" or scope["method"] not in SAFE
            if acts and _is_from_elsewhere(headers):
                return problems.plain(
                    HTTPStatus.FORBIDDEN, "it comes from another site's page", "send it from this server's pages"
                )
            if path.startswith(API) and path not in OPEN:
                scope.setdefault("state", {})["asker"] = await self._asker(headers)
            length = headers.get("content-length", "0")
            if not length.isdecimal():
                return problems.plain(HTTPStatus.BAD_REQUEST, "Content-Length is not a number")
            asker: Asker | None = scope.get("state", {}).get("asker")
            most = VIEWERS_BODY if asker is not None and asker.role == "viewer" else MAX_BODY
            if int(length) > most:
                return _too_large(most)
        except HeadwaterError as error:
            return problems.problem_of(error)
        return None

    async def _on_trial(self) -> bool:
        return await anyio.to_thread.run_sync(lambda: self._access.on_trial, limiter=self._lanes.knowing)

    async def _asker(self, headers: Headers) -> Asker:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else None
        return await anyio.to_thread.run_sync(self._access.asker, given, limiter=self._lanes.knowing)

    def _measured(self, receive: Receive, most: int) -> Receive:
        """Count the bytes of the body, and limit its time: chunked requests do not tell their length in advance."""
        came, more = 0, True
        until = anyio.current_time() + BODY_WHOLE

        async def counting() -> Message:
            nonlocal came, more
            if not more:  # it waits for the client's end
                return await receive()
            try:
                with anyio.fail_after(min(BODY_SILENT, until - anyio.current_time())):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    HTTPStatus.REQUEST_TIMEOUT, "the body did not arrive in time", {"Connection": "close"}
                ) from None
            more = bool(message.get("more_body", False))
            if message["type"] == "http.request":
                came += len(message.get("body", b""))
                if came > most:
                    raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _too_large(most).detail)
            return message

        return counting


class _Refused(Exception):
    """The reason for which a request is not answered."""

    def __init__(self, problem: problems.ProblemDetails) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def _too_large(most: int) -> problems.ProblemDetails:
    return problems.plain(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"larger than {most:,} bytes, the maximum")


def _is_strange(host: str) -> bool:
    """Return whether a Host header is not one of the machine's loopback names."""
    return not is_loopback(_name_of(f"//{host}") or "")


def _is_from_elsewhere(headers: Headers) -> bool:
    """Return whether a browser sends the request for a page of another site; False without a browser."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    return origin is not None and _place_of(origin) != _place_of(f"//{headers.get('host', '')}")


def _place_of(address: str) -> Any:
    try:
        return urlsplit(address).netloc.lower()
    except ValueError:
        return None


def _name_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
