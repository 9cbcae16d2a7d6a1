"""Run `headwater run` as a user does: in a separate process, with its own Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE

CONTINUUM = """
name: two
layers: [edge, cloud]
zones:
  C: {layer: cloud, hosts: {c: {n_cpu: 2}}}
  E: {layer: edge, parent: C, locations: [here], hosts: {e: {n_cpu: 2}}}
"""
FLOW = """
import headwater as hw
from words import step
f = hw.flow("counted", locations=["here"])
rows = f.read.csv("INPUT/{location}", "id int, ts timestamp").with_watermark("ts", "0 seconds")
cloud = rows.to_layer("cloud")
counts = cloud.scan(step, "id int, n int", keys=["id"], order_by="ts", initial=0).named("count")
counts.write.json("RESULT").named("result")
"""
STEP = """
def step(state, row):
    if row["id"] == 13:
        raise ValueError("thirteen")
    return state + 1, {"id": row["id"], "n": state + 1}
"""


def prepare(directory: Path) -> None:
    (directory / "in" / "here").mkdir(parents=True)
    (directory / "c.yaml").write_text(CONTINUUM)
    (directory / "words.py").write_text(STEP)
    text = FLOW.replace("INPUT", str(directory / "in")).replace("RESULT", str(directory / "out"))
    (directory / "flow.py").write_text(text)


def feed(directory: Path, name: str, lines: list[str]) -> None:
    hidden = directory / "in" / "here" / f".{name}"
    hidden.write_text("".join(f"{line}\n" for line in lines))
    hidden.rename(directory / "in" / "here" / name)


def rows(directory: Path) -> list[dict[str, Any]]:
    files = [f for f in (directory / "out").rglob("*.json") if ".headwater" not in f.parts]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@contextmanager
def headwater(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-c",
        "from headwater.cli import main; main()",
        "run",
        "flow.py",
        "-c",
        "c.yaml",
    ]
    root = str(Path(__file__).parents[2])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
    }
    process = subprocess.Popen(
        [*command, "--cores", "2", *arguments],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate(timeout=10)


def wait_for(directory: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        if len(rows(directory)) >= count:
            return
        time.sleep(0.2)
    raise AssertionError(f"{len(rows(directory))} rows of {count}; ended: {process.poll()}")


def test_interrupt_resume_and_drain(tmp_path: Path) -> None:
    prepare(tmp_path)
    feed(tmp_path, "a.csv", ["1,2026-01-01 00:00:00", "2,2026-01-01 00:00:01", "oops", "1,2026-01-01 00:00:02"])
    with headwater(tmp_path) as first:
        wait_for(tmp_path, 2, first)  # the newest row waits for the watermark
        with headwater(tmp_path) as second:
            _, said = second.communicate(timeout=PATIENCE)
            assert second.returncode == 6
            assert f"is in use by process {first.pid}" in said
        first.send_signal(signal.SIGINT)
        _, said = first.communicate(timeout=PATIENCE)
    assert first.returncode == 0, said
    assert "stopping at the next batch boundary" in said
    assert "run the same command again to continue" in said

    feed(tmp_path, "b.csv", ["1,2026-01-01 00:00:03", "2,2026-01-01 00:00:04"])
    with headwater(tmp_path, "--until-drained", "--json") as third:
        out, said = third.communicate(timeout=PATIENCE)
    assert third.returncode == 0, said
    assert sorted((r["id"], r["n"]) for r in rows(tmp_path)) == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    last = json.loads(out.splitlines()[-1])
    assert {unit["status"] for unit in last["units"]} == {"finished"}
    assert sum(unit["dead_letters"] for unit in last["units"]) == 1

    letters = subprocess.run(
        [sys.executable, "-c", "from headwater.cli import main; main()", "deadletters", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert [json.loads(line)["record"] for line in letters.stdout.splitlines()] == ["oops"]

    with headwater(tmp_path, "--until-drained") as fourth:
        _, said = fourth.communicate(timeout=PATIENCE)
    assert fourth.returncode == 6
    assert "--fresh" in said


@pytest.mark.long
def test_a_failing_function_names_operator_and_row(tmp_path: Path) -> None:
    prepare(tmp_path)
    feed(tmp_path, "a.csv", ["1,2026-01-01 00:00:00", "13,2026-01-01 00:00:01"])
    with headwater(tmp_path, "--until-drained") as process:
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 5, said
    assert "ValueError: thirteen" in said
    assert "count" in said
    assert "'id': 13" in said
    assert "  -> " in said
    assert "Traceback" not in said
