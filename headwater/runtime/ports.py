"""Ports of this machine: some that are free, and one that is kept for a server until it listens there."""

from __future__ import annotations

import contextlib
import socket
import sys


def free_ports(count: int) -> list[int]:
    """Give ports of this machine that nobody listens on."""
    with contextlib.ExitStack() as open_:
        probes = [open_.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def keep_port() -> tuple[int, socket.socket]:
    """Give a free port and what keeps it until closed: only a server that asks for it may listen there.

    A Spark takes seconds to come so far, in which others take many ports, and whoever then waited for Spark
    would take them for it. Not elsewhere than on Linux, where the port is just free.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does: such two may share a port
    kept.bind(("127.0.0.1", 0))
    port = int(kept.getsockname()[1])
    if sys.platform != "linux":
        kept.close()
    return port, kept
