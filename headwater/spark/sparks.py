"""The Spark of a node: started or found when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from headwater.continuum.model import Host, Node
from headwater.spark.endpoint import Endpoint, LocalEndpoint, end_stale
from headwater.spark.remote import RemoteEndpoint

_HEAP_SHARE = 0.5
"""Of a host's memory; the rest is for Python workers, RocksDB and the system."""

_LEAST_MB, _MOST_MB, _USUAL_MB = 400, 8192, 1024


class Sparks:
    """Start, find again and end a node's Spark below a directory; ``given``: one that is there already.

    ``cores`` and ``memory_mb`` count in place of what the capabilities of the node's host say.
    """

    def __init__(
        self,
        directory: Path,
        *,
        cores: int | None = None,
        memory_mb: int | None = None,
        quick: bool = False,
        packages: tuple[str, ...] = (),
        extra_conf: Mapping[str, str] | None = None,
        given: Endpoint | None = None,
    ) -> None:
        self._directory = directory.resolve()
        self._cores = cores
        self._memory_mb = memory_mb
        self._quick = quick
        self._packages = packages
        self._conf = dict(extra_conf or {})
        self._given = given
        self._known: tuple[Host, Endpoint] | None = None
        self._lock = threading.Lock()

    def of(self, node: Node) -> Endpoint:
        """Give the node's Spark."""
        with self._lock:
            if self._known is None:
                self._known = (node.host, self._given or self._reach(node))
            return self._known[1]

    def _reach(self, node: Node) -> Endpoint:
        host, spark = node.host, node.spark
        directory = self._directory / host.name
        # An older version had a Spark for each kind of hosts.
        for other in self._directory.iterdir() if self._directory.is_dir() else ():
            if other != directory and other.is_dir():
                end_stale(other)
        if spark is not None and spark.startswith("sc://"):
            directory.mkdir(parents=True, exist_ok=True)
            endpoint = RemoteEndpoint(spark, directory, self._cores or cores_of(host))
            endpoint.session()
            return endpoint
        master = spark if spark is not None and spark.startswith("spark://") else None
        return LocalEndpoint.attach(directory) or self._start(directory, host, master)

    def _start(self, directory: Path, host: Host, master: str | None) -> LocalEndpoint:
        return LocalEndpoint.start(
            directory,
            cores=self._cores or cores_of(host),
            memory_mb=self._memory_mb or heap_of(host),
            quick=self._quick,
            packages=self._packages,
            master=master,
            extra_conf=self._conf,
        )

    def known(self) -> tuple[Host, Endpoint] | None:
        """Give it with the host that stands for the node; None while it was not needed."""
        with self._lock:
            return self._known

    def revive(self) -> Endpoint | None:
        """Start it again if it has ended by itself, and give it then."""
        with self._lock:
            if self._known is None or self._known[1].alive:
                return None
            self._known[1].restart()
            return self._known[1]

    def stop(self) -> None:
        """End it, unless it was given."""
        with self._lock:
            if self._known is not None and self._given is None:
                self._known[1].stop()
            self._known = None


def cores_of(host: Host) -> int:
    """Tell how many tasks a host runs at once: its ``n_cpu``, 1 where it says nothing."""
    cores = host.capabilities.get("n_cpu", 1)
    return max(1, int(cores)) if isinstance(cores, (int, float)) else 1


def heap_of(host: Host) -> int:
    """Fit a heap (MiB) to a host's ``memory``; 1 GiB where it says nothing."""
    memory = host.capabilities.get("memory")
    if isinstance(memory, bool) or not isinstance(memory, (int, float)):
        return _USUAL_MB
    return int(min(_MOST_MB, max(_LEAST_MB, memory * _HEAP_SHARE / 2**20)))
