"""Run a command on its own terminal: type keys, read its output, and always end it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|[=>78])")
MOST_SECONDS = 60.0
"""A limit for busy machines; a successful test does not wait for it."""


BEGIN = """
import faulthandler, fcntl, signal, termios
faulthandler.register(signal.SIGUSR1)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from headwater.cli import main
main()
"""
"""Makes the terminal the controlling terminal, so that Ctrl-C becomes a signal; prints its stack on SIGUSR1."""


class Terminal:
    """Runs ``headwater`` on a pseudo-terminal, except for the standard streams that are given."""

    def __init__(
        self,
        arguments: Sequence[str],
        directory: Path,
        *,
        lines: int = 30,
        columns: int = 120,
        **streams: int,
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(theirs)
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGIN, *arguments],
            cwd=directory,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
            **{"stdin": theirs, "stdout": theirs, "stderr": theirs, **streams},
        )
        self._theirs = theirs
        self.text = ""
        """All output, without the codes for colours and cursor movement."""
        self.raw = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
        os.close(self._ours)
        os.close(self._theirs)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, true: Callable[[str], bool], *, since: int = 0) -> str:
        """Read until the output after a position meets a condition; return it."""
        end = time.monotonic() + MOST_SECONDS
        while not true(self.text[since:]):
            if time.monotonic() > end or (self.process.poll() is not None and not self.more(0.2)):
                raise AssertionError(f"not shown, exit code {self.process.poll()}:\n{self.text[since:]}")
            self.more(0.2)
        return self.text[since:]

    def more(self, seconds: float) -> bool:
        """Read the available output; return whether there was any."""
        ready, _, _ = select.select([self._ours], [], [], seconds)
        if not ready:
            return False
        try:
            found = os.read(self._ours, 65536)
        except OSError:
            return False
        self.raw += found
        self.text = ESCAPE.sub("", self.raw.decode(errors="replace"))
        return bool(found)

    def ended(self) -> int:
        """Wait for the end; return the exit code."""
        end = time.monotonic() + MOST_SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            self.more(0.1)
        code = self.process.poll()
        if code is None:
            self.process.send_signal(signal.SIGUSR1)
        while self.more(0.5):
            pass
        assert code is not None, f"did not end; it shows, and stands at:\n{self.text}"
        return code

    @property
    def settings(self) -> list[object]:
        """Return the current settings of the terminal."""
        return termios.tcgetattr(self._theirs)
