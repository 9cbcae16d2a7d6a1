"""Clients of paho-mqtt that wait with ``poll``.

paho waits with ``select``, which takes no file descriptor above 1,023. A process with many channels has more files open
than that, and every connection to a broker would be lost as soon as it was made.
"""

from __future__ import annotations

import contextlib
import select
from typing import Any

from headwater.core.errors import Unavailable
from headwater.disk.credentials import read_secret


def mqtt_client(
    name: str,
    *,
    five: bool,
    tls: bool,
    username_env: str | None,
    password_env: str | None,
    where: str,
    **settings: Any,
) -> Any:
    """Return a client with an account, not connected; ``name``: its client id; ``settings``: of ``paho.Client``.

    Raise Unavailable where paho-mqtt is not installed.
    """
    try:
        from paho.mqtt import client as paho
        from paho.mqtt.enums import CallbackAPIVersion
    except ImportError:
        raise Unavailable("paho-mqtt is not installed", where=where, hint="pip install headwater[mqtt]") from None

    class PollingClient(paho.Client):
        """Replaces the one method that waits; its thread, its connections and its callbacks are paho's."""

        def _loop(self, timeout: float = 1.0) -> Any:
            connection, woken = self._sock, self._sockpairR  # other threads may close them meanwhile
            if connection is None:
                return paho.MQTT_ERR_NO_CONN
            pending = hasattr(connection, "pending") and connection.pending() > 0  # bytes that TLS has read ahead
            poll = select.poll()
            try:
                poll.register(connection, select.POLLIN | (select.POLLOUT if self.want_write() else 0))
                if woken is not None:
                    poll.register(woken, select.POLLIN)
                found = dict(poll.poll(0 if pending else timeout * 1000))
                events = found.get(connection.fileno(), 0)
            except (OSError, ValueError):  # closed
                return paho.MQTT_ERR_CONN_LOST
            if pending or events & ~select.POLLOUT:  # an error or the end is met by reading
                result = self.loop_read()
                if result or self._sock is None:
                    return result
            is_woken = False
            if woken is not None and woken.fileno() in found:
                is_woken = True
                with contextlib.suppress(BlockingIOError):
                    woken.recv(10_000)  # a byte for each message that is to be written
            if is_woken or events & select.POLLOUT:
                result = self.loop_write()
                if result or self._sock is None:
                    return result
            return self.loop_misc()

    client = PollingClient(
        CallbackAPIVersion.VERSION2,
        client_id=name,
        protocol=paho.MQTTv5 if five else paho.MQTTv311,
        **settings,
    )
    user, password = read_secret(username_env, where=where), read_secret(password_env, where=where)
    if user is not None or password is not None:
        client.username_pw_set(user or "", password)
    if tls:
        client.tls_set()  # the system's CAs, or those in SSL_CERT_FILE
    return client
