"""Idle inputs, and the event time up to which they do not hold back a unit."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headwater.agent.idleness import IdleInputs, InputSeen, lift_of
from headwater.channels.base import END
from headwater.channels.filelog import FileLog
from headwater.dataflow.types import EventTime
from headwater.plan.model import Channel
from headwater.query.counting import Counting, Tally, WatermarkInput
from headwater.query.query import Running


def seen(name: str, at: int | None, *, quiet: float = 0.0, idle_after: float | None = 60.0) -> InputSeen:
    return InputSeen(name=name, location=name.upper(), time=at, quiet=quiet, idle_after=idle_after)


@pytest.mark.parametrize(
    ("inputs", "lift"),
    [
        ([seen("a", 5, quiet=60), seen("b", 9), seen("c", 7)], 7),
        ([seen("a", 5, quiet=60), seen("b", 9), seen("c", None)], None),  # c may bring rows of any event time
        ([seen("a", 5, quiet=60), seen("b", 9, quiet=99)], 9),  # no input holds back the input that is ahead
        ([seen("a", None, quiet=60), seen("b", 9, quiet=99, idle_after=None)], 9),
        ([seen("a", 5, quiet=60), seen("b", END)], 5),  # an ended input does not count
        ([seen("a", 5, quiet=60), seen("b", END), seen("c", 7)], 7),
    ],
)
def test_the_least_of_the_active_inputs_counts(inputs: list[InputSeen], lift: int | None) -> None:
    assert lift_of(inputs) == lift


def test_an_input_is_lifted_when_it_is_idle_and_behind() -> None:
    known = IdleInputs()
    assert known.lifts([seen("a", 5, quiet=59), seen("b", 9)]) == {}
    assert known.locations == ()
    assert known.lifts([seen("a", 5, quiet=60), seen("b", 9)]) == {"a": 9}
    assert known.locations == ("A",)
    assert known.lifts([seen("a", 5, quiet=61), seen("b", 9)]) == {}
    assert known.lifts([seen("a", 5, quiet=62), seen("b", 12)]) == {"a": 12}
    assert known.lifts([seen("a", 14, quiet=62), seen("b", 12)]) == {}
    assert known.lifts([seen("a", 5), seen("b", 20)]) == {}  # no longer idle
    assert known.locations == ()


def test_a_query_that_looks_seldom_has_not_missed_rows() -> None:
    source = WatermarkInput("t_a", "A", (0,), 1.0, 60.0)
    running = Running(None, tally=Tally(Counting(inputs=[source])))  # type: ignore[arg-type]
    running.tally.heard[0] = time.monotonic() - 90
    running.tally.times["t_a"] = 5_000_000
    (often,) = IdleInputs().of_reads(running, 0.5, ())
    (seldom,) = IdleInputs().of_reads(running, 600.0, ())
    assert (often.idle, seldom.idle, often.time) == (True, False, 4_000_000)


def test_a_single_input_is_not_left_out() -> None:
    known = IdleInputs()
    assert known.lifts([seen("a", 5, quiet=60)]) == {}
    assert known.locations == ()


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_makes_no_input_idle(monkeypatch: pytest.MonkeyPatch, hours: int, tmp_path: Path) -> None:
    """All inputs would be idle at once, and lifted to the one that is ahead: the others' rows would be late."""
    log = FileLog(tmp_path / "log", event_time="ts", fsync=False)
    log.create()
    sources = [WatermarkInput("t_a", "A", (0,), 1.0, 60.0), WatermarkInput("t_b", "B", (1,), 1.0, 60.0)]
    running = Running(None, tally=Tally(Counting(inputs=sources)))  # type: ignore[arg-type]
    known, real = IdleInputs(), time.time
    running.tally.take({"sources": [{"numInputRows": 5}, {"numInputRows": 5}]}, time.monotonic())
    running.tally.times |= {"t_a": 5_000_000, "t_b": 9_000_000}
    channel = Channel(
        operator="clean", node="E1", zone="E1", tag="1", producer="clean@E1", routes={},
        event_time=EventTime("ts", 1.0, 60.0),
    )  # fmt: skip
    assert known.of_channel(channel, log, read=True) is not None
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600.0)
    found = [*known.of_reads(running, 0.5, ()), known.of_channel(channel, log, read=True)]
    assert not any(one.idle for one in found if one is not None)
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 61.0)  # type: ignore[misc]
    found = [*known.of_reads(running, 0.5, ()), known.of_channel(channel, log, read=True)]
    assert all(one.idle for one in found if one is not None) and known.is_due([60.0])
