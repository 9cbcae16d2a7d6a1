"""Name the holder of a lease by its process, so that another one on the same machine sees that it has ended."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import psutil

_STATE, _START = 0, 19
"""Fields of ``/proc/PID/stat`` behind the command: state, and start in ticks since boot."""
_ENDED = "ZX"


def new_holder() -> str:
    """Return a unique name for this process; on Linux it contains the machine's boot, the pid and the start time."""
    name = str(uuid.uuid4())
    try:
        return " ".join((name, _place(), str(os.getpid()), _stat(os.getpid())[_START]))
    except OSError:  # no /proc
        return name


def has_ended(holder: str) -> bool:
    """Return whether a holder was a process of this machine that has ended; False wherever that is not certain.

    Pids are compared only within one boot and one PID namespace: a container sees no process of another. Where
    /proc hides the processes of other users (``hidepid``), a missing file does not prove an end.
    """
    try:
        _, boot, namespace, pid, start = holder.split(" ")
        if f"{boot} {namespace}" != _place():
            return False
    except (ValueError, OSError):
        return False
    try:
        fields = _stat(int(pid))
    except FileNotFoundError:
        return not psutil.pid_exists(int(pid))
    except (ValueError, OSError):
        return False
    return fields[_START] != start or fields[_STATE] in _ENDED


def _place() -> str:
    """Name the boot of the machine and the PID namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
