"""Kill writers at random moments, and a broker under them: every batch is there once, in order."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.channels.open import open_log
from headwater.spark.broker import LocalBroker

from .conftest import KINDS, ids, spec_of

ROWS = 3
WRITER = """
import json, sys
import pyarrow as pa
from headwater.channels.open import open_log
spec, epoch, first, last = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
log = open_log({**spec, "lineage": "numbers", "event_time": "ts"})
print("ready", flush=True)
for batch in range(first, last):
    rows = list(range(batch * 3, batch * 3 + 3))
    times = pa.array(rows, pa.timestamp("us", tz="UTC"))
    log.append(pa.table({"id": rows, "ts": times}), epoch=epoch, batch=batch)
    print(batch, flush=True)
"""


def writer(spec: dict[str, Any], epoch: int, first: int, last: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, json.dumps(spec), str(epoch), str(first), str(last)]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """Yield the lines that a writer prints; give up after a minute without one."""
    assert process.stdout is not None
    while select.select([process.stdout], [], [], 60)[0] and (line := process.stdout.readline()):
        yield line.strip()


def kill_again_and_again(spec: dict[str, Any], *, kills: int, seed: int) -> tuple[list[int], list[int], int]:
    """Return the ids a reader got, those expected, and how many kills cut a batch off or hid its success."""
    chance = random.Random(seed)
    reader = open_log(spec)
    reader.register("r")
    read: list[int] = []
    noted, epoch, open_ends = -1, 1, 0  # noted: the last batch that Spark would have recorded
    for _ in range(kills):
        process = writer(spec, epoch, noted + 1, noted + 10_000)
        said = lines(process)
        assert next(said) == "ready"
        for _ in range(chance.randrange(3)):
            next(said)
        time.sleep(chance.uniform(0.0, 0.12))
        process.send_signal(signal.SIGKILL)
        rest = [int(line) for line in said]
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
        done = rest[-1] if rest else noted
        tail = open_log(spec).tail()
        in_log = max(tail.counts[1] if tail and tail.counts else -1, done)
        # Spark records a batch after its commit, so it may repeat one that the log has.
        noted = max(noted, min(done, in_log) - chance.randrange(2))
        open_ends += in_log > noted
        epoch += chance.randrange(3) == 0
        position, end = reader.register("r"), reader.latest()
        read += ids(reader, position, end)
        reader.advance("r", end)
    last = noted + 20
    process = writer(spec, epoch, noted + 1, last)
    assert list(lines(process))[-1] == str(last - 1)
    assert process.wait(60) == 0
    assert process.stdout is not None
    process.stdout.close()
    position, end = reader.register("r"), reader.latest()
    deadline = time.monotonic() + 10
    while ids(reader, position, end)[-1:] != [last * ROWS - 1] and time.monotonic() < deadline:
        end = reader.latest()
    read += ids(reader, position, end)
    return read, list(range(last * ROWS)), open_ends


@pytest.mark.parametrize("kind", ["filelog", pytest.param("kafka", marks=pytest.mark.long)])
def test_writers_killed_at_random_moments(
    kind: str, tmp_path: Path, topic: str, request: pytest.FixtureRequest
) -> None:
    broker = request.getfixturevalue("broker") if kind == "kafka" else None
    read, expected, open_ends = kill_again_and_again(spec_of(kind, tmp_path / "log", topic, broker), kills=4, seed=11)
    assert read == expected
    assert open_ends > 0, "no batch was repeated: the test shows nothing"


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_writers_killed_many_times(
    kind: str, seed: int, tmp_path: Path, topic: str, request: pytest.FixtureRequest
) -> None:
    broker = request.getfixturevalue("broker") if kind == "kafka" else None
    read, expected, open_ends = kill_again_and_again(
        spec_of(kind, tmp_path / "log", topic, broker), kills=40, seed=seed
    )
    assert read == expected
    assert open_ends > 5


@pytest.mark.long
def test_a_broker_killed_in_mid_stream_loses_nothing(tmp_path: Path, topic: str, broker: LocalBroker) -> None:
    own = LocalBroker.start(tmp_path / "broker")  # ``broker`` tells whether a broker can run here
    spec = spec_of("kafka", tmp_path / "log", topic, own)
    last = 120
    process = writer(spec, 1, 0, last)
    try:
        said = lines(process)
        while next(said) != "20":
            pass
        own.kill()
        time.sleep(1.0)
        own = LocalBroker.start(tmp_path / "broker", port=own.port)
        assert list(said)[-1] == str(last - 1)
        assert process.wait(60) == 0
        assert ids(open_log(spec)) == list(range(last * ROWS))
    finally:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()
        own.stop()
