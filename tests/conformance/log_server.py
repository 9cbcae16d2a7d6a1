"""Serve the filelogs of a directory in a process of its own, with streams that end after some seconds.

``python -m tests.conformance.log_server DIRECTORY SECONDS``
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from headwater.channels.filelog import FileLog
from headwater.channels.logserver import LogServer
from tests.conftest import ZONE


def main() -> None:
    """Print the port, and serve until the process is ended."""
    home = Path(sys.argv[1])
    sys.modules[LogServer.__module__].FOLLOW_SECONDS = float(sys.argv[2])  # type: ignore[attr-defined]
    find = lambda name: FileLog(home / name, event_time="ts", fsync=False)  # noqa: E731
    server = LogServer("127.0.0.1:0", credential=ZONE, find=find)
    print(server.port, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
