"""Measure between two zones by TCP: round trips and throughput. Standard library only, to start fast.

python probe.py serve ADDRESS PORT
python probe.py trips ADDRESS PORT COUNT        prints seconds, one per line
python probe.py load ADDRESS PORT STREAMS WARM SECONDS    the server prints bit/s per stream
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time

BLOCK = bytes(256 * 1024)


def serve(address: str, port: int) -> None:
    """Answer `t` with an echo of each byte, `l` by counting bytes between two moments."""
    with socket.create_server((address, port), backlog=64) as server:
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        kind = connection.recv(1)
        if kind == b"t":
            while byte := connection.recv(1):
                connection.sendall(byte)
        elif kind == b"l":
            warm, seconds = (float(x) for x in connection.recv(63, socket.MSG_WAITALL).split())
            buffer = bytearray(len(BLOCK))
            begin, end = time.monotonic() + warm, time.monotonic() + warm + seconds
            count = 0
            while (now := time.monotonic()) < end and (size := connection.recv_into(buffer)):
                count += size if now >= begin else 0
            print(f"{count * 8 / seconds:.0f}", flush=True)


def trips(address: str, port: int, count: int) -> list[float]:
    """Return the seconds of single-byte round trips on a connection that is open."""
    with socket.create_connection((address, port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"t")
        found = []
        for _ in range(count):
            begun = time.monotonic()
            connection.sendall(b"x")
            connection.recv(1)
            found.append(time.monotonic() - begun)
        return found


def load(address: str, port: int, streams: int, warm: float, seconds: float) -> None:
    """Fill the path with this many connections; the server counts the bytes that arrive after the warm-up."""
    header = b"l" + f"{warm} {seconds}".ljust(63).encode()
    threads = [threading.Thread(target=_fill, args=(address, port, header)) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _fill(address: str, port: int, header: bytes) -> None:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=30) as connection:
        connection.sendall(header)
        while True:  # until the server, which has counted long enough, closes
            connection.sendall(BLOCK)


def main(words: list[str]) -> int:
    """Execute the command in the first argument."""
    kind, address, port = words[0], words[1], int(words[2])
    if kind == "serve":
        serve(address, port)
    elif kind == "trips":
        print(*trips(address, port, int(words[3])), sep="\n")
    else:
        load(address, port, int(words[3]), float(words[4]), float(words[5]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
