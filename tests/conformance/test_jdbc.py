"""Tables as sinks: a real database (Derby, part of Spark)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headwater as hw
from headwater.connectors.jdbc import AVAILABLE_NOW, start_sink
from headwater.connectors.packages import packages_for
from headwater.continuum.model import Continuum
from headwater.core.errors import DataflowError, DeploymentError
from headwater.dataflow.sinks import JdbcSink
from headwater.disk.checkpoint import checkpoint_number
from headwater.plan.build import build
from tests.formeroutput import settled

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

TIMEOUT = 120
SCHEMA = "id bigint, text string, at timestamp"


class Table:
    """A table of an embedded database, and a query that fills it from files of JSON lines."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.input = directory / "in"
        self.input.mkdir()
        self.files = 0

    def sink(self, **settings: Any) -> JdbcSink:
        url = f"jdbc:derby:{self.directory / 'db'};create=true"
        return JdbcSink(**{"id": "jdbc_1", "url": url, "table": "readings", **settings})

    def give(self, *ids: int) -> None:
        rows = [{"id": i, "text": f"a'b\"{i}", "at": "2024-01-01T00:00:00Z"} for i in ids]
        (self.directory / "draft").write_text("".join(json.dumps(r) + "\n" for r in rows))
        # Spark takes files in the order of their times.
        os.utime(self.directory / "draft", (self.files + 1.7e9, self.files + 1.7e9))
        (self.directory / "draft").rename(self.input / f"{self.files}.json")
        self.files += 1

    def run(self, *, checkpoint: str = "checkpoint", **settings: Any) -> None:
        """Write the files that are there, one a batch."""
        reader = self.spark.readStream.name("source").schema(SCHEMA).option("maxFilesPerTrigger", 1)
        query = start_sink(
            self.sink(**settings),
            reader.json(str(self.input)),
            checkpoint=self.directory / checkpoint,
            sync=True,
            query_name=f"sinks/{self.directory.name}/{checkpoint}",
            trigger=AVAILABLE_NOW,
        )
        try:
            assert query.awaitTermination(TIMEOUT), "the query does not end"
        finally:
            query.stop()

    def rows(self, table: str = "readings") -> list[Any]:
        reader = self.spark.read.format("jdbc").option("url", self.sink().url).option("dbtable", table)
        return reader.load().orderBy("id").collect()

    def ids(self) -> list[int]:
        return [r.id for r in self.rows()]

    def uncommit(self, *batches: int, checkpoint: str = "checkpoint") -> None:
        """Make a checkpoint look as it does after a crash between the write and Spark's commit."""
        for batch in batches:
            for name in (str(batch), f".{batch}.crc"):
                (self.directory / checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    return Table(spark, tmp_path)


def test_batches_are_written_with_their_numbers(table: Table) -> None:
    table.give(1, 2)
    table.give(3)
    table.run()
    rows = table.rows()
    assert [(r.id, r.text, r.at.isoformat()) for r in rows[:1]] == [(1, "a'b\"1", "2024-01-01T00:00:00")]
    number = checkpoint_number(str(table.directory / "checkpoint"))
    assert [(r.id, r.headwater_batch >> 32, r.headwater_batch & 0xFFFFFFFF) for r in rows] == [
        (1, number, 0),
        (2, number, 0),
        (3, number, 1),
    ]


def test_a_replayed_batch_is_written_once(table: Table) -> None:
    table.give(1, 2)
    table.run()
    table.uncommit(0)  # the very first batch
    table.run()
    assert table.ids() == [1, 2]
    table.give(3)
    table.run()
    table.uncommit(1)
    table.give(4)
    table.run()
    table.run()
    assert table.ids() == [1, 2, 3, 4]


def test_without_a_batch_column_a_replayed_batch_is_written_again(table: Table) -> None:
    table.give(1)
    table.run(batch_column=None)
    table.uncommit(0)
    table.run(batch_column=None)
    assert table.ids() == [1, 1]  # which shows that the test above replays


def test_checkpoints_do_not_take_each_others_rows_for_their_own(table: Table) -> None:
    table.give(1)
    table.give(2)
    table.run(checkpoint="north")
    table.run(checkpoint="south")
    assert table.ids() == [1, 1, 2, 2]
    table.uncommit(1, checkpoint="north")
    table.run(checkpoint="north")
    assert table.ids() == [1, 1, 2, 2]


def test_a_copied_checkpoint_goes_on_as_the_same_writer(table: Table) -> None:
    table.give(1)
    table.run()
    table.uncommit(0)
    shutil.copytree(table.directory / "checkpoint", table.directory / "copy")
    table.give(2)
    table.run(checkpoint="copy")
    assert table.ids() == [1, 2]
    (table.directory / "copy" / "headwater.json").unlink()
    with pytest.raises(DeploymentError, match="has no number"):
        table.run(checkpoint="copy")


def test_rows_of_another_run_are_found_and_removed_alone(table: Table) -> None:
    builder = hw.flow("f", locations=["L1"])
    sink = table.sink()
    builder.read.json("in/{location}", SCHEMA).write.jdbc(sink.url, sink.table)
    plan = build(builder.build(), Continuum.from_text("layers: [cloud]\nzones: {C1: {layer: cloud, locations: [L1]}}"))
    settled(plan, "refuse", table.spark)  # there is no table yet
    assert table.ids() == []
    table.give(1, 2)
    table.run(checkpoint="former")
    stranger = table.spark.createDataFrame([(7, "theirs", None, None), (8, "theirs", None, 5)], f"{SCHEMA}, b bigint")
    stranger = stranger.withColumnRenamed("b", "headwater_batch")
    stranger.write.format("jdbc").option("url", sink.url).option("dbtable", sink.table).mode("append").save()
    with pytest.raises(DeploymentError, match="holds rows of another run") as refused:
        settled(plan, "refuse", table.spark)
    assert "--append" in str(refused.value.hint) and "--overwrite" in str(refused.value.hint)
    settled(plan, "append", table.spark)
    assert table.ids() == [1, 2, 7, 8]
    settled(plan, "overwrite", table.spark)
    assert table.ids() == [7, 8]
    settled(plan, "refuse", table.spark)
    table.run(checkpoint="later")
    assert table.ids() == [1, 2, 7, 8]


def test_a_batch_that_fails_leaves_nothing(table: Table) -> None:
    table.give(1)
    table.run()
    table.give(2, 3)
    (table.input / "1.json").write_text('{"id": 2, "text": "ok"}\n' + json.dumps({"id": 3, "text": "x" * 40}) + "\n")
    options = (("createTableColumnTypes", "text varchar(10)"),)
    with pytest.raises(Exception, match="'short' was not written"):
        table.run(checkpoint="other", table="short", options=options)
    assert [r.id for r in table.rows("short")] == [1]
    (table.input / "1.json").write_text('{"id": 2, "text": "ok"}\n{"id": 3, "text": "ok"}\n')
    table.run(checkpoint="other", table="short", options=options)
    assert [r.id for r in table.rows("short")] == [1, 2, 3]


def test_a_table_that_does_not_fit_is_told(table: Table) -> None:
    table.give(1)
    table.run(batch_column=None)
    with pytest.raises(Exception, match="the table 'readings' was not written"):
        table.run(checkpoint="other")
    assert table.ids() == [1]


def test_the_batch_columns_name_must_be_free(table: Table) -> None:
    with pytest.raises(DataflowError, match="already has a column 'ID'"):
        table.run(batch_column="ID")


def test_variables_and_drivers_that_are_missing_are_named(table: Table) -> None:
    table.give(1)
    with pytest.raises(Exception, match="the environment variable HEADWATER_SECRET_NONE is not set"):
        table.run(password_env="HEADWATER_SECRET_NONE")
    with pytest.raises(Exception, match=r"no driver for jdbc:nodb:[\s\S]*--packages <group:artifact"):
        table.run(checkpoint="b", url="jdbc:nodb:x")


def test_only_local_checkpoints_have_numbers(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    number = checkpoint_number((tmp_path / "a b").as_uri())
    assert checkpoint_number(str(tmp_path / "a b")) == number
    assert 0 < number < 2**31
    with pytest.raises(DeploymentError, match="not on this machine"):
        checkpoint_number("s3a://bucket/checkpoint")
    (tmp_path / "a b" / "headwater.json").write_text("{}")
    with pytest.raises(DeploymentError, match="damaged"):
        checkpoint_number(str(tmp_path / "a b"))


def test_packages_that_a_dataflow_needs() -> None:
    def packages(sink: Callable[[Any], Any]) -> list[str]:
        flow = hw.flow("f")
        sink(flow.read.rate(1))
        return [p.split(":")[1] for p in packages_for(flow.build())]

    assert packages(lambda s: s.write.console()) == []
    assert packages(lambda s: s.write.jdbc("jdbc:derby:x", "t")) == []
    assert packages(lambda s: s.write.jdbc("jdbc:postgresql://db/x", "t")) == ["postgresql"]
    assert packages(lambda s: s.write.kafka("host:9092", "t")) == []
