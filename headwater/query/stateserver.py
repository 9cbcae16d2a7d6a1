"""An end to waiting for Spark's state server.

A worker that keeps state asks the JVM for it at a port of its task's own. The JVM takes the first who
connects there and nobody else, so a stranger who knocks at that port, such as a client of a server that had
it before, leaves the worker unanswered for ever, and with it the batch, the query and whoever waits for it.
A worker that gives up ends the batch with an error instead: it is done again, at another port.
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
    """Let this process's workers wait no longer than that; to be called where a processor is defined."""
    StatefulProcessorApiClient.__init__ = _connect_for_a_while  # type: ignore[method-assign]
