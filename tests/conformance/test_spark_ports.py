"""The ports of a Spark that Headwater starts: on loopback, and closed to processes without its secret."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import PySparkException

from headwater.spark.endpoint import LocalEndpoint, find_java

_RPC_REQUEST = 3
_HELLO = b"\xac\xed\x00\x05t\x00\x05hello"
"""The serialized Java string "hello"."""

_REWRITER = """
import json, sys
from headwater.state.reshaper import _session
gateway = (spark := _session()).sparkContext._gateway
print(json.dumps([gateway.gateway_parameters.port, gateway._python_proxy_port]), flush=True)
sys.stdin.read()
"""


def listening(roots: Sequence[int], *, descendants: bool = True) -> dict[int, str]:
    """Return the ports at which processes and their descendants accept connections, with their addresses."""
    tree = [psutil.Process(pid) for pid in roots]
    if descendants:
        tree += [child for parent in list(tree) for child in parent.children(recursive=True)]
    found = {}
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            sockets = [c.laddr for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
            found.update({address.port: address.ip for address in sockets})
    return found


def is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def exchange(port: int, sent: bytes) -> bytes:
    """Send bytes to a port; return all it answers until it closes or has sent a whole frame of Spark's."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(sent)
        while len(found) < 8 or len(found) < struct.unpack_from(">q", found)[0]:
            try:
                part = connection.recv(65536)
            except ConnectionResetError:
                break
            if not part:
                break
            found += part
    return found


def told(port: int) -> bytes:
    """Send a message to an endpoint of a Spark driver, in its own protocol, without its secret."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    receiver = b"\x01" + text("127.0.0.1") + struct.pack(">i", port) + text("endpoint-verifier")
    body = b"\x00" + receiver + _HELLO
    frame = bytes([_RPC_REQUEST]) + struct.pack(">qi", 7, len(body)) + body
    return exchange(port, struct.pack(">q", 8 + len(frame)) + frame)


def test_a_stranger_on_the_machine_is_refused_by_every_port(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    session = endpoint.session()
    source: Any = session.readStream.name("rate").format("rate").load()
    writer = source.writeStream.foreachBatch(lambda rows, number: None).trigger(once=True)
    writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
    ports = listening(endpoint.processes)
    assert all(map(is_loopback, ports.values())) and endpoint.port in ports
    of_server = ports.keys() - {endpoint.port}
    assert len(of_server) == 2, "that of messages and that of blocks; neither the UI nor Python nor its state"
    for port in of_server:
        answer = told(port)
        assert b"Unknown challenge message" in answer and b"hello" not in answer
    for token in (None, "", "another"):
        stranger = replace(endpoint, token=token)
        with pytest.raises(PySparkException):
            stranger.session()
    words = " ".join(psutil.Process(endpoint.pid).cmdline())
    assert endpoint.token not in words + (endpoint.directory / "spark.log").read_text()


@pytest.fixture
def rewriter() -> Iterator[tuple[int, list[int]]]:
    """Yield the process of a Spark that rewrites state, and the ports of its gateway to Python."""
    process = subprocess.Popen(
        [sys.executable, "-c", _REWRITER],
        env={
            "JAVA_HOME": str(find_java()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process.pid, json.loads(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def test_the_spark_that_rewrites_state_refuses_strangers_too(rewriter: tuple[int, list[int]]) -> None:
    pid, gateway = rewriter
    ports = listening([pid])
    assert all(map(is_loopback, ports.values())) and ports.keys() >= set(gateway)
    for port in gateway:
        assert exchange(port, b"c\nj\njava.lang.System\ne\n")[:2] in (b"", b"!x"), "closed, or an error"
    of_python = listening([pid], descendants=False).keys()
    for port in of_python - set(gateway):  # the server of accumulators
        assert exchange(port, b"c" * 64) == b""
    of_driver = ports.keys() - of_python - set(gateway)
    assert of_driver
    for port in of_driver:
        assert b"Unknown challenge message" in told(port)
