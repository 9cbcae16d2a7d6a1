"""The number of files and connections that a process may have open."""

from __future__ import annotations

import contextlib
import resource

ENOUGH = 65_536


def allow_open_files() -> None:
    """Let this process open as many files as the system allows it, up to ``ENOUGH``.

    The usual limit of 1,024 is for programs that wait with ``select``. The clients of a channel in Kafka hold about ten
    connections, so some dozens of them would use it up.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    with contextlib.suppress(OSError, ValueError):  # a system with a lower limit of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
