"""Sink writers, without Spark: the task's and the driver's part, and crashes in between."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from headwater.channels.filelog import FileLog
from headwater.channels.segments import Segment
from headwater.connectors.filewriter import FileSinkWriter
from headwater.connectors.writers import CallbackSinkWriter, ChannelWriter, SinkWriter, open_sink_writer
from headwater.core.errors import ChannelError, UserCodeError
from headwater.query.ingest import Inputs
from headwater.query.latency import LatencyTracking
from headwater.query.writer import HeadwaterSink, SinkMessage, UnitWriter

from .conftest import TS, ids, table


def stage(sink_writer: SinkWriter, *tables: pa.Table) -> list[Segment]:
    """Stage each table as one task would."""
    pieces = []
    for rows in tables:
        task = sink_writer.open()
        for batch in rows.to_batches():
            task.write(batch)
        pieces.append(task.close())
    return [p for p in pieces if p is not None]


def put(sink_writer: SinkWriter, batch: int, *tables: pa.Table) -> None:
    sink_writer.commit(stage(sink_writer, *tables), batch)


def files_outlet(path: Path, *, epoch: int = 1, kind: str = "json") -> FileSinkWriter:
    return FileSinkWriter({"path": str(path), "format": kind, "fsync": False}, epoch)


def visible(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if not p.name.startswith((".", "_")))


def json_ids(path: Path) -> list[int]:
    return [json.loads(line)["id"] for name in visible(path) for line in (path / name).read_text().splitlines()]


class Crash(Exception):
    """Stands for the end of the process at this point."""


def crash(*_args: object, **_named: object) -> None:
    raise Crash


# -- files -----------------------------------------------------------------------------------


def test_files_have_deterministic_names_and_exact_counts(tmp_path: Path) -> None:
    sink_writer = files_outlet(tmp_path, epoch=3)
    put(sink_writer, 41, table([1, 2]), table([3]))
    put(sink_writer, 42, table([]))
    put(sink_writer, 43, table([4]))
    assert visible(tmp_path) == [
        "part-00000041-0-3.json",
        "part-00000041-1-3.json",
        "part-00000043-0-3.json",
    ]
    assert json_ids(tmp_path) == [1, 2, 3, 4]
    assert files_outlet(tmp_path).rows() == 4


def test_a_replayed_batch_adds_no_file(tmp_path: Path) -> None:
    put(files_outlet(tmp_path), 0, table([1]))
    put(files_outlet(tmp_path), 1, table([2]), table([3]))
    put(files_outlet(tmp_path), 1, table([3, 2]))
    put(files_outlet(tmp_path), 0, table([1]))
    assert json_ids(tmp_path) == [1, 2, 3]
    assert list((tmp_path / ".headwater" / "staging").iterdir()) == []


@pytest.mark.parametrize("how", ["start", "replay", "next batch"])
def test_a_crash_between_record_and_rename_is_rolled_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    put(files_outlet(tmp_path), 0, table([1]))
    with monkeypatch.context() as patch:
        real = FileSinkWriter.recover
        calls = iter([real, crash])
        patch.setattr(FileSinkWriter, "recover", lambda self: next(calls)(self))
        with pytest.raises(Crash):
            put(files_outlet(tmp_path), 1, table([2]))
    assert json_ids(tmp_path) == [1]  # nothing half shown
    if how == "start":
        config = {"epoch": 1, "sink_writers": [{"kind": "files", "format": "json", "path": str(tmp_path)}]}
        HeadwaterSink({"config": json.dumps(config)}).streamWriter(_NO_SCHEMA, False)
    elif how == "replay":
        put(files_outlet(tmp_path), 1, table([2]))
    else:
        put(files_outlet(tmp_path, epoch=2), 9, table([3]))
    assert json_ids(tmp_path) == ([1, 2, 3] if how == "next batch" else [1, 2])
    assert files_outlet(tmp_path).rows() == (3 if how == "next batch" else 2)


_NO_SCHEMA: Any = None  # one sink writer takes any columns


def test_a_crash_before_the_record_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("headwater.channels.journal.os.link", crash)
        with pytest.raises(Crash):
            put(files_outlet(tmp_path), 0, table([1]))
    files_outlet(tmp_path).recover()
    assert visible(tmp_path) == []
    put(files_outlet(tmp_path), 0, table([1]))
    assert json_ids(tmp_path) == [1]


def test_files_are_fenced(tmp_path: Path) -> None:
    put(files_outlet(tmp_path), 5, table([1]))
    assert files_outlet(tmp_path, epoch=2).fence(2) == (1, 5)
    assert files_outlet(tmp_path, epoch=2).fence(2) == (1, 5)
    with pytest.raises(ChannelError, match="epoch 1 is out of date"):
        put(files_outlet(tmp_path), 6, table([2]))
    put(files_outlet(tmp_path, epoch=2), 6, table([2]))
    assert json_ids(tmp_path) == [1, 2]


def test_files_of_a_replaced_writer_are_not_repeated(tmp_path: Path) -> None:
    """A replacing writer continues the checkpoint's numbers in a higher epoch; another checkpoint has its own files."""

    def sink_writer(epoch: int, lineage: str) -> FileSinkWriter:
        return FileSinkWriter({"path": str(tmp_path), "format": "json", "fsync": False, "lineage": lineage}, epoch)

    put(sink_writer(1, "c1"), 5, table([1]))
    put(sink_writer(2, "c1"), 5, table([1]))
    assert sink_writer(3, "c1").fence(3) == (1, 5)
    put(sink_writer(3, "c1"), 5, table([1]))
    put(sink_writer(3, "c1"), 6, table([2]))
    put(sink_writer(4, "c2"), 0, table([3]))
    put(sink_writer(5, "c2"), 0, table([3]))
    assert sorted(json_ids(tmp_path)) == [1, 2, 3]


def test_output_of_another_run_is_refused(tmp_path: Path) -> None:
    """Otherwise its batches would count as those of this run, and this run's rows would be lost."""

    def sink_writer(lineage: str | None) -> FileSinkWriter:
        return FileSinkWriter({"path": str(tmp_path), "format": "json", "fsync": False, "lineage": lineage}, 0)

    put(sink_writer("c1"), 0, table([1]))
    for batch, lineage in ((0, "c2"), (1, "c2"), (0, None), (1, None)):  # None: a checkpoint that has lost its number
        with pytest.raises(ChannelError, match="output of another run"):
            put(sink_writer(lineage), batch, table([2]))
    put(sink_writer("c1"), 1, table([3]))
    assert sorted(json_ids(tmp_path)) == [1, 3]
    later = FileSinkWriter({"path": str(tmp_path), "format": "json", "fsync": False, "lineage": "c1"}, 1)
    put(later, 2, table([4]))
    with pytest.raises(ChannelError, match="epoch 0 is out of date") as refused:
        put(sink_writer("c2"), 0, table([5]))
    assert "output of another run" in str(refused.value.hint)


def test_the_sink_log_stays_short(tmp_path: Path) -> None:
    for batch in range(120):
        put(files_outlet(tmp_path), batch, table([batch]))
    assert len(list((tmp_path / ".headwater" / "log").iterdir())) == 100
    put(files_outlet(tmp_path), 119, table([119]))
    assert len(json_ids(tmp_path)) == files_outlet(tmp_path).rows() == 120


def test_formats_hold_the_values(tmp_path: Path) -> None:
    flat = pa.table(
        {
            "n": pa.array([1, None], pa.int64()),
            "s": ["a,\"b'\nü", None],
            "d": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)),
            "ts": pa.array([1_500_000, None], TS),
            "day": pa.array([datetime.date(2024, 2, 29), None]),
        }
    )
    for kind in ("parquet", "csv", "json"):
        put(files_outlet(tmp_path / kind, kind=kind), 0, flat)
    (name,) = visible(tmp_path / "parquet")
    assert pa.parquet.ParquetFile(tmp_path / "parquet" / name).read().equals(flat)
    (name,) = visible(tmp_path / "csv")
    text = (tmp_path / "csv" / name).read_text()
    assert text.startswith('"n","s","d","ts","day"\n')
    assert "1970-01-01 00:00:01.500000Z" in text
    (name,) = visible(tmp_path / "json")
    first, second = [json.loads(line) for line in (tmp_path / "json" / name).read_text().splitlines()]
    assert first == {
        "n": 1,
        "s": "a,\"b'\nü",
        "d": "1.50",
        "ts": "1970-01-01T00:00:01.500000Z",
        "day": "2024-02-29",
    }
    assert set(second.values()) == {None}


def test_csv_refuses_nested_columns(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match="nested columns w") as error:
        put(files_outlet(tmp_path, kind="csv"), 0, pa.table({"w": [{"a": 1}]}))
    assert error.value.where == str(tmp_path)


def test_unknown_kinds_and_formats_are_named(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match="unknown kind of sink writer 'kafka2'"):
        open_sink_writer({"kind": "kafka2"}, 1)
    with pytest.raises(ChannelError, match="unknown file format 'xml'"):
        open_sink_writer({"kind": "files", "format": "xml", "path": str(tmp_path)}, 1)


# -- callback --------------------------------------------------------------------------------


def callback(path: Path, function: object) -> CallbackSinkWriter:
    code = base64.b64encode(cloudpickle.dumps(function)).decode()
    return CallbackSinkWriter({"function": code, "path": str(path / "scratch"), "operator": "alert"})


def test_a_callback_gets_the_whole_batch(tmp_path: Path) -> None:
    out = str(tmp_path / "calls")

    def note(rows: pa.Table, batch: int) -> None:
        with open(out, "a") as file:
            file.write(f"{batch}:{rows.column('id').to_pylist()};")

    put(callback(tmp_path, note), 7, table([1, 2]), table([3]))
    put(callback(tmp_path, note), 8, table([]))
    put(callback(tmp_path, note), 9, table([4]))
    put(callback(tmp_path, note), 9, table([4]))
    assert Path(out).read_text() == "7:[1, 2, 3];9:[4];9:[4];"
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_raising_callback_names_its_operator(tmp_path: Path) -> None:
    def fail(rows: pa.Table, batch: int) -> None:
        raise ValueError("no such thing")

    with pytest.raises(UserCodeError, match="ValueError: no such thing") as error:
        put(callback(tmp_path, fail), 3, table([1]))
    assert error.value.where == "operator 'alert', batch 3"


# -- routing ---------------------------------------------------------------------------------


def writer(tmp_path: Path, *extra: dict[str, Any]) -> UnitWriter:
    log = {"kind": "filelog", "path": str(tmp_path / "log"), "event_time": "ts", "fsync": False}
    file = {"kind": "files", "format": "json", "path": str(tmp_path / "files"), "fsync": False}
    return UnitWriter(1, dict(enumerate([log, file, *extra])))


def tagged(tags: list[int]) -> pa.RecordBatch:
    """Return rows whose id is their position, each for the sink writer of its tag."""
    first = pa.struct([("id", pa.int64()), ("ts", TS)])
    second = pa.struct([("id", pa.int64())])
    return pa.record_batch(
        {
            "__out": pa.array(tags, pa.int32()),
            "o0": pa.array([{"id": i, "ts": i * 1_000_000} if t == 0 else None for i, t in enumerate(tags)], first),
            "o1": pa.array([{"id": i} if t == 1 else None for i, t in enumerate(tags)], second),
        }
    )


def test_rows_go_where_their_tag_says(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    messages = [sink.write(iter([tagged([0, 1, 0, 1, 1]), tagged([0, 0])])), sink.write(iter([]))]
    sink.commit([*messages, None], 0)
    log = ChannelWriter({"path": str(tmp_path / "log")}, 1).log
    assert ids(log) == [0, 2, 0, 1]
    assert log.frontier(1) == 2_000_000 - 1000
    assert json_ids(tmp_path / "files") == [1, 3, 4]


def test_a_crash_between_two_outlets_is_healed_by_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = writer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(FileSinkWriter, "commit", crash)
        with pytest.raises(Crash):
            sink.commit([sink.write(iter([tagged([0, 1])]))], 0)
    sink = writer(tmp_path)
    sink.commit([sink.write(iter([tagged([0, 1])]))], 0)
    assert ids(ChannelWriter({"path": str(tmp_path / "log")}, 1).log) == [0]
    assert json_ids(tmp_path / "files") == [1]


def test_a_failing_task_leaves_nothing(tmp_path: Path) -> None:
    def rows() -> Any:
        yield tagged([0, 1])
        raise Crash

    with pytest.raises(Crash):
        writer(tmp_path).write(rows())
    assert [p for p in tmp_path.rglob("staging/*") if p.suffix] == []


def test_abort_removes_what_tasks_wrote(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    message = sink.write(iter([tagged([0, 1])]))
    sink.abort([message, None], 0)
    assert [p for p in tmp_path.rglob("staging/*") if p.suffix in {".arrow", ".json"}] == []


def test_an_unknown_tag_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match="rows have tag 5"):
        writer(tmp_path).write(iter([tagged([0, 5])]))


def test_callbacks_come_after_the_other_outlets(tmp_path: Path) -> None:
    def fail(rows: pa.Table, batch: int) -> None:
        raise ValueError

    code = base64.b64encode(cloudpickle.dumps(fail)).decode()
    first = {"kind": "callback", "function": code, "path": str(tmp_path / "s")}
    log = {"kind": "filelog", "path": str(tmp_path / "log"), "fsync": False}
    sink = UnitWriter(1, {0: first, 1: log})
    piece = stage(CallbackSinkWriter(first), table([1]))[0]
    kept = stage(ChannelWriter(log, 1), table([1]))[0]
    with pytest.raises(UserCodeError):
        sink.commit([SinkMessage({0: piece, 1: kept})], 0)
    assert ids(ChannelWriter(log, 1).log) == [1]


def test_the_frontier_is_event_time_less_the_delay(tmp_path: Path) -> None:
    sink_writer = ChannelWriter({"path": str(tmp_path), "event_time": "ts", "delay": 2, "fsync": False}, 1)
    put(sink_writer, 0, table([5, 9]))
    assert sink_writer.log.frontier(1) == 7_000_000 - 1000


def test_the_frontier_may_be_the_watermark_spark_planned_with(tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    spec = {"path": str(tmp_path / "log"), "offsets": str(offsets), "fsync": False}
    sink_writer = ChannelWriter(spec, 1)
    for batch, millis in enumerate((0, 4000, 4000, 6000)):
        (offsets / str(batch)).write_text(f'v1\n{{"batchWatermarkMs": {millis}}}\n{{}}')
    put(sink_writer, 0, table([5, 9]))
    assert sink_writer.log.frontier(1) is None  # event time is not what counts here
    put(sink_writer, 1)
    put(sink_writer, 2)  # moves nothing: no entry
    put(sink_writer, 3)  # no rows, but the frontier has moved
    assert [sink_writer.log.frontier(p) for p in (2, 3)] == [4_000_000 - 1000, 6_000_000 - 1000]
    assert (sink_writer.log.latest(), ids(sink_writer.log)) == (3, [5, 9])


def test_the_frontier_is_behind_the_watermark_by_what_joins_hold_back(tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    (offsets / "0").write_text('v1\n{"batchWatermarkMs": 9000}\n{}')
    sink_writer = ChannelWriter({"path": str(tmp_path / "log"), "offsets": str(offsets), "delay": 2.5}, 1)
    put(sink_writer, 0, table([5, 9]))
    assert sink_writer.log.frontier(1) == 6_500_000 - 1000


def test_entries_say_when_the_rows_of_their_batch_came(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text("{}")
    (checkpoint / "offsets" / "0").write_text("v2\n{}\ns_1:7")
    (checkpoint / "offsets" / "1").write_text("v2\n{}\ns_1:9")
    times = [file.stat().st_mtime for file in (checkpoint / "metadata", *_offsets(checkpoint))]
    log = {"kind": "filelog", "path": str(tmp_path / "log"), "fsync": False}
    tracking = LatencyTracking(Inputs(checkpoint), tmp_path / "unit" / "passed")
    sink = UnitWriter(1, {0: log}, tracking)
    for batch in range(3):  # of the last one nothing is written down
        task = ChannelWriter(log, 1).open()
        task.write(table([1, 2]).to_batches()[0])
        piece = task.close()
        assert piece is not None
        sink.commit([SinkMessage({0: piece})], batch)
    entries = FileLog(tmp_path / "log").entries(0, 3)
    assert [e.ingested for e in entries] == [(times[0], times[1]), (times[1], times[2]), None]
    passed = tracking.passed(0.0)
    assert [(p.batch, p.rows, p.oldest, p.newest) for p in passed] == [
        (0, 2, times[0], times[1]),
        (1, 2, times[1], times[2]),
    ]


def _offsets(checkpoint: Path) -> list[Path]:
    return sorted((checkpoint / "offsets").iterdir())


def test_a_bad_config_is_refused() -> None:
    for config in ("", "{}", '{"epoch": 1, "sink_writers": 3}', '{"epoch": 1, "sink_writers": []}'):
        with pytest.raises(ChannelError, match=r"sink config|sink writers have"):
            HeadwaterSink({"config": config}).streamWriter(_NO_SCHEMA, False)
