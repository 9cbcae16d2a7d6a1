"""Which addresses speak TLS."""

from __future__ import annotations

import pytest

from headwater.core.address import Address, is_loopback, needs_tls
from headwater.core.errors import DeploymentError

PIN = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "::ffff:127.0.0.2", "localhost", "LOCALHOST."]
)
def test_loopback(host: str) -> None:
    assert is_loopback(host) and not needs_tls(host, None) and needs_tls(host, True)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "10.0.0.4", "192.168.1.1", "::ffff:10.0.0.4", "fe80::1", "edge-1", "localhost.evil.example",
     "127.0.0.1.evil.example", "127.1"],
)  # fmt: skip
def test_reachable_from_other_machines(host: str) -> None:
    assert not is_loopback(host) and needs_tls(host, None) and not needs_tls(host, False)


@pytest.mark.parametrize(
    ("text", "encrypted", "exposed"),
    [
        ("127.0.0.1:7070", False, False),
        ("grpc+tls://127.0.0.1:7070", True, False),
        (f"127.0.0.1:7070#{PIN}", True, False),
        ("grpc+tcp://127.0.0.1:7070", False, False),
        ("10.0.0.4:7070", True, False),
        ("[2001:db8::1]:7070", True, False),
        ("grpc+tls://10.0.0.4:7070", True, False),
        (f"grpc+tls://10.0.0.4:7070#{PIN}", True, False),
        ("grpc+tcp://10.0.0.4:7070", False, True),
    ],
)
def test_who_speaks_tls(text: str, encrypted: bool, exposed: bool) -> None:
    found = Address.parse(text)
    assert (found.encrypted, found.exposed) == (encrypted, exposed)
    assert str(found) == text and Address.parse(str(found)) == found
    assert found.location == f"grpc+{'tls' if encrypted else 'tcp'}://{found.place}"
    moved = found.at("127.0.0.1:9")  # another way to the same server changes nothing of it
    assert (moved.encrypted, moved.pin, moved.place) == (encrypted, found.pin, "127.0.0.1:9")


@pytest.mark.parametrize(
    "text", ["", "10.0.0.4", "http://10.0.0.4:7070", f"grpc+tcp://10.0.0.4:7070#{PIN}", "10.0.0.4:7070#sha256:0a"]
)
def test_refused_addresses(text: str) -> None:
    with pytest.raises(DeploymentError, match="is not an address"):
        Address.parse(text)


def test_fingerprints_as_other_programs_print_them() -> None:
    assert Address.parse("h:1#sha256:" + ":".join(["0A"] * 32)).pin == PIN
