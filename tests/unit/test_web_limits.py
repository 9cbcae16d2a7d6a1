"""Limits of the server: connections, and the time of requests; and its process beside the controller."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from headwater.app.observe import status
from headwater.cli.serve import TlsOptions, served
from headwater.serving import connections
from headwater.web import guard
from headwater.web.server import serving
from tests.conftest import free_port
from tests.unit.served import V1, fetch, place, trial
from tests.unit.test_cli_control import controller, invoke, tiny

LIMIT = 120.0
"""Seconds for each event: long enough for a busy machine."""


def wait_for(true: object, what: str) -> None:
    assert callable(true)
    until = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.05)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with place(tmp_path), serving(None, "127.0.0.1", 0) as found:
        yield found


@contextmanager
def connected(url: str, text: str = "") -> Iterator[socket.socket]:
    """Open a connection that sends a text."""
    parts = urlsplit(url)
    with socket.create_connection((str(parts.hostname), parts.port or 0), LIMIT) as raw:
        raw.sendall(text.encode())
        yield raw


def read(raw: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    found = b""
    try:
        while more := raw.recv(65536):
            found += more
    except ConnectionResetError:
        pass
    return found


KNOWN = f"Host: localhost\r\nAuthorization: {trial()['Authorization']}\r\n"
HALF = f"GET {V1}/me HTTP/1.1\r\n{KNOWN}"


def is_late(answer: bytes) -> bool:
    """Return whether a connection was closed: with an answer, where the half request had arrived before."""
    return not answer or answer.startswith(b"HTTP/1.1 408 ")


def test_half_a_request_is_answered_and_closed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD", 1.0)
    with connected(url, HALF) as half, connected(url) as silent:
        head, _, body = read(half).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ") and b"application/problem+json" in head
        assert json.loads(body)["type"] == "urn:headwater:problem:request-timeout"
        assert read(silent) == b"", "without a request there is no answer"


def test_the_second_half_may_follow(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD", LIMIT)
    with connected(url, HALF) as raw:
        for part in ("Connection: ", "close\r\n", "\r\n"):
            raw.sendall(part.encode())
        assert read(raw).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_does_not_arrive_ends_its_request(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SILENT", 0.5)
    head = f"POST {V1}/plans HTTP/1.1\r\n{KNOWN}Content-Type: application/json\r\nContent-Length: 99\r\n\r\n"
    with connected(url, head + "{") as raw:
        answer = read(raw)
        assert answer.startswith(b"HTTP/1.1 408 ") and b"the body did not arrive in time" in answer


def test_an_answer_that_is_not_taken_is_cut(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALLED", 1.0)
    gone, lost, many = threading.Event(), connections.BoundedConnection.connection_lost, 400
    # The client's kernel does not learn of the end before it takes the data.
    monkeypatch.setattr(connections.BoundedConnection, "connection_lost", lambda *a: (lost(*a), gone.set()))
    whole = len(fetch("GET", f"{url}{V1}/openapi.json").content) * many
    assert gone.wait(LIMIT), "that client has closed its connection"
    parts = urlsplit(url)
    with socket.socket() as raw:
        raw.settimeout(LIMIT)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect((parts.hostname, parts.port))
        gone.clear()
        raw.sendall(f"GET {V1}/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * many)
        assert gone.wait(LIMIT), "the server holds the connection"
        assert len(read(raw)) < whole


@pytest.mark.parametrize(("limit", "status"), [("PER_ADDRESS", 429), ("TOTAL", 503)])
def test_beyond_the_limits_only_health_is_answered(
    url: str, limit: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, limit, 2)
    with ExitStack() as stack:
        for _ in range(2):
            stream = stack.enter_context(
                httpx.stream("GET", f"{url}{V1}/events", headers=trial(), trust_env=False, timeout=LIMIT)
            )
            assert stream.status_code == 200
        refused = fetch("GET", f"{url}{V1}/me")
        assert refused.status_code == status and refused.headers["Retry-After"]
        assert refused.json()["detail"] == "too many connections are open"
        assert fetch("GET", f"{url}{V1}/health").status_code == 200
    wait_for(lambda: fetch("GET", f"{url}{V1}/me").status_code == 200, "no room after the streams' end")


def test_who_waits_longest_makes_room(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PER_ADDRESS", 2)
    monkeypatch.setattr(connections, "HEAD", LIMIT)
    with connected(url, HALF) as first, connected(url, HALF) as second:
        assert fetch("GET", f"{url}{V1}/me").status_code == 200
        assert is_late(read(first))
        second.sendall(b"Connection: close\r\n\r\n")
        assert read(second).startswith(b"HTTP/1.1 200 ")


# ---------------------------------------------------------------- the process


@contextmanager
def beside(said: list[str]) -> Iterator[str]:
    port = free_port()
    tls = TlsOptions(None, None, None)
    options = {"home": Path(".headwater"), "say": said.append, "trust_code": False, "zones": (), "tls": tls}
    with served(str(port), None, None, **options):  # type: ignore[arg-type]
        yield f"http://127.0.0.1:{port}"


def serves(process: psutil.Process) -> bool:
    try:
        return "headwater.web" in process.cmdline()
    except psutil.Error:  # one of an earlier test, which has ended
        return False


def of(url: str) -> int:
    """Return the process that serves a URL, as its parent finds it."""
    found = [one for one in psutil.Process().children() if serves(one)]
    assert len(found) == 1, url
    return found[0].pid


@pytest.mark.long
def test_half_requests_stop_neither_the_controller_nor_others(tmp_path: Path) -> None:
    said: list[str] = []
    with place(tmp_path), controller(), beside(said) as url, ExitStack() as stack:
        assert fetch("GET", f"{url}{V1}/health").json()["status"] == "ok"
        halves = [stack.enter_context(connected(url, HALF)) for _ in range(400)]
        flow = tiny("L1")
        code, _, err = invoke("apply", *flow, "--yes")
        assert code == 0, err
        health = fetch("GET", f"{url}{V1}/health").json()
        assert health["controller"] is True
        wait_for(lambda: status("tiny")[0].observed_version == 1, "the order is not executed")
        assert fetch("GET", f"{url}{V1}/deployments").json()[0]["name"] == "tiny"
        for half in halves:
            assert is_late(read(half))
    assert not any("ended" in text for text in said)


def test_a_killed_server_starts_again_at_its_address(tmp_path: Path) -> None:
    said: list[str] = []
    with place(tmp_path), beside(said) as url:
        assert fetch("GET", f"{url}{V1}/health").status_code == 200
        first = of(url)
        os.kill(first, signal.SIGKILL)
        told = "the web server was ended by SIGKILL; it starts again in 1 s, the controller goes on"
        wait_for(lambda: told in said, "the end is not told")
        assert fetch("GET", f"{url}{V1}/health").status_code == 200, "requests wait for it"
        assert of(url) != first
    with pytest.raises(httpx.ConnectError):
        fetch("GET", f"{url}{V1}/health")


def test_the_server_ends_with_its_parent(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "headwater", "up", "--listen", str(port), "--home", str(tmp_path)]
    with place(tmp_path):
        parent = subprocess.Popen(command, start_new_session=True)
        try:
            wait_for(lambda: is_open(port), "it does not listen")
            assert fetch("GET", f"http://127.0.0.1:{port}{V1}/health").status_code == 200
        finally:
            parent.kill()
            parent.wait(LIMIT)
        wait_for(lambda: not is_open(port), "the server outlives its parent")


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
