"""A Spark that ended by itself: how it ended is said, and it is started again, later each time it ends soon."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.continuum.model import Continuum
from headwater.core.errors import Unavailable
from headwater.spark.endpoint import LOG, LocalEndpoint
from headwater.spark.sparks import Sparks

NODE = Continuum.from_text("name: one\nlayers: [edge]\nzones: {E1: {layer: edge, locations: [L1]}}").node("E1")


def ended(directory: Path, by: Callable[[subprocess.Popen[bytes]], None], *, said: str = "") -> LocalEndpoint:
    """Return the endpoint of a process that has ended in some way."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    found = LocalEndpoint(directory, 1, "token", process.pid, 1, "session")
    found._process = process
    (directory / LOG).write_text(said)
    by(process)
    process.wait(30)
    assert process.stdin is not None
    process.stdin.close()
    return found


def test_a_killed_spark_names_memory_as_a_possible_cause(tmp_path: Path) -> None:
    """The system's out-of-memory killer sends SIGKILL, and the killed process logs nothing."""
    killed = ended(tmp_path, lambda p: p.send_signal(signal.SIGKILL), said="INFO all is well\n")
    assert not killed.alive
    assert killed.ending.startswith("it was killed (SIGKILL), perhaps by the system for lack of memory")
    assert "lower --memory" in killed.ending


def test_other_ends_are_told_with_the_last_words(tmp_path: Path) -> None:
    full = "java.lang.OutOfMemoryError: Java heap space"
    died = ended(tmp_path, lambda p: p.terminate(), said=f"{full}\n")
    assert died.ending == f"its heap was full ({full}): raise --memory"
    failed = ended(tmp_path, lambda p: p.send_signal(signal.SIGTERM), said="ERROR: port in use\n").ending
    assert failed.startswith("it ended with signal 15; its log ends with: ERROR: port in use; if that is no error")
    adopted = ended(tmp_path, lambda p: p.kill(), said="INFO all is well\n")
    adopted._process = None  # found running by a later agent: its exit code is not known
    assert "for lack of memory" in adopted.ending


class Dying:
    """A Spark that ends at once; used only for its liveness."""

    directory, generation, ending = Path("spark"), "1", "it was killed"
    fails = False

    def __init__(self) -> None:
        self.alive, self.starts = True, 0

    def restart(self) -> None:
        if self.fails:
            raise Unavailable("Spark ended while it started")
        self.alive, self.starts = True, self.starts + 1


def test_a_spark_that_ends_again_and_again_is_started_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now, spark = [1000.0], Dying()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    node = Sparks(Path("spark"), given=spark)  # type: ignore[arg-type]
    node.of(NODE)
    assert node.revive() is None and node.ending == ""
    waits = []
    for _ in range(8):
        spark.alive, since = False, now[0]
        while node.revive() is None:
            now[0] += 0.5
        waits.append(now[0] - since)
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] and node.ending == "it was killed"
    now[0] += 31.0  # it has run for a while
    spark.alive = False
    assert node.revive() is spark
    spark.alive, spark.fails = False, True
    for _ in range(3):
        with pytest.raises(Unavailable):
            while node.revive() is None:
                now[0] += 0.5
    before, spark.fails = now[0], False
    while node.revive() is None:
        now[0] += 0.5
    assert now[0] - before == 8.0
