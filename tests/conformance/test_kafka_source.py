"""Kafka topics as sources, on a real broker: formats, columns, start positions, dead letters and their replay."""

from __future__ import annotations

import base64
import datetime
import io
import json
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.connectors.deadletters import read_dead_letters
from headwater.connectors.packages import KAFKA
from headwater.connectors.replaying import ReplayedSource, ReplayRequest, replay
from headwater.continuum.model import Continuum
from headwater.core.errors import HeadwaterError
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.plan.build import build
from headwater.query.query import Running
from headwater.spark.broker import LocalBroker
from headwater.spark.endpoint import LocalEndpoint
from headwater.testing import batch_result, compare, run_to_end
from tests.conformance.test_kafka_security import PASSWORD, SCRAM, SECRET, USER, secured
from tests.conftest import endpoint_with
from tests.schema_registry import SchemaRegistryServer, framed
from tests.topics import Topic

__all__ = ["secured"]  # a fixture

CONTINUUM = Continuum.from_text("layers: [edge]\nzones: {E1: {layer: edge, locations: [L1]}}")
AVRO = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "id", "type": "long"}, {"name": "v", "type": ["null", "double"]}],
}


@pytest.fixture(scope="module")
def topics(broker: LocalBroker) -> LocalBroker:
    return broker


class Reading:
    """A dataflow that reads a topic into memory, and its results."""

    def __init__(self, endpoint: LocalEndpoint, place: Path) -> None:
        self.endpoint, self.place = endpoint, place
        self.source: KafkaSource | None = None
        self._runs = 0

    def __call__(self, topic: Topic, *schema: str, oracle: bool = True, **settings: Any) -> list[dict[str, Any]]:
        """Return the rows in the order of their ids, equal to those of a batch run."""
        builder = hw.flow("reading", locations=["L1"])
        stream = builder.read.kafka(topic.servers, topic.name, *schema, **settings).named("read")
        stream.write.memory("out")
        assert isinstance(stream.operator, KafkaSource)
        self.source, self._runs = stream.operator, self._runs + 1
        flow, directory = builder.build(), self.place / f"run-{self._runs}"
        self.found = directory
        table = run_to_end(build(flow, CONTINUUM), directory, self.endpoint)["out"]
        if oracle:
            expected = batch_result(self.endpoint.session(), flow, CONTINUUM)["out"]
            assert not compare(expected, table)
        rows: list[dict[str, Any]] = table.to_pylist()
        return sorted(rows, key=lambda row: (row.get("id") is None, row.get("id")))

    def letters(self) -> list[dict[str, Any]]:
        """Return the dead letters of the last run, in the order of their offsets."""
        return sorted(read_dead_letters(self.found), key=lambda letter: str(letter["source"]))

    def replay(self, id_: str, record: str | None, *, force: bool = False) -> Any:
        def find(name: str, location: str | None) -> ReplayedSource:
            assert self.source is not None and name == self.source.id
            return ReplayedSource(source=self.source, location=str(location), directory=self.place / "none")

        (found,) = replay(self.found, [ReplayRequest(id=id_, record=record)], find, force=force)
        return found


@pytest.fixture
def read(kafka_endpoint: LocalEndpoint, tmp_path: Path) -> Reading:
    return Reading(kafka_endpoint, tmp_path)


def avro(record: dict[str, Any], schema: dict[str, Any] = AVRO) -> bytes:
    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return out.getvalue()


# ---------------------------------------------------------------- formats and columns


def test_json_with_all_columns_and_dead_letters(topics: LocalBroker, read: Reading) -> None:
    topic = Topic(topics)
    topic.send({"id": 1, "at": "2026-01-31T12:00:00.123456Z", "in": {"x": [1]}}, key=b"a", headers=[("h", b"\xff")])
    topic.send({"id": 2, "more": 5}, partition=1, timestamp=1500)
    bad = (b'{"id": "x"}', b"[1]", b"\xff\xfe", b"", None, b"7")
    topic.send(*bad, partition=1)
    topic.send({"id": 3}, key=b"\xff")
    schema = "id bigint, at timestamp, `in` struct<x: array<int>>"
    columns = {name: name.removesuffix("_as") for name in ("key_as", "headers_as", "partition_as", "offset_as")}
    rows = read(topic, schema, timestamp_as="sent", location_as="place", **columns)
    assert [row["id"] for row in rows] == [1, 2]
    first, second = rows
    assert first["at"] == datetime.datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=datetime.UTC)
    assert first["in"] == {"x": [1]} and first["headers"] == [{"key": "h", "value": b"\xff"}]
    assert (first["key"], first["partition"], first["offset"], first["place"]) == ("a", 0, 0, "L1")
    assert (second["key"], second["partition"], second["offset"], second["headers"]) == (None, 1, 0, None)
    assert second["sent"] == datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=datetime.UTC)
    letters = read.letters()
    read(topic, schema, tombstones="drop", timestamp_as="sent", location_as="place", **columns)
    assert [one["offset"] for one in read.letters()] == [1, 1, 2, 3, 4, 6], "all but the tombstone"
    places = [f"kafka:{topic.name}/0@1", *(f"kafka:{topic.name}/1@{n}" for n in range(1, 7))]
    assert [(one["source"], one["offset"]) for one in letters] == [(p, int(p.rpartition("@")[2])) for p in places]
    assert [one["reason"] for one in letters] == [
        "the key is not UTF-8 text",
        "field 'id': \"x\" is not a bigint",
        "not an object: [1]",
        "not UTF-8 text",
        "empty record",
        "no value (a tombstone)",
        "not an object: 7",
    ]
    assert [one["record"] for one in letters[1:4]] == ['{"id": "x"}', "[1]", "not UTF-8, base64: //4="]


def test_csv(topics: LocalBroker, read: Reading) -> None:
    topic = Topic(topics)
    topic.send(b"1;a b;0,5\n", b'2;"x\ny";\r\n', "3;ä;-".encode())
    topic.send(b"x;a;1", b"1;2", b"5;a;1\n6;b;2", b" ", partition=1)
    rows = read(topic, "id int, name string, v string", format="csv", sep=";", nullValue="-")
    assert [tuple(row.values()) for row in rows] == [(1, "a b", "0,5"), (2, "x\ny", None), (3, "ä", None)]
    assert [one["record"] for one in read.letters()] == ["x;a;1", "1;2", "5;a;1\n6;b;2", " "]
    assert "'x' is not an int" in read.letters()[0]["reason"]


def test_raw_records_are_those_of_spark(topics: LocalBroker, read: Reading) -> None:
    topic = Topic(topics)
    topic.send(b"\xff\x00", None, key=b"\xfe")
    rows = read(topic, format="raw")
    assert sorted((r["key"], r["value"], r["topic"], r["partition"], r["offset"]) for r in rows if r["value"]) == [
        (b"\xfe", b"\xff\x00", topic.name, 0, 0)
    ]
    assert len(rows) == 2 and read.letters() == []


@pytest.mark.long
def test_avro_of_one_schema(topics: LocalBroker, read: Reading) -> None:
    topic = Topic(topics)
    good = [avro({"id": n, "v": n / 2}) for n in range(4)]
    topic.send(*good, key=b"k")
    topic.send(good[0] + b"x", good[1][:-1], None, partition=1)
    read(topic, format="avro", avro_schema=json.dumps(AVRO), tombstones="drop")
    assert [one["offset"] for one in read.letters()] == [0, 1]
    rows = read(topic, format="avro", avro_schema=json.dumps(AVRO), key_as="key", offset_as="offset", timestamp_as="at")
    assert [(r["id"], r["v"], r["key"], r["offset"]) for r in rows] == [(n, n / 2, "k", n) for n in range(4)]
    assert all(isinstance(row["at"], datetime.datetime) for row in rows)
    letters = read.letters()
    assert [one["offset"] for one in letters] == [0, 1, 2]
    assert letters[0]["reason"] == "1 bytes too many for its schema"
    assert base64.b64decode(letters[0]["record"].removeprefix("base64: ")) == good[0] + b"x"


def test_avro_by_a_registry(topics: LocalBroker, read: Reading) -> None:
    topic = Topic(topics)
    old = {**AVRO, "fields": AVRO["fields"][:1]}
    with SchemaRegistryServer() as server:
        server.schemas = {1: {"schema": json.dumps(AVRO)}, 2: {"schema": json.dumps(old)}}
        topic.send(framed(1, avro({"id": 1, "v": 0.5})), framed(2, avro({"id": 2}, old)), framed(7, b"\x02"), b"\x02")
        rows = read(topic, "id bigint, v double", format="avro", registry=server.url)
    assert [(row["id"], row["v"]) for row in rows] == [(1, 0.5), (2, None)]
    assert [one["reason"] for one in read.letters()] == [
        "the registry has no schema 7",
        "it does not begin with the header of a schema registry",
    ]


def test_protobuf(topics: LocalBroker, read: Reading, tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2 as d

    file = d.FileDescriptorProto(name="r.proto", package="plant", syntax="proto3")
    message = file.message_type.add(name="Reading")
    message.field.add(name="id", number=1, type=d.FieldDescriptorProto.TYPE_INT64)
    message.field.add(name="name", number=2, type=d.FieldDescriptorProto.TYPE_STRING)
    (tmp_path / "r.desc").write_bytes(d.FileDescriptorSet(file=[file]).SerializeToString())
    value = b"\x08\x07\x12\x01x"  # id = 7, name = "x"
    one, many = Topic(topics), Topic(topics)
    one.send(value, b"\xff")
    rows = read(one, format="protobuf", descriptor=str(tmp_path / "r.desc"), message="plant.Reading")
    assert rows == [{"id": 7, "name": "x"}] and [x["offset"] for x in read.letters()] == [1]
    with SchemaRegistryServer() as server:
        text = base64.b64encode(file.SerializeToString()).decode()
        server.schemas = {3: {"schemaType": "PROTOBUF", "schema": "...", "serialized": text}}
        many.send(framed(3, b"\0" + value), framed(3, b"\0\xff"))
        rows = read(many, "id int", format="protobuf", registry=server.url, message="plant.Reading")
    assert rows == [{"id": 7}] and [x["offset"] for x in read.letters()] == [1]


def test_json_behind_the_header_of_a_registry(topics: LocalBroker, read: Reading) -> None:
    topic = Topic(topics)
    topic.send(framed(1, b'{"id": 1}'), b'{"id": 2}', framed(1, b'{"id": "x"}'), None)
    rows = read(topic, "id bigint", registry="http://registry.invalid:8081")
    assert rows == [{"id": 1}]
    letters = read.letters()
    assert [one["offset"] for one in letters] == [1, 2, 3]
    assert "header of a schema registry" in letters[0]["reason"] and letters[1]["record"] == '{"id": "x"}'
    done = read.replay(letters[1]["id"], '{"id": 3}')
    assert done.outcome == "replayed", done
    assert topic.records()[-1].value() == framed(1, b'{"id": 3}')
    assert "no header of a schema registry to keep" in str(
        read.replay(letters[0]["id"], '{"id": 4}', force=True).reason
    )


# ---------------------------------------------------------------- positions


def test_start_positions(topics: LocalBroker, read: Reading) -> None:
    topic = Topic(topics)
    topic.send(*({"id": n} for n in range(4)), timestamp=1000)
    topic.send(*({"id": n} for n in range(4, 8)), timestamp=5000)
    topic.send(*({"id": n} for n in range(10, 14)), partition=1, timestamp=2000)

    def ids(**settings: Any) -> list[int]:
        return [row["id"] for row in read(topic, "id bigint", **settings)]

    assert ids(starting={0: 6, 1: -2}) == [6, 7, 10, 11, 12, 13]
    assert ids(starting="1970-01-01T00:00:04Z") == [4, 5, 6, 7]
    assert ids(starting="latest", oracle=False) == []
    with pytest.raises(HeadwaterError, match="names other partitions than the topic has"):
        ids(starting={0: 6}, oracle=False)


@pytest.mark.long
@pytest.mark.parametrize("form", ["offsets", "a time"])
def test_end_positions(form: str, topics: LocalBroker, read: Reading) -> None:
    """The records up to an end are those of Spark's batch run, and those of a stream from there are the others."""
    topic = Topic(topics)
    topic.send(*({"id": n} for n in range(4)), None, b"[1]", timestamp=1000, headers=[("h", b"x")], key=b"k")
    topic.send(*({"id": n} for n in range(4, 8)), timestamp=5000)
    topic.send(*({"id": n} for n in range(10, 14)), partition=1, timestamp=2000)
    added = {name: name.removesuffix("_as") for name in ("key_as", "headers_as", "timestamp_as", "offset_as")}

    def ids(**settings: Any) -> list[int]:
        return [row["id"] for row in read(topic, "id bigint", **added, **settings)]

    place: Any
    if form == "offsets":
        place, before = {0: 3, 1: 1}, [0, 1, 2, 10]
    else:
        place, before = "1970-01-01T00:00:04Z", [0, 1, 2, 3, 10, 11, 12, 13]
    assert ids(ending=place) == before
    if form == "offsets":
        assert ids(starting={0: 7, 1: 2}, ending="latest", maxOffsetsPerTrigger=1) == [5, 6, 7, 12, 13]
        return
    assert sorted(before + ids(starting=place)) == [*range(8), *range(10, 14)]
    assert ids(starting={0: -1, 1: 2}, ending={0: 0, 1: 3}, oracle=False) == [12]
    assert [row["value"] for row in read(topic, format="raw", ending={0: 5, 1: 0}) if row["offset"] == 4] == [None]
    with pytest.raises(HeadwaterError, match="ends at offset 4, before the end 5"):
        ids(ending={0: 6, 1: 5}, oracle=False)
    with pytest.raises(HeadwaterError, match="there are offsets for"):
        ids(ending={0: 6}, oracle=False)


@pytest.mark.long
def test_the_last_records_before_an_end_may_be_those_of_transactions(topics: LocalBroker, read: Reading) -> None:
    from confluent_kafka import Producer

    topic = Topic(topics, partitions=1)
    producer = Producer({"bootstrap.servers": topic.servers, "transactional.id": topic.name})
    producer.init_transactions()
    for id_, end in ((1, producer.commit_transaction), (2, producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic.name, json.dumps({"id": id_}))
        producer.flush()
        end()
    for ending in ("latest", {0: 3}):  # the last offset before it is a mark, or an aborted record
        assert read(topic, "id bigint", ending=ending) == [{"id": 1}]
    topic.send({"id": 3})
    assert read(topic, "id bigint", ending={0: 4}) == [{"id": 1}]


def test_records_of_a_transaction_are_read_once_it_is_committed(topics: LocalBroker, read: Reading) -> None:
    from confluent_kafka import Producer

    topic = Topic(topics)
    producer = Producer({"bootstrap.servers": topic.servers, "transactional.id": topic.name})
    producer.init_transactions()
    for id_, end in ((1, producer.abort_transaction), (2, producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic.name, json.dumps({"id": id_}), partition=0)
        producer.flush()
        end()
    assert read(topic, "id bigint") == [{"id": 2}]
    assert [r["id"] for r in read(topic, "id bigint", isolation_level="read_uncommitted")] == [1, 2]


def test_a_batch_has_no_more_records_than_stated(topics: LocalBroker, kafka_endpoint: LocalEndpoint) -> None:
    from headwater.connectors.sources import source_frame

    topic = Topic(topics)
    topic.send(*({"id": n} for n in range(10)))
    spark = kafka_endpoint.session()
    for number, (limit, given, batches) in enumerate(((4, {}, 3), (4, {"maxOffsetsPerTrigger": 5}, 2), (None, {}, 1))):
        source = hw.flow("f").read.kafka(topic.servers, topic.name, "id bigint", **given).operator
        frame = source_frame(spark, source, "L1", name="rows", limit=limit)
        query = (
            frame.writeStream.format("memory").queryName(f"limited{number}").trigger(processingTime="0 seconds").start()
        )
        try:
            query.processAllAvailable()
            counts = [n for p in query.recentProgress if (n := p["sources"][0]["numInputRows"])]
            running = Running(query)
            left = []
            for progress in query.recentProgress:
                running._take_batch(progress)
                left.append(running.behind)
        finally:
            query.stop()
        assert len(counts) == batches and sum(counts) == 10, counts
        wanted = [10 - sum(counts[: n + 1]) for n in range(batches)]
        assert left[:batches] == wanted, "what is left in the topic is the unit's lag"


# ---------------------------------------------------------------- what is not there, and what is secret


def test_what_kafka_refuses_is_said_in_plain_words(
    topics: LocalBroker, read: Reading, endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    topic = Topic(topics)
    topic.name = "no-such-topic"
    with pytest.raises(HeadwaterError, match="the broker has no such topic") as caught:
        read(topic, "id bigint", oracle=False)
    assert "'read'" in str(caught.value.where)
    # Records that retention has deleted before they were read.
    old = Topic(topics, partitions=1)
    old.send(*({"id": n} for n in range(4)))
    old.delete_before(2)
    with pytest.raises(HeadwaterError, match="has deleted records that were not read yet"):
        read(old, "id bigint", starting={0: 0}, oracle=False)
    assert [row["id"] for row in read(old, "id bigint", starting={0: 0}, failOnDataLoss="false")] == [2, 3]
    # A Spark that was started without the connector.
    with pytest.raises(HeadwaterError, match="Spark has no Kafka connector") as caught:
        Reading(endpoint, tmp_path / "other")(topic, "id bigint", oracle=False)
    assert "spark-sql-kafka" in str(caught.value.hint)


@pytest.mark.long
def test_a_user_and_a_password_over_tls(
    secured: tuple[LocalBroker, Path], read: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, authority = secured
    monkeypatch.setenv(USER, "admin")
    monkeypatch.setenv(PASSWORD, SECRET)
    login = {"sasl.username": "admin", "sasl.password": SECRET, "sasl.mechanism": "PLAIN"}
    tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(authority)}
    topic = Topic(broker, settings={**login, **tls})
    topic.send({"id": 1}, {"id": "x"})
    settings = {"user_env": USER, "password_env": PASSWORD, **tls}
    assert read(topic, "id bigint", **settings) == [{"id": 1}]
    (letter,) = read.letters()
    assert read.replay(letter["id"], '{"id": 2}').outcome == "replayed"
    assert [row["id"] for row in read(topic, "id bigint", **settings)] == [1, 2]
    monkeypatch.setenv(PASSWORD, "wrong horse")
    with pytest.raises(HeadwaterError, match=r"Kafka refuses the request.*uthentication") as caught:
        read(topic, "id bigint", oracle=False, **settings)
    assert "wrong horse" not in str(caught.value)
    assert told_in(topic.name, read.place), "the search finds what is there"
    for word in (SECRET, "wrong horse"):
        assert not told_in(word, read.place), "a secret is on the disk"
        assert not told_in(word, read.endpoint.directory), "a secret is in Spark's log or files"


@pytest.mark.long
@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_user_and_a_password_by_scram(
    mechanism: str, secured: tuple[LocalBroker, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both clients log in: Spark's reads a topic without an end, librdkafka one with an end, and sends."""
    broker, authority = secured
    monkeypatch.setenv(USER, "admin")
    monkeypatch.setenv(PASSWORD, SECRET)
    tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(authority), "sasl.mechanism": mechanism}
    topic = Topic(broker, settings={"sasl.username": "admin", "sasl.password": SECRET, **tls})
    topic.send({"id": 1}, {"id": "x"})
    settings = {"user_env": USER, "password_env": PASSWORD, **tls}
    # A Spark of its own: workers that read up to an end have the secrets that it was started with.
    with endpoint_with([KAFKA], tmp_path / "spark", memory_mb=1024) as endpoint:
        read = Reading(endpoint, tmp_path / "runs")
        assert read(topic, "id bigint", **settings) == [{"id": 1}]
        (letter,) = read.letters()
        assert read.replay(letter["id"], '{"id": 2}').outcome == "replayed"
        assert [row["id"] for row in read(topic, "id bigint", ending="latest", **settings)] == [1, 2]
        assert not told_in(SECRET, tmp_path)
        monkeypatch.setenv(PASSWORD, "wrong horse")
        with pytest.raises(HeadwaterError, match="uthentication") as caught:
            read(topic, "id bigint", oracle=False, **settings)
        assert "wrong horse" not in str(caught.value)


def told_in(word: str, directory: Path) -> list[Path]:
    """Return the files that hold a word."""
    files = (f for f in directory.rglob("*") if f.is_file() and not f.is_symlink())
    return [f for f in files if word.encode() in f.read_bytes()]


# ---------------------------------------------------------------- replay


def test_a_corrected_record_is_produced_to_its_partition_with_key_and_headers(
    topics: LocalBroker, read: Reading
) -> None:
    topic = Topic(topics)
    topic.send({"id": 1}, partition=1)
    topic.send({"id": "x"}, partition=1, key=b"k\xff", headers=[("h", b"1"), ("h", b"2")])
    read(topic, "id bigint", oracle=False)
    (letter,) = read.letters()
    assert "is not a bigint" in str(read.replay(letter["id"], None).reason)
    assert "is not a bigint" in str(read.replay(letter["id"], '{"id": "y"}').reason)
    assert len(topic.records()) == 2
    done = read.replay(letter["id"], '{"id": 2}')
    assert (done.outcome, done.target) == ("replayed", f"kafka:{topic.name}/1"), done
    last = topic.records()[-1]
    assert (last.partition(), last.key(), last.value()) == (1, b"k\xff", b'{"id": 2}')
    assert last.headers() == [("h", b"1"), ("h", b"2")]
    assert read.replay(letter["id"], '{"id": 2}').outcome == "refused"
    assert [row["id"] for row in read(topic, "id bigint", oracle=False)] == [1, 2]


@pytest.mark.long
def test_values_of_bytes_are_replayed_as_base64(topics: LocalBroker, read: Reading) -> None:
    topic = Topic(topics)
    topic.send(b"\xff", avro({"id": 1, "v": None}))
    settings = {"format": "avro", "avro_schema": json.dumps(AVRO)}
    read(topic, oracle=False, **settings)
    (letter,) = read.letters()
    assert letter["record"] == "base64: /w=="
    assert "does not fit" in str(read.replay(letter["id"], '{"id": 1}').reason)
    value = avro({"id": 2, "v": 1.0})
    done = read.replay(letter["id"], "base64: " + base64.b64encode(value).decode())
    assert done.outcome == "replayed", done
    assert [row["id"] for row in read(topic, oracle=False, **settings)] == [1, 2]


def test_a_record_of_another_topic_is_not_replayed(topics: LocalBroker, read: Reading) -> None:
    topic, other = Topic(topics), Topic(topics)
    topic.send(b"x")
    read(topic, "id bigint", oracle=False)
    (letter,) = read.letters()
    read.source = hw.flow("f").read.kafka(other.servers, other.name, "id bigint").named("read").operator  # type: ignore[assignment]
    assert "its topic" not in str(read.replay(letter["id"], '{"id": 1}').reason)
    assert "source no longer reads it" in str(read.replay(letter["id"], '{"id": 1}').reason)
    assert other.records() == []
