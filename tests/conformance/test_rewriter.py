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
from headwater.state.rewriterprocess import Spare
from headwater.state.savedstate import StateStore
from tests.conformance.test_join_state import by_id, held, made, ran, saved, taken
from tests.faults import until


@pytest.fixture
def spare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spare]:
    """Replace the process that all transfers share by one of the test."""
    found = Spare(kept=600.0)
    monkeypatch.setattr(reshape, "SPARE", found)
    yield found
    found.end()


def process_of(spare: Spare) -> int:
    assert spare._process is not None
    return spare._process.pid


def test_it_finds_what_has_changed_at_the_same_paths(spark: Any, tmp_path: Path, spare: Spare) -> None:
    used = []
    for count in (24, 12):
        whole = ran(spark, tmp_path / f"{count}", *made(count), "inner")
        store, rows = StateStore(str(tmp_path / f"store{count}")), []
        for index in (0, 1):
            shutil.rmtree(tmp_path / "part", ignore_errors=True)
            part = KeyPart(column="K", type="string", index=index, count=2)
            rows += held(spark, taken(tmp_path / "part", saved([whole], store), store, part=part), "left")
            used.append(process_of(spare))
        assert by_id(rows) == by_id(held(spark, whole, "left"))
    assert len(set(used)) == 1


def test_a_killed_one_is_replaced_and_none_outlives_its_time() -> None:
    spare = Spare(kept=0.1)
    first = spare.ask([], where="nowhere")
    until(lambda: not psutil.pid_exists(first))
    spare = Spare(kept=600.0)
    second = spare.ask([], where="nowhere")
    os.kill(second, signal.SIGKILL)
    until(lambda: spare._process is None or not spare._process.alive)
    third = spare.ask([], where="nowhere")
    assert third != second
    with pytest.raises(RuntimeFailure, match="could not be rewritten"):
        spare.ask([{"pieces": []}], where="nowhere")
    assert spare.ask([], where="nowhere") != third
    spare.end()


def test_it_does_not_wait_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.state.rewriterprocess.memory_free", lambda: 0)
    spare = Spare(kept=600.0)
    assert not psutil.pid_exists(spare.ask([], where="nowhere"))
