#!/opt/headwater/bin/python3 -I
"""Say whether the agent or controller of this container answers; exit 1 where it does not."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from urllib.request import urlopen

SECONDS = 5.0


def words() -> list[str]:
    """Return the command line of the `headwater` that runs here, without the program."""
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda p: int(p.name)):
        try:
            parts = [part.decode(errors="replace") for part in (process / "cmdline").read_bytes().split(b"\0")]
        except OSError:
            continue
        if (at := next((i for i, p in enumerate(parts) if Path(p).name == "headwater"), None)) is not None:
            return parts[at + 1 :]
    return []


def option(given: list[str], name: str, otherwise: str) -> str:
    """Return the value of an option in a command line."""
    for word, after in zip(given, [*given[1:], ""], strict=True):
        if word == name:
            return after
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return otherwise


def main() -> int:
    """Ask what runs here."""
    command, *given = words() or [""]
    try:
        if command == "zone":
            host, _, port = option(given, "--listen", "127.0.0.1:7070").rpartition(":")
            place = ("127.0.0.1" if host in ("", "0.0.0.0", "::") else host, int(port))
            socket.create_connection(place, SECONDS).close()
        elif command == "up" and (listen := option(given, "--listen", "127.0.0.1:8470")).startswith("127."):
            urlopen(f"http://{listen}/api/v1/health", timeout=SECONDS).close()
        elif command != "up":
            print(f"neither an agent nor a controller runs here: {command!r}")
            return 1
    except OSError as error:
        print(f"{command}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
