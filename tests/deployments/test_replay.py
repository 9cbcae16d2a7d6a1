"""Correct and replay a malformed record, and kill its agent meanwhile: the record is in the sink once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.agent.agents import running_agent
from headwater.app import deadletters, deployments
from headwater.channels.credential import TOKEN_ENV
from headwater.continuum.model import Continuum
from headwater.plan.build import build
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, compare
from tests.conftest import on_spark
from tests.deployments.controllers import apply, running, sink_rows
from tests.patience import PATIENCE

CONTINUUM = Continuum.from_text("""
name: one
layers: [cloud]
zones:
  C1: {layer: cloud, locations: [L1], hosts: {c1: {n_cpu: 1, memory: 1GiB}}}
""")
NAME = "replayed"
ROWS = [f"{n},{n}.5" for n in range(40)]


@contextmanager
def agent_to_kill(place: Path, order: Path) -> Iterator[None]:
    """Run the zone's agent, which the controller then finds."""
    directory = place / "zones/C1"
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.deployments.killed_agent", str(order), "zone", "C1"]
    root = str(Path(__file__).resolve().parents[2])
    with (place / "first-agent.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *command,
                "--dir",
                str(directory),
                "--listen",
                "127.0.0.1:0",
                "--quick",
                "--allow-read",
                f"{place}/in",
                "--allow-connect",
                "*",
            ],
            env={**os.environ, "PYTHONPATH": root, "HEADWATER_STATE_STORE": str(place / "state")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until(lambda: running_agent(directory) or process.poll() is not None, "the agent to start")
        assert process.poll() is None, (place / "first-agent.log").read_text()
        yield
    finally:
        process.kill()
        process.wait()


def until(found: Any, what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (seen := found()):
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.2)
    return seen


def test_a_corrected_record_is_in_the_sink_once(
    endpoint: LocalEndpoint, spark_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_ENV, "a-site-secret-for-the-tests")
    place, order, store = tmp_path.resolve(), tmp_path / "kill", str(tmp_path / "store.db")
    files = place / "in/L1"
    files.mkdir(parents=True)
    lines = ["id,v", *ROWS[:20], "100,warm", *ROWS[20:], "101,cold"]
    (files / "a.csv").write_text("\n".join(lines) + "\n")
    builder = hw.flow(NAME, locations=["L1"])
    read = builder.read.csv(
        f"{place}/in/{{location}}", "id bigint, v double", location_as="at", file_as="file", header="true"
    )
    read.where("id >= 0").select("id", "at", "v * 2 AS w", "file").write.memory("out")
    plan = build(builder.build(), on_spark(CONTINUUM, spark_address))

    def replay(id_: str, record: str) -> Any:
        (found,) = deadletters.replay(NAME, [id_], store, records={id_: record}, home=place)
        return found

    with agent_to_kill(place, order), running(NAME, place, seed=1) as controller:
        controller.carry_out(apply(plan, store), kill=False)
        letters = {
            x["record"]: x["id"]
            for x in until(lambda: list(deadletters.dead_letters(NAME, store, home=place)), "the dead letters")
        }
        assert letters.keys() == {"100,warm", "101,cold"}
        assert replay(letters["100,warm"], "100,hot").outcome == "refused"
        order.touch()
        assert replay(letters["100,warm"], "100,21.5").outcome == "unknown"  # its agent is killed
        assert not order.exists()
        made = place / f"zones/C1/deployments/{NAME}/replayed-records"
        (new,) = made.rglob("*replayed-*.csv")
        assert new.read_text() == "id,v\n100,21.5\n"

        def again() -> Any:
            found = replay(letters["100,warm"], "100,21.5")  # the controller starts the agent again
            return None if found.outcome == "unknown" else found

        found = until(again, "the agent to come back")
        assert (found.outcome, found.target) == ("replayed", str(new)), found
        assert replay(letters["100,warm"], "100,21.5").outcome == "refused"
        assert replay(letters["101,cold"], "101,-3.5").outcome == "replayed"
        assert len(list(made.rglob("*replayed-*.csv"))) == 2
        assert os.listdir(files) == ["a.csv"], "a replay puts nothing into the user's directory"

        def listed() -> dict[str, Any]:
            found = {x["record"]: x["replayed"] for x in deadletters.dead_letters(NAME, store, home=place)}
            return found if found.keys() >= letters.keys() else {}  # an agent that does not answer in time is left out

        known = until(listed, "the dead letters")
        assert known["100,warm"]["done"] and known["101,cold"]["done"]
        controller.carry_out(deployments.stop(NAME, store, how="finish"), kill=False)
        late = replay(letters["101,cold"], "101,-3.5")
        assert late.outcome == "refused"
        got = sink_rows(place, NAME, "out")
    values = sorted((row["id"], row["w"]) for row in got.to_pylist())
    assert {row["file"] for row in got.to_pylist()} == {f"file://{files}/a.csv"}, "a replayed record keeps its file"
    assert values == [(n, 2 * n + 1.0) for n in range(40)] + [(100, 43.0), (101, -7.0)]
    for n, file in enumerate(made.rglob("*replayed-*.csv")):
        file.rename(files / f"{file.stem}-{n}.csv")  # the batch run reads the input alone
    assert not compare(
        batch_result(endpoint.session(), plan.dataflow, CONTINUUM)["out"].drop_columns("file"), got.drop_columns("file")
    )
