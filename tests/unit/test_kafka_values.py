"""Values of bytes decoded by their schemas: Avro and Protobuf, with one schema and with a registry."""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.connectors import registry as registries
from headwater.connectors.kafkavalues import BASE64, FAULT, VALUE, ValueDecoder, decoded_text
from headwater.connectors.offerkafka import misfit_of_bytes
from headwater.connectors.pythonvalues import Misfit, converter
from headwater.connectors.registry import NoSuchSchema, SchemaRegistry, server_of
from headwater.core.errors import BrokerAway, RuntimeFailure
from headwater.dataflow.kafkatopic import KafkaSource
from headwater.sql.schema import DataType
from tests.schema_registry import SchemaRegistryServer, framed

fastavro = pytest.importorskip("fastavro")

READER = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "v", "type": ["null", "double"], "default": None},
        {"name": "unit", "type": "string", "default": "C"},
    ],
}
OLD = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
NEW = {**READER, "fields": [*READER["fields"], {"name": "more", "type": {"type": "array", "items": "string"}}]}  # type: ignore[misc]


def avro(schema: Any, record: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return out.getvalue()


def source(schema: str | None = None, **settings: Any) -> KafkaSource:
    operator = hw.flow("f").read.kafka("b:9092", "t", *([schema] if schema else []), **settings).operator
    assert isinstance(operator, KafkaSource)
    return operator


def decoded(of: KafkaSource, *values: bytes | None, faults: dict[int, str] | None = None) -> list[dict[str, Any]]:
    """Decode one batch of values, with a column beside them."""
    count = len(values)
    columns = {
        VALUE: pa.array(values, pa.binary()),
        FAULT: pa.array([(faults or {}).get(n) for n in range(count)], pa.string()),
        "beside": pa.array(range(count)),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    (made,) = ValueDecoder(of).columns(iter([batch]), ("corrupt", "reason"))
    assert made.schema.names == [*of.schema().names, "beside", "corrupt", "reason"]
    assert made.column("beside").to_pylist() == list(range(count))
    rows: list[dict[str, Any]] = made.drop_columns(["beside"]).to_pylist()
    return rows


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    registries._known.clear()
    with SchemaRegistryServer() as started:
        yield started
    registries._known.clear()


# ---------------------------------------------------------------- Avro


def test_avro_of_one_schema_and_what_is_none() -> None:
    of = source(format="avro", avro_schema=json.dumps(READER))
    good = avro(READER, {"id": 1, "v": 2.5, "unit": "K"})
    rows = decoded(of, good, good + b"x", good[:-1], None, b"", good, faults={5: "the key"})
    assert rows[0] == {"id": 1, "v": 2.5, "unit": "K", "corrupt": None, "reason": None}
    assert [r["reason"].split(":")[0] for r in rows[1:]] == [
        "1 bytes too many for its schema",
        "not a value of its schema",
        "no value (a tombstone)",
        "not a value of its schema",
        "the key",
    ]
    assert all(r["id"] is None for r in rows[1:])
    assert decoded_text(rows[1]["corrupt"]) == good + b"x" and rows[3]["corrupt"] == BASE64


def test_logical_types() -> None:
    fields = [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "in", "type": {"type": "record", "name": "In", "fields": [{"name": "x", "type": "float"}]}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
    ]
    schema = {"type": "record", "name": "R", "fields": fields}
    at = datetime.datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=datetime.UTC)
    record = {
        "at": at,
        "day": at.date(),
        "cost": decimal.Decimal("12.34"),
        "tags": {"a": [1, 2]},
        "in": {"x": 0.5},
        "clock": datetime.time(1, 2, 3),
    }
    (row,) = decoded(source(format="avro", avro_schema=json.dumps(schema)), avro(schema, record))
    assert row["corrupt"] is None
    assert row["tags"] == [("a", [1, 2])] and row["clock"] == "01:02:03"
    assert {k: row[k] for k in ("at", "day", "cost", "in")} == {k: record[k] for k in ("at", "day", "cost", "in")}


def test_each_value_has_its_writers_schema(server: SchemaRegistryServer) -> None:
    server.schemas = {n: {"schema": json.dumps(s)} for n, s in ((1, OLD), (2, READER), (3, NEW))}
    server.schemas[4] = {"schema": "{}", "schemaType": "JSON"}
    server.schemas[5] = {"schema": '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "none"}]}'}
    values = [
        framed(1, avro(OLD, {"id": 1})),
        framed(2, avro(READER, {"id": 2, "v": 1.0, "unit": "K"})),
        framed(3, avro(NEW, {"id": 3, "v": None, "unit": "F", "more": ["x"]})),
    ]
    of = source(format="avro", avro_schema=json.dumps(READER), registry=server.url)
    bad = [framed(4, b""), framed(5, b"\x02"), framed(9, b"\x02"), b"\x02", b""]
    rows = decoded(of, *values, *bad)
    # The reader's default where the writer had no such field.
    assert [(r["id"], r["v"], r["unit"]) for r in rows[:3]] == [(1, None, "C"), (2, 1.0, "K"), (3, None, "F")]
    reasons = [r["reason"] for r in rows[3:]]
    assert reasons[0] == "schema 4 of the registry is JSON, not AVRO"
    assert "schema 5 of the registry cannot be used" in reasons[1]
    assert reasons[2] == "the registry has no schema 9"
    assert reasons[3] == reasons[4] == "it does not begin with the header of a schema registry"
    without = source("id bigint, unit string", format="avro", registry=server.url)
    assert [(r["id"], r["unit"]) for r in decoded(without, *values)] == [(1, None), (2, "K"), (3, "F")]
    assert server.asked.count("/schemas/ids/1") == 1, "a schema is asked for once"
    (none,) = decoded(source("x bigint", format="avro", registry=server.url), values[0])
    assert "none of the columns is a field of the record, which has id" in none["reason"]


def test_schemas_may_refer_to_others(server: SchemaRegistryServer) -> None:
    inner = {"type": "record", "name": "In", "namespace": "n", "fields": [{"name": "x", "type": "int"}]}
    outer = {"type": "record", "name": "R", "namespace": "n", "fields": [{"name": "in", "type": "n.In"}]}
    server.subjects = {"n.In": {"schema": json.dumps(inner)}}
    reference = {"name": "n.In", "subject": "n.In", "version": 1}
    server.schemas = {1: {"schema": json.dumps(outer), "references": [reference]}}
    (row,) = decoded(source("`in` struct<x: int>", format="avro", registry=server.url), framed(1, b"\x0e"))
    assert row["in"] == {"x": 7} and row["corrupt"] is None


# ---------------------------------------------------------------- Protobuf


def proto_file() -> Any:
    """Make the compiled form of a .proto file, as protoc does."""
    from google.protobuf import descriptor_pb2 as d

    file = d.FileDescriptorProto(name="plant.proto", package="plant", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    file.enum_type.add(name="Kind").value.add(name="COLD", number=0)
    file.enum_type[0].value.add(name="WARM", number=1)
    message = file.message_type.add(name="Reading")
    f = d.FieldDescriptorProto

    def field(name: str, number: int, type_: int, of: str = "", label: int = f.LABEL_OPTIONAL) -> None:
        message.field.add(name=name, number=number, type=type_, type_name=of or None, label=label)

    field("id", 1, f.TYPE_INT64)
    field("v", 2, f.TYPE_MESSAGE, ".google.protobuf.DoubleValue")
    field("at", 3, f.TYPE_MESSAGE, ".google.protobuf.Timestamp")
    field("kind", 4, f.TYPE_ENUM, ".plant.Kind")
    field("tags", 5, f.TYPE_STRING, label=f.LABEL_REPEATED)
    field("by", 6, f.TYPE_MESSAGE, ".plant.Reading.ByEntry", f.LABEL_REPEATED)
    field("part", 7, f.TYPE_MESSAGE, ".plant.Reading.Part")
    entry = message.nested_type.add(name="ByEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=f.TYPE_STRING, label=f.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=f.TYPE_INT32, label=f.LABEL_OPTIONAL)
    part = message.nested_type.add(name="Part")
    part.field.add(name="n", number=1, type=f.TYPE_UINT32, label=f.LABEL_OPTIONAL)
    return file


def message(name: str, **fields: Any) -> bytes:
    from google.protobuf import message_factory

    from headwater.dataflow.protobufschema import message_of

    made = message_factory.GetMessageClass(message_of([proto_file().SerializeToString()], name, where="x"))()
    for key, value in fields.items():
        if isinstance(value, dict) and key == "by":
            made.by.update(value)
        elif isinstance(value, list):
            getattr(made, key).extend(value)
        elif isinstance(value, dict):
            getattr(made, key).__class__  # noqa: B018
            for inner, one in value.items():
                setattr(getattr(made, key), inner, one)
        else:
            setattr(made, key, value)
    data: bytes = made.SerializeToString()
    return data


ROW = {
    "id": 7,
    "v": {"value": 1.5},
    "at": {"seconds": 1, "nanos": 500_000_000},
    "kind": 1,
    "tags": ["a", "b"],
    "by": {"x": 1},
    "part": {"n": 4_000_000_000},
}
WANTED = {
    "id": 7,
    "v": 1.5,
    "at": datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=datetime.UTC),
    "kind": "WARM",
    "tags": ["a", "b"],
    "by": [("x", 1)],
    "part": {"n": 4_000_000_000},
}


def test_protobuf_of_one_message(tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2 as d

    file = tmp_path / "plant.desc"
    file.write_bytes(d.FileDescriptorSet(file=[proto_file()]).SerializeToString())
    of = source(format="protobuf", descriptor=str(file), message="plant.Reading")
    assert {c.name: c.type.text for c in of.schema()} == {
        "id": "bigint",
        "v": "double",
        "at": "timestamp",
        "kind": "string",
        "tags": "array<string>",
        "by": "map<string,int>",
        "part": "struct<n:bigint>",
    }
    rows = decoded(of, message("plant.Reading", **ROW), b"", b"\xff")
    assert rows[0] == {**WANTED, "corrupt": None, "reason": None}
    # Of the third version of Protobuf, unset fields have their default; messages are NULL.
    assert (rows[1]["id"], rows[1]["v"], rows[1]["kind"], rows[1]["tags"]) == (0, None, "COLD", [])
    assert rows[1]["corrupt"] is None and "not a value of its schema" in rows[2]["reason"]
    with pytest.raises(Exception, match="the descriptor has no message plant\\.Missing"):
        source(format="protobuf", descriptor=str(file), message="plant.Missing")


def test_protobuf_by_a_registry(server: SchemaRegistryServer) -> None:
    compiled = base64.b64encode(proto_file().SerializeToString()).decode()
    server.schemas = {3: {"schemaType": "PROTOBUF", "schema": "syntax = ...", "serialized": compiled}}
    of = source("id bigint, kind string", format="protobuf", registry=server.url)
    value = message("plant.Reading", id=7, kind=1)
    nested = message("plant.Reading.Part", n=3)
    # The place of the message: the first (0), or its indexes in zigzag form: 2 of them, 0 and 1.
    rows = decoded(of, framed(3, b"\0" + value), framed(3, b"\x02\x00" + value), framed(3, b"\x04\x00\x02" + nested))
    assert [(r["id"], r["kind"]) for r in rows[:2]] == [(7, "WARM")] * 2
    assert "none of the columns is a field" in rows[2]["reason"]
    (part,) = decoded(source("n bigint", format="protobuf", registry=server.url), framed(3, b"\x04\x00\x02" + nested))
    assert part["n"] == 3
    only = source("id bigint", format="protobuf", registry=server.url, message="plant.Other")
    bad = decoded(only, framed(3, b"\0" + value), framed(3, b"\x0a\x09"), framed(3, b"\xff"), framed(3, b"\x02\x7e"))
    assert bad[0]["reason"] == "a message plant.Reading, not plant.Other"
    assert all(r["reason"] for r in bad)


# ---------------------------------------------------------------- the registry


def test_a_registry_that_does_not_answer_is_waited_for(
    server: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "_PAUSE", 0.0)
    server.answer = (503, {})
    with pytest.raises(BrokerAway, match="does not answer: HTTP 503"):
        SchemaRegistry(server.url).schema(1)
    assert len(server.asked) == registries._TRIES
    of = source("id bigint", format="avro", registry=server.url)
    with pytest.raises(BrokerAway):  # not a dead letter: the value may be well-formed
        decoded(of, framed(1, b"\x02"))
    away = server.url
    server.answer = (302, {"Location": f"{away}/elsewhere"})
    with pytest.raises(RuntimeFailure, match="HTTP 302"):
        SchemaRegistry(server.url).schema(1)
    assert "/elsewhere" not in server.asked, "a redirect leads to an address that nobody has permitted"


def test_a_registry_with_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    registries._known.clear()
    monkeypatch.setenv("HEADWATER_SECRET_USER", "anna")
    monkeypatch.setenv("HEADWATER_SECRET_WORD", "pass-word")
    with SchemaRegistryServer(user="anna:pass-word") as server:
        server.schemas = {1: {"schema": json.dumps(OLD)}}
        with pytest.raises(RuntimeFailure, match="HTTP 401") as caught:
            SchemaRegistry(server.url).schema(1)
        assert "registry_password_env" in str(caught.value.hint)
        both = SchemaRegistry(server.url, "HEADWATER_SECRET_USER", "HEADWATER_SECRET_WORD")
        assert both.schema(1).type == "AVRO"
        with pytest.raises(NoSuchSchema):
            both.schema(2)


def test_the_server_of_an_address() -> None:
    assert server_of("http://h") == ("h", 80)
    assert server_of("https://h/x") == ("h", 443)
    assert server_of("http://[::1]:8081") == ("::1", 8081)


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("type_", "value", "says"),
    [
        ("int", 2**31, "field 'x': 2147483648 is not an int"),
        ("int", True, "True is not an int"),
        ("int", 1.0, "1.0 is not an int"),
        ("float", 1e39, "1e+39 is not a float"),
        ("double", "1", "'1' is not a double"),
        ("string", b"x", "b'x' is not a string"),
        ("binary", "x", "'x' is not a binary"),
        ("boolean", 1, "1 is not a boolean"),
        ("timestamp", 5, "5 is not a timestamp"),
        ("timestamp", datetime.datetime(2026, 1, 1), "is not a timestamp"),
        ("date", datetime.datetime(2026, 1, 1), "is not a date"),
        ("decimal(3,1)", decimal.Decimal("100"), "is not a decimal(3,1)"),
        ("array<int>", ["x"], "field 'x[]': 'x' is not an int"),
        ("struct<a:int>", {"a": "x"}, "field 'a': 'x' is not an int"),
        ("map<string,int>", {"a": "x"}, "field 'x[]'"),
    ],
)
def test_values_that_do_not_fit(type_: str, value: Any, says: str) -> None:
    with pytest.raises(Misfit) as caught:
        converter(DataType.parse(type_), "x")(value)
    assert says in str(caught.value)


def test_the_check_of_a_record_to_replay() -> None:
    of = source(format="avro", avro_schema=json.dumps(READER))
    good = BASE64 + base64.b64encode(avro(READER, {"id": 1, "v": None, "unit": "K"})).decode()
    assert misfit_of_bytes(of, good) is None
    assert "write it as 'base64: ...'" in str(misfit_of_bytes(of, '{"id": 1}'))
    assert "not base64" in str(misfit_of_bytes(of, BASE64 + "x"))
    assert "not a value of its schema" in str(misfit_of_bytes(of, BASE64))
