"""A server in a thread: started, and ended with its open connections."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from headwater.core.errors import DeploymentError
from headwater.serving.connections import BoundedConnection, BoundedLoop
from headwater.tls.listener import ListenerTls

STARTS = 120.0
"""Seconds in which the server has to start."""
ENDS = 5.0
"""Seconds for open requests when it ends."""


@contextmanager
def running(
    app: Any,
    listening: socket.socket,
    *,
    option: str,
    tls: ListenerTls | None = None,
    ends: Callable[[], None] = lambda: None,
    **options: Any,
) -> Iterator[threading.Thread]:
    """Serve an app at a socket, and return the thread that does; ``ends`` is called first at the end."""
    if tls is not None:
        options |= {
            "ssl_certfile": tls.certificate,
            "ssl_keyfile": tls.key,
            "loop": f"{BoundedLoop.__module__}:{BoundedLoop.__name__}",
        }
    config = uvicorn.Config(
        app,
        http=BoundedConnection,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(ENDS),
        **options,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="web", daemon=True)
    thread.start()
    try:
        _wait(server, thread, option)
        yield thread
    finally:
        ends()
        server.should_exit = True
        thread.join(2 * ENDS)
        listening.close()


def _wait(server: uvicorn.Server, thread: threading.Thread, option: str) -> None:
    until = time.monotonic() + STARTS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > until:
            raise DeploymentError("the server did not start", where=option, hint="read its messages above")
        with contextlib.suppress(TimeoutError):
            thread.join(0.02)
