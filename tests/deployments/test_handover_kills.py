"""The kill matrix: kill the controller, the old and the new unit's Spark, or all, at every step of every change.

One deployment is changed repeatedly while rows flow. After each kill it ends in the new plan or in the
previous plan, and in the end no row is lost or doubled. A random part of the matrix is a test;
``HEADWATER_KILLS="fission fusion migration"``, or some of them, runs all of these; each kill is printed. Where all are
killed, the power is cut: files that were not synced are lost or damaged.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.app import deployments, observe
from headwater.app.client import Client
from headwater.plan.document import plan_id
from headwater.plan.model import DeploymentPlan
from headwater.plan.steps import Step
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import BoundedSource, batch_result, compare
from tests.deployments import killing
from tests.deployments.controllers import apply
from tests.deployments.flows import lifted, rows
from tests.deployments.powercut import DAMAGES, cut_power
from tests.deployments.test_divided_joins import flow as joining
from tests.deployments.test_handover import CONTINUUM, NAME, planned, written
from tests.patience import PATIENCE

SAMPLE = 12


class KilledController:
    """A controller in a separate process that is restarted after each kill."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._drawn = random.Random(3)
        self.kills = 0
        self.damaged = 0
        """Files that power cuts have damaged."""
        self._start()

    def _start(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        command = [sys.executable, "-m", "tests.deployments.killing", str(self._place / "store.db")]
        with (self._place / "up.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, str(self._place)],
                stdout=log,
                stderr=log,
                cwd=root,
                env={**os.environ, "PYTHONPATH": root},
            )

    def carry_out(self, version: int) -> str:
        """Wait until a version is finished; return its outcome."""
        deadline = time.monotonic() + PATIENCE
        while True:
            (now,) = observe.status(NAME, str(self._place / "store.db"))
            if now.observed_version >= version:
                assert now.change is not None
                return str(now.change.outcome)
            if self._process.poll() is not None:
                assert self._process.returncode == -signal.SIGKILL
                self.kills += 1
                if killing.was_cut(self._place):
                    self._damage()
                self._start()
            assert time.monotonic() < deadline, now
            time.sleep(0.05)

    def _damage(self) -> None:
        for zone in sorted((self._place / "zones").iterdir()):
            damage = DAMAGES[self._drawn.choice(sorted(DAMAGES))]
            self.damaged += len(cut_power(zone / "deployments" / NAME, damage, self._drawn))

    def end(self) -> None:
        """End the controller."""
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[KilledController]:
    started = KilledController(tmp_path)
    try:
        yield started
    finally:
        started.end()
        deployments.down(tmp_path)


TARGETS = ("controller", "E1", "C1", killing.POWER)


def cases(steps: tuple[Step, ...], targets: tuple[str, ...]) -> list[tuple[Step, str]]:
    """Return every step with every process that may be killed at it."""
    return [(step, target) for step in steps for target in targets]


@pytest.mark.long
@pytest.mark.timeout(10_000)
@pytest.mark.parametrize("targets", [TARGETS, (killing.POWER,)], ids=["kills", "power cuts"])
def test_a_kill_at_any_step_loses_nothing(
    endpoint: LocalEndpoint, tmp_path: Path, controller: KilledController, targets: tuple[str, ...]
) -> None:
    whole = os.environ.get("HEADWATER_KILLS", "").split()
    made = rows(4000 if whole else 600, seed=23)["L1"]
    source = BoundedSource(tmp_path / "in", {"L1": made}, rows_per_file=3)
    out, released = tmp_path / "out", iter(source.release())
    low = planned(source.path, str(out), "list")  # all state at the edge
    high = planned(source.path, str(out), "rising")  # most of it in the cloud
    alone = planned(source.path, str(out), "list", ("once", "rising"))
    away = planned(source.path, str(out), "rising", ("counted", "list"))
    every_kind = {"fission": (low, high), "fusion": (high, low), "migration": (alone, away)}
    kinds = {kind: plans for kind, plans in every_kind.items() if kind in whole or not whole}
    assert set(whole) <= every_kind.keys()
    killed = change_under_kills(tmp_path, controller, kinds, targets, released, sample=None if whole else SAMPLE)
    assert controller.damaged or killing.POWER not in killed, "all was synced: nothing is shown"
    expected = batch_result(endpoint.session(), low.dataflow, CONTINUUM)["out"]
    assert expected.num_rows > 20
    assert not compare(expected, written(out))


@pytest.mark.long
@pytest.mark.timeout(10_000)
def test_a_kill_while_a_join_is_divided_or_merged_loses_nothing(
    endpoint: LocalEndpoint, tmp_path: Path, controller: KilledController
) -> None:
    """Its state is divided over zones by location, and merged."""
    made = rows(900, seed=34)
    source = BoundedSource(tmp_path / "in", {n: made[n][:450] for n in ("L1", "L2")}, rows_per_file=4)
    dataflow = joining(source.path, tmp_path / "out", ["L1", "L2"], "left")
    below, above = (lifted(dataflow, CONTINUUM, first) for first in ("list", "pairs"))
    kinds = {"merging": (below, above), "division": (above, below)}
    targets = (*TARGETS, "E2", killing.RESHAPER)
    change_under_kills(tmp_path, controller, kinds, targets, iter(source.release()), sample=SAMPLE)
    expected = batch_result(endpoint.session(), dataflow, CONTINUUM)["out"]
    pairs = [row for row in expected.to_pylist() if row["other"] is not None]
    assert 100 < len(pairs) < expected.num_rows
    assert not compare(expected, written(tmp_path / "out"))


def change_under_kills(
    place: Path,
    controller: KilledController,
    kinds: dict[str, tuple[DeploymentPlan, DeploymentPlan]],
    targets: tuple[str, ...],
    released: Iterator[object],
    *,
    sample: int | None,
) -> set[str]:
    """Make each kind of change with each of the kills, or with a sample of them; then let all rows come, and finish.

    Return what was killed.
    """
    store, drawn, killed = str(place / "store.db"), random.Random(5), set[str]()
    first = next(iter(kinds.values()))[0]
    assert controller.carry_out(apply(first, store)) == "done"
    for kind, (before, after) in kinds.items():
        go_to(controller, before, store)
        every = cases(Client(store).preview(after).steps, targets)
        for step, target in every if sample is None else drawn.sample(every, sample // len(kinds)):
            go_to(controller, before, store)
            for _ in range(3):
                next(released, None)
            killing.order_kill(place, step, target)
            killed.add(target)
            begun = time.monotonic()
            outcome = controller.carry_out(apply(after, store))
            assert not killing.is_ordered(place), (kind, step, target)
            (now,) = observe.status(NAME, store)
            assert outcome in ("done", "rolled back", "failed"), now
            where = f"{step.kind} {getattr(step, 'unit', '')}"
            print(kind, where, target, outcome, round(time.monotonic() - begun, 1), sep=" | ", flush=True)
    for _ in released:
        pass
    assert controller.carry_out(deployments.stop(NAME, store, how="finish")) == "done"
    return killed


def go_to(controller: KilledController, plan: DeploymentPlan, store: str) -> None:
    """Bring the deployment to a plan, whether or not the change before succeeded."""
    (now,) = observe.status(NAME, store)
    shown = Client(store).preview(plan)
    if now.active_plan == plan_id(shown.diff.wanted) and not shown.steps:
        return
    assert controller.carry_out(apply(plan, store)) == "done"
