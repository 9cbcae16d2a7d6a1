"""Communication between zones: Arrow Flight with a token, over TLS, and errors that keep their parts.

Addresses are those of ``core.address``. Requests are JSON, answers are JSON or Arrow.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from headwater import __version__
from headwater.channels.credential import TOKEN_ENV, Grant, ZoneCredential
from headwater.core import errors
from headwater.core.address import TLS, Address
from headwater.core.errors import ChannelError, Denied, DeploymentError, HeadwaterError, RuntimeFailure, Unavailable
from headwater.tls.verify import LOOK_SECONDS, answers_with_tls, verify
from headwater.tracing.context import TraceContext
from headwater.tracing.spans import call

PROTOCOL = 5
"""Version of the requests between controllers and agents, and of the rows between zones; both sides need the same.

Within one, requests and answers gain fields only, which the other side may leave out or ignore.
"""
OWN_VERSION: Mapping[str, Any] = {"protocol": PROTOCOL, "version": __version__}
"""Part of every request to an agent, and of its answers to ``hello`` and ``report``."""
CA_ENV = "HEADWATER_CA"
TRACE_HEADER = "traceparent"
"""The header of a call with the sender's span, by W3C Trace Context."""
ASK_SECONDS = 10.0
"""Timeout in seconds of a request that is answered at once."""
_PUT_SECONDS = 600.0
"""Timeout in seconds of a request that sends a table."""

_SENT = {"what": 1000, "where": 300, "hint": 600}  # characters of each part of an error
_OPTIONS = [
    # A link that comes back is tried at once, not after another client's timeout.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
]


@dataclass(frozen=True)
class Credentials:
    """A client's token, and how it verifies the server.

    ``ca``: the PEM file of authorities, None for the system's own. ``node``: the credential of the server's node, of
    which the server's own certificate carries a proof.
    """

    token: str
    ca: Path | None = None
    node: ZoneCredential | None = None

    def __repr__(self) -> str:
        return "Credentials(...)"


def check_protocol(other: Mapping[str, Any], *, where: str) -> None:
    """Raise DeploymentError where the other side of a request has another protocol.

    ``other``: its ``OWN_VERSION``, which older versions of this protocol stated in the answer to ``hello`` alone.
    """
    if (protocol := other.get("protocol", PROTOCOL)) != PROTOCOL:
        version = f" (version {other['version']})" if other.get("version") else ""
        raise DeploymentError(
            f"the other side speaks protocol {protocol}{version}, this one {PROTOCOL} (version {__version__})",
            where=where,
            hint="run versions of Headwater with the same protocol on both sides; units go on when their agent is "
            "restarted",
        )


def ca_file() -> Path | None:
    """Return the PEM file of the CA to trust, from HEADWATER_CA."""
    ca = os.environ.get(CA_ENV)
    return Path(ca) if ca else None


class Wire:
    """A connection to a zone; opened at the first request, safe to share among threads.

    The server of an encrypted address is verified before the token is sent to it, again after each failure.
    ``name``: that of the node in errors.
    """

    def __init__(self, address: str, credentials: Credentials, name: str | None = None) -> None:
        self.address = address
        self._name = name or address
        self._credentials = credentials
        self._parsed = Address.parse(address)
        self._reached: Address | None = None
        self._answered = False
        self._client: flight.FlightClient | None = None
        self._headers = [(b"authorization", f"Bearer {credentials.token}".encode())]

    @property
    def peer_address(self) -> str:
        """The address to give to others: with the fingerprint, once the server was verified by its proof."""
        return str(self._reached or self._parsed)

    def _opened(self, seconds: float) -> flight.FlightClient:
        client = self._client
        if client is None:
            roots, name = None, None
            if self._parsed.encrypted:
                of = self._credentials
                verified = verify(
                    self._parsed, node=self._name, credential=of.node, ca=of.ca, seconds=min(seconds, LOOK_SECONDS)
                )
                self._reached, roots, name = verified.address, verified.roots, verified.name
            self._client = client = flight.FlightClient(
                self._parsed.location, tls_root_certs=roots, override_hostname=name, generic_options=_OPTIONS
            )
        return client

    def ask(self, action: str, body: Mapping[str, Any], *, seconds: float = ASK_SECONDS) -> Any:
        """Send a request and return its answer; raise the HeadwaterError that the other side raised."""
        about = {"rpc.system": "arrow_flight", "rpc.method": action, "server.address": self._parsed.place}
        with call(f"{action} {self._name}", "CLIENT", about) as traced, self._translated():
            request = flight.Action(action, json.dumps(body).encode())
            results = list(self._opened(seconds).do_action(request, self._call(seconds, traced)))
            return json.loads(results[0].body.to_pybytes()) if results else None

    def get(self, ticket: Mapping[str, Any], *, seconds: float) -> flight.FlightStreamReader:
        """Request a stream of Arrow data; read it inside ``reading``."""
        with self._translated():
            return self._opened(seconds).do_get(flight.Ticket(json.dumps(ticket).encode()), self._call(seconds))

    def put(self, command: Mapping[str, Any], table: pa.Table) -> Any:
        """Send a table with a command and return the answer."""
        with self._translated():
            descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
            writer, answer = self._opened(ASK_SECONDS).do_put(descriptor, table.schema, self._call(_PUT_SECONDS))
            with writer:
                writer.write_table(table)
                writer.done_writing()
                found = answer.read()
            return json.loads(found.to_pybytes()) if found is not None else None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Translate errors that occur while a stream is read."""
        with self._translated():
            yield

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(Exception):  # a failure to close loses nothing
            if self._client is not None:
                self._client.close()

    def _call(self, seconds: float, traced: TraceContext | None = None) -> flight.FlightCallOptions:
        more = [] if traced is None else [(TRACE_HEADER.encode(), traced.text.encode())]
        return flight.FlightCallOptions(timeout=seconds, headers=[*self._headers, *more])

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
            self._answered = True
        except flight.FlightUnauthenticatedError as error:
            raise DeploymentError(
                "the zone refuses the token",
                where=self._name,
                hint="check its address, that it runs this version of Headwater, and that its "
                f"{TOKEN_ENV} is what `headwater token` prints for it",
            ) from error
        except (
            flight.FlightUnavailableError,
            flight.FlightTimedOutError,
            flight.FlightCancelledError,
        ) as error:
            if self._parsed.encrypted or isinstance(error, flight.FlightTimedOutError):
                # A firewall may have forgotten the connection: the system would notice that only after minutes. And
                # another certificate may be there, which has to be verified.
                self._client = None
            if not self._parsed.encrypted and not self._answered and answers_with_tls(self._parsed):
                raise Unavailable(
                    "the server there speaks TLS, and this address is for clear text; nothing was sent",
                    where=f"{self._name} at {self._parsed.place}",
                    hint=f"write {TLS}{self._parsed.place}",
                ) from error
            raise Unavailable(
                f"no answer from {self._name}", where="zone", hint="check that its agent runs and that the link is up"
            ) from error
        except flight.FlightError as error:
            raise _received(error, self._name) from error
        except (pa.ArrowException, OSError) as error:
            raise Unavailable(
                f"the connection broke: {str(error).splitlines()[0][:200]}",
                where=self._name,
                hint="check that its agent runs and that the link is up",
            ) from error


def _received(error: flight.FlightError, name: str) -> HeadwaterError:
    """Rebuild the error that the other side raised."""
    try:
        parts = json.loads(error.extra_info)
        cls = getattr(errors, parts["type"], RuntimeFailure)
        if isinstance(cls, type) and issubclass(cls, HeadwaterError) and cls is not errors.ErrorList:
            return cls(str(parts["what"]), where=parts["where"], hint=parts["hint"])
    except (ValueError, KeyError, TypeError):
        pass
    return RuntimeFailure(
        f"the zone failed: {str(error).splitlines()[0][:500]}", where=name, hint="read the log of its agent"
    )


class Caller(flight.ServerMiddleware):  # type: ignore[misc]
    """The sender of a call: the controller (no grant), or the reader of a channel; and the span that it calls from."""

    def __init__(self, grant: Grant | None, traced: TraceContext | None = None) -> None:
        super().__init__()
        self.grant = grant
        self.traced = traced


class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuse calls without a token that an agent's credential verifies."""

    def __init__(self, credential: ZoneCredential) -> None:
        self._credential = credential

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Any]) -> Caller:
        """Verify the token of a call."""
        given = _header(headers, "authorization")
        try:
            grant = self._credential.verified(given.removeprefix("Bearer "))
            return Caller(grant, TraceContext.parse(_header(headers, TRACE_HEADER)))
        except Denied as error:
            raise flight.FlightUnauthenticatedError(error.what) from error


def _header(headers: Mapping[str, Any], name: str) -> str:
    """Return the first value of a header; '' where it is missing."""
    shown = next((v for k, v in headers.items() if k.lower() == name), None)
    first = shown[0] if shown else ""
    return first.decode(errors="replace") if isinstance(first, bytes) else str(first)


@contextlib.contextmanager
def sending_errors() -> Iterator[None]:
    """Send an error to the other side, a HeadwaterError with all its parts.

    It travels in headers, which gRPC limits to 8 KiB; longer texts are cut.
    """
    try:
        yield
    except HeadwaterError as error:
        raise _sent_form(error) from error
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise _sent_form(no_descriptors()) from error
        raise
    except (flight.FlightError, pa.ArrowException):
        raise
    except Exception as error:
        raise flight.FlightServerError(_begin(f"{type(error).__name__}: {error}", 500)) from error


def _sent_form(error: HeadwaterError) -> flight.FlightServerError:
    parts = {name: _begin(getattr(error, name), most) for name, most in _SENT.items()}
    parts["type"] = type(error).__name__ if hasattr(errors, type(error).__name__) else "RuntimeFailure"
    return flight.FlightServerError(_begin(error.what, 200), json.dumps(parts, ensure_ascii=False).encode())


def no_descriptors() -> Unavailable:
    """Return the error of a process that can open no further file or connection: temporary, so requests are repeated.

    >>> no_descriptors().what
    'its process has no file descriptor left'
    """
    return Unavailable(
        "its process has no file descriptor left",
        where="agent",
        hint="end unneeded connections to it, or raise its limit (ulimit -n, LimitNOFILE)",
    )


def _begin(text: str | None, most: int) -> str | None:
    return text if text is None or len(text) <= most else f"{text[:most]} …"


def parsed(raw: bytes, of: str) -> dict[str, Any]:
    """Parse a request, or refuse it."""
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ChannelError(f"not a request: {raw[:80]!r}", where=of, hint="send a JSON object")
    return body


Action = Callable[[dict[str, Any]], Any]
