"""Sample the stacks of this Python process, and of its forks, weighted by processor time.

Python imports this module at its start where its directory is on PYTHONPATH. With BENCH_SAMPLES, a directory,
each 10 ms of processor time add lines to a file there: wall time, processor seconds since the thread's last
sample, the thread's name, and its frames from the outermost inward. The weights make up for samples that a
long call into C delays. The file's first line says whether the process is a fork, and gives its command line.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

_EVERY = 0.01
_MOST = 64  # frames of a stack, from the innermost
_PLACES = ("/site-packages/", "/lib/python3.11/", "/lib/python3.12/", "/lib/python3.13/", "/lib/python3.14/")
_names: dict[Any, str] = {}
_spent: dict[int, float] = {}
_out: int | None = None


def _begin(kind: str) -> None:
    global _out
    name = f"{os.getpid()}-{time.time_ns()}.samples"
    _out = os.open(os.path.join(_directory, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with open("/proc/self/cmdline", "rb") as file:
        os.write(_out, kind.encode() + b"\t" + file.read().replace(b"\0", b" ").replace(b"\n", b" ") + b"\n")
    _spent.clear()
    _spent[threading.get_ident()] = time.thread_time()
    signal.signal(signal.SIGPROF, _sample)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, _EVERY, _EVERY)


def _sample(_: int, interrupted: FrameType | None) -> None:
    me, lines = threading.get_ident(), []
    for ident, frame in sys._current_frames().items():
        at = interrupted if ident == me else frame
        now = time.clock_gettime(time.pthread_getcpuclockid(ident))
        before = _spent.get(ident, 0.0)
        _spent[ident] = now
        # A new thread may have the identity of one that has ended.
        weight = now - before if now >= before else now
        if weight <= 0.0002 or at is None:
            continue
        thread = threading._active.get(ident)  # type: ignore[attr-defined]  # enumerate() would take its lock
        lines.append(f"{time.time():.3f}\t{weight:.6f}\t{thread.name if thread else 'thread'}\t{_stack(at)}\n")
    if lines and _out is not None:
        os.write(_out, "".join(lines).encode())


def _stack(frame: FrameType | None) -> str:
    frames: list[str] = []
    while frame is not None and len(frames) < _MOST:
        code = frame.f_code
        name = _names.get(code)
        if name is None:
            name = _names[code] = f"{_short(code.co_filename)}:{code.co_qualname}".replace(";", ",")
        frames.append(name)
        frame = frame.f_back
    return ";".join(reversed(frames))


def _short(file: str) -> str:
    for place in _PLACES:
        _, found, rest = file.partition(place)
        if found:
            return rest.removeprefix("site-packages/")
    at = file.find("/headwater/")
    return file[at + 1 :] if at >= 0 else file


def _end() -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, signal.SIG_IGN)


_directory = os.environ.get("BENCH_SAMPLES", "")
if _directory and os.path.isdir(_directory):
    _begin("main")
    os.register_at_fork(after_in_child=lambda: _begin("fork"))
    atexit.register(_end)
