"""Computations of requests in processes of their own: a time limit ends them anywhere, also in compiled code."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from headwater.control.tables import STORE
from headwater.core.environment import hide_environment
from headwater.core.errors import HeadwaterError, PlacementError, RuntimeFailure
from headwater.core.quantity import format_duration

IDLE = 120.0
"""Seconds after which a process without a computation ends."""
_ENDS = 10.0  # seconds in which an idle process has to end
T = TypeVar("T")


class Computing:
    """Computes for a server, each time for at most ``limit`` seconds; None: in this process, without a limit.

    A function, its arguments and its result must be picklable.
    """

    def __init__(self, limit: float | None = None) -> None:
        self._limit = limit
        self._alone = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._busy: set[subprocess.Popen[bytes]] = set()

    def run(self, act: Callable[[], T]) -> T:
        """Return the result of a function, or raise its error; raise PlacementError at the time limit."""
        if self._limit is None:
            return act()
        task = pickle.dumps((self._limit, os.getcwd(), act))
        while True:
            process, fresh = self._take()
            answer = _asked(process, task)
            if answer is not None:
                self._give_back(process)
                good, found = pickle.loads(answer)
                if good:
                    return found  # type: ignore[no-any-return]
                raise found
            status = self._drop(process)
            if status == 0 and not fresh:
                continue  # it had been idle for too long
            if status == -signal.SIGALRM:
                raise PlacementError(
                    f"it was not computed within {format_duration(self._limit)}",
                    hint="choose another strategy or fewer hosts, or use the command line, which has no limit; the "
                    "server's is `headwater up --compute-limit`",
                )
            how = signal.Signals(-status).name if status < 0 else f"status {status}"
            raise RuntimeFailure(
                f"the process that computed it has ended: {how}",
                hint="after SIGKILL, look for 'oom' in the system's log; otherwise see the server's log",
            )

    def close(self) -> None:
        """End the processes; computations are ended, too."""
        with self._alone:
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for process in busy:
            process.kill()
        for process in idle:
            with contextlib.suppress(OSError):
                _pipe(process.stdin).close()
            try:
                process.wait(_ENDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _close(process)

    def _take(self) -> tuple[subprocess.Popen[bytes], bool]:
        """Return a process, and whether it was started now."""
        with self._alone:
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    self._busy.add(process)
                    return process, False
                _close(process)
            process = _started()
            self._busy.add(process)
        return process, True

    def _give_back(self, process: subprocess.Popen[bytes]) -> None:
        with self._alone:
            self._busy.discard(process)
            self._idle.append(process)

    def _drop(self, process: subprocess.Popen[bytes]) -> int:
        """Reap a process that has ended; return its status."""
        _close(process)
        status = process.wait()
        with self._alone:
            self._busy.discard(process)
        return status


def _started() -> subprocess.Popen[bytes]:
    roots = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    # It needs no secret but the store's URL.
    known = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_") or name == STORE}
    return subprocess.Popen(
        [sys.executable, "-m", "headwater.web.computing"],
        env={**known, "PYTHONPATH": os.pathsep.join(p for p in roots if p)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _asked(process: subprocess.Popen[bytes], task: bytes) -> bytes | None:
    """Send a task; return the answer, or None where the process has ended without one."""
    try:
        _pipe(process.stdin).write(task)
        _pipe(process.stdin).flush()
    except OSError:
        return None
    out = _pipe(process.stdout)
    size = int.from_bytes(out.read(8), "big")
    answer = out.read(size)
    return answer if size and len(answer) == size else None


def _close(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        _pipe(process.stdin).close()
    _pipe(process.stdout).close()


def _pipe(pipe: T | None) -> T:
    assert pipe is not None
    return pipe


def main() -> None:
    """Compute the tasks on standard input, one after the other."""
    hide_environment()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of a computation is no answer
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    tasks = sys.stdin.buffer
    while select.select([tasks], [], [], IDLE)[0]:
        try:
            limit, directory, act = pickle.load(tasks)
        except EOFError:
            return
        os.chdir(directory)
        signal.setitimer(signal.ITIMER_REAL, limit)  # the system ends this process, whatever it is doing
        answer = _computed(act)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(len(answer).to_bytes(8, "big") + answer)
        answers.flush()


def _computed(act: Callable[[], object]) -> bytes:
    try:
        return pickle.dumps((True, act()))
    except HeadwaterError as error:
        return pickle.dumps((False, error))
    except Exception as error:
        traceback.print_exc()
        return pickle.dumps((False, RuntimeFailure(f"an unexpected {type(error).__name__}: {error}")))


if __name__ == "__main__":
    main()
