"""Pause a controller in the middle of a step; another takes over; the first continues and is fenced.

One deployment is changed repeatedly while rows flow. All orders of the first controller after its pause are
refused: the nodes run the units that the store states, and in the end no row is lost or doubled. A part
of the matrix is a test; ``HEADWATER_PAUSES="fission fusion migration"``, or some of them, runs all of these
and prints the table.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headwater.agent.agents import Agents
from headwater.app import deployments, observe
from headwater.app.client import Client
from headwater.control.store import StoreReader
from headwater.plan.model import DeploymentPlan
from headwater.plan.steps import Step, Watch
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.deployments import pausing
from tests.deployments.controllers import apply
from tests.deployments.flows import rows
from tests.deployments.test_handover import CONTINUUM, NAME, planned, written
from tests.patience import PATIENCE

SAMPLE = 9
MOMENTS = ("before", "after")


class Two:
    """Two controllers on one store: one acts, the other waits for its lease."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._all: list[subprocess.Popen[bytes]] = []
        self.fenced = 0
        self._fill()

    def _fill(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        command = [sys.executable, "-m", "tests.deployments.pausing", str(self._place / "store.db")]
        while len(self._all) < 2:
            with (self._place / "up.log").open("ab") as log:
                process = subprocess.Popen(
                    [*command, str(self._place)],
                    stdout=log,
                    stderr=log,
                    cwd=root,
                    env={**os.environ, "PYTHONPATH": root},
                )
            self._all.append(process)

    def carry_out(self, version: int) -> str:
        """Wait until a version is finished; return its outcome."""

        def observed_version() -> bool:
            (now,) = observe.status(NAME, str(self._place / "store.db"))
            return now.observed_version >= version

        self._until(observed_version, f"version {version}")
        (now,) = observe.status(NAME, str(self._place / "store.db"))
        assert now.change is not None
        return str(now.change.outcome)

    def wait_for_pause(self) -> None:
        """Wait until one of the controllers is paused."""
        self._until(lambda: any(_stopped(p) for p in self._all), "a controller to stop")

    def go_on(self) -> None:
        """Continue the paused controller, see it end because the other acts, and start a new one."""
        (still,) = (p for p in self._all if _stopped(p))
        still.send_signal(signal.SIGCONT)
        assert still.wait(PATIENCE) == pausing.FENCED
        self.fenced += 1
        self._all.remove(still)
        self._fill()

    def _until(self, so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not so():
            assert all(p.poll() is None for p in self._all), (self._place / "up.log").read_text()[-3000:]
            assert time.monotonic() < deadline, f"waited for {what}"
            time.sleep(0.05)

    def end(self) -> None:
        """End both controllers."""
        for process in self._all:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._all:
            process.wait(30)


def _stopped(process: subprocess.Popen[bytes]) -> bool:
    try:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return False


def running(place: Path) -> set[str]:
    """Return the running units, as the nodes report them."""
    agents = Agents(place)
    return {
        unit.unit
        for node in CONTINUUM.nodes
        if (place / "zones" / node.name).exists()
        for unit in agents.find(node).progress(NAME).units
        if unit.status == "running"
    }


def known(place: Path) -> set[str]:
    """Return the units that are to run, as the store has them."""
    with closing(StoreReader.open(str(place / "store.db"))) as store:
        return {which[0] for which, unit_status in store.unit_statuses(NAME).items() if unit_status.runs}


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    started = Two(tmp_path)
    try:
        yield started
    finally:
        started.end()
        deployments.down(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(20_000)
def test_a_paused_controller_changes_nothing_any_more(endpoint: LocalEndpoint, tmp_path: Path, two: Two) -> None:
    whole = os.environ.get("HEADWATER_PAUSES", "").split()
    made = rows(4000 if whole else 600, seed=29)["L1"]
    source = BoundedSource(tmp_path / "in", {"L1": made}, rows_per_file=3)
    out, store = tmp_path / "out", str(tmp_path / "store.db")
    released = iter(source.release())
    low = planned(source.path, str(out), "list")
    high = planned(source.path, str(out), "rising")
    alone = planned(source.path, str(out), "list", ("once", "rising"))
    away = planned(source.path, str(out), "rising", ("counted", "list"))
    every_kind = {"fission": (low, high), "fusion": (high, low), "migration": (alone, away)}
    kinds = {kind: plans for kind, plans in every_kind.items() if kind in whole or not whole}
    assert set(whole) <= every_kind.keys()
    drawn = random.Random(7)
    assert two.carry_out(apply(low, store)) == "done"
    for kind, (before, after) in kinds.items():
        bring_to(two, before, store)
        every = cases(Client(store).preview(after).steps)
        for step, moment in every if whole else drawn.sample(every, SAMPLE // len(kinds)):
            bring_to(two, before, store)
            for _ in range(3):
                next(released, None)
            pausing.order_pause(tmp_path, step, moment)
            begun, version = time.monotonic(), apply(after, store)
            two.wait_for_pause()
            outcome = two.carry_out(version)
            assert outcome in ("done", "rolled back"), observe.status(NAME, store)
            assert running(tmp_path) == known(tmp_path)
            two.go_on()
            assert running(tmp_path) == known(tmp_path), "the first one has done something"
            where = f"{step.kind} {getattr(step, 'unit', '')}"
            print(kind, where, moment, outcome, f"{time.monotonic() - begun:.1f}", sep=" | ", flush=True)
    for _ in released:
        pass
    assert two.carry_out(deployments.stop(NAME, store, how="finish")) == "done"
    assert two.fenced >= (SAMPLE if not whole else 10)
    expected = batch_result(endpoint.session(), low.dataflow, CONTINUUM)["out"]
    assert expected.num_rows > 20
    assert not compare(expected, written(out))


def cases(steps: tuple[Step, ...]) -> list[tuple[Step, str]]:
    """Return every step with every moment at which a controller may be paused in it."""
    return [(step, moment) for step in steps if not isinstance(step, Watch) for moment in MOMENTS]


def bring_to(two: Two, plan: DeploymentPlan, store: str) -> None:
    """Bring the deployment to a plan, whether or not the change before succeeded."""
    if not Client(store).preview(plan).same:
        assert two.carry_out(apply(plan, store)) == "done"
