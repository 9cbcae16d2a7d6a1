"""Read single keys from a terminal while a command shows something."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable

_LOOK = 0.2
"""Seconds after which the reader sees a request to end."""


class Keys:
    """Reads keys in a thread and passes them on; restores the terminal at the end."""

    def __init__(self, typed: Callable[[str], None]) -> None:
        self._typed = typed
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read, name="keys", daemon=True)

    def __enter__(self) -> Keys:
        import termios
        import tty

        self._terminal = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._terminal)
        # Ctrl-C stays a signal: only line mode and echo are off.
        tty.setcbreak(self._terminal)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        import termios

        self._done.set()
        self._thread.join(5 * _LOOK)
        termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)

    def _read(self) -> None:
        while not self._done.is_set():
            ready, _, _ = select.select([self._terminal], [], [], _LOOK)
            if ready:
                found = os.read(self._terminal, 16)
                if not found:  # the terminal is gone
                    return
                for key in found.decode(errors="ignore"):
                    self._typed(key)
