"""A timeout for workers that wait for Spark's state server.

A worker with state asks the JVM for it at a port of its own task. The JVM accepts only the first
connection there, so a foreign connection to that port, such as from a client of a server that had
it before, leaves the worker without an answer for ever, and with it the batch and the query.
With a timeout the batch ends with an error instead, and is repeated at another port.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient

PATIENCE = 60.0
"""Seconds to wait for an answer, each of which takes milliseconds."""

_connect = StatefulProcessorApiClient.__init__


def _connect_for_a_while(self: StatefulProcessorApiClient, *args: Any, **settings: Any) -> None:
    _connect(self, *args, **settings)
    self._client_socket.settimeout(PATIENCE)


def limit_waiting() -> None:
    """Set the timeout for this process's workers; call it where a processor is defined."""
    StatefulProcessorApiClient.__init__ = _connect_for_a_while  # type: ignore[method-assign]
