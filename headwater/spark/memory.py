"""Memory of this host, and of it that is free: the machine's, within the limits of this process's cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_PROC, _CGROUPS = Path("/proc/self"), Path("/sys/fs/cgroup")
_LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Files of a cgroup with its limit and its use, of version 2 and 1."""


def memory_total(*, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the bytes that this process and those beside it in its cgroups may have."""
    return min((int(psutil.virtual_memory().total), *(limit for limit, _ in _limits(proc, cgroups))))


def memory_free(*, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the bytes that are available here; files in a cgroup's cache count as used."""
    free = int(psutil.virtual_memory().available)
    return max(0, min((free, *(limit - used for limit, used in _limits(proc, cgroups)))))


def _limits(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use of each cgroup of this process that has a limit, in bytes."""
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        inner = PurePosixPath(path.lstrip("/"))
        for place in (inner, *inner.parents):
            for limit, used in _LIMITS:
                at = cgroups / controllers / place
                try:
                    yield int((at / limit).read_text()), int((at / used).read_text())
                except (OSError, ValueError):  # no such cgroup, or no limit ("max")
                    continue
