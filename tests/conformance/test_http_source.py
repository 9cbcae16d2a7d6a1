"""The bridge of HTTP requests: what is answered 200 is stored once, also through kills; back-pressure, tokens, TLS."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.agent.unitbridges import UnitBridges
from headwater.channels.base import ChannelLimits
from headwater.channels.filelog import FileLog
from headwater.connectors.deadletters import dead_letters_of
from headwater.connectors.httpbridge import HttpBridge
from headwater.connectors.httplistener import HttpListener
from headwater.connectors.reasons import NOT_UTF8
from headwater.connectors.replaying import ReplayedSource, ReplayRequest, replay
from headwater.core.errors import DataflowError, DeploymentError, RuntimeFailure
from headwater.dataflow.httpsource import HttpSource
from headwater.disk.layout import Layout
from headwater.disk.settings import UnitSettings
from tests.conftest import free_port
from tests.faults import until
from tests.unit.test_deadletters import put, rows

ROOT = Path(__file__).resolve().parents[2]


class Plant:
    """One endpoint, its log, and the bridges that serve it one after the other."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.home, self.port, self.epoch = directory, free_port(), 0
        address = f"127.0.0.1:{self.port}/rows/{{location}}"
        self.source = HttpSource(id="http_1", **{"address": address, "schema_text": "v bigint", **settings})
        self.log = FileLog(directory / "spool" / "log")
        self.bridge: HttpBridge | None = None
        self.client = httpx.Client(timeout=60)

    def start(self, *, same_epoch: bool = False, **settings: Any) -> HttpBridge:
        self.epoch += not same_epoch
        self.bridge = HttpBridge(self.source, location="L1", log=self.log, epoch=self.epoch, home=self.home, **settings)
        self.bridge.start()
        return self.bridge

    def stop(self) -> None:
        if self.bridge is not None:
            self.bridge.stop()
        self.client.close()
        self.client = httpx.Client(timeout=60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/rows/L1"

    def post(self, body: str | bytes, key: str | None = None, **headers: str) -> httpx.Response:
        more = {} if key is None else {"Idempotency-Key": key}
        return self.client.post(self.url, content=body, headers={**more, **headers})

    def stored(self) -> list[str]:
        return [v for b in self.log.read(self.log.earliest(), self.log.latest()) for v in b.column("value").to_pylist()]


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    made = Plant(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def lines(start: int, end: int) -> list[str]:
    return [json.dumps({"v": v}) for v in range(start, end)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"v": 1}', ['{"v": 1}']),
        (b'\n{"v": 1}\r\n\n{"v":  2.50}\n', ['{"v": 1}', '{"v":  2.50}']),
        (b'[{"v": 1}, {"v": 12345678901234567890123}]', ['{"v": 1}', '{"v": 12345678901234567890123}']),
        (b' [ {"v": 1} , [2], "x" ] ', ['{"v": 1}', "[2]", '"x"']),
        (b'{\n "v": 1\n}', ['{\n "v": 1\n}']),
        (b'{"v": 1}\nno json\n{"v": 2}', ['{"v": 1}', "no json", '{"v": 2}']),
        (b'[{"v": 1}, {"v": }, {"v": 2}]', ['{"v": 1}', '{"v": }, {"v": 2}]']),
        (b'[{"v": 1}] more', ['{"v": 1}', "more"]),
        (b'{"v": 1}\n{"v": "\xff"}', ['{"v": 1}', f"{NOT_UTF8}eyJ2IjogIv8ifQ=="]),
        (b"[" * 100_000, ["[" * 99_999]),
        (b"[]", []),
        (b"", []),
    ],
)
def test_every_form_of_a_body_is_stored_record_by_record(plant: Plant, body: bytes, expected: list[str]) -> None:
    plant.start()
    answer = plant.post(body)
    assert (answer.status_code, answer.json()) == (200, {"rows": len(expected)})
    assert plant.stored() == expected
    (topic,) = {t for b in plant.log.read(0, plant.log.latest()) for t in b.column("topic").to_pylist()} or {"/rows/L1"}
    assert topic == "/rows/L1"


@pytest.mark.parametrize("same_epoch", [False, True])
def test_a_request_that_is_sent_again_is_answered_as_before_and_stored_once(plant: Plant, same_epoch: bool) -> None:
    plant.start()
    for _ in range(2):
        answer = plant.post("\n".join(lines(0, 3)), key="a")
        assert (answer.status_code, answer.json()) == (200, {"rows": 3})
    with ThreadPoolExecutor(8) as pool:  # also while the first one waits for its answer
        together = list(pool.map(lambda _: plant.post('{"v": 3}', key="b").status_code, range(8)))
    assert together == [200] * 8
    assert plant.post('{"v": 9}', key="a").status_code == 422
    plant.stop()
    bridge = plant.start(same_epoch=same_epoch)
    assert plant.post("\n".join(lines(0, 3)), key="a").json() == {"rows": 3}
    assert plant.post('{"v": 9}', key="a").status_code == 422
    assert plant.post('{"v": 3}', key="b").json() == {"rows": 1}
    assert plant.stored() == lines(0, 4)
    assert bridge.status().repeated == 4
    assert [plant.post('{"v": 4}').status_code for _ in range(2)] == [200, 200], "without a key each one counts"
    assert plant.stored() == [*lines(0, 5), *lines(4, 5)]


def test_the_newest_keys_are_kept(plant: Plant) -> None:
    plant.start(kept=3)
    for v in range(9):
        assert plant.post(json.dumps({"v": v}), key=str(v)).status_code == 200
    file = plant.home / "spool" / "keys" / "1.jsonl"
    assert sum(len(json.loads(line)[2]) for line in file.read_text().splitlines()) <= 6
    plant.stop()
    plant.start(kept=3)
    assert not file.exists()
    for v in (6, 8):
        assert plant.post(json.dumps({"v": v}), key=str(v)).status_code == 200
    assert plant.stored() == lines(0, 9)
    plant.post('{"v": 5}', key="5")
    assert plant.stored() == [*lines(0, 9), *lines(5, 6)]


_BRIDGE = """
import os, sys, threading
from pathlib import Path
from headwater.channels.filelog import FileLog
from headwater.connectors.httpbridge import HttpBridge
from headwater.dataflow.httpsource import HttpSource
path, address, epoch, point = sys.argv[1:]
commit, left = FileLog.commit, [3]
def killing(self, *given, **more):
    left[0] -= 1
    if point == "before" and not left[0]:
        os.kill(os.getpid(), 9)
    done = commit(self, *given, **more)
    if point == "after" and not left[0]:
        os.kill(os.getpid(), 9)
    return done
FileLog.commit = killing
source = HttpSource(id="http_1", address=address, schema_text="v bigint")
log = FileLog(Path(path) / "log")
HttpBridge(source, location="L1", log=log, epoch=int(epoch), home=Path(path)).start()
threading.Event().wait()
"""


@pytest.mark.parametrize("point", [*(pytest.param(p, marks=pytest.mark.long) for p in ("before", "any")), "after"])
def test_kills_in_the_middle_of_requests_lose_and_double_nothing(plant: Plant, point: str) -> None:
    """Kill it before a commit, after one whose answer is not sent, and at any point, while clients send again."""
    over, epochs = threading.Event(), iter(range(1, 100))
    process: subprocess.Popen[bytes] | None = None

    def serve() -> subprocess.Popen[bytes]:
        given = [str(plant.home / "spool"), plant.source.address, str(next(epochs)), point]
        return subprocess.Popen([sys.executable, "-c", _BRIDGE, *given], cwd=ROOT)

    def send(number: int) -> int:
        body = "\n".join(lines(number * 5, number * 5 + 5))
        while not over.wait(0.02):
            try:
                if plant.post(body, key=f"request {number}").status_code == 200:
                    return number
            except httpx.HTTPError:
                continue
        return -1

    try:
        process = serve()
        with ThreadPoolExecutor(4) as pool:
            sent = [pool.submit(send, number) for number in range(40)]
            try:
                kills = 5 if point == "any" else 1
                for kill in range(kills):
                    if point == "any":
                        until(lambda least=5 * (kill + 1): sum(s.done() for s in sent) >= least, "some answers")
                        process.kill()
                    process.wait(60)
                    process = serve() if kill < kills - 1 else None
                plant.epoch = 50
                plant.start()
                assert sorted(s.result(60) for s in sent) == list(range(40))
            finally:
                over.set()
    finally:
        if process is not None:
            process.kill()
            process.wait(10)
    got = plant.stored()
    assert len(got) == 200 and set(got) == set(lines(0, 200)), "each row is stored once"
    starts = [got.index(line) for line in lines(0, 200)[::5]]
    assert all(got[at : at + 5] == lines(n * 5, n * 5 + 5) for n, at in enumerate(starts)), "requests stay together"


def test_a_full_log_asks_for_patience_and_loses_nothing(plant: Plant) -> None:
    plant.log.register("reader")
    plant.log.limits = ChannelLimits(max_bytes=1)
    bridge = plant.start()
    assert plant.post('{"v": 0}', key="0").status_code == 200  # an empty log takes a batch of any size
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(plant.post, '{"v": 1}', "1")
        until(lambda: bridge.status().error, "a full log")
        for _ in range(3):
            refused = plant.post('{"v": 2}', key="2")
            assert refused.status_code == 429 and int(refused.headers["Retry-After"]) >= 1
            assert "full" in refused.json()["detail"]
        assert plant.post('{"v": 0}', key="0").status_code == 200, "what is stored is answered all the same"
        got: list[str] = []

        def drain() -> bool:
            latest = plant.log.latest()
            for batch in plant.log.read(plant.log.readers()["reader"], latest):
                got.extend(batch.column("value").to_pylist())
            plant.log.advance("reader", latest)
            return len(got) >= 2

        until(drain, "room for the second")
        assert held.result(60).status_code == 200
    until(lambda: bridge.status().error is None, "room")
    assert plant.post('{"v": 2}', key="2").status_code == 200
    until(lambda: drain() and len(got) >= 3, "the third")
    assert got == lines(0, 3)


def test_a_full_disk_is_waited_for(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    bridge = plant.start()
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        patch.setattr("os.pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        held = pool.submit(plant.post, '{"v": 1}', "1")
        until(lambda: "No space left" in (bridge.status().error or ""), "the full disk")
        patch.undo()
        assert held.result(60).status_code == 200
    assert plant.stored() == lines(1, 2)


def test_a_stopping_endpoint_answers_what_it_has_and_takes_no_more(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.connectors.bridge.STOP_SECONDS", 0.1)
    plant.log.register("reader")
    plant.log.limits = ChannelLimits(max_bytes=1)
    bridge = plant.start()
    plant.post('{"v": 0}')
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(plant.post, '{"v": 1}', "1")
        until(lambda: bridge.status().error, "a full log")
        bridge.stop()
        assert held.result(60).status_code == 503
    with pytest.raises(httpx.ConnectError):
        plant.post('{"v": 2}')
    assert plant.stored() == lines(0, 1)


def test_only_the_token_lets_rows_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant = Plant(tmp_path, token_env="HEADWATER_SECRET_ROWS", max_body=100)
    with pytest.raises(RuntimeFailure, match="HEADWATER_SECRET_ROWS is not set"):
        plant.start()
    monkeypatch.setenv("HEADWATER_SECRET_ROWS", "hunter2")
    bridge = plant.start()
    good = {"Authorization": "Bearer hunter2"}
    try:
        for wrong in ({}, {"Authorization": "Bearer hunter"}, {"Authorization": "Basic hunter2"}):
            answer = plant.post('{"v": 1}', **wrong)
            assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
            assert "hunter" not in answer.text
        assert plant.post('{"v": 1}', **good).status_code == 200
        assert plant.post("x" * 101, **good).status_code == 413
        with httpx.Client() as client:  # a body whose length is not told, then another request on the connection
            chunked = client.post(plant.url, content=iter([b"x" * 60, b"x" * 60]), headers=good)
            assert chunked.status_code == 413
            assert client.post(plant.url, content='{"v": 2}', headers=good).status_code == 200
        assert plant.post("x", **good, **{"Content-Encoding": "gzip"}).status_code == 415
        assert plant.post("x", key="k" * 256, **good).status_code == 400
        assert httpx.get(plant.url, headers=good).status_code == 405
        assert httpx.post(plant.url + "/x", content="{}", headers=good).status_code == 404
        assert plant.stored() == ['{"v": 1}', '{"v": 2}']
        assert bridge._reading == 0, "memory of refused bodies is free again"
        assert "hunter2" not in repr(bridge) + repr(bridge.status()) + repr(plant.source)
    finally:
        plant.stop()


@pytest.mark.parametrize("limit", ["_BODY_SILENT", "_BODY_WHOLE"])
def test_half_a_body_does_not_wait_for_ever(plant: Plant, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(f"headwater.connectors.httpbridge.{limit}", 0.1)
    bridge = plant.start()
    with socket.create_connection(("127.0.0.1", plant.port), 30) as half:
        half.sendall(b"POST /rows/L1 HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n{")
        assert half.recv(100).startswith(b"HTTP/1.1 408 ")
    with socket.create_connection(("127.0.0.1", plant.port), 30) as half:
        half.sendall(b"POST /rows/L1 HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n{")
    until(lambda: bridge._reading == 0, "the memory")
    assert plant.post('{"v": 1}').status_code == 200
    assert plant.stored() == ['{"v": 1}']


def test_tls_with_its_own_certificate_and_two_sources_at_one_address(tmp_path: Path) -> None:
    one = Plant(tmp_path / "one", tls=True)
    two, three = Plant(tmp_path / "two"), Plant(tmp_path / "three")
    two.source = HttpSource(**{**vars(one.source), "id": "http_2", "address": f"127.0.0.1:{one.port}/other"})
    three.source = HttpSource(**{**vars(one.source), "address": f"127.0.0.1:{one.port}/other", "tls": None})
    one.start()
    two.home = one.home
    two.start()
    try:
        certificate = HttpListener.certificate("127.0.0.1", one.port)
        trusting = ssl.create_default_context(cafile=str(certificate))
        trusting.check_hostname = False
        with httpx.Client(verify=trusting) as client:
            for path in ("rows/L1", "other"):
                assert client.post(f"https://127.0.0.1:{one.port}/{path}", content='{"v": 1}').status_code == 200
        assert one.stored() == two.stored() == ['{"v": 1}']
        with pytest.raises(DeploymentError, match="has other settings for TLS"):
            three.start()
        three.source = two.source
        three.home = one.home
        with pytest.raises(DeploymentError, match="another source has the endpoint"):
            three.start()
        one.stop()
        with httpx.Client(verify=trusting) as client:
            assert client.post(f"https://127.0.0.1:{one.port}/rows/L1", content="{}").status_code == 404
            assert client.post(f"https://127.0.0.1:{one.port}/other", content='{"v": 2}').status_code == 200
    finally:
        three.stop()
        two.stop()
        one.stop()


def test_a_taken_port_is_told(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.connectors.httplistener.RELEASED", 0.1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", plant.port))
        taken.listen()
        with pytest.raises(DeploymentError, match=f"cannot listen at 127.0.0.1:{plant.port}") as caught:
            plant.start()
    assert "read.http" in str(caught.value.hint)
    plant.start()
    assert plant.post('{"v": 1}').status_code == 200


@pytest.mark.parametrize("tls", [None, True])
def test_a_corrected_record_is_replayed_through_the_endpoint(tmp_path: Path, tls: bool | None) -> None:
    plant, dead = Plant(tmp_path, tls=tls), tmp_path / "dead"
    put(dead, 0, rows('{"v": "x"}', operator="http_1", source="http:/rows/L1", location="L1", format="json"))
    (letter,) = dead_letters_of(dead)

    def replayed(record: str) -> Any:
        def find(name: str, location: str | None) -> ReplayedSource:
            return ReplayedSource(source=plant.source, location=str(location), directory=dead)

        (found,) = replay(dead, [ReplayRequest(id=letter.id, record=record)], find)
        return found

    assert "did not take the record" in replayed('{"v": 1}').reason
    plant.start()
    try:
        done = replayed('{"v": 1}')
        assert (done.outcome, done.target) == ("replayed", "http:/rows/L1"), done
        assert replayed('{"v": 1}').outcome == "refused"
        assert plant.stored() == ['{"v": 1}']
    finally:
        plant.stop()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"address": "0.0.0.0:8080/rows"}, "every program that reaches 0.0.0.0 could send rows"),
        ({"address": "8080"}, "is not the address of an endpoint"),
        ({"address": "127.0.0.1:0/rows"}, "is not the address of an endpoint"),
        ({"address": "http://127.0.0.1:80/rows"}, "is not the address of an endpoint"),
        ({"address": "8080/rows?x=1"}, "is not the address of an endpoint"),
        ({"address": "8080/rows", "certificate": "/c.pem"}, "a certificate without its key"),
        ({"address": "8080/rows", "certificate": "/c", "key": "/k", "tls": False}, "TLS is off"),
        ({"address": "8080/rows", "max_body": 2**30}, "max_body is 1073741824"),
    ],
)
def test_wrong_settings_are_refused_when_the_dataflow_is_written(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(DataflowError, match=said):
        HttpSource(id="http_1", **{"schema_text": "v bigint", **settings}).output(())


def test_a_unit_that_starts_again_has_one_bridge(tmp_path: Path) -> None:
    """A unit whose Spark has ended starts again beside its bridges: two would number their batches alike."""
    import headwater as hw
    from headwater.continuum.model import Continuum
    from headwater.plan.build import build
    from headwater.plan.spec import spec_of

    port = free_port()
    f = hw.flow("plant", locations=["L1"])
    f.read.http(f"127.0.0.1:{port}/rows/{{location}}", "v bigint").write.memory("out")
    plan = build(f.build(), Continuum.from_text("layers: [edge]\nzones:\n  E1: {layer: edge, locations: [L1]}\n"))
    spec = spec_of(plan, plan.units[0].id)
    bridges = UnitBridges(Layout(tmp_path), UnitSettings(), receives=True)
    try:
        for v in range(3):
            bridges.start(spec)
            assert httpx.post(f"http://127.0.0.1:{port}/rows/L1", content=f'{{"v": {v}}}').status_code == 200
        assert bridges.problem(spec.id) is None
    finally:
        bridges.stop(spec.id)
    log = FileLog(next((tmp_path / "channels").glob("http*")) / "log")
    assert [v for b in log.read(0, log.latest()) for v in b.column("value").to_pylist()] == lines(0, 3)
