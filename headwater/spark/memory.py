"""Memory that a new process may take: that of the machine, within the limits of this process's cgroups."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import psutil

_LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Files of a cgroup with its limit and its use, of version 2 and 1."""


def memory_free(*, proc: Path = Path("/proc/self"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that are available here; files in a cgroup's cache count as used."""
    free = [int(psutil.virtual_memory().available)]
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return free[0]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        inner = PurePosixPath(path.lstrip("/"))
        for place in (inner, *inner.parents):
            for limit, used in _LIMITS:
                try:
                    bound = (cgroups / controllers / place / limit).read_text().strip()
                    free.append(int(bound) - int((cgroups / controllers / place / used).read_text()))
                except (OSError, ValueError):  # no such cgroup, or no limit ("max")
                    continue
    return max(0, min(free))
