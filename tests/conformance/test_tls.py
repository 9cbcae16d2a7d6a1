"""TLS between agents: real handshakes, and every kind of wrong server, to which nothing may be sent."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from headwater.agent.agents import Agents
from headwater.channels.credential import TOKEN_ENV, SiteSecret
from headwater.channels.logserver import LogServer
from headwater.channels.wire import Credentials, Wire
from headwater.continuum.model import Node
from headwater.core.address import PLAIN, TLS
from headwater.core.errors import DeploymentError, Unavailable
from headwater.tls.certificate import own_certificate
from headwater.tls.listener import ListenerTls, listener_tls
from tests.conftest import SITE, ZONE, free_port

ORDER = Credentials(ZONE.order_token, node=ZONE)
"""Of a controller: it verifies an own certificate by its proof."""
GRANTED = Credentials(ZONE.order_token)
"""Of another agent: it knows the fingerprint in the address, and no credential of the node."""


def no_log(id_: str) -> Any:
    raise AssertionError(id_)


def own(directory: Path, **options: Any) -> ListenerTls:
    found = listener_tls("127.0.0.1", directory, asked=True, **{"credential": ZONE, **options})
    assert found is not None
    return found


@contextlib.contextmanager
def serving(tls: ListenerTls | None, listen: str = "127.0.0.1:0") -> Iterator[int]:
    """Serve one request, and yield the port."""
    pair = tls.pair if tls else None
    server = LogServer(listen, credential=ZONE, find=no_log, actions={"hello": lambda body: "here"}, tls=pair)
    try:
        yield server.port
    finally:
        server.shutdown()


def said(address: str, credentials: Credentials = ORDER) -> Any:
    wire = Wire(address, credentials, "E1")
    try:
        return wire.ask("hello", {}, seconds=30)
    finally:
        wire.close()


class Eavesdropper:
    """Records the bytes that arrive through it on the way to a server."""

    def __init__(self, target: int) -> None:
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._target = target
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open += [near, far]
                for one, other, hears in ((near, far, True), (far, near, False)):
                    self._threads.append(threading.Thread(target=self._pass, args=(one, other, hears), daemon=True))
                    self._threads[-1].start()

    def _pass(self, one: socket.socket, other: socket.socket, hears: bool) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if hears:
                    self.heard += data
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in (self._listener, *self._open):
            one.close()


@contextlib.contextmanager
def overheard(target: int) -> Iterator[Eavesdropper]:
    made = Eavesdropper(target)
    try:
        yield made
    finally:
        made.close()


def test_the_controller_recognizes_an_own_certificate_by_the_credential(tmp_path: Path) -> None:
    tls = own(tmp_path)
    with serving(tls) as port, overheard(port) as between:
        wire = Wire(f"{TLS}127.0.0.1:{between.port}", ORDER, "E1")
        assert wire.ask("hello", {}) == "here"
        assert wire.peer_address == f"{TLS}127.0.0.1:{between.port}#{tls.fingerprint}"
        assert said(wire.peer_address, GRANTED) == "here"  # another agent, which was told the fingerprint
        wire.close()
    assert between.heard and ZONE.order_token.encode() not in between.heard
    with serving(None) as port, overheard(port) as between:
        assert said(f"127.0.0.1:{between.port}") == "here"
    assert ZONE.order_token.encode() in between.heard  # so that the assertion above can fail


def test_a_wrong_fingerprint_is_refused(tmp_path: Path) -> None:
    other = own(tmp_path / "other").fingerprint
    with serving(own(tmp_path)) as port:
        with pytest.raises(Unavailable, match=rf"not the pinned one.*{other} is expected; nothing was sent") as refused:
            said(f"127.0.0.1:{port}#{other}", GRANTED)
        assert refused.value.where == f"E1 at 127.0.0.1:{port}" and "correct the fingerprint" in str(refused.value)


@pytest.mark.parametrize("credential", [SITE.of("E2"), SiteSecret.parse("x1-_" * 8 + "abcdefgh", where="x").of("E1")])
def test_a_man_in_the_middle_with_another_credential_is_refused(tmp_path: Path, credential: Any) -> None:
    with serving(own(tmp_path, credential=credential)) as port, overheard(port) as between:
        with pytest.raises(Unavailable, match=r"not made with the credential of E1.*nothing was sent") as refused:
            said(f"{TLS}127.0.0.1:{between.port}")
        assert "headwater token E1" in str(refused.value)


def test_a_man_in_the_middle_with_the_proof_of_the_true_server_is_refused(tmp_path: Path) -> None:
    """The proof is public: it proves nothing for another key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    true = x509.load_pem_x509_certificate(own(tmp_path).certificate.read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    forged = x509.CertificateBuilder(
        true.issuer,
        true.subject,
        key.public_key(),
        true.serial_number,
        true.not_valid_before_utc.replace(tzinfo=None),
        true.not_valid_after_utc.replace(tzinfo=None),
    )
    for extension in true.extensions:
        forged = forged.add_extension(extension.value, extension.critical)
    certificate, secret = tmp_path / "forged.pem", tmp_path / "forged.key"
    encoding = serialization.Encoding.PEM
    certificate.write_bytes(forged.sign(key, hashes.SHA256()).public_bytes(encoding))
    secret.write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    with (
        serving(ListenerTls(certificate, secret, "", own=False)) as port,
        pytest.raises(Unavailable, match="not made with the credential of E1"),
    ):
        said(f"{TLS}127.0.0.1:{port}")


def test_an_unknown_own_certificate_is_refused_by_another_agent(tmp_path: Path) -> None:
    with serving(own(tmp_path)) as port, pytest.raises(Unavailable, match=r"fingerprint .* is not known here"):
        said(f"{TLS}127.0.0.1:{port}", GRANTED)


def test_a_server_without_tls_is_refused() -> None:
    with serving(None) as port, overheard(port) as between:
        with pytest.raises(Unavailable, match="speaks no TLS; nothing was sent") as refused:
            said(f"{TLS}127.0.0.1:{between.port}")
        assert f"grpc+tcp://127.0.0.1:{between.port}" in str(refused.value)
        assert ZONE.order_token.encode() not in between.heard


def test_a_client_without_tls_is_told_so(tmp_path: Path) -> None:
    with (
        serving(own(tmp_path)) as port,
        overheard(port) as between,
        pytest.raises(Unavailable, match=rf"(?s)speaks TLS.*write grpc\+tls://127.0.0.1:{between.port}"),
    ):
        said(f"127.0.0.1:{between.port}")
    assert between.heard and ZONE.order_token.encode() not in between.heard


def test_authorities_verify_certificates_of_users(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    issued = authority.issue_cert("localhost")
    certificate, key, ca, other = (tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem", "other.pem"))
    certificate.write_bytes(b"".join(p.bytes() for p in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    authority.cert_pem.write_to_path(str(ca))
    stranger.cert_pem.write_to_path(str(other))
    tls = own(tmp_path, certificate=certificate, key=key)
    with serving(tls, f"localhost:{free_port()}") as port:
        address = f"{TLS}localhost:{port}"
        assert said(address, Credentials(ZONE.order_token, ca, ZONE)) == "here"
        wire = Wire(address, Credentials(ZONE.order_token, ca), "E1")
        assert wire.ask("hello", {}) == "here" and wire.peer_address == address
        wire.close()
        for credentials in (ORDER, Credentials(ZONE.order_token, other, ZONE)):
            with pytest.raises(Unavailable, match=r"nor a trusted authority.*nothing was sent") as refused:
                said(address, credentials)
            assert "HEADWATER_CA" in str(refused.value)
        with pytest.raises(Unavailable, match="IP address mismatch"):
            said(f"{TLS}127.0.0.1:{port}", Credentials(ZONE.order_token, ca))
        assert said(f"127.0.0.1:{port}#{tls.fingerprint}", GRANTED) == "here"  # pinned, whatever its name
    with pytest.raises(DeploymentError, match="cannot be used"):
        own(tmp_path, certificate=certificate, key=ca)
    with pytest.raises(DeploymentError, match="one of them is missing"):
        own(tmp_path, certificate=certificate)
    with pytest.raises(DeploymentError, match="there is a certificate"):
        listener_tls("10.0.0.4", tmp_path, asked=False, certificate=certificate, key=key)


def test_an_own_certificate_is_kept_and_replaced_with_its_directory(tmp_path: Path) -> None:
    tls = own(tmp_path / "tls")
    assert own(tmp_path / "tls") == tls
    assert stat.S_IMODE(tls.key.stat().st_mode) == 0o600 and stat.S_IMODE(tls.key.parent.stat().st_mode) == 0o700
    secret = tls.pair[1].partition("-----END PRIVATE KEY")[0]
    both = SiteSecret.parse(f"{SITE.secrets[0]},{'y2-_' * 8}abcdefgh", where="x").of("E1")
    during = own(tmp_path / "tls", credential=both)  # the site secret is being rotated: the proofs change, not the key
    assert during.fingerprint != tls.fingerprint and during.pair[1].startswith(secret)
    with serving(during) as port:
        assert said(f"{TLS}127.0.0.1:{port}", ORDER) == "here"
        new = SiteSecret.parse(f"{'y2-_' * 8}abcdefgh", where="x").of("E1")
        wire = Wire(f"{TLS}127.0.0.1:{port}", Credentials(ZONE.order_token, node=new), "E1")
        assert wire.ask("hello", {}) == "here"
        wire.close()
    os.chmod(tls.key, 0o640)
    with pytest.raises(DeploymentError, match="other users may know this key"):
        own(tmp_path / "tls")
    tls.key.unlink()
    assert not own(tmp_path / "tls").pair[1].startswith(secret)
    tls.key.write_text("no key")
    os.chmod(tls.key, 0o600)
    with pytest.raises(DeploymentError, match="it holds no key"):
        own_certificate(tmp_path / "tls")


def test_a_connection_verifies_again_after_the_server_has_changed(tmp_path: Path) -> None:
    with serving(own(tmp_path / "first")) as port:
        address = f"{TLS}127.0.0.1:{port}"
        controller = Wire(address, ORDER, "E1")
        assert controller.ask("hello", {}) == "here"
        reader = Wire(controller.peer_address, GRANTED, "E1")
        assert reader.ask("hello", {}) == "here"
    with serving(second := own(tmp_path / "second"), f"127.0.0.1:{port}"):
        for _ in range(2):  # the first request may only notice that the connection has ended
            with contextlib.suppress(Unavailable):
                assert controller.ask("hello", {}) == "here"
        assert controller.peer_address.endswith(second.fingerprint)
        with contextlib.suppress(Unavailable):
            reader.ask("hello", {})
        with pytest.raises(Unavailable, match="not the pinned one"):
            reader.ask("hello", {})
    controller.close()
    reader.close()


@contextlib.contextmanager
def agent(directory: Path, *options: str) -> Iterator[tuple[dict[str, Any], Path]]:
    """Run the agent of E1 where other machines reach it; yield its record and its log."""
    log = directory / "agent.log"
    command = [sys.executable, "-m", "headwater", "zone", "E1", "--dir", str(directory / "E1"), "--json"]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, "--listen", "0.0.0.0:0", *options],
            env={**os.environ, TOKEN_ENV: ZONE.text},
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline()), log
    finally:
        process.terminate()
        process.communicate()


def test_an_agent_speaks_tls_by_default_where_other_machines_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_ENV, ",".join(SITE.secrets))
    with agent(tmp_path) as (record, log):
        place = record["address"].replace("0.0.0.0", "127.0.0.1")
        assert place.startswith(TLS) and record["certificate"] == own(tmp_path / "E1" / "tls").fingerprint
        reached = Agents(tmp_path / "home").open(Node("E1", "E1", (), at=place))
        assert reached.hello()["node"] == "E1"
        with pytest.raises(Unavailable, match="speaks TLS"):
            Agents(tmp_path / "home").open(Node("E1", "E1", (), at=place.removeprefix(TLS)))
        assert "clear text" not in log.read_text()
    with agent(tmp_path, "--insecure") as (record, log):
        place = record["address"].replace("0.0.0.0", "127.0.0.1")
        assert place.startswith(PLAIN) and record["certificate"] is None
        assert "in clear text (--insecure): whoever reads the network" in log.read_text()
        assert Agents(tmp_path / "home").open(Node("E1", "E1", (), at=place)).hello()["node"] == "E1"
        with pytest.raises(Unavailable, match="speaks no TLS"):
            Agents(tmp_path / "home").open(Node("E1", "E1", (), at=place.replace(PLAIN, TLS)))
