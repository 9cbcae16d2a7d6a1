"""The Python processes of a Spark: forked on request, ended correctly, and always available."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.spark import zygote
from headwater.spark.handover import SOCKET
from headwater.spark.sockets import make_sockets, remove_sockets
from headwater.spark.zygote import supported, write_launcher

pytestmark = pytest.mark.skipif(not supported(), reason="only on Linux")

MODULE = """
import json, os, sys, time
if sys.argv[1:] == ["wait"]:
    print(os.getpid(), flush=True)
    time.sleep(60)
if sys.argv[1:] == ["fail"]:
    raise ValueError("as asked")
if sys.argv[1:] == ["quit"]:
    sys.exit(7)
if sys.argv[1:] == ["collect"]:
    import gc
    gc.disable()  # but for what it is asked to do
    loaded = [[n] for n in range(300_000)]
    seen = []
    for _ in range(3):
        before = time.perf_counter()
        gc.collect()
        seen.append(time.perf_counter() - before)
    print(json.dumps(seen))
    sys.exit(0)
import numpy
print(json.dumps({
    "name": __name__, "argv": sys.argv[1:], "env": os.environ.get("MARK"), "cwd": os.getcwd(),
    "loaded": "pyspark.worker" in sys.modules, "in": sys.stdin.read(), "random": numpy.random.rand(),
}))
"""


def until(true: Callable[[], bool]) -> bool:
    """Wait for a condition, 30 seconds at most; return whether it held."""
    deadline = time.monotonic() + 30
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


class Place:
    """A zygote with another process in place of Spark, and a module to run."""

    def __init__(self, directory: Path) -> None:
        # Longer than the path of a socket may be.
        self.directory = directory / ("d" * 120)
        self.directory.mkdir()
        (directory / "asked.py").write_text(MODULE)
        self.launcher = write_launcher(self.directory)
        self.server = subprocess.Popen(["sleep", "120"])
        serve = [sys.executable, "-m", "headwater.spark.zygote", str(self.directory), str(self.server.pid)]
        serve += ["0.3"]  # seconds after which an idle daemon ends
        self.log = (directory / "log").open("wb")
        self.zygote = subprocess.Popen(serve, stderr=self.log)
        assert until(lambda: (self.directory / SOCKET).exists())

    def end(self) -> None:
        for process in (self.server, self.zygote):
            process.kill()
            process.wait()
        self.log.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("zygote"))
    yield made
    made.end()


def start(place: Place, *arguments: str, mark: str = "x") -> subprocess.Popen[str]:
    environment = {**os.environ, "MARK": mark, "PYTHONPATH": str(place.directory.parent)}
    return subprocess.Popen(
        [str(place.launcher), "-m", "asked", *arguments],
        env=environment,
        cwd=place.directory.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_does_what_python_would(place: Place) -> None:
    processes = [start(place, str(n), mark=f"m{n}") for n in range(4)]
    found = []
    for n, process in enumerate(processes):
        out, err = process.communicate(f"in{n}", timeout=30)
        assert process.returncode == 0, err
        found.append(json.loads(out))
        expected = {"name": "__main__", "argv": [str(n)], "env": f"m{n}", "in": f"in{n}", "loaded": True}
        assert expected.items() <= found[-1].items()
        assert found[-1]["cwd"] == str(place.directory.parent)
    assert len({f["random"] for f in found}) == 4, "forks must not draw the same numbers"


@pytest.mark.parametrize(("how", "code"), [("fail", 1), ("quit", 7)])
def test_tells_how_it_ended(place: Place, how: str, code: int) -> None:
    process = start(place, how)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert ("ValueError: as asked" in err) == (how == "fail")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ends_with_the_process_that_spark_ends(place: Place, number: int) -> None:
    with start(place, "wait") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert child != process.pid
        process.send_signal(number)
        process.wait(30)
        assert until(lambda: gone(child))


def test_what_a_worker_has_loaded_is_looked_through_for_garbage_once(place: Place) -> None:
    first, *others = json.loads(start(place, "collect").communicate(timeout=60)[0])
    assert max(others) < first / 3


@pytest.mark.parametrize("sent", [b"", b"\0\0\0\5", b"\0\0\0\5hello", b"\xff\xff\xff\xff", b"\0\0\0\2{}"])
def test_bears_requests_that_are_none(place: Place, sent: bytes) -> None:
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            os.chdir(place.directory)
            connection.connect(SOCKET)
        finally:
            os.chdir(here)
        if sent:
            connection.sendall(sent)
    out, _ = start(place, "after").communicate("", timeout=30)
    assert json.loads(out)["argv"] == ["after"]


ONCE, IN_EACH_BATCH = "pyspark.sql.worker.create_data_source", "pyspark.worker"


@contextlib.contextmanager
def started_daemon(place: Place, sockets: Path, module: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start a daemon of Spark's for a module; yield its stand-in, and its socket."""
    environment = {
        **os.environ,
        "PYTHON_UNIX_DOMAIN_ENABLED": "True",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(sockets),
    }
    with subprocess.Popen(
        [str(place.launcher), "-m", "pyspark.daemon", module],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as daemon:
        assert daemon.stdout is not None
        try:
            yield daemon, daemon.stdout.read(int.from_bytes(daemon.stdout.read(4), "big")).decode()
        finally:
            daemon.terminate()


def test_a_daemon_ends_when_it_has_had_no_workers_for_a_while(place: Place) -> None:
    sockets = make_sockets(place.directory)
    with started_daemon(place, sockets, ONCE) as (daemon, path):
        with socket.socket(socket.AF_UNIX) as worker:  # a worker, while this connection is open
            worker.connect(path)
            time.sleep(1.5)
            assert daemon.poll() is None
        assert until(lambda: daemon.poll() is not None)
    assert until(lambda: not list(sockets.iterdir())), "a killed daemon cannot remove its socket"
    remove_sockets(place.directory)
    assert not sockets.exists()


def test_a_daemon_for_each_batch_outlives_those_that_start_a_query(place: Place) -> None:
    sockets = make_sockets(place.directory)
    with started_daemon(place, sockets, IN_EACH_BATCH) as (kept, _), started_daemon(place, sockets, ONCE) as (once, _):
        assert until(lambda: once.poll() is not None)
        time.sleep(1.0)
        assert kept.poll() is None
    remove_sockets(place.directory)


def test_a_killed_daemon_is_not_examined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as daemon:
        killed = zygote.Zygote.__new__(zygote.Zygote)
        killed._idle_seconds, killed._idle, killed._ended, killed._kept = 1.0, {daemon.pid: None}, {}, set()
        sockets = iter([[Path("a.sock")], []])  # while it ends, it closes its sockets
        monkeypatch.setattr(zygote, "_idle_files", lambda pid: 5)
        monkeypatch.setattr(zygote, "_sockets", lambda pid: next(sockets))
        for now in (0.0, 2.0, 2.1):
            killed._end_idle(now)
    assert daemon.returncode == -signal.SIGKILL
    assert killed._ended == {daemon.pid: [Path("a.sock")]}


def test_nobody_else_may_ask(place: Place) -> None:
    assert (place.directory / SOCKET).stat().st_mode & 0o077 == 0
    assert place.launcher.stat().st_mode & 0o077 == 0


def test_without_a_zygote_python_itself_is_started(tmp_path: Path) -> None:
    launcher = write_launcher(tmp_path)
    done = subprocess.run(
        [str(launcher), "-c", "import sys, os; print(sys.argv[1:], os.getcwd())", "a b"],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == f"['a b'] {tmp_path}"


def test_ends_with_its_server(tmp_path: Path) -> None:
    place = Place(tmp_path)
    try:
        with start(place, "wait") as process:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            place.server.kill()
            place.server.wait()
            assert place.zygote.wait(30) == 0
            assert until(lambda: gone(child))
            assert process.wait(30) != 0
        assert not (place.directory / SOCKET).exists()
    finally:
        place.end()
