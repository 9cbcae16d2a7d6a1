"""The begin of batches of a query whose source waits for it: on arrival of input, at most one in each interval."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from headwater.channels import batchpace
from headwater.channels.batchpace import BatchPace
from headwater.disk.pace import Pace, change_pace, write_pace


class Time:
    """A clock that only sleeping moves; ``at`` has what happens then."""

    def __init__(self) -> None:
        self.now, self.at = 1000.0, dict[float, Callable[[], None]]()

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in sorted(m for m in self.at if m <= self.now):
            self.at.pop(moment)()


class Waits:
    """Waits that end when something happens, as the system reports new files; ``told`` has their arguments."""

    def __init__(self, clock: Time) -> None:
        self._clock, self.told = clock, list[tuple[list[Path], float]]()

    def wait(self, directories: Collection[Path], seconds: float, *, look: float) -> None:
        self.told.append((list(directories), seconds))
        ends = self._clock.now + seconds
        self._clock.sleep(min([ends, *self._clock.at]) - self._clock.now)


class Source:
    """A source with one channel; ``looks`` counts how often it was asked for its newest entry."""

    def __init__(self, file: Path, waits: Waits | None = None) -> None:
        self.pace, self.newest, self.looks = BatchPace(file, waits), 0, 0
        self.places = None if waits is None else [file.parent / "log"]

    def come(self) -> None:
        self.newest += 1

    def next_end(self, start: int, look: float = 0.0) -> int:
        return self.pace.next_end({"x@E1": start}, self._plan, look, lambda: self.places)["x@E1"]

    def _plan(self) -> dict[str, int]:
        self.looks += 1
        return {"x@E1": self.newest}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(batchpace, "time", made)
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "pace.json"
    write_pace(file, Pace(seconds=10.0, on_arrival=True))
    return file


def after_a_batch(file: Path) -> Source:
    """Return a source that has just begun a batch with its first entry."""
    source = Source(file)
    source.come()
    assert source.next_end(0) == 1
    return source


def test_a_batch_begins_when_its_input_comes(file: Path, clock: Time) -> None:
    source = Source(file)
    assert source.next_end(0) == 0 and clock.now == 1000.0, "the first trigger comes at once"
    clock.at[1000.5] = source.come
    assert source.next_end(0) == 1 and clock.now == pytest.approx(1000.5, abs=0.06)


def test_the_next_batch_begins_an_interval_later_at_the_earliest(file: Path, clock: Time) -> None:
    source = after_a_batch(file)
    source.come()
    assert source.next_end(1) == 2 and clock.now == pytest.approx(1010.0, abs=0.02)
    clock.now += 25.0  # the batch took longer
    source.come()
    begun = clock.now
    assert source.next_end(2) == 3 and clock.now == begun


def test_an_entry_that_is_a_little_late_is_awaited_before_a_batch_without_rows(file: Path, clock: Time) -> None:
    source = after_a_batch(file)
    clock.at[1011.0] = source.come
    assert source.next_end(1) == 2 and clock.now == pytest.approx(1011.0, abs=0.06)


def test_a_batch_without_rows_may_follow_and_then_the_source_waits_long(file: Path, clock: Time) -> None:
    source = after_a_batch(file)
    assert source.next_end(1) == 1 and clock.now == pytest.approx(1012.0, abs=0.06)
    begun = clock.now
    assert source.next_end(1) == 1 and clock.now == pytest.approx(begun + 1.0, abs=0.06)
    looks, begun = source.looks, clock.now
    assert source.next_end(1, look=0.5) == 1
    assert source.looks - looks <= 3, "looks at a broker cost more"


def test_a_query_that_is_to_end_begins_no_batch(file: Path, clock: Time) -> None:
    source = after_a_batch(file)
    source.come()
    clock.at[1003.0] = lambda: change_pace(file, ending=True)
    assert source.next_end(1) == 1 and clock.now == pytest.approx(1003.0, abs=0.06)
    assert source.next_end(1) == 1 and source.looks == 1
    change_pace(file, ending=False)
    assert source.next_end(1) == 2 and clock.now == pytest.approx(1010.0, abs=0.06)


def test_a_query_for_which_others_wait_begins_its_batches_at_once(file: Path, clock: Time) -> None:
    source = after_a_batch(file)
    change_pace(file, draining=True)
    source.come()
    assert source.next_end(1) == 2 and clock.now == pytest.approx(1000.0, abs=0.02)
    clock.at[1001.0] = source.come
    assert source.next_end(2) == 3 and clock.now == pytest.approx(1001.0, abs=0.06)
    change_pace(file, draining=False)
    source.come()
    assert source.next_end(3) == 4 and clock.now == pytest.approx(1011.0, abs=0.06)


def test_a_query_whose_input_has_ended_waits_neither_for_its_interval_nor_for_input(file: Path, clock: Time) -> None:
    source = after_a_batch(file)
    source.come()
    change_pace(file, finishing=True)
    assert source.next_end(1) == 2
    assert source.next_end(2) == 2
    assert clock.now == 1000.0
    change_pace(file, ending=True)
    source.come()
    assert source.next_end(2) == 2, "a query that is to be stopped begins no batch"


def test_a_query_with_several_reads_begins_its_batches_at_multiples(file: Path, clock: Time) -> None:
    write_pace(file, Pace(seconds=10.0, on_arrival=False))
    source, clock.now = Source(file), 1003.0
    assert source.next_end(0) == 0 and clock.now == 1003.0
    assert source.next_end(0) == 0 and clock.now == pytest.approx(1010.0, abs=0.06)
    source.come()
    assert source.next_end(0) == 1 and clock.now == pytest.approx(1020.0, abs=0.06)
    clock.now += 12.0  # that batch took longer than the interval
    assert source.next_end(1) == 1 and clock.now == pytest.approx(1032.0, abs=0.06)


def test_spark_times_the_batches_where_there_is_no_file(file: Path, clock: Time) -> None:
    source = Source(file)
    assert source.next_end(0) == 0
    file.unlink()
    source.come()
    assert source.next_end(0) == 1 and source.next_end(1) == 1 and clock.now == 1000.0


def test_a_source_whose_input_is_reported_looks_only_when_something_is_due(file: Path, clock: Time) -> None:
    waits = Waits(clock)
    source = Source(file, waits)
    source.come()
    assert source.next_end(0) == 1
    assert source.next_end(1) == 1 and clock.now == pytest.approx(1012.0), "after the time for a late entry"
    assert source.looks <= 3, "at the end of the interval, and of that time"
    looks, told, begun = source.looks, len(waits.told), clock.now
    assert source.next_end(1) == 1 and clock.now == pytest.approx(begun + 1.0)
    assert source.looks - looks == 2 and len(waits.told) - told == 1
    assert waits.told[-1][0] == [file.parent, file.parent / "log"], "the pace changes in the first one"
    clock.at[clock.now + 0.4] = source.come
    begun = clock.now
    assert source.next_end(1) == 2 and clock.now == pytest.approx(begun + 0.4, abs=1e-6)


def test_shortly_after_input_a_source_looks_for_a_batch_without_a_new_entry(file: Path, clock: Time) -> None:
    write_pace(file, Pace(seconds=0.5, on_arrival=True))
    waits = Waits(clock)
    source = Source(file, waits)
    source.come()
    assert source.next_end(0) == 1 and source.next_end(1) == 1
    begun = clock.now
    source.places = [file.parent / "log"]
    clock.at[begun + 10.0] = source.come
    assert source.next_end(1) == 1 and clock.now == pytest.approx(begun + 1.0, abs=0.06)
    assert max(seconds for _, seconds in waits.told[-5:]) <= 0.05


def test_a_query_that_waits_for_files_is_ended_by_one(file: Path, clock: Time) -> None:
    waits = Waits(clock)
    source = Source(file, waits)
    source.come()
    assert source.next_end(0) == 1
    clock.at[1003.0] = lambda: change_pace(file, ending=True)
    assert source.next_end(1) == 1 and clock.now == 1003.0 and source.looks == 1
