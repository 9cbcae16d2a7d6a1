"""The listening addresses of this process for HTTP endpoints: each serves the endpoints of any units by their paths."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from headwater.core.errors import DeploymentError, HeadwaterError
from headwater.serving.connections import OVER
from headwater.serving.listening import RELEASED, listen
from headwater.serving.running import running
from headwater.tls.listener import ListenerTls

Endpoint: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application at one path."""


class HttpListener:
    """A listening address; it opens with its first endpoint and closes with its last."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _open: ClassVar[dict[tuple[str, int], HttpListener]] = {}

    def __init__(self, tls: ListenerTls | None) -> None:
        self._tls = tls
        self._endpoints: dict[str, Endpoint] = {}
        self._server = ExitStack()

    @classmethod
    def add(cls, host: str, port: int, path: str, endpoint: Endpoint, *, tls: ListenerTls | None, where: str) -> None:
        """Serve an endpoint; raise DeploymentError where the address or the path is taken."""
        with cls._lock:
            found = cls._open.get((host, port))
            if found is None:
                found = cls(tls)
                try:
                    listening = listen(host, port, option=where, wait=RELEASED)
                    found._server.enter_context(running(found, listening, option=where, tls=tls, lifespan="off"))
                except HeadwaterError as error:
                    raise DeploymentError(
                        error.what, where=where, hint="choose another port in read.http, or end what listens there"
                    ) from error
                cls._open[host, port] = found
            elif found._tls != tls:
                raise DeploymentError(
                    f"another endpoint at {host}:{port} has other settings for TLS",
                    where=where,
                    hint="give both the same tls, certificate and key, or another port",
                )
            if path in found._endpoints:
                raise DeploymentError(
                    f"another source has the endpoint {host}:{port}{path}",
                    where=where,
                    hint="choose another path, or write {location} in it",
                )
            found._endpoints[path] = endpoint

    @classmethod
    def certificate(cls, host: str, port: int) -> Path | None:
        """Return the certificate that clients of an address of this process meet; None without TLS."""
        found = cls._open.get((host, port))
        return None if found is None or found._tls is None else found._tls.certificate

    @classmethod
    def remove(cls, host: str, port: int, path: str, endpoint: Endpoint) -> None:
        """End an endpoint, if it is served."""
        with cls._lock:
            found = cls._open.get((host, port))
            if found is None or found._endpoints.get(path) is not endpoint:
                return
            del found._endpoints[path]
            if not found._endpoints:
                del cls._open[host, port]
                found._server.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request to its endpoint."""
        if scope["type"] != "http":
            return
        if scope.get("state", {}).get(OVER) is not None:
            await refuse(send, HTTPStatus.SERVICE_UNAVAILABLE, "too many connections are open", retry=1)
            return
        endpoint = self._endpoints.get(scope["path"])
        if endpoint is None:
            await refuse(send, HTTPStatus.NOT_FOUND, "no dataflow reads this path")
            return
        await endpoint(scope, receive, send)


async def answer(send: Any, status: int, body: dict[str, Any], kind: str, headers: dict[str, str]) -> None:
    """Send an answer in JSON."""
    text = json.dumps(body).encode() + b"\n"
    sent = {"content-type": kind, "content-length": str(len(text)), **headers}
    pairs = [(name.encode(), value.encode()) for name, value in sent.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": text})


async def refuse(
    send: Any, status: HTTPStatus, detail: str, *, retry: int | None = None, headers: dict[str, str] | None = None
) -> None:
    """Send a refusal, as a problem of RFC 9457; ``retry``: seconds after which to send the request again."""
    body = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail}
    more = {} if retry is None else {"retry-after": str(retry)}
    await answer(send, int(status), body, "application/problem+json", {**more, **(headers or {})})
