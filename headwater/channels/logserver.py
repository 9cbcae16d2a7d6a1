"""Serve the filelogs of a zone by Arrow Flight, beside its agent's other requests.

A consumer in another zone *follows* a log: one stream carries entries and the bytes of their
segments with checksums (``entrysender``), as soon as they are
published, and resumes anywhere, also in the middle of a segment. A keep-alive is sent as soon
as there is nothing more to send, and then every second. A stream ends by itself after a while,
so that none outlives its reader for long.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from headwater.channels.credential import Grant, ZoneCredential, check_granted
from headwater.channels.entrysender import EntrySender, message
from headwater.channels.filelog import FileLog
from headwater.channels.flight import CHUNK, FOLLOW_SECONDS, SIGN_OF_LIFE
from headwater.channels.followed import Begin, RelayMessage
from headwater.channels.linkstream import description
from headwater.channels.sentmeter import SentMeter
from headwater.channels.streamhistory import Continuation, SentHistories
from headwater.channels.wire import Action, Caller, TokenCheck, parsed, sending_errors
from headwater.core.address import PLAIN, TLS
from headwater.core.errors import ChannelError, DeploymentError
from headwater.disk.filewatch import FileWatch
from headwater.tracing.spans import call

_T = TypeVar("_T")

_POLL = 0.02  # seconds between two checks for a new entry that the system does not report
_IDLE_POLL = 0.1  # the same, for a log that has been silent for ``_IDLE`` seconds
_IDLE = 2.0
_LEAST = 0.001  # seconds of a wait


class LogService:
    """Answers to requests about the logs that ``find`` knows, and to those of ``actions``; without a network."""

    def __init__(
        self,
        find: Callable[[str], FileLog],
        actions: Mapping[str, Action] | None = None,
        sent_meter: SentMeter | None = None,
    ) -> None:
        self._closing = threading.Event()
        self._watches: set[FileWatch] = set()
        """Those of the open streams."""
        self._find = find
        self._sent_meter = sent_meter or SentMeter()
        self._histories = SentHistories()
        self._actions = dict(actions or {})

    def close(self) -> None:
        """End the open streams."""
        self._closing.set()
        for watch in tuple(self._watches):
            watch.wake()

    def answer(self, action: str, body: dict[str, Any]) -> Any:
        """Answer a request."""
        if action == "log":
            return self._ask_log(body)
        if action in self._actions:
            return self._actions[action](body)
        raise ChannelError(
            f"unknown request {action!r}",
            where="agent",
            hint="use the same version on both sides",
        )

    def append(self, body: Mapping[str, Any], table: pa.Table) -> bool:
        """Append a table to a log; return False when its batch is in already."""
        return self._log(body).append(table, epoch=int(body["epoch"]), batch=int(body["batch"]))

    def read(self, body: Mapping[str, Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema and the rows of a log."""
        log = self._log(body)
        return log.schema() or pa.schema([]), log.read(int(body["start"]), int(body["end"]))

    def follow(self, body: Mapping[str, Any]) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
        """Yield the messages of a followed log, each as the metadata of a batch without columns."""
        seconds = min(float(body.get("seconds", FOLLOW_SECONDS)), FOLLOW_SECONDS)
        log, begin = self._log(body), Begin.from_request(body)
        followed = self._followed(log, int(body["follow"]), begin, body, seconds)
        return _packed(self._counted(str(body["log"]), followed, whole=begin == Begin()))

    def _followed(
        self, log: FileLog, seq: int, begin: Begin, body: Mapping[str, Any], seconds: float
    ) -> Iterator[RelayMessage]:
        name, asked = str(body["log"]), Continuation.from_request(body)
        schema = log.schema()
        history = self._histories.begin(name, asked, b"" if schema is None else description(schema))
        sender = EntrySender(expands=bool(body.get("expands")), history=history)
        watch = FileWatch()
        self._watches.add(watch)
        try:
            yield from _follow(log, seq, begin, sender, seconds, self._closing, watch)
        finally:
            self._watches.discard(watch)
            watch.close()
            self._histories.end(name, asked, history)

    def _counted(self, name: str, messages: Iterator[RelayMessage], *, whole: bool) -> Iterator[RelayMessage]:
        """Pass messages on, and count the bytes of each entry; ``whole``: the first one is sent from its beginning."""
        sent = 0
        for one in messages:
            sent += 0 if one.part is None else len(one.part.data)
            if one.entry is not None:
                if whole:
                    self._sent_meter.note(name, stored=one.entry.bytes, sent=sent)
                sent, whole = 0, True
            yield one

    def _log(self, body: Mapping[str, Any]) -> FileLog:
        name = body.get("log")
        if not isinstance(name, str):
            raise ChannelError("a request without a log's name", where="agent")
        return self._find(name)

    def _ask_log(self, body: Mapping[str, Any]) -> Any:
        log, call, given = self._log(body), body.get("call"), dict(body.get("given") or {})
        match call:
            case "end" | "advance" | "unregister":
                getattr(log, call)(**given)
                return None
            case "fence" | "earliest" | "latest" | "frontier" | "register":
                return getattr(log, call)(**given)
            case "stats":
                return asdict(log.stats())
        raise ChannelError(f"unknown request {call!r} to a log", where=str(body.get("log")))


class LogServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serve a ``LogService`` by Arrow Flight.

    ``listen`` is ``host:port``; port 0 takes a free one, found in ``port``. ``tls`` is a pair of PEM
    texts, certificate and key. Runs in threads of its own from its construction on.
    """

    def __init__(
        self,
        listen: str,
        *,
        credential: ZoneCredential,
        find: Callable[[str], FileLog],
        actions: Mapping[str, Action] | None = None,
        tls: tuple[str, str] | None = None,
        sent_meter: SentMeter | None = None,
    ) -> None:
        where = f"{TLS if tls else PLAIN}{listen}"
        try:
            check = {"token": TokenCheck(credential)}
            super().__init__(where, middleware=check, tls_certificates=[tls] if tls else None)
        except (OSError, pa.ArrowException) as error:
            raise DeploymentError(
                f"cannot listen at {listen}: {_reason(error)}",
                where="--listen",
                hint="end what listens there, or choose a free port and an address of this machine",
            ) from error
        self._service = LogService(find, actions, sent_meter)

    def shutdown(self) -> None:
        """Stop the server, and its open streams."""
        self._service.close()
        super().shutdown()

    def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
        """Answer a request."""
        with sending_errors():
            body = parsed(action.body.to_pybytes(), action.type)
            check_granted(_grant(context), action.type, body)
            about = {"rpc.system": "arrow_flight", "rpc.method": action.type}
            with call(action.type, "SERVER", about, parent=_caller(context).traced):
                return iter([json.dumps(self._service.answer(action.type, body)).encode()])

    def do_put(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        """Append a table to a log."""
        with sending_errors():
            body = parsed(descriptor.command, "append")
            check_granted(_grant(context), "append", body)
            done = self._service.append(body, reader.read_all())
            writer.write(json.dumps(done).encode())

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Stream the rows of a log, or follow it."""
        with sending_errors():
            body = parsed(ticket.ticket, "read")
            check_granted(_grant(context), "read", body)
            if "follow" in body:
                return flight.GeneratorStream(CHUNK, _sent(self._service.follow(body)))
            schema, rows = self._service.read(body)
            return flight.GeneratorStream(schema, _sent(rows))


def _caller(context: Any) -> Caller:
    caller = context.get_middleware("token")
    assert isinstance(caller, Caller)
    return caller


def _grant(context: Any) -> Grant | None:
    """Return the grant of a call's sender; None for the controller."""
    return _caller(context).grant


def _sent(batches: Iterator[_T]) -> Iterator[_T]:
    """Pass items on, and send errors raised on the way to the other side."""
    with sending_errors():
        yield from batches


def _packed(messages: Iterator[RelayMessage]) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
    """Attach each message to a batch without columns."""
    empty = pa.RecordBatch.from_pylist([], schema=CHUNK)
    for one in messages:
        yield empty, pa.py_buffer(one.to_bytes())


def _follow(
    log: FileLog,
    seq: int,
    begin: Begin,
    sender: EntrySender,
    seconds: float,
    closing: threading.Event,
    watch: FileWatch,
) -> Iterator[RelayMessage]:
    """Yield entries from ``seq`` on; the first one only from ``begin`` on."""
    if seq > log.latest():
        raise ChannelError(
            f"the log ends at {log.latest()}, but the reader asks for entry {seq}",
            where=str(log.path),
            hint="the log was replaced by a new one: remove the replicas of the old one",
        )
    moved = time.monotonic()
    deadline = moved + seconds
    spoken = -math.inf
    while time.monotonic() < deadline and not closing.is_set():
        if seq < log.earliest():
            seq, begin = log.earliest(), Begin()
            yield message(floor=log.floor())
        if seq >= log.latest():
            now = time.monotonic()
            if now - spoken >= SIGN_OF_LIFE:
                spoken = now
                yield message()
            look = _IDLE_POLL if now - moved > _IDLE else _POLL
            left = max(_LEAST, min(spoken + SIGN_OF_LIFE, deadline) - now)
            watch.wait([log.place], left, look=look)
            continue
        for entry in log.entries(seq, log.latest()):
            if entry.seq != seq:
                break  # reclaimed or dropped meanwhile: send the new floor first
            yield from sender.send(log, entry, begin)
            seq, begin = seq + 1, Begin()
            if time.monotonic() >= deadline or closing.is_set():
                break
        moved = time.monotonic()
        spoken = -math.inf  # send a keep-alive at once: the next entry has not waited here


def _reason(error: Exception) -> str:
    """Return why a server did not start; gRPC writes it only to standard error."""
    text = str(error).splitlines()[0]
    return "the port is taken, or this machine does not have the address" if "did not start" in text else text
