"""The experiment's parts that need neither Spark nor a lab."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import pipeline
from benchmarks.flowunits import events, heatmap
from benchmarks.flowunits.__main__ import Found, Trial, cells, run_variant, summary
from benchmarks.flowunits.flow import flow
from benchmarks.flowunits.storage import Storage
from benchmarks.flowunits.workload import CORES, EDGES, UNIT, Arrivals, Burst, continuum_text, measure, whole
from benchmarks.flowunits.zones import Zones
from headwater.continuum.model import Continuum
from headwater.plan.build import build

# ---------------------------------------------------------------- workload


def test_bursts_follow_each_other_and_shares_fill_them() -> None:
    burst = Burst(2400, 1200)
    events_of_all = [np.arange(a, a + n) for a, n in map(burst.share, EDGES)]
    assert np.array_equal(np.concatenate(events_of_all), np.arange(2400, 3600))


@pytest.mark.parametrize("rows", [1, 1200, 1201, 999_999])
def test_no_window_is_left_open(rows: int) -> None:
    rows = whole(rows)
    _, share = Burst(0, rows).share("E1")
    assert share % UNIT == 0 and share * len(EDGES) == rows
    kept = np.arange(0, share, 3)
    assert all((kept % 10 == key).sum() % pipeline.SIZE == 0 for key in range(10))


def test_expected_agrees_with_a_plain_loop() -> None:
    burst = Burst(1200, 2400)
    rows = []
    for edge, location in EDGES.items():
        first, count = burst.share(edge)
        for key in range(10):
            mine = [i for i in range(first, first + count) if i % 3 == 0 and i % 10 == key]
            for at in range(0, len(mine), 10):
                mean = sum(mine[at : at + 10]) / 10
                n, steps = int(mean) % 1000 + 1, 0
                while n > 1:
                    n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
                if steps < 100:
                    rows.append({"key": key, "mean": mean, "location": location, "steps": steps})
    got = burst.expected()
    assert got.num_rows > 50
    pipeline.check("loop", pipeline.ordered(pa.Table.from_pylist(rows)), got)


def test_a_wrong_result_ends_the_benchmark() -> None:
    wanted = Burst(0, 1200).expected()
    wrong = wanted.set_column(1, "mean", pa.array(wanted["mean"].to_numpy() + 1))
    with pytest.raises(SystemExit, match="row 0 mean"):
        pipeline.check("broken", wrong, wanted)
    with pytest.raises(SystemExit, match="rows instead of"):
        pipeline.check("broken", wanted.slice(1), wanted)


class Local:
    """A variant that computes in the test itself."""

    name = "local"

    def __init__(self, results: Path, *, twice: bool = False) -> None:
        self.results, self.twice, self.count = results, twice, 0

    def deploy(self) -> None: ...
    def prepare(self, burst: Burst) -> None: ...
    def check(self) -> None: ...
    def teardown(self) -> None: ...

    def release(self, burst: Burst) -> None:
        for _ in range(2 if self.twice else 1):
            self.count += 1
            scratch = self.results / f".{self.count}"
            pq.write_table(burst.expected(), scratch)
            os.replace(scratch, self.results / f"{self.count}.parquet")


def test_each_burst_is_measured_and_checked_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.flowunits.workload._SETTLE", 0.0)
    arrivals, variant = Arrivals(tmp_path), Local(tmp_path)
    for first in (0, 1200):
        assert -0.1 < measure(variant, Burst(first, 1200), arrivals, limit=5) < 5
    with pytest.raises(SystemExit, match="rows instead of"):
        measure(Local(tmp_path / "twice", twice=True), Burst(2400, 1200), _made(tmp_path / "twice"), limit=5)


def _made(directory: Path) -> Arrivals:
    directory.mkdir()
    return Arrivals(directory)


# ---------------------------------------------------------------- variants


def test_headwater_puts_each_operator_where_the_paper_does() -> None:
    plan = build(flow("/e/{location}", "/out", batch_rows=250_000), Continuum.from_text(continuum_text()))
    assert sorted(unit.id.rpartition("@")[2] for unit in plan.units) == sorted(CORES)


def test_headwater_releases_files_in_order_of_their_events(tmp_path: Path) -> None:
    variant = Zones(None, tmp_path)  # type: ignore[arg-type]  # no lab is used
    for location in EDGES.values():
        (tmp_path / location / "events").mkdir(parents=True)
    burst = Burst(480_000, 480_000)
    variant.prepare(burst)
    assert not list(tmp_path.glob("*/events/*"))
    variant.release(burst)
    files = sorted((tmp_path / "L2" / "events").iterdir(), key=lambda f: f.stat().st_mtime)
    values = np.concatenate([pq.read_table(f)["i"].to_numpy() for f in files])
    assert np.array_equal(values, np.arange(600_000, 720_000))


def test_event_servers_give_what_has_happened() -> None:
    log, client = events.Log(), events.Client()
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: _quietly(log, server), daemon=True).start()
    host, port = server.getsockname()[:2]
    assert client.newest(host, port) == 0
    log.add(100, 5)
    log.add(300, 5)
    assert client.newest(host, port) == 10
    assert client.get(host, port, 3, 7).tolist() == [103, 104, 300, 301]
    for connection in client._open.values():
        connection.close()
    server.close()


def _quietly(log: events.Log, server: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the test has closed the socket
        events.serve(log, server)


# ---------------------------------------------------------------- storage


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[http.client.HTTPConnection]:
    server = Storage(("127.0.0.1", 0), tmp_path.resolve())
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)  # type: ignore[misc]
    yield connection
    connection.close()
    server.shutdown()
    server.server_close()


def ask(
    storage: http.client.HTTPConnection, method: str, name: str, query: str, body: bytes | None = None
) -> tuple[int, Any]:
    """Send a request; follow its redirect to the host with the data, as Hadoop's client does."""
    storage.request(method, f"/webhdfs/v1{name}?{query}")
    answer = storage.getresponse()
    data = answer.read()
    if answer.status == 307:
        location = str(answer.headers["Location"])
        storage.request(method, location[location.index("/webhdfs") :], body, encode_chunked=False)
        answer = storage.getresponse()
        data = answer.read()
        return answer.status, data
    return answer.status, json.loads(data) if data else None


def test_a_file_is_written_read_in_part_and_listed(storage: http.client.HTTPConnection) -> None:
    assert ask(storage, "PUT", "/a/b", "op=MKDIRS") == (200, {"boolean": True})
    assert ask(storage, "PUT", "/a/b/f%20g", "op=CREATE&overwrite=false", b"hello world")[0] == 201
    assert ask(storage, "GET", "/a/b/f%20g", "op=OPEN&offset=6&length=3") == (200, b"wor")
    (found,) = ask(storage, "GET", "/a/b", "op=LISTSTATUS")[1]["FileStatuses"]["FileStatus"]
    assert (found["pathSuffix"], found["length"], found["type"]) == ("f g", 11, "FILE")
    status, answer = ask(storage, "PUT", "/a/b/f%20g", "op=CREATE&overwrite=false", b"x")
    assert status == 403 and answer["RemoteException"]["exception"] == "FileAlreadyExistsException"


def test_a_file_is_removed_after_it_was_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("hello world")
    with Storage(("127.0.0.1", 0), tmp_path.resolve(), keep=0.01) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)  # type: ignore[misc]
        assert ask(connection, "GET", "/f", "op=OPEN&length=5") == (200, b"hello")
        assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
        assert ask(connection, "GET", "/f", "op=OPEN&offset=5") == (200, b" world")
        deadline = time.monotonic() + 30
        while (tmp_path / "f").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ask(connection, "GET", "/f", "op=GETFILESTATUS")[0] == 404
        connection.close()
        server.shutdown()


def test_a_file_is_one_block_on_the_servers_host(storage: http.client.HTTPConnection) -> None:
    ask(storage, "PUT", "/f", "op=CREATE&overwrite=true", b"hello world")
    (block,) = ask(storage, "GET", "/f", "op=GETFILEBLOCKLOCATIONS")[1]["BlockLocations"]["BlockLocation"]
    assert (block["hosts"], block["offset"], block["length"]) == (["127.0.0.1"], 0, 11)
    assert ask(storage, "GET", "/none", "op=GETFILEBLOCKLOCATIONS")[0] == 404


def test_renames_replace_only_when_asked(storage: http.client.HTTPConnection) -> None:
    for name in ("/one", "/two"):
        ask(storage, "PUT", name, "op=CREATE&overwrite=true", name.encode())
    assert ask(storage, "PUT", "/one", "op=RENAME&destination=/two") == (200, {"boolean": False})
    assert ask(storage, "PUT", "/one", "op=RENAME&destination=/two&renameoptions=NONE")[0] == 403
    assert ask(storage, "PUT", "/one", "op=RENAME&destination=/two&renameoptions=OVERWRITE")[0] == 200
    assert ask(storage, "GET", "/two", "op=OPEN") == (200, b"/one")
    status, answer = ask(storage, "GET", "/one", "op=GETFILESTATUS")
    assert status == 404 and answer["RemoteException"]["javaClassName"] == "java.io.FileNotFoundException"


def test_nothing_outside_of_the_directory_is_shown(storage: http.client.HTTPConnection) -> None:
    assert ask(storage, "GET", "/../../etc/passwd", "op=OPEN")[0] == 403
    assert ask(storage, "DELETE", "/none", "op=DELETE") == (200, {"boolean": False})
    assert ask(storage, "GET", "/", "op=GETTRASHROOT")[0] == 400


# ---------------------------------------------------------------- command line and figure


def test_a_cell_that_is_none_is_refused_with_an_example() -> None:
    assert cells("10mbit/100") == [("10mbit", 100)]
    for text in ("10mbit", "fast/0", "10mbit/soon"):
        with pytest.raises(argparse.ArgumentTypeError, match="write 10mbit/100"):
            cells(text)


def test_a_ratio_needs_both_variants() -> None:
    cell = ("10mbit", 0)
    found = {"stretched": Found({cell: [{"seconds": s} for s in (9.0, 6.0, 7.0)]})}
    (alone,) = summary(found, [cell])
    assert (alone["stretched_s"], alone["headwater_s"], alone["ratio"]) == (7.0, None, None)
    (both,) = summary({**found, "headwater": Found({cell: [{"seconds": 2.0}]})}, [cell])
    assert (both["headwater_s"], both["ratio"]) == (2.0, 3.5)


class NoLab:
    """A lab without links."""

    def set_links(self, **_: object) -> None: ...


def test_a_cell_that_fails_is_noted_and_the_next_one_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.flowunits.workload._SETTLE", 0.0)
    monkeypatch.setattr("benchmarks.flowunits.__main__.crossed", lambda lab: {})
    monkeypatch.setattr("benchmarks.flowunits.__main__.WARM_UPS", 1)
    made: list[Local] = []

    class Once(Local):
        def release(self, burst: Burst) -> None:
            if len(made) > 1 or self.count < 2:  # a warm-up and one run
                super().release(burst)

    def make(times: int) -> Local:
        (tmp_path / str(times)).mkdir()
        made.append(Once(tmp_path / str(times)))
        return made[-1]

    wanted, found, notes = cells("unlimited/0,10mbit/0,10mbit/10"), Found(), []
    trial = Trial(NoLab(), make, 1200, 0.5)  # type: ignore[arg-type]
    run_variant(trial, wanted, found, repeats=1, note=lambda: notes.append(summary({"stretched": found}, wanted)))
    assert (len(made), len(notes), list(found.failed)) == (2, 3, [("10mbit", 0)])
    assert [cell["stretched_s"] is None for cell in notes[-1]] == [False, True, False]
    assert notes[-1][1]["failed"]["stretched"].startswith("0 of")


def test_the_grid_has_a_row_for_each_delay() -> None:
    made = [
        {"bandwidth": b, "delay_ms": d, "stretched_s": 1.0 + d, "ratio": None}
        for b in ("unlimited", "10mbit")
        for d in (0, 10)
    ]
    bandwidths, delays, values = heatmap.grid({"cells": made[:-1]}, "stretched_s")
    assert (bandwidths, delays) == (["unlimited", "10mbit"], [0, 10])
    assert values == [[1.0, 1.0], [11.0, None]]


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    cell = {"bandwidth": "10mbit", "delay_ms": 0, "stretched_s": 4.0, "headwater_s": 2.0, "ratio": 2.0}
    made = {"rows": 1200, "cells": [cell, {**cell, "bandwidth": "1gbit", "ratio": None}]}
    (tmp_path / "result.json").write_text(json.dumps(made))
    assert heatmap.main([str(tmp_path / "result.json"), str(tmp_path / "docs" / "figure.png")]) == 0
    assert (tmp_path / "docs" / "figure.png").read_bytes().startswith(b"\x89PNG")
