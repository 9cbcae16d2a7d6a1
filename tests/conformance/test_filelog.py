"""The filelog's behaviour beyond the contract: crashes, bounds, corruption."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.channels.base import ChannelLimits, WhenFull
from headwater.channels.filelog import FileLog
from headwater.channels.journal import Journal
from headwater.channels.store import SegmentStore
from headwater.core.errors import ChannelError, ChannelFull

from .conftest import TS, ids, table


class Crash(Exception):
    """Stands for the end of the process at this point."""


def crash(*_args: object, **_named: object) -> None:
    raise Crash


@pytest.fixture
def log(tmp_path: Path) -> FileLog:
    return FileLog(tmp_path / "log", event_time="ts", fsync=False)


def again(log: FileLog, **options: object) -> FileLog:
    """Open the same directory as another process would."""
    return FileLog(log.path, event_time="ts", fsync=False, **options)  # type: ignore[arg-type]


def files(log: FileLog, directory: str) -> list[str]:
    return sorted(os.listdir(log.path / directory))


# -- crashes ---------------------------------------------------------------------------------

WRITER = """
import sys
from headwater.channels.filelog import FileLog
import pyarrow as pa
log = FileLog(sys.argv[1], event_time="ts", fsync=False)
last = log.tail()
for batch in range(last.batch + 1 if last else 0, 100_000):
    # every batch twice, as after a crash between publishing and Spark's commit
    for _ in range(2):
        rows = [batch * 3 + i for i in range(3)]
        times = pa.array(rows, pa.timestamp("us", tz="UTC"))
        log.append(pa.table({"id": rows, "ts": times}), epoch=1, batch=batch)
    print(batch, flush=True)
"""


def test_exactly_once_when_the_writer_is_killed_at_random_moments(log: FileLog) -> None:
    chance = random.Random(7)
    log.register("r")
    read: list[int] = []
    said = -1
    for _ in range(8):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(log.path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.15))
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()
        writer.stdout.close()
        writer.wait(10)
        said = int(rest[-1]) if rest else said
        position = log.register("r")
        end = log.latest()
        read += ids(log, position, end)
        again(log).advance("r", end)
    assert read == list(range(len(read)))
    assert len(read) >= 3 * (said + 1) > 24
    again(log).append(table([1]), epoch=2, batch=0)
    again(log).append(table([2]), epoch=2, batch=1)
    assert ids(log) == [1, 2]
    assert len(files(log, "data")) == 2, "killed attempts must leave nothing behind"
    assert files(log, "staging") == []


def test_a_crash_right_after_publishing_loses_nothing(log: FileLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(table([1]), epoch=1, batch=0)
    with monkeypatch.context() as patch:
        patch.setattr(SegmentStore, "promote", lambda self, segments: None if log.latest() == 1 else crash())
        with pytest.raises(Crash):
            log.append(table([2]), epoch=1, batch=1)
    other = again(log)
    assert ids(other) == [1, 2]  # still in staging, and readable
    assert not other.append(table([2]), epoch=1, batch=1)
    assert files(log, "staging") == []
    other.append(table([3]), epoch=1, batch=2)
    assert ids(other) == [1, 2, 3]


def test_leftovers_are_swept_but_not_those_of_a_running_attempt(log: FileLog) -> None:
    def stage(i: int) -> Path:
        writer = log.open_segment(table([i]).schema)
        writer.write(table([i]).to_batches()[0])
        piece = writer.close()
        assert piece is not None
        return log.path / "staging" / str(piece.file)

    crashed = stage(0)
    time.sleep(0.02)
    log.append(table([1]), epoch=1, batch=0)
    time.sleep(0.02)
    running = stage(2)
    assert crashed.exists()
    log.append(table([3]), epoch=1, batch=1)
    assert running.exists()
    assert not crashed.exists()
    time.sleep(0.02)
    log.append(table([4]), epoch=1, batch=2)
    assert not running.exists()
    assert ids(log) == [1, 3, 4]


def test_two_writers_cannot_take_one_number(log: FileLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old writer looked before the new one published, and publishes after it."""
    log.append(table([1]), epoch=1, batch=0)
    zombie = again(log)
    publish = Journal.publish

    def slow(journal: Journal, number: int, body: dict[str, object]) -> bool:
        monkeypatch.setattr(Journal, "publish", publish)
        again(log).append(table([2]), epoch=2, batch=0)
        return publish(journal, number, body)

    monkeypatch.setattr(Journal, "publish", slow)
    with pytest.raises(ChannelError, match="out of date"):
        zombie.append(table([3]), epoch=1, batch=1)
    assert ids(log) == [1, 2]


@pytest.mark.parametrize("step", ["before deleting", "between segment and entry", "after deleting"])
def test_an_interrupted_reclaim_is_finished_by_the_next(
    log: FileLog, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    log.register("r")
    for batch in range(6):
        log.append(table([batch]), epoch=1, batch=batch)
    with monkeypatch.context() as patch:
        if step == "before deleting":
            patch.setattr(SegmentStore, "delete", crash)
        elif step == "between segment and entry":
            patch.setattr(Journal, "discard", crash)
        else:
            calls = iter([False, True])
            write = log._keep.write_floor
            patch.setattr(log._keep, "write_floor", lambda *a, **k: crash() if next(calls) else write(*a, **k))
        with pytest.raises(Crash):
            log.advance("r", 3)
    other = again(log)
    assert other.earliest() == 3
    assert ids(other) == [3, 4, 5]
    assert other.frontier(3) == 2_000_000
    other.advance("r", 4)
    assert len(files(other, "data")) == 2
    assert files(other, "log") == ["000000000004", "000000000005"]
    assert ids(other) == [4, 5]


# -- bounds ----------------------------------------------------------------------------------


def bounded(log: FileLog, when_full: WhenFull, *, batches: float = 2.5, timeout: float = 0.3) -> FileLog:
    """Return a log with room for some batches of one row."""
    log.register("r")
    log.append(table([0]), epoch=1, batch=0)
    size = log.stats().bytes
    limits = ChannelLimits(max_bytes=int(size * batches), when_full=when_full, block_timeout=timeout)
    return again(log, limits=limits)


def test_fail_when_full(log: FileLog) -> None:
    full = bounded(log, "fail")
    full.append(table([1]), epoch=1, batch=1)
    with pytest.raises(ChannelFull, match="'r' at 0 of 2") as error:
        full.append(table([2]), epoch=1, batch=2)
    assert error.value.retryable
    full.advance("r", 1)
    assert full.append(table([2]), epoch=1, batch=2)
    assert ids(full) == [1, 2]


def test_block_when_full_until_there_is_room(log: FileLog) -> None:
    full = bounded(log, "block", timeout=20)
    full.append(table([1]), epoch=1, batch=1)
    reader = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; time.sleep(0.5); from headwater.channels.filelog import FileLog;"
            "FileLog(sys.argv[1]).advance('r', 1)",
            str(log.path),
        ]
    )
    started = time.monotonic()
    assert full.append(table([2]), epoch=1, batch=2)
    assert 0.4 < time.monotonic() - started < 15
    assert reader.wait(10) == 0
    assert ids(full) == [1, 2]


def test_block_when_full_gives_up(log: FileLog) -> None:
    full = bounded(log, "block", timeout=0.2)
    full.append(table([1]), epoch=1, batch=1)
    with pytest.raises(ChannelFull, match=r"full for 0\.2 s"):
        full.append(table([2]), epoch=1, batch=2)
    assert ids(full) == [0, 1]


def test_drop_newest_when_full_is_counted_and_recorded(log: FileLog) -> None:
    full = bounded(log, "drop_newest")
    for batch in range(1, 5):
        full.append(table([batch]), epoch=1, batch=batch)
    assert ids(full) == [0, 1]
    assert again(log).stats().dropped_rows == 3
    full.advance("r", full.latest())
    assert not full.append(table([4]), epoch=1, batch=4)  # dropped for good: a replay must not differ
    assert full.append(table([5]), epoch=1, batch=5)
    assert (ids(full), again(log).stats().dropped_rows) == ([5], 3)
    assert files(full, "staging") == []
    assert len(files(full, "data")) == 1


def test_drop_oldest_when_full_moves_the_floor(log: FileLog) -> None:
    full = bounded(log, "drop_oldest")
    for batch in range(1, 6):
        full.append(table([batch]), epoch=1, batch=batch)
    assert ids(full) == [4, 5]
    stats = again(log).stats()
    assert (stats.dropped_rows, stats.earliest, stats.rows) == (4, 4, 6)
    assert stats.unread["r"].rows == 2
    assert ids(full, 0, 6) == [4, 5]
    assert len(files(full, "data")) == 2
    full.advance("r", 5)
    assert (ids(full), again(log).stats().dropped_rows) == ([5], 4)


def test_drop_oldest_lets_a_task_go_on_that_planned_what_was_dropped(log: FileLog) -> None:
    full = bounded(log, "drop_oldest")
    planned = list(full.entries(0, 1))
    for batch in range(1, 4):
        full.append(table([batch]), epoch=1, batch=batch)
    assert [b for e in planned for s in e.segments for b in full.read_segment(e.seq, s)] == []
    assert full.stats().lost_rows == 0  # counted as dropped, not as lost


@pytest.mark.parametrize("policy", ["fail", "drop_oldest", "drop_newest"])
def test_a_batch_above_the_bound_enters_an_empty_channel(log: FileLog, policy: WhenFull) -> None:
    full = bounded(log, policy)
    full.advance("r", 1)
    assert full.append(table(list(range(5000))), epoch=1, batch=1)
    assert full.stats().bytes > (full.limits.max_bytes or 0)
    assert len(ids(full)) == 5000


def test_age_bound(log: FileLog) -> None:
    log.register("r")
    log.append(table([0]), epoch=1, batch=0)
    young = again(log, limits=ChannelLimits(max_age=60, when_full="fail"))
    assert young.append(table([1]), epoch=1, batch=1)
    old = again(log, limits=ChannelLimits(max_age=0.05, when_full="fail"))
    time.sleep(0.1)
    with pytest.raises(ChannelFull, match=r"oldest unread entry is .* max_age=0\.05"):
        old.append(table([2]), epoch=1, batch=2)
    dropping = again(log, limits=ChannelLimits(max_age=0.05, when_full="drop_oldest"))
    assert dropping.append(table([2]), epoch=1, batch=2)
    assert (ids(log), log.stats().dropped_rows) == ([2], 2)


# -- corruption ------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


DAMAGES = pytest.mark.parametrize("damage", [flip, truncate, Path.unlink, lambda path: path.write_bytes(b"")])


def damaged(log: FileLog, damage: Callable[[Path], object]) -> Path:
    for batch in range(3):
        log.append(table([batch] * 5), epoch=1, batch=batch)
    (segment,) = next(log.entries(1, 2)).segments
    path = log.path / "data" / str(segment.file)
    damage(path)
    return path


@DAMAGES
def test_a_damaged_segment_is_quarantined(log: FileLog, damage: Callable[[Path], object]) -> None:
    path = damaged(log, damage)
    for _ in range(2):  # a replay gives the same, and counts nothing twice
        assert ids(log) == [0] * 5 + [2] * 5
        assert again(log).stats().lost_rows == 5
    assert not path.exists()
    assert f"{path.name}.json" in files(log, "quarantine")


@DAMAGES
def test_a_damaged_segment_stops_a_strict_reader(log: FileLog, damage: Callable[[Path], object]) -> None:
    path = damaged(log, damage)
    with pytest.raises(ChannelError, match="entry 1 with 5 rows") as error:
        ids(again(log, on_corrupt="stop"))
    assert error.value.where == str(path)
    assert error.value.hint
    assert log.stats().lost_rows == 0


@pytest.mark.parametrize("damage", [flip, truncate, lambda path: path.write_bytes(b"")])
def test_a_damaged_entry_is_a_clear_error(log: FileLog, damage: Callable[[Path], object]) -> None:
    for batch in range(3):
        log.append(table([batch]), epoch=1, batch=batch)
    path = log.path / "log" / "000000000002"
    damage(path)
    for call in (again(log).tail, lambda: ids(again(log)), again(log).stats):
        with pytest.raises(ChannelError, match="damaged entry") as error:
            call()
        assert error.value.where == str(path)


def test_a_damaged_small_file_is_a_clear_error(log: FileLog) -> None:
    log.append(table([1]), epoch=1, batch=0)
    for name in ("floor.json", "schema.json"):
        (log.path / name).write_bytes(b'{"se')
    with pytest.raises(ChannelError, match="not readable as JSON"):
        again(log).append(table([2]), epoch=1, batch=1)
    with pytest.raises(ChannelError, match="not readable as JSON"):
        again(log).stats()


def test_a_torn_reader_position_keeps_everything(log: FileLog) -> None:
    """Positions are not synced, so a power cut may leave an empty file."""
    log.register("r")
    for batch in range(3):
        log.append(table([batch]), epoch=1, batch=batch)
    log.advance("r", 1)
    (log.path / "readers" / "r.json").write_bytes(b"")
    assert again(log).register("r") == 1
    again(log).advance("r", 2)
    assert ids(log) == [2]


# -- the rest --------------------------------------------------------------------------------


def test_finding_the_newest_entry_does_not_list(log: FileLog, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch in range(300):
        log.append(table([batch]), epoch=1, batch=batch)
    (log.path / "log.hint").write_text("17")  # stale: it is written without sync
    monkeypatch.setattr("headwater.channels.journal.os.listdir", crash)
    assert again(log).latest() == 300
    monkeypatch.undo()
    for bad in ("", "x", "5000"):
        (log.path / "log.hint").write_text(bad)
        assert again(log).latest() == 300


def test_sync_or_not_writes_the_same(tmp_path: Path) -> None:
    for fsync in (True, False):
        log = FileLog(tmp_path / str(fsync), event_time="ts", fsync=fsync)
        log.register("r")
        for batch in range(5):
            log.append(table([batch]), epoch=1, batch=batch)
        log.advance("r", 2)
        assert ids(log) == [2, 3, 4]


def test_event_time_may_be_a_window(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "log", event_time="w", fsync=False)
    window = pa.struct([("start", TS), ("end", TS)])
    rows = [{"start": 0, "end": 10_000_000}, None, {"start": 5_000_000, "end": 15_000_000}]
    log.append(pa.table({"w": pa.array(rows, window)}), epoch=1, batch=0)
    assert log.frontier(1) == 14_999_999


def test_a_wrong_event_time_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match="event-time column 'id' is int64"):
        FileLog(tmp_path / "a", event_time="id").append(table([1]), epoch=1, batch=0)
    with pytest.raises(ChannelError, match="event-time column 'when' is missing"):
        FileLog(tmp_path / "b", event_time="when").append(table([1]), epoch=1, batch=0)


def test_any_zone_is_stored_as_utc(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "log", fsync=False)
    rome = pa.array([1], pa.timestamp("us", tz="Europe/Rome"))
    log.append(pa.table({"t": rome}), epoch=1, batch=0)
    log.append(pa.table({"t": rome.cast(TS)}), epoch=1, batch=1)
    assert {str(b.schema.field("t").type) for b in log.read(0, 2)} == {"timestamp[us, tz=UTC]"}


def test_reader_ids_are_file_names(log: FileLog) -> None:
    with pytest.raises(ChannelError, match="not a reader id"):
        log.register("../r")


def test_workers_import_the_log_without_pyarrow() -> None:
    code = (
        "import sys, headwater.channels.filelog;"
        "print(sorted({'pyarrow', 'pandas', 'pyspark', 'pydantic'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert found.stdout.strip() == "[]"


def test_the_lock_is_not_needed_to_publish(log: FileLog) -> None:
    log.register("r")
    with log._keep.lock():
        assert log.append(table([1]), epoch=1, batch=0)
