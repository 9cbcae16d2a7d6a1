"""The process in which Spark rewrites state: a Python with a Java of its own, which stays for a minute.

It takes seconds to start. The rehearsal of a state transfer starts it, while the units still run; the transfer itself,
for which they stand still, finds it started.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headwater.core.errors import RuntimeFailure
from headwater.disk.credentials import code_environment
from headwater.spark.endpoint import find_java
from headwater.spark.home import pyspark_directory, spark_home
from headwater.spark.memory import memory_free

MODULE = "headwater.state.reshaper"
JAVA_OPTIONS = "HEADWATER_JAVA_OPTIONS"
"""Variable of the process's environment: Java's options for the archive of classes."""
ANSWER = "headwater answers "
"""Start of a line of the process's output that holds an answer, as JSON; other lines are messages of its Java."""
SECONDS = 600.0
"""Time limit of a request."""
KEPT = 60.0
"""Seconds that the process waits for the next request."""
ROOM = 2 * 2**30
"""Bytes of memory that must be free for it to wait."""


class ReshapingProcess:
    """A started process, for one request at a time."""

    def __init__(self) -> None:
        # Its Java may end a moment after it.
        self._directory = tempfile.TemporaryDirectory(prefix="headwater-reshaping-", ignore_cleanup_errors=True)
        place = Path(self._directory.name)
        # PySpark has set variables here when it connected to a server; they would make the new process connect too.
        known = code_environment(())
        environment = {k: v for k, v in known.items() if not k.startswith("SPARK_") or k == "SPARK_LOCAL_DIRS"}
        environment |= {"JAVA_HOME": str(java := find_java()), "SPARK_LOCAL_IP": "127.0.0.1"}
        roots = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in roots if p)
        home = spark_home(place, java, pyspark_directory())
        environment |= {"SPARK_HOME": str(home.path), JAVA_OPTIONS: home.java_options}
        self._messages = place / "messages"
        with self._messages.open("w") as messages:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                env=environment,
                cwd=place,
            )
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True, name="state reshaping")
        self._listener.start()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can take a request."""
        return self._process.poll() is None

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith(ANSWER):
                    self._answers.put(json.loads(line.removeprefix(ANSWER)))
        self._answers.put(None)

    def ask(self, request: Any, *, where: str) -> None:
        """Send a request and wait for the answer.

        Raises RuntimeFailure: the one of the answer, or one with the process's last messages where it has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            refused = self._answers.get(timeout=SECONDS)
        except OSError:
            refused = None
        except queue.Empty:
            self._process.kill()
            raise RuntimeFailure(
                f"state was not rewritten within {SECONDS:.0f} s",
                where=where,
                hint="nothing is lost: the units can continue where they stopped; try again when the machine is less "
                "busy",
            ) from None
        if refused is None:
            raise RuntimeFailure(
                "state could not be rewritten: " + "\n".join(self._last_messages()),
                where=where,
                hint="nothing is lost: the units can continue where they stopped",
            )
        if refused:
            raise RuntimeFailure(**refused)

    def _last_messages(self) -> Sequence[str]:
        lines = self._messages.read_text(errors="replace").splitlines()
        return [line for line in lines if line.strip() and not line.startswith("\tat ")][-10:]

    def end(self) -> None:
        """End the process, and remove its directory."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._listener.join(10)  # its Java has the output open, and ends after it
        self._directory.cleanup()


class WaitingProcess:
    """A process that waits for the next request, for a while."""

    def __init__(self, *, kept: float = KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._process: ReshapingProcess | None = None
        self._timer: threading.Timer | None = None

    def ask(self, requests: Sequence[Mapping[str, Any]], *, where: str) -> int:
        """Let the waiting process, or a new one, rewrite state; return its id."""
        process = self._take() or ReshapingProcess()
        try:
            process.ask(requests, where=where)
            return process.pid
        finally:
            self._leave(process)

    def _take(self) -> ReshapingProcess | None:
        with self._lock:
            found, self._process = self._process, None
            if self._timer is not None:
                self._timer.cancel()
        if found is not None and not found.alive:
            found.end()
            return None
        return found

    def _leave(self, process: ReshapingProcess) -> None:
        with self._lock:
            if self._process is None and process.alive and memory_free() >= ROOM:
                self._process = process
                self._timer = threading.Timer(self._kept, self.end)
                self._timer.daemon = True
                self._timer.start()
                return
        process.end()

    def end(self) -> None:
        """End the waiting process."""
        if (found := self._take()) is not None:
            found.end()


SHARED = WaitingProcess()
"""The one that all state transfers of this process use."""
atexit.register(SHARED.end)
