"""Ctrl-C and other signals as events."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterable

STOPS = (signal.SIGINT, signal.SIGTERM)
_AWAKE = 1.0  # seconds after which the main thread looks for signals at the latest


class SignalEvent(threading.Event):
    """An event for which the main thread does not sleep for long.

    The kernel may give a signal to another thread than the main one, which alone runs the handler: when it
    wakes by itself.
    """

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            return super().wait(timeout)
        while not super().wait(_AWAKE):
            pass
        return True


def stopped_by_signals() -> threading.Event:
    """Return an event that Ctrl-C and SIGTERM set."""
    stop = SignalEvent()
    on_signals(STOPS, lambda number: stop.set())
    return stop


def on_signals(numbers: Iterable[signal.Signals], do: Callable[[int], None]) -> Callable[[], None]:
    """Call a function at each signal, in a thread of its own; return a function that restores the handlers.

    A handler runs in the main thread between any two of its steps. If it set an event that this thread is about to wait
    for, both would wait forever. A handler may only put something into a ``SimpleQueue``.
    """
    came: queue.SimpleQueue[int] = queue.SimpleQueue()

    def take() -> None:
        while True:
            do(came.get())

    threading.Thread(target=take, name="signals", daemon=True).start()
    before = {number: signal.signal(number, lambda n, frame: came.put(n)) for number in numbers}

    def back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return back
