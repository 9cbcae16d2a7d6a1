"""The simulated network: requests and streams between hosts, late, lost, repeated, or cut in one direction.

``SimulatedWire`` stands for ``channels.wire.Wire``; everything above it is the product's own.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater.channels.logserver import LogService
from headwater.core import errors
from headwater.core.errors import HeadwaterError, RuntimeFailure, Unavailable
from tests.simulation.kernel import Kernel, Process, Queue

REFUSED = 0.05  # seconds until a connection is refused
_LOOK = 0.5  # seconds between two looks at a cut link


@dataclass(eq=False)
class Server:
    """A process that answers on a host."""

    host: str
    process: Process
    service: LogService
    silent: bool = False
    """Whether it accepts requests and never answers."""
    watch: Callable[[str, Mapping[str, Any]], Callable[[bool], None]] = field(
        default=lambda action, body: lambda done: None
    )
    """Called with each request that arrives; the result is called when it was carried out, or was refused."""


class Network:
    """All links, in both directions."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.servers: dict[str, Server] = {}
        self.cut: set[tuple[str, str]] = set()
        """Pairs of hosts, from and to, between which nothing passes."""
        self.lossy = 0.0
        """Probability that a connection breaks at a message."""
        self.repeating = 0.0
        """Probability that a request arrives twice."""
        self.slow = 0.0
        """Most seconds that a message is late."""

    def heal(self) -> None:
        """Let everything pass, at once."""
        self.cut.clear()
        self.lossy = self.repeating = self.slow = 0.0

    def delay(self) -> float:
        return self._kernel.random.choice((0.002, 0.005, 0.01)) + self._kernel.random.random() * self.slow

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self.cut

    def breaks(self) -> bool:
        return bool(self.lossy) and self._kernel.random.random() < self.lossy

    def reached(self, host: str) -> Server | None:
        """Return the server of a host, if its process runs."""
        server = self.servers.get(host)
        return server if server is not None and server.process.alive else None


class SimulatedWire:
    """A connection to a simulated agent: the methods of ``Wire``. ``network`` is that of the current history."""

    network: Network

    def __init__(self, address: str, credentials: object, name: str | None = None) -> None:
        self.address = address
        self._there = address.partition(":")[0]
        self._name = name or address
        self._kernel = self.network._kernel

    @property
    def peer_address(self) -> str:
        return self.address

    def ask(self, action: str, body: Mapping[str, Any], *, seconds: float = 10.0) -> Any:
        """Send a request and return its answer; raise the error that the other side raised."""
        kernel, network = self._kernel, self.network
        here, answers = kernel.process, Queue(kernel)
        kernel.effect()
        text = json.dumps(body)
        times = 2 if network.repeating and kernel.random.random() < network.repeating else 1
        for _ in range(times):
            kernel.spawn(network_process(kernel), lambda: self._carry(here, action, text, answers, seconds), "request")
        with self._answered():
            good, answer = answers.get(timeout=seconds)
        if good:
            return json.loads(answer)
        raise answer

    def _carry(self, here: Process, action: str, text: str, answers: Queue, seconds: float) -> None:
        """Carry a request to the other host, and its answer back."""
        kernel, network = self._kernel, self.network
        there = self._there
        deadline = kernel.now + seconds
        kernel.sleep(network.delay())
        while network.is_cut(here.host.name, there):  # it is sent again until the link is back
            if kernel.now > deadline:
                return
            kernel.sleep(_LOOK)
        server = network.reached(there)
        if server is None or network.breaks():
            answers.put((False, self._unreached("refused")))
            return
        if server.silent:
            return
        kernel.spawn(server.process, lambda: self._answer(server, here, action, text, answers, deadline), action)
        server.process.ended.append(lambda: self._ended(answers))

    def _ended(self, answers: Queue) -> None:
        answers.put((False, self._unreached("the other side has ended")))

    def _answer(self, server: Server, here: Process, action: str, text: str, answers: Queue, deadline: float) -> None:
        """Answer a request, in the agent's process."""
        kernel, network = self._kernel, self.network
        body = json.loads(text)
        ended = server.watch(action, body)
        if action != "log":
            stamp = body.get("stamp") or {}
            kernel.tell(f"{action}, order {stamp.get('term')}.{stamp.get('number')}")
        found: tuple[bool, Any]
        try:
            found = True, json.dumps(server.service.answer(action, body))
            ended(True)
        except HeadwaterError as error:
            ended(False)
            kind = type(error)
            known = kind if hasattr(errors, kind.__name__) else RuntimeFailure
            found = False, known(error.what, where=error.where, hint=error.hint)
        except Exception as error:
            ended(False)
            if not isinstance(error, OSError):  # a full disk
                kernel.failures.append(f"{server.process.name}, {action}: {type(error).__name__}: {error}")
            found = False, RuntimeFailure(f"the zone failed: {type(error).__name__}: {error}", where=self._name)
        kernel.sleep(network.delay())
        while network.is_cut(self._there, here.host.name):
            if kernel.now > deadline:
                return
            kernel.sleep(_LOOK)
        answers.put((False, self._unreached("the answer was lost")) if network.breaks() else found)

    def get(self, ticket: Mapping[str, Any], *, seconds: float) -> SimulatedStream:
        """Request a stream."""
        self._kernel.effect()
        self._kernel.sleep(self.network.delay())
        server = self.network.reached(self._there)
        if server is None or self.network.is_cut(self._kernel.process.host.name, self._there):
            raise self._unreached("refused")
        return SimulatedStream(self._kernel, self.network, server, dict(ticket), seconds)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Translate errors that occur while a stream is read."""
        with self._answered():
            yield

    def close(self) -> None:
        """Close the connection."""

    @contextlib.contextmanager
    def _answered(self) -> Iterator[None]:
        import queue

        try:
            yield
        except queue.Empty:
            raise self._unreached("no answer") from None

    def _unreached(self, why: str) -> Unavailable:
        return Unavailable(f"no answer from {self._name}: {why}", where="zone", hint="check that its agent runs")


@dataclass
class Chunk:
    """A message of a stream."""

    data: Any
    app_metadata: Any


class SimulatedStream:
    """A stream of chunks from a server's process: messages arrive in order, or the stream breaks."""

    def __init__(
        self, kernel: Kernel, network: Network, server: Server, ticket: dict[str, Any], seconds: float
    ) -> None:
        self._kernel, self._network, self._server = kernel, network, server
        self._client = kernel.process
        self._chunks = Queue(kernel)
        self._deadline = kernel.now + seconds
        self._over = False
        server.process.ended.append(self._broken)
        kernel.spawn(server.process, lambda: self._send(ticket), "stream")

    def _broken(self) -> None:
        self._chunks.put(Unavailable("the stream broke", where=self._server.host))

    def _send(self, ticket: dict[str, Any]) -> None:
        try:
            for data, stamp in self._server.service.follow(ticket):
                if self._over or not self._client.alive:
                    return
                while self._network.is_cut(self._server.host, self._client.host.name) or self._server.silent:
                    self._kernel.sleep(_LOOK)
                    if self._over or not self._client.alive or self._kernel.now > self._deadline:
                        return
                if self._network.breaks():
                    break
                self._kernel.sleep(self._network.delay())
                self._chunks.put(Chunk(data, stamp))
            else:
                self._chunks.put(None)
                return
            self._broken()
        except HeadwaterError as error:
            self._chunks.put(error)

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            found = self._chunks.get(timeout=max(0.0, self._deadline - self._kernel.now))
            if found is None:
                return
            if isinstance(found, HeadwaterError):
                raise found
            yield found

    def cancel(self) -> None:
        """End the stream."""
        if not self._over:
            self._over = True
            self._chunks.put(Unavailable("cancelled", where=self._server.host))


def network_process(kernel: Kernel) -> Process:
    """The process of all that is on its way: no host's end ends it."""
    return kernel.outside
