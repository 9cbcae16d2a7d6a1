"""A topic up to an end: how a batch is limited, and that it depends on its offsets alone. Without a broker."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from headwater.connectors.kafkarange import KafkaRangeReader, OffsetRange, range_options
from headwater.connectors.sparktypes import spark_schema
from headwater.dataflow.kafkatopic import KafkaSource


def source(**settings: Any) -> KafkaSource:
    named = {"id": "s", "bootstrap_servers": "b", "topic": "t", "format": "json", "schema_text": "id bigint"}
    return KafkaSource(**{**named, "ending": "latest", **settings})


READER = KafkaRangeReader(source(), "L1", spark_schema([]), 10)


def offset(at: dict[str, int], begin: dict[str, int] | None = None) -> dict[str, dict[str, int]]:
    return {"from": begin or {"0": 5, "1": 0, "2": 7}, "to": {"0": 105, "1": 50, "2": 7}, "at": at}


def test_partitions_share_the_records_of_a_batch_by_what_they_have_left() -> None:
    start = offset({"0": 5, "1": 0, "2": 7})
    first = READER.latestOffset(start, ReadMaxRows(15))
    assert first["at"] == {"0": 15, "1": 5, "2": 7}
    assert READER.partitions(start, first) == [OffsetRange(0, 5, 15), OffsetRange(1, 0, 5)]
    assert READER.latestOffset(first, ReadAllAvailable())["at"] == first["to"]
    last = READER.latestOffset(first, ReadMaxRows(200))
    assert last["at"] == last["to"] and READER.latestOffset(last, ReadMaxRows(1)) == last, "there is nothing new"
    assert READER.partitions(first, last) == [OffsetRange(0, 15, 105), OffsetRange(1, 5, 50)]
    assert READER.partitions(last, last) == []


def test_a_first_batch_that_is_repeated_begins_where_it_began() -> None:
    planned = offset({"0": 15, "1": 5, "2": 7})
    later = offset({"0": 9, "1": 3, "2": 8}, begin={"0": 9, "1": 3, "2": 8})  # retention has deleted records meanwhile
    assert READER.partitions(later, planned) == [OffsetRange(0, 5, 15), OffsetRange(1, 0, 5)]


def test_the_limit_of_the_source_counts_more_than_that_of_the_unit() -> None:
    assert "max_records" not in range_options(source(), "L1", None)
    assert range_options(source(), "L1", 7)["max_records"] == "7"
    limited = source(options=(("maxOffsetsPerTrigger", "3"),))
    assert range_options(limited, "L1", 7)["max_records"] == "3"
