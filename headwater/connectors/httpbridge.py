"""The bridge from HTTP requests to a spool: an endpoint that answers when a request's rows are durable.

Guarantees:

- 200: all rows of the request are in the log, in their order. What is no row becomes a dead letter, and takes none of
  its neighbours along.
- A request with an ``Idempotency-Key`` that is sent again, also after a crash of either side, is answered as before and
  stored once, as long as it is one of the newest ``requestkeys.KEPT`` of the endpoint. The same key with another body
  is refused.
- 429: the log or the memory is full, nothing of the request was taken. 503 from an endpoint that stops: the same. 503
  after waiting: the rows may still be stored; only a key makes it safe to send them again.
- Without a key: at least once, for a client that sends again what was not answered.
"""

from __future__ import annotations

import asyncio
import hmac
from concurrent.futures import Future
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from headwater.channels.filelog import FileLog
from headwater.connectors.bridge import Bridge
from headwater.connectors.httplistener import HttpListener, answer, refuse
from headwater.connectors.httprecords import records_of
from headwater.connectors.requestkeys import KEPT, KnownRequest, RequestKeys, digest
from headwater.connectors.spoolwriter import MAX_BYTES, Received
from headwater.core.errors import DeploymentError
from headwater.dataflow.httpsource import HttpSource
from headwater.disk.credentials import read_secret
from headwater.tls.listener import ListenerTls, listener_tls

ANSWER_SECONDS = 30.0
"""Seconds for the rows of a request to become durable, before it is answered with 503."""
_BODY_SILENT = 10.0  # seconds for the next part of a body to arrive
_BODY_WHOLE = 120.0  # seconds for all of it
_RETRY_SECONDS = 1
_LONGEST_KEY = 255
_SHORT = 2**16  # bytes of a body that is divided into records at once, not in another thread


@dataclass(eq=False)
class _Request:
    """A request whose rows are not stored yet, and its number of rows when they are; None: they will not be."""

    known: KnownRequest
    has_key: bool
    done: Future[int | None] = field(default_factory=Future)


class _NotTaken(Exception):
    """The answer to a request that is not taken."""

    def __init__(
        self, status: HTTPStatus, detail: str, *, retry: int | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.retry, self.headers = status, detail, retry, headers


class HttpBridge(Bridge[_Request]):
    """Store the rows that are posted to one endpoint in ``log``; ``home``: the directory of its own certificate."""

    def __init__(
        self,
        source: HttpSource,
        *,
        location: str,
        log: FileLog,
        epoch: int,
        home: Path,
        flush_seconds: float = 0.0,
        flush_rows: int = 10_000,
        kept: int = KEPT,
    ) -> None:
        self._source, self._home = source, home
        self._at = source.endpoint(location)
        super().__init__(
            log=log,
            epoch=epoch,
            name=f"http-{source.id}",
            address=f"http at {self._at.server}{self._at.path}",
            flush_seconds=flush_seconds,
            flush_rows=flush_rows,
        )
        self._keys = RequestKeys(log.path.parent / "keys", epoch=epoch, fsync=log.fsync, kept=kept)
        self._waiting: dict[str, _Request] = {}  # by key, those that are not stored yet
        self._unanswered: set[_Request] = set()
        self._token: bytes | None = None
        self._tls: ListenerTls | None = None
        self._reading = 0  # bytes of bodies that are being read

    # -- the bridge ----------------------------------------------------------------------------------

    def _prepare(self) -> None:
        token = read_secret(self._source.token_env, where=self._source.where)
        self._token = None if token is None else token.encode()
        files = [None if name is None else Path(name) for name in (self._source.certificate, self._source.key)]
        try:
            self._tls = listener_tls(
                self._at.host, self._home / "endpoint-tls", asked=self._source.tls, certificate=files[0], key=files[1]
            )
        except DeploymentError as error:
            raise DeploymentError(error.what, where=self._source.where, hint=error.hint) from error

    def _begin(self, stored: tuple[int, int] | None) -> None:
        self._keys.load(stored)

    def _connect(self) -> None:
        at = self._at
        HttpListener.add(at.host, at.port, at.path, self, tls=self._tls, where=self._source.where)
        self._set("connected")

    def _disconnect(self) -> None:
        with self._changed:
            unanswered, self._unanswered = self._unanswered, set()
            self._waiting.clear()
        for request in unanswered:
            request.done.set_result(None)
        if self._spool.stopping:  # else it goes on to answer, with the reason
            HttpListener.remove(self._at.host, self._at.port, self._at.path, self)
            self._keys.close()

    def _note(self, batch: int, items: list[Received[_Request]]) -> None:
        self._keys.note(batch, [i.token.known for i in items if i.token.has_key])

    def _acknowledge(self, items: list[Received[_Request]]) -> None:
        requests = [item.token for item in items]
        with self._changed:
            self._keys.commit()
            requests = [request for request in requests if request in self._unanswered]
            self._unanswered.difference_update(requests)
            for request in requests:
                self._waiting.pop(request.known.key, None)
        for request in requests:
            request.done.set_result(request.known.rows)

    # -- the clients' side: the server's thread ------------------------------------------------------

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        try:
            rows = await self._taken(scope, receive)
        except _NotTaken as no:
            await refuse(send, no.status, no.detail, retry=no.retry, headers=no.headers)
        else:
            await answer(send, int(HTTPStatus.OK), {"rows": rows}, "application/json", {})

    async def _taken(self, scope: Any, receive: Any) -> int:
        """Take the rows of a request and return their number when they are durable."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self._check(scope["method"], headers)
        key = headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= _LONGEST_KEY:
            raise _NotTaken(HTTPStatus.BAD_REQUEST, f"an Idempotency-Key has 1 to {_LONGEST_KEY} characters")
        hashed = "" if key is None else digest(key.encode())
        with self._changed:
            is_new = self._keys.get(hashed) is None and hashed not in self._waiting
            if is_new and not self._spool.takes:
                raise self._full()
        body = await self._body(receive, headers)
        try:
            records, damaged = records_of(body) if len(body) < _SHORT else await asyncio.to_thread(records_of, body)
            request = self._submitted(hashed, body, records, damaged)
        finally:
            self._reading -= len(body)
        if isinstance(request, int):
            return request
        try:
            rows = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(request.done)), ANSWER_SECONDS)
        except TimeoutError:
            rows = None
        if rows is None:
            raise _NotTaken(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the rows are not durable yet: {self.status().error or 'the endpoint stops'}; send them again, with "
                "the same Idempotency-Key",
                retry=_RETRY_SECONDS,
            )
        return rows

    def _submitted(self, key: str, body: bytes, records: list[str], damaged: int) -> _Request | int:
        """Hand a request's records to the spool; return what to wait for, or the number of rows stored already."""
        hashed = digest(body) if key else ""
        with self._changed:
            known = self._keys.get(key) if key else None
            pending = self._waiting.get(key) if key else None
            before = known or (pending.known if pending else None)
            if before is not None:
                if before.body != hashed:
                    raise _NotTaken(
                        HTTPStatus.UNPROCESSABLE_ENTITY, "this Idempotency-Key came with another body before"
                    )
                self._counts.repeated += before.rows
                return pending or before.rows
            if not records:
                return 0
            request = _Request(KnownRequest(key, hashed, len(records)), has_key=bool(key))
            if not self._spool.offer(Received(records, self._at.path, len(body), request)):
                raise self._full()
            self._counts.not_utf8 += damaged
            self._unanswered.add(request)
            if key:
                self._waiting[key] = request
            return request

    def _check(self, method: str, headers: dict[str, str]) -> None:
        if self._token is not None:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
                raise _NotTaken(
                    HTTPStatus.UNAUTHORIZED, "send the endpoint's token", headers={"www-authenticate": "Bearer"}
                )
        if method != "POST":
            raise _NotTaken(HTTPStatus.METHOD_NOT_ALLOWED, "send rows by POST", headers={"allow": "POST"})
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise _NotTaken(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the body without Content-Encoding")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._source.max_body:
            raise self._too_large()

    async def _body(self, receive: Any, headers: dict[str, str]) -> bytes:
        """Read a body; its bytes count as being read until the caller takes them off."""
        parts: list[bytes] = []
        size = 0
        loop = asyncio.get_running_loop()
        until = loop.time() + _BODY_WHOLE
        try:
            while True:
                message = await asyncio.wait_for(receive(), min(_BODY_SILENT, until - loop.time()))
                if message["type"] != "http.request":
                    raise _NotTaken(HTTPStatus.BAD_REQUEST, "the body is not complete")
                part: bytes = message.get("body", b"")
                size += len(part)
                self._reading += len(part)
                if size > self._source.max_body:
                    raise self._too_large()
                if self._reading > MAX_BYTES and self._reading > size:  # one alone may always be read
                    raise self._full()
                parts.append(part)
                if not message.get("more_body"):
                    return b"".join(parts)
        except TimeoutError:
            self._reading -= size
            raise _NotTaken(HTTPStatus.REQUEST_TIMEOUT, "the body did not arrive in time") from None
        except _NotTaken:
            self._reading -= size
            raise

    def _too_large(self) -> _NotTaken:
        return _NotTaken(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"a body has at most {self._source.max_body} bytes: send the rows in several requests",
        )

    def _full(self) -> _NotTaken:
        status = self.status()
        if self._spool.ends:
            why = status.error or "the endpoint stops"
            return _NotTaken(HTTPStatus.SERVICE_UNAVAILABLE, f"nothing was taken: {why}", retry=_RETRY_SECONDS)
        why = status.error or "too many rows wait to be stored"
        return _NotTaken(HTTPStatus.TOO_MANY_REQUESTS, f"nothing was taken: {why}", retry=_RETRY_SECONDS)
