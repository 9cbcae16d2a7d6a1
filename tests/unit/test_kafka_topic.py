"""A Kafka topic as a source: the checks of the dataflow, options, permissions, packages. Without Spark."""

from __future__ import annotations

import base64
import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.app.checks import check_run
from headwater.app.running import spark_settings
from headwater.connectors.deadletters import topic_position
from headwater.connectors.kafkasource import options_of
from headwater.connectors.packages import KAFKA, how_to_add, package_of
from headwater.connectors.permitted import AgentPermissions, check_unit
from headwater.continuum.model import Continuum
from headwater.continuum.sparksettings import SparkSettings
from headwater.core.errors import DataflowError, ErrorList, HeadwaterError, PlacementError, WaitsForBroker
from headwater.core.permissions import Permissions
from headwater.dataflow.graph import Dataflow
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.plan.build import build
from headwater.plan.spec import UnitSpec, spec_of
from headwater.query.failure import translated

ZONES = Continuum.from_text("layers: [edge]\nzones: {E1: {layer: edge, locations: [L1]}}")
AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})


def read(*arguments: Any, **settings: Any) -> hw.Stream:
    return hw.flow("f", locations=["L1"]).read.kafka("broker:9092", "t", *(arguments or ("id bigint",)), **settings)


def source(**settings: Any) -> KafkaSource:
    operator = read(**settings).operator
    assert isinstance(operator, KafkaSource)
    return operator


def spec(**settings: Any) -> UnitSpec:
    builder = hw.flow("f", locations=["L1"])
    builder.read.kafka("broker", "t", "id bigint", **settings).write.memory("out")
    plan = build(builder.build(), ZONES)
    return spec_of(plan, plan.units[0].id)


def refusal(unit: UnitSpec, **lists: tuple[str, ...]) -> HeadwaterError:
    with pytest.raises(HeadwaterError) as caught:
        check_unit(unit, AgentPermissions(own=Permissions(**lists)))
    return caught.value


# ---------------------------------------------------------------- the dataflow


def test_columns_are_added_in_order() -> None:
    stream = read(key_as="k", headers_as="h", timestamp_as="at", partition_as="p", offset_as="o", location_as="where")
    types = {c.name: c.type.text for c in stream.schema.columns}
    assert types == {
        "id": "bigint",
        "k": "string",
        "h": "array<struct<key:string,value:binary>>",
        "at": "timestamp",
        "p": "int",
        "o": "bigint",
        "where": "string",
    }


def test_raw_has_the_columns_of_spark() -> None:
    stream = hw.flow("f").read.kafka("b:9092", "t", format="raw", headers_as="headers")
    assert stream.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"key_as": "ID"}, "key_as='ID' names an existing column"),
        ({"starting": "tomorrow"}, "starting is 'tomorrow'"),
        ({"starting": "2026-01-31T12:00:00"}, "has no time zone"),
        ({"starting": {}}, "starting has no partition"),
        ({"starting": {0: "5"}}, "an offset of starting is '5'"),
        ({"starting": {-1: 5}}, "a partition of starting is -1"),
        ({"starting": 5}, "starting is an int"),
        ({"ending": "tomorrow"}, "ending is 'tomorrow'"),
        ({"ending": {}}, "ending has no partition"),
        ({"ending": "earliest"}, "between both places the topic has no record"),
        ({"starting": "latest", "ending": {0: 5}}, "between both places the topic has no record"),
        ({"format": "avro"}, "need their writer's schema"),
        ({"format": "avro", "avro_schema": "{}"}, "not that of a record"),
        ({"format": "avro", "avro_schema": "x"}, "not JSON"),
        ({"avro_schema": AVRO}, "avro_schema for values of format json"),
        ({"format": "protobuf"}, "need their message's descriptor"),
        ({"message": "M"}, "a Protobuf message for values of format json"),
        ({"registry": "http://user:xyzzy@h:8081"}, "the registry is not http://host:port"),
        ({"registry": "file:///etc/passwd"}, "the registry is not http://host:port"),
        ({"registry": "http://h:8081/x?y=z"}, "the registry is not http://host:port"),
        ({"registry": "http://h:8081", "format": "csv"}, "have no schema in a registry"),
        ({"registry_user_env": "HEADWATER_SECRET_X"}, "registry_user_env without a registry"),
        ({"sasl_jaas_config": "x"}, "'sasl.jaas.config' would be stored"),
        ({"ssl_keystore_password": "x"}, "'ssl.keystore.password' would be stored"),
        ({"format": "raw"}, "a schema for format raw"),
        ({"format": "raw", "tombstones": "drop"}, "tombstones of format raw"),
        ({"tombstones": "keep"}, "tombstones"),
    ],
)
def test_what_cannot_be_read_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(DataflowError) as caught:
        read(**settings)
    assert says in caught.value.what, caught.value
    assert caught.value.hint and "xyzzy" not in str(caught.value)


@pytest.mark.parametrize("topic", ["a,b", "a b", "a/b", "x" * 250, "t*"])
def test_only_one_topic_is_read(topic: str) -> None:
    with pytest.raises(DataflowError, match="is no topic"):
        hw.flow("f").read.kafka("b:9092", topic, "id bigint")


def test_a_topic_with_an_end_is_another_stream_that_needs_no_connector() -> None:
    ended = source(ending={0: 7, 1: -1})
    assert (ended.ending, ended.end_offsets) == ("latest", ((0, 7), (1, -1)))
    assert package_of(ended) is None and ended.stream != source().stream
    assert len({ended.stream, source(ending={0: 8, 1: -1}).stream, source(ending="1970-01-01T00:00:01Z").stream}) == 3
    assert not {"ending", "tombstones"} & set(source(tombstones="dead_letter").config()), "stored keys have neither"
    by_offset = options_of(ended, "L1", is_stream=False)
    assert json.loads(by_offset["endingOffsets"]) == {"t": {"0": 7, "1": -1}}
    at = options_of(source(ending="1970-01-01T00:00:01.5Z"), "L1", is_stream=False)
    assert at["endingTimestamp"] == "1500"


def test_without_a_schema_the_hint_shows_one() -> None:
    with pytest.raises(DataflowError, match="no schema") as caught:
        hw.flow("f").read.kafka("b:9092", "t")
    assert "id bigint" in str(caught.value.hint)


def test_the_columns_are_those_of_the_avro_schema() -> None:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "cost", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": "Kind"},
        {"name": "parts", "type": {"type": "array", "items": {"type": "map", "values": ["int", "double"]}}},
        {"name": "in", "type": {"type": "record", "name": "In", "fields": [{"name": "raw", "type": "bytes"}]}},
    ]
    avro = json.dumps({"type": "record", "name": "R", "namespace": "n", "fields": fields})
    stream = hw.flow("f").read.kafka("b:9092", "t", format="avro", avro_schema=avro)
    assert [c.type.text for c in stream.schema.columns] == [
        "bigint",
        "timestamp",
        "decimal(9,2)",
        "string",
        "string",
        "array<map<string,double>>",
        "struct<raw:binary>",
    ]


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (["int", "string"], "a union of int, string"),
        ("Nothing", "the type Nothing is unknown"),
        (["null", "R"], "record R has itself as a part"),
    ],
)
def test_an_avro_schema_that_gives_no_columns_is_refused(field: Any, says: str) -> None:
    avro = json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": field}]})
    with pytest.raises(DataflowError, match=says) as caught:
        hw.flow("f").read.kafka("b:9092", "t", format="avro", avro_schema=avro)
    assert "schema=" in str(caught.value.hint)
    assert hw.flow("f").read.kafka("b:9092", "t", "x int", format="avro", avro_schema=avro).columns == ["x"]


def test_the_dataflow_in_json_is_the_same_dataflow() -> None:
    builder = hw.flow("f", locations=["L1"])
    stream = builder.read.kafka("b:9092", "{location}", "id bigint", starting={0: 5, 1: -2}, security_protocol="SSL")
    stream.write.memory("out")
    flow = builder.build()
    assert Dataflow.from_json(flow.to_json()) == flow
    assert source(starting="latest") != source()
    assert builder.read.kafka("b:9092", "t", "id bigint").operator.label.endswith("(t)")


def test_a_time_may_be_given_as_such() -> None:
    at = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    assert source(starting=at) == source(starting="2026-01-31T12:00:00+00:00")


def test_a_shared_topic_is_read_in_one_zone_only() -> None:
    builder = hw.flow("f", locations=["L1", "L2"])
    builder.read.kafka("b:9092", "t", "id bigint").write.memory("out")
    zones = "zones: {C: {layer: cloud}, E1: {layer: edge, parent: C, locations: [L1]}, "
    zones += "E2: {layer: edge, parent: C, locations: [L2]}}"
    with pytest.raises((PlacementError, ErrorList), match="the same input would be read in 2 zones") as caught:
        build(builder.build(), Continuum.from_text(f"layers: [edge, cloud]\n{zones}"))
    assert "{location}" in str(caught.value)
    above = hw.flow("f", locations=["L1", "L2"])
    above.read.kafka("b:9092", "t", "id bigint", layer="cloud").write.memory("out")
    (unit,) = build(above.build(), Continuum.from_text(f"layers: [edge, cloud]\n{zones}")).units
    assert unit.zone == "C"


# ---------------------------------------------------------------- options of the reader


def test_options_reach_spark_by_their_names() -> None:
    given = source(
        security_protocol="SSL",
        maxOffsetsPerTrigger=100,
        ssl_ca_location="/etc/ca.pem",
        failOnDataLoss=False,
        **{"kafka.client.id": "x"},
    )
    found = options_of(given, "L1")
    assert found == {
        "kafka.bootstrap.servers": "broker:9092",
        "kafka.isolation.level": "read_committed",
        "subscribe": "t",
        "includeHeaders": "false",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "100",
        "failOnDataLoss": "false",
        "kafka.security.protocol": "SSL",
        "kafka.client.id": "x",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/etc/ca.pem",
    }
    assert "maxOffsetsPerTrigger" not in options_of(given, "L1", is_stream=False)
    assert options_of(source(), "L1", limit=7)["maxOffsetsPerTrigger"] == "7"
    assert options_of(given, "L1", limit=7)["maxOffsetsPerTrigger"] == "100"


def test_start_positions() -> None:
    at = options_of(source(starting="1970-01-01T00:00:01.5Z"), "L1")
    assert at["startingTimestamp"] == "1500" and "startingOffsets" not in at
    by_offset = options_of(source(starting={1: 7, 0: -2}), "L1")
    assert json.loads(by_offset["startingOffsets"]) == {"t": {"0": -2, "1": 7}}
    with pytest.raises(HeadwaterError, match="reads nothing"):
        options_of(source(starting="latest"), "L1", is_stream=False)


def test_a_location_has_its_topic_and_servers() -> None:
    stream = hw.flow("f", locations=["L1"]).read.kafka("{location}.plant:9092", "of-{location}", "id bigint")
    found = options_of(stream.operator, "L1")
    assert (found["kafka.bootstrap.servers"], found["subscribe"]) == ("L1.plant:9092", "of-L1")


def test_user_and_password_are_secrets_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_SECRET_USER", "anna")
    monkeypatch.setenv("HEADWATER_SECRET_WORD", 'a"b\\c')
    given = source(
        user_env="HEADWATER_SECRET_USER", password_env="HEADWATER_SECRET_WORD", sasl_mechanism="SCRAM-SHA-256"
    )
    found = options_of(given, "L1")
    assert found["kafka.sasl.mechanism"] == "SCRAM-SHA-256"
    assert found["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        r'username="anna" password="a\"b\\c";'
    )
    assert "anna" not in repr(given)
    monkeypatch.delenv("HEADWATER_SECRET_WORD")
    with pytest.raises(HeadwaterError, match="HEADWATER_SECRET_WORD is not set"):
        options_of(given, "L1")


# ---------------------------------------------------------------- permissions


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ssl.truststore.location": "/etc/shadow"}, "takes no option 'ssl.truststore.location'"),
        ({"key.deserializer": "evil.Class"}, "takes no option 'key.deserializer'"),
        ({"sasl.client.callback.handler.class": "x"}, "takes no option 'sasl.client.callback.handler.class'"),
        ({"config.providers": "file"}, "takes no option 'config.providers'"),
        ({"interceptor.classes": "x"}, "takes no option 'interceptor.classes'"),
        ({"subscribePattern": ".*"}, "takes no option 'subscribePattern'"),
        ({"startingOffsets": "latest"}, "takes no option 'startingOffsets'"),
        ({"mode": "DROPMALFORMED"}, "takes no option 'mode'"),
        ({"sasl.mechanism": "GSSAPI"}, "the SASL mechanism GSSAPI"),
        ({"maxOffsetsPerTriger": "5"}, "takes no option 'maxOffsetsPerTriger'"),
    ],
)
def test_an_option_that_is_not_listed_is_refused(options: dict[str, str], says: str) -> None:
    error = refusal(spec(**options))
    assert says in error.what and error.hint and "'kafka_topic'" in str(error.where), error


def test_names_of_files_are_recognized_whatever_the_case() -> None:
    """The builder gives an option its own name; a dataflow in JSON may hold another spelling."""
    assert "read '/etc/shadow'" in refusal(spec(**{"SSL.CA.Location": "/etc/shadow"}), connect=("*",)).what
    unit = spec()
    before = unit.flow["kafka_topic"]
    assert isinstance(before, KafkaSource)
    hidden = replace(before, options=(("SSL.CA.Location", "/etc/shadow"),))
    operators = tuple(hidden if o.id == hidden.id else o for o in unit.flow.operators)
    error = refusal(replace(unit, flow=replace(unit.flow, operators=operators)))
    assert "takes no option 'SSL.CA.Location'" in error.what


def test_usual_options_are_taken() -> None:
    check_unit(
        spec(maxOffsetsPerTrigger=5, security_protocol="SSL", timestampFormat="yyyy", fetch_min_bytes=1),
        AgentPermissions(),
    )


def test_servers_registry_secrets_and_files_need_a_permission() -> None:
    unit = spec(
        registry="https://schemas.plant",
        user_env="HEADWATER_SECRET_A",
        registry_password_env="HEADWATER_SECRET_B",
        registry_user_env="HEADWATER_SECRET_B",
        ssl_ca_location="/etc/ca.pem",
    )
    every: dict[str, tuple[str, ...]] = {
        "connect": ("broker:9092", "schemas.plant:443"),
        "secrets": ("A", "B"),
        "read": ("/etc/ca.pem",),
        "write": (),
    }
    check_unit(unit, AgentPermissions(own=Permissions(**every)))
    for kind, left, says in (
        ("connect", ("schemas.plant:443",), "connect to broker:9092"),
        ("connect", ("broker:9092",), "connect to schemas.plant:443"),
        ("secrets", ("B",), "HEADWATER_SECRET_A"),
        ("secrets", ("A",), "HEADWATER_SECRET_B"),
        ("read", (), "read '/etc/ca.pem'"),
    ):
        assert says in refusal(unit, **{**every, kind: left}).what


# ---------------------------------------------------------------- around it


def test_the_package_of_the_connector_reaches_the_spark_of_a_run() -> None:
    builder = hw.flow("f", locations=["L1"])
    builder.read.kafka("b:9092", "t", "id bigint").write.memory("out")
    plan = build(builder.build(), ZONES)
    assert spark_settings(plan, SparkSettings()).packages == (KAFKA,)
    own = KAFKA.replace("4.2.0", "4.3.0")
    assert spark_settings(plan, SparkSettings((own,))).packages == (own,)
    assert package_of(source()) == KAFKA and f"--packages {KAFKA}" in how_to_add(source())


def test_a_run_may_wait_for_the_end_of_a_topic(tmp_path: Path) -> None:
    builder = hw.flow("f", locations=["L1"])
    builder.read.kafka("b:9092", "t", "id bigint", user_env="HEADWATER_SECRET_NONE").write.memory("out")
    with pytest.raises(HeadwaterError, match="HEADWATER_SECRET_NONE is not set"):
        check_run(build(builder.build(), ZONES), tmp_path, None, until_drained=True)


def test_errors_of_kafka_are_explained() -> None:
    for text in (
        "Caused by: org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment.",
        "org.apache.kafka.common.config.ConfigException: No resolvable bootstrap urls given in bootstrap.servers",
    ):
        error = translated(f"(STREAM_FAILED) {text}\n\tat x", "out@E1")
        assert isinstance(error, WaitsForBroker) and "no Kafka broker answers" in error.what
    error = translated("Failed to find data source: kafka. Deploy the application as per", "out@E1")
    assert error.what == "Spark has no Kafka connector" and f"--packages {KAFKA}" in str(error.hint)


def test_the_position_of_a_dead_letter() -> None:
    assert topic_position("kafka:a.b-c/12@3") == ("a.b-c", 12, 3)
    assert topic_position("mqtt:a/b") is None and topic_position(None) is None


def test_a_descriptor_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.desc"
    with pytest.raises(DataflowError, match="cannot be read"):
        read(format="protobuf", descriptor=str(file), message="M")
    file.write_bytes(b"\xff\xff")
    with pytest.raises(DataflowError, match="descriptor"):
        hw.flow("f").read.kafka("b:9092", "t", format="protobuf", descriptor=str(file), message="M")
    assert base64.b64encode(b"\xff\xff").decode() == "//8="
