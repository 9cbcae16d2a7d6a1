"""One Spark for several agents of a machine: each has a session and queries of its own there.

The first agent starts it, the last one to leave ends it. All use one directory: ``lock`` is held while the server is
started, found or ended; ``users/NAME`` says that an agent has a session, and how long its batches took in total.
An agent that was killed stays a user: its queries run, and its successor adopts them.
"""

from __future__ import annotations

import contextlib
import fcntl
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.continuum.sparksettings import SparkSettings
from headwater.disk.durable import make_directory, write_atomically
from headwater.spark.cores import cores_here
from headwater.spark.endpoint import LocalEndpoint
from headwater.spark.memory import memory_total
from headwater.spark.serverconf import MOST_PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HEAP_MB = 2048
_HEAP_SHARE = 0.25
"""Heap of the shared Spark, at most, and its share of the machine's memory."""


class SharedEndpoint:
    """An agent's use of a shared Spark."""

    slots: int | None = None
    """Not known: the queries of others hold some."""

    def __init__(self, directory: Path, user: str, place: Path, cores: int, options: dict[str, Any]) -> None:
        """``place``: the agent's own directory, which keeps the id of its session; ``cores``: those of its host."""
        self.directory = directory
        self.cores = cores
        self.attached = False
        self._user = directory / "users" / user
        self._session_file = place / "session"
        self._options = options
        self._server: LocalEndpoint | None = None
        self._session: SparkSession | None = None
        self._connecting = threading.Lock()
        self._shares: dict[str, float] = {}

    @classmethod
    def join(
        cls,
        directory: Path,
        user: str,
        place: Path,
        *,
        cores: int,
        settings: SparkSettings,
        secrets: Sequence[str],
        quick: bool,
    ) -> SharedEndpoint | None:
        """Use the Spark of a directory, which is started if it does not run.

        Return None where others use it with other settings or secrets. Raise Unavailable as ``LocalEndpoint.start``.
        """
        make_directory(directory / "users")
        make_directory(place)
        all_cores = cores_here()
        options: dict[str, Any] = {
            "cores": all_cores,
            "memory_mb": int(min(float(_HEAP_MB), memory_total() * _HEAP_SHARE / 2**20)),
            "quick": quick,
            "extra_conf": dict(settings.conf),
            "packages": settings.packages,
            "secrets": secrets,
        }
        self = cls(directory, user, place, min(cores, all_cores), options)
        with self._alone():
            found = LocalEndpoint.attach(directory, settings, secrets)
            if found is None and self._others() and LocalEndpoint.attach(directory) is not None:
                return None
            self._use(found)
        return self

    def _use(self, found: LocalEndpoint | None) -> None:
        """Use a running server, or start one; a session is found again where the server may still have it."""
        known = self._session_file.read_text() if self._session_file.exists() else ""
        self.attached = found is not None and bool(known)
        self._server = found or LocalEndpoint.start(self.directory, **self._options)
        self._server.session_id = known if self.attached else str(uuid.uuid4())
        write_atomically(self._session_file, self._server.session_id)
        if not self._user.exists():
            write_atomically(self._user, "0", fsync=False)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other agents from starting and ending the server meanwhile."""
        with (self.directory / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _others(self) -> list[Path]:
        users = (self.directory / "users").glob("[!.]*")
        return sorted(file for file in users if file != self._user)

    @property
    def server(self) -> LocalEndpoint:
        """The server with this agent's session."""
        assert self._server is not None
        return self._server

    @property
    def processes(self) -> tuple[int, ...]:
        return self.server.processes

    @property
    def generation(self) -> str:
        return self.server.generation

    @property
    def alive(self) -> bool:
        return self.server.alive

    @property
    def ending(self) -> str:
        return self.server.ending

    def session(self) -> SparkSession:
        """Return the client session, with Headwater's sink registered."""
        with self._connecting:
            if self._session is None:
                self._session = self._connect()
            return self._session

    def _connect(self) -> SparkSession:
        key, value = "spark.sql.shuffle.partitions", str(min(self.cores, MOST_PARTITIONS))
        session = self.server.session()
        try:
            session.conf.set(key, value)
        except Exception as error:
            if "INVALID_HANDLE" not in str(error):
                raise
            # The server has ended the session, which nobody used for long.
            self.server.leave(gracefully=False)
            self.server.session_id = str(uuid.uuid4())
            write_atomically(self._session_file, self.server.session_id)
            session = self.server.session()
            session.conf.set(key, value)
        return session

    def restart(self) -> None:
        """Start the server again, or use the one that another agent has started again."""
        self._session = None
        self.server.leave(gracefully=False)
        with self._alone():
            self._session_file.unlink(missing_ok=True)
            self._use(LocalEndpoint.attach(self.directory))

    def stop(self) -> None:
        """End this agent's queries and its session; end the server if no other agent uses it."""
        with self._alone():
            self._session = None
            self._user.unlink(missing_ok=True)
            self._session_file.unlink(missing_ok=True)
            if self._others():
                self.server.leave(gracefully=self.server.alive)
            else:
                self.server.stop()

    def share(self, busy_s: float) -> float:
        """Return this agent's share of the core time since the last call, by the seconds that batches took.

        ``busy_s``: those of this agent's batches so far. Without batches all agents have equal shares.
        """
        if self._shares.get(self._user.name) != busy_s:
            with contextlib.suppress(OSError):
                write_atomically(self._user, str(busy_s), fsync=False)
        now = {file.name: seconds for file in self._others() if (seconds := _seconds(file)) is not None}
        now[self._user.name] = busy_s
        spent = {name: max(0.0, seconds - self._shares.get(name, seconds)) for name, seconds in now.items()}
        self._shares = now
        total = sum(spent.values())
        return spent[self._user.name] / total if total > 0 else self.part

    @property
    def part(self) -> float:
        """This agent's part of the Spark's memory."""
        return 1.0 / (1 + len(self._others()))


def _seconds(file: Path) -> float | None:
    try:
        return float(file.read_text())
    except (OSError, ValueError):
        return None
