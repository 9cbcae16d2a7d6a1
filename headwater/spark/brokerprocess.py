"""A local broker that outlives the command that started it: started once, found again, ended by its pid."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headwater.core.errors import DeploymentError, RuntimeFailure, Unavailable
from headwater.disk.durable import write_atomically
from headwater.spark.broker import STOP_SECONDS, LocalBroker
from headwater.spark.pids import runs

PORT = 9092
_RECORD = "broker.json"


@dataclass(frozen=True)
class BrokerProcess:
    """A running broker."""

    directory: Path
    pid: int
    port: int

    @property
    def address(self) -> str:
        """The address for clients, and for a continuum's ``broker:``."""
        return f"127.0.0.1:{self.port}"


def start(directory: Path, *, port: int = PORT) -> BrokerProcess:
    """Start a broker over a directory's data; raise DeploymentError where one runs, or the port is taken."""
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    with _only_one(directory):
        if (found := status(directory)) is not None:
            raise DeploymentError(
                f"a broker runs already, at {found.address} (process {found.pid})",
                where=str(directory),
                hint="use it, stop it with 'headwater broker stop', or name another --dir",
            )
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            raise Unavailable(f"port {port} is taken", where=str(directory), hint="name another one with --port")
        broker = LocalBroker.start(directory, port=port)
        record = {"pid": broker.process.pid, "port": port}
        write_atomically(directory / _RECORD, json.dumps(record))
        # The broker outlives this process: its Popen object must not be queried at exit.
        broker.process.returncode = 0
        return BrokerProcess(directory, broker.process.pid, port)


def status(directory: Path) -> BrokerProcess | None:
    """Find the broker of a directory; None where none runs."""
    directory = directory.resolve()
    try:
        record = json.loads((directory / _RECORD).read_text())
        found = BrokerProcess(directory, int(record["pid"]), int(record["port"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if _is_ours(found) else None


def stop(directory: Path) -> BrokerProcess | None:
    """Stop a directory's broker, and no other process; its data stays. None where none ran."""
    directory = directory.resolve()
    if not directory.is_dir():
        return None
    with _only_one(directory):
        found = status(directory)
        if found is None:
            return None
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(found.pid, number)
            deadline = time.monotonic() + STOP_SECONDS
            while time.monotonic() < deadline:
                if not _is_ours(found):
                    (directory / _RECORD).unlink(missing_ok=True)
                    return found
                time.sleep(0.05)
        raise RuntimeFailure(
            f"the broker (process {found.pid}) does not end",
            where=str(directory),
            hint=f"kill -9 {found.pid}",
        )


def _is_ours(found: BrokerProcess) -> bool:
    return runs(found.pid, str(found.directory / "server.properties"))


@contextlib.contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
