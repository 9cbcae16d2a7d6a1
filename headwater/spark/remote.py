"""A zone's external Spark: a Spark Connect server, reached at ``sc://host:port``.

Its Python must have Headwater installed, and it must see the disk of the zone's agent: run the
agent on one of its hosts. Parameters of the address are those of Spark Connect (``use_ssl=true``),
except for the token: ``token_env=NAME`` names the environment variable that holds it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import uuid
import warnings
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headwater.connectors.sparkclient import connect
from headwater.core.errors import ContinuumError, Unavailable
from headwater.disk.credentials import read_secret
from headwater.disk.durable import write_atomically
from headwater.spark.endpoint import register_sink
from headwater.spark.serverconf import MOST_PARTITIONS, SESSION_CONF, STREAMING_CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROBE_SECONDS = 2.0


class RemoteEndpoint:
    """The connection to a Spark Connect server; ``directory`` stores the session's id, to adopt its queries."""

    attached = True
    slots: int | None = None
    processes: tuple[int, ...] = ()
    part = 1.0

    def __init__(self, url: str, directory: Path, cores: int) -> None:
        self.url, self._token_env = _split(url)
        self.directory = directory
        self.cores = cores
        self.generation = ""
        self._lock = threading.Lock()
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        """Return the client session that owns the queries, the same after a restart of the agent.

        Raise Unavailable when the server does not answer.
        """
        with self._lock:
            if self._session is None:
                self._session = self._connect()
            return self._session

    def _connect(self) -> SparkSession:
        token = read_secret(self._token_env, where=self.url)
        file = self.directory / "session.json"
        known = _read(file)
        session = _try(self.url, known, token) if known else None
        if session is None:  # the server has forgotten the session, and its queries are gone
            known = str(uuid.uuid4())
            session = self._insist(known, token)
            write_atomically(file, json.dumps({"session": known}))
        for key, value in {**STREAMING_CONF, **SESSION_CONF}.items():
            session.conf.set(key, value)
        session.conf.set("spark.sql.shuffle.partitions", str(min(self.cores, MOST_PARTITIONS)))
        register_sink(session)
        self.generation = f"{session.conf.get('spark.app.id')} {known}"
        return session

    @property
    def alive(self) -> bool:
        """Return whether the server's port accepts connections."""
        place = urlsplit("http" + self.url[2:])
        try:
            with socket.create_connection((str(place.hostname), place.port or 15002), _PROBE_SECONDS):
                return True
        except OSError:
            return False

    @property
    def ending(self) -> str:
        return f"the server at {self.url.partition(';')[0]} does not answer: its operator must start it again"

    def restart(self) -> None:
        """Connect to the server again after its operator has restarted it; raise Unavailable until then."""
        self.stop()
        self.session()

    def stop(self) -> None:
        """Disconnect from the server; its queries go on."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception):  # the server may be gone
                session.client.close()

    def share(self, busy_s: float) -> float:
        """Return 1: its processes are not seen."""
        return 1.0

    def _insist(self, session_id: str, token: str | None) -> SparkSession:
        session = _try(self.url, session_id, token)
        if session is None:
            raise Unavailable(
                "no Spark Connect server answers",
                where=self.url,
                hint="check that it runs, that it accepts this token, and that the continuum has its address",
            )
        return session


def _split(url: str) -> tuple[str, str | None]:
    """Split an address into Spark's URL and the name of the token's variable."""
    place, _, rest = url.partition(";")
    token_env: str | None = None
    kept = []
    for parameter in filter(None, rest.split(";")):
        name, _, value = parameter.partition("=")
        if name == "token":
            raise ContinuumError(
                "an address holds a token",
                where="spark",
                hint="name the environment variable that holds it: sc://host:port/;token_env=NAME",
            )
        if name == "token_env":
            token_env = value
        else:
            kept.append(parameter)
    return ";".join([place.rstrip("/") + "/", *kept]), token_env


def _try(url: str, session_id: str, token: str | None) -> SparkSession | None:
    import grpc
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session = connect(url, session_id, token)
    session.client.set_retry_policies([DefaultPolicy(max_retries=4)])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error that follows reports that it gave up
            session.conf.get("spark.app.id")
    except (PySparkException, grpc.RpcError, OSError):
        session.client.close()
        return None
    return session


def _read(file: Path) -> str | None:
    try:
        return str(json.loads(file.read_text())["session"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
