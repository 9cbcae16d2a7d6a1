"""Processor time of each zone: control groups that count it, and limit it to a share of the machine's cores.

With limits whose sum is below the machine's cores, zones work at the same time as hosts of their own do, and a
zone that waits for a link costs the others nothing. Control groups of version 1 and 2; needs root.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from headwater.core.errors import Unavailable

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
_SECONDS = 5.0  # in which a group's last processes have ended


class ProcessorShares:
    """One control group for each zone. Use it in a `with` statement."""

    def __init__(self, name: str, zones: Mapping[str, int], root: Path = ROOT) -> None:
        """``zones``: for each zone its weight: the number of its host's cores."""
        self.weights = dict(zones)
        self._two = (root / "cgroup.controllers").exists()
        kinds = [root] if self._two else [root / "cpu", root / "cpuacct"]
        self._groups = {zone: [kind / f"headwater-{name}-{zone}" for kind in kinds] for zone in zones}

    def __enter__(self) -> ProcessorShares:
        self.make()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def make(self) -> None:
        """Make the groups; raise Unavailable where this machine has none for processor time."""
        try:
            for zone, groups in self._groups.items():
                for group in groups:
                    group.mkdir(exist_ok=True)  # cpu and cpuacct may be one hierarchy
                self._limit(zone, None)
        except OSError as error:
            self.remove()
            raise Unavailable(
                f"no control group for processor time can be made: {error.strerror or error}",
                where="processor shares",
                hint="run it as root, in a container with --privileged; cgroup v2 needs the controller cpu",
            ) from None

    def entrances(self, zone: str) -> list[Path]:
        """Return the files that a process writes 0 to, to join the zone's groups."""
        return [group / "cgroup.procs" for group in self._groups[zone]]

    def limit(self, cores: float | None) -> dict[str, float]:
        """Share some cores among the zones by weight, and return each share; None lifts all limits."""
        whole = sum(self.weights.values())
        shares = {zone: cores * weight / whole for zone, weight in self.weights.items()} if cores is not None else {}
        for zone in self.weights:
            self._limit(zone, shares.get(zone))
        return shares

    def used(self) -> dict[str, float]:
        """Return the processor seconds that each zone has used."""
        return {zone: self._used(groups) for zone, groups in self._groups.items()}

    def processes(self) -> dict[str, list[int]]:
        """Return the process ids in each zone."""
        return {
            zone: [int(pid) for pid in (groups[0] / "cgroup.procs").read_text().split()]
            for zone, groups in self._groups.items()
        }

    def remove(self) -> None:
        """Remove the groups, once their processes have ended."""
        deadline = time.monotonic() + _SECONDS
        for group in [group for groups in self._groups.values() for group in groups]:
            while group.exists():
                try:
                    group.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.05)

    def _limit(self, zone: str, cores: float | None) -> None:
        group = self._groups[zone][0]
        quota = None if cores is None else max(1000, round(cores * PERIOD_US))
        if self._two:
            (group / "cpu.max").write_text(f"{'max' if quota is None else quota} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))

    def _used(self, groups: list[Path]) -> float:
        if not self._two:
            return int((groups[-1] / "cpuacct.usage").read_text()) / 1e9
        lines = (groups[0] / "cpu.stat").read_text().splitlines()
        return int(dict(line.split() for line in lines)["usage_usec"]) / 1e6
