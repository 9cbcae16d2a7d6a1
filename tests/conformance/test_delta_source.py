"""A Delta table as a source: in batches and as a stream, over commits, compaction, deletions and restarts."""

from __future__ import annotations

import datetime
import decimal
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.connectors.delta_source import DeltaDataSource
from headwater.connectors.deltacompact import compact
from headwater.connectors.sparkformats import own_format
from headwater.core.errors import DataflowError

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

deltalake = pytest.importorskip("deltalake")
TIMEOUT = 120


class Reading:
    """A table, and a stream of it into a table in memory."""

    def __init__(self, spark: SparkSession, directory: Path, schema: str = "id bigint, k string") -> None:
        self.spark, self.directory, self.schema = spark, directory, schema
        self.table = directory / "table"
        self.runs = 0

    def add(self, *ids: int, k: str | None = "a", **settings: Any) -> None:
        rows = pa.table({"id": pa.array(ids, pa.int64()), "k": pa.array([k] * len(ids), pa.string())})
        deltalake.write_deltalake(str(self.table), rows, mode="append", **settings)

    def loaded(self) -> Any:
        return deltalake.DeltaTable(str(self.table))

    def options(self, reader: Any, **options: Any) -> Any:
        reader = reader.format(own_format(self.spark, DeltaDataSource)).option("path", str(self.table))
        reader = reader.option("schema", self.schema)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    def batch(self, **options: Any) -> list[int]:
        return sorted(row.id for row in self.options(self.spark.read, **options).collect())

    def stream(self, **options: Any) -> list[list[int]]:
        """Read what is there; return the ids of each new batch."""
        frame = self.options(self.spark.readStream.name("source"), **options)
        out = self.directory / f"out{self.runs}"
        self.runs += 1
        writer = frame.writeStream.format("json").option("path", str(out))
        writer = writer.option("checkpointLocation", str(self.directory / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(TIMEOUT), "the query does not end"
        finally:
            query.stop()
        found = []
        for log in sorted((out / "_spark_metadata").glob("[0-9]*"), key=lambda p: int(p.name.split(".")[0])):
            files = [json.loads(line)["path"] for line in log.read_text().splitlines()[1:]]
            lines = [line for f in files for line in Path(f.removeprefix("file://")).read_text().splitlines()]
            found.append(sorted(json.loads(line)["id"] for line in lines))
        return [ids for ids in found if ids]


@pytest.fixture
def reading(spark: SparkSession, tmp_path: Path) -> Reading:
    return Reading(spark, tmp_path)


def flat(batches: list[list[int]]) -> list[int]:
    return sorted(i for ids in batches for i in ids)


def test_a_batch_reads_the_newest_version_or_another(reading: Reading) -> None:
    reading.add(1, 2)
    between = datetime.datetime.now(datetime.UTC)
    while datetime.datetime.now(datetime.UTC).timestamp() - between.timestamp() < 0.05:
        time.sleep(0.01)
    reading.add(3)
    assert reading.batch() == [1, 2, 3]
    assert reading.batch(version=0) == [1, 2]
    assert reading.batch(timestamp=(between + datetime.timedelta(milliseconds=20)).isoformat()) == [1, 2]


def test_a_stream_reads_each_row_once(reading: Reading) -> None:
    reading.add(1, 2)
    reading.add(3)
    assert flat(reading.stream()) == [1, 2, 3]
    assert reading.stream() == []
    reading.add(4)
    reading.add(5, k=None)
    assert flat(reading.stream()) == [4, 5]
    assert compact(reading.table, [], least=2, told={}, where="test")
    reading.loaded().optimize.compact()
    assert reading.stream() == []
    reading.add(6)
    assert reading.stream() == [[6]]


def test_batches_have_a_limited_number_of_files(reading: Reading) -> None:
    for n in range(5):
        reading.add(n)
    assert [len(ids) for ids in reading.stream(max_files_per_batch=2)] == [2, 2, 1]
    for n in range(5, 8):
        reading.add(n)
    assert reading.stream(max_files_per_batch=2) == [[5, 6], [7]]


def test_a_batch_may_begin_inside_a_version_that_is_compacted_meanwhile(reading: Reading) -> None:
    for n in range(4):
        reading.add(n)
    frame = reading.options(reading.spark.readStream.name("source"), max_files_per_batch=1)
    seen: list[int] = []
    writer = frame.writeStream.format("json").option("path", str(reading.directory / "first"))
    query = writer.option("checkpointLocation", str(reading.directory / "checkpoint")).start()
    try:
        deadline = time.monotonic() + TIMEOUT
        commits = reading.directory / "checkpoint" / "commits"
        while not (commits / "1").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        query.stop()
    for file in (reading.directory / "first").glob("*.json"):
        seen += [json.loads(line)["id"] for line in file.read_text().splitlines()]
    reading.loaded().optimize.compact()
    reading.add(9)
    meta = reading.directory / "first" / "_spark_metadata"
    assert len(list(meta.glob("[0-9]*"))) >= 2
    # The other batches go to another directory: Spark's file sink would skip those that it has.
    left = flat(reading.stream(max_files_per_batch=1))
    assert sorted({*seen, *left}) == [0, 1, 2, 3, 9]
    assert len(left) <= 4


def test_a_fixed_version_is_not_followed(reading: Reading) -> None:
    reading.add(1)
    reading.add(2)
    assert flat(reading.stream(version=0, follow=False)) == [1]
    reading.add(3)
    assert reading.stream(version=0, follow=False) == []


def test_a_version_that_is_followed(reading: Reading) -> None:
    reading.add(1)
    reading.add(2)
    assert flat(reading.stream(version=0)) == [1, 2]


def test_a_table_may_come_later(reading: Reading) -> None:
    assert reading.stream() == []
    assert reading.batch() == []
    reading.add(1)
    reading.add(2)
    assert flat(reading.stream()) == [1, 2]


def test_partition_columns_and_columns_that_came_later(spark: SparkSession, tmp_path: Path) -> None:
    reading = Reading(spark, tmp_path, "new double, id bigint, k string, day date, n int, flag boolean")
    day = datetime.date(2026, 1, 31)
    columns = {"id": [1, 2, 3], "k": ["a b%/=", None, ""], "day": [day, None, day]}
    rows = pa.table({**columns, "n": pa.array([7, None, 7], pa.int32()), "flag": [True, False, None]})
    by = ["k", "day", "n", "flag"]
    deltalake.write_deltalake(str(reading.table), rows, mode="append", partition_by=by)
    more = rows.append_column("new", pa.array([1.5, None, 2.5]))
    deltalake.write_deltalake(str(reading.table), more, mode="append", schema_mode="merge", partition_by=by)
    expected = [
        (None, 1, "a b%/=", day, 7, True), (1.5, 1, "a b%/=", day, 7, True),
        (None, 2, None, None, None, False), (None, 2, None, None, None, False),
        (None, 3, None, day, 7, None), (2.5, 3, None, day, 7, None),
    ]  # fmt: skip
    for frame in (reading.options(spark.read), reading.options(spark.read, version=1)):
        found = [tuple(row) for row in frame.collect()]
        assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert flat(reading.stream(version=0)) == [1, 1, 2, 2, 3, 3]


def test_a_table_holds_every_type(spark: SparkSession, tmp_path: Path) -> None:
    from tests.conformance.test_table_sinks import everything, nested

    both = pa.Table.from_batches(
        [
            pa.RecordBatch.from_arrays(
                [*everything().columns, *nested().columns], names=[*everything().schema.names, *nested().schema.names]
            )
        ]
    )
    deltalake.write_deltalake(str(tmp_path / "table"), both, mode="append")
    stream = hw.flow("f").read.delta(str(tmp_path / "table"))
    schema = stream.shape.schema.text
    assert "dec decimal(38,2)" in schema and "deep array<struct<a:smallint,at:timestamp>>" in schema
    reading = Reading(spark, tmp_path, schema)
    found = reading.options(spark.read).toArrow()
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, both.to_pylist()))
    assert found.column("dec").to_pylist().count(decimal.Decimal("-1.50")) == 1


def test_deletions_end_the_stream_unless_they_are_ignored(reading: Reading) -> None:
    reading.add(1, 2)
    assert flat(reading.stream()) == [1, 2]
    reading.loaded().delete("id = 1")
    with pytest.raises(Exception, match="version 1 deletes or changes rows"):
        reading.stream()
    assert flat(reading.stream(ignore_changes=True)) == [2]  # it was moved


def test_versions_that_are_gone_are_told(reading: Reading) -> None:
    reading.add(1)
    assert reading.stream() == [[1]]
    reading.add(2)
    reading.add(3)
    (reading.table / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(Exception, match="version 1 is not in the table's log any more"):
        reading.stream()


def test_a_log_may_be_shortened_behind_the_stream(reading: Reading) -> None:
    reading.add(1)
    reading.add(2)
    assert flat(reading.stream()) == [1, 2]
    reading.add(3)
    reading.loaded().create_checkpoint()
    for version in range(2):
        (reading.table / "_delta_log" / f"{version:020d}.json").unlink()
    assert reading.stream() == [[3]]


def test_files_outside_of_the_table_are_refused(reading: Reading, tmp_path: Path) -> None:
    reading.add(1)
    (file,) = reading.table.glob("*.parquet")
    file.rename(tmp_path / "secret.parquet")
    file.symlink_to(tmp_path / "secret.parquet")
    for load in (reading.batch, reading.stream):
        with pytest.raises(Exception, match="is outside of the table's directory"):
            load()


def test_a_column_that_is_not_there_is_told(spark: SparkSession, tmp_path: Path) -> None:
    reading = Reading(spark, tmp_path, "id bigint, other string")
    reading.add(1)
    with pytest.raises(Exception, match="the table has no column 'other'"):
        reading.batch()


def test_a_schema_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    flow = hw.flow("f", locations=["L1"])
    with pytest.raises(DataflowError, match="the schema of the table cannot be read") as error:
        flow.read.delta(str(tmp_path / "{location}"))
    assert "give the schema" in str(error.value.hint)
    assert flow.read.delta(str(tmp_path / "{location}"), "id bigint").columns == ["id"]
    with pytest.raises(DataflowError, match="'tomorrow' is no timestamp"):
        flow.read.delta(str(tmp_path), "id bigint", timestamp="tomorrow")
    with pytest.raises(DataflowError, match="version and timestamp both choose"):
        flow.read.delta(str(tmp_path), "id bigint", timestamp="2026-01-01", version=3)
    with pytest.raises(DataflowError, match="is not a directory"):
        flow.read.delta("s3://bucket/table", "id bigint")
