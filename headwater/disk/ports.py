"""Ports and addresses of this machine: some that are free, one kept for a server, one that others see."""

from __future__ import annotations

import contextlib
import socket
import sys
from urllib.parse import urlsplit

from headwater.core.errors import Unavailable


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


def address_towards(master: str) -> str:
    """Give this machine's address as a ``spark://host:port,...`` sees it, or raise Unavailable."""
    first = urlsplit(master.partition(",")[0])
    try:
        found = socket.getaddrinfo(first.hostname, first.port or 7077, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # nothing is sent
            return str(probe.getsockname()[0])
    except OSError as error:
        raise Unavailable(
            f"there is no way to {master}: {error}", where="spark", hint="is the master's name right?"
        ) from error
