"""The local Kafka broker of a directory: started, stopped, and its state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.spark.brokerprocess import BrokerProcess


def start(directory: Path, *, port: int) -> dict[str, Any]:
    """Start a local Kafka broker that outlives this process; raise DeploymentError where one runs."""
    from headwater.spark import brokerprocess

    return _broker(directory, brokerprocess.start(directory, port=port))


def stop(directory: Path) -> dict[str, Any]:
    """End a directory's broker; return it without pid where none ran."""
    from headwater.spark import brokerprocess

    return _broker(directory, brokerprocess.stop(directory))


def status(directory: Path) -> dict[str, Any]:
    """Return a directory's broker; without pid where none runs."""
    from headwater.spark import brokerprocess

    return _broker(directory, brokerprocess.status(directory))


def _broker(directory: Path, found: BrokerProcess | None) -> dict[str, Any]:
    place = {"directory": str(directory.resolve())}
    if found is None:
        return {**place, "pid": None, "port": None, "address": None}
    return {**place, "pid": found.pid, "port": found.port, "address": found.address}
