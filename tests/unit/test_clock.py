"""A machine's clock that is set forward and back by an hour: channels stay exact, and nothing waits for the hour."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.channels.base import ChannelLimits
from headwater.channels.filelog import FileLog
from headwater.control.store import Store
from headwater.core.errors import ChannelFull
from headwater.disk.durable import is_fresh
from headwater.query.latency import Passed, latency

HOUR = 3600.0
SetClock = Callable[[float], None]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Return a function that sets the machine's clock to a time that is wrong by some seconds."""
    real = time.time

    def set_by(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + seconds)

    return set_by


def rows(batch: int) -> pa.Table:
    return pa.table({"id": [2 * batch, 2 * batch + 1]})


def ids(log: FileLog, start: int, end: int) -> list[int]:
    return [i for batch in log.read(start, end) for i in batch["id"].to_pylist()]


def test_a_channel_keeps_and_reclaims_as_before(tmp_path: Path, set_clock: SetClock) -> None:
    """Its entries carry times of the clock and its files have them; positions alone decide."""
    log = FileLog(tmp_path / "log", fsync=False)
    log.register("r")
    found: list[int] = []
    for batch in range(24):
        wrong = (0.0, HOUR, -HOUR)[batch % 3]
        set_clock(wrong)
        writer = FileLog(log.path, fsync=False)
        segment = writer.open_segment(rows(batch).schema)
        for part in rows(batch).to_batches():
            segment.write(part)
        written = segment.close()
        assert written is not None
        os.utime(log.path / "staging" / str(written.file), times=(time.time(),) * 2)
        assert writer.commit(1, batch, [written])
        os.utime(log.path / "log" / f"{batch:012d}", times=(time.time(),) * 2)
        assert not writer.commit(1, batch, [])  # repeated, as after a crash
        if batch % 2:
            found += ids(log, log.register("r"), log.latest())
            log.advance("r", log.latest())
        assert all(backlog.age >= 0 for backlog in log.stats().unread.values())
    assert found == list(range(48)) and log.earliest() == 24
    assert len(list((log.path / "data").iterdir())) <= 1 and not list((log.path / "staging").iterdir())


def test_a_limit_of_age_goes_by_the_clock_but_drops_nothing_when_it_blocks(tmp_path: Path, set_clock: SetClock) -> None:
    log = FileLog(tmp_path / "log", fsync=False, limits=ChannelLimits(max_age=600.0, block_timeout=0.1))
    log.register("r")
    log.append(rows(0), epoch=1, batch=0)
    set_clock(HOUR)
    with pytest.raises(ChannelFull):
        log.append(rows(1), epoch=1, batch=1)
    set_clock(0.0)
    assert log.append(rows(1), epoch=1, batch=1)
    set_clock(HOUR)
    log.advance("r", log.latest())
    assert log.append(rows(2), epoch=1, batch=2)  # what is read is not old
    set_clock(0.0)
    assert log.append(rows(3), epoch=1, batch=3)
    assert ids(log, log.register("r"), log.latest()) == [4, 5, 6, 7] and log.stats().dropped_rows == 0


def test_the_lease_does_not_go_by_the_clock(tmp_path: Path, set_clock: SetClock) -> None:
    one, other = (Store(tmp_path / "store.db") for _ in range(2))
    assert one.hold("one", 60.0) == 1
    for wrong in (HOUR, -HOUR, 0.0):
        set_clock(wrong)
        assert other.hold("two", 60.0) is None and one.hold("one", 60.0) == 1
    one.close()
    other.close()


def test_latency_is_never_negative() -> None:
    found = latency([Passed(batch=1, at=10.0, rows=5, oldest=10.0 + HOUR, newest=11.0 + HOUR)])
    assert found is not None and found.p50 == found.p95 == 0.0


def test_a_file_of_a_clock_that_was_set_back_is_not_fresh(tmp_path: Path) -> None:
    """An idle unit writes its last watermark a second after its last batch; it must not wait for the hour."""
    file = tmp_path / "7"
    file.touch()
    assert is_fresh(file, 60.0)
    for age in (61.0, -HOUR):
        os.utime(file, times=(time.time() - age,) * 2)
        assert not is_fresh(file, 60.0)
