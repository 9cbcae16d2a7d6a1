"""One side of a real link: ``serve ADDRESS DIRECTORY`` writes logs, ``pull ADDRESS DIRECTORY`` copies them.

The server writes RATE bytes a second, BATCH at a time. The other side prints its meter's figures, a
JSON object a line.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from headwater.channels.filelog import FileLog
from headwater.channels.flight import FlightLog
from headwater.channels.linkmeter import LinkMeter
from headwater.channels.logserver import LogServer
from headwater.channels.relay import Relay
from headwater.channels.wire import Credentials, Wire
from headwater.core.address import PLAIN
from tests.conftest import ZONE

BATCH, RATE = 50_000, 500_000
LOGS = ("one", "two")


def serve(address: str, place: Path) -> None:
    """Write the logs, each batch into the next one, until this process ends."""
    logs = [FileLog(place / name, fsync=False) for name in LOGS]
    for log in logs:
        log.create()
    server = LogServer(address, credential=ZONE, find=lambda name: FileLog(place / name))
    print("ready", flush=True)
    random = np.random.default_rng(1)  # incompressible bytes
    for batch in range(1_000_000):
        log = logs[batch % len(logs)]
        log.append(pa.table({"x": random.integers(0, 2**62, BATCH // 8)}), epoch=1, batch=batch)
        time.sleep(BATCH / RATE)
    server.shutdown()


def pull(address: str, place: Path) -> None:
    """Copy the logs and print the link's measurements four times a second."""
    meter = LinkMeter()
    for name in LOGS:
        connect = partial(FlightLog, Wire(f"{PLAIN}{address}", Credentials(ZONE.order_token)), name)
        Relay(connect, name, FileLog(place / f"copy of {name}", fsync=False), reader="r", meter=meter).start()
    while True:
        seen = {"bytes_per_s": meter.bytes_per_s, "capacity": meter.capacity, "delay_s": meter.delay_s}
        print(json.dumps(seen), flush=True)
        time.sleep(0.25)


if __name__ == "__main__":
    {"serve": serve, "pull": pull}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
