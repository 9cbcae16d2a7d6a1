"""Faults for tests: a process without free file descriptors, a process that stands still, a wrong clock."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.patience import PATIENCE


def until(true: Callable[[], object], what: str = "it") -> None:
    """Wait until a condition holds; fail after a time far beyond the need."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen in time"
        time.sleep(0.02)


@contextlib.contextmanager
def no_descriptors(process: int | None = None) -> Iterator[None]:
    """Let a process, or this one, open no further file or connection; the open ones stay."""
    process = process or os.getpid()
    before = resource.prlimit(process, resource.RLIMIT_NOFILE)
    if process == os.getpid():
        os.close(free := os.open("/dev/null", os.O_RDONLY))
    else:
        used = {int(name) for name in os.listdir(f"/proc/{process}/fd")}
        free = next(number for number in range(len(used) + 1) if number not in used)
    resource.prlimit(process, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def standing_still(process: int) -> Iterator[None]:
    """Stop a process with SIGSTOP, and let it continue at the end of the block."""
    os.kill(process, signal.SIGSTOP)
    try:
        until(lambda: _state(process) in ("T", "t"), "the stop")
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def _state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
