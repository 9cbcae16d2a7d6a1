"""Cores that a process may use: its cpus, and the quota of its cgroups."""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath

import psutil

_CGROUPS = Path("/sys/fs/cgroup")


def quota(text: str) -> float | None:
    """Read a cgroup's ``cpu.max``: how many cores it may use; None where there is no limit.

    >>> quota("150000 100000"), quota("max 100000")
    (1.5, None)
    """
    words = text.split()
    try:
        return int(words[0]) / int(words[1])
    except (ValueError, IndexError, ZeroDivisionError):
        return None


def quota_of(pid: int, *, proc: Path = Path("/proc"), cgroups: Path = _CGROUPS) -> float | None:
    """Return the least quota of a process's cgroups (version 2), in cores; None where there is no limit."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    path = next((line[3:] for line in lines if line.startswith("0::/")), None)
    if path is None:
        return None
    inner = PurePosixPath(path.lstrip("/"))
    found = []
    for place in (inner, *inner.parents):
        try:
            found.append(quota((cgroups / place / "cpu.max").read_text()))
        except OSError:
            continue
    return min((q for q in found if q is not None), default=None)


def share_of(pid: int, *, proc: Path = Path("/proc"), cgroups: Path = _CGROUPS) -> float:
    """Return the cores that a process may use, perhaps a fraction: its cpus, within its quota."""
    cpus, limit = float(len(cpus_of(pid))), quota_of(pid, proc=proc, cgroups=cgroups)
    return cpus if limit is None else min(cpus, limit)


def cores_here() -> int:
    """Return the number of tasks that this process can work on at once: its cores, rounded up."""
    return math.ceil(share_of(os.getpid()))


def cpus_of(pid: int) -> frozenset[int]:
    """Return the cpus that a process may use; all where the system does not report them."""
    try:
        return frozenset(os.sched_getaffinity(pid))
    except (AttributeError, OSError):
        return frozenset(range(psutil.cpu_count() or 1))
