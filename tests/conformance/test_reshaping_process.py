"""One process rewrites state again and again, on a real Spark."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headwater.core.errors import RuntimeFailure
from headwater.plan.transfer import KeyPart
from headwater.state import reshape
from headwater.state.reshapingprocess import WaitingProcess
from headwater.state.savedstate import StateStore
from tests.conformance.test_join_state import by_id, held, made, ran, saved, taken
from tests.faults import until


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[WaitingProcess]:
    """Replace the process that all transfers share by one of the test."""
    found = WaitingProcess(kept=600.0)
    monkeypatch.setattr(reshape, "SHARED", found)
    yield found
    found.end()


def process_of(waiting: WaitingProcess) -> int:
    assert waiting._process is not None
    return waiting._process.pid


def test_it_finds_what_has_changed_at_the_same_paths(spark: Any, tmp_path: Path, waiting: WaitingProcess) -> None:
    used = []
    for count in (24, 12):
        whole = ran(spark, tmp_path / f"{count}", *made(count), "inner")
        store, rows = StateStore(str(tmp_path / f"store{count}")), []
        for index in (0, 1):
            shutil.rmtree(tmp_path / "part", ignore_errors=True)
            part = KeyPart(column="K", type="string", index=index, count=2)
            rows += held(spark, taken(tmp_path / "part", saved([whole], store), store, part=part), "left")
            used.append(process_of(waiting))
        assert by_id(rows) == by_id(held(spark, whole, "left"))
    assert len(set(used)) == 1


@pytest.mark.long
def test_a_killed_one_is_replaced(waiting: WaitingProcess) -> None:
    first = waiting.ask([], where="nowhere")
    os.kill(first, signal.SIGKILL)
    until(lambda: waiting._process is None or not waiting._process.alive)
    assert waiting.ask([], where="nowhere") != first
    with pytest.raises(RuntimeFailure, match="could not be rewritten"):
        waiting.ask([{"pieces": []}], where="nowhere")


def test_it_does_not_wait_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.state.reshapingprocess.memory_free", lambda: 0)
    assert not psutil.pid_exists(WaitingProcess(kept=600.0).ask([], where="nowhere"))


@pytest.mark.long
def test_none_outlives_its_time() -> None:
    first = WaitingProcess(kept=0.1).ask([], where="nowhere")
    until(lambda: not psutil.pid_exists(first))
