"""Ship files from an edge to the cloud's file system, as a log shipper does: ``python ship.py ADDRESS PORT``.

Each line on its input is the path of a file, a tab and the directory in which it appears whole. Standard library only.
"""

from __future__ import annotations

import http.client
import sys
from pathlib import Path
from urllib.parse import quote

API = "/webhdfs/v1"


def ship(connection: http.client.HTTPConnection, file: Path, directory: str) -> None:
    """Write a file under a hidden name, then rename it."""
    hidden, name = f"{directory}/.{file.name}", f"{directory}/{file.name}"
    created = f"{API}{quote(hidden)}?op=CREATE&overwrite=true&redirected=true"
    renamed = f"{API}{quote(hidden)}?op=RENAME&destination={quote(name)}"
    for path, body in ((created, file.read_bytes()), (renamed, b"")):
        connection.request("PUT", path, body=body)
        answer = connection.getresponse()
        answer.read()
        if answer.status >= 300:
            raise OSError(f"{name}: the file system answered {answer.status}")


def main(words: list[str]) -> int:
    """Ship until the input ends."""
    connection = http.client.HTTPConnection(words[0], int(words[1]), timeout=120)
    print("ready", flush=True)
    for line in sys.stdin:
        file, directory = line.rstrip("\n").split("\t")
        ship(connection, Path(file), directory)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
