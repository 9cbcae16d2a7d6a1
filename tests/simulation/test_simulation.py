"""Drawn histories of a simulated world, each in a Python of its own whose order of sets is fixed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.regressions import REGRESSIONS

ROOT = Path(__file__).parents[2]


def simulate(*arguments: str) -> tuple[int, str]:
    """Run the simulation's command; return its exit code and its output."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_drawn_histories_break_no_rule() -> None:
    code, told = simulate("--histories", "6", "--seed", "0")
    assert code == 0, told


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 21))
def test_many_drawn_histories_break_no_rule(seed: int) -> None:
    code, told = simulate("--histories", "500", "--seed", str(seed))
    assert code == 0, told


def test_histories_that_once_broke_a_rule_break_none() -> None:
    code, told = simulate("--regressions")
    assert code == 0, told


def test_a_regression_is_found_again_with_its_defect() -> None:
    history = REGRESSIONS["a stop reaches a new agent before it has adopted the query"]
    code, told = simulate("--history", repr(history), "--bug", "lost query")
    assert (code, "breaks a rule" in told) == (1, True), told


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(BUGS))
def test_a_defect_in_the_product_is_found(name: str) -> None:
    code, told = simulate("--histories", "1000", "--seed", "1", "--no-shrink", "--bug", name)
    assert (code, "breaks a rule" in told) == (1, True), told


def test_the_same_seed_gives_the_same_history() -> None:
    history = "History((Step('lossy', (0.3, 25.0), 4.0), Step('kill', ('agent S1',), 4.0)), 5)"
    told = {simulate("--history", history, "--trace")[1] for _ in range(2)}
    assert len(told) == 1, told
