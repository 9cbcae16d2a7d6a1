"""How often Spark is asked which queries are active."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.agent import activeruns
from headwater.agent.activeruns import ActiveRuns, Stages, stages_of


class Spark:
    """A clock, and a Spark that counts requests."""

    def __init__(self) -> None:
        self.at, self.asked, self.runs, self.error = 100.0, 0, {"r"}, False
        self._known = ActiveRuns()

    def monotonic(self) -> float:
        return self.at

    def _ask(self) -> Collection[str]:
        self.asked += 1
        if self.error:
            raise ConnectionError
        return set(self.runs)

    def each_second(self, seconds: int, stages: Stages | None) -> int:
        """Ask each second; return the number of requests."""
        before = self.asked
        for _ in range(seconds):
            self.at += 1.0
            self._known.now(self._ask, stages)
        return self.asked - before

    def now(self, stages: Stages | None) -> Collection[str]:
        return self._known.now(self._ask, stages)


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    made = Spark()
    monkeypatch.setattr(activeruns, "time", made)
    return made


RESTS: Stages = {"r": (3, 3)}


def test_spark_is_asked_each_time_until_the_queries_have_rested_for_a_while(spark: Spark) -> None:
    assert spark.each_second(10, RESTS) == 10
    assert spark.each_second(20, RESTS) == 4


@pytest.mark.parametrize("moved", [{"r": (4, 4)}, {"r": (4, 3)}, {"r": (3, 3), "s": (-1, -1)}, {"t": (3, 3)}, None])
def test_it_is_asked_at_once_when_a_query_moves(spark: Spark, moved: Stages | None) -> None:
    spark.each_second(30, RESTS)
    spark.runs = {"other"}
    assert spark.each_second(1, moved) == 1 and spark.now(moved) == {"other"}
    assert spark.each_second(9, moved) == 9


def test_it_is_asked_each_time_while_a_batch_is_planned(spark: Spark) -> None:
    assert spark.each_second(60, {"r": (4, 3)}) == 60


def test_an_error_leaves_no_answer(spark: Spark) -> None:
    spark.each_second(30, RESTS)
    spark.error, spark.at = True, spark.at + 60
    for _ in range(3):
        with pytest.raises(ConnectionError):
            spark.now(RESTS)


def test_stages_are_those_of_the_checkpoints(tmp_path: Path) -> None:
    for log, newest in (("offsets", 11), ("commits", 9)):
        (tmp_path / log).mkdir()
        for batch in range(7, newest + 1):
            (tmp_path / log / str(batch)).touch()
            (tmp_path / log / f".{batch}.crc").touch()

    def running(checkpoint: Path | None, real_time: float = 0.0) -> Any:
        return SimpleNamespace(checkpoint=checkpoint, real_time=real_time, query=SimpleNamespace(runId="r"))

    assert stages_of([running(tmp_path)]) == {"r": (11, 9)}
    assert stages_of([running(tmp_path / "new")]) == {"r": (-1, -1)}
    assert stages_of([running(tmp_path), running(None)]) is None
    assert stages_of([running(tmp_path, real_time=5.0)]) is None
