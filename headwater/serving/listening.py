"""Listening sockets: opened by the process that names the address, served by the same one or by another."""

from __future__ import annotations

import socket
import time

from headwater.core.errors import DeploymentError

TRIES = 10
"""Number of ports that are tried, in order, where the first is taken."""
RELEASED = 2.0
"""Seconds that a chosen port may stay taken: the server of a controller that was killed releases it soon."""


LOOPBACK_ADDRESS = "127.0.0.1"


def address(text: str, *, option: str) -> tuple[str, int]:
    """Parse the [HOST:]PORT of an option; raise DeploymentError where it is invalid.

    >>> [address(text, option="--metrics") for text in ("9095", "0.0.0.0:9095", "[::1]:9095")]
    [('127.0.0.1', 9095), ('0.0.0.0', 9095), ('::1', 9095)]
    """
    host, colon, port = text.rpartition(":")
    if (colon and not host) or not port.isdecimal() or int(port) > 65535:
        raise DeploymentError(f"'{text}' is not a [HOST:]PORT", where=option, hint="write 9095, for example")
    return host.strip("[]") or LOOPBACK_ADDRESS, int(port)


def listen(host: str, port: int, *, tries: int = 1, option: str = "--listen", wait: float = 0.0) -> socket.socket:
    """Listen at an address, or at one of the next ports; port 0 takes a free one.

    ``wait``: seconds for which a taken address is tried again. Raises DeploymentError where none is free.
    """
    until = time.monotonic() + wait
    while True:
        found = _listen(host, port, tries)
        if isinstance(found, socket.socket):
            return found
        if time.monotonic() >= until:
            raise DeploymentError(
                f"cannot listen at {host}:{port}{', nor at the next ports' if tries > 1 else ''}: "
                f"{found.strerror or found}",
                where=option,
                hint="give another [HOST:]PORT, or end what listens there",
            )
        time.sleep(0.1)


def _listen(host: str, port: int, tries: int) -> socket.socket | OSError:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = range(port, port + tries) if 0 < port <= 65535 - tries else (port,)
    why: OSError | None = None
    for one in tried:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, one))
            listening.listen(socket.SOMAXCONN)
            return listening
        except OSError as error:
            why = error
            listening.close()
    assert why is not None
    return why


def url_of(listening: socket.socket, host: str, *, tls: bool = False) -> str:
    """Return the URL of a listening socket."""
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{listening.getsockname()[1]}"
