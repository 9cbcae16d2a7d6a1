"""The Spark of a node: started or found when it is first needed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from headwater.continuum.model import Host, Node
from headwater.continuum.sparksettings import SparkSettings
from headwater.core.permissions import OPEN
from headwater.spark.endpoint import Endpoint, LocalEndpoint, end_stale
from headwater.spark.remote import RemoteEndpoint
from headwater.spark.shared import SharedEndpoint
from headwater.spark.smallhost import HEAP_MB

_LOG = logging.getLogger(__name__)
_AGAIN, _AGAIN_MOST = 1.0, 30.0  # seconds before a Spark that ended again is restarted
_STEADY = 30.0  # seconds after a restart before which another end counts as again

_HEAP_SHARE = 0.5
"""The heap's share of a host's memory; the rest is for Python workers, RocksDB and the system."""

_LEAST_MB, _MOST_MB, _USUAL_MB = 400, 8192, 1024


class Sparks:
    """Start, find again and stop a node's Spark below a directory; ``given``: an existing one.

    ``shared``: the directory of a Spark for all agents of this machine. A node of a zone with a Spark or with settings
    of its own does not use it.

    ``cores`` and ``memory_mb`` override the capabilities of the node's host, ``settings`` those of its zone;
    ``secrets`` are the names of the secrets that dataflows may know.
    """

    def __init__(
        self,
        directory: Path,
        *,
        cores: int | None = None,
        memory_mb: int | None = None,
        quick: bool = False,
        settings: SparkSettings | None = None,
        secrets: Sequence[str] = OPEN.secrets,
        shared: Path | None = None,
        given: Endpoint | None = None,
    ) -> None:
        self._directory = directory.resolve()
        self._cores = cores
        self._memory_mb = memory_mb
        self._quick = quick
        self._settings = settings or SparkSettings()
        self._secrets = secrets
        self._shared = shared
        self._given = given
        self._known: tuple[Host, Endpoint] | None = None
        self._ends = 0
        """How often the Spark has ended by itself, each time soon after its start."""
        self._due = 0.0
        """When it is started again, or, while it runs, from when on it counts as steady (monotonic seconds)."""
        self._found_ended = False
        self.ending = ""
        """How the Spark ended last; '' where it has not."""
        self._rests = False
        """Whether the Spark was ended until it is needed again."""
        self._lock = threading.Lock()

    def of(self, node: Node) -> Endpoint:
        """Return the node's Spark; start it again if it rests."""
        with self._lock:
            if self._known is None:
                self._known = (node.host, self._given or self._reach(node))
            elif self._rests:
                self._known[1].restart()
                self._rests = False
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
        settings = node.spark_settings.overridden_by(self._settings)
        found = LocalEndpoint.attach(directory, settings, self._secrets)
        if found is None and self._shared is not None and spark is None and node.spark_settings == SparkSettings():
            joined = SharedEndpoint.join(
                self._shared.resolve(),
                node.name,
                directory,
                cores=self._cores or cores_of(host),
                settings=settings,
                secrets=self._secrets,
                quick=self._quick,
            )
            if joined is not None:
                return joined
        return found or self._start(directory, host, master, settings)

    def _start(self, directory: Path, host: Host, master: str | None, settings: SparkSettings) -> LocalEndpoint:
        return LocalEndpoint.start(
            directory,
            cores=self._cores or cores_of(host),
            memory_mb=self._memory_mb or (HEAP_MB if settings.small else heap_of(host)),
            quick=self._quick,
            small=settings.small,
            extra_conf=dict(settings.conf),
            packages=settings.packages,
            master=master,
            secrets=self._secrets,
        )

    def known(self) -> tuple[Host, Endpoint] | None:
        """Return the Spark with the host that stands for the node; None before it is first needed."""
        with self._lock:
            return self._known

    @property
    def generation(self) -> str:
        """Identify the start of the Spark; '' while there is none. Does not wait for one that starts."""
        known = self._known
        return "" if known is None or self._rests else known[1].generation

    def revive(self) -> Endpoint | None:
        """Restart the Spark if it has ended by itself; return it then, else None.

        The first time at once; a Spark that ends again soon after its start is restarted after 1, 2, 4 ... 30 seconds.
        """
        with self._lock:
            if self._known is None or self._rests or self._known[1].alive:
                return None
            endpoint = self._known[1]
            if not self._found_ended:
                self._found_ended = True
                self.ending = endpoint.ending
                self._wait_longer(again=time.monotonic() < self._due)
                _LOG.warning("Spark in %s has ended: %s", endpoint.directory, self.ending)
            if time.monotonic() < self._due:
                return None
            try:
                endpoint.restart()
            except BaseException:
                self._wait_longer(again=True)
                raise
            self._found_ended, self._due = False, time.monotonic() + _STEADY
            return endpoint

    def _wait_longer(self, *, again: bool) -> None:
        """Set when the Spark is started again; ``again``: it has ended soon after its start, or did not start."""
        self._ends = self._ends + 1 if again else 0
        wait = min(_AGAIN_MOST, _AGAIN * 2.0 ** (self._ends - 1)) if self._ends else 0.0
        self._due = time.monotonic() + wait

    def rest(self) -> bool:
        """End the Spark until it is needed again, unless it was given; return whether this has ended it."""
        with self._lock:
            if self._known is None or self._rests or self._given is not None:
                return False
            self._known[1].stop()
            self._rests = True
            return True

    def stop(self) -> None:
        """Stop the Spark, unless it was given."""
        with self._lock:
            if self._known is not None and self._given is None:
                self._known[1].stop()
            self._known, self._rests = None, False


def cores_of(host: Host) -> int:
    """Return the number of tasks that a host runs at once: its ``n_cpu``, 1 where it has none."""
    cores = host.capabilities.get("n_cpu", 1)
    return max(1, int(cores)) if isinstance(cores, (int, float)) else 1


def heap_of(host: Host) -> int:
    """Return the heap (MiB) for a host's ``memory``; 1 GiB where it has none."""
    memory = host.capabilities.get("memory")
    if isinstance(memory, bool) or not isinstance(memory, (int, float)):
        return _USUAL_MB
    return int(min(_MOST_MB, max(_LEAST_MB, memory * _HEAP_SHARE / 2**20)))
