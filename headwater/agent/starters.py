"""The processes that start agents below a directory (`headwater up`): each one holds a lock of its own there.

`headwater down` ends them first: they would start again every agent that it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from headwater.core.errors import RuntimeFailure

_LOOK = 0.05  # seconds between two checks of a process that is to end


@contextlib.contextmanager
def starting(home: Path) -> Iterator[None]:
    """Note that this process starts agents below a directory."""
    directory = home / "starters"
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{os.getpid()}.{threading.get_ident()}"
    with file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def end_starters(home: Path, seconds: float) -> None:
    """End the other processes that start agents below a directory; raise RuntimeFailure if one does not end in time."""
    for file in sorted((home / "starters").glob("*.*")):
        process = int(file.name.partition(".")[0])
        if process == os.getpid():
            continue
        if _holds(file):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while _holds(file):
            if time.monotonic() > deadline:
                raise RuntimeFailure(
                    f"`headwater up` (process {process}) does not end, and would start the agents again",
                    where=str(home),
                    hint=f"end it (kill -9 {process}), then repeat this command",
                )
            time.sleep(_LOOK)
        file.unlink(missing_ok=True)


def _holds(file: Path) -> bool:
    """Return whether the process of a file runs: its lock ends with it."""
    try:
        with file.open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
