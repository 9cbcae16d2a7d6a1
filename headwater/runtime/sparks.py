"""The Sparks of a zone: one for each kind of host, started or found when first needed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from headwater.continuum import Host
from headwater.plan.model import DeploymentPlan, Unit
from headwater.plan.spread import kinds, strongest
from headwater.runtime.endpoint import Endpoint, LocalEndpoint
from headwater.runtime.remote import RemoteEndpoint

_HEAP_SHARE = 0.5
"""Of a host's memory; the rest is for Python workers, RocksDB and the system."""

_LEAST_MB, _MOST_MB, _USUAL_MB = 400, 8192, 1024


class Sparks:
    """Start, find again and end the Sparks below a directory.

    Hosts of a zone that differ in capabilities have a Spark each; those that do not share one.
    ``cores`` and ``memory_mb`` are for all of them, in place of what the hosts' capabilities say.
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
    ) -> None:
        self._directory = directory.resolve()
        self._cores = cores
        self._memory_mb = memory_mb
        self._quick = quick
        self._packages = packages
        self._conf = dict(extra_conf or {})
        self._known: dict[str, Endpoint] = {}
        self._lock = threading.Lock()

    def of(self, plan: DeploymentPlan, unit: Unit) -> Endpoint:
        """Give the Spark that a unit runs on: that of the strongest host it may run on."""
        zone = plan.continuum.zone(unit.zone)
        best = strongest(h for h in zone.hosts if h.name in unit.hosts)
        host = next(k for k in kinds(zone.hosts) if best in k)[0]
        with self._lock:
            known = self._known.get(host.name)
            if known is None:
                own = host.capabilities.get("spark")
                known = self._reach(host, own if isinstance(own, str) else zone.spark)
                self._known[host.name] = known
            return known

    def _reach(self, host: Host, spark: str | None) -> Endpoint:
        directory = self._directory / host.name
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

    def known(self) -> dict[str, Endpoint]:
        """Give those that were started or found so far, by the host that each is named after."""
        with self._lock:
            return dict(self._known)

    def revive(self) -> tuple[Endpoint, ...]:
        """Start those again that have ended by themselves, and give them."""
        with self._lock:
            dead = tuple(e for e in self._known.values() if not e.alive)
            for endpoint in dead:
                endpoint.restart()
            return dead

    def stop(self) -> None:
        """End all that are known."""
        with self._lock:
            for endpoint in self._known.values():
                endpoint.stop()
            self._known.clear()


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
