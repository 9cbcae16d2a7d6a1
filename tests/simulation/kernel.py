"""One deterministic world in one thread: simulated processes, their threads as greenlets, and one clock for all.

Inside ``Kernel.running`` the standard library's threads, locks, queues and clocks belong to the simulation, so the
product's own code runs unchanged: a thread is a greenlet, a wait hands over to the kernel, and time passes only while
all wait. A killed process never continues; its greenlets are unwound at the end, when nothing has an effect any more.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import greenlet

BEGIN = 1_767_225_600.0
"""The wall clock at the begin of a history: 2026-01-01T00:00:00Z."""


STILL = 1500
"""Switches without a step of the clock, above which tasks are taken to wait for nothing."""


class Livelock(Exception):
    """Tasks run on and on, and no time passes."""


class Killed(BaseException):
    """The process has been killed: no handler catches it."""


@dataclass(eq=False)
class Host:
    """A machine: its clocks differ from those of others."""

    name: str
    ahead: float = 0.0
    """Seconds that its wall clock is ahead."""
    booted: float = 0.0
    """Seconds since its boot at the begin of the history: monotonic clocks of two hosts are never alike."""


@dataclass(eq=False)
class Process:
    """A process on a host. ``effects`` counts its effects on the disk, the network and the store."""

    name: str
    host: Host
    alive: bool = True
    frozen: bool = False
    effects: int = 0
    dies_at: int | None = None
    """The effect before which it is killed."""
    ended: list[Callable[[], None]] = field(default_factory=list)
    """Called when it ends."""


@dataclass(eq=False)
class Task:
    """A thread of a process."""

    process: Process
    number: int
    name: str
    let: greenlet.greenlet = field(init=False)
    wakes: int = 0
    """Number of its waits: an alarm of an earlier wait is stale."""
    rung: bool = False
    """Whether the wait was ended by another task and not by its timeout."""
    done: bool = False


class Kernel:
    """Scheduler and clock of one history."""

    def __init__(self, seed: int, *, preempt: float = 0.01) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.outside = Process("outside", Host("outside"))
        self.closed = False
        self.switches = 0
        self._still = 0
        """Switches since time last passed."""
        self._preempt = preempt
        self._due: list[tuple[float, int, Task, int]] = []
        self._numbers = itertools.count(1)
        self._tasks: dict[Task, None] = {}
        self._held: list[tuple[Task, int]] = []
        self._hub = greenlet.getcurrent()
        self._current: Task | None = None
        self.failures: list[str] = []
        """Errors that no task handled."""
        self.trace: Callable[[str], object] | None = None

    def tell(self, text: str) -> None:
        """Trace something that happens."""
        if self.trace is not None:
            self.trace(f"{self.now:9.3f} {self.process.name}: {text}")

    # ------------------------------------------------------------ processes and tasks

    @property
    def process(self) -> Process:
        """The process whose code runs now."""
        return self._current.process if self._current is not None else self.outside

    @property
    def ident(self) -> int:
        return self._current.number if self._current is not None else 0

    @property
    def inside(self) -> bool:
        """Whether a task runs, and not the world that drives it."""
        return self._current is not None

    def spawn(self, process: Process, run: Callable[[], object], name: str = "", *, after: float = 0.0) -> Task:
        """Start a task of a process."""
        task = Task(process, next(self._numbers), name)

        def body() -> None:
            try:
                run()
            except (Killed, greenlet.GreenletExit):
                pass
            except BaseException as error:
                if process.alive and not self.closed:
                    self.failures.append(f"{process.name}, {name}: {type(error).__name__}: {error}")
            finally:
                task.done = True
                self._tasks.pop(task, None)

        task.let = greenlet.greenlet(body, parent=self._hub)
        self._tasks[task] = None
        self._alarm(task, self.now + after)
        return task

    def kill(self, process: Process) -> None:
        """End a process at once: SIGKILL."""
        if not process.alive:
            return
        process.alive = False
        self.tell(f"{process.name} is killed")
        for call in process.ended:
            call()
        if self._current is not None and self._current.process is process:
            raise Killed

    def freeze(self, process: Process) -> None:
        """Stop a process as SIGSTOP does."""
        process.frozen = True

    def thaw(self, process: Process) -> None:
        """Let a stopped process continue."""
        process.frozen = False
        held, self._held = self._held, []
        for task, wakes in held:
            if task.wakes == wakes:
                heapq.heappush(self._due, (self.now, next(self._numbers), task, wakes))

    def effect(self) -> None:
        """Mark an effect of the running process: it may be killed before it, or another one may run first."""
        process = self.process
        if not process.alive or (self.closed and process is not self.outside):
            raise Killed
        process.effects += 1
        if process.dies_at is not None and process.effects >= process.dies_at:
            process.dies_at = None
            self.kill(process)
        if self._current is not None and self.random.random() < self._preempt:
            self.sleep(self.random.choice((0.001, 0.01, 0.2)))

    # ------------------------------------------------------------ waiting

    def sleep(self, seconds: float) -> None:
        """Let time pass for the running task."""
        self.wait(max(0.0, seconds))

    def wait(self, timeout: float | None) -> bool:
        """Wait until ``ring``, or for some seconds; return whether it was rung."""
        task = self._current
        if self.closed or task is None:
            raise Killed
        task.rung = False
        if timeout is not None:
            self._alarm(task, self.now + timeout)
        self._hub.switch()
        if self.closed or not task.process.alive:
            raise Killed
        return task.rung

    def me(self) -> Task:
        """The running task."""
        assert self._current is not None, "nothing but a task can wait"
        return self._current

    def ring(self, task: Task) -> None:
        """End the wait of a task."""
        if not task.rung and not self.closed:
            task.rung = True
            self._alarm(task, self.now)

    def _alarm(self, task: Task, at: float) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), task, task.wakes))

    # ------------------------------------------------------------ running

    def run(self, seconds: float, until: Callable[[], bool] | None = None, *, every: float = 0.5) -> bool:
        """Run the world for some seconds, or until a condition holds, which is asked every so often."""
        end, asked = self.now + seconds, self.now
        while True:
            if until is not None and self.now >= asked:
                if until():
                    return True
                asked = self.now + every
            limit = end if until is None else min(end, asked)
            if not self._due or self._due[0][0] > limit:
                self.now = max(self.now, limit)
                if self.now >= end:
                    return until is not None and until()
                continue
            self._step()

    def _step(self) -> None:
        at, _, task, wakes = heapq.heappop(self._due)
        if task.done or task.wakes != wakes or not task.process.alive:
            return
        if task.process.frozen:
            self._held.append((task, wakes))
            return
        self._still = self._still + 1 if at <= self.now else 0
        if self._still > STILL:
            raise Livelock(f"tasks run on and on at {self.now:.3f}, the last one of {task.process.name}")
        self.now = max(self.now, at)
        task.wakes += 1
        self.switches += 1
        self._current = task
        try:
            task.let.switch()
        finally:
            self._current = None

    def close(self) -> None:
        """Unwind all tasks; nothing they do has an effect."""
        self.closed = True
        for task in list(self._tasks):
            self._current = task
            with contextlib.suppress(BaseException):
                task.let.throw(greenlet.GreenletExit)
            self._current = None

    # ------------------------------------------------------------ clocks

    def monotonic(self) -> float:
        return self.now + self.process.host.booted

    def time(self) -> float:
        return BEGIN + self.now + self.process.host.ahead

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let the standard library's threads, locks, queues and clocks be those of this world."""
        entropy = random.Random(self.random.random())

        def urandom(count: int) -> bytes:
            return entropy.randbytes(count)

        patches: list[tuple[Any, str, Any]] = [
            (time, "time", self.time),
            (time, "time_ns", lambda: int(self.time() * 1e9)),
            (time, "monotonic", self.monotonic),
            (time, "perf_counter", self.monotonic),
            (time, "thread_time", lambda: 0.0),
            (time, "sleep", self.sleep),
            (threading, "_time", self.monotonic),
            (threading, "_CRLock", None),
            (threading, "_allocate_lock", lambda: Lock(self)),
            (threading, "Lock", lambda: Lock(self)),
            (threading, "get_ident", lambda: self.ident),
            (threading, "Thread", lambda *a, **k: Thread(self, *a, **k)),
            (threading, "Timer", lambda *a, **k: Timer(self, *a, **k)),
            (queue, "SimpleQueue", lambda: Queue(self)),
            (os, "urandom", urandom),
            (random, "_urandom", urandom),
        ]
        former = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
        for owner, name, value in patches:
            setattr(owner, name, value)
        try:
            yield
        finally:
            self.close()
            for owner, name, value in former:
                setattr(owner, name, value)


class Lock:
    """``threading.Lock`` of the simulation."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._taken = False
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._taken:
            self._taken = True
            return True
        kernel = self._kernel
        deadline = None if timeout < 0 else kernel.now + timeout
        while self._taken:
            left = None if deadline is None else deadline - kernel.now
            if not blocking or (left is not None and left <= 0):
                return False
            task = kernel.me()
            self._waiting.append(task)
            try:
                kernel.wait(left)
            finally:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(task)
        self._taken = True
        return True

    def release(self) -> None:
        if not self._taken:
            raise RuntimeError("release unlocked lock")
        self._taken = False
        while self._waiting:
            task = self._waiting.popleft()
            if task.process.alive:
                self._kernel.ring(task)
                break

    def locked(self) -> bool:
        return self._taken

    def __enter__(self) -> bool:
        if self._taken:
            return self.acquire()
        self._taken = True
        return True

    def __exit__(self, *_: object) -> None:
        self.release()


class Queue:
    """``queue.SimpleQueue`` of the simulation."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._items: deque[Any] = deque()
        self._waiting: deque[Task] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting:
            self._kernel.ring(self._waiting.popleft())

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        kernel = self._kernel
        deadline = None if timeout is None else kernel.now + timeout
        while not self._items:
            left = None if deadline is None else deadline - kernel.now
            if not block or (left is not None and left <= 0):
                raise queue.Empty
            task = kernel.me()
            self._waiting.append(task)
            try:
                kernel.wait(left)
            finally:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(task)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(False)

    def empty(self) -> bool:
        return not self._items


class Thread:
    """``threading.Thread`` of the simulation: a task of the process that starts it."""

    def __init__(
        self,
        kernel: Kernel,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str = "",
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._kernel = kernel
        self._run = target
        self._args, self._kwargs = args, kwargs or {}
        self.name = name
        self.daemon = daemon
        self._task: Task | None = None
        self._joining: list[Task] = []

    def start(self) -> None:
        def run() -> None:
            try:
                assert self._run is not None
                self._run(*self._args, **self._kwargs)
            finally:
                for task in self._joining:
                    self._kernel.ring(task)

        self._task = self._kernel.spawn(self._kernel.process, run, self.name)

    def join(self, timeout: float | None = None) -> None:
        kernel = self._kernel
        deadline = None if timeout is None else kernel.now + timeout
        while self._task is not None and not self._task.done:
            left = None if deadline is None else deadline - kernel.now
            if left is not None and left <= 0:
                return
            self._joining.append(kernel.me())
            kernel.wait(left)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done


class Timer(Thread):
    """``threading.Timer`` of the simulation."""

    def __init__(self, kernel: Kernel, interval: float, function: Callable[[], object]) -> None:
        self._over = False

        def run() -> None:
            kernel.sleep(interval)
            if not self._over:
                function()

        super().__init__(kernel, target=run)

    def cancel(self) -> None:
        self._over = True
