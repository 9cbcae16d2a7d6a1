"""Replay of a record to an HTTP endpoint: as a request of its own, to the endpoint on this machine."""

from __future__ import annotations

import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

from headwater.connectors.httplistener import HttpListener
from headwater.connectors.spoolwriter import payload_of
from headwater.core.errors import Unavailable
from headwater.dataflow.httpsource import HttpSource
from headwater.disk.credentials import read_secret

_SECONDS = 30.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class HttpOffer:
    """A request with the idempotency key ``mark``."""

    draft: str | None = None

    def __init__(self, source: HttpSource, location: str, record: str, mark: str) -> None:
        self._source, self._record, self._mark = source, record, mark
        self._at = source.endpoint(location)
        self._connection: HTTPConnection

    @property
    def target(self) -> str:
        """Return the endpoint that gets the record."""
        return f"http:{self._at.path}"

    def make_ready(self) -> None:
        """Connect to the endpoint; raise Unavailable where that fails, while nothing is sent yet."""
        host = _EVERYWHERE.get(self._at.host, self._at.host)
        certificate = HttpListener.certificate(self._at.host, self._at.port)
        if certificate is None:
            self._connection = HTTPConnection(host, self._at.port, timeout=_SECONDS)
        else:
            self._connection = HTTPSConnection(host, self._at.port, timeout=_SECONDS, context=_trusting(certificate))
        try:
            self._connection.connect()
        except OSError as error:
            raise self._failed(str(error)) from None

    def offer(self) -> None:
        """Send the record, and wait until it is durable."""
        token = read_secret(self._source.token_env, where=self._source.where)
        headers = {"Idempotency-Key": self._mark, **({} if token is None else {"Authorization": f"Bearer {token}"})}
        try:
            self._connection.request("POST", self._at.path, payload_of(self._record), headers)
            answer = self._connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, HTTPException) as error:
            raise self._failed(str(error) or type(error).__name__) from None
        if answer.status != 200:
            raise self._failed(f"{answer.status} {text[:200]}")

    def leave(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _failed(self, why: str) -> Unavailable:
        return Unavailable(
            f"the endpoint {self._at.server}{self._at.path} did not take the record: {why}",
            where=self._source.where,
            hint="check that the unit runs; `headwater status` shows what it waits for",
        )


def _trusting(certificate: Path) -> ssl.SSLContext:
    """Return the TLS settings of a client that trusts this certificate alone, whatever its name."""
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return context
