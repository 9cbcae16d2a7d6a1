"""Concurrent calls to nodes: a slow node does not delay the others."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from typing import Generic, TypeVar

T = TypeVar("T")

SLOW = 0.5
"""Seconds after which a call no longer counts towards the number of concurrent calls."""
_WIDTH = 16
"""Maximum number of concurrent calls of a round; slow calls do not count."""


class Calls:
    """A pool of threads for calls that may take long.

    A node that hangs blocks one thread only. ``most``: maximum number of threads.
    """

    def __init__(self, name: str, *, most: int = 2000) -> None:
        self._name = name
        self._most = most
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """Run a call in a thread, in the caller's context; return its future."""
        future: Future[T] = Future()
        context = copy_context()

        def run() -> None:
            try:
                future.set_result(context.run(call))
            except BaseException as error:
                future.set_exception(error)

        with self._lock:
            grow = self._idle == 0 and self._threads < self._most
            if grow:
                self._threads += 1
            else:
                self._idle -= 1
        self._waiting.put(run)
        if grow:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            self._waiting.get()()
            with self._lock:
                self._idle += 1


class Round(Generic[T]):
    """Repeated rounds of calls of one kind; a call without an answer stays open and is not repeated."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._out: dict[str, float] = {}
        """Start time (monotonic seconds) of each open call, by name."""
        self._answers: queue.SimpleQueue[tuple[str, T | Exception]] = queue.SimpleQueue()
        self._lock = threading.Lock()

    @property
    def unanswered(self) -> dict[str, float]:
        """Return the age in seconds of each open call, by name."""
        now = time.monotonic()
        with self._lock:
            return {name: now - since for name, since in self._out.items()}

    def make(
        self, wanted: Iterable[tuple[str, Callable[[], T]]], *, seconds: float
    ) -> Iterator[tuple[str, T | Exception]]:
        """Make calls by name and yield their answers as they arrive, for at most ``seconds``.

        Open calls of earlier rounds are not waited for; their late answers are yielded too.
        """
        todo = [(name, call) for name, call in wanted if name not in self._out]
        todo.reverse()
        mine = {name for name, _ in todo}
        deadline = time.monotonic() + seconds
        while (todo or mine) and (left := deadline - time.monotonic()) > 0:
            while todo and self._active() < _WIDTH:
                self._start(*todo.pop())
            try:
                name, answer = self._answers.get(timeout=min(left, SLOW / 4))
            except queue.Empty:
                continue
            mine.discard(name)
            yield name, answer
        while not self._answers.empty():
            yield self._answers.get()

    def _active(self) -> int:
        now = time.monotonic()
        with self._lock:
            return sum(now - since < SLOW for since in self._out.values())

    def _start(self, name: str, call: Callable[[], T]) -> None:
        with self._lock:
            self._out[name] = time.monotonic()

        def run() -> None:
            answer: T | Exception
            try:
                answer = call()
            except Exception as error:
                answer = error
            with self._lock:
                del self._out[name]
            self._answers.put((name, answer))

        self._calls.begin(run)
