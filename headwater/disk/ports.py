"""Ports and addresses of this machine: free ports, a reserved port, the address towards a cluster."""

from __future__ import annotations

import contextlib
import socket
import sys
from urllib.parse import urlsplit

from headwater.core.errors import Unavailable


def free_ports(count: int) -> list[int]:
    """Return free ports of this machine."""
    with contextlib.ExitStack() as open_:
        probes = [open_.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def keep_port() -> tuple[int, socket.socket]:
    """Reserve a free port until the returned socket is closed: only a server that asks for this port can listen there.

    A Spark takes seconds until it listens; meanwhile another process could take the port, and a client would
    take that process for Spark. On other systems than Linux the port is free, but not reserved.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does: such two may share a port
    kept.bind(("127.0.0.1", 0))
    port = int(kept.getsockname()[1])
    if sys.platform != "linux":
        kept.close()
    return port, kept


def address_towards(master: str) -> str:
    """Return this machine's address as seen from ``spark://host:port,...``, or raise Unavailable."""
    first = urlsplit(master.partition(",")[0])
    try:
        found = socket.getaddrinfo(first.hostname, first.port or 7077, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # nothing is sent
            return str(probe.getsockname()[0])
    except OSError as error:
        raise Unavailable(
            f"cannot reach {master}: {error}", where="spark", hint="check the master's name and the network"
        ) from error
