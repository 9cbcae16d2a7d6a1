"""The server in its thread: its addresses, its clients, its end; and `headwater up --listen`."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from headwater.app import deployments
from headwater.channels.logserver import LogServer
from headwater.cli import serve
from headwater.control.store import Store
from headwater.control.tables import STORE, resolved_url
from headwater.core.errors import DeploymentError
from headwater.serving import connections, running
from headwater.tls.certificate import own_certificate
from headwater.web import server
from headwater.web.server import serving
from tests.conftest import ZONE, free_port
from tests.unit.served import V1, Client, fetch, token, trial
from tests.unit.test_cli_control import invoke


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (STORE, "HEADWATER_LISTEN"):
        monkeypatch.delenv(name, raising=False)


def ask(url: str) -> int:
    return fetch("GET", f"{url}{V1}/me").status_code


def test_where_a_port_is_taken_the_next_is_tried() -> None:
    said: list[str] = []
    with serving(None, "127.0.0.1", 0) as first:
        port = int(first.rpartition(":")[2])
        with serving(None, "127.0.0.1", port, say=said.append) as second:
            assert second != first and ask(first) == ask(second) == 200
            (text,) = said
            assert text.startswith(f"port {port} is taken: listening at ")
    with pytest.raises(httpx.ConnectError):
        ask(first)


def test_where_all_are_taken_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TRIES", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(DeploymentError, match="cannot listen at") as refused,
            serving(None, "127.0.0.1", taken.getsockname()[1]),
        ):
            pass
        assert refused.value.where == "--listen" and refused.value.hint


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_chosen_address_that_is_taken_is_an_error(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "up", lambda *given, **options: pytest.fail("the controller was started"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        if by == "variable":
            monkeypatch.setenv("HEADWATER_LISTEN", address)
        code, _, err = invoke("up", *(("--listen", address) if by == "option" else ()))
        assert code == 6 and f"cannot listen at {address}: Address already in use" in err
        assert "at --listen" in err and "-> give another [HOST:]PORT, or end what listens there" in err
        with pytest.raises(DeploymentError, match="the port is taken") as refused:
            LogServer(address, credential=ZONE, find=lambda name: pytest.fail("asked"))
        assert refused.value.where == "--listen" and refused.value.hint


def test_on_trial_it_listens_on_this_machine_only() -> None:
    with pytest.raises(DeploymentError, match="no owner has a token"), serving(None, "0.0.0.0", 0):
        pass
    mine = token("a")
    with serving(None, "0.0.0.0", 0, tls=False) as url:
        local = url.replace("0.0.0.0", "127.0.0.1")
        assert ask(local) == 401
        with Client(local, mine) as client:
            assert client.see("/me")["name"] == "a"


def test_a_store_that_loses_its_tokens_is_closed_to_others() -> None:
    token("a")
    with serving(None, "0.0.0.0", 0, tls=False) as url:
        Path(resolved_url(None)).unlink()
        Store(resolved_url(None)).close()
        assert ask(url.replace("0.0.0.0", "127.0.0.1")) == 401


def test_it_ends_while_streams_are_followed() -> None:
    Store(resolved_url(None)).close()
    begun, ended = threading.Event(), threading.Event()

    def follow(url: str) -> None:
        with httpx.stream("GET", f"{url}{V1}/events", headers=trial(), trust_env=False, timeout=60) as stream:
            for _ in stream.iter_lines():
                begun.set()
        ended.set()

    with serving(None, "127.0.0.1", 0) as url:
        thread = threading.Thread(target=follow, args=(url,))
        thread.start()
        assert begun.wait(20)
        before = time.monotonic()
    assert ended.wait(20) and time.monotonic() - before < 2 * running.ENDS + 10
    thread.join(20)


def test_up_serves_beside_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    port = free_port()
    monkeypatch.setattr(deployments, "up", lambda *given, **options: found.append(ask(f"http://127.0.0.1:{port}")))
    code, _, err = invoke("up", "--listen", str(port))
    assert (code, found) == (0, [200]) and f"REST API at http://127.0.0.1:{port}/api/v1" in err, err
    monkeypatch.setattr(serve, "LISTEN", f"127.0.0.1:{port}")
    assert invoke("up")[0] == 0 and found == [200, 200], "it is there unless it is turned off"
    for quiet in (["up", "--listen", "none"], ["up"]):
        monkeypatch.setenv("HEADWATER_LISTEN", "none")
        monkeypatch.setattr(deployments, "up", lambda *given, **options: None)
        code, _, err = invoke(*quiet)
        assert code == 0 and "REST" not in err
    assert invoke("up", "--listen", "here")[0] == 6
    code, _, err = invoke("up", "--listen", f"0.0.0.0:{port}")
    assert code == 6 and "headwater owner admin --token" in err


def test_it_speaks_tls_where_other_machines_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD", 0.5)
    token("a")
    with serving(None, "0.0.0.0", 0) as url:
        assert url.startswith("https://0.0.0.0:")
        host, port = "127.0.0.1", int(url.rpartition(":")[2])
        own = ssl.create_default_context(cafile=tmp_path / ".headwater/tls/certificate.pem")
        with (
            socket.create_connection((host, port)) as plain,
            own.wrap_socket(plain, server_hostname="headwater") as sent,
        ):
            sent.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: headwater\r\nConnection: close\r\n\r\n")
            assert sent.recv(100).startswith(b"HTTP/1.1 200 ")
        with pytest.raises(httpx.TransportError):
            fetch("GET", f"http://{host}:{port}{V1}/health")
        with pytest.raises(httpx.ConnectError, match="self-signed certificate"):  # it has to be trusted explicitly
            fetch("GET", f"https://{host}:{port}{V1}/health")
        with socket.create_connection((host, port), 30) as silent:  # without a handshake, it is ended
            assert silent.recv(1) == b""


def test_up_prints_the_certificate_and_warns_of_clear_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "up", lambda *given, **options: None)
    token("a")
    code, _, err = invoke("up", "--listen", "0.0.0.0:0", "--metrics", "0.0.0.0:0")
    fingerprint = own_certificate(tmp_path / ".headwater/tls", names=[socket.gethostname()]).fingerprint
    assert code == 0 and err.count(fingerprint) == err.count(".headwater/tls/certificate.pem") == 2, err
    assert "REST API at https://0.0.0.0:" in err and "metrics at https://0.0.0.0:" in err
    code, _, err = invoke("up", "--listen", "0.0.0.0:0", "--insecure")
    assert code == 0 and "REST API at http://0.0.0.0:" in err and "in clear text (--insecure): whoever reads" in err
    code, _, err = invoke("up", "--listen", "127.0.0.1:0", "--tls-cert", "here.pem")
    assert code == 6 and "--tls-cert, --tls-key" in err and "give both, or none" in err


def test_without_the_extra_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "NEEDED", ("fastapi_that_is_not_there",))
    monkeypatch.setattr(deployments, "up", lambda *given, **options: None)
    code, _, err = invoke("up")
    assert code == 0 and "REST" not in err
    code, _, err = invoke("up", "--listen", "8470")
    assert code == 7 and "pip install 'headwater[web]'" in err and "fastapi_that_is_not_there" in err


def test_help_loads_none_of_it() -> None:
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from headwater.cli import app\n"
        "assert '--listen' in CliRunner().invoke(app, ['up', '--help']).stdout\n"
        "print(sorted({'fastapi', 'uvicorn', 'starlette', 'sqlalchemy'} & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr
