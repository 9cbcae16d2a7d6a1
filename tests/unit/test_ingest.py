"""The ingest times of a batch's rows, from the files in which a query records its reads."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headwater.channels.arrival import arrival_of, record_arrival
from headwater.channels.entry import Entry
from headwater.channels.filelog import FileLog
from headwater.channels.segments import Segment
from headwater.query.ingest import (
    IngestTimes,
    Inputs,
    arrivals,
    files_between,
    ingested_of,
    is_of_channels,
    moved,
)
from headwater.query.latency import WINDOW, LatencyTracking, Passed, latency, quantile

ROW = Segment(file=None, rows=1, bytes=1, crc32=0)


class Query:
    """A checkpoint as Spark leaves it, and the logs that the query reads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoint = root / "checkpoint"
        self.members = root / "x.members.json"
        self.inputs = Inputs(self.checkpoint, (self.members,))
        self.tracking = LatencyTracking(self.inputs, root / "passed")
        self._batch = -1
        self._read: dict[str, Mapping[str, int]] = {}
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text("{}")
        self.list()

    def list(self, *names: str) -> None:
        writers = {name: str(self.root / name) for name in names}
        self.members.write_text(json.dumps({"writers": writers}))

    def log(self, name: str, *entries: tuple[float, float] | None, rows: int = 1) -> FileLog:
        """Write entries with these ingest times."""
        log = FileLog(self.root / name, fsync=False)
        first = log.latest()
        for n, ingested in enumerate(entries):
            # An entry without rows is published only if it moves the frontier.
            piece = Segment(file=None, rows=rows, bytes=1, crc32=0, frontier=first + n + 1)
            log.commit(1, first + n, [piece], ingested=ingested)
        return log

    def plan(self, offsets: Mapping[str, Any], *, at: float | None = None) -> int:
        """Write the end offsets of the next batch, and the arrival times that its channels' readers record."""
        self._batch += 1
        for name, offset in offsets.items():
            if is_of_channels(offset) and offset != self._read.get(name):
                begin = self._read.get(name, {})
                spans = {id_: (begin.get(id_, 0), to) for id_, to in offset.items()}
                found = [e for id_, s in spans.items() for e in FileLog(self.root / id_).entries(*s)]
                record_arrival(self.members, offset, arrival_of(found))
                self._read[name] = offset
        lines = [f"{name}:{o if isinstance(o, str) else json.dumps(o)}" for name, o in offsets.items()]
        file = self.checkpoint / "offsets" / str(self._batch)
        file.write_text("\n".join(["v2", '{"batchWatermarkMs":0}', *lines]))
        if at is not None:
            os.utime(file, (at, at))
        return self._batch

    def commit(self, batch: int) -> None:
        (self.checkpoint / "commits" / str(batch)).write_text("v1\n{}")


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def test_a_batch_is_as_old_as_the_entries_between_its_offsets(query: Query) -> None:
    query.list("a@E1", "b@E2")
    query.log("a@E1", (10.0, 11.0), (12.0, 13.0), (14.0, 15.0))
    query.log("b@E2", (11.5, 12.5), (20.0, 21.0))
    query.plan({"c_x": {"a@E1": 1, "b@E2": 1}})
    query.plan({"c_x": {"a@E1": 3, "b@E2": 1}})
    query.plan({"c_x": {"a@E1": 3, "b@E2": 2}})
    assert ingested_of(query.inputs, 0) == IngestTimes(10.0, 12.5, fresh=True)
    assert ingested_of(query.inputs, 1) == IngestTimes(12.0, 15.0, fresh=True)
    assert ingested_of(query.inputs, 2) == IngestTimes(20.0, 21.0, fresh=True)


def test_a_batch_that_reads_nothing_is_counted_to_the_one_before(query: Query) -> None:
    query.list("a@E1")
    query.log("a@E1", (10.0, 11.0))
    for _ in range(3):
        query.plan({"c_x": {"a@E1": 1}, "e_control": {"logOffset": query._batch}})
    assert ingested_of(query.inputs, 2) == IngestTimes(10.0, 11.0, fresh=False)


def test_what_moves_time_alone_says_what_moved_it(query: Query) -> None:
    query.list("a@E1")
    query.log("a@E1", (10.0, 11.0), rows=0)
    query.plan({"c_x": {"a@E1": 1}})
    assert ingested_of(query.inputs, 0) == IngestTimes(10.0, 11.0, fresh=False)
    query.log("a@E1", (12.0, 13.0))
    query.log("a@E1", (14.0, 15.0), rows=0)
    query.plan({"c_x": {"a@E1": 3}})
    assert ingested_of(query.inputs, 1) == IngestTimes(12.0, 13.0, fresh=True)


def test_unknown_rows_make_it_unknown(query: Query) -> None:
    query.list("a@E1")
    query.log("a@E1", (10.0, 11.0), None)
    query.plan({"c_x": {"a@E1": 1}})
    query.plan({"c_x": {"a@E1": 2}})
    assert ingested_of(query.inputs, 1) is None


def test_files_came_when_they_were_last_written(query: Query) -> None:
    log = query.checkpoint / "sources" / "s_1"
    log.mkdir(parents=True)
    for step in range(9):
        _list(log / str(step), [(step, 1000 * step), (step, 1000 * step + 500)])
    every = [(step, 1000 * step + half) for step in range(10) for half in (0, 500)]
    _list(log / "9.compact", every)
    query.plan({"s_1": {"logOffset": 3}})
    query.plan({"s_1": {"logOffset": 5}})
    query.plan({"s_1": {"logOffset": 9}})
    assert ingested_of(query.inputs, 0) == IngestTimes(0.0, 3.5, fresh=True)
    assert ingested_of(query.inputs, 1) == IngestTimes(4.0, 5.5, fresh=True)
    assert ingested_of(query.inputs, 2) == IngestTimes(6.0, 9.5, fresh=True)


def test_of_a_long_list_of_files_only_the_end_is_read(tmp_path: Path) -> None:
    _list(tmp_path / "9.compact", [(n // 1000, n) for n in range(10_000)])
    assert arrivals(tmp_path, 8, 9) == [(9.0, 9.999)]
    _list(tmp_path / "0", [(0, n) for n in range(5000)])
    assert arrivals(tmp_path, -1, 0) == [(0.0, 4.999)]


def _list(file: Path, entries: list[tuple[int, int]]) -> None:
    lines = [json.dumps({"path": "file:///x/€.json", "timestamp": ms, "batchId": step}) for step, ms in entries]
    file.write_text("\n".join(["v1", *lines]))


def test_anything_else_came_between_two_plans(query: Query) -> None:
    os.utime(query.checkpoint / "metadata", (90.0, 90.0))
    query.plan({"s_1": "7"}, at=100.0)
    query.plan({"s_1": {"topic": {"0": 5}}}, at=103.0)
    assert ingested_of(query.inputs, 0) == IngestTimes(90.0, 100.0, fresh=True)
    assert ingested_of(query.inputs, 1) == IngestTimes(100.0, 103.0, fresh=True)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda q: (q.checkpoint / "offsets" / "0").unlink(),
        lambda q: (q.checkpoint / "offsets" / "1").write_text("v2"),
        lambda q: (q.checkpoint / "offsets" / "1").write_bytes(b"v2\n{}\nc_x:\xff\xfe"),
        lambda q: (q.checkpoint / "offsets" / "1").write_text('v2\n{}\nc_x:{"a@E1": "two"}'),
        lambda q: (q.checkpoint / "offsets" / "1").write_text('v2\n{}\nc_x:{"other@E1": 2}'),
        lambda q: (q.root / "x.members.born").unlink(),
        lambda q: (q.root / "x.members.born").write_text("[1, 2]\nnull\n{}"),
        lambda q: (q.root / "x.members.born").write_bytes(b"\xff\xfe"),
        lambda q: q.members.with_suffix(".born").write_text('{"end": {"a@E1": 2}, "times": 3}'),
    ],
)
def test_what_is_missing_or_odd_is_no_error(query: Query, spoil: Any) -> None:
    query.list("a@E1")
    query.log("a@E1", (10.0, 11.0), (12.0, 13.0))
    query.plan({"c_x": {"a@E1": 1}})
    query.plan({"c_x": {"a@E1": 2}})
    spoil(query)
    assert ingested_of(query.inputs, 1) is None
    assert query.tracking.oldest_s("unit", 100.0) in (None, 90.0, 88.0)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda q: q.members.unlink(),
        lambda q: q.members.write_text("[1, 2]"),
        lambda q: q.members.write_text('{"writers": {"a@E1": {"kind": "no such"}}}'),
        lambda q: (q.root / "a@E1" / "log" / "000000000000").write_text("damaged"),
    ],
)
def test_a_log_that_cannot_be_read_holds_nothing_that_waits(query: Query, spoil: Any) -> None:
    query.list("a@E1")
    query.log("a@E1", (10.0, 11.0), (12.0, 13.0))
    assert query.tracking.oldest_s("unit", 100.0) == 90.0
    spoil(query)
    assert query.tracking.oldest_s("unit", 100.0) is None


def test_words_do_not_grow_for_ever(query: Query) -> None:
    query.list("a@E1")
    query.log("a@E1", *((float(n), n + 0.5) for n in range(10)))
    for n in range(2000):
        record_arrival(query.members, {"a@E1": n}, arrival_of([]))
    query.plan({"c_x": {"a@E1": 4}})
    word = query.members.with_suffix(".born")
    assert word.stat().st_size < 30_000
    assert ingested_of(query.inputs, 0) == IngestTimes(0.0, 3.5, fresh=True)
    word.write_bytes(b"\xff\n" * 50_000)
    record_arrival(query.members, {"a@E1": 5}, arrival_of([]))
    word.unlink()
    word.mkdir()
    record_arrival(query.members, {"a@E1": 5}, arrival_of([]))


def test_offsets_of_other_sources_are_told_apart() -> None:
    assert files_between(None, {"logOffset": 2}) == (-1, 2)
    assert is_of_channels({"a@E1": 1, "b@E2": 4, "begun@": 2}) and not is_of_channels({"topic": {"0": 1}})
    assert not is_of_channels({}) and not is_of_channels(3) and files_between(None, 3) is None
    assert moved({"s": "1", "t": "2"}, {"s": "1", "t": "3", "e_end": "9"}) == {"t": (2, 3)}


def test_an_entry_without_these_times_is_read_and_written_as_before() -> None:
    entry = Entry(seq=0, epoch=1, batch=0)
    assert "ingested" not in entry.to_record() and Entry.from_record(entry.to_record()) == entry
    timed = Entry(seq=0, epoch=1, batch=0, ingested=(1.5, 2.0))
    assert Entry.from_record(json.loads(json.dumps(timed.to_record()))) == timed


# ------------------------------------------------------------ passed rows and waiting rows


def test_a_latency_weighs_batches_by_their_rows() -> None:
    found = latency(
        [
            Passed(batch=1, at=100.0, rows=90, oldest=98.0, newest=99.0),
            Passed(batch=2, at=101.0, rows=10, oldest=81.0, newest=91.0),
        ]
    )
    assert found is not None and found.rows == 100
    assert found.p50 == pytest.approx(1 + 50 / 90) and found.p95 == pytest.approx(15.0)
    assert latency([]) is None


def test_a_clock_that_is_behind_gives_no_negative_age() -> None:
    found = latency([Passed(batch=1, at=100.0, rows=1, oldest=101.0, newest=102.0)])
    assert found is not None and (found.p50, found.p95) == (0.0, 0.0)


def test_quantiles_are_those_of_a_sample() -> None:
    parts = [(0.0, 2.0, 3.0), (1.0, 5.0, 1.0), (4.0, 4.0, 2.0), (7.0, 9.0, 1.0)]
    sample = sorted(low + (high - low) * (i + 0.5) / (100 * w) for low, high, w in parts for i in range(int(100 * w)))
    for share in (0.0, 0.05, 0.3, 0.5, 0.75, 0.9, 0.95, 0.99):
        assert quantile(parts, share) == pytest.approx(sample[int(share * len(sample))], abs=0.05)
    assert quantile(parts, 1.0) == 9.0


def test_only_what_has_passed_of_late_counts_and_a_repetition_does_not(query: Query) -> None:
    tracking, now = query.tracking, time.time()
    lines = [[0, now - WINDOW - 5, 10, 0.0, 0.0], [1, now - 3, 10, now - 5, now - 5]]
    lines += [[1, now - 1, 10, now - 5, now - 5]]
    tracking.file.write_text("\n".join(map(json.dumps, lines)) + '\n[2, 17\n{"x": 1}\nnull\n')
    found = tracking.latency(now)
    assert found is not None and found.rows == 10 and found.p50 == pytest.approx(2.0)


def test_the_note_stays_short(query: Query) -> None:
    for batch in range(2000):
        query.tracking.note(batch, 5, IngestTimes(1.0, 2.0, fresh=True))
    query.tracking.note(2000, 0, IngestTimes(1.0, 2.0, fresh=True))
    query.tracking.note(2001, 5, None)
    assert query.tracking.file.stat().st_size < 40_000
    assert query.tracking.passed(0)[-1].batch == 1999 and len(query.tracking.passed(0)) >= 100
    query.tracking.file.write_bytes(b"\xff\n" * 50_000)
    query.tracking.note(3, 5, IngestTimes(1.0, 2.0, fresh=True))
    assert query.tracking.passed(0) == []
    query.tracking.file.unlink()
    query.tracking.file.mkdir()
    query.tracking.note(3, 5, IngestTimes(1.0, 2.0, fresh=True))  # a note that cannot be written is no error


def test_what_waits_is_as_old_as_the_first_entry_with_rows(query: Query) -> None:
    query.list("a@E1", "b@E2")
    log = query.log("a@E1", (10.0, 11.0), (12.0, 13.0))
    query.log("b@E2", (30.0, 31.0))
    assert query.tracking.oldest_s("unit", 100.0) == 90.0  # no batch yet
    log.register("unit")
    log.advance("unit", 1)
    assert query.tracking.oldest_s("unit", 100.0) == 88.0
    query.commit(query.plan({"c_x": {"a@E1": 2, "b@E2": 0}}))
    assert query.tracking.oldest_s("unit", 100.0) == 70.0
    query.commit(query.plan({"c_x": {"a@E1": 2, "b@E2": 1}}))
    assert query.tracking.oldest_s("unit", 100.0) is None
    query.log("a@E1", (40.0, 41.0), rows=0)
    assert query.tracking.oldest_s("unit", 100.0) is None  # an entry without rows
    query.log("c@E3", (50.0, 51.0))
    query.list("a@E1", "b@E2", "c@E3")
    assert query.tracking.oldest_s("unit", 100.0) is None  # the unit does not read it now
    FileLog(query.root / "c@E3").register("unit")
    assert query.tracking.oldest_s("unit", 100.0) == 50.0


def test_a_batch_under_way_counts_until_it_is_committed(query: Query) -> None:
    os.utime(query.checkpoint / "metadata", (90.0, 90.0))
    batch = query.plan({"s_1": "7"}, at=95.0)
    assert query.tracking.oldest_s("unit", 100.0) == 10.0
    query.commit(batch)
    assert query.tracking.oldest_s("unit", 100.0) is None
    query.plan({"s_1": "7"}, at=96.0)  # reads no rows
    assert query.tracking.oldest_s("unit", 100.0) is None
