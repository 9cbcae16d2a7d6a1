"""Recognize a process of another command by its pid and its command line."""

from __future__ import annotations

import psutil


def runs(pid: int, argument: str) -> bool:
    """Return whether a process runs with ``argument`` in its command line: a pid alone may have been reused."""
    try:
        process = psutil.Process(pid)
        return bool(process.status() != psutil.STATUS_ZOMBIE) and argument in " ".join(process.cmdline())
    except psutil.Error:
        return False
