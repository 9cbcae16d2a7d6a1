"""Small files of a directory sink wait and appear as one: exact at any moment, for readers that list the directory."""

from __future__ import annotations

import csv
import json
import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.connectors import filewriter, heldfiles
from headwater.connectors.filewriter import FileSinkWriter

from .killedwriter import write_with_kills
from .test_partitioned_files import ids, shown, staged, table
from .test_sink_writers import put, stage


def writer(path: Path, *columns: str, epoch: int = 1, kind: str = "json", **others: Any) -> FileSinkWriter:
    named = {"path": str(path), "format": kind, "fsync": False, "name": "w", "partition_by": columns, "lineage": "l"}
    return FileSinkWriter({**named, "target_bytes": 100, "max_age": 3600.0, **others}, epoch)


def waiting(path: Path) -> list[str]:
    held = path / ".headwater" / "w" / "held"
    return sorted(p.name for p in held.iterdir()) if held.exists() else []


def test_small_files_appear_as_one_when_they_are_large_enough(tmp_path: Path) -> None:
    for batch in range(4):  # of 20 bytes each
        put(writer(tmp_path), batch, table(batch))
    assert shown(tmp_path) == [] and len(waiting(tmp_path)) == 4 and staged(tmp_path) == []
    assert writer(tmp_path).rows() == 4 and writer(tmp_path).newest() == 3
    put(writer(tmp_path), 4, table(4), table(5))
    assert shown(tmp_path) == ["w-whole-00000004-0.json"]
    assert ids(tmp_path) == [0, 1, 2, 3, 4, 5] and waiting(tmp_path) == staged(tmp_path) == []
    put(writer(tmp_path), 4, table(4), table(5))  # repeated
    put(writer(tmp_path), 5, table(*range(6, 20)))  # large by itself: it is not written again
    assert shown(tmp_path) == ["w-whole-00000004-0.json", "w-whole-00000005-0.json"]
    assert ids(tmp_path) == list(range(20)) and staged(tmp_path) == []


def test_a_file_waits_no_longer_than_its_time(tmp_path: Path) -> None:
    put(writer(tmp_path, "k"), 0, table(0, 1))
    writer(tmp_path, "k").publish_held(everything=False)
    assert shown(tmp_path) == []
    writer(tmp_path, "k", max_age=0.0).publish_held(everything=False)
    assert shown(tmp_path) == ["k=k0/w-whole-00000001-0.json", "k=k1/w-whole-00000001-1.json"]
    put(writer(tmp_path, "k", max_age=0.0), 1, table(2))  # also by a batch
    assert ids(tmp_path) == [0, 1, 2]


def test_each_partition_waits_for_its_own_rows(tmp_path: Path) -> None:
    for batch in range(6):
        put(writer(tmp_path, "k", target_bytes=30), batch, table(0 if batch else 1))
    assert shown(tmp_path) == ["k=k0/w-whole-00000003-0.json"]
    writer(tmp_path, "k").publish_held(everything=True)
    assert ids(tmp_path) == [0, 0, 0, 0, 0, 1] and waiting(tmp_path) == []


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_the_rows_of_all_formats_are_those_that_were_written(tmp_path: Path, kind: str) -> None:
    odd = 'a\n"b'
    batches = [pa.table({"id": [n], odd: [f'x\n"{n}']}) for n in range(3)]
    other = pa.table({"id": [7], "more": ["z"]})
    for batch, rows in enumerate([*batches, other]):
        put(writer(tmp_path, kind=kind, target_bytes=10**6), batch, rows)
    writer(tmp_path, kind=kind).publish_held(everything=True)
    assert len(shown(tmp_path)) == (1 if kind == "json" else 2)  # columns of two kinds need two files
    found: list[dict[str, Any]] = []
    for name in shown(tmp_path):
        if kind == "parquet":
            found += pq.read_table(tmp_path / name).to_pylist()
        elif kind == "json":
            found += [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        else:
            with open(tmp_path / name, newline="") as file:
                found += [{**row, "id": int(row["id"])} for row in csv.DictReader(file)]
    assert sorted(found, key=lambda r: r["id"]) == [row for rows in (*batches, other) for row in rows.to_pylist()]


def test_too_many_files_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heldfiles, "MOST_HELD", 4)
    for batch in range(4):
        put(writer(tmp_path, "k", target_bytes=10**6), batch, table(0, 1) if batch < 2 else table(1))
    assert {name.partition("/")[0] for name in shown(tmp_path)} == {"k=k1"} and len(waiting(tmp_path)) <= 4
    writer(tmp_path, "k").publish_held(everything=True)
    assert ids(tmp_path) == [0, 0, 1, 1, 1, 1]


def test_a_writer_that_lets_none_wait_publishes_those_of_the_one_before(tmp_path: Path) -> None:
    put(writer(tmp_path), 0, table(1))
    put(writer(tmp_path, target_bytes=0, epoch=2), 1, table(2))
    assert shown(tmp_path) == ["w-part-00000001-0-2.json", "w-whole-00000001-1.json"] and ids(tmp_path) == [1, 2]


def test_files_wait_on_when_another_epoch_takes_over(tmp_path: Path) -> None:
    put(writer(tmp_path), 0, table(1))
    assert writer(tmp_path, epoch=2).fence(2) == (1, 0)
    writer(tmp_path).publish_held(everything=True)
    assert shown(tmp_path) == [], "the writer of the older epoch leaves them alone"
    put(writer(tmp_path, epoch=2), 1, table(2))
    writer(tmp_path, epoch=2).publish_held(everything=True)
    assert ids(tmp_path) == [1, 2]


def test_another_run_appends_behind_files_that_waited_and_overwriting_removes_all(tmp_path: Path) -> None:
    put(writer(tmp_path), 0, table(1))
    assert filewriter.writers_in(tmp_path) == {"w": 1}
    FileSinkWriter({"path": tmp_path, "name": "w"}, 0).append()
    assert ids(tmp_path) == [1]
    put(writer(tmp_path, lineage="m"), 0, table(2))
    assert writer(tmp_path).all_rows() == 2
    filewriter.remove_output(tmp_path)
    assert shown(tmp_path) == [] and not (tmp_path / ".headwater" / "w").exists()


def test_a_recorded_batch_keeps_its_files_when_spark_takes_it_for_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink_writer = writer(tmp_path)
    segments = stage(sink_writer, table(1), table(2))
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr("headwater.connectors.filewriter.os.rename", full)
        with pytest.raises(OSError, match="No space"):
            sink_writer.commit(segments, 0)
        sink_writer.abort(segments)
    put(writer(tmp_path), 0, table(1), table(2))  # repeated
    writer(tmp_path).publish_held(everything=True)
    assert ids(tmp_path) == [1, 2]


# ---------------------------------------------------------------- crashes at each step


class Ended(BaseException):
    """Stands for the end of the process: nothing handles it."""


class Steps:
    """Count the changes of the disk; end the process before one of them, and let a reader look before each."""

    def __init__(self, patch: pytest.MonkeyPatch, look: Callable[[], None]) -> None:
        self.count, self.end, self._look = 0, -1, look
        for name in ("rename", "link", "unlink", "replace"):
            patch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **named: Any) -> Any:
            self._look()
            if 0 <= self.end <= self.count:
                raise Ended  # also in the finally blocks behind it: a killed process runs none
            self.count += 1
            return real(*args, **named)

        return step


class Reader:
    """Read the directory again and again: no row is there twice, none goes away, and no file ever changes."""

    def __init__(self, path: Path) -> None:
        self.path, self._files = path, dict[str, str]()

    def look(self) -> None:
        now = {name: (self.path / name).read_text() for name in shown(self.path)}
        assert now.items() >= self._files.items(), "a file has changed or gone"
        rows = Counter(json.loads(line)["id"] for text in now.values() for line in text.splitlines())
        assert all(count == 1 for count in rows.values()), rows
        self._files = now


def _batches(path: Path, first: int, *columns: str) -> None:
    """Write batches from one on, each of two tasks; in between publish as an agent does."""
    for batch in range(first, 4):
        with open(path.parent / "progress", "w") as progress:
            progress.write(str(batch))
        sink_writer = writer(path, *columns, target_bytes=90)
        sink_writer.recover()
        put(sink_writer, batch, table(batch * 10, batch * 10 + 1), table(batch * 10 + 2))
        if batch == 1:
            writer(path, *columns).publish_held(everything=True)
    writer(path, *columns).publish_held(everything=True)


@pytest.mark.parametrize("columns", [(), pytest.param(("k",), marks=pytest.mark.long)])
def test_a_crash_at_any_step_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...]
) -> None:
    expected = [batch * 10 + n for batch in range(4) for n in range(3)]
    step, ended = 0, True
    while ended:
        path = tmp_path / str(step) / "out"
        path.mkdir(parents=True)
        reader = Reader(path)
        with monkeypatch.context() as patch:
            steps = Steps(patch, reader.look)
            steps.end = step
            try:
                _batches(path, 0, *columns)
                ended = False
            except Ended:
                pass
            steps.end = -1
            if ended:
                writer(path, *columns).sweep()  # as a unit that starts again does
                reader.look()
                _batches(path, int((path.parent / "progress").read_text()), *columns)
        assert ids(path) == expected, step
        left = [name for name in staged(path) if not name.startswith(".")]  # later batches sweep drafts of records
        assert left == waiting(path) == [], step
        step += 1
    assert step > 40, "the steps were not counted"


def test_batches_and_an_agent_publish_at_the_same_time(tmp_path: Path) -> None:
    errors: list[str] = []
    done = threading.Event()

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:
            errors.append(traceback.format_exc())

    def agent() -> None:
        while not done.is_set():
            writer(tmp_path, "k").publish_held(everything=True)

    reader = Reader(tmp_path)

    def read() -> None:
        while not done.is_set():
            reader.look()

    others = [threading.Thread(target=guarded, args=(work,)) for work in (agent, agent, read)]
    for thread in others:
        thread.start()
    try:
        for batch in range(40):
            put(writer(tmp_path, "k", target_bytes=60), batch, table(batch * 2), table(batch * 2 + 1))
    finally:
        done.set()
        for thread in others:
            thread.join()
    assert not errors, errors
    writer(tmp_path, "k").publish_held(everything=True)
    assert ids(tmp_path) == list(range(80)) and waiting(tmp_path) == staged(tmp_path) == []


WRITER = """
import os, sys
from pathlib import Path
from tests.conformance.test_held_files import put, table, writer
path, progress, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
begin = int(open(progress).read())
for batch in range(begin, last):
    sink_writer = writer(path, "k", fsync=True, target_bytes=700)
    sink_writer.recover()
    put(sink_writer, batch, table(*range(batch * 20, batch * 20 + 10)), table(*range(batch * 20 + 10, batch * 20 + 20)))
    print(batch, flush=True)
    open(progress + ".new", "w").write(str(batch + 1))
    os.replace(progress + ".new", progress)
    if batch % 7 == 6:
        writer(path, "k", fsync=True).publish_held(everything=True)
writer(path, "k", fsync=True).publish_held(everything=True)
"""


@pytest.mark.long
def test_a_writer_killed_at_random_moments_loses_and_doubles_nothing(tmp_path: Path) -> None:
    progress, kills, last, out = tmp_path / "progress", 20, 120, tmp_path / "out"
    write_with_kills(WRITER, str(out), progress, last, kills=kills, batches=5, within=0.03)
    assert ids(out) == list(range(last * 20)) and len(shown(out)) < last * 3
