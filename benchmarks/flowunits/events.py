"""The origin of events: a server in each edge zone, from which readers pull ranges.

    python events.py ADDRESS PORT

It is a host's own log of events, read by position, as a broker would be. It begins empty and says
`ready`; each line `FIRST COUNT` on its input adds the events FIRST .. FIRST + COUNT - 1. It ends with
its input. Standard library and numpy only, to start fast.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading

import numpy as np

REQUEST = struct.Struct("<cqq")  # 'n': how many are there; 'g' LOW HIGH: these, as int64
COUNT = struct.Struct("<q")
_SECONDS = 120.0  # longer than any wait on a slow link


class Log:
    """Events by position; it only grows."""

    def __init__(self) -> None:
        self._events = np.empty(0, dtype="<i8")

    def add(self, first: int, count: int) -> None:
        """Append `count` events, the first of which is `first`."""
        self._events = np.concatenate([self._events, np.arange(first, first + count, dtype="<i8")])

    def answer(self, kind: bytes, low: int, high: int) -> bytes:
        """Return the answer to a request."""
        events = self._events
        return COUNT.pack(len(events)) if kind == b"n" else events[low:high].tobytes()


def serve(log: Log, server: socket.socket) -> None:
    """Answer each connection in a thread, until the process ends."""
    while True:
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_talk, args=(log, connection), daemon=True).start()


def _talk(log: Log, connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        while len(request := connection.recv(REQUEST.size, socket.MSG_WAITALL)) == REQUEST.size:
            connection.sendall(log.answer(*REQUEST.unpack(request)))


class Client:
    """Connections to event servers, kept open between requests, as those of a broker's client are."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], socket.socket] = {}

    def newest(self, address: str, port: int) -> int:
        """Return the number of events on the server."""
        return int(COUNT.unpack(self._ask(address, port, (b"n", 0, 0), COUNT.size))[0])

    def get(self, address: str, port: int, low: int, high: int) -> np.ndarray:
        """Return the events at positions `low` to `high`, the last excluded."""
        size = 8 * (high - low)
        return np.frombuffer(self._ask(address, port, (b"g", low, high), size), dtype="<i8")

    def _ask(self, address: str, port: int, request: tuple[bytes, int, int], size: int) -> bytearray:
        where = (address, port)
        if where not in self._open:
            self._open[where] = socket.create_connection(where, timeout=_SECONDS)
            self._open[where].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = self._open[where]
        try:
            connection.sendall(REQUEST.pack(*request))
            answer, have = bytearray(size), 0
            while have < size:
                got = connection.recv_into(memoryview(answer)[have:])
                if not got:
                    raise ConnectionError(f"the event server at {address}:{port} has ended")
                have += got
            return answer
        except OSError:
            self._open.pop(where).close()  # the rest of an answer must not begin the next one
            raise


def main(words: list[str]) -> int:
    """Serve until the input ends."""
    log = Log()
    with socket.create_server((words[0], int(words[1])), backlog=64) as server:
        threading.Thread(target=serve, args=(log, server), daemon=True).start()
        print("ready", flush=True)
        for line in sys.stdin:
            first, count = map(int, line.split())
            log.add(first, count)
            print("added", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
