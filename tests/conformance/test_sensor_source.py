"""The sensor source on a real Spark: exactly the model's rows, as batch and as stream, over a restart."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from headwater.connectors.sensor_source import SensorDataSource, arrow_batches, parse_options
from headwater.connectors.sources import source_frame
from headwater.connectors.sparkformats import own_format
from headwater.core.errors import SparkStumbled
from headwater.dataflow.sources import SensorSource
from headwater.query.query import Running

OPTIONS = {"location": "L1", "seed": "11", "machines": "3", "anomaly_every": "400", "anomaly_length": "40"}
PATIENCE_S = 90


def expected(rows: int) -> pa.Table:
    return pa.Table.from_batches(arrow_batches(parse_options(OPTIONS), first=0, last=rows))


def ordered(table: pa.Table) -> pa.Table:
    """Return the table by row, in the source's types (Parquet's INT96 gives nanoseconds without a zone)."""
    return table.cast(expected(1).schema).sort_by("seq")


def stored(folder: Path) -> pa.Table:
    """Return the rows of a Parquet sink that its commit log names."""
    names = set()
    for entry in sorted((folder / "_spark_metadata").glob("[0-9]*")):
        for line in entry.read_text().splitlines()[1:]:
            names.add(json.loads(line)["path"].rsplit("/", 1)[1])
    return ordered(pa.concat_tables([pq.ParquetFile(folder / name).read() for name in sorted(names)]))


def offsets(checkpoint: Path) -> list[dict[str, int]]:
    """Return the end offset of each batch that the query planned."""
    files = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    return [json.loads(file.read_text().splitlines()[-1].removeprefix("source:")) for file in files]


def started(spark: Any, folder: Path, *, options: dict[str, str], trigger: dict[str, Any]) -> Any:
    reader = spark.readStream.name("source").format(own_format(spark, SensorDataSource))
    frame = reader.options(**OPTIONS, **options).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(**trigger).start(str(folder / "rows"))


def run_until(start: Callable[[], Any], done: Callable[[Any], bool]) -> None:
    """Run a query until it is done, starting it again where only Spark stumbled, as units are."""
    deadline, stumbles = time.monotonic() + PATIENCE_S, 0
    query = start()
    try:
        while not done(query):
            error = Running(query).failure("source")
            if isinstance(error, SparkStumbled) and stumbles < 3:
                stumbles, query = stumbles + 1, start()
            elif error is not None:
                raise error
            assert time.monotonic() < deadline, (query.status, query.lastProgress)
            time.sleep(0.2)
    finally:
        query.stop()


def test_batch_rows_are_the_models(spark: Any) -> None:
    frame = spark.read.format(own_format(spark, SensorDataSource)).options(**OPTIONS, rows="2000").load()
    assert frame.schema.simpleString() == (
        "struct<machine:string,ts:timestamp,temperature:double,label:boolean,seq:bigint>"
    )
    rows = ordered(frame.toArrow())
    assert rows.equals(expected(2000))
    assert set(rows["label"].to_pylist()) == {True, False}


def test_a_source_of_a_dataflow_gives_these_rows(spark: Any) -> None:
    declared = SensorSource(id="s", seed=11, machines=3, interval="2 minutes", rows=5)
    found = source_frame(spark, declared, "L1", name=None).toArrow().sort_by("seq")
    steps = found.filter(pc.equal(found["machine"], found["machine"][0]))["ts"].to_pylist()
    assert len(found) == 5 and steps[1] - steps[0] == timedelta(minutes=2)


def test_stream_goes_on_at_its_row_and_equals_the_batch(spark: Any, tmp_path: Path) -> None:
    for rows in ("3000", "7000"):
        start = partial(
            started,
            spark,
            tmp_path,
            options={"rows": rows, "max_rows_per_batch": "1200"},
            trigger={"availableNow": True},
        )
        run_until(start, lambda query: not query.isActive and query.exception() is None)
    assert [offset["row"] for offset in offsets(tmp_path / "checkpoint")] == [
        1200, 2400, 3000, 4200, 5400, 6600, 7000
    ]  # fmt: skip
    assert stored(tmp_path / "rows").equals(expected(7000))


def test_paced_stream_keeps_its_start_instant(spark: Any, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    rate = 500
    for planned in (2, 4):
        start = partial(
            started,
            spark,
            tmp_path,
            options={"rows_per_second": str(rate)},
            trigger={"processingTime": "300 milliseconds"},
        )
        run_until(start, lambda _, wanted=planned: len(offsets(checkpoint)) > wanted)
        newest = offsets(checkpoint)[-1]
        assert newest["row"] <= (time.time() * 1000 - newest["t0"]) / 1000 * rate
    found = offsets(checkpoint)
    assert len({offset["t0"] for offset in found}) == 1
    rows = stored(tmp_path / "rows")
    assert 0 < len(rows) <= found[-1]["row"]
    assert rows.equals(expected(len(rows)))


def test_a_wrong_option_is_named(spark: Any) -> None:
    with pytest.raises(Exception, match="unknown option 'rate'"):
        spark.read.format(own_format(spark, SensorDataSource)).options(**OPTIONS, rows="10", rate="5").load().count()
