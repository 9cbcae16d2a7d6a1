"""The sensor source on a real Spark: exactly the model's rows, as a batch, as a stream, and over a restart."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.runtime.sensor_source import NAME, SensorSource, arrow_batches, parse_options

OPTIONS = {"location": "L1", "seed": "11", "machines": "3", "anomaly_every": "400", "anomaly_length": "40"}
PATIENCE_S = 90


@pytest.fixture
def source(spark: Any) -> Any:
    spark.dataSource.register(SensorSource)
    return spark


def expected(first: int, last: int) -> list[dict[str, object]]:
    return pa.Table.from_batches(arrow_batches(parse_options(OPTIONS), first=first, last=last)).to_pylist()


def stored(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet sink that its commit log names."""
    names = set()
    for entry in sorted((folder / "_spark_metadata").glob("[0-9]*")):
        for line in entry.read_text().splitlines()[1:]:
            names.add(json.loads(line)["path"].rsplit("/", 1)[1])
    rows = [row for name in names for row in pq.ParquetFile(folder / name).read().to_pylist()]
    return sorted(rows, key=lambda row: int(row["seq"]))


def offsets(checkpoint: Path) -> list[dict[str, int]]:
    """Return the end offset of each batch that the query planned."""
    files = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    return [json.loads(file.read_text().splitlines()[-1]) for file in files]


def started(spark: Any, folder: Path, *, options: dict[str, str], trigger: dict[str, Any]) -> Any:
    frame = spark.readStream.format(NAME).options(**OPTIONS, **options).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(**trigger).start(str(folder / "rows"))


def waited(condition: Any) -> Iterator[float]:
    """Yield the seconds waited until the condition holds; fail when patience ends."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < PATIENCE_S, "waited too long"
        time.sleep(0.2)
    yield time.monotonic() - begin


def test_batch_rows_are_the_models(source: Any) -> None:
    frame = source.read.format(NAME).options(**OPTIONS, rows="2000").load()
    assert frame.schema.simpleString() == (
        "struct<machine:string,ts:timestamp,temperature:double,label:boolean,seq:bigint>"
    )
    rows = sorted(frame.toArrow().to_pylist(), key=lambda row: int(row["seq"]))
    assert rows == expected(0, 2000)
    assert {row["label"] for row in rows} == {True, False}


def test_stream_goes_on_at_its_row_and_equals_the_batch(source: Any, tmp_path: Path) -> None:
    for rows in ("3000", "7000"):
        query = started(
            source,
            tmp_path,
            options={"rows": rows, "max_rows_per_batch": "1200"},
            trigger={"availableNow": True},
        )
        try:
            assert query.awaitTermination(PATIENCE_S)
        finally:
            query.stop()
    assert [offset["row"] for offset in offsets(tmp_path / "checkpoint")] == [
        1200, 2400, 3000, 4200, 5400, 6600, 7000
    ]  # fmt: skip
    assert stored(tmp_path / "rows") == expected(0, 7000)


def test_paced_stream_keeps_its_start_instant(source: Any, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    rate = 500
    for planned in (2, 4):
        query = started(
            source,
            tmp_path,
            options={"rows_per_second": str(rate)},
            trigger={"processingTime": "300 milliseconds"},
        )
        try:
            next(waited(lambda wanted=planned: len(offsets(checkpoint)) >= wanted))
        finally:
            query.stop()
        newest = offsets(checkpoint)[-1]
        assert newest["row"] <= (time.time() * 1000 - newest["t0"]) / 1000 * rate
    found = offsets(checkpoint)
    assert len({offset["t0"] for offset in found}) == 1
    rows = stored(tmp_path / "rows")
    assert rows == expected(0, len(rows))


def test_a_wrong_option_is_named(source: Any) -> None:
    with pytest.raises(Exception, match="unknown option 'rate'"):
        source.read.format(NAME).options(**OPTIONS, rows="10", rate="5").load().count()
