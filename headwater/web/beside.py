"""The server in a process of its own beside the controller: it takes no thread, file or memory of the controller's.

The parent holds the listening sockets, so that requests wait while the process starts again. The process ends with its
parent: it reads a pipe that the parent holds open.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from headwater.core.environment import hide_environment

if TYPE_CHECKING:
    from headwater.continuum.model import Zone
    from headwater.tls.listener import ListenerTls

FIRST = 1.0
"""Seconds until it starts again after its first end; each further end doubles them."""
LONGEST = 30.0
STEADY = 60.0
"""Seconds after which an end counts as the first one."""
ENDS = 15.0
"""Seconds in which it has to end."""
_LOOK = 0.5  # seconds between two checks of its threads


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of a server: its store, and the file descriptors of its sockets; None: not served."""

    store_url: str | None
    home: Path
    host: str = ""
    listening: int | None = None
    tls: ListenerTls | None = None
    metrics: int | None = None
    metrics_tls: ListenerTls | None = None
    trust_code: bool = False
    zones: tuple[Zone, ...] = ()
    compute_limit: float | None = None


@contextmanager
def beside(settings: ServerSettings, *, say: Callable[[str], None]) -> Iterator[None]:
    """Serve in a process of its own, which is started again whenever it ends."""
    keeper = _Restarted(settings, say)
    keeper.start()
    try:
        yield
    finally:
        keeper.end()


class _Restarted:
    """Starts a server's process, and starts it again."""

    def __init__(self, settings: ServerSettings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._alone = threading.Lock()
        self._ends = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._thread = threading.Thread(target=self._keep, name="web", daemon=True)

    def start(self) -> None:
        """Start the process; its sockets accept connections already."""
        self._thread.start()

    def end(self) -> None:
        """End the process: open requests are answered first."""
        with self._alone:
            self._ends.set()
            process = self._process
        if process is not None:
            if not self._ready:
                process.kill()
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.write(b"end")
                process.stdin.close()
            try:
                process.wait(ENDS)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join(ENDS)

    def _keep(self) -> None:
        wait = FIRST
        while True:
            begun = time.monotonic()
            with self._alone:
                if self._ends.is_set():
                    return
                self._ready = False
                self._process = process = self._start()
            assert process.stdout is not None and process.stdin is not None
            with contextlib.suppress(OSError):
                pickle.dump(self._settings, process.stdin)
                process.stdin.flush()
            self._ready = process.stdout.read(1) != b""
            status = process.wait()
            process.stdout.close()
            if self._ends.is_set():
                return
            with contextlib.suppress(OSError):
                process.stdin.close()
            if time.monotonic() - begun > STEADY:
                wait = FIRST
            how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"has ended with status {status}"
            self._say(f"the web server {how}; it starts again in {wait:g} s, the controller goes on")
            if self._ends.wait(wait):
                return
            wait = min(2 * wait, LONGEST)

    def _start(self) -> subprocess.Popen[bytes]:
        roots = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        found = self._settings.listening, self._settings.metrics
        return subprocess.Popen(
            [sys.executable, "-m", "headwater.web"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in roots if p)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[descriptor for descriptor in found if descriptor is not None],
            start_new_session=True,  # Ctrl-C is for the controller, which ends it
        )


def main() -> None:
    """Serve, as the parent says over standard input, until it says so, or is gone."""
    hide_environment()
    told = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what others print is no message to the parent
    settings: ServerSettings = pickle.load(sys.stdin.buffer)
    ends = threading.Event()
    threading.Thread(target=_listen_to_parent, args=(sys.stdin.buffer, ends), daemon=True).start()
    from headwater.web import prometheus

    with ExitStack() as stack:
        threads = []
        if settings.metrics is not None:
            listening = socket.socket(fileno=settings.metrics)
            metrics = prometheus.serving_at(listening, settings.store_url, settings.metrics_tls)
            threads.append(stack.enter_context(metrics))
        if settings.listening is not None:
            from headwater.web.server import serving_at

            served = serving_at(
                socket.socket(fileno=settings.listening),
                settings.store_url,
                settings.host,
                home=settings.home,
                tls=settings.tls,
                trust_code=settings.trust_code,
                zones=settings.zones,
                compute_limit=settings.compute_limit,
            )
            threads.append(stack.enter_context(served))
        told.write(b"\n")
        while not ends.wait(_LOOK):
            if not all(thread.is_alive() for thread in threads):
                raise SystemExit("a thread of the web server has ended: see its messages above")


def _listen_to_parent(pipe: BinaryIO, ends: threading.Event) -> None:
    if not pipe.read(1):
        os._exit(1)  # the parent is gone, and another one may want the port
    ends.set()
