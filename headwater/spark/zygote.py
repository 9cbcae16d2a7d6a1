"""Make Spark's Python processes by forking one that has all modules loaded.

Spark starts a new Python for every query's source, sink, commit and tasks, and each loads
PySpark, pandas and Arrow again: several seconds of processor time a query. Here one process per
Spark loads them once, and every Python that Spark asks for is a fork of it: about 20 ms and,
until it writes, no memory of its own. It ends with the Spark server it serves.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import signal
import socket
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from headwater.spark.handover import SOCKET

PRELOADED = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.ipc",
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "confluent_kafka",
    "headwater.channels.channel_spark",
    "headwater.channels.filelog",
    "headwater.channels.kafkalog",
    "headwater.query.compile",
    "headwater.connectors.filewriter",
    "headwater.connectors.deadletters",
    "headwater.connectors.sensor_source",
    "headwater.connectors.delta_source",
    "headwater.connectors.iceberg_source",
    "headwater.connectors.kafkarange",
    "headwater.query.writer",
)
_MOST = 1 << 22  # bytes of a request
_SERVER_URL = "SPARK_CONNECT_LOCAL_URL"
IDLE = 60.0
"""Seconds after which a daemon without workers ends."""
_IN_EACH_BATCH = (
    "pyspark.worker",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.streaming.python_streaming_sink_runner",
)
"""Modules whose daemons Spark needs in each batch of a query, beside those it needs once to start the query."""
KEPT = 1800.0
"""Seconds after which one of these ends. A first batch after that waits for three, 70 ms each on a busy machine."""
_LONG = 0.005
"""Duration of a garbage collection, in seconds, from which the surviving objects are frozen."""


def supported() -> bool:
    """Return whether forking a loaded Python is safe here: on macOS its libraries do not support it."""
    return sys.platform == "linux"


def write_launcher(directory: Path) -> Path:
    """Write the command that Spark starts as Python."""
    script = Path(__file__).with_name("handover.py")
    words = [sys.executable, "-IS", str(script), sys.executable, str(directory)]
    launcher = directory / "python"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    launcher.chmod(0o700)
    return launcher


class Zygote:
    """Serve requests until the Spark server is gone."""

    def __init__(self, directory: Path, server: int, idle: float, kept: float) -> None:
        self._idle_seconds, self._kept_seconds = idle, kept
        os.chdir(directory)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET)
        self._listener = socket.socket(socket.AF_UNIX)
        old = os.umask(0o077)
        try:
            self._listener.bind(SOCKET)
        finally:
            os.umask(old)
        self._listener.listen(128)
        self._server = os.pidfd_open(server)
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken)
        self._waiting: dict[int, socket.socket] = {}
        """By process: the connection that waits for its end."""
        self._idle: dict[int, _Idle | None] = {}
        """Spark's daemons; for those without workers, since when."""
        self._kept: set[int] = set()
        """Those that Spark needs in each batch."""
        self._ended: dict[int, list[Path]] = {}
        """Daemons that were killed here, until they are gone, with the sockets they leave."""

    def serve(self) -> None:
        """Fork for every request, report every end; return when the server is gone."""
        while True:
            poller = select.poll()
            for fd in (self._server, self._wake, self._listener.fileno()):
                poller.register(fd, select.POLLIN)
            asking = {c.fileno(): pid for pid, c in self._waiting.items()}
            for fd in asking:
                poller.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poller.poll(self._idle_seconds / 3 * 1000)}
            self._end_idle(time.monotonic())
            if self._server in ready:
                break
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            for fd in ready & asking.keys():
                self._part(asking[fd])
            if self._listener.fileno() in ready:
                self._answer(self._listener.accept()[0])
        for pid in self._waiting:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        os.unlink(SOCKET)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        fds: list[int] = []
        try:
            head, fds, _, _ = socket.recv_fds(connection, 4, 3)
            size = int.from_bytes(head, "big")
            if len(fds) != 3 or not 0 < size <= _MOST:
                raise ValueError(f"a request of {size} bytes with {len(fds)} streams")
            request = json.loads(_received(connection, size))
            pid = os.fork()
            if pid == 0:
                self._become(request, fds, connection)
            self._waiting[pid] = connection
            if request["argv"][1:2] == ["pyspark.daemon"]:
                self._idle[pid] = None
                if request["argv"][2:3] and request["argv"][2] in _IN_EACH_BATCH:
                    self._kept.add(pid)
        except (OSError, ValueError) as error:
            print(f"zygote: {error}", file=sys.stderr, flush=True)
            connection.close()
        finally:
            for fd in fds:
                os.close(fd)

    def _become(self, request: dict[str, Any], fds: list[int], connection: socket.socket) -> NoReturn:
        """Turn this fork into the Python that was asked for."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
                os.close(fd)
            for other in (connection, self._listener, *self._waiting.values()):
                other.close()
            for fd in (self._server, self._wake, self._woken):
                os.close(fd)
            _run(request["argv"], request["env"], request["cwd"])
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code & 0xFF)

    def _reap(self) -> None:
        """Send exit codes of ended processes to the connections that wait for them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            connection = self._waiting.pop(pid, None)
            self._idle.pop(pid, None)
            self._kept.discard(pid)
            for left in self._ended.pop(pid, ()):
                left.unlink(missing_ok=True)
            if connection is not None:
                code = os.waitstatus_to_exitcode(status)
                with connection, contextlib.suppress(OSError):
                    connection.send(f"{code & 0xFF}\n".encode())

    def _end_idle(self, now: float) -> None:
        """Kill idle daemons.

        Spark starts some for every query and keeps them all: a long-lived server would fill with
        them. Spark restarts a daemon that it needs after all, as it does with one that has crashed.
        """
        for pid, idle in self._idle.items():
            if pid in self._ended:  # it was killed; by now it may have closed its sockets
                continue
            files = _idle_files(pid)
            if files is None:
                self._idle[pid] = None
            elif idle is None or idle.files != files:
                self._idle[pid] = _Idle(now, files)
            elif now - idle.since > (self._kept_seconds if pid in self._kept else self._idle_seconds):
                # A stopped daemon cannot accept a request during the check; its end resets a waiting
                # request, which Spark then repeats.
                os.kill(pid, signal.SIGSTOP)
                unused = _idle_files(pid) == files
                if unused:
                    self._ended[pid] = _sockets(pid)
                os.kill(pid, signal.SIGKILL if unused else signal.SIGCONT)

    def _part(self, pid: int) -> None:
        """Kill a process whose stand-in was ended by Spark."""
        connection = self._waiting.pop(pid, None)
        if connection is not None:
            connection.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


@dataclass(frozen=True)
class _Idle:
    """Time since which a daemon has no workers, and its unchanged number of open files."""

    since: float
    files: int


def _idle_files(pid: int) -> int | None:
    """Count a daemon's open files; None when it has workers, or is gone."""
    try:
        if Path(f"/proc/{pid}/task/{pid}/children").read_text().strip():
            return None
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


def _sockets(pid: int) -> list[Path]:
    """Return the files of a daemon's sockets, which Spark's configuration puts into a directory of their own."""
    try:
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        rows = [line.split(maxsplit=7) for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]]
    except OSError:
        return []
    own = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    return [Path(r[7]) for r in rows if len(r) == 8 and r[6] in own and r[7].endswith(".sock") and r[7][0] == "/"]


def _received(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ValueError("the request is incomplete")
        parts += part
    return parts


def _run(argv: list[str], env: dict[str, str], cwd: str) -> None:
    """Run ``python ARGV`` in this process."""
    if len(argv) < 2 or argv[0] != "-m":
        os.execve(sys.executable, [sys.executable, *argv], env)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)
    added = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p and p not in sys.path]
    sys.path[:1] = [cwd, *added]
    sys.argv = [argv[1], *argv[2:]]
    if _SERVER_URL in env:
        _hide(env[_SERVER_URL])
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # a fork would draw its siblings' numbers
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    runpy.run_module(argv[1], run_name="__main__", alter_sys=True)


def _hide(secret: str) -> None:
    """Leave a text out of this process's output: workers of for_each_batch print the server's address and token."""
    for stream in (sys.stdout, sys.stderr):
        write = stream.write
        stream.write = lambda text, write=write: write(text.replace(secret, "the server"))  # type: ignore[method-assign]


def preload() -> None:
    """Load the modules that Spark's Python processes use, and exempt them from garbage collection."""
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"zygote: cannot load {name}: {error}", file=sys.stderr, flush=True)
    gc.collect()
    gc.freeze()
    gc.callbacks.append(_Frozen())


class _Frozen:
    """Exempt modules that a worker has loaded later from garbage collection.

    PySpark's workers collect after every task: about 50 ms each with matplotlib or scikit-learn loaded.
    """

    def __init__(self) -> None:
        self._begun = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._begun = time.perf_counter()
        elif info["generation"] == 2 and time.perf_counter() - self._begun > _LONG:
            gc.freeze()


def main() -> int:
    """Serve: ``python -m headwater.spark.zygote DIRECTORY SERVER_PID [IDLE_SECONDS [KEPT_SECONDS]]``."""
    directory, server = Path(sys.argv[1]), int(sys.argv[2])
    idle = float(sys.argv[3]) if len(sys.argv) > 3 else IDLE
    kept = float(sys.argv[4]) if len(sys.argv) > 4 else KEPT
    try:
        preload()
        Zygote(directory, server, idle, kept).serve()
    except ProcessLookupError:
        return 0  # the server is gone already
    return 0


if __name__ == "__main__":
    sys.exit(main())
