"""Run a controller over zones stored in a file, until the process is killed; tests start it as a subprocess."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from headwater.control import tables
from headwater.control.controller import Controller
from headwater.control.executor import Executor
from headwater.control.store import Store
from headwater.testing.nodes import NodeCall, SimulatedNodes


def linger(call: NodeCall) -> None:
    """Wait a little, so that a kill can hit the middle of a call."""
    time.sleep(0.004)


def main(directory: Path, place: str) -> None:
    tables.SYNCHRONOUS = "OFF"  # a killed process loses no data that the kernel has
    zones = SimulatedNodes(directory / "zones.json", before=linger, after=linger)
    store = Store(place)
    Controller(
        store,
        zones.open,
        lease=0.4,
        poll=0.05,
        executor=lambda ports: Executor(ports, shortest=0.01, longest=0.05, look=0.01),
    ).run(threading.Event())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
