"""Deployments that take rows by HTTP: the sinks equal the batch run over the same records, also through kills."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import headwater as hw
from headwater.app.local import LocalRun
from headwater.continuum.model import Continuum
from headwater.core.metrics import Progress
from headwater.dataflow.builder import DataflowBuilder
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.stream import Stream
from headwater.disk.settings import UnitSettings
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, compare
from tests.conftest import free_port
from tests.deployments.flows import LOCATIONS, SCHEMA, rows
from tests.deployments.test_cli_run import headwater as command
from tests.deployments.test_cli_run import rows as written
from tests.faults import until

CONTINUUM = """
name: plant
layers: [edge, cloud]
zones:
  C1: {layer: cloud}
  E1: {layer: edge, parent: C1, locations: [L1, L2]}
  E2: {layer: edge, parent: C1, locations: [L4]}
"""


def dataflow(read: Callable[[DataflowBuilder], Stream], sink: str = "memory") -> Dataflow:
    builder = hw.flow("plant", locations=LOCATIONS)
    kept = read(builder).where("v IS NULL OR v > 10").select("id", "location", "k", "v * 2 AS twice", "ts")
    kept = kept.to_layer("cloud").with_columns(tagged="concat(location, k)")
    if sink == "memory":
        kept.write.memory("out")
    else:
        kept.write.json(sink)
    return builder.build()


class Senders:
    """Clients that send requests of rows, each with a key, until they are answered."""

    def __init__(self, port: int, seed: int, *, count: int = 40) -> None:
        drawn = random.Random(seed)
        self.port, self.over = port, threading.Event()
        self.records: dict[str, list[str]] = {}
        for location, made in rows(count, seed=seed).items():
            self.records[location] = [
                json.dumps({**row, "v": "broken"} if drawn.random() < 0.1 else row) for row in made
            ]
        self.requests = [
            (location, records[at : at + 3]) for location, records in self.records.items()
            for at in range(0, len(records), 3)
        ]  # fmt: skip
        drawn.shuffle(self.requests)

    def files(self, directory: Path) -> str:
        """Write the records into files, as the oracle reads them."""
        for location, records in self.records.items():
            (directory / location).mkdir(parents=True)
            (directory / location / "a.json").write_text("".join(f"{r}\n" for r in records))
        return f"{directory}/{{location}}"

    @property
    def broken(self) -> list[str]:
        return sorted(r for records in self.records.values() for r in records if '"broken"' in r)

    def send(self, first: int, end: int) -> None:
        """Send some of the requests, four at a time."""

        def one(number: int) -> None:
            location, records = self.requests[number]
            url = f"http://127.0.0.1:{self.port}/rows/{location}"
            while not self.over.is_set():
                try:
                    done = client.post(url, content="\n".join(records), headers={"Idempotency-Key": str(number)})
                    if done.status_code == 200:
                        assert done.json() == {"rows": len(records)}
                        return
                    assert done.status_code in (429, 503, 404), done.text  # 404: of a zone that has not begun
                except httpx.HTTPError:
                    pass
                self.over.wait(0.05)
            raise AssertionError("not answered")

        with httpx.Client(timeout=60) as client, ThreadPoolExecutor(4) as pool:
            for sent in [pool.submit(one, number) for number in range(first, end)]:
                sent.result()


def test_rows_by_http_equal_one_batch_run(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    """Send requests, stop, go on, and send all of them again: two zones of this process share one address."""
    senders = Senders(free_port(), seed=5)
    address = f"127.0.0.1:{senders.port}/rows/{{location}}"
    flow = dataflow(lambda f: f.read.http(address, SCHEMA, location_as="location"))
    continuum, settings = Continuum.from_text(CONTINUUM), UnitSettings(trigger="200 milliseconds")
    half, every = len(senders.requests) // 2, len(senders.requests)
    for first, end in ((0, half), (0, every)):
        run = LocalRun(build(flow, continuum), tmp_path / "run", endpoint, settings)
        run.start()
        try:
            senders.send(first, end)
            run.settle()
            got, letters, progress = run.sink_rows("out"), list(run.dead_letters()), run.progress()
        finally:
            run.stop()
    path = senders.files(tmp_path / "in")
    expected = dataflow(lambda f: f.read.json(path, SCHEMA, location_as="location"))
    assert not compare(batch_result(endpoint.session(), expected, continuum)["out"], got)
    assert sorted(x["record"] for x in letters) == senders.broken and senders.broken
    assert {x["source"] for x in letters} <= {f"http:/rows/{location}" for location in LOCATIONS}
    assert _in(progress) == sum(map(len, senders.records.values()))


def _in(progress: Progress) -> int:
    return sum(u.rows_in for u in progress.units if u.layer == "edge")


@pytest.mark.long
def test_rows_by_http_equal_one_batch_run_through_kills(endpoint: LocalEndpoint, tmp_path: Path) -> None:
    """SIGKILL `headwater run` while clients send; they go on, and it starts again in the same directory."""
    senders = Senders(free_port(), seed=7, count=200)
    address = f"127.0.0.1:{senders.port}/rows/{{location}}"
    (tmp_path / "c.yaml").write_text(CONTINUUM)
    (tmp_path / "flow.py").write_text(
        "import headwater as hw\n"
        "from tests.deployments.test_http_source import SCHEMA, dataflow\n"
        f"f = dataflow(lambda f: f.read.http({address!r}, SCHEMA, location_as='location'), {str(tmp_path / 'out')!r})\n"
    )
    path = senders.files(tmp_path / "in")
    flow = dataflow(lambda f: f.read.json(path, SCHEMA, location_as="location"))
    expected = batch_result(endpoint.session(), flow, Continuum.from_text(CONTINUUM))["out"]
    every = len(senders.requests)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(senders.send, 0, every)
        try:
            for part in (0.2, 0.5, None):
                with command(tmp_path) as process:
                    if part is None:
                        until(sending.done, "all answers")
                        sending.result()
                        until(lambda: len(written(tmp_path)) >= expected.num_rows, "all rows")
                        process.send_signal(signal.SIGINT)
                        process.communicate(timeout=120)
                    else:
                        least = round(part * expected.num_rows)
                        until(lambda least=least: len(written(tmp_path)) >= least, "some rows")
                        process.kill()
                        process.communicate(timeout=60)
        finally:
            senders.over.set()
    got = sorted(row["id"] for row in written(tmp_path))
    assert got == sorted(expected.column("id").to_pylist())
