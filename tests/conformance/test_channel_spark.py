"""Logs through real Spark: as a source of several writers, and as one sink among others."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from headwater.channels.arrival import Arrival, recorded_arrival
from headwater.channels.base import BEGUN, END
from headwater.channels.channel_spark import ChannelReader, ChannelSource, LogSegment, share
from headwater.channels.lifts import write_lifts
from headwater.channels.log import Log
from headwater.channels.open import open_log
from headwater.channels.segments import Segment
from headwater.connectors.filewriter import FileSinkWriter
from headwater.connectors.sparkformats import own_format
from headwater.core.errors import ChannelError
from headwater.disk.pace import Pace, change_pace, write_pace
from headwater.spark.broker import LocalBroker

from .conftest import KINDS, ids, spec_of, table

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.connect.streaming.query import StreamingQuery

DDL = "id long, ts timestamp"
WAIT = 60.0


class Site:
    """A directory with some logs of one kind, a members file and the settings of a query."""

    def __init__(self, root: Path, broker: LocalBroker | None, topic: str) -> None:
        self.root = root
        self.members = root / "members.json"
        self._broker = broker
        self._topic = topic

    def spec(self, name: str) -> dict[str, Any]:
        kind = "kafka" if self._broker else "filelog"
        return spec_of(kind, self.root / name, f"{self._topic}.{name}", self._broker)

    def sink_writer(self, name: str, **more: Any) -> dict[str, Any]:
        return {**self.spec(name), "kind": "kafkalog" if self._broker else "filelog", **more}

    def log(self, name: str) -> Log:
        return open_log({**self.spec(name), "event_time": "ts"})

    def list(self, *names: str, retired: tuple[str, ...] = ()) -> None:
        """Replace the members file in one step; filelogs in the short form."""
        member = lambda n: self.spec(n) if self._broker else str(self.root / n)  # noqa: E731
        all_ = lambda names: {n: member(n) for n in names}  # noqa: E731
        temp = self.root / "members.tmp"
        temp.write_text(json.dumps({"writers": all_(names), "retired": all_(retired)}))
        os.replace(temp, self.members)

    def options(self, **more: object) -> dict[str, str]:
        values = {"members": self.members, "reader": "unit", "schema": DDL, **more}
        return {name: str(value) for name, value in values.items()}

    def reader(self, **more: object) -> ChannelReader:
        """Return a reader as a (re)started query would make it."""
        source = ChannelSource(self.options(**more))
        return source.streamReader(_schema(source))


def _schema(source: ChannelSource) -> Any:
    """Parse a DDL of longs and timestamps without a session."""
    from pyspark.sql.types import LongType, StructField, StructType, TimestampType

    kinds = {"long": LongType(), "timestamp": TimestampType()}
    columns = [column.split() for column in source.schema().split(",")]
    return StructType([StructField(name, kinds[kind]) for name, kind in columns])


@pytest.fixture(params=KINDS)
def site(request: pytest.FixtureRequest, tmp_path: Path, topic: str) -> Site:
    broker = request.getfixturevalue("broker") if request.param == "kafka" else None
    return Site(tmp_path, broker, topic)


OVER_FILES = pytest.mark.parametrize("site", ["filelog", pytest.param("kafka", marks=pytest.mark.long)], indirect=True)
"""A query that is known to run over Kafka by other tests: over files, and over Kafka in the long form."""


def rows_of(reader: ChannelReader, start: dict[str, int], end: dict[str, int]) -> tuple[list[int], list[int]]:
    """Read a batch as Spark would; return its ids and its punctuations in seconds."""
    found: list[int] = []
    marks: list[int] = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += [i for i in batch.column("id").to_pylist() if i is not None]
            if "__wm" in batch.schema.names:
                micros = batch.column("__wm").cast(pa.int64()).to_pylist()
                marks += [m // 1_000_000 for m in micros if m is not None]
    return found, marks


# -- planning, without Spark -------------------------------------------------------------------


def test_punctuation_is_the_slowest_members_frontier(site: Site) -> None:
    fast, slow = site.log("fast"), site.log("slow")
    site.list("fast", "slow")
    reader = site.reader(punctuate=True)
    assert reader.initialOffset() == {"fast": 0, "slow": 0}
    steps: list[tuple[Callable[[], object], list[int]]] = [
        (lambda: fast.append(table([10]), epoch=1, batch=0), []),  # slow is silent so far
        (lambda: slow.append(table([3]), epoch=1, batch=0), [3]),
        (lambda: fast.append(table([20]), epoch=1, batch=1), []),  # nothing new about slow
        (lambda: slow.append(table([2]), epoch=1, batch=1), []),  # late rows move nothing
        (lambda: slow.append(table([15]), epoch=1, batch=2), [15]),
        (lambda: slow.end(1), [20]),  # an ended member does not hold the watermark back
        (lambda: fast.append(table([30]), epoch=1, batch=2), [30]),
        (lambda: fast.end(1), [END // 1_000_000]),
    ]
    offsets = [reader.initialOffset()]
    for step, marks in steps:
        step()
        offsets.append(reader.latestOffset(offsets[-1], ReadAllAvailable()))
        assert rows_of(reader, offsets[-2], offsets[-1])[1] == marks
    # a restarted query repeats every batch unchanged
    for (_, marks), start, end in zip(steps, offsets, offsets[1:], strict=False):
        assert rows_of(site.reader(punctuate=True), start, end)[1] == marks
    assert rows_of(reader, offsets[0], offsets[-1]) == ([10, 20, 30, 3, 2, 15], [END // 1_000_000])


def test_an_idle_member_is_lifted(site: Site) -> None:
    fast, slow = site.log("fast"), site.log("slow")
    site.list("fast", "slow")
    reader = site.reader(punctuate=True, lifted=True)
    steps: list[tuple[Callable[[], object], list[int]]] = [
        (lambda: fast.append(table([10]), epoch=1, batch=0), []),
        (lambda: write_lifts(site.members, {"slow": 8_000_000}), [8]),
        (lambda: fast.append(table([20]), epoch=1, batch=1), []),
        (lambda: write_lifts(site.members, {"slow": 7_000_000}), []),  # a lift never falls
        (lambda: slow.append(table([3]), epoch=1, batch=0), []),  # late
        (lambda: slow.append(table([15]), epoch=1, batch=1), [15]),  # is counted again
    ]
    offsets = [reader.initialOffset()]
    for step, marks in steps:
        step()
        offsets.append(reader.latestOffset(offsets[-1], ReadAllAvailable()))
        assert rows_of(reader, offsets[-2], offsets[-1])[1] == marks
    assert offsets[3] == offsets[4], "there is nothing to read"
    site.members.with_suffix(".lifts").unlink()
    assert reader.latestOffset(offsets[-1], ReadAllAvailable()) == offsets[-1], "the offset holds the lifts"
    write_lifts(site.members, {"slow": 99_000_000})  # a repeated batch has its own lifts
    for (_, marks), start, end in zip(steps, offsets, offsets[1:], strict=False):
        assert rows_of(site.reader(punctuate=True, lifted=True), start, end)[1] == marks
    site.list("fast")
    assert not any("slow" in key for key in reader.latestOffset(offsets[-1], ReadAllAvailable()))


def test_a_plan_leaves_word_on_when_its_rows_came(site: Site) -> None:
    a, b = site.log("a"), site.log("b")
    site.list("a", "b")
    reader = site.reader()
    a.commit(1, 0, [_piece(a, 1)], ingested=(10.0, 11.0))
    b.commit(1, 0, [_piece(b, 2)], ingested=(9.0, 10.5))
    first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.partitions({"a": 0, "b": 0}, first)
    assert recorded_arrival(site.members, first) == Arrival(times=(9.0, 11.0), rows=True)
    reader.partitions(first, first)  # no new rows to record
    a.append(table([3]), epoch=1, batch=1)
    second = reader.latestOffset(first, ReadAllAvailable())
    reader.partitions(first, second)
    assert recorded_arrival(site.members, first) == Arrival(times=(9.0, 11.0), rows=True)
    assert recorded_arrival(site.members, second) == Arrival(times=None, rows=True, known=False)
    a.end(1)
    third = reader.latestOffset(second, ReadAllAvailable())
    site.reader().partitions(second, third)
    assert recorded_arrival(site.members, third) == Arrival(times=None, rows=False)


def _piece(log: Log, id_: int) -> Segment:
    writer = log.open_segment(table([id_]).schema)
    writer.write(table([id_]).to_batches()[0])
    piece = writer.close()
    assert piece is not None
    return piece


def test_a_batch_is_the_same_on_replay_whatever_happens_later(site: Site) -> None:
    a, b = site.log("a"), site.log("b")
    site.list("a", "b")
    reader = site.reader(punctuate=True)
    start = reader.initialOffset()
    a.append(table([1, 2]), epoch=1, batch=0)
    b.append(table([5]), epoch=1, batch=0)
    end = reader.latestOffset(start, ReadAllAvailable())
    first = rows_of(reader, start, end)
    assert first == ([1, 2, 5], [2])
    reader.commit(start)
    a.append(table([7]), epoch=1, batch=1)
    b.end(1)
    site.list("a", "b", "c")
    assert rows_of(reader, start, end) == first
    site.list("a", retired=("b",))
    assert rows_of(site.reader(punctuate=True), start, end) == first


def test_a_query_may_begin_at_once_with_nothing_to_read(site: Site) -> None:
    a = site.log("a")
    site.list("a")
    a.append(table([1]), epoch=1, batch=0)
    offsets = [{"a": 1}]
    for _ in range(2):  # as often as it is started
        reader = site.reader(punctuate=True, at_once=True)
        empty = reader.latestOffset(offsets[-1], ReadAllAvailable())
        # Spark has forgotten the watermark of this read.
        assert empty not in offsets and rows_of(reader, offsets[-1], empty) == ([], [1])
        offsets.append(empty)
        assert reader.latestOffset(empty, ReadAllAvailable()) == empty  # once
        reader.commit(empty)
    a.append(table([2]), epoch=1, batch=1)
    assert reader.latestOffset(empty, ReadAllAvailable()) == {"a": 2}
    assert rows_of(reader, empty, {"a": 2}) == ([2], [2])
    started = site.reader(punctuate=True, at_once=True)
    assert started.latestOffset(empty, ReadAllAvailable()) == {"a": 2, BEGUN: 3}  # there are rows to read
    assert started.latestOffset({"a": 2}, ReadAllAvailable()) == {"a": 2}


def test_a_query_that_begins_again_is_told_the_frontier_that_it_had(site: Site) -> None:
    fast, slow = site.log("fast"), site.log("slow")
    site.list("fast", "slow")
    fast.append(table([10]), epoch=1, batch=0)
    slow.append(table([3]), epoch=1, batch=0)
    before = site.reader(punctuate=True, at_once=True)
    first = before.latestOffset(before.initialOffset(), ReadAllAvailable())
    assert first == {"fast": 1, "slow": 1} and rows_of(before, before.initialOffset(), first)[1] == [3]
    fast.append(table([20]), epoch=1, batch=1)
    again = site.reader(punctuate=True, at_once=True)
    second = again.latestOffset(first, ReadAllAvailable())
    assert rows_of(again, first, second) == ([20], [3]), "the least frontier is as before, and Spark has forgotten it"
    fast.append(table([30]), epoch=1, batch=2)
    third = again.latestOffset(second, ReadAllAvailable())
    assert rows_of(again, second, third) == ([30], [])


def test_punctuation_survives_reclaim(site: Site) -> None:
    a = site.log("a")
    site.list("a")
    reader = site.reader(punctuate=True)
    offsets = [reader.initialOffset()]
    for batch in range(3):
        a.append(table([batch + 1]), epoch=1, batch=batch)
        offsets.append(reader.latestOffset(offsets[-1], ReadAllAvailable()))
    reader.commit(offsets[2])
    assert a.earliest() == 2
    assert rows_of(site.reader(punctuate=True), offsets[2], offsets[3]) == ([3], [3])
    assert rows_of(site.reader(punctuate=True), offsets[2], offsets[2]) == ([], [])


def test_members_come_and_go(site: Site) -> None:
    a, b = site.log("a"), site.log("b")
    site.list("a")
    reader = site.reader()
    a.append(table([1]), epoch=1, batch=0)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert start == {"a": 1}
    b.append(table([10]), epoch=1, batch=0)
    site.list("a", "b")
    both = reader.latestOffset(start, ReadAllAvailable())
    assert both == {"a": 1, "b": 1}
    assert b.readers() == {"unit": 0}
    assert rows_of(reader, start, both)[0] == [10]
    a.append(table([2]), epoch=1, batch=1)
    site.list("b", retired=("a",))
    for other in (reader, site.reader()):  # also after a restart
        rest = other.latestOffset(both, ReadAllAvailable())
        assert rest == {"a": 2, "b": 1}
        assert rows_of(other, both, rest)[0] == [2]
        assert other.latestOffset(rest, ReadAllAvailable()) == {"b": 1}


def test_a_query_that_never_ran_reads_a_removed_member_in_which_it_is_registered(site: Site) -> None:
    a, b, c = site.log("a"), site.log("b"), site.log("c")
    for log, value in ((a, 1), (b, 2), (c, 3)):
        log.append(table([value]), epoch=1, batch=0)
    a.register("unit")
    b.register("another")
    site.list("c", retired=("a", "b"))
    reader = site.reader()
    start = reader.initialOffset()
    assert start == {"a": 0, "c": 0}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert sorted(rows_of(reader, start, end)[0]) == [1, 3]
    assert reader.latestOffset(end, ReadAllAvailable()) == {"c": 1}


def test_a_removed_member_with_unread_rows_is_not_skipped_silently(site: Site) -> None:
    a = site.log("a")
    site.list("a", "b")
    a.append(table([1]), epoch=1, batch=0)
    site.list("b")
    with pytest.raises(ChannelError, match="the batch reads entries of a up to 1") as error:
        site.reader().partitions({"a": 0, "b": 0}, {"a": 1, "b": 0})
    assert "retired" in str(error.value.hint)
    assert site.reader().partitions({"a": 1, "b": 0}, {"a": 1, "b": 0}) == []


def test_a_replaced_log_is_noticed(site: Site) -> None:
    site.list("a")
    with pytest.raises(ChannelError, match="has read 5 entries of a, but only 0"):
        site.reader().latestOffset({"a": 5}, ReadAllAvailable())


def test_the_row_limit_is_shared_fairly(site: Site) -> None:
    for name, batches in (("much", 20), ("little", 2)):
        log = site.log(name)
        for batch in range(batches):
            log.append(table([batch] * 10), epoch=1, batch=batch)
    site.list("much", "little", "none")
    reader = site.reader(max_rows_per_batch=100)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(100)
    start = reader.initialOffset()
    first = reader.latestOffset(start, limit)
    assert first == {"little": 2, "much": 8, "none": 0}
    assert reader.latestOffset(first, limit) == {"little": 2, "much": 18, "none": 0}
    assert reader.latestOffset(start, ReadMaxRows(3)) == {"little": 1, "much": 1, "none": 0}
    assert reader.latestOffset(start, ReadAllAvailable()) == {"little": 2, "much": 20, "none": 0}
    assert reader.reportLatestOffset() == {"little": 2, "much": 20, "none": 0}


def test_tasks_are_balanced_and_keep_each_writers_order() -> None:
    def run(writer: str, *sizes: int) -> tuple[LogSegment, ...]:
        return tuple(
            LogSegment(writer, seq, Segment(file=f"{seq}", rows=rows, bytes=1, crc32=0))
            for seq, rows in enumerate(sizes)
        )

    k = 1000
    small = share([run("a", 10, 10), run("b", 5)], 4)
    assert [[p.log for p in g] for g in small] == [["a", "a", "b"]]
    runs = [run("a", *[100 * k] * 3), run("b", *[100 * k] * 3)]
    assert [{p.log for p in g} for g in share(runs, 2)] == [{"a"}, {"b"}]
    (one, two) = share([run("a", *[100 * k] * 6)], 2)
    assert [p.seq for p in one] == [0, 1, 2]
    assert [p.seq for p in two] == [3, 4, 5]
    uneven = share([run("a", *[100 * k] * 7), run("b", 100 * k)], 2)
    assert [sum(p.segment.rows for p in g) for g in uneven] == [400 * k, 400 * k]
    assert share([], 3) == []


def test_a_wrong_declaration_is_named(site: Site) -> None:
    site.log("a").append(table([1]), epoch=1, batch=0)
    site.list("a")
    for ddl, says in (
        ("ts timestamp, id long", "holds columns"),
        ("id timestamp, ts timestamp", "has id int64"),
    ):
        reader = site.reader(schema=ddl)
        with pytest.raises(ChannelError, match=says):
            rows_of(reader, {"a": 0}, {"a": 1})
    with pytest.raises(ChannelError, match="option 'reader' is missing"):
        ChannelSource({"members": "m", "schema": DDL}).streamReader(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "[]", '{"writers": 3}', '{"logs": {}}'])
def test_a_bad_members_file_is_named(site: Site, text: str) -> None:
    site.members.write_text(text)
    with pytest.raises(ChannelError, match="not a members file"):
        site.reader().initialOffset()


# -- through Spark -----------------------------------------------------------------------------


def source(spark: SparkSession, site: Site, **more: object) -> DataFrame:
    return (
        spark.readStream.name("source").format(own_format(spark, ChannelSource)).options(**site.options(**more)).load()
    )  # type: ignore[return-value]


def start(
    frame: DataFrame,
    site: Site,
    sink_writers: list[dict[str, Any]],
    *,
    epoch: int = 1,
    checkpoint: str = "c",
    **trigger: Any,
) -> StreamingQuery:
    config = json.dumps({"epoch": epoch, "sink_writers": [{"fsync": False, **o} for o in sink_writers]})
    writer = frame.writeStream.format("headwater_sink").option("config", config)
    writer = writer.option("checkpointLocation", str(site.root / checkpoint))
    return writer.trigger(**(trigger or {"processingTime": "100 milliseconds"})).start()


def wait(query: StreamingQuery, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not done():
        if (error := query.exception()) is not None:
            raise error
        assert time.monotonic() < deadline, "Spark took too long"
        time.sleep(0.05)


def halt(query: StreamingQuery) -> None:
    """Stop between two batches."""
    for _ in range(400):
        if not query.status["isTriggerActive"]:
            break
        time.sleep(0.005)
    query.stop()


def out_log(site: Site) -> dict[str, Any]:
    return site.sink_writer("out", event_time="ts")


@OVER_FILES
def test_a_query_whose_source_waits_for_its_batches_can_be_stopped_meanwhile(spark: SparkSession, site: Site) -> None:
    a, out, pace = site.log("a"), site.log("out"), site.root / "pace.json"
    site.list("a")

    def started(seconds: float) -> StreamingQuery:
        write_pace(pace, Pace(seconds=seconds, on_arrival=True))
        return start(source(spark, site, pace=pace), site, [out_log(site)], processingTime="0 seconds")

    query = started(0.0)
    try:
        for batch in range(3):
            a.append(table([batch]), epoch=1, batch=batch)
            wait(query, lambda count=batch + 1: out.stats().rows == count)  # type: ignore[misc]
    finally:
        change_pace(pace, ending=True)
        query.stop()
    a.append(table([3]), epoch=1, batch=3)
    query = started(24 * 3600.0)  # the first batch comes at once, and the next one tomorrow
    try:
        wait(query, lambda: out.stats().rows == 4)
        wait(query, lambda: "Getting offsets" in str(query.status["message"]))
    finally:
        change_pace(pace, ending=True)
        query.stop()
    assert ids(out) == [0, 1, 2, 3] and not query.isActive and query.exception() is None


def test_rows_pass_through_a_live_query(spark: SparkSession, site: Site) -> None:
    """Read two writers, a third that joins while the query runs, and the end; then the read entries are reclaimed."""
    a, b, out = site.log("a"), site.log("b"), site.log("out")
    site.list("a", "b")
    rows = source(spark, site, punctuate=True)
    query = start(rows.where("__wm is null").drop("__wm"), site, [out_log(site)])
    try:
        a.append(table([1, 2]), epoch=1, batch=0)
        b.append(table([8]), epoch=1, batch=0)
        wait(query, lambda: out.stats().rows == 3)
        assert out.stats().frontier == 8_000_000 - 1000
        site.list("a", "b", "c")
        site.log("c").append(table([5]), epoch=1, batch=0)
        wait(query, lambda: out.stats().rows == 4)
        for name in "abc":
            site.log(name).end(1)
        a.append(table([3]), epoch=2, batch=0)
        wait(query, lambda: out.stats().rows == 5)
        a.append(table([4]), epoch=2, batch=1)
        wait(query, lambda: a.earliest() >= 3)
        wait(query, lambda: json.loads((query.lastProgress or {})["sources"][0]["latestOffset"])["a"] == 4)
    finally:
        halt(query)
    assert sorted(ids(out)) == [1, 2, 3, 4, 5, 8]
    assert a.readers()["unit"] >= 3


@OVER_FILES
def test_one_query_feeds_several_outlets(spark: SparkSession, site: Site) -> None:
    a = site.log("a")
    site.list("a")
    a.append(table(list(range(100))), epoch=1, batch=0)
    rows = source(spark, site).selectExpr(
        "case when id % 10 = 0 then 2 when id % 2 = 0 then 1 else 0 end as __out",
        "struct(id, ts) as o0",
        "struct(id, named_struct('start', ts, 'end', ts + interval 5 seconds) as w) as o1",
        "struct(id, concat('bad ', id) as reason) as o2",
    )
    rows = rows.selectExpr("__out", *[f"if(__out = {i}, o{i}, null) as o{i}" for i in range(3)])
    sink_writers: list[dict[str, Any]] = [
        {"tag": 0, **out_log(site)},
        {"tag": 1, **site.sink_writer("even", event_time="w")},
        {"tag": 2, "kind": "files", "format": "json", "path": str(site.root / "dead")},
    ]
    query = start(rows, site, sink_writers, availableNow=True)
    assert query.awaitTermination(int(WAIT))
    assert query.exception() is None
    assert ids(site.log("out")) == list(range(1, 100, 2))
    assert site.log("out").stats().frontier == 99_000_000 - 1000
    even = site.log("even")
    assert ids(even) == [i for i in range(100) if i % 2 == 0 and i % 10]
    assert even.stats().frontier == 103_000_000 - 1 - 1000
    dead = FileSinkWriter(sink_writers[2], 1)
    assert dead.rows() == 10
    lines = [json.loads(x) for p in sorted(dead.path.glob("part-*.json")) for x in p.read_text().splitlines()]
    assert [x["reason"] for x in lines] == [f"bad {i}" for i in range(0, 100, 10)]


def test_a_restarted_query_loses_and_doubles_nothing(spark: SparkSession, site: Site) -> None:
    """The second start finds a batch that was published but not recorded by Spark."""
    a, out = site.log("a"), site.log("out")
    site.list("a")
    for batch in range(4):
        a.append(table([batch]), epoch=1, batch=batch)
    files = {"kind": "files", "format": "parquet", "path": str(site.root / "files")}
    rows = source(spark, site, max_rows_per_batch=1)
    tagged = rows.selectExpr("cast(id % 2 as int) as __out", "struct(id, ts) as o0", "struct(id, ts) as o1")
    sink_writers = [{"tag": 0, **out_log(site)}, {"tag": 1, **files}]
    total = lambda: out.stats().rows + FileSinkWriter(files, 1).rows()  # noqa: E731
    query = start(tagged, site, sink_writers)
    wait(query, lambda: total() == 4)
    wait(query, lambda: len([n for n in os.listdir(site.root / "c" / "commits") if n.isdigit()]) == 4)
    halt(query)
    for name in ("3", ".3.crc"):
        (site.root / "c" / "commits" / name).unlink(missing_ok=True)
    for batch in range(4, 8):
        a.append(table([batch]), epoch=1, batch=batch)
    query = start(tagged, site, sink_writers)
    wait(query, lambda: total() == 8)
    halt(query)
    shown = spark.read.parquet(str(site.root / "files")).select("id").toArrow()
    assert sorted(shown.column("id").to_pylist()) == [1, 3, 5, 7]
    assert ids(out) == [0, 2, 4, 6]


@OVER_FILES
def test_a_fenced_query_fails_and_says_why(spark: SparkSession, site: Site) -> None:
    site.list("a")
    site.log("a").append(table([1]), epoch=1, batch=0)
    site.log("out").fence(2)
    query = start(source(spark, site), site, [out_log(site)], availableNow=True)
    with pytest.raises(Exception, match="epoch 1 is out of date: epoch 2"):
        query.awaitTermination(int(WAIT))
    assert ids(site.log("out")) == []


@OVER_FILES
@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_spark_reads_back_what_the_files_outlet_wrote(spark: SparkSession, site: Site, kind: str) -> None:
    site.list("a")
    site.log("a").append(table([1, 2, 3]), epoch=1, batch=0)
    files = {"kind": "files", "format": kind, "path": str(site.root / "files")}
    query = start(source(spark, site), site, [files], availableNow=True)
    assert query.awaitTermination(int(WAIT))
    back = spark.read.schema(DDL).option("header", "true").format(kind).load(files["path"]).orderBy("id")
    assert back.toArrow().cast(table([1]).schema).equals(table([1, 2, 3]))


@OVER_FILES
def test_spark_types_survive(spark: SparkSession, site: Site) -> None:
    """One zone writes and another reads nested, decimal, null and zoneless values."""
    site.list("a")
    site.log("a").append(table([1, 2]), epoch=1, batch=0)
    rows = source(spark, site).selectExpr(
        "id",
        "if(id = 1, named_struct('start', ts, 'end', ts + interval 1 second), null) as w",
        "array(ts, null) as l",
        "map('k', id) as m",
        "cast(id as decimal(12, 3)) as d",
        "cast(ts as timestamp_ntz) as n",
        "cast(ts as date) as day",
        "cast(concat('b', id) as binary) as b",
    )
    written = start(rows, site, [site.sink_writer("typed")], availableNow=True)
    assert written.awaitTermination(int(WAIT))
    site.list("typed")
    ddl = (
        "id long, w struct<start: timestamp, end: timestamp>, l array<timestamp>, m map<string, long>,"
        "d decimal(12, 3), n timestamp_ntz, day date, b binary"
    )
    frame = source(spark, site, schema=ddl, punctuate=False)
    copied = start(frame, site, [site.sink_writer("copy")], checkpoint="c2", availableNow=True)
    assert copied.awaitTermination(int(WAIT))
    first, second = open_log(site.spec("typed")), open_log(site.spec("copy"))
    assert pa.Table.from_batches(first.read(0, 1)).equals(pa.Table.from_batches(second.read(0, 1)))
    assert second.stats().rows == 2
