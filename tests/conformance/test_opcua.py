"""The bridge and the sink writer of OPC UA against a real server: quality, times, reconnects, order, refusals."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.channels.filelog import FileLog
from headwater.connectors.opcuabridge import OpcuaBridge
from headwater.connectors.opcuaclient import plain
from headwater.connectors.opcuahistory import between, seen
from headwater.connectors.opcuawriter import OpcuaSinkWriter
from headwater.core.errors import DataflowError, RuntimeFailure, Unavailable
from headwater.dataflow.opcua import OpcuaSource
from headwater.testing import CutLink
from tests.conftest import free_port
from tests.faults import until

asyncua = pytest.importorskip("asyncua")
ua = asyncua.ua

NAMED = {"username_env": "HEADWATER_SECRET_OPC_USER", "password_env": "HEADWATER_SECRET_OPC_PASSWORD"}


class Plc:
    """A server in a process of its own."""

    def __init__(self) -> None:
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"opc.tcp://127.0.0.1:{self.port}/"

    def start(self, *files: str) -> Plc:
        command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("opcua_server.py")), str(self.port)]
        self.process = subprocess.Popen([*command, *files], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if len(files) < 2:
            until(self._answers, "the server")
        return self

    def _answers(self) -> bool:
        assert self.process.poll() is None, "the server ended"
        try:
            self.read("Temp")
        except OSError:
            return False
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    async def _connected(self, act: Any) -> Any:
        client = asyncua.Client(self.url)
        client.set_user("probe")
        client.set_password("secret")
        async with client:
            index = await client.get_namespace_index("urn:plant")
            return await act(lambda name: client.get_node(ua.NodeId(name, index)))

    def read(self, name: str) -> Any:
        async def act(node: Any) -> Any:
            return await node(name).read_value()

        return asyncio.run(self._connected(act))

    def write(self, name: str, *values: Any) -> None:
        async def act(node: Any) -> None:
            for value in values:
                await node(name).write_value(value)

        asyncio.run(self._connected(act))


@pytest.fixture(scope="module")
def shared_plc() -> Iterator[Plc]:
    plc = Plc()
    try:
        yield plc.start()
    finally:
        plc.kill()


@pytest.fixture
def plc(shared_plc: Plc, monkeypatch: pytest.MonkeyPatch) -> Plc:
    monkeypatch.setenv("HEADWATER_SECRET_OPC_USER", "probe")
    monkeypatch.setenv("HEADWATER_SECRET_OPC_PASSWORD", "secret")
    return shared_plc


def source(plc: Plc, *names: str, **settings: Any) -> OpcuaSource:
    nodes = tuple(name if "=" in name else f"nsu=urn:plant;s={name}" for name in names)
    return OpcuaSource(id="opcua_1", url=plc.url, nodes=nodes, interval="50 milliseconds", **{**NAMED, **settings})


class Receiving:
    """Bridges of one source and log, one at a time."""

    def __init__(self, of: OpcuaSource, log: FileLog) -> None:
        self.source, self.log, self.epoch = of, log, 0
        self.bridge: OpcuaBridge | None = None

    def start(self) -> OpcuaBridge:
        self.epoch += 1
        self.bridge = bridge = OpcuaBridge(self.source, location="L1", log=self.log, epoch=self.epoch)
        bridge.start()
        until(lambda: bridge.status().state == "connected", f"a connection: {bridge.status()}")
        return bridge

    def stop(self) -> None:
        if self.bridge is not None:
            self.bridge.stop()

    def rows(self) -> list[dict[str, Any]]:
        batches = self.log.read(self.log.earliest(), self.log.latest())
        return [json.loads(v) for b in batches for v in b.column("value").to_pylist()]

    def values(self) -> list[Any]:
        return [row["value"] for row in self.rows()]


@pytest.fixture
def receiving(tmp_path: Path, plc: Plc) -> Iterator[Receiving]:
    made = Receiving(source(plc, "Temp"), FileLog(tmp_path / "log", fsync=False))
    try:
        yield made
    finally:
        made.stop()


def test_changes_have_quality_and_both_times(plc: Plc, receiving: Receiving) -> None:
    plc.write("Temp", 1.0)
    bridge = receiving.start()
    until(lambda: receiving.values() == [1.0], "the present value")
    at = datetime.datetime(2026, 1, 5, 8, 0, 0, 123456)
    double = ua.VariantType.Double
    plc.write(
        "Temp",
        ua.DataValue(ua.Variant(2.0, double), SourceTimestamp=at),
        ua.DataValue(ua.Variant(float("nan"), double), ua.StatusCode(ua.StatusCodes.UncertainLastUsableValue)),
        ua.DataValue(ua.Variant(3.0, double), ua.StatusCode(ua.StatusCodes.BadSensorFailure)),
        ua.DataValue(ua.Variant(4.0, double), ua.StatusCode(0x480)),  # the flag of a queue that has overflown
        5.0,
    )
    until(lambda: len(receiving.rows()) == 6, "all changes")
    rows = receiving.rows()
    assert [r["value"] for r in rows] == [1.0, 2.0, "NaN", None, 4.0, 5.0]
    assert [r["quality"] for r in rows] == ["good", "good", "uncertain", "bad", "good", "good"]
    assert [r["status"] for r in rows[1:4]] == ["Good", "UncertainLastUsableValue", "BadSensorFailure"]
    assert [r["gap"] for r in rows] == [True, False, False, False, True, False]
    assert rows[1]["source_time"] == "2026-01-05T08:00:00.123456Z"
    assert rows[1]["server_time"] > "2026-01-05T09" and rows[1]["server_time"].endswith("Z")
    assert {r["node"] for r in rows} == {"nsu=urn:plant;s=Temp"}
    until(lambda: bridge.status().stored == 6, "the count of what is stored")
    assert (bridge.status().missed, bridge.status().error) == (1, None)


def test_the_server_keeps_what_is_not_durable_yet(
    plc: Plc, receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk: nothing is acknowledged or asked for meanwhile, so the queue of the node has it."""
    bridge = receiving.start()
    until(receiving.rows, "the present value")
    blocked, commit = threading.Event(), FileLog.commit

    def slow(self: FileLog, *given: Any, **more: Any) -> bool:
        assert blocked.wait(60)
        return commit(self, *given, **more)

    monkeypatch.setattr(FileLog, "commit", slow)
    plc.write("Temp", 0.0)
    until(lambda: bridge.status().received == 2, "the first value")
    plc.write("Temp", *map(float, range(1, 51)))
    assert bridge.status().received == 2, "nothing is taken beyond what is being stored"
    blocked.set()
    until(lambda: receiving.values()[-1] == 50.0, "the rest")
    assert receiving.values()[1:] == [float(v) for v in range(51)]


def test_a_restarted_server_is_found_again_and_the_gap_is_marked(plc: Plc, tmp_path: Path) -> None:
    own = Plc()
    own.start()
    receiving = Receiving(source(own, "Temp", "Count", "nsu=urn:plant;s=None"), FileLog(tmp_path / "log", fsync=False))
    try:
        bridge = receiving.start()
        own.write("Temp", 1.0, 2.0)
        until(lambda: len(receiving.rows()) == 4, "the changes")
        assert "nsu=urn:plant;s=None (BadNodeIdUnknown)" in str(bridge.status().error), "the others are read"
        own.kill()
        until(lambda: bridge.status().state == "connecting", "the loss to be noticed")
        assert f"no OPC UA server at {own.url}" in str(bridge.status().error)
        own.start()
        until(lambda: bridge.status().state == "connected", "the connection")
        own.write("Temp", 3.0)
        until(lambda: receiving.values()[-1] == 3.0, "the new value")
        found = [(r["value"], r["gap"]) for r in receiving.rows() if r["node"].endswith("Temp")]
        assert found == [(20.0, True), (1.0, False), (2.0, False), (20.0, True), (3.0, False)]
        assert bridge.status().connections == 2
    finally:
        receiving.stop()
        own.kill()


def test_a_stopped_bridge_goes_on_with_the_newest_value(plc: Plc, receiving: Receiving) -> None:
    receiving.start()
    plc.write("Temp", 1.0)
    until(lambda: receiving.values()[-1:] == [1.0], "the value")
    receiving.stop()
    plc.write("Temp", 2.0, 3.0)
    receiving.start()
    plc.write("Temp", 4.0)
    until(lambda: receiving.values()[-1] == 4.0, "the last value")
    assert [(r["value"], r["gap"]) for r in receiving.rows()[-3:]] == [(1.0, False), (3.0, True), (4.0, False)]


@pytest.mark.long
def test_what_changes_while_the_connection_is_lost_is_read_from_the_history(plc: Plc, tmp_path: Path) -> None:
    own, link = Plc().start("history"), CutLink()
    link.lead_to(f"127.0.0.1:{own.port}")
    of = dataclasses.replace(source(own, "Temp", "Count"), url=f"opc.tcp://{link.address}/")
    receiving = Receiving(of, FileLog(tmp_path / "log", fsync=False))

    def count(*values: int) -> None:
        own.write("Count", *(ua.Variant(value, ua.VariantType.Int32) for value in values))

    def found(name: str) -> list[tuple[Any, bool]]:
        return [(row["value"], row["gap"]) for row in receiving.rows() if row["node"].endswith(name)]

    try:
        bridge = receiving.start()
        own.write("Temp", 1.0, 2.0)
        count(1)
        until(lambda: len(receiving.rows()) == 5, "the changes")
        for turn, values in enumerate(((3.0, 4.0, 5.0), (), (6.0,))):
            link.cut()
            own.write("Temp", *values)
            count(10 * turn + 2, 10 * turn + 3)
            link.mend(reset=True)
            until(lambda: bridge.status().connections == turn + 2, "the connection")  # noqa: B023
            until(lambda: found("Count")[-1][0] == 10 * turn + 3, "the present value")  # noqa: B023
        until(lambda: found("Temp")[-1][0] == 6.0, "the last value")
        own.write("Temp", 7.0)
        until(lambda: found("Temp")[-1][0] == 7.0, "a change")
        # One that has not changed is there again, and the cut may come a moment late.
        temps = [row for row, before in zip(found("Temp"), [None, *found("Temp")], strict=False) if row != before]
        assert temps == [(20.0, True), *((float(v), False) for v in range(1, 8))]
        assert {(0, True), (1, False), (3, True), (13, True), (23, True)} <= set(found("Count")), "it has no history"
    finally:
        receiving.stop()
        link.close()
        own.kill()


def test_a_history_is_whole_only_where_it_has_both_ends() -> None:
    def value(second: int, number: float) -> Any:
        at = datetime.datetime(2026, 1, 5, 8, 0, second)
        return ua.DataValue(ua.Variant(number, ua.VariantType.Double), SourceTimestamp=at)

    kept = [value(n, float(n)) for n in range(6)]
    ends = [seen(one) for one in kept]
    numbers = lambda hole: ([one.Value.Value for one in hole.values], hole.begins, hole.ends)  # noqa: E731
    assert None not in ends
    assert numbers(between(kept, ends[1], ends[4])) == ([2.0, 3.0], True, True)
    assert numbers(between(kept[2:], ends[1], ends[4])) == ([2.0, 3.0], False, True)
    assert numbers(between(kept[:4], ends[1], ends[4])) == ([2.0, 3.0], True, False)
    assert numbers(between(kept[2:3], ends[2], ends[2])) == ([], True, True)
    assert numbers(between([], ends[2], ends[2])) == ([], False, False)
    assert numbers(between([kept[1], value(1, 9.0), kept[4]], ends[1], ends[4])) == ([9.0], True, True)
    assert seen(ua.DataValue(ua.Variant(1))) is None


def test_a_refusal_is_told_and_the_password_never_shown(
    plc: Plc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_SECRET_OPC_PASSWORD", "hunter2")
    bridge = OpcuaBridge(source(plc, "Temp"), location="L1", log=FileLog(tmp_path / "log"), epoch=1)
    bridge.start()
    try:
        until(lambda: bridge.status().state == "refused", "the refusal")
        assert "refuses: Bad" in str(bridge.status().error)
        assert "hunter2" not in repr(bridge) + repr(bridge.status())
    finally:
        bridge.stop()
    monkeypatch.delenv("HEADWATER_SECRET_OPC_PASSWORD")
    bridge = OpcuaBridge(source(plc, "Temp"), location="L1", log=FileLog(tmp_path / "l2"), epoch=1)
    with pytest.raises(RuntimeFailure, match="HEADWATER_SECRET_OPC_PASSWORD is not set"):
        bridge.start()
    monkeypatch.setitem(sys.modules, "asyncua", None)
    with pytest.raises(Unavailable, match="asyncua is not installed"):
        bridge.start()


@pytest.mark.long
def test_an_encrypted_connection(plc: Plc, tmp_path: Path) -> None:
    from asyncua.crypto.cert_gen import (
        dump_private_key_as_pem,
        generate_private_key,
        generate_self_signed_app_certificate,
    )
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import ExtendedKeyUsageOID

    files = {}
    for who in ("server", "client"):
        key = generate_private_key()
        usages = [ExtendedKeyUsageOID.SERVER_AUTH if who == "server" else ExtendedKeyUsageOID.CLIENT_AUTH]
        names = {"countryName": "CH", "organizationName": "plant"}
        made = generate_self_signed_app_certificate(key, f"urn:plant:{who}", names, [], usages)
        files[who] = str(tmp_path / f"{who}.pem"), str(tmp_path / f"{who}-key.pem")
        Path(files[who][0]).write_bytes(made.public_bytes(Encoding.PEM))
        Path(files[who][1]).write_bytes(dump_private_key_as_pem(key))
    own = Plc().start(*files["server"])
    secured = dict(zip(("certificate", "key"), files["client"], strict=True), server_certificate=files["server"][0])
    receiving = Receiving(source(own, "Temp", **secured), FileLog(tmp_path / "log", fsync=False))
    try:
        receiving.start()
        until(lambda: receiving.values() == [20.0], "the value")
        clear = OpcuaBridge(source(own, "Temp"), location="L1", log=FileLog(tmp_path / "l2"), epoch=1)
        clear.start()
        until(lambda: clear.status().error, "the refusal of clear text")
        clear.stop()
    finally:
        receiving.stop()
        own.kill()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "http://plc"}, "is not the address of an OPC UA server"),
        ({"url": "opc.tcp://me:pw@plc"}, "would be stored and shown"),
        ({"nodes": ()}, "0 nodes"),
        ({"certificate": "/c"}, "encryption needs certificate, key and server_certificate"),
        ({"password_env": "P"}, "a password without a user"),
        ({"type": "dobule"}, "dobule"),
        ({"interval": "soon"}, "soon"),
        ({"queue": 0}, "queue is 0"),
    ],
)
def test_wrong_settings_are_refused_when_the_dataflow_is_written(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(DataflowError, match=said):
        OpcuaSource(id="o", **{"url": "opc.tcp://plc:4840/x", "nodes": ("i=1",), **settings}).output(())


def test_values_as_json() -> None:
    values = [ua.LocalizedText("hot", "en"), b"\x00\xff", [1, 2.5], ua.NodeId(7, 2), ua.VariantType.Byte, 2**63]
    assert [plain(v) for v in values] == ["hot", "AP8=", [1, 2.5], "ns=2;i=7", 3, 2**63]
    json.dumps([plain(v) for v in (*values, float("inf"), ua.Range(1.0, 2.0), datetime.datetime(2026, 1, 1), object())])


# ---------------------------------------------------------------- the sink writer


def sink_writer(plc: Plc, place: Path, node: str | None = None, **more: Any) -> OpcuaSinkWriter:
    place.mkdir(exist_ok=True)
    return OpcuaSinkWriter({"path": str(place), "url": plc.url, "node": node, "lineage": "7", **NAMED, **more})


def put(to: OpcuaSinkWriter, batch: int, values: list[Any], nodes: list[str | None] | None = None) -> None:
    named = {} if nodes is None else {"node": pa.array([n and f"nsu=urn:plant;s={n}" for n in nodes], pa.string())}
    segment = to.open()
    segment.write(pa.RecordBatch.from_pydict({"value": pa.array(values), **named}))
    closed = segment.close()
    assert closed is not None
    to.commit([closed], batch)


def test_values_of_a_node_are_written_in_order_and_a_written_batch_is_not_repeated(
    plc: Plc, receiving: Receiving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plc.write("Temp", -1.0)
    receiving.start()
    place, values = tmp_path / "scratch", [float(v) for v in range(20)]
    to = sink_writer(plc, place, "nsu=urn:plant;s=Temp")
    put(to, 0, values)
    put(to, 0, values)  # the batch that Spark repeats after a crash
    put(sink_writer(plc, place, "nsu=urn:plant;s=Temp"), 0, values)  # in another process
    assert not list(place.glob("*.arrow")), "segments are left"
    with monkeypatch.context() as patch:

        def killed(*args: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr("headwater.connectors.sent.write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            put(to, 1, [50.0, 51.0])
    put(to, 1, [50.0, 51.0])
    put(sink_writer(plc, place, "nsu=urn:plant;s=Temp", lineage="8"), 0, [99.0])
    until(lambda: receiving.values()[-1:] == [99.0], "the last value")
    assert receiving.values() == [-1.0, *values, 50.0, 51.0, 50.0, 51.0, 99.0]


def test_rows_may_name_their_nodes_and_values_become_what_a_node_takes(plc: Plc, tmp_path: Path) -> None:
    to = sink_writer(plc, tmp_path / "scratch")
    put(to, 0, [7, 8, 9], ["Temp", "Count", "Count"])
    assert (plc.read("Temp"), plc.read("Count")) == (7.0, 9)
    put(to, 1, [2.0], ["Count"])
    put(to, 2, ["mill"], ["Name"])
    put(to, 3, [True], ["Flag"])
    put(to, 4, [datetime.datetime(2026, 1, 5, 8, tzinfo=datetime.UTC)], ["When"])
    assert (plc.read("Count"), plc.read("Name"), plc.read("Flag")) == (2, "mill", True)
    assert plc.read("When").replace(tzinfo=None) == datetime.datetime(2026, 1, 5, 8)


@pytest.mark.parametrize(
    ("node", "value", "said"),
    [
        ("Nothing", 1.0, "refuses to write to nsu=urn:plant;s=Nothing: BadNodeIdUnknown"),
        ("Locked", 1.0, "refuses to write to nsu=urn:plant;s=Locked: Bad(NotWritable|UserAccessDenied)"),
        ("Temp", "hot", "it takes Double, and the value is 'hot'"),
        ("Temp", None, "it takes Double, and the value is None"),
        ("Count", 2.5, "it takes Int32, and the value is 2.5"),
        ("Count", 2**31, "it takes Int32"),
        ("Count", float("inf"), "it takes Int32"),
        ("Flag", 1, "it takes Boolean"),
        (None, 1.0, "a row names no node"),
    ],
)
def test_a_row_that_a_node_does_not_take_stops_the_batch(
    plc: Plc, tmp_path: Path, node: str | None, value: Any, said: str
) -> None:
    to = sink_writer(plc, tmp_path / "scratch")
    with pytest.raises(RuntimeFailure, match=said) as caught:
        put(to, 3, [value], [node])
    assert "batch 3" in str(caught.value.where) and "filter such rows" in str(caught.value.hint)
    put(to, 3, [1.5], ["Temp"])  # the corrected dataflow writes the batch
    assert plc.read("Temp") == 1.5


def test_a_server_that_is_away_fails_the_batch_and_keeps_it(
    plc: Plc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, plc.port = plc.port, free_port()
    try:
        away = sink_writer(plc, tmp_path / "scratch", "i=1")
    finally:
        plc.port = port
    with pytest.raises(Unavailable, match="did not take the values"):
        put(away, 0, [1.0])
    monkeypatch.setenv("HEADWATER_SECRET_OPC_PASSWORD", "hunter2")
    with pytest.raises(Unavailable, match="did not take the values: Bad") as caught:
        put(sink_writer(plc, tmp_path / "scratch", "nsu=urn:plant;s=Temp"), 0, [1.0])
    assert "hunter2" not in str(caught.value)
