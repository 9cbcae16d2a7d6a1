"""``headwater_kafka_range``: the records of a Kafka topic between two positions, as a stream that ends.

Spark's own connector reads a stream without end. Options: ``source`` (the JSON of a KafkaSource with an end),
``location``, ``max_records`` (of a batch). The columns are those of Spark's connector.

An offset is ``{"from": {partition: offset}, "to": {...}, "at": {...}}``. Start and end are looked up when the first
batch is planned, and from then on are part of every offset: a batch depends on its offsets alone. Only records of
committed transactions are read. Tasks read secrets by their names.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from headwater.channels.kafkaclient import SECONDS, client, failure, gone
from headwater.connectors.kafkasettings import librdkafka_settings, topic_at
from headwater.core.errors import HeadwaterError, RuntimeFailure
from headwater.dataflow.graph import operator_from_data, operator_to_data
from headwater.dataflow.kafkatopic import HEADERS, RAW, KafkaSource, start_millis

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME = "headwater_kafka_range"
_RECORDS = 500_000  # of a batch, where nothing else is said
_FETCH = 10_000  # records of an Arrow batch
_EARLIEST, _LATEST = -2, -1  # offsets by which a dataflow names both ends of a partition

_Offset = dict[str, dict[str, int]]


def range_options(source: KafkaSource, location: str, limit: int | None) -> dict[str, str]:
    """Return the options of the data source for a topic that is read up to an end."""
    given = dict(source.options).get("maxOffsetsPerTrigger", limit)
    found = {"source": json.dumps(operator_to_data(source)), "location": location}
    return found if given is None else {**found, "max_records": str(given)}


class KafkaRangeDataSource(DataSource):
    """Read a topic up to an end."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return NAME

    def schema(self) -> str:
        """Return the columns of a record."""
        return f"{RAW}, headers {HEADERS}"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the streaming reader."""
        source = operator_from_data(json.loads(self.options["source"]))
        assert isinstance(source, KafkaSource)
        limit = int(self.options.get("max_records", _RECORDS))
        return KafkaRangeReader(source, self.options["location"], schema, limit)


@dataclass
class OffsetRange(InputPartition):
    """The records of a partition of the topic that one Spark task reads, from ``begin`` to before ``end``."""

    partition: int
    begin: int
    end: int


class KafkaRangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read a topic from its start position to its end position."""

    def __init__(self, source: KafkaSource, location: str, schema: StructType, limit: int) -> None:
        self._source, self._location, self._schema, self._limit = source, location, schema, limit

    def initialOffset(self) -> _Offset:
        """Look up start and end of all partitions."""
        places = TopicPlaces(self._source, self._location)
        begin, end = places.found(self._source.starting, self._source.offsets), places.ends()
        to = {p: max(offset, begin.get(p, 0)) for p, offset in end.items()}
        return {"from": begin, "to": to, "at": begin}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the admission limit of one batch."""
        return ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: the end is fixed."""

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:
        """Return the offset up to which the next batch may read; partitions share a limit by what they have left."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._limit
        left = {p: end - start["at"][p] for p, end in start["to"].items()}
        total = sum(left.values())
        if isinstance(limit, ReadAllAvailable) or total <= most:
            return {**start, "at": start["to"]}
        return {**start, "at": {p: start["at"][p] + -(-count * most // total) for p, count in left.items()}}

    def partitions(self, start: _Offset, end: _Offset) -> list[InputPartition]:
        """Make a task of each partition of the topic that has records in the batch."""
        found: list[InputPartition] = []
        for name, upto in end["at"].items():
            at, first = start["at"].get(name), start["from"].get(name)
            # The first batch may be repeated after a crash: its start was looked up again, and may be another.
            begin = end["from"][name] if at is None or at == first else at
            if begin < upto:
                found.append(OffsetRange(int(name), begin, upto))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task."""
        if not isinstance(partition, OffsetRange):  # Spark asks for the rows of None where there is no partition
            return
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema, timezone="UTC")
        for records in TopicPlaces(self._source, self._location).records(partition):
            yield pa.RecordBatch.from_pylist([_row(record) for record in records], schema=schema)


class TopicPlaces:
    """Positions in a topic at a location, and its records between two."""

    def __init__(self, source: KafkaSource, location: str) -> None:
        self._source = source
        self._topic = topic_at(source, location)
        self._settings = {
            **librdkafka_settings(source, location),
            "group.id": NAME,
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "log_level": "0",
        }

    def ends(self) -> dict[str, int]:
        """Return the end of each partition; raise RuntimeFailure where the topic has not come so far."""
        assert self._source.ending is not None
        found = self.found(self._source.ending, self._source.end_offsets or ())
        if self._source.end_offsets:
            now = self.found("latest", ())
            for partition, offset in found.items():
                if offset > now[partition]:
                    raise self._refused(
                        f"partition {partition} of the topic ends at offset {now[partition]}, before the end {offset}",
                        "give an end that the topic has reached: the stream of later records begins there",
                    )
        return found

    def found(self, place: str, offsets: tuple[tuple[int, int], ...]) -> dict[str, int]:
        """Return the offset of each partition at "earliest", "latest", a time, or at given offsets."""
        from confluent_kafka import TopicPartition

        with self._consumer() as consumer:
            about = consumer.list_topics(self._topic, timeout=SECONDS).topics.get(self._topic)
            if about is None or not about.partitions:
                raise self._refused(f"the broker has no topic {self._topic}", "correct its name, or create it")
            kept = {
                number: consumer.get_watermark_offsets(TopicPartition(self._topic, number), timeout=SECONDS)
                for number in about.partitions
            }
            if offsets:
                given = self._of_all(dict(offsets), kept)
            elif place in ("earliest", "latest"):
                given = dict.fromkeys(kept, _EARLIEST if place == "earliest" else _LATEST)
            else:
                asked = [TopicPartition(self._topic, number, start_millis(place)) for number in kept]
                # Without a record since then the answer is the end of the partition.
                given = {p.partition: p.offset for p in consumer.offsets_for_times(asked, timeout=SECONDS)}
        return {
            str(number): offset if offset >= 0 else kept[number][0 if offset == _EARLIEST else 1]
            for number, offset in sorted(given.items())
        }

    def _of_all(self, given: dict[int, int], kept: Mapping[int, Any]) -> dict[int, int]:
        if set(given) != set(kept):
            raise self._refused(
                f"the topic has the partitions {sorted(kept)}, and there are offsets for {sorted(given)}",
                "give an offset for each partition",
            )
        return given

    def records(self, part: OffsetRange) -> Iterator[list[Any]]:
        """Yield the records of a range, some at a time."""
        from confluent_kafka import TopicPartition

        with self._consumer() as consumer:
            consumer.assign([TopicPartition(self._topic, part.partition, part.begin)])
            ended = False
            while not ended:
                if (first := consumer.poll(SECONDS)) is None:
                    raise self._refused(
                        f"partition {part.partition} gave no record for {SECONDS:g} s, before offset {part.end}",
                        "check the broker, and whether a transaction was left open",
                    )
                found = []
                for record in (first, *consumer.consume(_FETCH, timeout=0)):
                    if (error := record.error()) is None:
                        ended = ended or record.offset() + 1 >= part.end
                        if record.offset() < part.end:
                            found.append(record)
                    elif _is_end(error):  # the last offsets may be those of a transaction's marks
                        ended = ended or record.offset() >= part.end
                    else:
                        raise self._failed(error)
                if found:
                    yield found

    @contextlib.contextmanager
    def _consumer(self) -> Iterator[Any]:
        from confluent_kafka import KafkaException

        consumer = client("Consumer", self._source.where, self._settings)
        try:
            yield consumer
        except KafkaException as error:
            raise self._failed(error.args[0]) from error
        finally:
            consumer.close()

    def _failed(self, error: Any) -> HeadwaterError:
        hint = "check the source's settings"
        if gone(error):
            hint = "records were deleted before they were read: keep them for longer (retention.ms)"
        return failure(error, self._settings["bootstrap.servers"], where=self._source.where, hint=hint)

    def _refused(self, what: str, hint: str) -> RuntimeFailure:
        return RuntimeFailure(what, where=self._source.where, hint=hint)


def _is_end(error: Any) -> bool:
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError._PARTITION_EOF)


def _row(record: Any) -> dict[str, Any]:
    """Return a record in the columns of Spark's connector."""
    kind, millis = record.timestamp()
    return {
        "key": record.key(),
        "value": record.value(),
        "topic": record.topic(),
        "partition": record.partition(),
        "offset": record.offset(),
        "timestamp": max(millis, -1) * 1000,
        "timestampType": kind - 1,  # librdkafka counts from "none", Spark from "made by the producer"
        "headers": [{"key": key, "value": value} for key, value in record.headers() or ()] or None,
    }
