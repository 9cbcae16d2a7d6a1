"""A snapshot of an Iceberg table as a source, in one batch and as a stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headwater.connectors.iceberg_source import IcebergDataSource
from headwater.connectors.icebergtable import IcebergAddress, existing, opened
from headwater.connectors.sparkformats import own_format
from headwater.connectors.writers import open_sink_writer

from .test_delta_source import Reading, flat
from .test_table_sinks import everything, nested, stage, write

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

pytest.importorskip("pyiceberg")


class Snapshots(Reading):
    """An Iceberg table, and a stream of it."""

    @property
    def address(self) -> IcebergAddress:
        catalog = f"sqlite:///{self.directory / 'catalog.db'}"
        return IcebergAddress(table="plant.rows", catalog=catalog, warehouse=str(self.directory / "warehouse"))

    @property
    def spec(self) -> dict[str, Any]:
        named = {"kind": "iceberg", "id": "headwater-7-aa", "path": str(self.directory / "staged")}
        return {**named, **self.address.to_data(), "partition_by": ["k"]}

    def put(self, batch: int, *ids: int) -> None:
        write(self.spec, batch, *ids)

    def options(self, reader: Any, **options: Any) -> Any:
        reader = reader.format(own_format(self.spark, IcebergDataSource)).option("schema", self.schema)
        reader = reader.option("address", json.dumps(self.address.to_data()))
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    def snapshot(self) -> int:
        with opened(self.address) as catalog:
            table = existing(catalog, self.address)
            assert table is not None
            return int(table.current_snapshot().snapshot_id)


@pytest.fixture
def reading(spark: SparkSession, tmp_path: Path) -> Snapshots:
    return Snapshots(spark, tmp_path)


def test_one_snapshot_is_read(reading: Snapshots) -> None:
    assert reading.batch() == []
    reading.put(0, 1, 2)
    first = reading.snapshot()
    reading.put(1, 3)
    assert reading.batch() == [1, 2, 3]
    assert reading.batch(snapshot=first) == [1, 2]


def test_a_stream_reads_each_row_of_its_snapshot_once(reading: Snapshots) -> None:
    reading.put(0, 1, 2, 3)  # a file for each key
    reading.put(1, 4)
    assert [len(ids) for ids in reading.stream(max_files_per_batch=3)] == [3, 1]
    reading.put(2, 5)
    assert reading.stream() == []


def test_a_stream_goes_on_in_its_snapshot(reading: Snapshots) -> None:
    reading.put(0, *range(10))
    first = reading.snapshot()
    reading.put(1, 11)
    assert flat(reading.stream(snapshot=first)) == list(range(10))


def test_snapshots_and_columns_that_are_missing_are_told(spark: SparkSession, tmp_path: Path) -> None:
    reading = Snapshots(spark, tmp_path)
    reading.put(0, 1)
    with pytest.raises(Exception, match="has no snapshot 7"):
        reading.batch(snapshot=7)
    reading.schema = "id bigint, other int"
    with pytest.raises(Exception, match="has no column 'other'"):
        reading.batch()


def test_a_table_holds_the_values(spark: SparkSession, tmp_path: Path) -> None:
    text = (
        "tiny int, small int, int int, big bigint, f float, d double, s string, b boolean, bin binary, day date, "
        "ts timestamp, ntz timestamp_ntz, dec decimal(38,2), items array<string>, st struct<a:int,at:timestamp>, "
        "map map<string,double>"
    )
    reading = Snapshots(spark, tmp_path, text)
    flat_rows, deep = everything(), nested().drop_columns("deep")
    both = pa.RecordBatch.from_arrays(
        [*flat_rows.columns, *deep.columns], names=[*flat_rows.schema.names, *deep.schema.names]
    )
    writer = open_sink_writer({**reading.spec, "partition_by": []}, 1)
    writer.commit(stage(writer, both), 0)
    found = reading.options(spark.read).toArrow()
    assert list(map(repr, found.to_pylist())) == list(map(repr, both.to_pylist()))
