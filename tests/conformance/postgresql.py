"""A separate PostgreSQL server for tests, where it is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import free_port

SECONDS = 60


def programs() -> Path | None:
    """Find the directory of the server's programs, which Debian keeps out of the path."""
    places = [*Path("/usr/lib/postgresql").glob("*/bin")]
    if found := shutil.which("initdb"):
        places.append(Path(found).parent)
    return next((p for p in sorted(places, reverse=True) if (p / "pg_ctl").exists()), None)


def server() -> Iterator[str]:
    """Yield the URL of a separate server, which accepts all users on loopback."""
    pytest.importorskip("psycopg")
    bin_ = programs()
    if bin_ is None:
        pytest.skip("PostgreSQL's server is not installed")
    user = None
    place = Path(tempfile.mkdtemp(prefix="headwater-postgresql-"))
    if os.geteuid() == 0:  # it does not run as root
        user = "nobody"
        entry = pwd.getpwnam(user)
        os.chown(place, entry.pw_uid, entry.pw_gid)
    port = free_port()

    def do(program: str, *words: str) -> None:
        command = [str(bin_ / program), "-D", str(place / "data"), *words]
        quiet = subprocess.DEVNULL  # a pipe would be held open by the server
        subprocess.run(command, user=user, cwd=place, check=True, timeout=SECONDS, stdin=quiet, stdout=quiet)

    try:
        do("initdb", "--auth=trust", "--username=headwater", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={place}"
        do("pg_ctl", "start", "--wait", "--log", str(place / "log"), "-o", options)
        try:
            yield f"postgresql://headwater@127.0.0.1:{port}/postgres"
        finally:
            do("pg_ctl", "stop", "--mode=immediate")
    finally:
        shutil.rmtree(place, ignore_errors=True)
